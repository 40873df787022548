"""Settling in SQS, where nothing is atomic: send first, delete last, and remember what was sent.

A settlement goes through four steps, each for all settlements of a call in batches of ten: *send* (follow-ups, copies,
dead letters), *keep* (its swaps, the record), then *end* (delete, or hide until it is due). A crash between two of them
leaves a duplicate, never a loss: what is not deleted comes back when its visibility ends. A call that failed half-way
is repeated by the worker: what was sent then is remembered by its receipt, and not sent again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ...errors import ConfigError, StoreError, StoreUnavailable
from ...ids import new_id
from ...message import (
    RESTING,
    Ack,
    Draft,
    Lane,
    Message,
    Receipt,
    RetryAt,
    Settled,
    Settlement,
    Swap,
    version_of,
)
from .. import lifecycle
from .in_flight import VISIBLE_MAX_S, Held
from .message_state import Kept, kept_of
from .outbox import bury, is_verdict
from .queues import Place, Queues
from .records import record_swap
from .send import Send, Sender, is_final
from .track import Track
from .url import Mode, SqsUrl

if TYPE_CHECKING:
    from ...store import Cells, Store

TRIAGE_PAUSE_S = 5.0  # how long a triage store that was out is let alone


class Step(Struct):
    """A settlement on its way."""

    held: Held
    sends: list[Send]
    rest: Message | None = None  # to be written to the triage store
    hide_until_ms: int | None = None  # None: delete it
    record: Kept | None = None
    swaps: tuple[Swap, ...] = ()
    left: Message | None = None  # as it is afterwards; None: it is over
    cancelled: bool = False
    sent: bool = False
    kept: bool = False
    ended: bool = False
    error: StoreError | ConfigError | None = None
    refused: StoreError | ConfigError | None = None  # of a follow-up that SQS never takes
    word: Settled = Settled.OK

    @property
    def is_over(self) -> bool:
        """Whether its message leaves the queue for good, and not as a copy."""
        id, place = self.held.message.id, self.held.place
        return self.hide_until_ms is None and all(
            send.message.id != id or send.place is not place for send in self.sends
        )

    @property
    def gives_key_back(self) -> bool:
        """Whether its message is done, or cancelled."""
        return self.left is None or self.left.lane is Lane.DONE


class Settling:
    """How this store settles. Used by one thread at a time."""

    def __init__(
        self,
        at: SqsUrl,
        sender: Sender,
        queues: Queues,
        cells: Cells | None,
        triage: Store | None,
        *,
        track: Track | None = None,
        now_ms: Callable[[], int],
        crowded: Callable[[Place], bool],
        seam: Callable[[str], None],
        tell: Callable[[str, str], None],
    ) -> None:
        self._at, self._sender, self._queues, self._cells, self._triage = at, sender, queues, cells, triage
        self._track = track
        self._now_ms, self._crowded, self._seam, self._tell = now_ms, crowded, seam, tell
        self._triage_out, self._triage_from_s = False, 0.0  # when it is tried again
        self._begun: dict[Receipt, Step] = {}  # of a call that failed half-way

    @property
    def counts_all(self) -> bool:
        """Whether every delivery is counted as an attempt: a retry leaves no trace but the receive count."""
        return self._at.mode is Mode.VISIBILITY and self._cells is None

    # -- what a settlement comes to

    def step(self, held: Held, settlement: Settlement) -> Step:
        """What to do for it; what an earlier call has done of it is done."""
        begun = self._begun.get(settlement.receipt)
        if begun is not None:
            begun.error = None
            return begun
        now, message, decision = self._now_ms(), held.message, settlement.decision
        sends = [self._follow_up(draft, now) for draft in settlement.follow_ups]
        if isinstance(decision, Ack):
            return Step(held, sends, swaps=settlement.swaps)
        decided = lifecycle.decided(message, decision, settlement.fault, now)
        if isinstance(decision, RetryAt) and not message.cancel:
            step = self._again(held, decided, decision, now)
        else:
            step = self._resting(held, decided)
        step.left, step.cancelled = decided, message.cancel
        step.sends = sends + step.sends
        step.swaps = settlement.swaps
        return step

    def _follow_up(self, draft: Draft, now: int) -> Send:
        message = lifecycle.enqueued(draft, draft.id or new_id(now), now)
        return Send(self._queues.of(draft.queue), message, draft.key_for_ms)

    def _again(self, held: Held, decided: Message, retry: RetryAt, now: int) -> Step:
        if self._can_stay(held, retry, now):
            return self.hidden(held, kept_of(decided, receives=held.receives), retry.at_ms)
        return Step(held, [Send(held.place, decided)])

    def hidden(self, held: Held, kept: Kept, until_ms: int) -> Step:
        """It waits where it lies, with a record of this where there are cells."""
        return Step(held, [], hide_until_ms=until_ms, record=kept if self._cells is not None else None)

    def _can_stay(self, held: Held, retry: RetryAt, now: int) -> bool:
        if held.place.fifo:
            return True  # a copy would go behind what was sent after it
        if self._at.mode is Mode.REQUEUE or self._crowded(held.place):
            return False
        if self._is_near_its_end(held, retry.at_ms):
            return False
        if self._cells is not None:
            return True
        plain = retry.counts and not retry.crashed and not retry.held and retry.deferral is held.kept.deferral is None
        return plain and math.ceil((retry.at_ms - now) / 1000) <= held.stays_s(now)

    def _is_near_its_end(self, held: Held, until_ms: int) -> bool:
        """Whether SQS would take it away, or let it expire, before its next run was settled: a copy begins anew."""
        bounds = self._queues.bounds(held.place)
        often = bounds.receives_max is not None and held.receives + 1 >= bounds.receives_max
        return often or until_ms + VISIBLE_MAX_S * 1000 > held.sent_ms + bounds.retention_ms

    def _resting(self, held: Held, decided: Message) -> Step:
        if decided.lane is Lane.DONE:  # it was cancelled
            return Step(held, [])
        if self._triage is not None:
            return Step(held, [], rest=decided)
        return Step(held, [Send(self._queues.resting(decided.queue, decided.lane), decided)])

    def early(self, held: Held, due_ms: int) -> Step:
        """A message that was received before its time goes on waiting: a hop, which costs no attempt."""
        records = self._at.mode is Mode.VISIBILITY and self._cells is not None
        if held.place.fifo or (records and not self._is_near_its_end(held, due_ms)):
            record = replace(held.kept, receives=held.receives, due_ms=due_ms)
            step = self.hidden(held, record, due_ms)
        else:
            step = Step(held, [Send(held.place, held.message)])
        step.left = held.message
        return step

    def anew(self, held: Held, claimed: Message) -> Step:
        """A message that SQS would take away, were this run to crash too, goes on as a copy that knows all of it."""
        counted = claimed.attempt - 1  # the copy's claim counts it
        copy = replace(claimed, lane=Lane.READY, due_ms=None, attempt=counted)
        return Step(held, [Send(held.place, copy)], left=copy)

    def dropped(self, held: Held) -> Step:
        """A message that was cancelled while it waited: it is not delivered."""
        return Step(held, [], left=lifecycle.cancelled(held.message, self._now_ms()))

    def is_last(self, held: Held) -> bool:
        """Whether this is the last time that SQS delivers it, and not the first."""
        most = None if held.place.fifo or held.receives == 1 else self._queues.bounds(held.place).receives_max
        return most is not None and held.receives >= most

    # -- doing it

    def stop(self, steps: Sequence[Step]) -> None:
        """Make those stale that would send something, though their swaps do not apply: nothing of them is done."""
        cells, taken = self._cells, set[str]()
        risky = [step for step in steps if step.swaps and not step.sent and (step.sends or step.rest is not None)]
        if cells is None or not risky:
            return
        first: list[dict[str, Swap]] = [{swap.key: swap for swap in reversed(step.swaps)} for step in risky]
        keys = [*dict.fromkeys(key for swaps in first for key in swaps)]
        versions = {key: version_of(cell) for key, cell in zip(keys, cells.read(keys), strict=True)}
        for step, swaps in zip(risky, first, strict=True):
            fits = all(is_verdict(swap) or swap.version == versions[key] for key, swap in swaps.items())
            if not fits or not taken.isdisjoint(swaps):
                step.word = Settled.STALE
            else:
                taken |= swaps.keys()

    def send(self, steps: Sequence[Step]) -> None:
        """Everything that has to be somewhere else before a message is deleted."""
        steps = [step for step in steps if not step.sent and step.word is Settled.OK]
        self._bury([step for step in steps if step.rest is not None])
        sends = [(step, send) for step in steps for send in step.sends]
        if sends:
            self._seam("send")
            for (step, send), error in zip(sends, self._sender.sent([send for _, send in sends]), strict=True):
                if error is not None and is_final(error):
                    self._go_without(step, send, error)
                else:
                    step.error = step.error or error
            self._seam("sent")
        for step in steps:
            step.sent = step.error is None

    def _go_without(self, step: Step, send: Send, error: StoreError | ConfigError) -> None:
        """SQS will never take this, as it is too large: a follow-up fails, a retry waits where it lies, and what died
        is left to come again, until SQS takes it away itself."""
        message = send.message
        if message.id != step.held.message.id:
            step.refused = error
            return
        step.sends = [other for other in step.sends if other is not send]
        if message.lane in RESTING:
            self._tell(message.queue, f"message {message.id} is dead, and cannot be sent away: {error}")
            step.word = Settled.STALE
        else:
            in_place = self.hidden(step.held, kept_of(message, receives=step.held.receives), message.due_ms or 0)
            step.hide_until_ms, step.record = in_place.hide_until_ms, in_place.record

    def _bury(self, steps: Sequence[Step]) -> None:
        """To the triage store; where it cannot be reached, to the queue of dead letters, to be taken from there."""
        if self._triage is None or not steps:
            return
        self._seam("bury")
        letters = [step.rest for step in steps if step.rest is not None]
        for step, letter, is_safe in zip(steps, letters, self._buried(self._triage, letters), strict=True):
            if not is_safe:
                try:
                    step.sends.append(Send(self._queues.resting(letter.queue, letter.lane), letter))
                except ConfigError as error:  # there is none: then it has to be the triage store
                    step.error, self._triage_from_s = StoreUnavailable(f"no triage store, and {error}"), 0.0
                    continue
            step.rest = None
        self._seam("buried")

    def _buried(self, triage: Store, letters: Sequence[Message]) -> list[bool]:
        """Of each whether it lies there. A store that is out is not tried each time: that may take long."""
        if time.monotonic() < self._triage_from_s:
            return [False] * len(letters)
        try:
            safe = bury(triage, letters, keys=self._track is not None)
        except StoreError as error:
            if not self._triage_out:
                self._tell("triage", f"the dead go to their queues of SQS, as their store cannot be reached: {error}")
            self._triage_out, self._triage_from_s = True, time.monotonic() + TRIAGE_PAUSE_S
            return [False] * len(letters)
        if self._triage_out:
            self._tell("triage", "the store of the dead can be reached again")
            self._triage_out = False
        return safe

    def keep(self, steps: Sequence[Step]) -> None:
        """The swaps that settlements bring, and the records. A swap that does not apply makes its settlement stale: its
        message comes back when its lease ends."""
        going = [step for step in steps if step.error is None and step.word is Settled.OK]
        tracked = [step for step in going if not step.kept] if self._track is not None else []
        todo = [step for step in going if not step.kept and (step.swaps or step.record or tracked)]
        if not todo or self._cells is None:
            for step in todo:
                step.kept = True
            return
        swaps: list[Swap] = []
        for step in todo:
            swaps += step.swaps
            if step.record is not None:
                swaps.append(record_swap(step.held, step.record))
        plain = [step for step in tracked if not step.swaps]
        self._seam("keep")
        try:
            if self._track is not None:
                swaps += self._track.changes(plain)
            words = self._cells.swap(swaps) if swaps else []
            told = iter(words)
        except StoreError as error:
            for step in todo:
                step.error = error
            return
        for step in todo:
            # A verdict that is there already is a duplicate's of this very message: what it came to then, counts.
            applied = [next(told) or is_verdict(swap) for swap in step.swaps]
            if step.record is not None:
                applied.append(next(told))
            step.word = Settled.OK if all(applied) else Settled.STALE
            step.kept = True
        if self._track is not None:
            self._keep_track(tracked, plain if all(told) else [])
        self._seam("kept")

    def _keep_track(self, tracked: Sequence[Step], written: Sequence[Step]) -> None:
        """What those whose swaps applied leave, and what another was quicker to change. A record that is not brought up
        to date is wrong until the next settlement, or its end: no reason to do the work again."""
        assert self._track is not None
        with suppress(StoreError):
            self._track.settle([step for step in tracked if step.word is Settled.OK and step not in written])

    def remember(self, receipt: Receipt, step: Step) -> None:
        """So far it came in a call that failed."""
        self._begun[receipt] = step

    def ended(self, receipt: Receipt) -> Step | None:
        """What a call that failed brought to its end."""
        step = self._begun.get(receipt)
        return step if step is not None and step.ended else None

    def forget(self, receipt: Receipt) -> None:
        self._begun.pop(receipt, None)


def unavailable(errors: Sequence[StoreError | ConfigError]) -> StoreError:
    """One error for what could not be done now."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return StoreUnavailable(f"{first}{more}")
