"""PostgreSQL reads an index, and of it a small multiple of what was asked: however much waits, rests or was deleted,
and whatever the planner knows of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import psycopg
import pytest
from tests.support.plans import filling
from tests.support.plans.explained import OPTIONS, Explained, Plan
from tests.support.plans.filling import DAY_MS, FINGERPRINTS, HOUR_MS, LATER, LINES, MAIN, SMALL, WORN, Mix
from tests.support.servers import PostgresServer

from redrive.fault import Fault, Kind
from redrive.message import (
    PRIORITIES,
    SKIP_LOOKED,
    Ack,
    ClaimRequest,
    DeadLetter,
    Decision,
    Delivery,
    Draft,
    Edit,
    Filter,
    Handle,
    Hasten,
    Isolate,
    Keep,
    Lane,
    Readmit,
    Redrive,
    RetryAt,
    Return,
    Settlement,
    Swap,
    WaitFields,
)
from redrive.stores.postgres import search as looks
from redrive.stores.postgres.floor import (
    FIRST,
    NEVER_MS,
    Aim,
    Floor,
    FloorLook,
    Pieces,
)
from redrive.stores.postgres.floors import WAKE, SentLook
from redrive.stores.postgres.store import PostgresStore

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("plans-postgres"), pytest.mark.timeout(900)]

SCHEMA = "plans"
LIMIT = 100
ROUND = 300  # pages looked at beside, where other tests left dead rows
TOUCHED = 30  # pages looked at per row that is written: its own, and the way down each of its indexes
LEASE_MS = 3_600_000  # none ends while the tests run, however busy the machine
FAULT = Fault(Kind.PERMANENT, "Error", "it cannot be done", "print0")
DIED = 50_000

ID = f"""(lpad(to_hex({filling.ENQUEUED}), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
  || substr(md5(n::text), 4, 15))::uuid"""
FILL = f"""
insert into {SCHEMA}.message(id, seq, due_ms, enqueued_ms, rested_ms, expires_ms, turn, wake_ms, parked_ms, fence,
  attempt, place, priority, lane, queue, task, grp, worker, reason, fingerprint, error, faults, body)
select {ID}, nextval('{SCHEMA}.message_seq'), {filling.DUE}, {filling.ENQUEUED}, {filling.RESTED}, {filling.EXPIRES},
  case when k between 800 and 897 then 2::bigint << 56 | n end, {filling.WAKE}, {filling.PARKED}, {filling.FENCE},
  {filling.FENCE}, case when k = 898 then 0 end, {filling.PRIORITY}, {filling.LANE}, {filling.QUEUE}, {filling.TASK},
  {filling.GROUP}, {filling.WORKER}, {filling.REASON}, {filling.FINGERPRINT}, {filling.ERROR},
  case when {filling.FINGERPRINT} is not null then array['{filling.FAULT}'] end, convert_to('[' || n || ']', 'utf8')
from (select n, n % 1000 k from generate_series({{first}}::bigint, {{last}} - 1) n) numbers
"""
# Claimed and acked, which leaves two places in the index: where it was due, and where its lease would have ended.
DEAD_ROWS = f"""
insert into {SCHEMA}.message(id, seq, task, queue, priority, due_ms, enqueued_ms, body)
  select gen_random_uuid(), nextval('{SCHEMA}.message_seq'), 'task0', '{WORN}', 2, {{now}} - n, 0, ''
  from generate_series(1, {DIED}) n;
update {SCHEMA}.message set lane = 'leased', fence = 1, due_ms = due_ms - {HOUR_MS} where queue = '{WORN}';
delete from {SCHEMA}.message where queue = '{WORN}';
"""
SKIPPED = f"""
insert into {{schema}}.message(id, seq, task, queue, priority, due_ms, enqueued_ms, body)
  select gen_random_uuid(), nextval('{{schema}}.message_seq'), 'task0', '{MAIN}', 2,
    {{now}} - {{count}} + n + {{later}}, 0, '' from generate_series(1, {{count}}) n;
"""
# A backlog, and among it some that failed before; and many that did and wait.
SHARED = f"""
insert into {{schema}}.message(id, seq, task, queue, priority, due_ms, enqueued_ms, fence, attempt, body)
  select gen_random_uuid(), nextval('{{schema}}.message_seq'), 'task' || n % 5, '{MAIN}', 2,
    {{now}} - {{count}} + n, 0, (n % 49 = 0)::int, (n % 49 = 0)::int, ''::bytea from generate_series(1, {{count}}) n
  union all
  select gen_random_uuid(), nextval('{{schema}}.message_seq'), 'task' || n % 5, '{MAIN}', 2,
    {{now}} + {HOUR_MS} + n, 0, 1, 1, ''::bytea from generate_series(1, {{count}}) n;
"""
CELLS = f"""
insert into {SCHEMA}.cell(key, version, value, expires_ms, sweep_ms)
  select 'cell ' || n, 2, '1', case when n >= 1000 then {{now}} - n end, case when n >= 1000 then {{now}} - n end
  from generate_series(0, {{count}}) n;
"""

KEYS_AND_GROUPS = f"""
insert into {SCHEMA}.unique_key(task, key, id, until_ms)
  select 'over', 'key ' || n, gen_random_uuid(), {{now}} - n from generate_series(1, 20000) n;
insert into {SCHEMA}.line(queue, name) select 'over', 'group ' || n from generate_series(1, 20000) n;
"""


@pytest.fixture(scope="module")
def server(postgres_server: PostgresServer) -> Iterator[psycopg.Connection]:
    """A session on the server, with a schema of the tests' own. Meanwhile no vacuum comes by itself, to any table: what
    it learns would change plans between two looks."""
    with psycopg.connect(postgres_server.url, autocommit=True) as c:
        set_autovacuum(c, "off")
        PostgresStore(f"{postgres_server.url}?schema={SCHEMA}").close()
        try:
            yield c
        finally:
            c.execute(f"drop schema if exists {SCHEMA} cascade")
            set_autovacuum(c, "on")


def set_autovacuum(c: psycopg.Connection, to: str) -> None:
    """For the whole server, and wait until it holds and nothing of it runs."""
    c.execute(f"alter system set autovacuum = {to}".encode())
    c.execute("select pg_reload_conf()")
    running, end_s = "select from pg_stat_activity where backend_type = 'autovacuum worker'", time.monotonic() + 60
    while c.execute("show autovacuum").fetchall() != [(to,)] or (to == "off" and c.execute(running).fetchall()):
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.fixture(scope="module")
def mix(server: psycopg.Connection) -> Mix:
    """The messages, and of them statistics from when they were five, all delayed."""
    now_ms = server.execute("select (extract(epoch from now()) * 1000)::bigint").fetchone()[0]  # type: ignore[index]
    mix = Mix(filling.rows(), now_ms)
    server.execute(filling.spelt(FILL, now_ms, first=0, last=5))
    server.execute(f"analyze {SCHEMA}.message")
    with without_indexes(server):
        server.execute(filling.spelt(FILL, now_ms, first=5, last=mix.rows))
    return mix


class without_indexes:
    """Fill the table as a whole, and make its indexes afterwards: that takes a third of the time."""

    def __init__(self, c: psycopg.Connection) -> None:
        self._c = c

    def __enter__(self) -> None:
        found = self._c.execute(
            "select indexname, indexdef from pg_indexes where schemaname = %s and tablename = 'message' "
            "and indexname <> 'message_id'",
            [SCHEMA],
        ).fetchall()
        self._made = [made for _, made in found]
        for name, _ in found:
            self._c.execute(f"drop index {SCHEMA}.{name}".encode())

    def __exit__(self, *_: object) -> None:
        for made in self._made:
            self._c.execute(made)


def forget(c: psycopg.Connection) -> None:
    """As of a table that nobody has analyzed yet."""
    table = f"'{SCHEMA}.message'::regclass"
    c.execute(f"delete from pg_statistic where starelid = {table}")
    c.execute(f"update pg_class set relpages = 0, reltuples = -1, relallvisible = 0 where oid = {table}")


STATISTICS: dict[str, Callable[[psycopg.Connection], object]] = {
    "of five rows": lambda c: None,
    "none": forget,
    "its own": lambda c: c.execute(f"vacuum analyze {SCHEMA}.message"),
}


@pytest.fixture(scope="module", params=STATISTICS, ids=lambda name: f"statistics={name}")
def explained(
    request: pytest.FixtureRequest, server: psycopg.Connection, mix: Mix, postgres_server: PostgresServer
) -> Iterator[Explained]:
    """A store on those messages, of which the planner knows what the parameter says."""
    STATISTICS[request.param](server)
    explained = Explained(postgres_server, SCHEMA)
    yield explained
    explained.store.close()


def claimed(explained: Explained, queue: str, limit: int = LIMIT) -> list[Delivery]:
    deliveries = explained.store.exchange([], [ClaimRequest(queue, limit, LEASE_MS, worker="w")]).deliveries
    assert len(deliveries) == limit
    return deliveries


# -- claims


@pytest.mark.parametrize("limit", [1, LIMIT])
def test_a_claim_reads_no_more_of_the_due_index_than_its_limit(explained: Explained, limit: int) -> None:
    plan = explained.plan("claim", lambda: claimed(explained, MAIN, limit))
    assert plan.indexes == {"message_due", "message_wake"} and not plan.could_scan, plan
    assert plan.rows <= 3 * limit and plan.sorts == 0 and plan.buffers <= ROUND + TOUCHED * limit, plan


def test_a_claim_that_skips_tasks_reads_on_past_those_only(explained: Explained) -> None:
    ask = ClaimRequest(MAIN, LIMIT, LEASE_MS, worker="w", skip=frozenset({"task0", "task1"}))
    plan = explained.plan("claim_skipping", lambda: explained.store.exchange([], [ask]))
    assert plan.indexes == {"message_due", "message_wake"} and not plan.could_scan and plan.sorts == 0, plan
    assert plan.rows <= 6 * LIMIT + 4 * (SKIP_LOOKED + 1), plan  # of each priority it finds out how far it looks


@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "its own"])
@pytest.mark.parametrize("later_ms", [0, HOUR_MS], ids=["due", "delayed"])
def test_however_much_is_skipped_a_claim_and_a_wait_read_the_first_thousand(
    server: psycopg.Connection, postgres_server: PostgresServer, mix: Mix, analyzed: bool, later_ms: int
) -> None:
    """And of what they do not take they lock nothing."""
    schema = f"{SCHEMA}_skipped"
    explained, ask = Explained(postgres_server, schema), ClaimRequest(MAIN, LIMIT, LEASE_MS, frozenset({"task0"}), "w")
    try:
        server.execute(filling.spelt(SKIPPED, mix.now_ms, schema=schema, later=later_ms, count=mix.rows // 4))
        if analyzed:
            server.execute(f"vacuum analyze {schema}.message".encode())
        plans = explained.plans(lambda: explained.store.exchange([], [ask]))
        plans |= explained.plans(lambda: explained.store._next_due_ms([ask]))
        for name in ("claim_skipping", "next_due_skipping"):
            plan = plans[name]
            assert plan.indexes <= {"message_due", "message_wake"} and not plan.could_scan and plan.sorts <= 4, plan
            assert plan.rows <= 2 * SKIP_LOOKED + 10 and plan.buffers <= 2 * SKIP_LOOKED + ROUND, plan
        assert server.execute(f"select from {schema}.message where xmax <> 0 limit 1".encode()).fetchall() == []
    finally:
        explained.store.close()
        server.execute(f"drop schema {schema} cascade".encode())


@pytest.mark.parametrize("analyzed", [False, True], ids=["no statistics", "its own"])
@pytest.mark.parametrize("skip", [frozenset(), frozenset({"task0"})], ids=["all", "skips"])
def test_a_claim_that_takes_retries_first_reads_them_off_their_own_index(
    server: psycopg.Connection, postgres_server: PostgresServer, mix: Mix, analyzed: bool, skip: frozenset[str]
) -> None:
    """However many are due, and however many wait."""
    schema = f"{SCHEMA}_shared"
    explained = Explained(postgres_server, schema)
    try:
        server.execute(filling.spelt(SHARED, mix.now_ms, schema=schema, count=mix.rows // 4))
        if analyzed:
            server.execute(f"vacuum analyze {schema}.message".encode())
        looked = 4 * SKIP_LOOKED if skip else 0
        for retries in (1, LIMIT // 5, LIMIT):
            ask = ClaimRequest(MAIN, LIMIT, LEASE_MS, skip, "w", retries)
            plan = explained.plan("claim_sharing", lambda ask=ask: explained.store.exchange([], [ask]))
            assert plan.indexes == {"message_due", "message_retry", "message_wake"} and not plan.could_scan, plan
            assert plan.rows <= 5 * LIMIT + looked and plan.sorts == 0, plan
            assert plan.buffers <= ROUND + TOUCHED * LIMIT + looked, plan
        done = explained.store.exchange([], [ClaimRequest(MAIN, LIMIT, LEASE_MS, skip, "w", LIMIT)]).deliveries
        assert [d.message.attempt for d in done] == [2] * LIMIT
    finally:
        explained.store.close()
        server.execute(f"drop schema {schema} cascade".encode())


def test_a_share_for_retries_of_which_there_are_none_costs_a_look_at_their_index(explained: Explained) -> None:
    ask = ClaimRequest(MAIN, LIMIT, LEASE_MS, worker="w", retries=LIMIT // 5)
    plan = explained.plan("claim_sharing", lambda: explained.store.exchange([], [ask]))
    assert plan.indexes == {"message_due", "message_retry", "message_wake"} and not plan.could_scan, plan
    # Each is looked at once more, by its place, for when it was due.
    assert plan.rows <= 4 * LIMIT and plan.sorts == 0 and plan.buffers <= ROUND + TOUCHED * LIMIT, plan


def test_what_is_delayed_costs_a_claim_nothing(explained: Explained) -> None:
    plans = explained.plans(lambda: explained.store.exchange([], [ClaimRequest(LATER, LIMIT, LEASE_MS, worker="w")]))
    assert plans["claim"].rows == plans["look"].rows == 0 and plans["claim"].sorts == 0, plans
    assert plans["claim"].buffers <= 30, plans


def test_a_waiting_worker_reads_the_front_of_each_priority(explained: Explained) -> None:
    plan = explained.plan("next_due", lambda: explained.store._next_due_ms([ClaimRequest(LATER, 1, LEASE_MS)]))
    assert plan.rows <= 5 and plan.buffers <= 40 and not plan.could_scan, plan


# -- settlements


def settled(explained: Explained) -> dict[str, Plan]:
    """The plans of settlements of every kind, twenty of each."""
    later_ms = explained.store.now_ms() + HOUR_MS
    left = iter(claimed(explained, MAIN, 80))
    decisions: list[Decision] = [Ack(), Ack(keep_ms=DAY_MS), RetryAt(later_ms), DeadLetter("permanent")]
    settlements = [
        Settlement(d.receipt, decision, fault=None if isinstance(decision, Ack) else FAULT)
        for decision in decisions
        for d in islice(left, 20)
    ]
    return explained.plans(lambda: explained.store.exchange(settlements, []))


def test_settlements_look_up_their_messages_by_id(explained: Explained) -> None:
    plans = settled(explained)
    for name in ("ack", "keep", "retry", "move"):
        plan = plans[name]
        assert plan.indexes == {"message_id"} and not plan.could_scan, plan
        assert plan.rows <= 20 and plan.buffers <= 20 * TOUCHED, plan


def test_settlements_that_are_decided_one_by_one_look_up_their_messages_by_id(explained: Explained) -> None:
    follow = [
        Settlement(d.receipt, Ack(), follow_ups=(Draft(task="t", queue=WORN, key=d.message.id),))
        for d in claimed(explained, MAIN)
    ]
    plans = explained.plans(lambda: explained.store.exchange(follow, []))
    for name in ("held_now", "ack", "key_holders"):
        assert plans[name].indexes <= {"message_id"} and not plans[name].could_scan, plans[name]
        assert plans[name].rows <= LIMIT and plans[name].buffers <= LIMIT * TOUCHED, plans[name]
    keyed = [Settlement(d.receipt, Ack()) for d in claimed(explained, WORN)]
    plan = explained.plan("ack_keyed", lambda: explained.store.exchange(keyed, []))
    assert plan.indexes == {"message_id"} and plan.rows <= LIMIT and plan.buffers <= LIMIT * TOUCHED, plan


def test_leases_are_extended_and_runs_cancelled_by_id(explained: Explained) -> None:
    held = claimed(explained, MAIN)
    plans = explained.plans(lambda: explained.store.extend([d.receipt for d in held], lease_ms=LEASE_MS))
    plans |= explained.plans(lambda: explained.store.checkpoint(held[0].receipt, b"1"))
    plans |= explained.plans(lambda: explained.store.find([d.message.id for d in held]))
    plans |= explained.plans(lambda: explained.store.cancel([d.message.id for d in held]))
    for name in ("extend", "checkpoint", "find", "lanes", "cancel"):
        plan = plans[name]
        assert plan.indexes == {"message_id"} and not plan.could_scan, plan
        assert plan.rows <= 2 * LIMIT and plan.buffers <= LIMIT * TOUCHED, plan


def test_verdicts_look_up_their_messages_by_id(explained: Explained) -> None:
    """One statement for all, whatever it does with them; in the end they lie as before."""
    dead = [Handle(m.id, m.redrives, m.lane) for m in explained.store.peek(Lane.DEAD, limit=LIMIT).messages]
    ready = [Handle(seen.id, seen.redrives + 1, Lane.READY) for seen in dead]
    away = [handle._replace(lane=Lane.QUARANTINE) for handle in dead]
    judged = {
        "redrive": (dead, Redrive(run="r")),
        "hasten": (ready, Hasten()),
        "postpone": (ready, Hasten(run="r")),
        "edit": (ready, Edit("r", tuple(WaitFields(deadline_ms=0) for _ in ready))),
        "return": (ready, Return("r")),
        "isolate": (dead, Isolate("no")),
        "readmit": (away, Readmit("yes")),
    }
    for name, (handles, verdict) in judged.items():
        plans = explained.plans(lambda handles=handles, verdict=verdict: explained.store.triage(handles, verdict))
        for plan in (plans["lanes"], plans[name]):
            assert plan.indexes == {"message_id"} and not plan.could_scan, plan
            assert plan.rows <= 2 * LIMIT and plan.buffers <= 2 * LIMIT * TOUCHED, plan
    assert [m.lane for m in explained.store.find([seen.id for seen in dead]) if m is not None] == [Lane.DEAD] * LIMIT


def test_cells_are_found_by_their_keys_and_swept_by_their_time(
    server: psycopg.Connection, explained: Explained, mix: Mix
) -> None:
    """A swap in each settlement is no statement more than one in all."""
    server.execute(f"delete from {SCHEMA}.cell")
    server.execute(filling.spelt(CELLS, mix.now_ms, count=mix.rows))
    store, held = explained.store, claimed(explained, MAIN)
    settlements = [
        Settlement(
            d.receipt, Ack(), swaps=(Swap(f"new {d.message.id}", 0, b"1", ttl_ms=1000), Swap(f"cell {n}", 2, b"1"))
        )
        for n, d in enumerate(held)
    ]
    plans = explained.plans(lambda: store.exchange(settlements, []))
    assert {"lock_cells", "make_cells", "change_cells"} <= plans.keys()
    keys = [f"cell {n}" for n in range(200, 200 + LIMIT)]
    single = [
        Settlement(d.receipt, Ack(), swaps=(Swap(f"cell {n}" if n % 2 else f"one {n}", n % 2 * 2, b"1", ttl_ms=1000),))
        for n, d in enumerate(claimed(explained, MAIN), 400)
    ]
    plans |= explained.plans(lambda: store.exchange(single, []))
    assert "message_id" in plans["ack_swapping"].indexes and store.counts(MAIN).leased < mix.rows // 10
    plans |= explained.plans(lambda: store.cells.read(keys))
    plans |= explained.plans(lambda: store.cells.swap([Swap(key, 2, b"2", ttl_ms=1000) for key in keys]))
    store._swept_ms = 0
    plans |= explained.plans(store._sweep)
    for name in ("ack_swapping", "lock_cells", "make_cells", "change_cells", "read_cells", "swap_cells", "sweep_cells"):
        plan = plans[name]
        assert plan.buffers <= LIMIT * TOUCHED + 30 * 1000 * (name == "sweep_cells"), (name, plan)
        assert not plan.scanned("cell"), (name, plan)


# -- groups


def test_groups_are_woken_locked_and_admitted_by_their_own_indexes(explained: Explained) -> None:
    """However many wait, are parked, or could be woken."""
    held = claimed(explained, LINES, 20)
    later_ms = explained.store.now_ms() + HOUR_MS
    moves = [Settlement(d.receipt, RetryAt(later_ms), fault=FAULT) for d in held[10:]]
    acks = [Settlement(d.receipt, Ack()) for d in held[:10]]
    plans = explained.plans(
        lambda: explained.store.exchange(acks + moves, [ClaimRequest(LINES, 20, LEASE_MS, worker="w")])
    )
    known = {
        "lock": {"message_wake"},
        "wake": {"message_wake", "message_id"},
        "regroup": {"message_id"},
        "admit": {"message_place", "message_line", "message_id"},
        "claim": {"message_due"},
        "look": {"message_wake"},
    }
    for name, indexes in known.items():
        plan = plans[name]
        assert plan.indexes <= indexes and not plan.could_scan, plan
        assert plan.rows <= 6 * LIMIT and plan.buffers <= ROUND + LIMIT * TOUCHED, plan  # a hundred are woken at once


def test_who_joins_a_group_in_the_callers_transaction_reads_that_group(
    explained: Explained, postgres_server: PostgresServer
) -> None:
    """There nothing is set that the store sets in sessions of its own."""
    with psycopg.connect(f"{postgres_server.url}?{OPTIONS}") as c:
        drafts = [Draft(task="t", queue=LINES, group=f"group{n}", key=f"{id(c)} {n}") for n in range(20)]
        plans = explained.plans(lambda: explained.store.put(drafts, tx=c))
        c.rollback()
    for name in ("lock", "take_keys", "key_holders", "put_grouped", "admit"):
        plan = plans[name]
        assert plan.indexes <= {"message_id", "message_place", "message_line"}, plan
        assert plan.rows <= 100 and plan.buffers <= 20 * TOUCHED, plan


# -- looking

PAGES = {
    "all": (Filter(), "message_rest"),
    "of a queue": (Filter(queue=SMALL), "message_rest_queue"),
    "of a reason": (Filter(reason="reason1"), "message_reason"),
    "of a task": (Filter(task="task1"), "message_task"),
    "of an error": (Filter(error="Error3"), "message_error"),
    "of a fingerprint": (Filter(fingerprint="print1"), "message_failure"),
    "of queues": (Filter(queue=(SMALL, "none", MAIN)), "message_rest_queue"),
    "of tasks": (Filter(task=("task1", "none", "task2")), "message_task"),
    "of nothing": (Filter(reason="none"), "message_reason"),
}


@pytest.mark.parametrize("wanted", PAGES)
def test_a_page_of_dead_letters_is_read_off_an_index_in_its_order(explained: Explained, wanted: str) -> None:
    where, index = PAGES[wanted]
    second = explained.store.peek(Lane.DEAD, where=where, limit=LIMIT).cursor
    for cursor in (None, second):
        look = partial(explained.store.peek, Lane.DEAD, where=where, limit=LIMIT, cursor=cursor)
        plan = explained.plan("peek", look)
        assert plan.indexes == {index} and plan.sorts <= 2 * LIMIT, plan
        assert plan.rows <= 2 * LIMIT + 10 and plan.buffers <= 6 * LIMIT, plan


@pytest.mark.parametrize(
    ("where", "index"),
    [
        (Filter(fingerprint="print1", task="task1"), "message_failure"),
        (Filter(queue=MAIN, task="none"), "message_task"),
        (Filter(queue=SMALL, reason="reason1"), "message_rest_queue"),
        (Filter(error="none", task="task1", queue=MAIN), "message_error"),
    ],
    ids=["failure group", "rare task", "small queue", "no such error"],
)
def test_of_several_fields_the_one_of_the_fewest_messages_is_gone_by(
    explained: Explained, mix: Mix, where: Filter, index: str
) -> None:
    plans = explained.plans(lambda: explained.store.peek(Lane.DEAD, where=where, limit=LIMIT))
    assert plans["peek"].indexes == {index} and plans["peek"].rows <= mix.many(101) // FINGERPRINTS, plans
    assert not plans["counted"].could_scan and plans["counted"].rows <= 4 * looks.LOOKED, plans


def test_a_page_of_a_time_reads_that_time(explained: Explained, mix: Mix) -> None:
    where = Filter(since_ms=mix.now_ms - 5 * DAY_MS, until_ms=mix.now_ms - 4 * DAY_MS)
    second = explained.store.peek(Lane.DEAD, where=where, limit=LIMIT).cursor
    for cursor in (None, second):
        look = partial(explained.store.peek, Lane.DEAD, where=where, limit=LIMIT, cursor=cursor)
        plan = explained.plan("peek", look)
        assert plan.indexes == {"message_rest"} and plan.rows <= LIMIT and plan.sorts == 0, plan
        assert plan.buffers <= 20 + LIMIT, plan


def test_a_page_of_what_waits_reads_the_table_once_and_sorts_a_page(explained: Explained, mix: Mix) -> None:
    """There is no index for it: every message would pay for it."""
    plan = explained.plan("peek", lambda: explained.store.peek(Lane.READY, limit=LIMIT))
    assert plan.rows <= 1.1 * mix.rows, plan


@pytest.mark.parametrize("lane", [Lane.READY, Lane.LEASED])
def test_a_page_of_what_waits_in_a_queue_reads_its_indexes_and_a_page_of_messages(
    explained: Explained, mix: Mix, lane: Lane
) -> None:
    where = Filter(queue=SMALL)
    second = explained.store.peek(lane, where=where, limit=5).cursor
    for cursor in (None, second):
        plan = explained.plan("peek", partial(explained.store.peek, lane, where=where, limit=5, cursor=cursor))
        assert plan.indexes <= {"message_due", "message_line", "message_wake"} and not plan.could_scan, plan
        assert plan.rows <= mix.many(10) + 40, plan


def test_failure_groups_read_the_dead_once_and_of_a_fingerprint_its_own(explained: Explained, mix: Mix) -> None:
    groups = explained.store.failure_groups()
    plan = explained.plan("failure_groups", explained.store.failure_groups)
    assert not plan.could_scan, plan
    assert plan.rows <= 1.1 * mix.many(101) + len(groups), plan
    trend = explained.plan("failure_groups", lambda: explained.store.failure_groups(trend=True))
    assert trend.rows <= 1.1 * mix.many(101) + len(groups) and trend.indexes == plan.indexes, trend
    one = explained.plan("failure_groups", lambda: explained.store.failure_groups(where=Filter(fingerprint="print1")))
    assert one.indexes == {"message_failure", "message_id"} and one.rows <= 1.2 * mix.many(101) / FINGERPRINTS, one


def test_counts_of_a_queue_read_that_queue(explained: Explained, mix: Mix) -> None:
    plan = explained.plan("counts", lambda: explained.store.counts(SMALL))
    assert plan.indexes <= {"message_due", "message_line", "message_wake", "message_rest_queue"}, plan
    assert plan.rows <= mix.many(10) + 10 and not plan.could_scan, plan


def test_counts_of_all_queues_read_each_index_once(explained: Explained, mix: Mix) -> None:
    plan = explained.plan("counts_by_queue", explained.store.counts)
    assert not plan.could_scan and plan.rows <= 1.1 * mix.rows, plan


# -- keeping


def test_retention_that_removes_nothing_reads_nothing_of_what_stays(explained: Explained) -> None:
    long = Keep(age_ms=300 * DAY_MS)
    plan = explained.plan("going", lambda: explained.store.retain(MAIN, done=long, dead=long))
    assert plan.indexes == {"message_rest_queue"} and plan.rows <= 1 and plan.buffers <= 20, plan


def test_retention_reads_what_stays_by_number_and_what_goes(explained: Explained) -> None:
    keep = Keep(count=50, age_ms=25 * DAY_MS)
    plans = explained.plans(lambda: explained.store.retain(MAIN, done=keep))
    assert plans["nth_newest"].indexes == plans["going"].indexes == {"message_rest_queue"}
    assert plans["nth_newest"].rows == 50 and plans["going"].rows <= 1000 and plans["going"].sorts == 0, plans
    assert plans["retain"].indexes == {"message_id"} and plans["retain"].rows <= 1000, plans


def test_a_sweep_reads_a_thousand(explained: Explained) -> None:
    explained.store._swept_ms = 0
    plan = explained.plan("sweep", explained.store._sweep)
    assert plan.indexes == {"message_expires"} and plan.rows <= 2000 and not plan.could_scan, plan


def test_a_sweep_looks_at_five_thousand_keys_and_groups_however_many_are_over(
    server: psycopg.Connection, explained: Explained, mix: Mix
) -> None:
    server.execute(filling.spelt(KEYS_AND_GROUPS, mix.now_ms))
    explained.store._swept_ms, explained.store._keys_at, explained.store._lines_at = 0, 0, ("", "")
    plans = explained.plans(explained.store._sweep)
    for name, table in (("sweep_keys", "unique_key"), ("sweep_lines", "line")):
        plan = plans[name]
        assert plan.sorts <= 5000 and plan.buffers <= 5000 * TOUCHED and not plan.scanned(table), (name, plan)
    server.execute(f"delete from {SCHEMA}.unique_key where task = 'over'")
    server.execute(f"delete from {SCHEMA}.line where queue = 'over'")


def test_a_release_reads_the_leased_and_of_the_others_one_index(explained: Explained, mix: Mix) -> None:
    plans = explained.plans(lambda: explained.store.reclaim("nobody", []))
    for name in ("give_back", "lapse"):
        assert plans[name].indexes == {"message_due"} and not plans[name].could_scan, plans[name]
        assert plans[name].rows <= mix.many(21) + 20 * LIMIT, plans[name]


# -- above floors


@contextlib.contextmanager
def kept_floors(explained: Explained, queue: str, low_ms: int, *spots: tuple[int, int]) -> Iterator[None]:
    """As if the process had looked: nothing lies below that time, but perhaps in these spots."""
    floors = explained.store._floors
    floors._queues[queue] = *(Floor() for _ in PRIORITIES), Floor(scattered=False)
    for one in floors._queues[queue]:
        one.place, one._behind = (low_ms, "", 0), Pieces(low_ms, 1.0, 0.0)
        for spot in spots:
            one.expect(*spot)
    floors.kept = True
    yield
    floors.kept = False


@pytest.mark.parametrize("spots", [0, 8])
def test_claims_and_waits_above_a_floor_read_that_much_of_the_same_indexes(explained: Explained, spots: int) -> None:
    low_ms = explained.store.now_ms() - 600_000
    apart = [(low_ms - n * 40_000, low_ms - n * 40_000 + 10_000) for n in range(1, 1 + spots)]
    skip, few = frozenset({"task0", "task1"}), LIMIT // 5
    asks = {
        "claim": ClaimRequest(MAIN, few, LEASE_MS, worker="w"),
        "claim_skipping": ClaimRequest(MAIN, few, LEASE_MS, skip, "w"),
        "claim_sharing": ClaimRequest(MAIN, few, LEASE_MS, skip, "w", few // 5),
    }
    parts = len(PRIORITIES) * (spots + 1)
    with kept_floors(explained, MAIN, low_ms, *apart):
        for name, ask in asks.items():
            plans = explained.plans(lambda ask=ask: explained.store.exchange([], [ask]))
            plan, looked = plans[f"{name}_above"], parts * (SKIP_LOOKED + 1) if ask.skip else 0
            assert plan.indexes <= {"message_due", "message_retry", "message_wake"} and not plan.could_scan, plan
            passed_by = 14 * few if ask.skip else 0  # until as many are found that are not skipped, in two turns
            assert plan.rows <= 7 * few + passed_by + looked and plan.sorts == 0, plan
            assert plan.buffers <= ROUND + TOUCHED * few + looked, plan
            assert plans["look_above"].indexes == {"message_wake"} and plans["look_above"].rows <= 1, plans
        for name, ask in (("next_due", asks["claim"]), ("next_due_skipping", asks["claim_skipping"])):
            plan = explained.plans(lambda ask=ask: explained.store._next_due_ms([ask]))[f"{name}_above"]
            assert plan.indexes <= {"message_due", "message_wake"} and not plan.could_scan, plan
            assert plan.rows <= parts * (SKIP_LOOKED + 50 if ask.skip else 1) + 1 and plan.sorts <= parts + 1, plan


def test_a_look_behind_reads_the_first_of_each_part(explained: Explained, mix: Mix) -> None:
    store = explained.store
    for queue in (MAIN, LINES, LATER, "none"):
        look = SentLook(store._floors)
        for order in range(WAKE + 1):
            look.add(queue, order, Floor(), FloorLook(Aim.BEHIND, FIRST, NEVER_MS))
        store._floors._read(look)  # passes what other tests left
        plan = explained.plan("look_behind", partial(store._floors._read, look))
        assert plan.indexes <= {"message_due", "message_wake"} and not plan.could_scan and plan.sorts == 0, plan
        assert plan.rows <= WAKE + 1 and plan.buffers <= 60, plan
        assert look._read is not None
        seen = [first for _, *first, _ in look._read.fetchall() if first[0] is not None]
        rows = store._link.look(
            f"select priority, due_ms, lane, seq from {SCHEMA}.message where queue = %s and due_ms is not null",
            [queue],
        )
        waits = store._link.look(
            f"select {WAKE}, wake_ms, '', seq from {SCHEMA}.message where queue = %s and wake_ms is not null "
            "and turn is null",
            [queue],
        )
        orders = sorted({row[0] for row in (*rows, *waits)})
        assert seen == [list(min(row[1:] for row in (*rows, *waits) if row[0] == order)) for order in orders]


# -- after much was deleted


def test_while_a_snapshot_is_held_claims_do_not_pass_what_was_deleted(
    server: psycopg.Connection, postgres_server: PostgresServer, mix: Mix
) -> None:
    """The look before the first one does, and raises the floor."""
    schema = f"{SCHEMA}_held"
    explained = Explained(postgres_server, schema, floors=True)
    try:
        with psycopg.connect(postgres_server.url) as holder:
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select 1 from pg_class limit 1")
            server.execute(filling.spelt(DEAD_ROWS, mix.now_ms).replace(f"{SCHEMA}.", f"{schema}.").encode())
            explained.store.put([Draft(task="task0", queue=WORN) for _ in range(4 * LIMIT)])
            plans = explained.plans(lambda: claimed(explained, WORN))
            assert plans["look_behind"].buffers >= DIED // 100, plans
            for plan in (
                plans["claim_above"],
                *(explained.plan("claim_above", lambda: claimed(explained, WORN)) for _ in range(3)),
            ):
                assert plan.rows <= 3 * LIMIT and plan.sorts == 0 and plan.buffers <= TOUCHED * LIMIT, plan
    finally:
        explained.store.close()
        server.execute(f"drop schema {schema} cascade".encode())


def test_claims_pass_what_was_claimed_and_acked_before_a_vacuum_came(
    server: psycopg.Connection, postgres_server: PostgresServer, mix: Mix
) -> None:
    """Their 100,000 places lie before what is due. The first claim finds that they are gone, one by one; those after it
    pass the pages of the index that are left of them."""
    explained = Explained(postgres_server, SCHEMA)
    server.execute(filling.spelt(DEAD_ROWS, mix.now_ms))
    explained.store.put([Draft(task="task0", queue=WORN) for _ in range(4 * LIMIT)])
    first, *later = [explained.plan("claim", lambda: claimed(explained, WORN)) for _ in range(4)]
    for plan in (first, *later):
        assert plan.indexes == {"message_due", "message_wake"} and plan.rows <= 3 * LIMIT and plan.sorts == 0, plan
    explained.store.close()
    print("pages per claim:", [plan.buffers for plan in (first, *later)])
    assert first.buffers <= TOUCHED * LIMIT + 2 * DIED // 10  # nearly as if each were read
    # (the last: while anybody may still see them, a scan cannot mark them as gone)
    assert later[-1].buffers <= TOUCHED * LIMIT + 2 * DIED // 60
