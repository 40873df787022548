"""For the tests of programs that use redrive, and of stores: a manual clock, and the contract every store keeps.

Needs pytest, which nothing else in redrive imports.
"""

from __future__ import annotations

import pytest

# Before they are imported, else a failing assert in them would say nothing but AssertionError.
pytest.register_assert_rewrite("redrive.testing._contract")

from .clock import ManualClock  # noqa: E402
from .contract import StoreContract  # noqa: E402

__all__ = ["ManualClock", "StoreContract"]
