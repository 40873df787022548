"""Failpoints: named points of a store at which a test kills the process or makes the call fail.

A store calls its `failpoint` with the name of the point. It is `no_failpoint`, unless a test sets another function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

no_failpoint: Callable[[str], Any] = bool  # does nothing; `bool` because calling a builtin costs least
