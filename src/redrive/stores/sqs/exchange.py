"""The settlements of one call: each step of `settle.py` for all of them, then the next; what fails half-way goes
on from there when the call comes again."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...awsapi.client import REFUSED
from ...errors import ConfigError, EnqueueError
from ...message import Ack, Receipt, Settled, Settlement
from .end import Ending
from .in_flight import Holding
from .keys import Putting, Send
from .queues import Queues
from .send import is_final
from .settle import Settling, Step, unavailable
from .track import Track


class Settlements:
    """How one store settles what an exchange brings. `send` sends messages; `track`, `putting` with `track=true`."""

    def __init__(
        self,
        places: Queues,
        settling: Settling,
        ending: Ending,
        holding: Holding,
        *,
        track: Track | None,
        putting: Putting | None,
        send: Send,
    ) -> None:
        self._places, self._settling, self._ending, self._holding = places, settling, ending, holding
        self._track, self._putting, self._send = track, putting, send

    def check(self, settlements: Sequence[Settlement]) -> None:
        """Raises EnqueueError where there is no queue for a follow-up: then nothing is to be settled."""
        for draft in (draft for s in settlements for draft in s.follow_ups):
            try:
                self._places.of(draft.queue)
            except ConfigError as error:
                if REFUSED in str(error):
                    raise
                raise EnqueueError(f"a follow-up of task {draft.task!r}: {error}; nothing was settled") from error

    def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Raises StoreUnavailable if something could not be sent or kept: the same call goes on from there. What that
        does not concern ends now."""
        if not settlements:
            return []
        if self._track is not None:
            self._see_cancels(self._track, settlements)
        pairs: list[tuple[Receipt, Step | None]] = []
        for settlement in settlements:
            receipt, held = settlement.receipt, self._holding.held.get(settlement.receipt)
            step = self._settling.ended(receipt) if held is None else self._settling.step(held, settlement)
            pairs.append((receipt, step))
        steps = [step for _, step in pairs if step is not None and not step.ended]
        self._settling.stop(steps)
        if self._putting is not None:
            self._follow(self._putting, steps)
        self._settling.send([step for step in steps if step.error is None])
        self._refuse(pairs)
        self._settling.keep(steps)
        done = [step for step in steps if step.error is None]
        self._ending.leave([step.held for step in done if step.word is not Settled.OK])
        self._ending.end([step for step in done if step.word is Settled.OK], pairs)
        for step in done:
            step.ended = True
        errors = [step.error for step in steps if step.error is not None]
        if errors:
            for receipt, step in pairs:
                if step is not None:
                    self._settling.remember(receipt, step)
            raise unavailable(errors)
        return [Settled.STALE if step is None else _word(step) for _, step in pairs]

    def _see_cancels(self, track: Track, settlements: Sequence[Settlement]) -> None:
        """Whatever is not done ends, if that was asked for."""
        undone = [s.receipt for s in settlements if not isinstance(s.decision, Ack)]
        running = [held for receipt in undone if (held := self._holding.held.get(receipt)) is not None]
        asked = track.asked([held.message.id for held in running])
        for held in running:
            if held.message.id in asked:
                held.message = replace(held.message, cancel=True)

    def _follow(self, putting: Putting, steps: Sequence[Step]) -> None:
        """Send what follows, but for what another message of its key makes needless."""
        todo = [step for step in steps if not step.sent and step.word is Settled.OK]
        sends = [(step, send) for step in todo for send in step.sends if send.message.id != step.held.message.id]
        if not sends:
            return
        ending = {step.held.message.id for step in todo if step.gives_key_back}
        keys_for_ms = [send.key_for_ms for _, send in sends]
        told = putting.put([send.message for _, send in sends], self._send, keys_for_ms=keys_for_ms, ending=ending)
        for (step, send), word in zip(sends, told, strict=True):
            if word is None or isinstance(word, str):
                step.sends.remove(send)
            elif is_final(word):
                step.sends.remove(send)
                step.refused = word
            else:
                step.error = word

    def _refuse(self, pairs: Sequence[tuple[Receipt, Step | None]]) -> None:
        """Raises EnqueueError for a follow-up that SQS never takes; what else was sent is known when it comes again."""
        errors = [step.refused for _, step in pairs if step is not None and step.refused is not None]
        if errors:
            for receipt, step in pairs:
                if step is not None and step.refused is None:
                    self._settling.remember(receipt, step)
            raise EnqueueError(f"SQS takes no such follow-up: {errors[0]}")


def _word(step: Step) -> Settled:
    return Settled.CANCELLED if step.cancelled and step.word is Settled.OK else step.word
