"""Random walks over the SQS store: consumers that put, claim, settle and die, on a stand-in that fails in many ways.

What must hold of each message, whatever happened: it is done or dead in the end, never lost; it never runs before its
time; dead it is one row. That it is done twice needs a reason: a consumer that died, or an answer that was lost.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress

import pytest

from redrive.errors import StoreError
from redrive.fault import Fault, Kind
from redrive.message import Ack, Ask, DeadLetter, Delivery, Draft, Lane, RetryAt, Settled, Settlement
from redrive.stores.memory import MemoryStore
from redrive.stores.sqs import SqsStore
from redrive.testing.clock import ManualClock
from redrive.testing.sqs import SqsServer

FAULT = Fault(kind=Kind.TRANSIENT, error="ConnectionError", text="refused", fingerprint="a" * 16)
ACTIONS = ("SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch")
LEASE_MS = 30_000
WAITS_S = (0, 1, 20, 1000, 4000)


class Walk:
    """One walk: what was done, and what is known of each message."""

    def __init__(self, seed: int, options: str, cells: bool) -> None:
        self.chance, self.clock = random.Random(seed), ManualClock()
        self.server, self.options, self.cells = SqsServer(self.clock), options, cells
        self.triage, self.shared = MemoryStore(self.clock), MemoryStore(self.clock)
        self.stores: list[SqsStore] = []
        self.held: list[tuple[SqsStore, Delivery]] = []
        self.owed: list[tuple[SqsStore, list[Settlement]]] = []  # calls that failed, to be repeated
        self.due: dict[str, int] = {}  # not to run before
        self.done: Counter[str] = Counter()
        self.reasons = 0  # why something may be done twice
        self.calm = self.chance.random() < 0.4  # nothing fails, and every lease is renewed

    def open(self) -> SqsStore:
        url = f"sqs://eu-central-1/shop?create=true&poll=0&endpoint={self.server.url}{self.options}"
        cells = Unclosed(self.shared) if self.cells else None
        self.stores.append(SqsStore(url, clock_ms=self.clock, cells=cells, triage=Unclosed(self.triage)))  # type: ignore[arg-type]
        return self.stores[-1]

    def step(self) -> None:
        move = self.chance.choices(
            [self.put, self.claim, self.settle, self.pass_time, self.renew, self.fail, self.die, self.repeat],
            [3, 6, 6, 4, 1, *((0, 0) if self.calm else (1, 0.3)), 2],
        )[0]
        move()

    def put(self) -> None:
        drafts = [
            Draft(task="push", id=None, delay_ms=1000 * self.chance.choice(WAITS_S))
            for _ in range(self.chance.randint(1, 12))
        ]
        now = self.clock()
        try:
            puts = self.chance.choice(self.stores).put(drafts)
        except StoreError:
            return  # some may be there: they come to light as they run
        for draft, done in zip(drafts, puts, strict=True):
            self.due[done.id] = now + draft.delay_ms

    def claim(self) -> None:
        store = self.chance.choice(self.stores)
        try:
            found = store.exchange([], [Ask("default", self.chance.randint(1, 12), LEASE_MS, worker="w")]).deliveries
        except StoreError:
            return
        for delivery in found:
            id = delivery.message.id
            assert self.clock() >= self.due.setdefault(id, 0), f"{id} ran {self.due[id] - self.clock()} ms early"
        self.held += [(store, delivery) for delivery in found]

    def settle(self) -> None:
        if not self.held:
            return
        store = self.chance.choice(self.held)[0]
        mine = [one for one in self.held if one[0] is store][: self.chance.randint(1, 8)]
        self.held = [one for one in self.held if one not in mine]
        self._exchange(store, [self._decided(delivery) for _, delivery in mine])

    def _decided(self, delivery: Delivery) -> Settlement:
        kind = self.chance.choices(["ack", "retry", "free", "dead"], [4, 3, 1, 1])[0]
        if kind == "ack":
            return Settlement(delivery.receipt, Ack())
        if kind == "dead":
            return Settlement(delivery.receipt, DeadLetter("exhausted"), FAULT)
        at_ms = self.clock() + 1000 * self.chance.choice(WAITS_S)
        return Settlement(delivery.receipt, RetryAt(at_ms, counts=kind == "retry", held=kind == "free"), FAULT)

    def _exchange(self, store: SqsStore, settlements: list[Settlement]) -> None:
        ids = {receipt: held.message.id for receipt, held in store._held.items()}
        try:
            words = store.exchange(settlements, []).settled
        except StoreError:
            self.owed.append((store, settlements))
            return
        for settlement, word in zip(settlements, words, strict=True):
            if word is Settled.OK:
                self._settled(ids[settlement.receipt], settlement)

    def _settled(self, id: str, settlement: Settlement) -> None:
        if isinstance(settlement.decision, Ack):
            self.done[id] += 1
        elif isinstance(settlement.decision, RetryAt) and not self.reasons:
            self.due[id] = settlement.decision.at_ms

    def repeat(self) -> None:
        if self.owed:
            self._exchange(*self.owed.pop(0))

    def renew(self) -> None:
        for store in self.stores:
            receipts = [delivery.receipt for of, delivery in self.held if of is store]
            with suppress(StoreError):
                store.extend(receipts, lease_ms=LEASE_MS)

    def pass_time(self) -> None:
        if not self.calm and self.chance.random() < 0.1:
            self.reasons += 1  # leases run out
            self.clock.advance(LEASE_MS / 1000 + 1)
        else:
            self.clock.advance(self.chance.choice([1, 5]))
            self.renew()

    def fail(self) -> None:
        self.reasons += 1
        faults = self.server.faults
        how = self.chance.choice(
            [faults.throttle, faults.fail, faults.lose_answer, faults.lose_call, faults.fail_entries]
        )
        how(self.chance.choice(ACTIONS), self.chance.randint(1, 6))

    def die(self) -> None:
        """A consumer is gone, with all that it held, and another begins."""
        self.reasons += 1
        gone = self.stores.pop(self.chance.randrange(len(self.stores)))
        self.held = [one for one in self.held if one[0] is not gone]
        self.owed = [one for one in self.owed if one[0] is not gone]
        gone._tail._left.clear()  # what lingered goes with it
        gone._tail.close()
        gone._receivers.drop()
        self.open()

    def finish(self) -> None:
        """All is well again: everything comes to its end."""
        self.server.faults.clear()
        while self.owed:
            self.repeat()
        for _ in range(60):
            while self.held:
                store, delivery = self.held.pop()
                self._exchange(store, [Settlement(delivery.receipt, Ack())])
            for store in self.stores:
                store._tail.flush()
            self.clock.advance(450)
            self.claim()
        assert not self.held, "messages went on coming"

    def check(self) -> None:
        dead = [message.id for message in self.triage.peek(Lane.DEAD, limit=10_000).messages]
        assert len(dead) == len(set(dead))
        queue = self.server.account.queues["shop-default-dlq"]
        taken = {json.loads(message.body)["id"] for message in queue.messages.values()}
        assert not taken or not self.calm, "SQS took messages away"  # where receives failed it may
        lost = [id for id in self.due if not self.done[id] and id not in dead and id not in taken]
        assert not lost, f"lost: {lost}"
        if not self.reasons:
            assert all(count == 1 for count in self.done.values())


class Unclosed:
    """A store or its cells, for several handles, none of which closes it."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store.cells if name in ("read", "swap") else self._store, name)

    def close(self) -> None:
        pass


MODES = {
    "visibility with cells": ("", True),
    "visibility without": ("", False),
    "requeue": ("&mode=requeue", False),
    "three receives": ("&mode=requeue&max_receives=3", True),
}


@pytest.mark.parametrize("mode", MODES)
def test_no_message_is_lost_or_early_whatever_fails(mode: str, seed: int) -> None:
    _walk(mode, seed, steps=100)


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
def test_no_message_is_lost_or_early_in_many_long_walks(mode: str, seed: int) -> None:
    for turn in range(40):
        _walk(mode, seed + turn, steps=400)


def _walk(mode: str, seed: int, *, steps: int) -> None:
    print(f"seed {seed}")
    walk = Walk(seed, *MODES[mode])
    with walk.server:
        for _ in range(2):
            walk.open()
        for _ in range(steps):
            walk.step()
        walk.finish()
        walk.check()
        for store in walk.stores:
            store.close()
