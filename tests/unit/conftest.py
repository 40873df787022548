"""Shared by the tests of what an app does on any store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive import App

from .working import store_in


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    """An app on each of the embedded stores, on the wall clock."""
    made = App(store=store_in(tmp_path, request.param))
    yield made
    made.store.close()
