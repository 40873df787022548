"""All that two workers can do to one message of three attempts, in every order, until nothing new comes of it.

Breadth first over the real memory store with the real `admit` and `decide`. States that differ only in what no rule
looks at (the value of a fence, the time of day) are one state, so the search closes. A violation names the shortest
way to it.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import msgspec
import pytest

from redrive import decide
from redrive.fault import Fault, Kind
from redrive.message import (
    RESTING,
    Ack,
    Cancel,
    ClaimRequest,
    DeadLetter,
    Decision,
    Delivery,
    Discard,
    Draft,
    Handle,
    Lane,
    LeaseStatus,
    Message,
    Receipt,
    Redrive,
    RetryAt,
    Settled,
    Settlement,
    Started,
)
from redrive.policy import Backoff, Retry
from redrive.stores import lifecycle
from redrive.stores.memory.store import MemoryStore
from redrive.stores.memory.tables import Tables
from redrive.testing import ManualClock

ID = "0197716a-5800-7abc-8def-0123456789ab"
ATTEMPTS, CRASHES, REDRIVES = 3, 2, 1
POLICY = decide.Policy(Retry(ATTEMPTS, None, Backoff.fixed("1s")), crashes_max=CRASHES)
RUNS = ATTEMPTS + CRASHES - 1  # a crash gives one run more; the last one convicts
LEASE_MS = 30_000
WORKERS = (0, 1)
STATES_LEAST = 3_000  # far fewer would mean that the search no longer looks at what it should
BOOM = Fault(Kind.DEFAULT, "ValueError", "boom")
SNOOZE = Fault(Kind.DEFAULT, "Snooze", steer="snooze", retry_after_s=1.0)


@dataclass(frozen=True)
class Hand:
    """What a worker holds: a delivery, and whether it has begun to run it."""

    delivery: Delivery
    started: bool = False


@dataclass(frozen=True)
class State:
    """A moment of the world, to go on from in any number of ways."""

    tables: bytes
    now_ms: int
    hands: tuple[Hand | None, ...] = (None, None)
    receipts: tuple[Receipt, ...] = ()  # all ever given
    runs: int = 0  # of this life, those that were for nothing not counted
    end: str = ""  # why the message is no longer stored


class World:
    """A state brought to life: a store, a clock, two workers. Each public method is something that can happen; it
    returns False where it cannot happen now."""

    def __init__(self, state: State | None = None) -> None:
        self.clock = ManualClock(*([state.now_ms] if state else []))
        self.store = MemoryStore(self.clock)
        if state is None:
            self.store.put([Draft(task="push", id=ID)])
            state = State(b"", self.clock())
        else:
            vars(self.store._tables).update(pickle.loads(state.tables))
        self.hands = list(state.hands)
        self.receipts, self.runs, self.end = state.receipts, state.runs, state.end

    def freeze(self) -> State:
        parts = {name: part for name, part in vars(self.store._tables).items() if not isinstance(part, count)}
        return State(pickle.dumps(parts), self.clock(), tuple(self.hands), self.receipts, self.runs, self.end)

    @property
    def message(self) -> Message | None:
        return self.store.find([ID])[0]

    # -- what a worker does

    def claim(self, worker: int) -> bool:
        if self.hands[worker] is not None:
            return False
        before = self.message
        given = self.store.exchange([], [ClaimRequest("default", 1, LEASE_MS, worker=f"w{worker}")]).deliveries
        if not given:
            assert before is None or before.due_ms is None or before.due_ms > self.clock(), "due, but not given out"
            return False
        (delivery,) = given
        assert before is not None and not self.end, "given out after its end"
        assert before.lane in (Lane.READY, Lane.LEASED), "given out while it rests"
        assert before.due_ms is not None and before.due_ms <= self.clock(), "given out before its time"
        assert all(delivery.receipt.fence > receipt.fence for receipt in self.receipts), "the fence did not rise"
        self.hands[worker] = Hand(delivery)
        self.receipts += (delivery.receipt,)
        return True

    def start(self, worker: int) -> bool:
        hand = self.hands[worker]
        if hand is None or hand.started:
            return False
        message = hand.delivery.message
        verdict = decide.admit(message, POLICY, decide.NO_SIGNALS, self.clock())
        if not isinstance(verdict, decide.Run):
            return self._settle(worker, verdict)
        assert message.attempt <= ATTEMPTS and message.crashes < CRASHES and not message.cancel, "run all the same"
        self.hands[worker] = replace(hand, started=True)
        now = self.message
        self.runs += now is not None and now.redrives == message.redrives
        return True

    def succeed(self, worker: int) -> bool:
        return self._running(worker) and self._settle(worker, Ack())

    def fail(self, worker: int) -> bool:
        return self._running(worker) and self._decide(worker, BOOM)

    def snooze(self, worker: int) -> bool:
        return self._running(worker) and self._decide(worker, SNOOZE)

    def beat(self, worker: int) -> bool:
        """It renews its lease."""
        hand = self.hands[worker]
        if hand is None:
            return False
        current = self._is_current(hand)
        (hold,) = self.store.extend([hand.delivery.receipt], lease_ms=LEASE_MS)
        assert (hold is LeaseStatus.LOST) == (not current), "extend misjudged a receipt"
        if current:
            message = self.message
            assert message is not None and message.due_ms == self.clock() + LEASE_MS, "the lease was not extended"
        return True

    def crash(self, worker: int) -> bool:
        """It dies, and nobody knows until its lease ends."""
        if self.hands[worker] is None:
            return False
        self.hands[worker] = None
        return True

    def crash_and_release(self, worker: int) -> bool:
        """It dies, and whoever starts next on its machine takes back what it had."""
        hand = self.hands[worker]
        if hand is None:
            return False
        current, before = self._is_current(hand), self.message
        self.hands[worker] = None
        done = self.store.reclaim(f"w{worker}", [Started(ID, hand.delivery.message.fence)] if hand.started else [])
        assert done == ((0, 0) if not current else (0, 1) if hand.started else (1, 0)), "release miscounted"
        after = self.message
        if current:
            assert before is not None and after is not None
            assert after.attempt == before.attempt - (not hand.started), "an attempt for what was never started"
        return True

    def _running(self, worker: int) -> bool:
        hand = self.hands[worker]
        return hand is not None and hand.started

    def _decide(self, worker: int, fault: Fault) -> bool:
        hand = self.hands[worker]
        assert hand is not None
        verdict = decide.decide(hand.delivery.message, fault, POLICY, self.clock())
        return self._settle(worker, verdict, fault)

    def _settle(self, worker: int, verdict: Decision, fault: Fault | None = None) -> bool:
        hand, before = self.hands[worker], self.message
        assert hand is not None
        current = self._is_current(hand)
        (word,) = self.store.exchange([Settlement(hand.delivery.receipt, verdict, fault)], []).settled
        self.hands[worker] = None
        if not current:
            assert word is Settled.STALE, "a stale receipt was taken"
            assert self.message == before, "a stale receipt changed something"
            return True
        assert before is not None and word is not Settled.STALE, "the current receipt was refused"
        assert (word is Settled.CANCELLED) == (before.cancel and not isinstance(verdict, Ack))
        after = self.message
        assert not before.cancel or after is None or after.lane is Lane.DONE, "retried or dead though cancelled"
        if isinstance(verdict, Ack):
            self.end = "done"
        elif not verdict.counts and hand.started:
            self.runs -= 1
        return True

    def _is_current(self, hand: Hand) -> bool:
        """By the receipts alone: the last one given, of a message that was not settled or taken back since."""
        message = self.message
        return (
            message is not None
            and message.lane is Lane.LEASED
            and hand.delivery.receipt == max(self.receipts, key=_fence)
        )

    # -- what happens to all

    def tick(self) -> bool:
        """Time passes until the message is due: its delay is over, or its lease ends."""
        message = self.message
        if message is None or message.due_ms is None or message.due_ms <= self.clock():
            return False
        self.clock.advance((message.due_ms - self.clock()) / 1000)
        return True

    def cancel(self) -> bool:
        message = self.message
        (word,) = self.store.cancel([ID])
        if message is None or message.lane in (*RESTING, Lane.DONE):
            assert word is (Cancel.UNKNOWN if message is None else Cancel.TOO_LATE)
            return False
        assert word is (Cancel.CANCELLED if message.lane is Lane.READY else Cancel.REQUESTED)
        return True

    def redrive(self) -> bool:
        message = self.message
        if message is None or message.lane not in RESTING or message.redrives >= REDRIVES:
            return False
        assert self.store.triage([Handle(ID, message.redrives, message.lane)], Redrive()) == [True]
        self.runs = 0
        return True

    def discard(self) -> bool:
        message = self.message
        if message is None or message.lane not in RESTING:
            return False
        assert self.store.triage([Handle(ID, message.redrives, message.lane)], Discard("no")) == [True]
        self.end = "discarded"
        return True

    # -- what must hold always

    def check(self) -> None:
        message = self.message
        assert (message is None) == bool(self.end), "lost, or back from its end"
        counts = self.store.counts()
        numbers = [counts.waiting, counts.leased, counts.dead, counts.quarantine, counts.done]
        assert sum(numbers) == (message is not None), "not in exactly one place"
        if message is not None:
            assert 0 <= message.attempt <= ATTEMPTS, "more attempts than are allowed"
            assert 0 <= self.runs <= message.attempt + message.crashes, "a run that was not counted"
            assert self.runs <= RUNS, "run more often than attempts and crashes allow"
        self._check_stale()

    def _check_stale(self) -> None:
        """No receipt but the current one changes anything, whatever is done with it."""
        before = self.message
        stale = [
            r for r in self.receipts if before is None or before.lane is not Lane.LEASED or r.fence != before.fence
        ]
        decisions: list[Decision] = [Ack(), RetryAt(0), DeadLetter("permanent")]
        settlements = [Settlement(receipt, decision, BOOM) for receipt in stale for decision in decisions]
        assert set(self.store.exchange(settlements, []).settled) <= {Settled.STALE}, "a stale receipt was taken"
        assert set(self.store.extend(stale, lease_ms=1)) <= {LeaseStatus.LOST}, "a stale receipt held a lease"
        assert not any(self.store.checkpoint(receipt, b"late") for receipt in stale), (
            "a stale receipt left a checkpoint"
        )
        assert self.message == before, "a stale receipt changed something"

    def key(self) -> tuple[Any, ...]:
        """What the rules look at, and nothing else."""
        message = self.message
        if message is None:
            return self.end, self._held()
        due = message.due_ms is not None and message.due_ms <= self.clock()
        crashes = min(message.crashes, CRASHES)  # beyond it all are alike: it is never run again
        told = (message.lane, message.attempt, crashes, message.redrives, message.cancel, message.reason)
        return *told, due, message.worker, self.runs, self._held()

    def _held(self) -> tuple[object, ...]:
        return tuple(
            hand and (hand.started, self._is_current(hand) and (hand.delivery.message.cancel, "current"))
            for hand in self.hands
        )

    @property
    def at_end(self) -> bool:
        message = self.message
        return message is None or message.lane in (*RESTING, Lane.DONE)


def _fence(receipt: Receipt) -> int:
    return receipt.fence


Action = tuple[str, Callable[[World], bool]]
OF_A_WORKER = ("claim", "start", "succeed", "fail", "snooze", "beat", "crash", "crash_and_release")
OF_ALL = ("tick", "cancel", "redrive", "discard")


def _actions() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((name, (worker,)) for name in OF_A_WORKER for worker in WORKERS)
    yield from ((name, ()) for name in OF_ALL)


@dataclass
class Found:
    """What the search saw: per state the shortest way to it, the states that follow, whether it is an end."""

    ways: dict[tuple[Any, ...], tuple[tuple[Any, ...] | None, str]] = field(default_factory=dict)
    follows: dict[tuple[Any, ...], set[tuple[Any, ...]]] = field(default_factory=dict)
    ends: set[tuple[Any, ...]] = field(default_factory=set)

    def way(self, key: tuple[Any, ...] | None) -> list[str]:
        steps: list[str] = []
        while key is not None:
            key, step = self.ways[key]
            steps.append(step)
        return steps[::-1]


def explore() -> Found:
    found = Found()
    world = World()
    found.ways[world.key()] = (None, "put")
    todo = deque([(world.key(), world.freeze())])
    while todo:
        key, state = todo.popleft()
        found.follows[key] = set()
        world, fresh = World(state), True
        for name, args in _actions():
            world = world if fresh else World(state)
            try:
                fresh = not getattr(world, name)(*args)
                if fresh:  # it could not happen, so nothing did
                    continue
                after = world.key()
                found.follows[key].add(after)
                if after in found.ways:
                    continue
                found.ways[after] = (key, f"{name}{args}")
                frozen = world.freeze()
                world.check()
            except AssertionError as error:
                raise AssertionError(f"{error} after {' '.join([*found.way(key), f'{name}{args}'])}") from error
            if world.at_end:
                found.ends.add(after)
            todo.append((after, frozen))
    return found


def _reaching(found: Found) -> set[tuple[Any, ...]]:
    """The states from which some way leads to an end."""
    before: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for key, follows in found.follows.items():
        for after in follows:
            before.setdefault(after, []).append(key)
    reaching, todo = set(found.ends), deque(found.ends)
    while todo:
        for key in before.get(todo.popleft(), ()):
            if key not in reaching:
                reaching.add(key)
                todo.append(key)
    return reaching


def test_no_order_of_two_workers_crashes_cancels_and_redrives_breaks_a_rule() -> None:
    found = explore()
    steps = sum(map(len, found.follows.values()))
    print(f"{len(found.ways)} states, {steps} steps between them, {len(found.ends)} ends")
    assert len(found.ways) >= STATES_LEAST
    assert found.ways.keys() == found.follows.keys()  # closed: from each state everything was tried
    stuck = found.ways.keys() - _reaching(found)
    assert not stuck, f"no end can be reached after {found.way(next(iter(stuck)))}"
    assert {key[0] for key in found.ends} == {"done", "discarded", Lane.DEAD, Lane.QUARANTINE, Lane.DONE}


def _held_by_any_receipt(tables: Tables, receipt: Receipt) -> Message | None:
    kept = tables.kept.get(receipt.handle)
    return kept.message if kept and kept.message.lane is Lane.LEASED else None


def _given_back_with_its_attempt(message: Message, now_ms: int) -> Message:
    return msgspec.structs.replace(message, lane=Lane.READY, due_ms=now_ms)


def _leased_without_a_fence(message: Message, ask: ClaimRequest, alone: bool, now_ms: int) -> Message:
    return msgspec.structs.replace(LEASED(message, ask, alone, now_ms), fence=1)


def _decided_though_cancelled(message: Message, *args: Any) -> Message:
    return DECIDED(msgspec.structs.replace(message, cancel=False), *args)


LEASED, DECIDED = lifecycle.leased, lifecycle.decided


@pytest.mark.parametrize(
    ("place", "name", "wrong", "words"),
    [
        (Tables, "held", _held_by_any_receipt, "a stale receipt"),
        (lifecycle, "given_back", _given_back_with_its_attempt, "never started"),
        (lifecycle, "leased", _leased_without_a_fence, "the fence did not rise"),
        (lifecycle, "decided", _decided_though_cancelled, "retried or dead though cancelled"),
        (decide, "admit", lambda *_: decide.RUN, "run all the same"),
        (decide, "decide", lambda message, fault, policy, now_ms: RetryAt(now_ms), "more attempts than"),
    ],
    ids=["held", "given_back", "leased", "decided", "admit", "decide"],
)
def test_the_search_finds_a_bug(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, wrong: Any, words: str) -> None:
    monkeypatch.setattr(place, name, wrong)
    with pytest.raises(AssertionError, match=words):
        explore()
