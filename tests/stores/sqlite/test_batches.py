"""The counts of batches in a file: what is damaged is counted too, and no count walks the messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from redrive.fault import Fault, Kind
from redrive.message import (
    Ack,
    BatchCounts,
    ClaimRequest,
    DeadLetter,
    Draft,
    Filter,
    Keep,
    Lane,
    RetryAt,
    Settled,
    Settlement,
)
from redrive.stores.sqlite import schema
from redrive.stores.sqlite.search import page_of, trend_of, where_of
from redrive.stores.sqlite.store import SqliteStore

ASK = ClaimRequest("default", 100, 30_000, worker="w")
FAULT = Fault(Kind.PERMANENT, "Error", "no", "print0")
DAMAGED = ["x'00ff'", "17.5", "cast(x'ff' as text)"]  # a number becomes a text in this column


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as store:
        yield store


def put(store: SqliteStore, *batches: str | None) -> list[str]:
    return [put.id for put in store.put([Draft(task="t", batch=batch) for batch in batches])]


def execute(path: Path, sql: str, *args: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as c, c:
        return c.execute(sql, args).fetchall()


def counts(store: SqliteStore) -> BatchCounts:
    return store.batch_counts(["b"])[0]


def settle_all(store: SqliteStore, decision: Ack | DeadLetter | RetryAt) -> tuple[str, ...]:
    why = None if isinstance(decision, Ack) else FAULT
    deliveries = store.exchange([], [ASK]).deliveries
    done = store.exchange([Settlement(each.receipt, decision, why) for each in deliveries], [])
    assert {*done.settled} <= {Settled.OK}
    return done.batches


def test_one_exchange_acks_members_of_many_batches_and_of_none(store: SqliteStore) -> None:
    put(store, "a", None, "b", "b", "c", None)
    assert settle_all(store, Ack()) == ("a", "b", "c")
    done = [BatchCounts(done=n, opened=n) for n in (1, 2, 1)]
    assert store.batch_counts(["a", "b", "c"]) == done and store.check() == []


def test_a_put_in_a_transaction_counts_with_it(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as c:
        for end in ("rollback", "commit"):
            c.execute("begin immediate")
            store.put([Draft(task="t", batch="b")], tx=c)
            assert counts(store) == BatchCounts()
            c.execute(end)
    assert counts(store) == BatchCounts(open=1, opened=1) and store.check() == []


@pytest.mark.parametrize("lane", ["ready", "dead", "done"])
def test_a_damaged_member_that_is_set_aside_is_counted_there(store: SqliteStore, path: Path, lane: str) -> None:
    put(store, "b", "b")
    if lane != "ready":
        settle_all(store, DeadLetter("permanent") if lane == "dead" else Ack(keep_ms=None))
    (first,) = execute(path, "select min(seq) from message")
    execute(path, "update message set faults = 'garbage' where seq = ?", *first)
    if lane == "ready":
        assert settle_all(store, RetryAt(0)) == () and counts(store).died == 1
        assert counts(store) == BatchCounts(open=1, quarantine=1, opened=2, died=1)
    store.repair(lambda message: None)
    assert store.check() == []
    assert {"ready": counts(store).open == 1, "dead": counts(store).dead == 2, "done": counts(store).done == 1}[lane]
    assert counts(store).total == 2


def test_an_exchange_names_the_batch_of_a_member_that_it_sets_aside(store: SqliteStore, path: Path) -> None:
    put(store, "b", "b")
    execute(path, "update message set faults = 'garbage', attempt = 1 where seq = 1")
    done = store.exchange([], [ASK])
    assert len(done.damaged) == len(done.deliveries) == 1 and done.damaged[0].batch == "b"
    assert done.batches == ("b",)


@pytest.mark.parametrize("value", DAMAGED[::2])
def test_a_member_whose_batch_cannot_be_read_is_set_aside_and_repair_counts_again(
    store: SqliteStore, path: Path, value: str
) -> None:
    put(store, "b", "b", "b")
    deliveries = store.exchange([], [ASK]).deliveries
    execute(path, f"update message set batch = {value} where seq = 1")
    done = store.exchange([Settlement(each.receipt, Ack()) for each in deliveries], [])
    assert done.settled == [Settled.STALE, Settled.OK, Settled.OK] and len(done.damaged) == 1
    assert store.check()[0] == "batch b: open counts 1, but 0 members are stored"
    assert "batch b: its members are counted again" in store.repair(lambda message: None)
    assert store.check() == [] and store.changed_batches() == ["b"]
    assert counts(store) == BatchCounts(done=2, opened=3)


@pytest.mark.parametrize("value", DAMAGED)
def test_retention_removes_what_names_no_batch(store: SqliteStore, path: Path, value: str) -> None:
    put(store, "b", "b", "b")
    settle_all(store, DeadLetter("permanent"))
    execute(path, f"update message set batch = {value} where seq = 1")
    assert store.retain("default", dead=Keep(count=1)) == (0, 2)
    store.repair(lambda message: None)
    assert store.check() == [] and counts(store) == BatchCounts(dead=1, discarded=1, opened=3, died=3)


@pytest.mark.parametrize("field", ["open", "dead", "quarantine"])
def test_a_count_that_is_wrong_is_found_and_mended(store: SqliteStore, path: Path, field: str) -> None:
    put(store, "b", "c")
    execute(path, f"update batch set {field} = 7 where id = 'b'")
    stored = int(field == "open")
    assert store.check() == [f"batch b: {field} counts 7, but {stored} members are stored"]
    assert store.repair(lambda message: None) == ["batch b: its members are counted again"]
    assert store.check() == [] and counts(store) == BatchCounts(open=1, opened=1)


def test_a_count_that_is_no_number_is_found_and_mended(store: SqliteStore, path: Path) -> None:
    put(store, "b")
    execute(path, "update batch set done = 'garbage' where id = 'b'")
    assert store.check() == ["batch b: a count is no number"]
    store.repair(lambda message: None)
    assert store.check() == [] and counts(store) == BatchCounts(open=1, opened=1)


def test_a_file_of_the_schema_before_gets_the_column_and_its_messages_are_of_no_batch(path: Path) -> None:
    sql = schema.statements()
    with closing(sqlite3.connect(path)) as c:
        c.executescript(sql["migration_5"] + ";" + sql["migration_6"] + "; pragma user_version=5")
        c.execute(
            "insert into message(id, task, queue, due_ms, enqueued_ms, life_ms, body) values('m','t','q',1,1,1,x'')"
        )
        c.commit()
    with closing(SqliteStore(path)) as store:
        (message,) = store.find(["m"])
        assert message is not None and message.batch is None and store.info()["schema"] == 7
    assert execute(path, "pragma user_version") == [(7,)]


# -- how the statements run


def plan(path: Path, sql: str, args: list[Any]) -> str:
    return "\n".join(row[3] for row in execute(path, f"explain query plan {sql}", *args))


@pytest.mark.parametrize(
    ("name", "args", "index"),
    [
        ("changed_batches", 2, "INDEX batch_news (id>?)"),
        ("failed_batches", 2, "INDEX batch_failed (id>?)"),
        ("sweep_batches", 1, "batch_expires"),
        ("batch_counts", 1, "PRIMARY KEY (id=?)"),
        ("ended", 1, "PRIMARY KEY (id=?)"),
        ("mark_batch", 11, "PRIMARY KEY (id=?)"),
        ("members", 1, "INTEGER PRIMARY KEY"),
        ("held_members", 1, "INTEGER PRIMARY KEY"),
        ("discard_members", 4, "message_rest_queue"),
    ],
)
def test_no_statement_of_batches_scans(store: SqliteStore, path: Path, name: str, args: int, index: str) -> None:
    found = plan(path, schema.statements()[name], ["[]"] * args)
    assert index in found and "SCAN message" not in found and "SCAN batch" not in found, found


@pytest.mark.parametrize("lane", [Lane.DEAD, Lane.QUARANTINE])
@pytest.mark.parametrize("batch", ["b", ("b", "c")])
def test_what_died_in_a_batch_is_listed_from_its_index(
    store: SqliteStore, path: Path, lane: Lane, batch: str | tuple[str, ...]
) -> None:
    where, args = page_of(store._read, lane, Filter(batch=batch), (0, 0), 10)
    found = plan(path, f"select * from message {where}", args)
    assert "INDEX message_rest_batch (batch=? AND lane=? AND " in found and "SCAN message" not in found


def test_failure_groups_of_a_batch_are_counted_from_its_index(store: SqliteStore, path: Path) -> None:
    clauses, args = where_of(Filter(batch="b"), Lane.DEAD)
    sql = schema.statements()["failure_groups"].replace("{where}", " and ".join(clauses))
    found = plan(path, sql.replace("{trend}", trend_of(None)[0]), args)
    assert "INDEX message_rest_batch (batch=? AND lane=?" in found, found
