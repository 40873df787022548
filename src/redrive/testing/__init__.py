"""Test programs that use redrive, and stores: the `rd` fixture's Kit, a manual clock, contracts of stores and cells.

Begin with `kit` for your own tasks, with `contract` for a store of your own, and with `sqs` for an SQS without AWS.
Needs pytest, which no other package of redrive imports. Public names are imported at their first use, because pytest
loads this package's plugin in every run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clock import ManualClock
    from .contract import CellsContract, StoreContract
    from .kit import Crash, Kit
    from .policies import policy_report

__all__ = ["CellsContract", "Crash", "Kit", "ManualClock", "StoreContract", "policy_report"]

_HOME = {"CellsContract": "contract", "Crash": "kit", "Kit": "kit", "ManualClock": "clock", "StoreContract": "contract"}
_HOME["policy_report"] = "policies"


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    if _HOME[name] == "contract":
        import pytest

        # Rewrite the asserts of the contract before it is imported: else a failure reports only AssertionError.
        pytest.register_assert_rewrite("redrive.testing.contract")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
