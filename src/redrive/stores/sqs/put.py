"""Put messages: send each to its queue; if the store tracks messages, with an id and a unique key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ...codec import Routes
from ...errors import EnqueueError, Unsupported
from ...ids import new_id
from ...message import BATCH_HEADER, Draft, Message, PutResult, Swap
from ...store import Cells, Traits
from .. import lifecycle, validation
from .batches import BatchCells
from .cells import NO_CELLS, apply_swaps, check_swaps
from .keys import SendMessages, SendResult, TrackedSends
from .members import MemberState, move_of
from .search import SqsSearch


class Puts:
    """Puts messages of one store. With `track=true` it sends them by `tracked_sends`, otherwise by `send`."""

    def __init__(
        self,
        send: SendMessages,
        tracked_sends: TrackedSends | None,
        search: SqsSearch,
        cells: Cells,
        traits: Traits,
        batches: BatchCells | None,
        *,
        routes: Routes,
        now_ms: Callable[[], int],
        failpoint: Callable[[str], None],
    ) -> None:
        self._send, self._tracked_sends, self._search, self._cells = send, tracked_sends, search, cells
        self._batches = batches
        self._traits, self._routes, self._now_ms, self._failpoint = traits, routes, now_ms, failpoint

    def check(self, drafts: Sequence[Draft], swaps: bool) -> None:
        """Raise EnqueueError or Unsupported for drafts that this store cannot accept, or for `swaps` without cells."""
        validation.admit(drafts, self._traits)
        for draft in drafts:
            if (why := self._routes.refusal(draft.queue, draft.task)) is not None:
                raise EnqueueError(f"{why}; name all tasks of the queue there: foreign=(…); nothing was sent")
        ids = Counter(draft.id for draft in drafts if draft.id is not None)
        if len(ids) < ids.total():
            raise EnqueueError(f"id {ids.most_common(1)[0][0]} is given twice in one call; nothing was sent")
        if swaps and not self._traits.cells:
            raise Unsupported(NO_CELLS)

    def put(self, drafts: Sequence[Draft], swaps: Sequence[Swap]) -> list[PutResult]:
        self.check(drafts, bool(swaps))
        now = self._now_ms()
        messages = [lifecycle.enqueued(draft, draft.id or new_id(now), now) for draft in drafts]
        check_swaps(self._cells, swaps)
        if self._batches is not None:
            messages = self._batches.number(messages, repeats=True)
        self._failpoint("put")
        results = self._results(messages, drafts)
        if self._batches is not None:
            lines = zip(messages, results, strict=True)
            known = [(m, word is None) for m, word in lines if word is None or isinstance(word, str)]
            words = MemberState.DUPLICATE, MemberState.OPEN
            self._batches.merge([move_of(message, words[is_sent]) for message, is_sent in known])
        self._failpoint("acknowledge")
        failed = [word for word in results if word is not None and not isinstance(word, str)]
        if failed:
            sent = len(results) - len(failed)
            raise type(failed[0])(f"{failed[0]}; {sent} of {len(results)} messages were sent, the others were not")
        apply_swaps(self._cells, swaps)
        states = self._states([word for word in results if isinstance(word, str)])
        return [
            PutResult(word, True, states[word])
            if isinstance(word, str)
            else PutResult(message.id, state=message.state_at(now))
            for message, word in zip(messages, results, strict=True)
        ]

    def _results(self, messages: Sequence[Message], drafts: Sequence[Draft]) -> Sequence[SendResult]:
        if self._tracked_sends is None:
            return self._send(messages)
        # A put of a batch's members, or of its callbacks, may be a repeated one (`batch/repeats.py`).
        repeated = [draft.batch is not None or BATCH_HEADER in (draft.headers or {}) for draft in drafts]
        lines = zip(messages, drafts, repeated, strict=True)
        known = [message for message, draft, again in lines if draft.id is not None and not again]
        self._tracked_sends.refuse_known(known)
        return self._tracked_sends.put(messages, self._send, keys_for_ms=[draft.key_for_ms for draft in drafts])

    def _states(self, ids: Sequence[str]) -> dict[str, str]:
        """Return by id the states of messages that hold a key. A message that is no longer stored counts as done."""
        now, messages = self._now_ms(), self._search.find(ids) if ids else []
        return {id: "done" if one is None else one.state_at(now) for id, one in zip(ids, messages, strict=True)}
