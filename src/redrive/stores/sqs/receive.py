"""Receive messages: threads long-poll SQS for as many as a worker has room for, and buffer them until a claim."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from ...errors import ConfigError, StoreError, StoreUnavailable
from ...message import ClaimRequest
from .client import ENTRIES_MAX, Crew, Sqs
from .queues import SqsQueue

ANSWER_S = 0.025  # how long a claim without received messages waits for a long poll that has just begun
SHORT_ANSWER_S = 10.0  # how long a claim waits for a short poll, which responds at once
SHORT_AGAIN_S = 0.02  # shortest pause of a wait between polls
ROOM_S = 0.5  # how long a receive for less than a batch is put off, as each receive is billed
EARLY = 0.5  # an empty response counts as early before this share of the requested wait is over
EARLY_PAUSE_S = (0.2, 5.0)  # first and longest pause after early responses
FAILED_PAUSE_S = (0.1, 5.0)  # first and longest pause after failed receives
PROBE_S = 1  # requested wait of a poll that checks if receives from a queue work again
FRESH_SHARE = 0.5  # a message buffered for more than this share of its lease needs a new one
THREADS = 40  # threads of one store for receives; more if there are more queues
SYSTEM = [
    "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp", "SentTimestamp", "MessageGroupId",
    "MessageDeduplicationId", "SequenceNumber", "DeadLetterQueueSourceArn", "AWSTraceHeader", "SenderId",
]  # fmt: skip


class Received(Struct, frozen=True, gc=False):
    """A message from SQS, the time at which it was received, and the time until which SQS hides it."""

    raw: dict[str, Any]
    at_ms: int
    until_ms: int


class QueueInbox:
    """One queue's received but unclaimed messages, and its receives in progress."""

    def __init__(self, queue: SqsQueue) -> None:
        self.queue = queue
        self.buffer: deque[Received] = deque()
        self.room = 0  # number of messages that claims have asked for
        self.room_max = 0  # the highest `room` so far: that of an idle worker
        self.room_since_s: float = math.inf  # since when there is room for which no receive has begun
        self.lease_s = 30
        self.quiet = False  # True: until the next claim or wait, give back messages that open polls receive
        self.dry = False  # True: the last response was empty, and no message was settled since
        self.flying = self.expected = 0  # receives in progress; how many messages they asked for
        self.most = 1  # limit of receives in progress; grows while they return messages
        self.begun_s: float = 0.0  # when the last receive began
        self.error: StoreError | ConfigError | None = None  # the last receive's error, or None
        self.failures = 0  # failed receives in a row
        self.waking = self.reported = False  # `waking`: the error must still end a wait; `reported`: a notice has it
        self.early = 0  # empty responses in a row that were early
        self.not_before_s: float = 0.0


class Receivers:
    """The inboxes of one store. All waits share one condition variable."""

    received: int
    give_back: Callable[[SqsQueue, Sequence[Received]], None]

    def __init__(
        self,
        sqs: Sqs,
        *,
        poll_s: int,
        most: int,
        now_ms: Callable[[], int],
        tell: Callable[[str, str], None],
        give_back: Callable[[SqsQueue, Sequence[Received]], None],
    ) -> None:
        self.give_back = give_back
        self._sqs, self._poll_s, self._most, self._now_ms, self._tell = sqs, poll_s, most, now_ms, tell
        self._inboxes: dict[str, QueueInbox] = {}
        self._changed = threading.Condition()
        self._crew = Crew("redrive-sqs-receive", THREADS)
        self._nudges, self._seen = 0, threading.local()
        self._closed = False
        self.received = 0

    def ask(self, asks: Sequence[tuple[ClaimRequest, SqsQueue]], *, patient: bool) -> list[list[Received]]:
        """Take received messages for each request, and begin receives for the rest.

        From now on only the queues of these requests are received from. `patient`: wait a moment for responses. Raises
        a receive's error if the last receive of each of these queues failed and no message was received.
        """
        with self._changed:
            inboxes = [self._inbox(queue) for _, queue in asks]
            for inbox in self._inboxes.values():
                inbox.room = 0
            for inbox in inboxes:
                inbox.lease_s, inbox.quiet = 1, False
            for (ask, _), inbox in zip(asks, inboxes, strict=True):  # requests for one queue share the longest lease
                inbox.room, inbox.lease_s = inbox.room + ask.limit, max(inbox.lease_s, math.ceil(ask.lease_ms / 1000))
                inbox.room_max = max(inbox.room_max, inbox.room)
            for inbox in inboxes:
                self._fill(inbox)
            if patient:
                self._wait_for_answers(inboxes)
            given = [self._take(inbox, ask.limit) for (ask, _), inbox in zip(asks, inboxes, strict=True)]
            if patient and not any(given):
                self._raise(inboxes)
            self._report_errors(inboxes)
            return given

    def _inbox(self, queue: SqsQueue) -> QueueInbox:
        if queue.url not in self._inboxes:
            self._inboxes[queue.url] = QueueInbox(queue)
            self._crew.grow(len(self._inboxes) + self._most)  # each queue may have one poll, and one queue `most` more
        return self._inboxes[queue.url]

    def _wait_for_answers(self, inboxes: Sequence[QueueInbox]) -> None:
        bound_s = ANSWER_S if self._poll_s else SHORT_ANSWER_S
        while True:
            open_inboxes = [
                inbox for inbox in inboxes if inbox.flying and (not self._poll_s or len(inbox.buffer) < inbox.room)
            ]
            if self._poll_s and any(inbox.buffer for inbox in inboxes):
                return
            left_s = max((inbox.begun_s + bound_s for inbox in open_inboxes), default=0.0) - time.monotonic()
            if left_s <= 0:
                return
            self._changed.wait(left_s)

    def _take(self, inbox: QueueInbox, limit: int) -> list[Received]:
        taken = [inbox.buffer.popleft() for _ in range(min(limit, len(inbox.buffer)))]
        inbox.room -= len(taken)
        return taken

    def _raise(self, inboxes: Sequence[QueueInbox]) -> None:
        errors = [inbox.error for inbox in inboxes if inbox.error is not None]
        if not errors or len(errors) < len(inboxes):
            return
        for inbox in inboxes:
            inbox.not_before_s = 0.0  # do not pause the next receive, as the caller pauses
        if isinstance(errors[0], ConfigError):  # the same settings worked when the worker began
            raise StoreUnavailable(str(errors[0])) from errors[0]
        raise errors[0]

    def _report_errors(self, inboxes: Sequence[QueueInbox]) -> None:
        """Report queues whose receives fail while those of others work, and queues that can be received from again."""
        for inbox in inboxes:
            if inbox.error is not None and not inbox.reported:
                inbox.reported = True
                self._tell(inbox.queue.name, f"nothing can be received, tried again and again: {inbox.error}")
            elif inbox.error is None and inbox.reported:
                inbox.reported = False
                self._tell(inbox.queue.name, "it can be received from again")

    def wait(self, queues: Sequence[SqsQueue], *, timeout_ms: int) -> None:
        """Return when a message of these queues was received, all queues fail, on `nudge`, or after the timeout."""
        end_s = time.monotonic() + timeout_ms / 1000
        with self._changed:
            for queue in queues:
                self._inbox(queue).quiet = False  # else each message would be given back and received again at once
            while not self._closed and not self._nudged():
                mine = [self._inbox(queue) for queue in queues]
                if any(inbox.buffer for inbox in mine) or self._all_failed(mine):
                    return
                for inbox in mine:
                    inbox.room = max(inbox.room, 1)
                    self._fill(inbox)
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return
                pauses_s = [self._pause_s(inbox) for inbox in mine if not inbox.flying]
                self._changed.wait(min([left_s, *pauses_s]))

    def _all_failed(self, inboxes: Sequence[QueueInbox]) -> bool:
        """True if the receives of all inboxes fail, but only once per failure: marks the failures as seen."""
        if not inboxes or any(inbox.error is None for inbox in inboxes) or not any(inbox.waking for inbox in inboxes):
            return False
        for inbox in inboxes:
            inbox.waking = False
        return True

    def _pause_s(self, inbox: QueueInbox) -> float:
        """Return for how many seconds a wait may sleep before the inbox may begin a receive."""
        now_s = time.monotonic()
        worth_s = inbox.room_since_s + ROOM_S if inbox.room_since_s < math.inf else 0.0
        return max(SHORT_AGAIN_S, inbox.not_before_s - now_s, worth_s - now_s)

    def _nudged(self) -> bool:
        seen = getattr(self._seen, "count", 0)
        self._seen.count = self._nudges
        return seen != self._nudges

    def nudge(self) -> None:
        with self._changed:
            self._nudges += 1
            self._changed.notify_all()

    def is_dry(self, queue: SqsQueue) -> bool:
        """True if the last receive of the queue returned no message, none is buffered and none was settled since."""
        with self._changed:
            inbox = self._inboxes.get(queue.url)
            return inbox is not None and inbox.dry and not inbox.buffer

    def put_back(self, queue: SqsQueue, received: Sequence[Received], *, first: bool = True) -> None:
        """Buffer received messages again: with `first` before the buffered ones, otherwise after them."""
        with self._changed:
            buffer = self._inbox(queue).buffer
            buffer.extendleft(reversed(received)) if first else buffer.extend(received)
            self._changed.notify_all()

    def unclaimed(self, now_ms: int) -> list[tuple[SqsQueue, list[Received], int]]:
        """Empty each buffer in which a message has waited for more than FRESH_SHARE of its lease, and receive no more
        for it until the next claim. Returns the messages by queue, without those whose lease ran out, and the length of
        their leases in ms."""
        taken = []
        with self._changed:
            for inbox in self._inboxes.values():
                if any(one.until_ms - now_ms <= FRESH_SHARE * inbox.lease_s * 1000 for one in inbox.buffer):
                    alive = [one for one in inbox.buffer if one.until_ms > now_ms]
                    taken.append((inbox.queue, alive, inbox.lease_s * 1000))
                    inbox.buffer.clear()
                    inbox.room = 0
        return taken

    # -- receiving

    def _fill(self, inbox: QueueInbox) -> None:
        """Begin as many receives for the inbox as its room needs. Call it only under the lock."""
        while (
            not self._closed
            and inbox.flying < inbox.most
            and (want := min(ENTRIES_MAX, inbox.room - len(inbox.buffer) - inbox.expected)) > 0
            and (now_s := time.monotonic()) >= inbox.not_before_s
            and self._worth(inbox, want, now_s)
        ):
            inbox.room_since_s = math.inf
            inbox.flying += 1
            inbox.expected += want
            inbox.begun_s = time.monotonic()
            self._crew.start(lambda want=want: self._receive(inbox, want))  # type: ignore[misc]

    def _worth(self, inbox: QueueInbox, want: int, now_s: float) -> bool:
        """True if a receive of `want` messages is worth its price: these fill a batch, or half of an idle worker's
        room; or there has been room for ROOM_S. Notes since when there is room."""
        if not self._poll_s or want >= min(ENTRIES_MAX, inbox.room_max / 2):
            return True
        inbox.room_since_s = min(inbox.room_since_s, now_s)
        return now_s >= inbox.room_since_s + ROOM_S

    def _receive(self, inbox: QueueInbox, want: int) -> None:
        begun_s, lease_s, error = time.monotonic(), inbox.lease_s, None
        wait_s = self._poll_s if inbox.error is None else min(self._poll_s, PROBE_S)
        messages: list[dict[str, Any]] = []
        try:
            messages = (
                self._sqs.call(
                    "ReceiveMessage",
                    QueueUrl=inbox.queue.url,
                    MaxNumberOfMessages=want,
                    WaitTimeSeconds=wait_s,
                    VisibilityTimeout=lease_s,
                    MessageSystemAttributeNames=SYSTEM,
                    MessageAttributeNames=["All"],
                ).get("Messages")
                or []
            )
        except (StoreError, ConfigError) as failure:
            error = failure
        except Exception as odd:  # any error: this receive is over
            error = StoreUnavailable(f"SQS ReceiveMessage {inbox.queue.sqs_name}: {odd!r}")
        took_s, now = time.monotonic() - begun_s, self._now_ms()
        if messages and (inbox.quiet or self._closed):  # no claim will take these messages
            with suppress(Exception):  # otherwise SQS delivers them again when their lease ends
                self.give_back(inbox.queue, [Received(raw, now, now + lease_s * 1000) for raw in messages])
                messages = []
        with self._changed:
            inbox.flying -= 1
            inbox.expected -= want
            inbox.error, inbox.waking = error, error is not None
            inbox.failures = 0 if error is None else inbox.failures + 1
            inbox.buffer.extend(Received(raw, now, now + lease_s * 1000) for raw in messages)
            self.received += len(messages)
            inbox.dry = error is None and not messages
            if messages:
                inbox.most, inbox.early, inbox.not_before_s = min(self._most, inbox.most * 2), 0, 0.0
            else:
                inbox.most = 1
                inbox.room = min(inbox.room, 0 if self._poll_s == 0 else inbox.room)
                if error is not None:
                    first_s, most_s = FAILED_PAUSE_S
                    inbox.not_before_s = time.monotonic() + min(most_s, first_s * 2 ** min(inbox.failures - 1, 10))
                elif took_s < wait_s * EARLY:
                    self._came_early(inbox)
            self._fill(inbox)
            self._changed.notify_all()

    def _came_early(self, inbox: QueueInbox) -> None:
        """Pause receives: SQS responds to a long poll at once if a queue has its limit of messages in flight."""
        inbox.early += 1
        first_s, most_s = EARLY_PAUSE_S
        inbox.not_before_s = time.monotonic() + min(most_s, first_s * 2 ** min(inbox.early - 1, 10))
        if inbox.early == 3:
            self._tell(inbox.queue.name, "SQS answers at once that there is nothing, though it was asked to wait")

    def stir(self, queue: SqsQueue) -> None:
        """Note that a message of the queue was settled, so that the inbox is not dry."""
        with self._changed:
            self._inbox(queue).dry = False

    def quiesce(self, queues: Collection[str] | None) -> None:
        """Give back unclaimed messages of these queues (None: of all), also from open polls, until the next claim or
        wait."""
        with self._changed:
            inboxes = [inbox for inbox in self._inboxes.values() if queues is None or inbox.queue.name in queues]
            left = [(inbox.queue, [*inbox.buffer]) for inbox in inboxes if inbox.buffer]
            for inbox in inboxes:
                inbox.quiet, inbox.room = True, 0
                inbox.buffer.clear()
        for queue, received in left:
            self.give_back(queue, received)

    def drop(self) -> list[tuple[SqsQueue, list[Received]]]:
        """Close the inboxes and end the threads; returns the unclaimed messages by queue."""
        with self._changed:
            self._closed = True
            left = [(inbox.queue, [*inbox.buffer]) for inbox in self._inboxes.values()]
            for inbox in self._inboxes.values():
                inbox.buffer.clear()
            self._changed.notify_all()
        self._crew.close()
        return left
