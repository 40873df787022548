"""What rests in the triage store of an SQS queue goes back by way of its ready lane, and comes to rest there once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from redrive.errors import ConfigError, EnqueueError, StoreUnavailable
from redrive.fault import Fault, Kind
from redrive.ids import new_id
from redrive.message import ClaimRequest, Draft, Handle, Lane, Message, Redrive, Return, Swap
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.stores.run_marks import sent_cell
from redrive.stores.sqlite.store import SqliteStore
from redrive.stores.sqs.outbox import (
    LEASE_MS,
    OWNER,
    UNROUTED,
    Outbox,
    bury,
)
from redrive.testing.clock import ManualClock

FAULT = Fault(Kind.DEFAULT, "ValueError", "bad", "f-bad")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def triage(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Any:
    store = MemoryStore(clock) if request.param == "memory" else SqliteStore(tmp_path / "triage.db", clock_ms=clock)
    yield store
    store.close()


def dead(clock: ManualClock, **fields: Any) -> Message:
    id = new_id(clock())
    words: dict[str, Any] = {
        "task": "t", "queue": "crm", "body": b'{"a":1}', "correlation_id": "c-1", "lane": Lane.DEAD,
        "reason": "exhausted", "enqueued_ms": clock() - 5000, "life_ms": clock() - 5000, "rested_ms": clock(),
        "attempt": 3, "fence": 3, "headers": {"h": "v"}, "faults": (FAULT,), "traceparent": "tp",
    }  # fmt: skip
    return Message(id=id, **(words | fields))


class Sqs:
    """Takes what it is sent, or not."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.refuses: Callable[[Message], Exception | None] = lambda message: None
        self.error: Exception | None = None

    def __call__(self, messages: Sequence[Message]) -> list[Exception | None]:
        if self.error is not None:
            raise self.error
        words = [self.refuses(message) for message in messages]
        self.sent += [message for message, word in zip(messages, words, strict=True) if word is None]
        return words

    @property
    def ids(self) -> list[str]:
        return [message.id for message in self.sent]


def redriven(triage: Store, messages: Sequence[Message], **words: Any) -> None:
    assert all(bury(triage, messages))
    assert all(triage.triage([message.handle for message in messages], Redrive(**words)))


def test_a_redriven_message_leaves_as_its_verdict_made_it(triage: Store, clock: ManualClock) -> None:
    sqs, message = Sqs(), dead(clock)
    redriven(triage, [message], attempts=2, run="r1")
    assert Outbox(triage, sqs).pump(10) == 1
    [sent] = sqs.sent
    assert (sent.id, sent.queue, sent.task, sent.body) == (message.id, "crm", "t", b'{"a":1}')
    assert (sent.lane, sent.attempt, sent.crashes, sent.redrives, sent.run) == (Lane.READY, 0, 0, 1, "r1")
    assert (sent.attempts_allowed, sent.life_ms, sent.enqueued_ms) == (2, clock(), message.enqueued_ms)
    assert (sent.faults, sent.correlation_id, sent.traceparent) == ((FAULT,), "c-1", "tp")
    assert dict(sent.headers) == {"h": "v"}
    assert triage.find([message.id]) == [None]
    assert triage.cells.read([sent_cell("r1", message.id)])[0] is not None


def test_nothing_leaves_before_its_time(triage: Store, clock: ManualClock) -> None:
    sqs, message = Sqs(), dead(clock)
    redriven(triage, [message], delay_ms=3_600_000)
    outbox = Outbox(triage, sqs)
    assert outbox.pump(10) == 0
    clock.advance("61m")
    assert outbox.pump(10) == 1


def test_a_kill_between_send_and_settle_sends_it_again_under_the_same_id(triage: Store, clock: ManualClock) -> None:
    sqs, message = Sqs(), dead(clock)
    redriven(triage, [message], run="r1")

    class Killed(BaseException):
        pass

    def sends_and_dies(messages: Sequence[Message]) -> list[Exception | None]:
        sqs(messages)
        raise Killed

    with pytest.raises(Killed):
        Outbox(triage, sends_and_dies).pump(10)
    assert Outbox(triage, sqs).pump(10) == 0  # it is leased
    clock.advance(LEASE_MS / 1000 + 1)
    assert Outbox(triage, sqs).pump(10) == 1
    first, second = sqs.sent
    assert first == second
    assert triage.find([message.id]) == [None]


def test_what_surely_did_not_arrive_stays_and_can_be_returned(triage: Store, clock: ManualClock) -> None:
    sqs, messages = Sqs(), [dead(clock), dead(clock)]
    sqs.refuses = lambda message: ConfigError("no queue") if message.id == messages[0].id else None
    redriven(triage, messages, run="r1")
    assert Outbox(triage, sqs).pump(10) == 1
    [left] = [m for m in triage.find([m.id for m in messages]) if m is not None]
    assert (left.lane, left.attempt, left.crashes) == (Lane.READY, 0, 0)
    assert triage.triage([Handle(left.id, 1, Lane.READY)], Return("r1")) == [True]
    clock.advance("1h")
    assert Outbox(triage, sqs).pump(10) == 0


def test_what_may_have_arrived_is_sent_again_and_never_returned(triage: Store, clock: ManualClock) -> None:
    sqs, message = Sqs(), dead(clock)
    sqs.error = StoreUnavailable("nobody knows")
    redriven(triage, [message], run="r1")
    told: list[tuple[str, str]] = []
    outbox = Outbox(triage, sqs, tell=lambda name, text: told.append((name, text)))
    assert outbox.pump(10) == 0
    assert triage.triage([Handle(message.id, 1, Lane.READY)], Return("r1")) == [False]
    sqs.error = None
    clock.advance("1m")
    assert Outbox(triage, sqs).pump(10) == 1
    assert sqs.sent[0].attempt == 0
    assert [name for name, _ in told] == ["outbox_stuck"]


def test_a_queue_that_is_gone_holds_up_no_other(triage: Store, clock: ManualClock) -> None:
    sqs, here, there = Sqs(), dead(clock), dead(clock, queue="gone")

    def send(messages: Sequence[Message]) -> list[Exception | None]:
        if messages[0].queue == "gone":
            raise ConfigError("no such queue")
        return sqs(messages)

    redriven(triage, [there, here])
    assert Outbox(triage, send).pump(10) == 1
    assert sqs.ids == [here.id]


def test_what_sqs_never_takes_is_dead_again_with_the_reason(triage: Store, clock: ManualClock) -> None:
    sqs, good, bad = Sqs(), dead(clock), dead(clock)

    sqs.refuses = lambda message: EnqueueError("its body is too long") if message.id == bad.id else None
    redriven(triage, [bad, good])
    assert Outbox(triage, sqs).pump(10) == 1
    [again] = triage.find([bad.id])
    assert again is not None
    assert (again.lane, again.reason, again.redrives) == (Lane.DEAD, "permanent", 1)
    assert again.faults[-1].text == "its body is too long"


def test_many_of_one_group_leave_together_and_in_order_where_that_matters(triage: Store, clock: ManualClock) -> None:
    some = [dead(clock, group="g") for _ in range(30)]
    redriven(triage, some)
    sqs = Sqs()
    assert Outbox(triage, sqs, ordered=lambda queue: True).pump(100) == 30
    assert sqs.ids == [message.id for message in some]
    more = [dead(clock, group="g", queue="fair") for _ in range(30)]
    redriven(triage, more)
    batches: list[int] = []

    def counted(messages: Sequence[Message]) -> list[Exception | None]:
        batches.append(len(messages))
        return sqs(messages)

    assert Outbox(triage, counted).pump(100) == 30
    assert len(batches) == 2


def test_a_triage_store_serves_one_prefix_and_has_no_messages_of_its_own(triage: Store) -> None:
    Outbox(triage, Sqs(), owner="eu/one").own()
    Outbox(triage, Sqs(), owner="eu/one").own()
    with pytest.raises(ConfigError, match="sqs://eu/one"):
        Outbox(triage, Sqs(), owner="eu/two").pump(1)
    [cell] = triage.cells.read([OWNER])
    assert cell is not None
    triage.cells.swap([Swap(OWNER, cell.version, None)])
    triage.put([Draft(task="t", queue="its-own")])
    with pytest.raises(ConfigError, match="waiting messages of its own"):
        Outbox(triage, Sqs(), owner="eu/one").pump(1)


def test_the_thread_sends_what_becomes_ready(tmp_path: Path) -> None:
    import threading

    triage, came, clock = SqliteStore(tmp_path / "t.db"), threading.Event(), ManualClock()

    def send(messages: Sequence[Message]) -> list[Exception | None]:
        came.set()
        return [None] * len(messages)

    outbox = Outbox(triage, send)
    outbox.begin()
    try:
        redriven(triage, [dead(clock)])
        assert came.wait(30)
    finally:
        outbox.close()
        triage.close()


def test_the_same_death_twice_is_one_row(triage: Store, clock: ManualClock) -> None:
    message = dead(clock)
    assert bury(triage, [message]) == [True]
    assert bury(triage, [message, dead(clock)]) == [True, True]
    assert triage.counts().dead == 2


def test_who_died_again_takes_the_place_of_the_older_row_and_never_the_other_way_round(
    triage: Store, clock: ManualClock
) -> None:
    older = dead(clock)
    newer = replace(older, redrives=1, reason="permanent")
    for each in (older, newer, older):
        assert bury(triage, [each]) == [True]
        [row] = triage.find([older.id])
        assert row is not None
    assert (row.redrives, row.reason) == (1, "permanent")
    assert triage.counts().dead == 1


def test_who_dies_before_its_pump_has_settled_waits_for_that(triage: Store, clock: ManualClock) -> None:
    message = dead(clock)
    redriven(triage, [message])

    def send(messages: Sequence[Message]) -> list[Exception | None]:
        died = replace(messages[0], lane=Lane.DEAD, reason="permanent", rested_ms=clock())
        burying.append(pool.submit(bury, triage, [died]))
        return [None]

    from concurrent.futures import Future, ThreadPoolExecutor

    burying: list[Future[list[bool]]] = []
    with ThreadPoolExecutor() as pool:
        assert Outbox(triage, send).pump(1) == 1
        assert burying[0].result(30) == [True]
    [row] = triage.find([message.id])
    assert row is not None
    assert (row.lane, row.redrives) == (Lane.DEAD, 1)


def test_one_whose_pump_was_killed_is_not_safe_yet(triage: Store, clock: ManualClock) -> None:
    message = dead(clock)
    redriven(triage, [message])
    [delivery] = triage.exchange([], [ClaimRequest("crm", 1, LEASE_MS)]).deliveries
    died = replace(delivery.message, lane=Lane.DEAD, reason="permanent", rested_ms=clock())
    assert bury(triage, [died]) == [False]


def test_one_without_a_task_and_one_that_no_store_takes_hold_up_no_other(triage: Store, clock: ManualClock) -> None:
    foreign, odd, good = dead(clock, task=""), dead(clock, headers={"a": "\0"}), dead(clock, key="k")
    assert bury(triage, [foreign, odd, good]) == [True, False, True]
    [row] = triage.find([foreign.id])
    assert row is not None
    assert row.task == UNROUTED
