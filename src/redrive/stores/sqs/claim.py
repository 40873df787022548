"""Claim messages: received ones become deliveries with their state, under leases that can be extended and lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec.structs import replace

from ...errors import ConfigError, StoreError, StoreUnavailable
from ...message import Cell, ClaimRequest, Delivery, LeaseStatus, Message, Receipt, Settled
from .client import HIDE, BatchJob, EntryRefused, Sqs, run
from .deletes import Deletes
from .in_flight import InFlightMessages
from .queues import QueueDirectory, SqsQueue
from .receive import FRESH_SHARE, Received, Receivers
from .records import Records, is_again
from .settle import Ending, SqsSettling
from .steps import SettleStep, Steps
from .track import RECORDS as TRACKS
from .track import Track, read_record
from .wire import claimed

KEPT_LEASES = 4  # for how many leases a worker without room keeps a message that it cannot give back for nothing
WAITED_MS = 5 * 60_000  # how long Lambda may have held a message for its batch before it called the function


class Claims:
    """Claims messages for one store. `tracked`: each message has a record, which may show that it was cancelled."""

    def __init__(
        self,
        queues: QueueDirectory,
        receivers: Receivers,
        records: Records,
        leases: SqsLeases,
        in_flight: InFlightMessages,
        steps: Steps,
        settling: SqsSettling,
        ending: Ending,
        *,
        tracked: bool,
        now_ms: Callable[[], int],
    ) -> None:
        self._queues, self._receivers, self._records, self._leases = queues, receivers, records, leases
        self._in_flight, self._ending = in_flight, ending
        self._steps, self._settling = steps, settling
        self._tracked, self._now_ms = tracked, now_ms

    def claim(self, placed: Sequence[tuple[ClaimRequest, SqsQueue]], *, patient: bool) -> list[Delivery]:
        """Claim for each request. Raises the first error if there are errors and no delivery."""
        deliveries, errors = list[Delivery](), list[StoreError | ConfigError]()
        for (ask, queue), received in zip(placed, self._receivers.ask(placed, patient=patient), strict=True):
            if received:
                fresh, records = self._known(ask, queue, self._leases.fresh(queue, received, ask.lease_ms), errors)
                heads = self._in_flight.fifo.heads(queue.url, fresh) if queue.fifo else fresh
                deliveries += self._deliver(ask, queue, heads, records)
        if errors and not deliveries:
            raise errors[0]
        return deliveries

    def keep_unclaimed(self) -> None:
        """Let no lease end in the buffers while a worker has no room for what its polls received: that would count as
        an attempt or a crash. With cells the messages go back, for other workers: that costs no attempt then. Without,
        and in FIFO queues, where each receive brings a message closer to its death, their leases are renewed first,
        KEPT_LEASES times at most."""
        now = self._now_ms()
        for queue, received, lease_ms in self._receivers.unclaimed(now):
            is_late = any(now - one.at_ms >= KEPT_LEASES * lease_ms for one in received)
            if is_late or (self._records.keeps and not queue.fifo):
                self._receivers.give_back(queue, received)
            else:
                self._receivers.put_back(queue, self._leases.renewed(queue, received, lease_ms))

    def take(self, ask: ClaimRequest, queue: SqsQueue, received: Sequence[Received]) -> list[Delivery]:
        """Claim all of these messages, even those received long ago or behind others of their groups."""
        return self._deliver(ask, queue, received, self._records_of(ask, received))

    def _records_of(self, ask: ClaimRequest, received: Sequence[Received]) -> dict[str, Cell]:
        return self._records.of(received, ask.queue if self._tracked else None)

    def _known(
        self, ask: ClaimRequest, queue: SqsQueue, received: Sequence[Received], errors: list[StoreError | ConfigError]
    ) -> tuple[Sequence[Received], dict[str, Cell]]:
        """The messages that can be delivered now, and their records. If records are unreadable, messages that need
        theirs wait for the next claim; in a FIFO queue all wait, to keep the order."""
        try:
            records = self._records_of(ask, received)
            if any(is_again(one) for one in received):
                self._queues.bounds(queue)
        except (StoreError, ConfigError) as error:
            errors.append(error)
            all_late = queue.fifo or self._tracked
            late = [one for one in received if all_late or is_again(one)]
            self._receivers.put_back(queue, late, first=queue.fifo)
            return [one for one in received if not all_late and not is_again(one)], {}
        return received, records

    def _deliver(
        self, ask: ClaimRequest, queue: SqsQueue, received: Sequence[Received], records: dict[str, Cell]
    ) -> list[Delivery]:
        now, deliveries, hops = self._now_ms(), list[Delivery](), list[SettleStep]()
        in_flight = self._in_flight
        for one in received:
            held = self._records.held(queue, one, ask, records.get(one.raw["MessageId"]))
            if held.receives > 1:
                in_flight.drop_earlier(held.sqs_id)
            track = records.get(TRACKS + held.message.id) if self._tracked else None
            if track is not None and read_record(track.value).cancel:
                hops.append(self._steps.dropped(held))
                continue
            due_ms = held.state.due_ms or 0
            if due_ms > now:
                hops.append(self._steps.early(held, due_ms))
                continue
            message = claimed(
                held.message, held.state, ask, receives=held.receives, counts_all=self._steps.counts_all,
                until_ms=held.until_ms,
            )  # fmt: skip
            if self._steps.is_last(held):
                hops.append(self._steps.fresh_copy(held, message))
                continue
            held.message = message
            if held.receives > 1:
                in_flight.show(held.sqs_id)
            receipt = Receipt(held.handle, held.message.fence)
            with in_flight.lock:
                in_flight.held[receipt] = held
            deliveries.append(Delivery(held.message, receipt, held.until_ms, due_ms or _due_ms(message)))
        if hops:
            self._hop(hops)
        return deliveries

    def _hop(self, steps: Sequence[SettleStep]) -> None:
        """Send the copies or hide the messages of these steps. After a failure SQS delivers the message again."""
        self._settling.send(steps)
        self._settling.keep(steps)
        self._settling.members.count(steps)
        done = [step for step in steps if step.error is None and step.word is Settled.OK]
        self._ending.leave([step.held for step in steps if step not in done])
        self._ending.end(done)


class SqsLeases:
    """The leases of one store: a lease is the time for which SQS hides a message. SQS reports lost ones on renewal."""

    def __init__(
        self,
        sqs: Sqs,
        in_flight: InFlightMessages,
        records: Records,
        steps: Steps,
        ending: Ending,
        *,
        track: Track | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._sqs, self._in_flight, self._records = sqs, in_flight, records
        self._steps, self._ending, self._track, self._now_ms = steps, ending, track, now_ms

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool) -> list[LeaseStatus]:
        now, words, held_by = self._now_ms(), [LeaseStatus.HELD] * len(receipts), self._in_flight.held
        jobs: dict[str, tuple[BatchJob, list[int]]] = {}
        for at, receipt in enumerate(receipts):
            held = held_by.get(receipt)
            if held is None and self._steps.ended(receipt) is not None:
                continue  # the message is settled; only the worker repeats its whole call
            seconds = 0 if held is None else min(math.ceil(lease_ms / 1000), held.stays_s(now))
            if held is None or (held.until_ms <= now and seconds <= 0):
                words[at] = LeaseStatus.LOST
                continue
            if alone:
                self._records.mark_alone(held)
            if seconds > 0:
                job, mine = jobs.setdefault(held.queue.url, (BatchJob(HIDE, held.queue.url, []), []))
                job.entries.append({"ReceiptHandle": held.handle, "VisibilityTimeout": seconds})
                mine.append(at)
                if held.group is not None:  # extend the messages waiting behind this one in its group too, best effort
                    more = [one.raw["ReceiptHandle"] for one in self._in_flight.fifo.behind(held.group)]
                    if all(self._hide_for(held.queue, more, seconds)):
                        self._in_flight.fifo.renewed(held.group, now + seconds * 1000)
        run(self._sqs, [job for job, _ in jobs.values()])
        for job, mine in jobs.values():
            for at, entry, error in zip(mine, job.entries, job.answers, strict=True):
                if error is None:
                    held = held_by[receipts[at]]
                    held.until_ms = now + entry["VisibilityTimeout"] * 1000
                    held.message = replace(held.message, due_ms=held.until_ms)
                elif not isinstance(error, EntryRefused):
                    raise StoreUnavailable(str(error)) from error
                else:
                    words[at] = LeaseStatus.LOST
        self._lose([receipt for receipt, word in zip(receipts, words, strict=True) if word is LeaseStatus.LOST])
        if self._track is not None:
            held_now = [(at, held_by.get(receipts[at])) for at, word in enumerate(words) if word is LeaseStatus.HELD]
            ids = {at: held.message.id for at, held in held_now if held is not None}
            asked = self._track.asked([*ids.values()])
            words = [LeaseStatus.CANCEL if ids.get(at) in asked else word for at, word in enumerate(words)]
        return words

    def _lose(self, receipts: Sequence[Receipt]) -> None:
        lost = self._in_flight.drop(receipts)
        for receipt in receipts:
            self._steps.forget(receipt)
        self._ending.leave(lost)

    def fresh(self, queue: SqsQueue, received: Sequence[Received], lease_ms: int) -> Sequence[Received]:
        """Drop messages whose lease ran out in the buffer, and renew the leases of the rest if one has waited long."""
        now = self._now_ms()
        if all(one.until_ms - now > FRESH_SHARE * lease_ms for one in received):
            return received
        return [one for one in self.renewed(queue, received, lease_ms) if one.until_ms >= now + lease_ms]

    def renewed(self, queue: SqsQueue, received: Sequence[Received], lease_ms: int) -> list[Received]:
        """Renew the leases of buffered messages. Drops those whose lease ran out; one that SQS does not renew keeps its
        lease."""
        now, seconds = self._now_ms(), max(1, math.ceil(lease_ms / 1000))
        alive = [one for one in received if one.until_ms > now]
        hidden = self._hide_for(queue, [one.raw["ReceiptHandle"] for one in alive], seconds)
        lines = zip(alive, hidden, strict=True)
        return [Received(one.raw, one.at_ms, now + seconds * 1000) if ok else one for one, ok in lines]

    def _hide_for(self, queue: SqsQueue, handles: Sequence[str], seconds: int) -> list[bool]:
        """Hide the messages with these SQS receipts for `seconds` from now; returns True for each success."""
        job = BatchJob(HIDE, queue.url, [{"ReceiptHandle": handle, "VisibilityTimeout": seconds} for handle in handles])
        run(self._sqs, [job])
        return [error is None for error in job.answers]


class Adopting:
    """Claims messages that Lambda received for a function, and leaves their deletion to Lambda."""

    def __init__(
        self,
        queues: QueueDirectory,
        claims: Claims,
        in_flight: InFlightMessages,
        receivers: Receivers,
        deletes: Deletes,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._queues, self._claims, self._in_flight = queues, claims, in_flight
        self._receivers, self._deletes, self._now_ms = receivers, deletes, now_ms

    def adopt(self, queue: str, raws: Sequence[dict[str, Any]], *, lease_ms: int, worker: str) -> list[Delivery]:
        """Claim messages that Lambda received and SQS hides for `lease_ms`.

        They are settled like any others, except that none is deleted: `let_go` returns those that Lambda may delete. A
        message that is not due yet is hidden again and not among the deliveries.
        """
        sqs_queue, now = self._queues.of(queue), self._now_ms()
        self._deletes.adopt([raw["ReceiptHandle"] for raw in raws])
        self._receivers.received += len(raws)
        ask = ClaimRequest(queue, len(raws), lease_ms, worker=worker)
        received = [Received(raw, now - WAITED_MS, now + lease_ms) for raw in raws]
        return self._claims.take(ask, sqs_queue, received)

    def let_go(self, handles: Collection[str]) -> set[str]:
        """Forget these adopted messages; returns the SQS receipts of the settled ones, which Lambda may delete."""
        self._deletes.flush()
        done = {end.handle for end in self._deletes.over(handles)}
        self._deletes.forget(handles)
        self._in_flight.drop_handles(handles)
        return done

    def delete(self, handles: Collection[str]) -> set[str]:
        """Delete those of these messages that are settled, and return their SQS receipts. The others stay adopted."""
        ends = self._deletes.over(handles)
        self._deletes.end(ends, last=True)
        return {end.handle for end in ends}


def _due_ms(message: Message) -> int:
    """When a message that SQS delayed was due: a retry by its last fault, any other when its life began."""
    fault = message.faults[-1] if message.faults and message.faults[-1].at_ms >= message.life_ms else None
    due_ms: int = message.life_ms if fault is None else fault.at_ms + (fault.delay_ms or 0)
    return due_ms
