"""Rules of the contract that a store does not keep yet, by the class of the store's tests."""

from __future__ import annotations

LANDING: dict[str, set[str]] = {
    "TestSqlite": {"SwapRules", "SpreadRules", "ReplayRules", "ReturnRules", "ReadmitRules", "LineRules"}
    | {"ReplaceRules", "RestoreRules", "TrendRules"},
}
