"""SQLite takes no more steps for a claim, a settlement or a page among 200,000 messages than among 2,000."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from tests.support.plans import filling
from tests.support.plans.filling import DAY_MS, HOUR_MS, LATER, LINES, MAIN, SMALL
from tests.support.plans.recorded import Ran, Recorded

from redrive.fault import Fault, Kind
from redrive.message import (
    SKIP_LOOKED,
    Ack,
    ClaimRequest,
    DeadLetter,
    Decision,
    Deferral,
    Delivery,
    Draft,
    Filter,
    Keep,
    Lane,
    Receipt,
    RetryAt,
    Settlement,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("plans-sqlite"), pytest.mark.timeout(900)]

FEW = 2_000
LIMIT = 10
LEASE_MS = 3_600_000  # none ends while the tests run, however busy the machine
FAULT = Fault(Kind.PERMANENT, "Error", "it cannot be done", "print0")
AROUND = 300  # steps

ID = f"""printf('%08x-%04x-7%03x-8%03x-%012x', ({filling.ENQUEUED}) >> 16, ({filling.ENQUEUED}) & 65535, n % 4093,
  n % 4091, n * 40503)"""
FILL = f"""
insert into message(id, due_ms, enqueued_ms, life_ms, rested_ms, expires_ms, turn, wake_ms, parked_ms, fence, attempt,
  priority, lane, queue, task, grp, worker, reason, fingerprint, error, faults, body)
with recursive numbers(n) as (select 0 union all select n + 1 from numbers where n < {{rows}} - 1)
select {ID}, {filling.DUE}, {filling.ENQUEUED}, {filling.ENQUEUED}, {filling.RESTED}, {filling.EXPIRES},
  case when k between 800 and 897 then 2 << 56 | n when k = 898 then 0 end, {filling.WAKE}, {filling.PARKED},
  {filling.FENCE}, {filling.FENCE}, {filling.PRIORITY}, {filling.LANE}, {filling.QUEUE}, {filling.TASK},
  {filling.GROUP}, {filling.WORKER}, {filling.REASON}, {filling.FINGERPRINT}, {filling.ERROR},
  case when {filling.FINGERPRINT} is not null then '[{filling.FAULT}]' end, cast('[' || n || ']' as blob)
from (select n, n % 1000 k from numbers)
"""

SKIPPED = """
insert into message(id, due_ms, enqueued_ms, life_ms, queue, task, body)
with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < ?2)
select 'id' || n, ?1 - n, ?1 - n, ?1 - n, 'main', 'down', '[1]' from numbers
"""

RETRYING = """
insert into message(id, due_ms, enqueued_ms, life_ms, attempt, queue, task, body)
with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < ?2)
select 'id' || n, ?1 - ?2 - n + iif(n % 10, 0, ?2), ?1, ?1, iif(n % 10, 0, 1), 'main', 'task' || (n % 20 / 10), '[1]'
from numbers
"""

Store = Recorded


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Recorded, Recorded]]:
    """One with few messages, one with many."""
    opened = []
    for rows in (FEW, filling.rows()):
        store = Recorded(tmp_path_factory.mktemp("plans") / f"{rows}.db")
        with closing(sqlite3.connect(store.path)) as c, c:
            c.execute(filling.spelt(FILL, store.now_ms(), rows=rows))
        opened.append(store)
    yield opened[0], opened[1]
    for store in opened:
        store.close()


def claimed(store: Store, queue: str, limit: int = LIMIT) -> list[Delivery]:
    deliveries = store.exchange([], [ClaimRequest(queue, limit, LEASE_MS, worker="w")]).deliveries
    assert len(deliveries) == limit
    return deliveries


def claims(store: Store) -> list[Ran]:
    return store.ran(lambda: claimed(store, MAIN))


def claims_that_skip(store: Store) -> list[Ran]:
    ask = ClaimRequest(MAIN, LIMIT, LEASE_MS, frozenset({"task0", "task1"}))
    return store.ran(lambda: store.exchange([], [ask]))


def claims_where_nothing_is_due(store: Store) -> list[Ran]:
    return store.ran(lambda: store.exchange([], [ClaimRequest(LATER, LIMIT, LEASE_MS)]))


def waits(store: Store) -> list[Ran]:
    return store.ran(
        lambda: store._next_due_ms([ClaimRequest(LATER, LIMIT, LEASE_MS), ClaimRequest(SMALL, LIMIT, LEASE_MS)])
    )


def acks(store: Store) -> list[Ran]:
    settlements = [Settlement(d.receipt, Ack()) for d in claimed(store, MAIN)]
    return store.ran(lambda: store.exchange(settlements, []))


def settlements(store: Store) -> list[Ran]:
    """Of every kind, three of each."""
    left = iter(claimed(store, MAIN, 15))
    later_ms = store.now_ms() + HOUR_MS
    deferred = RetryAt(later_ms, counts=False, held=True, deferral=Deferral("breaker", "stripe"))
    decisions: list[Decision] = [Ack(), Ack(keep_ms=DAY_MS), RetryAt(later_ms), DeadLetter("permanent"), deferred]
    follow = (Draft(task="t", queue="other", key="k"),)
    settlements = [
        Settlement(d.receipt, one, fault=None if isinstance(one, Ack) else FAULT, follow_ups=follow)
        for one in decisions
        for d in islice(left, 3)
    ]
    return store.ran(lambda: store.exchange(settlements, []))


def receipts(store: Store) -> list[Receipt]:
    return [d.receipt for d in claimed(store, MAIN)]


def extensions(store: Store) -> list[Ran]:
    held = receipts(store)
    return store.ran(lambda: store.extend(held, lease_ms=LEASE_MS, alone=True))


def checkpoints(store: Store) -> list[Ran]:
    held = receipts(store)
    return store.ran(lambda: store.checkpoint(held[0], b"1"))


def cancels(store: Store) -> list[Ran]:
    ids = [d.message.id for d in claimed(store, MAIN)]
    return store.ran(lambda: (store.find(ids), store.cancel(ids)))


def puts(store: Store) -> list[Ran]:
    drafts = [Draft(task="t", queue="other", key=f"key{n}") for n in range(LIMIT)]
    return store.ran(lambda: store.put(drafts))


def puts_to_groups(store: Store) -> list[Ran]:
    drafts = [Draft(task="t", queue=LINES, group=f"group{n % 2}") for n in range(LIMIT)]
    return store.ran(lambda: store.put(drafts))


def exchanges_of_groups(store: Store) -> list[Ran]:
    """Once those whose time had come are awake."""
    for _ in range(filling.rows() // 100 // 100 + 1):
        store.exchange([Settlement(d.receipt, Ack()) for d in claimed(store, LINES, 1)], [])
    held = claimed(store, LINES, 1)
    later_ms = store.now_ms() + HOUR_MS
    moves = [Settlement(d.receipt, RetryAt(later_ms), fault=FAULT) for d in held]
    return store.ran(lambda: store.exchange(moves, [ClaimRequest(LINES, 1, LEASE_MS)]))


def pages(where: Filter) -> Callable[[Store], list[Ran]]:
    """Two pages of the dead."""

    def look(store: Store) -> list[Ran]:
        cursor = store.peek(Lane.DEAD, where=where, limit=2).cursor
        return store.ran(
            lambda: [store.peek(Lane.DEAD, where=where, limit=2, cursor=after) for after in (None, cursor)]
        )

    return look


def retention_of_nothing(store: Store) -> list[Ran]:
    keep = Keep(age_ms=300 * DAY_MS)
    return store.ran(lambda: store.retain(MAIN, done=keep, dead=keep))


def retention_by_number(store: Store) -> list[Ran]:
    store.retain(SMALL, dead=Keep(count=2))
    return store.ran(lambda: store.retain(SMALL, dead=Keep(count=2)))


OPERATIONS: dict[str, Callable[[Store], list[Ran]]] = {
    **{
        do.__name__: do
        for do in (claims, claims_that_skip, claims_where_nothing_is_due, waits, acks, settlements, extensions)
    },
    **{do.__name__: do for do in (checkpoints, cancels, puts, puts_to_groups, exchanges_of_groups)},
    "a page of dead letters": pages(Filter()),
    "a page of a queue": pages(Filter(queue=SMALL)),
    "a page of a reason": pages(Filter(reason="reason1")),
    "a page of a task": pages(Filter(task="task1")),
    "a page of a fingerprint": pages(Filter(fingerprint="print20")),
    "a page of a failure group": pages(Filter(fingerprint="print20", task="task0")),
    "a page since a time": pages(Filter(since_ms=int(time.time() * 1000) - 20 * DAY_MS)),
    "retention of nothing": retention_of_nothing,
    "retention by number": retention_by_number,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_more_messages_take_no_more_steps(operation: str, stores: tuple[Store, Store]) -> None:
    few, many = (OPERATIONS[operation](store) for store in stores)
    for ran in many:
        assert not ran.walks or ran.sql.startswith("select exists"), ran  # which ends at the first
        assert not ran.sorts or "json_group_array(distinct" in ran.sql, ran
    steps = [sum(ran.steps for ran in one) for one in (few, many)]
    assert steps[1] <= 1.2 * steps[0] + AROUND, (steps, many)


def test_claims_and_waits_walk_the_due_index_in_its_order(stores: tuple[Store, Store]) -> None:
    for ran in (*claims(stores[1]), *waits(stores[1])):
        due = [line for line in ran.plan if "message_due" in line]
        assert all("INDEX message_due (queue=? AND priority=?" in line for line in due), ran
        assert len(due) in (0, 4), ran  # one per priority


def test_what_is_skipped_in_front_costs_a_claim_and_a_wait_no_more_than_they_look_at(
    tmp_path: Path,
) -> None:
    """As when a dependency is down for an hour."""
    store = Recorded(tmp_path / "skipped.db")
    with closing(sqlite3.connect(store.path)) as c, c:
        c.execute(SKIPPED, (store.now_ms(), filling.rows()))
    ask = ClaimRequest(MAIN, LIMIT, LEASE_MS, frozenset({"down"}))
    beyond = store.ran(lambda: store.exchange([], [ask]))
    assert store.exchange([], [ask]).clogged == {MAIN}
    waits = store.ran(lambda: store._next_due_ms([ask]))
    for ran in (beyond, waits):
        assert not any((one.walks and not one.sql.startswith("select exists")) or one.sorts for one in ran), ran
        assert sum(one.steps for one in ran) <= 25 * SKIP_LOOKED, ran
    store.put([Draft(task="up", queue=MAIN, priority=3)])
    assert [d.message.task for d in store.exchange([], [ask]).deliveries] == ["up"]
    store.close()


@pytest.mark.parametrize("skip", [(), ("task1",)], ids=["", "skipping"])
def test_retries_are_found_behind_a_backlog_in_their_own_index(skip: tuple[str, ...], tmp_path: Path) -> None:
    steps = []
    for rows in (FEW, filling.rows()):
        store = Recorded(tmp_path / f"{rows}.db")
        with closing(sqlite3.connect(store.path)) as c, c:
            c.execute(RETRYING, (store.now_ms(), rows))
        ask = ClaimRequest(MAIN, LIMIT, LEASE_MS, frozenset(skip), retries=3)
        found: list[Delivery] = []
        ran = store.ran(lambda found=found, store=store, ask=ask: found.extend(store.exchange([], [ask]).deliveries))
        assert [d.message.attempt for d in found] == [2] * 3 + [1] * (LIMIT - 3)
        assert not any(one.walks or one.sorts for one in ran if not one.sql.startswith("select exists")), ran
        steps.append(sum(one.steps for one in ran))
        store.close()
    assert steps[1] <= 1.2 * steps[0] + AROUND, steps


def test_failure_groups_read_the_dead_once(stores: tuple[Store, Store]) -> None:
    store = stores[1]
    whole, *_ = store.ran(store.failure_groups)
    one, *_ = store.ran(lambda: store.failure_groups(where=Filter(fingerprint="print1")))
    assert "message_rest_group (lane=?)" in str(whole.plan), whole
    assert "message_rest_group (lane=? AND fingerprint=?)" in str(one.plan), one
    assert not whole.walks and one.steps <= whole.steps / filling.FINGERPRINTS * 1.5, (whole, one)


def test_counts_of_a_queue_read_that_queue(stores: tuple[Store, Store]) -> None:
    store = stores[1]
    small = store.ran(lambda: store.counts(SMALL))
    whole = store.ran(store.counts)
    assert not any(ran.walks for ran in small), small
    assert sum(ran.steps for ran in small) <= sum(ran.steps for ran in whole) / 20, (small, whole)


def test_counts_of_all_queues_and_releases_read_indexes_and_not_the_table(stores: tuple[Store, Store]) -> None:
    store = stores[1]
    for ran in (*store.ran(store.counts), *store.ran(store.queues), *store.ran(lambda: store.reclaim("nobody", []))):
        assert all("INDEX" in line for line in ran.walks), ran


def test_a_sweep_takes_a_thousand(stores: tuple[Store, Store]) -> None:
    store = stores[1]

    def swept() -> int:
        return sum(ran.steps for ran in store.ran(lambda: store.exchange([], []), sweeps=True))

    before, first, second = store.counts().done, swept(), swept()
    assert before - store.counts().done == 2000 and second <= 1.2 * first, (first, second)


def test_a_page_of_what_waits_goes_on_where_the_last_one_ended(stores: tuple[Store, Store]) -> None:
    store = stores[1]
    first = store.peek(Lane.READY, limit=LIMIT)
    for cursor in (None, first.cursor):
        (ran,) = store.ran(lambda: store.peek(Lane.READY, limit=LIMIT, cursor=cursor))  # noqa: B023
        assert ran.steps <= 200 * LIMIT and not ran.sorts, ran


def test_a_page_of_a_queue_reads_that_queue_also_where_a_selection_bounds_the_time(
    stores: tuple[Store, Store],
) -> None:
    store = stores[1]
    where = Filter(queue=SMALL, until_ms=int(time.time() * 1000) + DAY_MS)
    cursor = store.peek(Lane.DEAD, where=where, limit=2).cursor
    for after in (None, cursor):
        (ran,) = store.ran(lambda: store.peek(Lane.DEAD, where=where, limit=2, cursor=after))  # noqa: B023
        assert "message_rest_queue" in str(ran.plan) and not ran.sorts, ran


def test_what_is_deleted_costs_a_claim_nothing(stores: tuple[Store, Store]) -> None:
    """Its places in the index go with it."""
    store = stores[1]
    usual = sum(ran.steps for ran in claims(store))
    for _ in range(20):
        store.put([Draft(task="t", queue="worn") for _ in range(500)])
        held = store.exchange([], [ClaimRequest("worn", 500, LEASE_MS)]).deliveries
        store.exchange([Settlement(d.receipt, Ack()) for d in held], [])
    store.put([Draft(task="t", queue="worn") for _ in range(LIMIT)])
    assert sum(ran.steps for ran in store.ran(lambda: claimed(store, "worn"))) <= 1.2 * usual + AROUND
