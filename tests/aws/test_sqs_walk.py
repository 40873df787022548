"""Long random walks of the SQS store beside a plain model of what its messages have been through."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest
from tests.support.aws.places import REGION, Lasting, Stand

from redrive.fault import Fault, Kind
from redrive.message import (
    Ack,
    ClaimRequest,
    DeadLetter,
    Decision,
    Delivery,
    Draft,
    Lane,
    Message,
    Redrive,
    RetryAt,
    Settled,
    Settlement,
)
from redrive.stores.sqs.store import SqsStore

STEPS, WALKS = 60, 2
MODES = {"visibility": "", "requeue": "&mode=requeue", "requeue, few receives": "&mode=requeue&max_receives=5"}


@dataclass
class Known:
    """What a message should be: it waits until `due_ms`, as nobody's or as a lease's, rests, or is gone."""

    due_ms: int
    attempt: int = 0
    crashes: int = 0
    fence: int = 0
    redrives: int = 0
    faults: list[str] = field(default_factory=list)
    held: Delivery | None = None
    leased: bool = False
    lane: Lane | None = Lane.READY


class Walk:
    def __init__(self, stand: Stand, name: str, options: str, dice: random.Random) -> None:
        self.stand, self.clock, self.dice = stand, stand.clock, dice
        self.url = f"sqs://{REGION}/{name}?create=true&poll=0&endpoint={stand.url}{options}"
        self.resting = Lasting(stand.clock)
        self.store = self.open()
        self.known: dict[str, Known] = {}

    def open(self) -> SqsStore:
        return SqsStore(self.url, clock_ms=self.clock, triage=self.resting)

    def tick(self, wait_ms: int) -> int:
        """When a wait that begins now is over."""
        return self.clock() - (-max(0, wait_ms) // 1000) * 1000

    def step(self) -> None:
        self.dice.choice([self.put, self.claim, self.claim, self.settle, self.settle, self.settle, self.extend,
                          self.redrive, self.reopen, self.pass_time, self.pass_time])()  # fmt: skip

    def put(self) -> None:
        waits = [self.dice.choice([0, 0, 1, 999, 5000, 1_200_000]) for _ in range(self.dice.randint(1, 12))]
        for wait_ms, done in zip(waits, self.store.put([Draft(task="t", delay_ms=ms) for ms in waits]), strict=True):
            self.known[done.id] = Known(self.tick(wait_ms + (wait_ms > 0)))

    def claim(self) -> None:
        lease_s = self.dice.choice([5, 60, 600])
        due = {id for id, one in self.known.items() if one.lane is Lane.READY and one.due_ms <= self.clock()}
        ask = ClaimRequest("default", 1000, lease_s * 1000, worker="w")
        given = self.store.exchange([], [ask]).deliveries
        given += self.store.exchange([], [ask]).deliveries  # of what SQS had delivered too often a copy was sent
        assert {d.message.id for d in given} == due and len(given) == len(due)
        for delivery in given:
            one = self.known[delivery.message.id]
            one.crashes, one.attempt = one.crashes + one.leased, one.attempt + (not one.leased)
            assert delivery.message.fence > one.fence
            one.fence, one.leased, one.held = delivery.message.fence, True, delivery
            one.due_ms = self.clock() + lease_s * 1000
            self.compare(delivery.message, one)
            assert delivery.until_ms == one.due_ms

    def compare(self, message: Message, one: Known) -> None:
        assert (message.attempt, message.crashes, message.redrives) == (one.attempt, one.crashes, one.redrives)
        assert [fault.text for fault in message.faults] == [*one.faults[:10], *one.faults[10:][-10:]]

    def mine(self) -> list[tuple[str, Known]]:
        """Those that this handle holds, with time left."""
        return [(id, one) for id, one in self.known.items() if one.held is not None and one.due_ms > self.clock()]

    def settle(self) -> None:
        settlements, after = [], []
        for id, one in self.mine():
            if self.dice.random() < 0.5:
                decision, fault = self.decision(), self.fault()
                assert one.held is not None
                settlements.append(Settlement(one.held.receipt, decision, fault))
                after.append((id, one, decision, fault))
        assert self.store.exchange(settlements, []).settled == [Settled.OK] * len(settlements)
        for id, one, decision, fault in after:
            one.held, one.leased = None, False
            if isinstance(decision, Ack):
                one.lane = None
                continue
            one.faults += [] if fault is None else [fault.text]
            one.attempt -= not decision.counts
            if isinstance(decision, RetryAt):
                one.due_ms = self.tick(decision.at_ms - self.clock())
            else:
                one.lane = Lane.DEAD
                (message,) = self.store.find([id])
                assert message is not None and message.lane is Lane.DEAD
                self.compare(message, one)

    def decision(self) -> Decision:
        at_ms = self.clock() + self.dice.choice([0, 1, 1500, 30_000, 950_000, 50_000_000])
        counts = self.dice.random() < 0.7
        return self.dice.choice([Ack(), RetryAt(at_ms, counts=counts), RetryAt(at_ms), DeadLetter("x", counts=counts)])

    def fault(self) -> Fault | None:
        text = str(self.dice.randrange(10**6))
        return None if self.dice.random() < 0.5 else Fault(Kind.DEFAULT, "E", text, fingerprint="f" * 16)

    def extend(self) -> None:
        held = self.mine()
        words = self.store.extend([one.held.receipt for _, one in held if one.held], lease_ms=90_000)
        assert words == ["held"] * len(held)
        for _, one in held:
            one.due_ms = self.clock() + 90_000

    def redrive(self) -> None:
        dead = [one for one in self.store.peek(Lane.DEAD).messages if self.dice.random() < 0.5]
        wait_ms = self.dice.choice([0, 7000])
        verdict = Redrive(delay_ms=wait_ms)
        assert self.store.triage([message.handle for message in dead], verdict) == [True] * len(dead)
        for message in dead:
            one = self.known[message.id]
            one.lane, one.due_ms = Lane.READY, self.clock() + wait_ms + (wait_ms > 0)
            one.attempt = one.crashes = 0
            one.redrives += 1

    def reopen(self) -> None:
        """As when a process ends and another begins: what it held runs out."""
        self.store.close()
        self.store = self.open()
        for one in self.known.values():
            one.held = None

    def pass_time(self) -> None:
        self.stand.passes(self.dice.choice([0.5, 1, 4, 61, 900, 50_000]))

    def end(self) -> None:
        """All that is not gone comes back in the end, within the days that SQS keeps it."""
        self.stand.passes(50_000)
        for _ in range(10):
            self.claim()
            self.settle()
            self.redrive()
            self.stand.passes(20_000)
        left = [one for one in self.known.values() if one.lane is Lane.READY]
        counts = self.store.counts("default")
        assert counts.ready + counts.scheduled + counts.leased == len(left)


@pytest.mark.parametrize("mode", MODES)
def test_whatever_is_done_each_message_is_what_it_has_been_through(mode: str, soak: bool) -> None:
    seed = os.environ.get("TEST_SEED") or str(random.SystemRandom().randrange(1_000_000))
    for n in range(WALKS * (20 if soak else 1)):
        with Stand() as stand:
            walk = Walk(stand, f"walk{n}", MODES[mode], random.Random(f"{seed}.{n}"))
            try:
                for _ in range(STEPS):
                    walk.step()
                walk.end()
            except AssertionError as error:
                raise AssertionError(f"TEST_SEED={seed}, walk {n}: {error}") from error
            finally:
                walk.store.close()
