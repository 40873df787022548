"""Batches on PostgreSQL: their counts are sums of rows that no commit waits for, and older programs are refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import psycopg
import pytest
from tests.support.schemas import schema  # noqa: F401

from redrive.errors import SchemaError
from redrive.fault import Fault, Kind
from redrive.message import (
    Ack,
    BatchCounts,
    BatchMark,
    ClaimRequest,
    DeadLetter,
    Delivery,
    Draft,
    Exchange,
    Keep,
    Lane,
    Settled,
    Settlement,
    Swap,
)
from redrive.stores.postgres import batches
from redrive.stores.postgres.schema import open_schema, statements
from redrive.stores.postgres.store import PostgresStore
from redrive.testing import ManualClock

FAULT = Fault(Kind.PERMANENT, "ValueError", "boom", "f" * 16)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(schema: str, clock: ManualClock) -> Iterator[PostgresStore]:
    with closing(PostgresStore(schema, clock_ms=clock)) as store:
        yield store


def claim(store: PostgresStore, limit: int = 500) -> list[Delivery]:
    return store.exchange([], [ClaimRequest("default", limit, 60_000, worker="w")]).deliveries


def ack(store: PostgresStore, deliveries: Sequence[Delivery]) -> Exchange:
    done = store.exchange([Settlement(delivery.receipt, Ack()) for delivery in deliveries], [])
    assert set(done.settled) == {Settled.OK}
    return done


def deltas(store: PostgresStore) -> int:
    rows = store._link.look(f"select count(*) from {store._link.schema}.batch_delta")
    return int(rows[0][0])


def run(store: PostgresStore, sql: str) -> None:
    store._link.run(lambda c: c.execute(sql.format(s=store._link.schema).encode()))


def test_a_program_that_cannot_count_members_is_refused(store: PostgresStore) -> None:
    known = {name: sql for name, sql in statements().items() if name != "migration_10"}
    with pytest.raises(SchemaError, match="at version 10, for redrive that knows 10 or later; this one knows 9"):
        open_schema(store._link, known)


def test_an_exchange_adds_one_row_for_each_batch(store: PostgresStore) -> None:
    store.put([Draft(task="t", batch=batch) for batch in "ab" for _ in range(50)])
    assert deltas(store) == 2
    done = ack(store, claim(store))
    assert done.batches == ("a", "b") and deltas(store) == 4
    assert store.batch_counts(["b", "a"]) == [BatchCounts(done=50, opened=50)] * 2


def test_messages_outside_of_batches_add_no_row(store: PostgresStore) -> None:
    store.put([Draft(task="t"), Draft(task="t", key="k"), Draft(task="t", group="g")])
    ack(store, claim(store))
    assert deltas(store) == 0


def test_looks_fold_what_many_commits_added(store: PostgresStore) -> None:
    rounds = 2 * batches.FOLD_AT
    for _ in range(rounds):
        store.put([Draft(task="t", batch="b")] * 2)
        ack(store, claim(store, 1))
    assert deltas(store) < batches.FOLD_AT + 4
    assert store.batch_counts(["b"]) == [BatchCounts(open=rounds, done=rounds, opened=2 * rounds)]
    assert store.changed_batches() == []  # some are open
    assert ack(store, claim(store)).batches == ("b",)
    assert store.check() == []


def test_the_sweep_folds_what_puts_added(store: PostgresStore, clock: ManualClock) -> None:
    for n in range(20):
        store.put([Draft(task="t", batch=f"b{n % 3}")])
    clock.advance("61s")
    store.exchange([], [])
    assert deltas(store) == 0
    assert [counts.open for counts in store.batch_counts(["b0", "b1", "b2", "none"])] == [7, 7, 6, 0]


def test_folds_at_the_same_time_add_each_row_once(schema: str, store: PostgresStore) -> None:
    others = [PostgresStore(schema) for _ in range(2)]
    stop = threading.Event()
    seen = set[int]()

    def fold(other: PostgresStore) -> None:
        while not stop.is_set():
            batches.fold(other._link, other._st)
            seen.update(counts.total for counts in other.batch_counts(["b"]))

    threads = [threading.Thread(target=fold, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    totals = [0]
    for _ in range(60):
        store.put([Draft(task="t", batch="b")] * 3)
        totals.append(totals[-1] + 3)
    stop.set()
    for thread in threads:
        thread.join()
    for other in others:
        other.close()
    assert seen <= {*totals} and store.batch_counts(["b"])[0].total == totals[-1]


def test_a_fold_waits_for_no_transaction_that_holds_a_row(schema: str, store: PostgresStore) -> None:
    store.put([Draft(task="t", batch="b")])
    with psycopg.connect(schema.split("?")[0]) as other:
        other.execute(f"select from {store._link.schema}.batch_delta for update".encode())
        assert batches.fold(store._link, store._st, ["b"]) == 0
        assert store.batch_counts(["b"]) == [BatchCounts(open=1, opened=1)]
    assert batches.fold(store._link, store._st, ["b"]) == 1


def test_a_change_after_the_look_outlives_the_mark(store: PostgresStore) -> None:
    store.put([Draft(task="t", batch="b")])
    ack(store, claim(store))
    (counts,) = store.batch_counts(["b"])
    store.put([Draft(task="t", batch="b")])
    store.mark_batches([BatchMark("b", counts, keep_ms=0)])
    ack(store, claim(store))
    assert store.changed_batches() == ["b"]
    (counts,) = store.batch_counts(["b"])
    store.mark_batches([BatchMark("b", counts)])
    assert store.changed_batches() == []


def test_members_with_keys_groups_and_cells_are_settled_as_others_are(store: PostgresStore) -> None:
    store.put(
        [
            Draft(task="t", batch="b", key="k"),
            Draft(task="t", batch="b", group="g", key="l"),
            Draft(task="t", batch="b", group="g"),
            Draft(task="t", batch="b"),
        ]
    )
    held = claim(store)
    assert [delivery.message.group for delivery in held] == [None, "g", None]
    swapped = Settlement(held[2].receipt, Ack(), swaps=(Swap("cell", 0, b"x"),))
    done = store.exchange([swapped, *(Settlement(one.receipt, Ack()) for one in held[:2])], [])
    assert done.settled == [Settled.OK] * 3 and done.batches == ()
    (second,) = claim(store)
    assert second.message.group == "g"
    assert ack(store, [second]).batches == ("b",)
    assert [put.duplicate for put in store.put([Draft(task="t", key="k"), Draft(task="t", key="l")])] == [False, False]


def test_a_member_whose_row_cannot_be_read_is_in_quarantine_and_named(store: PostgresStore) -> None:
    store.put([Draft(task="t", batch="b", headers={"a": "b"}), Draft(task="t", batch="b")])
    run(store, "update {s}.message set meta = 'garbage' where meta is not null")
    done = store.exchange([], [ClaimRequest("default", 9, 60_000)])
    assert [message.batch for message in done.damaged] == ["b"] and done.batches == ("b",)
    assert store.batch_counts(["b"]) == [BatchCounts(open=1, quarantine=1, opened=2, died=1)]
    store.repair(lambda message: None)
    assert store.batch_counts(["b"]) == [BatchCounts(open=1, dead=1, opened=2, died=1)]
    assert [problem for problem in store.check() if problem.startswith("batch")] == []


def test_a_member_with_a_number_at_its_end_is_in_quarantine(store: PostgresStore) -> None:
    store.put([Draft(task="t", batch="b")])
    run(store, "update {s}.message set fence = 2147483647")
    claim(store)
    assert store.batch_counts(["b"]) == [BatchCounts(quarantine=1, opened=1, died=1)]


def test_a_check_names_each_count_that_is_wrong(store: PostgresStore) -> None:
    store.put([Draft(task="t", batch=batch) for batch in "aab"])
    assert store.check() == []
    run(store, "delete from {s}.message where batch = 'b'")
    run(store, "update {s}.message set batch = 'unknown' where id = (select min(id::text)::uuid from {s}.message)")
    wrong = ["batch a: open counts 2, but 1 members are stored", "batch b: open counts 1, but 0 members are stored"]
    assert store.check() == wrong
    batches.fold(store._link, store._st)
    assert store.check() == wrong


def test_members_at_rest_are_read_by_the_index_of_batches(store: PostgresStore) -> None:
    store.put([Draft(task="t", batch=f"b{n % 5}") for n in range(20)])
    dead = [Settlement(one.receipt, DeadLetter("permanent"), FAULT) for one in claim(store)]
    store.exchange(dead, [])
    run(store, "analyze {s}.message")
    path = "lane in ('dead', 'quarantine') and lane = 'dead' and batch = 'b1' order by rested_ms, seq limit 5"
    plan = str(store._link.look(f"explain select * from {store._link.schema}.message where {path}"))
    assert "Index Scan using message_batch" in plan and "Sort" not in plan and "Filter" not in plan
    sql = store._st.sql["failed_batches"].decode().replace("$1", "''").replace("$2", "10")
    plan = str(store._link.look(f"explain {sql}"))
    assert plan.count("Index Only Scan using message_batch") == 2 and "Sort" not in plan
    assert store.batch_ids(failed=True) == [f"b{n}" for n in range(5)]
    assert store.retain("default", dead=Keep(count=3)) == (0, 17)
    assert store.peek(Lane.DEAD).messages != []
    assert sum(counts.discarded for counts in store.batch_counts([f"b{n}" for n in range(5)])) == 17
