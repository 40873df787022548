"""For the tests of programs that use redrive, and of stores: a manual clock, and the contract every store keeps.

Needs pytest, which nothing else in redrive imports.
"""

from __future__ import annotations

from .clock import ManualClock
from .contract import StoreContract

__all__ = ["ManualClock", "StoreContract"]
