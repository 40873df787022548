"""Settle messages in SQS, where nothing is atomic: send first, delete last, and remember sent messages.

All settlements of a call go through the same five steps, in batches of ten: *check* their swaps, *send* follow-ups,
copies and dead letters, *keep* swaps and records, *count* members of batches, and *end* the messages (delete, or hide
until they are due). A crash between two steps leaves a duplicate, never a loss: a message that is not deleted is
received again when its visibility ends. When a call fails half-way the worker repeats it; sent messages are remembered
by receipt and not sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from ...awsapi.client import REFUSED
from ...errors import ConfigError, EnqueueError, StoreError, StoreUnavailable
from ...message import RESTING, Ack, Message, Receipt, Settled, Settlement, Swap, version_of
from ...store import Cells, Store
from ..run_marks import is_verdict
from .batch_moves import SteppedMembers
from .deletes import Deletes, End
from .in_flight import ClaimedMessage, InFlightMessages
from .keys import SendMessages, TrackedSends
from .outbox import bury
from .queues import QueueDirectory
from .receive import Receivers
from .records import Records, record_swap
from .send import Sender, SendRequest, is_final
from .steps import SettleStep, Steps
from .track import Track
from .wire import state_of

TRIAGE_PAUSE_S = 5.0  # for how long after a failure the triage store is not tried


class Settlements:
    """Settles messages for one store. `send` sends messages; with `track=true`, `tracked_sends` sends follow-ups."""

    settling: SqsSettling

    def __init__(
        self,
        queues: QueueDirectory,
        steps: Steps,
        settling: SqsSettling,
        ending: Ending,
        in_flight: InFlightMessages,
        *,
        track: Track | None,
        tracked_sends: TrackedSends | None,
        send: SendMessages,
    ) -> None:
        self._queues, self._steps, self._in_flight = queues, steps, in_flight
        self.settling, self._ending = settling, ending
        self._track, self._tracked_sends, self._send = track, tracked_sends, send
        self._named = set[str]()  # batches to name in the next answer

    def check(self, settlements: Sequence[Settlement]) -> None:
        """Raise EnqueueError if the queue of a follow-up does not exist, before anything is settled."""
        for draft in (draft for s in settlements for draft in s.follow_ups):
            try:
                self._queues.of(draft.queue)
            except ConfigError as error:
                if REFUSED in str(error):
                    raise
                raise EnqueueError(f"a follow-up of task {draft.task!r}: {error}; nothing was settled") from error

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Settle as far as possible. Raises StoreUnavailable if something could not be sent or stored; the messages
        without an error are settled all the same, and a repeated call continues with the others."""
        if not settlements:
            return []
        if self._track is not None:
            self._see_cancels(self._track, settlements)
        pairs: list[tuple[Receipt, SettleStep | None]] = []
        for settlement in settlements:
            receipt, held = settlement.receipt, self._in_flight.held.get(settlement.receipt)
            step = self._steps.ended(receipt) if held is None else self._steps.step(held, settlement)
            pairs.append((receipt, step))
        steps = [step for _, step in pairs if step is not None and not step.ended]
        self.settling.check(steps)
        try:
            self.settling.members.number(steps)
        except EnqueueError:  # nothing was sent of the steps without indexes, and one needs another settlement
            for receipt, step in pairs:
                if step is not None and step.joins is None:
                    self._steps.forget(receipt)
            raise
        if self._tracked_sends is not None:
            self._follow(self._tracked_sends, steps)
        self.settling.send([step for step in steps if step.error is None])
        self._refuse(pairs)
        self.settling.keep(steps)
        self._named.update(self.settling.members.count(steps))
        done = [step for step in steps if step.error is None]
        self._ending.leave([step.held for step in done if step.word is not Settled.OK])
        self._ending.end([step for step in done if step.word is Settled.OK], pairs)
        for step in done:
            step.ended = True
        errors = [step.error for step in steps if step.error is not None]
        if errors:
            for receipt, step in pairs:
                if step is not None:
                    self._steps.remember(receipt, step)
            raise unavailable(errors)
        return [Settled.STALE if step is None else _word(step) for _, step in pairs]

    def named(self) -> tuple[str, ...]:
        """Return the batches to look at since the last call, sorted."""
        named, self._named = tuple(sorted(self._named)), set()
        return named

    def _see_cancels(self, track: Track, settlements: Sequence[Settlement]) -> None:
        """Mark the claimed messages that somebody asked to cancel, except those that are acked."""
        undone = [s.receipt for s in settlements if not isinstance(s.decision, Ack)]
        running = [held for receipt in undone if (held := self._in_flight.held.get(receipt)) is not None]
        asked = track.asked([held.message.id for held in running])
        for held in running:
            if held.message.id in asked:
                held.message = replace(held.message, cancel=True)

    def _follow(self, tracked_sends: TrackedSends, steps: Sequence[SettleStep]) -> None:
        """Send follow-ups by `tracked_sends`, except those whose unique key another message holds."""
        todo = [step for step in steps if not step.sent and step.word is Settled.OK and step.error is None]
        sends = [(step, send) for step in todo for send in step.sends if send.message.id != step.held.message.id]
        if not sends:
            return
        ending = {step.held.message.id for step in todo if step.gives_key_back}
        keys_for_ms = [send.key_for_ms for _, send in sends]
        results = tracked_sends.put(
            [send.message for _, send in sends], self._send, keys_for_ms=keys_for_ms, ending=ending
        )
        for (step, send), word in zip(sends, results, strict=True):
            if word is None or isinstance(word, str):
                step.sends.remove(send)
                if isinstance(word, str):
                    step.drop_join(send.message)
            elif is_final(word):
                step.sends.remove(send)
                step.refused = word
            else:
                step.error = word

    def _refuse(self, pairs: Sequence[tuple[Receipt, SettleStep | None]]) -> None:
        """Raise EnqueueError if SQS never accepts a follow-up; first remember the other steps for a repeated call, and
        forget that one, whose message needs another settlement."""
        errors = [step.refused for _, step in pairs if step is not None and step.refused is not None]
        if errors:
            for receipt, step in pairs:
                if step is not None and step.refused is None:
                    self._steps.remember(receipt, step)
                else:
                    self._steps.forget(receipt)
            raise EnqueueError(f"SQS takes no such follow-up: {errors[0]}")


# -- the steps of a call


class SqsSettling:
    """Carries out steps, except for the end of their messages. Used by one thread at a time."""

    triage_from_s: float

    def __init__(
        self,
        sender: Sender,
        queues: QueueDirectory,
        cells: Cells | None,
        triage: Store | None,
        *,
        steps: Steps,
        track: Track | None,
        members: SteppedMembers,
        failpoint: Callable[[str], None],
        tell: Callable[[str, str], None],
    ) -> None:
        self.members = members
        self._sender, self._queues, self._cells, self._triage = sender, queues, cells, triage
        self._steps, self._track = steps, track
        self._failpoint, self._tell = failpoint, tell
        self._triage_out = False
        self.triage_from_s = 0.0  # a failed triage store is not tried before this time

    def check(self, steps: Sequence[SettleStep]) -> None:
        """Mark each step stale that has a swap which does not apply, so that nothing of the step is carried out."""
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

    def send(self, steps: Sequence[SettleStep]) -> None:
        """Send copies and follow-ups, and write dead letters: what must exist elsewhere before a message is deleted."""
        steps = [step for step in steps if not step.sent and step.word is Settled.OK]
        self._bury([step for step in steps if step.rest is not None])
        sends = [(step, send) for step in steps for send in step.sends]
        if sends:
            self._failpoint("send")
            for (step, send), error in zip(sends, self._sender.sent([send for _, send in sends]), strict=True):
                if error is not None and is_final(error):
                    self._go_without(step, send, error)
                else:
                    step.error = step.error or error
            self._failpoint("sent")
        for step in steps:
            step.sent = step.error is None

    def _go_without(self, step: SettleStep, send: SendRequest, error: StoreError | ConfigError) -> None:
        """Handle `send`, which SQS never accepts: a follow-up fails its step; a retry waits hidden in its queue
        instead; a dead letter is delivered again until SQS itself moves it away."""
        message = send.message
        if message.id != step.held.message.id:
            step.refused = error
            return
        step.sends = [other for other in step.sends if other is not send]
        if message.lane in RESTING:
            self._tell(message.queue, f"message {message.id} is dead, and cannot be sent away: {error}")
            step.word = Settled.STALE
        else:
            in_place = self._steps.hidden(
                step.held, state_of(message, receives=step.held.receives), message.due_ms or 0
            )
            step.hide_until_ms, step.record = in_place.hide_until_ms, in_place.record

    def _bury(self, steps: Sequence[SettleStep]) -> None:
        """Write dead letters to the triage store; while that is unreachable, send them to the dead-letter queue."""
        if self._triage is None or not steps:
            return
        self._failpoint("bury")
        letters = [step.rest for step in steps if step.rest is not None]
        for step, letter, is_safe in zip(steps, letters, self._buried(self._triage, letters), strict=True):
            if not is_safe:
                try:
                    step.sends.append(SendRequest(self._queues.resting(letter.queue, letter.lane), letter))
                except ConfigError as error:  # without a dead-letter queue, only the triage store can take the letter
                    step.error, self.triage_from_s = StoreUnavailable(f"no triage store, and {error}"), 0.0
                    continue
            step.rest = None
        self._failpoint("buried")

    def _buried(self, triage: Store, letters: Sequence[Message]) -> list[bool]:
        """Write letters to `triage`; returns True for each that is there. A failed store gets a pause of seconds."""
        if time.monotonic() < self.triage_from_s:
            return [False] * len(letters)
        try:
            safe = bury(triage, letters, keys=self._track is not None)
        except StoreError as error:
            if not self._triage_out:
                self._tell("triage", f"the dead go to their queues of SQS, as their store cannot be reached: {error}")
            self._triage_out, self.triage_from_s = True, time.monotonic() + TRIAGE_PAUSE_S
            return [False] * len(letters)
        if self._triage_out:
            self._tell("triage", "the store of the dead can be reached again")
            self._triage_out = False
        return safe

    def keep(self, steps: Sequence[SettleStep]) -> None:
        """Write the swaps of the settlements, and the records. A swap that does not apply makes its settlement stale:
        its message is received again when the lease ends."""
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
        self._failpoint("keep")
        try:
            if self._track is not None:
                swaps += self._track.changes([step.outcome for step in plain])
            words = self._cells.swap(swaps) if swaps else []
            answers = iter(words)
        except StoreError as error:
            for step in todo:
                step.error = error
            return
        for step in todo:
            # If the cell of an outcome exists, a duplicate of the message ended first, and its outcome counts.
            applied = [next(answers) or is_verdict(swap) for swap in step.swaps]
            if step.record is not None:
                applied.append(next(answers))
            step.word = Settled.OK if all(applied) else Settled.STALE
            step.kept = True
        if self._track is not None:
            self._keep_track(tracked, plain if all(answers) else [])
        self._failpoint("kept")

    def _keep_track(self, tracked: Sequence[SettleStep], written: Sequence[SettleStep]) -> None:
        """Write tracking records that other processes changed meanwhile. A record that cannot be written is out of date
        until the next settlement or its expiry, which is no reason to repeat the work."""
        assert self._track is not None
        with suppress(StoreError):
            self._track.settle([step.outcome for step in tracked if step.word is Settled.OK and step not in written])


class Ending:
    """Ends steps: removes claims, deletes or hides messages, and in FIFO queues continues their groups.

    `at_once`: send every delete and hide before a call returns.
    """

    processed: int

    def __init__(
        self,
        steps: Steps,
        in_flight: InFlightMessages,
        records: Records,
        receivers: Receivers,
        deletes: Deletes,
        *,
        at_once: bool,
        now_ms: Callable[[], int],
        failpoint: Callable[[str], None],
    ) -> None:
        self._steps, self._in_flight, self._records = steps, in_flight, records
        self._receivers, self._deletes = receivers, deletes
        self._at_once, self._now_ms, self._failpoint = at_once, now_ms, failpoint
        self.processed = 0  # number of messages that left their queue for good

    def end(self, steps: Sequence[SettleStep], pairs: Sequence[tuple[Receipt, SettleStep | None]] = ()) -> None:
        """Delete or hide the messages of `steps`. `pairs` has receipts, each forgotten unless its step failed."""
        now, in_flight = self._now_ms(), self._in_flight
        with in_flight.lock:
            for receipt, step in pairs:
                if step is None or (step.error is None and step.word is Settled.OK):
                    in_flight.held.pop(receipt, None)
                self._steps.forget(receipt)
        last = self._at_once or not in_flight.is_working(now)
        in_flight.hide([(step.held, step.hide_until_ms) for step in steps if step.hide_until_ms is not None], now)
        self.processed += sum(step.is_over for step in steps)
        back = self._next_in_groups(steps)
        self._failpoint("end")
        self._deletes.end([*(_end(step, now) for step in steps), *back], last=last)
        self._failpoint("ended")

    def _next_in_groups(self, steps: Sequence[SettleStep]) -> list[End]:
        """In FIFO queues, buffer the messages behind a deleted one to run next; returns ends to give back the rest."""
        back: list[End] = []
        for step in steps:
            held = step.held
            if held.group is not None:
                waiting = self._in_flight.fifo.over(held.group)
                self._receivers.stir(held.queue)
                if step.hide_until_ms is None:
                    self._receivers.put_back(held.queue, waiting)
                else:
                    back += self._records.given_back(held.queue, waiting)
        return back

    def leave(self, left: Sequence[ClaimedMessage]) -> None:
        """Let these messages return when their leases end; in FIFO queues, give back the messages behind them."""
        for held in left:
            if held.group is not None:
                self._deletes.end(
                    self._records.given_back(held.queue, self._in_flight.fifo.over(held.group)), last=False
                )


def _end(step: SettleStep, now: int) -> End:
    held = step.held
    most_s = max(0, held.stays_s(now))
    return End(held.queue.url, held.handle, held.until_ms, step.hide_until_ms, most_s)


def _word(step: SettleStep) -> Settled:
    return Settled.CANCELLED if step.cancelled and step.word is Settled.OK else step.word


def unavailable(errors: Sequence[StoreError | ConfigError]) -> StoreError:
    """Return one StoreUnavailable that stands for all `errors`."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return StoreUnavailable(f"{first}{more}")
