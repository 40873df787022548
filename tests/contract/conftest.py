"""Marks the rules of the contract that a store does not keep yet. See landing.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from landing import LANDING


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or item.cls is None:
            continue
        rules = item.function.__qualname__.split(".")[0]
        if rules in LANDING.get(item.cls.__name__, ()):
            item.add_marker(pytest.mark.xfail(reason=f"{rules}: not landed in this store", run=False))
