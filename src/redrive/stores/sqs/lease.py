"""Leases in SQS: for how long a message is hidden. They are renewed, and lost where SQS says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ...errors import StoreUnavailable
from ...message import Hold, Receipt
from .batches import EntryRefused, Job, run
from .client import Sqs
from .deletes import HIDE
from .end import Ending
from .fifo import Order
from .in_flight import Holding
from .queues import Place
from .receive import Received
from .records import Records
from .settle import Settling
from .track import Track

FRESH_SHARE = 0.5  # of a lease: what waited here longer is hidden anew before it is handed out


class Leases:
    """The leases of one store. `track`: with `track=true`."""

    def __init__(
        self,
        sqs: Sqs,
        holding: Holding,
        order: Order,
        records: Records,
        settling: Settling,
        ending: Ending,
        *,
        track: Track | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._sqs, self._holding, self._order, self._records = sqs, holding, order, records
        self._settling, self._ending, self._track, self._now_ms = settling, ending, track, now_ms

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool) -> list[Hold]:
        """As `Store.extend`."""
        now, words, held_by = self._now_ms(), [Hold.HELD] * len(receipts), self._holding.held
        jobs: dict[str, tuple[Job, list[int]]] = {}
        for at, receipt in enumerate(receipts):
            held = held_by.get(receipt)
            if held is None and self._settling.ended(receipt) is not None:
                continue  # the rest of its call is tried again, and it has nothing left to do
            seconds = 0 if held is None else min(math.ceil(lease_ms / 1000), held.stays_s(now))
            if held is None or (held.until_ms <= now and seconds <= 0):
                words[at] = Hold.LOST
                continue
            if alone:
                self._records.mark_alone(held)
            if seconds > 0:
                job, mine = jobs.setdefault(held.place.url, (Job(HIDE, held.place.url, []), []))
                job.entries.append({"ReceiptHandle": held.handle, "VisibilityTimeout": seconds})
                mine.append(at)
                if held.group is not None:  # those behind it stay with it, which nothing depends on
                    more = [one.raw["ReceiptHandle"] for one in self._order.behind(held.group)]
                    if all(self._hide_for(held.place, more, seconds)):
                        self._order.renewed(held.group, now + seconds * 1000)
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
                    words[at] = Hold.LOST
        self._lose([receipt for receipt, word in zip(receipts, words, strict=True) if word is Hold.LOST])
        if self._track is not None:
            held_now = [(at, held_by.get(receipts[at])) for at, word in enumerate(words) if word is Hold.HELD]
            ids = {at: held.message.id for at, held in held_now if held is not None}
            asked = self._track.asked([*ids.values()])
            words = [Hold.CANCEL if ids.get(at) in asked else word for at, word in enumerate(words)]
        return words

    def _lose(self, receipts: Sequence[Receipt]) -> None:
        lost = self._holding.drop(receipts)
        for receipt in receipts:
            self._settling.forget(receipt)
        self._ending.leave(lost)

    def fresh(self, place: Place, received: Sequence[Received]) -> Sequence[Received]:
        """Without those whose lease ran out here, and with new leases for those that waited long."""
        now = self._now_ms()
        if all(one.until_ms - now > FRESH_SHARE * (one.until_ms - one.at_ms) for one in received):
            return received
        alive = [one for one in received if one.until_ms > now]
        lease_ms = max((one.until_ms - one.at_ms for one in alive), default=0)
        hidden = self._hide_for(place, [one.raw["ReceiptHandle"] for one in alive], math.ceil(lease_ms / 1000))
        return [Received(one.raw, one.at_ms, now + lease_ms) for one, ok in zip(alive, hidden, strict=True) if ok]

    def _hide_for(self, place: Place, handles: Sequence[str], seconds: int) -> list[bool]:
        """Hide these so much longer; whether each is."""
        job = Job(HIDE, place.url, [{"ReceiptHandle": handle, "VisibilityTimeout": seconds} for handle in handles])
        run(self._sqs, [job])
        return [error is None for error in job.answers]
