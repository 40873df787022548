"""The test kit: an app on a store in memory, a clock that jumps, and a worker that runs one message at a time.

Begin with `kit`. `engine` claims, admits and settles, `runners` call the handlers, `faults` fail runs on demand.
"""

from __future__ import annotations

from .faults import Crash
from .kit import Kit

__all__ = ["Crash", "Kit"]
