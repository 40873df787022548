"""The test kit: an app on a store in memory, a clock that jumps, and a worker in slow motion."""

from __future__ import annotations

from .faults import Crash
from .kit import Kit

__all__ = ["Crash", "Kit"]
