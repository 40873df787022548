"""PostgreSQL where one transaction meets another half way, each held there by a lock of the test's own; and what a
server refuses in the midst of a call.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from tests.support.schemas import schema  # noqa: F401
from tests.support.servers import PostgresServer

from redrive.errors import Conflict, EnqueueError, StoreUnavailable
from redrive.fault import Fault, Kind
from redrive.ids import new_id
from redrive.message import (
    REASON_MAX,
    Ack,
    Cancel,
    ClaimRequest,
    DeadLetter,
    Decision,
    Delivery,
    Discard,
    Draft,
    Handle,
    Isolate,
    Lane,
    Quarantine,
    Readmit,
    Redrive,
    RetryAt,
    Return,
    Settled,
    Settlement,
    Swap,
    Verdict,
)
from redrive.stores.postgres.store import PostgresStore
from redrive.stores.validation import KEY_BYTES_MAX, NAME_MAX
from redrive.testing import ManualClock

PATIENCE_S = 60.0
FAULT = Fault(Kind.DEFAULT, "ValueError", "boom", "f" * 16)
Other = psycopg.Connection[Any]


@pytest.fixture
def store(schema: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(schema)) as store:
        yield store


@pytest.fixture
def other(schema: str, postgres_server: PostgresServer) -> Iterator[Other]:
    """Somebody else's transaction, which names tables as the store does."""
    name = parse_qs(urlsplit(schema).query)["schema"][0]
    with psycopg.connect(postgres_server.url, options=f"-c search_path={name}") as c:
        yield c


def put(store: PostgresStore, *keys: str | None) -> list[str]:
    return [put.id for put in store.put([Draft(task="t", key=key) for key in keys])]


def claim(store: PostgresStore, limit: int = 100) -> list[Delivery]:
    return store.exchange([], [ClaimRequest("default", limit, 30_000, worker="w")]).deliveries


def meanwhile(other: Other, call: Callable[[], object], work: Callable[[], object]) -> list[object]:
    """What `call` gives, which waits for a lock of `other` while `work` is done, and `other` commits."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    end_s = time.monotonic() + PATIENCE_S
    waiting = "select count(*) from pg_locks where not granted and %s = any(pg_blocking_pids(pid))"
    while other.execute(waiting, [other.info.backend_pid]).fetchone() == (0,):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    work()
    other.commit()
    thread.join(PATIENCE_S)
    return found


def locked(store: PostgresStore, statement: str, *args: object) -> bool:
    """Whether somebody holds what this statement would lock."""
    try:
        store._link.look(f"{statement} for update nowait", args)
    except Exception as error:
        return "could not obtain lock" in str(error)
    return False


@pytest.mark.parametrize(
    ("lane", "found"), [("leased", Cancel.REQUESTED), ("ready", Cancel.CANCELLED)], ids=["claimed", "released"]
)
def test_a_cancel_meets_what_changes_its_lane_meanwhile(
    store: PostgresStore, other: Other, lane: str, found: Cancel
) -> None:
    (id,) = put(store, None)
    if lane == "ready":
        claim(store)
    other.execute("update message set lane = %s, fence = 1, worker = 'w' where id = %s", [lane, id])
    assert meanwhile(other, lambda: store.cancel([id]), lambda: None) == [[found]]
    (message,) = store.find([id])
    assert message is not None
    assert (message.cancel, message.lane) == ((True, Lane.LEASED) if lane == "leased" else (False, Lane.DONE))


@pytest.mark.parametrize(
    "decision", [Ack(), Ack(keep_ms=None), RetryAt(0), RetryAt(0, counts=False)], ids=["ack", "keep", "retry", "move"]
)
def test_settlements_lock_messages_in_the_order_in_which_extend_does(
    store: PostgresStore, other: Other, decision: Decision
) -> None:
    first, last = sorted(put(store, None, None))
    claimed = sorted(claim(store), key=lambda d: d.message.id, reverse=True)
    settlements = [Settlement(d.receipt, decision, FAULT) for d in claimed]
    other.execute("select from message where id = %s for update", [first])

    def ahead() -> None:
        assert not locked(store, f"select from {store._link.schema}.message where id = %s", last)

    assert len(meanwhile(other, lambda: store.exchange(settlements, []), ahead)) == 1


VERDICTS: list[tuple[Lane, Verdict]] = [
    (Lane.DEAD, Redrive(run="r")),
    (Lane.DEAD, Discard("no")),
    (Lane.DEAD, Isolate("no")),
    (Lane.QUARANTINE, Readmit("yes")),
    (Lane.READY, Return("r")),
]


def bury(store: PostgresStore, lane: Lane, number: int = 1) -> list[Handle]:
    """So many messages that lie in this lane, in the order of their ids; ready ones were redriven by run `r`."""
    put(store, *[None] * number)
    end = Quarantine() if lane is Lane.QUARANTINE else DeadLetter("permanent")
    store.exchange([Settlement(d.receipt, end, FAULT) for d in claim(store)], [])
    dead = store.peek(Lane.QUARANTINE if lane is Lane.QUARANTINE else Lane.DEAD).messages
    handles = sorted(Handle(m.id, 0, m.lane) for m in dead)
    if lane is not Lane.READY:
        return handles
    assert all(store.triage(handles, Redrive(run="r")))
    return [Handle(id, 1, lane) for id, *_ in handles]


@pytest.mark.parametrize(("lane", "verdict"), VERDICTS, ids=lambda value: type(value).__name__)
def test_verdicts_lock_messages_in_the_order_of_their_ids_and_cells_last(
    store: PostgresStore, other: Other, lane: Lane, verdict: Verdict
) -> None:
    first, last = bury(store, lane, 2)
    store.cells.swap([Swap("x", 0, b"1")])
    (cell,) = store.cells.read(["x"])
    assert cell is not None
    other.execute("select from message where id = %s for update", [first.id])

    def ahead() -> None:
        assert not locked(store, f"select from {store._link.schema}.message where id = %s", last.id)
        assert not locked(store, f"select from {store._link.schema}.cell where key = 'x'")

    swaps = [Swap("x", cell.version, b"2")]
    assert meanwhile(other, lambda: store.triage([last, first], verdict, swaps=swaps), ahead) == [[True, True]]


def test_a_swap_that_is_overtaken_takes_the_verdict_back(store: PostgresStore, other: Other) -> None:
    (handle,) = bury(store, Lane.DEAD)
    store.cells.swap([Swap("x", 0, b"1")])
    (cell,) = store.cells.read(["x"])
    assert cell is not None
    other.execute("update cell set version = version + 2 where key = 'x'")
    swap = Swap("x", cell.version, b"2")

    def call() -> str:
        with pytest.raises(Conflict):
            store.triage([handle], Redrive(), swaps=[swap])
        return "refused"

    assert meanwhile(other, call, lambda: None) == ["refused"]
    (message,) = store.find([handle.id])
    assert message is not None and message.lane is Lane.DEAD


def test_a_return_meets_a_claim_and_the_claim_has_it(store: PostgresStore, other: Other) -> None:
    (handle,) = bury(store, Lane.READY)
    other.execute("update message set lane = 'leased', attempt = 1, fence = fence + 1 where id = %s", [handle.id])
    assert meanwhile(other, lambda: store.triage([handle], Return("r")), lambda: None) == [[False]]
    (message,) = store.find([handle.id])
    assert message is not None and (message.lane, message.redrives) == (Lane.LEASED, 1)


def test_of_two_that_redrive_a_message_one_does(store: PostgresStore, other: Other) -> None:
    (handle,) = bury(store, Lane.DEAD)
    other.execute(
        "update message set lane = 'ready', redrives = 1, rested_ms = null, due_ms = 1 where id = %s", [handle.id]
    )
    assert meanwhile(other, lambda: store.triage([handle], Redrive(run="r")), lambda: None) == [[False]]


def test_a_verdict_whose_answer_is_lost_is_not_said_to_have_conflicted(store: PostgresStore) -> None:
    """It may have taken place; a second try would find its own swap in the way."""
    (handle,) = bury(store, Lane.DEAD)

    def cut(point: str) -> None:
        if point == "commit":
            store.failpoint = lambda point: None
            for c in [*store._link._pool._taken]:
                with c.pipeline() as pipeline:
                    c.execute("commit")
                    pipeline.sync()
                with socket.socket(fileno=os.dup(c.pgconn.socket)) as wire:
                    wire.shutdown(socket.SHUT_RDWR)

    store.failpoint = cut
    with pytest.raises(StoreUnavailable, match="may have taken place"):
        store.triage([handle], Redrive(), swaps=[Swap("x", 0, b"1")])
    (message,) = store.find([handle.id])
    assert message is not None and message.lane is Lane.READY


def test_acks_free_keys_in_the_order_in_which_puts_take_them(store: PostgresStore, other: Other) -> None:
    ids = sorted(new_id(store.now_ms()) for _ in range(2))
    store.put([Draft(task="t", key=key, id=id) for key, id in zip("ba", ids, strict=True)])
    settlements = [Settlement(d.receipt, Ack()) for d in claim(store)]
    other.execute("select from unique_key where key = 'a' for update")

    def ahead() -> None:
        assert not locked(store, f"select from {store._link.schema}.unique_key where key = 'b'")

    assert len(meanwhile(other, lambda: store.exchange(settlements, []), ahead)) == 1
    assert [put.duplicate for put in store.put([Draft(task="t", key=key) for key in "ab"])] == [False, False]


def test_what_is_committed_stands_though_nobody_can_be_told(postgres_server: PostgresServer, schema: str) -> None:
    notify = "execute on function pg_notify(text, text)"
    with psycopg.connect(postgres_server.url, autocommit=True) as c, closing(PostgresStore(schema)) as store:
        name = store._link.schema
        for right in (
            f"create role {name} login",
            f"grant usage on schema {name} to {name}",
            f"grant select, insert, update, delete on all tables in schema {name} to {name}",
            f"grant usage on all sequences in schema {name} to {name}",
            f"revoke {notify} from public",
        ):
            c.execute(right.encode())
        try:
            with closing(PostgresStore(schema.replace("postgres@", f"{name}@"))) as mute:
                (id,) = put(mute, None)
                (delivery,) = claim(mute)
                done = mute.exchange(
                    [Settlement(delivery.receipt, RetryAt(0), FAULT)], [ClaimRequest("default", 1, 1000)]
                )
                assert done.settled == [Settled.OK]
                assert [d.message.id for d in done.deliveries] == [id]
                assert mute.cancel([id]) == [Cancel.REQUESTED]
        finally:
            c.execute(f"grant {notify} to public".encode())
            c.execute(f"drop owned by {name}; drop role {name}".encode())


def fails_at_commit(store: PostgresStore, nth: int) -> None:
    """Let the transaction fail that is the nth to be committed from now on."""
    left = [nth]

    def fail(point: str) -> None:
        left[0] -= point == "commit"
        if point == "commit" and left[0] == 0:
            raise StoreUnavailable("gone")

    store.failpoint = fail


def test_what_an_exchange_committed_is_returned_though_its_second_claim_fails(schema: str) -> None:
    clock = ManualClock()
    with closing(PostgresStore(schema, clock_ms=clock)) as store:
        put(store, None)
        (held,) = claim(store)
        (ready,) = put(store, None)
        (later,) = (put.id for put in store.put([Draft(task="t", queue="q", group="g", delay_ms=1000)]))
        clock.advance("2s")
        asks = [ClaimRequest(queue, 9, 30_000) for queue in ("default", "q")]
        fails_at_commit(store, 2)
        done = store.exchange([Settlement(held.receipt, Ack())], asks)
        assert (done.settled, [d.message.id for d in done.deliveries]) == ([Settled.OK], [ready])
        assert [d.message.id for d in store.exchange([], asks).deliveries] == [later]


def test_what_an_exchange_committed_is_returned_though_a_damaged_message_is_not_set_aside(schema: str) -> None:
    clock = ManualClock()
    with closing(PostgresStore(schema, clock_ms=clock)) as store:
        put(store, None)
        (held,) = claim(store)
        (ready,) = put(store, None)
        (damaged,) = (put.id for put in store.put([Draft(task="t", headers={"a": "b"})]))
        store._link.run(
            lambda c: c.execute(f"update {store._link.schema}.message set meta = 'garbage' where id = %s", [damaged])
        )
        asks = [ClaimRequest("default", 9, 30_000)]
        fails_at_commit(store, 2)
        done = store.exchange([Settlement(held.receipt, Ack())], asks)
        assert (done.settled, [d.message.id for d in done.deliveries]) == ([Settled.OK], [ready])
        clock.advance("31s")
        assert [message.id for message in store.exchange([], asks).damaged] == [damaged]


def test_a_damaged_message_that_joins_its_group_when_claimed_is_set_aside_at_once(schema: str) -> None:
    clock = ManualClock()
    with closing(PostgresStore(schema, clock_ms=clock)) as store:
        (damaged,) = (put.id for put in store.put([Draft(task="t", group="g", delay_ms=1000, headers={"a": "b"})]))
        store._link.run(lambda c: c.execute(f"update {store._link.schema}.message set meta = 'garbage'"))
        clock.advance("2s")
        assert [m.id for m in store.exchange([], [ClaimRequest("default", 9, 30_000)]).damaged] == [damaged]


def test_statements_that_were_prepared_before_a_migration_are_prepared_anew(store: PostgresStore, other: Other) -> None:
    def use() -> None:
        (id,) = put(store, None)
        (delivery,) = claim(store)
        assert store.find([id]) == [delivery.message]
        store.exchange([Settlement(delivery.receipt, Ack())], [])

    for _ in range(5):
        use()
    other.execute("alter table message alter fence type bigint, alter enqueued_ms type numeric")
    other.execute("alter table message alter enqueued_ms type bigint, alter attempt type bigint")
    other.commit()
    use()


def test_a_put_that_broke_is_not_taken_for_done_by_an_id_that_was_there_before(store: PostgresStore) -> None:
    (used,) = put(store, None)
    free = [new_id(store.now_ms()) for _ in range(2)]

    def cut(point: str) -> None:
        if point == "put":
            store.failpoint = lambda point: None
            for c in [*store._link._pool._taken]:
                with socket.socket(fileno=os.dup(c.pgconn.socket)) as wire:
                    wire.shutdown(socket.SHUT_RDWR)

    for drafts in ([Draft(task="t", id=used), Draft(task="t")], [Draft(task="t", id=id) for id in (used, free[0])]):
        store.failpoint = cut
        with pytest.raises(EnqueueError, match="already stored"):
            store.put(drafts)
    assert store.counts().ready == 1
    store.failpoint = cut
    assert [put.id for put in store.put([Draft(task="t", id=id) for id in free])] == free
    assert store.counts().ready == 3


def long(bytes_: int) -> str:
    """A name that cannot be compressed."""
    return "".join(f"{n * 2654435761 % 2**32:08x}" for n in range(bytes_ // 8 + 1))[:bytes_]


def test_a_message_quarantined_with_a_long_text_goes_back_to_the_dead_with_its_beginning(store: PostgresStore) -> None:
    (handle,) = bury(store, Lane.QUARANTINE)
    assert store.triage([handle], Isolate(long(4000))) == [True]
    assert store.triage([handle], Readmit("yes")) == [True]
    (message,) = store.find([handle.id])
    assert message is not None and (message.lane, message.reason) == (Lane.DEAD, long(4000)[:REASON_MAX])


LONG: Sequence[dict[str, str]] = (
    {"key": long(3000)},
    {"group": long(3000)},
    {"queue": long(3000)},
    {"task": long(3000)},
    {"queue": long(1500), "group": long(1500)},
    {"task": long(1500), "key": "ü" * 600},
)


@pytest.mark.parametrize("names", LONG, ids=[" and ".join(names) for names in LONG])
def test_names_too_long_for_an_index_are_refused_at_the_door(store: PostgresStore, names: dict[str, str]) -> None:
    bad = Draft(**({"task": "t"} | names))  # type: ignore[arg-type]
    with pytest.raises(EnqueueError, match="expected at most"):
        store.put([Draft(task="t"), bad])
    assert store.counts().ready == 0
    put(store, None, None)
    one, two = claim(store)
    with pytest.raises(EnqueueError, match="expected at most"):
        store.exchange([Settlement(one.receipt, Ack()), Settlement(two.receipt, Ack(), follow_ups=(bad,))], [])
    assert store.counts().leased == 2


def test_the_longest_names_do_all_that_names_do(store: PostgresStore) -> None:
    most, key = long(NAME_MAX), long(KEY_BYTES_MAX)
    names: list[dict[str, Any]] = [{"key": key, "task": most}, {"group": most, "queue": most}]
    for parts in names:
        draft = Draft(**({"task": "tttt"} | parts))
        ask = ClaimRequest(draft.queue, 9, 30_000, worker="w")
        put_twice = [store.put([draft])[0].duplicate for _ in range(2)]
        assert put_twice == [False, draft.key is not None]
        (delivery,) = store.exchange([], [ClaimRequest(draft.queue, 1, 30_000, worker="w")]).deliveries
        store.exchange([Settlement(delivery.receipt, RetryAt(store.now_ms() - 1), FAULT)], [])
        for d in store.exchange([], [ask]).deliveries:
            dead = Settlement(d.receipt, Ack(keep_ms=None)) if d.message.attempt == 1 else died(d)
            assert store.exchange([dead], [ask]).settled == [Settled.OK]
    assert store.failure_groups()


def died(delivery: Delivery) -> Settlement:
    return Settlement(delivery.receipt, DeadLetter("permanent"), FAULT)
