"""A store in a file, an app on it, and readers of its pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.pages import Reader

from redrive import App
from redrive.read_model import ReadModel
from redrive.stores.sqlite.store import SqliteStore
from redrive.web import Site


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "work.db")
    yield store
    store.close()


@pytest.fixture
def app(store: SqliteStore) -> App:
    return App(store=store)


@pytest.fixture
def pages(app: App) -> Reader:
    return Reader(app.dashboard())


@pytest.fixture
def bare(store: SqliteStore) -> Reader:
    """The pages where the store's URL alone is known."""
    return Reader(Site(ReadModel(store=store), url="sqlite:///work.db"))
