"""`redrive dlq` and `redrive run`."""

from __future__ import annotations

from .commands import dlq
from .run import run

__all__ = ["dlq", "run"]
