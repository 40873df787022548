"""The store of `examples/dict_store.py` keeps the contract for its traits, in no more lines than the docs say."""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.dict_store import DictStore

from redrive import App
from redrive.errors import StoreUnavailable
from redrive.message import Draft
from redrive.store import Store
from redrive.testing import ManualClock, StoreContract

LINES_MAX = 300


class TestDictStore(StoreContract):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return DictStore(place / "work.db", clock)


def test_the_store_is_as_small_as_the_docs_say() -> None:
    path = Path(__file__).parents[2] / "examples" / "dict_store.py"
    assert sum(bool(line.strip()) for line in path.read_text().splitlines()) < LINES_MAX


def test_a_kill_while_it_writes_leaves_the_last_commit(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    store = DictStore(path)
    (put,) = store.put([Draft(task="a")])
    store.close()
    (tmp_path / "work.db-part").write_bytes(path.read_bytes()[:-1])  # as a kill before the rename leaves it
    store = DictStore(path)
    assert store.find([put.id])[0] is not None
    store.close()


def test_one_process_at_a_time_has_the_file(tmp_path: Path) -> None:
    store = DictStore(tmp_path / "work.db")
    with pytest.raises(StoreUnavailable, match="another process has"):
        DictStore(tmp_path / "work.db")
    store.close()


def test_an_app_works_on_it(tmp_path: Path) -> None:
    app, done = App(store=DictStore(tmp_path / "work.db")), list[int]()

    @app.task()
    def count(n: int) -> None:
        done.append(n)

    count.enqueue(1)
    app.run_worker(burst=True)
    assert done == [1] and app.counts("default").ready == 0
    app.store.close()
