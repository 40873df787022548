"""Step Functions: a state machine that redrives dead messages, and the Lambda handlers of its states."""

from __future__ import annotations

from .functions import approve, check_breaker, fetch, isolate, redrive
from .machine import Machine, definition

__all__ = ["Machine", "approve", "check_breaker", "definition", "fetch", "isolate", "redrive"]
