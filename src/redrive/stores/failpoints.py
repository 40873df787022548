"""Failpoints: named points of a store at which a test kills the process or makes the call fail.

A store calls `seam(name)` there. Tests set `seam`; otherwise it is `no_seam`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

no_seam: Callable[[str], Any] = bool  # does nothing, and as a builtin at the least cost
