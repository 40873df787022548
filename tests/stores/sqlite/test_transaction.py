"""Enqueueing in a transaction of the caller's own: with its data, or not at all."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from redrive.errors import EnqueueError, StoreUnavailable, Unsupported
from redrive.message import ClaimRequest, Draft, Swap
from redrive.stores.sqlite.store import SqliteStore

DRAFT = Draft(task="push")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


@pytest.fixture
def connection(path: Path, store: SqliteStore) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    connection.execute("create table orders (n integer)")
    connection.commit()
    yield connection
    connection.close()


def stored(store: SqliteStore, table: str = "message") -> int:
    found: int = store._read(f"select count(*) from {table}")[0][0]
    return found


def test_messages_are_there_with_the_data_once_it_commits(store: SqliteStore, connection: sqlite3.Connection) -> None:
    connection.execute("insert into orders values (1)")
    put = store.put([DRAFT, DRAFT], tx=connection)
    assert (stored(store), stored(store, "orders")) == (0, 0)
    connection.commit()
    assert (stored(store), stored(store, "orders")) == (2, 1)
    assert store.find([put[0].id])[0] is not None


def test_they_go_with_the_data_when_it_rolls_back(store: SqliteStore, connection: sqlite3.Connection) -> None:
    store.put([DRAFT], tx=connection)  # begins the transaction, as an insert of the caller's would
    connection.execute("insert into orders values (1)")
    connection.rollback()
    assert (stored(store), stored(store, "orders")) == (0, 0)


def test_a_refused_put_leaves_the_callers_work_as_it_was(store: SqliteStore, connection: sqlite3.Connection) -> None:
    taken = store.put([DRAFT])[0].id
    connection.execute("insert into orders values (1)")
    with pytest.raises(EnqueueError):
        store.put([DRAFT, Draft(task="push", id=taken)], tx=connection)
    connection.commit()
    assert (stored(store), stored(store, "orders")) == (1, 1)


def test_keys_groups_and_swaps_hold_there_too(store: SqliteStore, connection: sqlite3.Connection) -> None:
    grouped = Draft(task="push", group="g")
    keyed = Draft(task="push", key="k")
    puts = store.put([grouped, grouped, keyed, keyed], swaps=[Swap("cell", 0, b"1")], tx=connection)
    assert [put.duplicate for put in puts] == [False, False, False, True]
    connection.commit()
    assert len(store.exchange([], [ClaimRequest("default", 10, 1000)]).deliveries) == 2
    assert store.put([keyed])[0].duplicate
    assert store.cells.read(["cell"])[0] is not None


def test_a_factory_of_the_callers_does_not_matter(store: SqliteStore, connection: sqlite3.Connection) -> None:
    connection.row_factory = lambda cursor, row: {"n": row[0]}
    connection.text_factory = bytes
    store.put([Draft(task="push", key="k")], tx=connection)
    assert store.put([Draft(task="push", key="k")], tx=connection)[0].duplicate
    assert connection.execute("select count(*) from message").fetchone() == {"n": 1}
    assert connection.text_factory is bytes
    connection.rollback()


@pytest.mark.parametrize("which", ["memory", "other file", "no connection"])
def test_what_is_not_this_database_is_refused(store: SqliteStore, tmp_path: Path, which: str) -> None:
    places = {"memory": ":memory:", "other file": str(tmp_path / "other.db")}
    tx = sqlite3.connect(places[which]) if which in places else object()
    with pytest.raises(Unsupported):
        store.put([DRAFT], tx=tx)
    if isinstance(tx, sqlite3.Connection):
        tx.close()
    assert stored(store) == 0


def test_a_connection_that_commits_by_itself_is_refused(store: SqliteStore, path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(EnqueueError, match="begin"):
        store.put([DRAFT], tx=connection)
    connection.execute("begin immediate")
    store.put([DRAFT], tx=connection)
    connection.execute("commit")
    connection.close()
    assert stored(store) == 1


def test_a_locked_database_says_so(store: SqliteStore, path: Path, connection: sqlite3.Connection) -> None:
    other = sqlite3.connect(path, timeout=0.05, isolation_level="DEFERRED")
    connection.execute("insert into orders values (1)")
    with pytest.raises(StoreUnavailable, match="tx="):
        store.put([DRAFT], tx=other)
    connection.rollback()
    store.put([DRAFT], tx=other)
    other.commit()
    other.close()
    assert stored(store) == 1


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_sqlalchemy_commits_both_or_neither(store: SqliteStore, connection: sqlite3.Connection, kind: str) -> None:
    engine = create_engine(f"sqlite:///{store.path}")
    for commits in (False, True):
        with engine.connect() if kind == "connection" else Session(engine) as tx:
            tx.execute(text("insert into orders values (1)"))
            store.put([DRAFT], tx=tx)
            tx.commit() if commits else tx.rollback()
        assert stored(store) == stored(store, "orders") == commits
    engine.dispose()


def test_sqlalchemy_commits_where_there_is_nothing_but_messages(store: SqliteStore, path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as c:
        (done,) = store.put([Draft(task="t")], tx=c)
        c.commit()
    engine.dispose()
    assert store.find([done.id]) != [None]


def test_a_sessions_commit_wakes_who_waits(store: SqliteStore, connection: sqlite3.Connection) -> None:
    engine = create_engine(f"sqlite:///{store.path}")
    woken = threading.Event()
    store._waker.wake_all = woken.set  # type: ignore[method-assign]
    with Session(engine) as session:
        store.put([DRAFT], tx=session)
        assert not woken.is_set()
        session.commit()
        assert woken.is_set()
    engine.dispose()


def test_a_session_that_lives_long_listens_once_and_wakes_once_a_commit(
    store: SqliteStore, connection: sqlite3.Connection
) -> None:
    engine = create_engine(f"sqlite:///{store.path}")
    woken: list[None] = []
    store._waker.wake_all = lambda: woken.append(None)  # type: ignore[method-assign]
    with Session(engine) as session:
        for commits in (1, 2):
            for _ in range(3):
                store.put([DRAFT], tx=session)
            session.commit()
            assert len(woken) == commits
        session.commit()
        assert len(session.dispatch.after_commit) == 1
        assert len(woken) == 2
    engine.dispose()
