"""Triage dead letters in the triage store, and send redriven ones back to SQS with their unique keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from ...errors import ConfigError, EnqueueError, StoreError, TooLarge
from ...ids import new_id
from ...message import Counts, Filter, Handle, Keep, Lane, Message, Redrive, Replace, Swap, Verdict
from ...store import Store, Traits
from .. import lifecycle, validation
from .batch_moves import TriagedMembers
from .batches import BatchCells
from .client import EntryRefused
from .keys import SendMessages, TrackedSends
from .members import MemberState, move_of
from .outbox import Outbox, Tell
from .wire import ANY_BODY_MAX

OLDEST_OF = 100  # how many outbox messages of a lane are read to find the oldest


class SqsTriage:
    """Triage for one store on SQS, and its outbox. `send` sends messages; with `track=true`, `tracked_sends` does."""

    def __init__(
        self,
        store: Store,
        send: SendMessages,
        tracked_sends: TrackedSends | None,
        batches: BatchCells | None,
        *,
        owner: str,
        ordered: Callable[[str], bool],
        traits: Traits,
        now_ms: Callable[[], int],
        tell: Tell,
    ) -> None:
        self._store, self._send, self._tracked_sends, self._traits, self._now_ms = (
            store,
            send,
            tracked_sends,
            traits,
            now_ms,
        )
        self._batches, self._members = batches, None if batches is None else TriagedMembers(store, batches)
        self.outbox: Outbox = Outbox(store, self._send_back, owner=owner, ordered=ordered, tell=tell)

    def judge(self, handles: Sequence[Handle], verdict: Verdict, swaps: Sequence[Swap]) -> list[bool]:
        """Apply the verdict as `Store.triage` does. Redriven messages are sent back at once if SQS accepts them."""
        if self._members is None:
            return self._judge(handles, verdict, swaps)
        rows = self._members.of(handles)
        verdict = self._members.in_place(verdict, rows)
        self._members.before(rows, verdict)
        words = self._judge(handles, verdict, swaps)
        held = {handle.id for handle, word in zip(handles, words, strict=True) if word}
        self._members.after(rows, verdict, held)
        return words

    def _judge(self, handles: Sequence[Handle], verdict: Verdict, swaps: Sequence[Swap]) -> list[bool]:
        if not isinstance(verdict, Redrive | Replace):
            return self._store.triage(handles, verdict, swaps=swaps)
        self.outbox.own()
        if isinstance(verdict, Replace) and self._tracked_sends is not None and verdict.draft.key is not None:
            words = self._replace(self._tracked_sends, handles, verdict, swaps)
        else:
            words = self._store.triage(handles, verdict, swaps=swaps)
        with suppress(StoreError, ConfigError):  # otherwise the next pump sends the message from the outbox
            self.outbox.pump(len(handles))
        return words

    def _replace(
        self, tracked_sends: TrackedSends, handles: Sequence[Handle], verdict: Replace, swaps: Sequence[Swap]
    ) -> list[bool]:
        """Replace a message by a draft with a unique key, which may be the key of that message."""
        validation.admit_verdict(handles, verdict, self._traits)
        now, old = self._now_ms(), handles[0].id
        draft = verdict.draft if verdict.draft.id else replace(verdict.draft, id=new_id(now))
        made = lifecycle.enqueued(draft, draft.id or "", now)
        for holder in tracked_sends.blocked([made], by_others_than=[old]).values():
            raise validation.key_is_held(old, draft, holder)
        words = self._store.triage(handles, replace(verdict, draft=draft), swaps=swaps)
        if words == [True]:
            tracked_sends.hand_over([made], key_for_ms=draft.key_for_ms)
        return words

    def outgoing(self) -> dict[str, Counts]:
        by_queue = self._store.counts_by_queue()
        return {
            queue: replace(counts, oldest_age_s=self._waits_s(queue))
            for queue, counts in by_queue.items()
            if counts.waiting + counts.leased
        }

    def _waits_s(self, queue: str) -> float:
        """Return how many seconds ago the earliest message of the queue in the outbox was redriven."""
        lanes = Lane.READY, Lane.LEASED
        firsts = [self._store.peek(lane, where=Filter(queue=queue), limit=OLDEST_OF).messages for lane in lanes]
        since_ms = min((message.life_ms for some in firsts for message in some), default=self._now_ms())
        return max(0, self._now_ms() - since_ms) / 1000

    def retain(self, queue: str, done: Keep, dead: Keep) -> tuple[int, int]:
        if self._members is not None:
            self._members.retained(queue, dead)
        return self._store.retain(queue, done=done, dead=dead)

    def restore(self, messages: Sequence[Message], swaps: Sequence[Swap]) -> list[bool]:
        if self._batches is None:
            return self._restored(messages, swaps)
        messages = self._batches.number(messages)  # what died elsewhere is one more member, and has its own place
        words = self._restored(messages, swaps)
        stored = [message for message, word in zip(messages, words, strict=True) if word]
        self._batches.merge([move_of(message, forced=True) for message in stored])
        return words

    def _restored(self, messages: Sequence[Message], swaps: Sequence[Swap]) -> list[bool]:
        if self._tracked_sends is None:
            return self._store.restore(messages, swaps=swaps)
        blocked = self._tracked_sends.blocked(messages)
        free = [message for message in messages if message.id not in blocked]
        words = self._store.restore(free, swaps=swaps)
        self._tracked_sends.hand_over([message for message, word in zip(free, words, strict=True) if word])
        left = iter(words)
        return [message.id not in blocked and next(left) for message in messages]

    # -- sending back to SQS

    def _send_back(self, messages: Sequence[Message]) -> list[Exception | None]:
        """Send messages; returns for each its error or None: EnqueueError if SQS would reject the message again."""
        if self._batches is not None:
            self._batches.merge([move_of(message, MemberState.OPEN) for message in messages])
        errors: list[Exception | None] = [_too_large(message) for message in messages]
        going = [at for at, error in enumerate(errors) if error is None]
        for at, error in zip(going, self._sent([messages[at] for at in going]), strict=True):
            errors[at] = EnqueueError(str(error)) if isinstance(error, EntryRefused) else error
        if self._batches is not None:
            refused = [m for m, error in zip(messages, errors, strict=True) if isinstance(error, EnqueueError)]
            self._batches.merge([move_of(message, MemberState.DEAD) for message in refused])
        return errors

    def _sent(self, messages: Sequence[Message]) -> Sequence[StoreError | ConfigError | None]:
        if self._tracked_sends is None:
            return self._send(messages)
        return [
            word for word in self._tracked_sends.put(messages, self._send, keyed=False) if not isinstance(word, str)
        ]


def _too_large(message: Message) -> TooLarge | None:
    if len(message.body) <= ANY_BODY_MAX:
        return None
    return TooLarge(f"its body has {len(message.body):,} bytes; SQS takes {ANY_BODY_MAX:,}")
