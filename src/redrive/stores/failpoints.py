"""Failpoints: named points of a store at which a test kills the process or makes the call fail.

Tests set a store's `failpoint`, which is called with the name; otherwise it is `no_failpoint`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

no_failpoint: Callable[[str], Any] = bool  # does nothing; a builtin, as that costs least
