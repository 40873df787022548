"""Failpoints: named points of a store at which a test kills the process or makes the call fail.

A store calls `failpoint(name)` there. Tests set `failpoint`; otherwise it is `no_failpoint`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

no_failpoint: Callable[[str], Any] = bool  # does nothing, and as a builtin at the least cost
