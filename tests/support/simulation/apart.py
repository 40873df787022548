"""The same, where what waits and runs lies apart from what rests, and cannot be looked up there: in a queue as SQS is
one, at least once and without receipts that fence, with a triage store beside it. The outbox, the way in and the
runs are the real ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace
from tests.support.simulation.interleaved import BAD, Books, Interleaved

from redrive.errors import ConfigError, StoreUnavailable
from redrive.fault import Fault, Kind
from redrive.message import (
    Ack,
    ClaimRequest,
    Counts,
    DeadLetter,
    Delivery,
    Draft,
    Exchange,
    Handle,
    Lane,
    Message,
    PutResult,
    Receipt,
    RetryAt,
    Settlement,
    Swap,
    Verdict,
)
from redrive.stores.lifecycle import rested
from redrive.stores.sqs.outbox import Outbox, bury
from redrive.testing.clock import ManualClock
from redrive.worker import redrive_outcome

NATIVE = Fault(Kind.CRASHED, "ReceivedTooOften", "received too often", "f-native")


class Apart:
    """What runs see of such a store; `copies` lie in its queue, by number."""

    def __init__(self, clock: ManualClock) -> None:
        self.resting = Books(clock)
        self.traits = replace(
            self.resting.traits, name="apart", finds=False, cancels=False, fenced=False, atomic_moves=False
        )
        self.cells, self.now_ms, self.peek, self.check = (
            self.resting.cells, self.resting.now_ms, self.resting.peek, self.resting.check,
        )  # fmt: skip
        self.moved, self.returned = self.resting.moved, self.resting.returned
        self.copies: dict[int, Message] = {}
        self.leased: set[int] = set()
        self.sent: Counter[tuple[str, int]] = Counter()  # by message and redrives
        self.acked: set[str] = set()
        self._number = 0

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        return self.resting.find(ids)

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        return self.resting.triage(handles, verdict, swaps=swaps)

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = ()) -> list[PutResult]:
        return self.resting.put(drafts, swaps=swaps)

    def exchange(self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest]) -> Exchange:
        """Only to begin with: what is dead when the runs begin died in the triage store."""
        return self.resting.exchange(settlements, asks)

    def counts(self, queue: str | None = None) -> Counts:
        found = self.resting.counts(queue)
        return replace(found, ready=found.ready + len(self.copies) - len(self.leased), leased=found.leased)

    def send(self, messages: Sequence[Message]) -> list[Exception | None]:
        for message in messages:
            self._number += 1
            self.copies[self._number] = message
            self.sent[message.id, message.redrives] += 1
        return [None] * len(messages)

    def claim(self, limit: int) -> list[Delivery]:
        numbers = [number for number in self.copies if number not in self.leased][:limit]
        self.leased.update(numbers)
        found = []
        for number in numbers:
            message = replace(self.copies[number], lane=Lane.LEASED)
            message = replace(message, attempt=message.attempt + 1, fence=message.fence + 1)
            found.append(Delivery(message, Receipt(number, message.fence), 0))
        return found


class InterleavedApart(Interleaved):
    """With a pump and a worker that may be killed between any two of the steps of theirs."""

    store: Any

    def __init__(self, seed: int, **words: Any) -> None:
        self.doubtful: set[tuple[str, str]] = set()  # run and message: died, and was delivered once more all the same
        self.again: set[str] = set()  # judged, and delivered once more all the same
        self.native: set[tuple[str, str]] = set()  # died of what no worker settled
        super().__init__(seed, **words)

    def _make_store(self) -> Any:
        return Apart(self.clock)

    def _carry(self) -> None:
        super()._carry()
        word = self.rng.random()
        if word < 0.3:
            self._pump()
        elif word < 0.33:
            self._dies_unsettled()

    def _pump(self) -> None:
        """By a process of its own each time, which may be killed, or not hear the answer, or be refused some."""
        word = self.rng.random()

        def send(messages: Sequence[Message]) -> list[Exception | None]:
            if word < 0.1:
                some = messages[: self.rng.randrange(len(messages) + 1)]
                self.store.send(some)
                raise StoreUnavailable("nobody knows") if word < 0.05 else _Killed
            if word < 0.2:
                words = [self.rng.choice([None, None, ConfigError("no"), StoreUnavailable("no")]) for _ in messages]
                self.store.send([message for message, word in zip(messages, words, strict=True) if word is None])
                return words
            return self.store.send(messages)  # type: ignore[no-any-return]

        with suppress(_Killed):
            Outbox(self.store.resting, send).pump(self.rng.choice([1, 5, 100]))

    def _claim(self, limit: int) -> list[Delivery]:
        if not hasattr(self, "runs"):
            return list(self.store.resting.exchange([], [ClaimRequest("default", limit, 10**9)]).deliveries)
        return list(self.store.claim(limit))

    def _settle(self, delivery: Delivery) -> None:
        self._held = [other for other in self._held if other is not delivery]
        now_ms, message, number = self.store.now_ms(), delivery.message, int(delivery.receipt.handle)
        decision = self.rng.choice(
            [Ack(), Ack(), DeadLetter("exhausted"), RetryAt(now_ms + 50), RetryAt(now_ms, counts=False)]
        )
        settlement = Settlement(delivery.receipt, decision, None if isinstance(decision, Ack) else BAD)
        settlement = redrive_outcome.with_redrive_outcome(message, settlement, now_ms)
        killed_at = self.rng.choice([0, 1, 2]) if self.rng.random() < 0.1 else None
        after = replace(message, lane=Lane.READY, faults=(*message.faults, BAD))
        self.store.leased.discard(number)
        if killed_at == 0:
            self.store.copies[number] = replace(message, attempt=message.attempt - 1, crashes=message.crashes + 1)
            return
        if isinstance(decision, DeadLetter):
            if bury(self.store.resting, [rested(after, Lane.DEAD, decision.reason, now_ms)]) != [True]:
                return  # it is delivered again
            if killed_at == 1:
                self._doubt(message)
                return
        self._judge(message, settlement)
        if killed_at == 2:
            self.again.add(message.id)
            if isinstance(decision, DeadLetter):
                self._doubt(message)
            return
        if isinstance(decision, RetryAt):
            spared = 0 if decision.counts else 1
            self.store.copies[number] = replace(after, attempt=message.attempt - spared)
            return
        if isinstance(decision, Ack):
            self.store.acked.add(message.id)
        del self.store.copies[number]

    def _doubt(self, message: Message) -> None:
        if message.run is not None:
            self.doubtful.add((message.run, message.id))

    def _judge(self, message: Message, settlement: Settlement) -> None:
        for swap in settlement.swaps:
            assert message.run is not None
            assert swap.value is not None
            [told] = self.store.cells.swap([swap])  # a duplicate's is told already, and is no harm
            if told:
                self.verdicts.setdefault((message.run, message.id), redrive_outcome.decode(swap.value).outcome)

    def _dies_unsettled(self) -> None:
        """Of the queue's own bound on receives; somebody finds it in the dead-letter queue."""
        free = [number for number in self.store.copies if number not in self.store.leased]
        if not free:
            return
        number = self.rng.choice(free)
        message = self.store.copies[number]
        died = rested(replace(message, faults=(*message.faults, NATIVE)), Lane.DEAD, "exhausted", self.store.now_ms())
        swap = redrive_outcome.swap_of_dead(died) if died.attempt == 0 else None
        if swap is not None and message.run is not None and self.store.cells.swap([swap]) == [True]:
            self.verdicts.setdefault((message.run, message.id), redrive_outcome.FAILED)
        if self.rng.random() < 0.1:
            self.again.add(message.id)
            return  # killed: somebody finds it again, if it is not delivered again before
        if bury(self.store.resting, [died]) == [True]:
            del self.store.copies[number]
            self.native.add((message.run or "", message.id))

    def _cancel(self, id: str) -> None:
        """What waits cannot be cancelled there."""

    def _keep_up(self) -> None:
        Outbox(self.store.resting, self.store.send).pump(10_000)

    def _waiting(self) -> int:
        counts = self.store.counts()
        return int(counts.waiting)


class _Killed(BaseException):
    """The pump's process ends."""
