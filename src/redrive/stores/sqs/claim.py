"""A claim: what was received becomes deliveries, each with its state, or goes on waiting where it may not run now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import ConfigError, StoreError
from ...message import Ask, Cell, Delivery, Receipt, Settled
from .end import Ending
from .fifo import Order
from .in_flight import Holding
from .lease import Leases
from .message_state import claimed
from .queues import Place, Queues
from .receive import Received, Receivers
from .records import Records, is_again
from .settle import Settling, Step
from .track import RECORDS as TRACKS
from .track import read_record


class Claims:
    """The claims of one store. `tracked`: whether there is a record of each message, by which it may be cancelled."""

    def __init__(
        self,
        places: Queues,
        receivers: Receivers,
        records: Records,
        leases: Leases,
        order: Order,
        holding: Holding,
        settling: Settling,
        ending: Ending,
        *,
        tracked: bool,
        now_ms: Callable[[], int],
    ) -> None:
        self._places, self._receivers, self._records, self._leases = places, receivers, records, leases
        self._order, self._holding, self._settling, self._ending = order, holding, settling, ending
        self._tracked, self._now_ms = tracked, now_ms

    def claim(self, placed: Sequence[tuple[Ask, Place]], *, patient: bool) -> list[Delivery]:
        """What there is for each ask. Raises what is in the way, where nothing came."""
        deliveries, errors = list[Delivery](), list[StoreError | ConfigError]()
        for (ask, place), received in zip(placed, self._receivers.ask(placed, patient=patient), strict=True):
            if received:
                fresh, records = self._known(ask, place, self._leases.fresh(place, received), errors)
                heads = self._order.heads(place.url, fresh) if place.fifo else fresh
                deliveries += self._deliver(ask, place, heads, records)
        if errors and not deliveries:
            raise errors[0]
        return deliveries

    def take(self, ask: Ask, place: Place, received: Sequence[Received]) -> list[Delivery]:
        """Claim all of these, however long they waited and whatever runs of their groups."""
        return self._deliver(ask, place, received, self._records_of(ask, received))

    def _records_of(self, ask: Ask, received: Sequence[Received]) -> dict[str, Cell]:
        return self._records.of(received, ask.queue if self._tracked else None)

    def _known(
        self, ask: Ask, place: Place, received: Sequence[Received], errors: list[StoreError | ConfigError]
    ) -> tuple[Sequence[Received], dict[str, Cell]]:
        """Those of which all is known that it takes to deliver them, and their records. The others wait here for the
        next claim; of a FIFO queue all, as they have an order."""
        try:
            records = self._records_of(ask, received)
            if any(is_again(one) for one in received):
                self._places.bounds(place)
        except (StoreError, ConfigError) as error:
            errors.append(error)
            all_late = place.fifo or self._tracked
            late = [one for one in received if all_late or is_again(one)]
            self._receivers.put_back(place, late, first=place.fifo)
            return [one for one in received if not all_late and not is_again(one)], {}
        return received, records

    def _deliver(
        self, ask: Ask, place: Place, received: Sequence[Received], records: dict[str, Cell]
    ) -> list[Delivery]:
        now, deliveries, hops = self._now_ms(), list[Delivery](), list[Step]()
        holding = self._holding
        for one in received:
            held = self._records.held(place, one, ask, records.get(one.raw["MessageId"]))
            if held.receives > 1:
                holding.drop_earlier(held.sqs_id)
            track = records.get(TRACKS + held.message.id) if self._tracked else None
            if track is not None and read_record(track.value).cancel:
                hops.append(self._settling.dropped(held))
                continue
            due_ms = held.kept.due_ms or 0
            if due_ms > now:
                hops.append(self._settling.early(held, due_ms))
                continue
            message = claimed(
                held.message, held.kept, ask, receives=held.receives, counts_all=self._settling.counts_all,
                until_ms=held.until_ms,
            )  # fmt: skip
            if self._settling.is_last(held):
                hops.append(self._settling.anew(held, message))
                continue
            held.message = message
            if held.receives > 1:
                holding.show(held.sqs_id)
            receipt = Receipt(held.handle, held.message.fence)
            with holding.lock:
                holding.held[receipt] = held
            deliveries.append(Delivery(held.message, receipt, held.until_ms))
        if hops:
            self._hop(hops)
        return deliveries

    def _hop(self, steps: Sequence[Step]) -> None:
        """What fails comes back when its visibility ends, and hops then."""
        self._settling.send(steps)
        self._settling.keep(steps)
        done = [step for step in steps if step.error is None and step.word is Settled.OK]
        self._ending.leave([step.held for step in steps if step not in done])
        self._ending.end(done)
