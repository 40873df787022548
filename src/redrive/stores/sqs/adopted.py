"""Messages of SQS that somebody else received, and deletes when they are told to: Lambda, for a function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from ...message import Ask, Delivery
from .deletes import End, Tail
from .receive import Received, Receivers

if TYPE_CHECKING:
    from .claim import Claims
    from .in_flight import Holding
    from .queues import Queues

WAITED_MS = 5 * 60_000  # for so long a message may have been gathered with others before it was handed over


class Adopted:
    """The receipt handles of what was taken in, and which of it is to be deleted."""

    def __init__(self) -> None:
        self._handles = set[str]()
        self._over = dict[str, End]()

    def add(self, handles: Collection[str]) -> None:
        self._handles.update(handles)

    def without_deletes(self, ends: Sequence[End]) -> Sequence[End]:
        """What is to be done here; the deletes of adopted ones are left to whoever received them."""
        if not self._handles:
            return ends
        left = {end.handle: end for end in ends if end.until_ms is None and end.handle in self._handles}
        self._over |= left
        return [end for end in ends if end.handle not in left]

    def over(self, handles: Collection[str]) -> list[End]:
        """The deletes of these that were left so far."""
        found = [self._over.pop(handle) for handle in handles if handle in self._over]
        self._handles.difference_update(end.handle for end in found)
        return found

    def forget(self, handles: Collection[str]) -> None:
        self._handles.difference_update(handles)


class Adopting:
    """Takes messages in, and lets them go."""

    def __init__(
        self,
        adopted: Adopted,
        places: Queues,
        claims: Claims,
        holding: Holding,
        receivers: Receivers,
        tail: Tail,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._adopted, self._places, self._claims, self._holding = adopted, places, claims, holding
        self._receivers, self._tail, self._now_ms = receivers, tail, now_ms

    def adopt(self, queue: str, raws: Sequence[dict[str, Any]], *, lease_ms: int, worker: str) -> list[Delivery]:
        """As `SqsStore.adopt`."""
        place, now = self._places.of(queue), self._now_ms()
        self._adopted.add([raw["ReceiptHandle"] for raw in raws])
        self._receivers.received += len(raws)
        ask = Ask(queue, len(raws), lease_ms, worker=worker)
        received = [Received(raw, now - WAITED_MS, now + lease_ms) for raw in raws]
        return self._claims.take(ask, place, received)

    def let_go(self, handles: Collection[str]) -> set[str]:
        """As `SqsStore.let_go`."""
        self._tail.flush()
        done = {end.handle for end in self._adopted.over(handles)}
        self._adopted.forget(handles)
        self._holding.drop_handles(handles)
        return done

    def delete(self, handles: Collection[str]) -> set[str]:
        """As `SqsStore.delete_adopted`."""
        ends = self._adopted.over(handles)
        self._tail.end(ends, last=True)
        return {end.handle for end in ends}
