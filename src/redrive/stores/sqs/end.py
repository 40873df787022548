"""The end of a step: its message is held no more, and is deleted or hidden; of a FIFO queue, its group goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...message import Receipt, Settled
from .adopted import Adopted
from .deletes import End, Tail
from .fifo import Order
from .in_flight import Held, Holding
from .receive import Receivers
from .records import Records
from .settle import Settling, Step


class Ending:
    """How steps end in one store. `at_once`: all that can be done is done before a call returns."""

    def __init__(
        self,
        settling: Settling,
        holding: Holding,
        order: Order,
        records: Records,
        receivers: Receivers,
        tail: Tail,
        adopted: Adopted,
        *,
        at_once: bool,
        now_ms: Callable[[], int],
        seam: Callable[[str], None],
    ) -> None:
        self._settling, self._holding, self._order, self._records = settling, holding, order, records
        self._receivers, self._tail, self._adopted = receivers, tail, adopted
        self._at_once, self._now_ms, self._seam = at_once, now_ms, seam
        self.processed = 0  # messages that left their queue for good

    def end(self, steps: Sequence[Step], pairs: Sequence[tuple[Receipt, Step | None]] = ()) -> None:
        """Delete or hide what these steps settled. `pairs`: the receipts of the call, to be forgotten but where a step
        failed."""
        now, holding = self._now_ms(), self._holding
        with holding.lock:
            for receipt, step in pairs:
                if step is None or (step.error is None and step.word is Settled.OK):
                    holding.held.pop(receipt, None)
                self._settling.forget(receipt)
        last = self._at_once or not holding.is_working(now)
        holding.hide([(step.held, step.hide_until_ms) for step in steps if step.hide_until_ms is not None], now)
        self.processed += sum(step.is_over for step in steps)
        back = self._next_in_groups(steps)
        self._seam("end")
        self._tail.end([*self._adopted.without_deletes([_end(step, now) for step in steps]), *back], last=last)
        self._seam("ended")

    def _next_in_groups(self, steps: Sequence[Step]) -> list[End]:
        """Of FIFO queues: those behind a message that is done with come next, those behind one that will come again go
        back."""
        back: list[End] = []
        for step in steps:
            held = step.held
            if held.group is not None:
                waiting = self._order.over(held.group)
                self._receivers.stir(held.place)
                if step.hide_until_ms is None:
                    self._receivers.put_back(held.place, waiting)
                else:
                    back += self._records.given_back(held.place, waiting)
        return back

    def leave(self, left: Sequence[Held]) -> None:
        """These come again when their lease ends, and in FIFO queues those behind them after them."""
        for held in left:
            if held.group is not None:
                self._tail.end(self._records.given_back(held.place, self._order.over(held.group)), last=False)


def _end(step: Step, now: int) -> End:
    held = step.held
    most_s = max(0, held.stays_s(now))
    return End(held.place.url, held.handle, held.until_ms, step.hide_until_ms, most_s)
