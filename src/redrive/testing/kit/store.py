"""The memory store of one test, which records each enqueued message and computes the next due time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from ...ids import new_id
from ...message import (
    ClaimRequest,
    Draft,
    Exchange,
    Handle,
    Message,
    PutResult,
    Redrive,
    Replace,
    Settlement,
    Swap,
    Verdict,
)
from ...stores.memory.store import MemoryStore
from ..clock import ManualClock


class Noted(NamedTuple):
    """A draft that became a message, the message's id, and the time of the put."""

    draft: Draft
    id: str
    at_ms: int


class KitStore(MemoryStore):
    """A MemoryStore on a manual clock. `noted` has each message that was put, in order; `seen_queues` the queues of
    these messages."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.noted: list[Noted] = []
        self.seen_queues: dict[str, None] = {}  # a dict, as it keeps the order of their first messages
        #: Runs messages and redrive runs until the given function returns true, or for the given seconds; the Kit sets
        #: it.
        self.drive: Callable[[Callable[[], bool], float | None], None] | None = None

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        """Put drafts at once. `tx` is ignored, as it is a transaction of the program under test."""
        puts = super().put([self._exact(draft) for draft in drafts], swaps=swaps)
        for draft, put in zip(drafts, puts, strict=True):
            if put.replaced:  # it is noted with what it has now
                self.noted = [one for one in self.noted if one.id != put.id]
            if put.replaced or not put.duplicate:
                self._note(draft, put.id)
        return puts

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        settlements = [self._prepared(s) if s.follow_ups else s for s in settlements]
        result = super().exchange(settlements, asks, swaps=swaps)
        for settlement in settlements:
            messages = self.find([draft.id or "" for draft in settlement.follow_ups]) if settlement.follow_ups else ()
            for draft, message in zip(settlement.follow_ups, messages, strict=True):
                if message is not None:  # the settlement was applied, and the follow-up's unique key was free
                    self._note(draft, message.id)
        return result

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        if isinstance(verdict, Redrive):
            if verdict.to_queue is not None:
                self.seen_queues[verdict.to_queue] = None
            delays_ms = [verdict.delay_ms + more_ms for more_ms in verdict.delays_ms or (0,) * len(handles)]
            # A millisecond less, for the reason in the docstring of `_exact`.
            verdict = replace(verdict, delay_ms=0, delays_ms=tuple(max(0, ms - 1) for ms in delays_ms))
        if isinstance(verdict, Replace):
            draft = self._exact(verdict.draft)
            verdict = replace(
                verdict, draft=draft if draft.id is not None else replace(draft, id=new_id(self.now_ms()))
            )
        moved = super().triage(handles, verdict, swaps=swaps)
        if isinstance(verdict, Replace) and moved == [True]:
            self._note(verdict.draft, verdict.draft.id or "")
        return moved

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        for message in messages:
            self.seen_queues[message.queue] = None
        return super().restore(messages, swaps=swaps)

    def next_due_ms(self) -> float:
        """Return the next due time in all queues that are not paused; infinite if no message waits there."""
        with self._changed:
            return self._next_due_ms([ClaimRequest(queue, 1, 0) for queue in self.seen_queues])

    def _prepared(self, settlement: Settlement) -> Settlement:
        """Return the settlement with ids for its follow-ups, by which `exchange` finds them, and exact due times."""
        now_ms = self.now_ms()
        named = (d if d.id is not None else replace(d, id=new_id(now_ms)) for d in settlement.follow_ups)
        return replace(settlement, follow_ups=tuple(map(self._exact, named)))

    def _exact(self, draft: Draft) -> Draft:
        """Return the draft with its delay as a due time. Stores add a millisecond to a delay, for the current one that
        has partly passed; on a clock that only jumps, the message would not be due after an advance by the delay."""
        return draft if draft.due_ms is not None else replace(draft, due_ms=self.now_ms() + draft.delay_ms)

    def _note(self, draft: Draft, id: str) -> None:
        self.noted.append(Noted(draft, id, self.now_ms()))
        self.seen_queues[draft.queue] = None
