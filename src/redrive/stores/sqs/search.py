"""Find, cancel and count the messages of a store on SQS, as far as SQS and the stores beside it allow.

Finds messages that run in this process, those in the triage store, and with `track=true` (`track.py`) all others. SQS
counts the messages of a queue, but does not distinguish running ones from those that wait for a retry.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from ...awsapi.client import REFUSED
from ...errors import ConfigError, StoreError, StoreUnavailable, Unsupported
from ...message import Cancel, Counts, Lane, Message
from ...store import Store
from .batches import BatchCells
from .in_flight import InFlightMessages
from .members import MemberState, move_of
from .queues import QueueDirectory, SqsQueue
from .receive import Receivers
from .track import Track

UNSEEN = "SQS can look at no message that waits or runs in it"
IN_FLIGHT_MAX = 120_000  # how many messages of one queue SQS allows in flight
NEAR_LIMIT = 0.9  # from this share of IN_FLIGHT_MAX on, a retry is sent as a delayed copy, which is not in flight
LOOK_EVERY_S = 10.0
LOOK_AFTER = 500  # messages received between two counts of a queue; fewer do not bring it near its limit


class SqsSearch:
    """Finds and cancels the messages of one store."""

    def __init__(
        self, in_flight: InFlightMessages, triage: Store | None, track: Track | None, batches: BatchCells | None
    ) -> None:
        self._in_flight, self._triage, self._track, self._batches = in_flight, triage, track, batches

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        messages: list[Message | None] = self._triage.find(ids) if self._triage is not None else [None] * len(ids)
        held = self._running()
        messages = [held.get(id, message) for id, message in zip(ids, messages, strict=True)]
        if self._track is not None:
            left = [id for id, message in zip(ids, messages, strict=True) if message is None]
            tracked = dict(zip(left, self._track.find(left), strict=True))
            messages = [tracked[id] if message is None else message for id, message in zip(ids, messages, strict=True)]
        return messages

    def _running(self) -> dict[str, Message]:
        return {held.message.id: held.message for held in self._in_flight.all()}

    def cancel(self, ids: Sequence[str]) -> list[Cancel]:
        """Cancel as `Store.cancel` does. Raises Unsupported without records."""
        if self._track is None:
            raise Unsupported(
                f"{UNSEEN}, so none can be cancelled; let the handler ask whether its work is still wanted, or keep a "
                "record of each message: track=true in the store's URL"
            )
        track = self._track
        running = self._running()
        rows = [None] * len(ids) if self._triage is None else self._triage.find(ids)
        lying = {row.id: row.lane for row in rows if row is not None and row.id not in running}
        words = track.cancel([id for id in ids if lying.get(id) in (None, Lane.LEASED)], running)
        waiting = [id for id, lane in lying.items() if words.get(id, Cancel.UNKNOWN) is Cancel.UNKNOWN]
        if waiting and self._triage is not None:  # these are in the triage store
            words |= zip(waiting, self._triage.cancel(waiting), strict=True)
        if self._batches is not None:
            over = [id for id, word in words.items() if word is Cancel.CANCELLED]
            seen = {row.id: row for row in rows if row is not None}
            seen |= {one.id: one for one in (track.find(over) if over else []) if one is not None}
            self._batches.merge([move_of(seen[id], MemberState.CANCELLED) for id in over if id in seen])
        return [words[id] for id in ids]


class SqsCounts:
    """Counts the messages of one store's queues; dead and quarantined ones are counted in `triage`."""

    def __init__(
        self,
        queues: QueueDirectory,
        receivers: Receivers,
        in_flight: InFlightMessages,
        triage: Store | None,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._queues, self._receivers, self._in_flight = queues, receivers, in_flight
        self._triage, self._now_ms = triage, now_ms

    def of(self, queue: str) -> Counts:
        """Return the counts of a queue; those in SQS are zero if it does not exist there. Raises StoreUnavailable."""
        try:
            sqs_queue = self._queues.of(queue)
            ready, leased, scheduled = self._queues.counts(sqs_queue.url)
        except ConfigError as error:
            if REFUSED in str(error):
                raise StoreUnavailable(str(error)) from error
            ready = leased = scheduled = 0  # the queue does not exist
        else:
            waiting = self._in_flight.hidden_in(sqs_queue.url, self._now_ms())
            hidden = min(leased, waiting)  # SQS counts hidden messages that wait for a retry as in flight
            leased, scheduled = leased - hidden, scheduled + hidden
            if sqs_queue.fifo and hidden and self._receivers.is_dry(sqs_queue):  # visible ones wait behind hidden ones
                ready, scheduled = 0, scheduled + ready
        rest = Counts() if self._triage is None else self._triage.counts(queue)
        return Counts(
            ready=ready + rest.ready,
            scheduled=scheduled + rest.scheduled,
            leased=leased + rest.leased,
            dead=rest.dead,
            quarantine=rest.quarantine,
        )


class InFlightLimit:
    """Detects queues near IN_FLIGHT_MAX, the messages in flight beyond which SQS delivers no more."""

    def __init__(self, queues: QueueDirectory, receivers: Receivers, *, tell: Callable[[str, str], None]) -> None:
        self._queues, self._receivers, self._tell = queues, receivers, tell
        # By URL: when the queue was last counted, messages received by then, and the result.
        self._looks: dict[str, tuple[float, int, bool]] = {}

    def is_near(self, queue: SqsQueue) -> bool:
        """True if the queue is near SQS's limit of messages in flight. A count is used for ten seconds at least."""
        at_s, received, crowded = self._looks.get(queue.url, (-math.inf, 0, False))
        if time.monotonic() - at_s < LOOK_EVERY_S or (not crowded and self._receivers.received - received < LOOK_AFTER):
            return crowded
        try:
            _, flying, _ = self._queues.counts(queue.url)
        except (StoreError, ConfigError):
            return crowded
        now_crowded = flying >= NEAR_LIMIT * IN_FLIGHT_MAX
        if now_crowded and not crowded:
            self._tell(queue.name, f"{flying} messages in flight, of {IN_FLIGHT_MAX}; retries are sent as copies")
        self._looks[queue.url] = time.monotonic(), self._receivers.received, now_crowded
        return now_crowded
