"""Receivers: threads that long-poll SQS for as many messages as a worker has room for, and hold them till it asks."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from ...errors import ConfigError, StoreError, StoreUnavailable
from ...message import Ask
from .batches import ENTRIES_MAX
from .client import Crew, Sqs
from .queues import Place

ANSWER_S = 0.025  # how long a claim waits for a long poll that has just begun, where there is nothing else to do
SHORT_ANSWER_S = 10.0  # the same for a short poll, which says at once that there is nothing
SHORT_AGAIN_S = 0.02  # how long a waiter pauses between short polls
ROOM_S = 0.5  # how long room for a few waits until there is room for more: each receive is billed
EARLY = 0.5  # an empty answer after less than this share of the wait asked for came too early
EARLY_PAUSE_S = (0.2, 5.0)  # the first and the longest pause after such answers
FAILED_PAUSE_S = (0.1, 5.0)  # the same after receives that failed
PROBE_S = 1  # how long the poll waits that is to find out whether a queue can be received from again
THREADS = 40  # of one store, for all its queues, unless these are more
SYSTEM = [
    "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp", "SentTimestamp", "MessageGroupId",
    "MessageDeduplicationId", "SequenceNumber", "DeadLetterQueueSourceArn", "AWSTraceHeader", "SenderId",
]  # fmt: skip


class Received(Struct, frozen=True, gc=False):
    """A message as SQS delivered it, and until when it is ours."""

    raw: dict[str, Any]
    at_ms: int
    until_ms: int


class Line:
    """What is known of one queue: what was received and not claimed, and what is under way."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.buffer: deque[Received] = deque()
        self.room = 0  # how many messages are wanted beyond those in the buffer
        self.room_max = 0  # the most that ever were: what an idle worker has room for
        self.room_since_s = math.inf  # since when there is room that no receive is to fill
        self.lease_s = 30
        self.dry = False  # the last answer brought nothing, and nothing was settled since
        self.flying = self.expected = 0  # receives under way, and how many messages they asked for
        self.most = 1  # receives at once: grows while they bring something
        self.begun_s = 0.0  # when the last receive began
        self.error: StoreError | ConfigError | None = None  # of the last receive
        self.failures = 0  # in a row
        self.waking = self.told = False  # the error is to wake who waits; it was told by a notice
        self.early = 0  # empty answers in a row that came too early
        self.not_before_s = 0.0


class Receivers:
    """The lines of one store. All waiting is on one condition."""

    def __init__(
        self,
        sqs: Sqs,
        *,
        poll_s: int,
        most: int,
        now_ms: Callable[[], int],
        tell: Callable[[str, str], None],
        give_back: Callable[[Place, Sequence[Received]], None],
    ) -> None:
        self._give_back = give_back
        self._sqs, self._poll_s, self._most, self._now_ms, self._tell = sqs, poll_s, most, now_ms, tell
        self._lines: dict[str, Line] = {}
        self._changed = threading.Condition()
        self._crew = Crew("redrive-sqs-receive", THREADS)
        self._nudges, self._seen = 0, threading.local()
        self._closed = self._quiet = False
        self.received = 0

    def ask(self, asks: Sequence[tuple[Ask, Place]], *, patient: bool) -> list[list[Received]]:
        """What there is for each ask. Receives are begun for the rest; only what is asked for now is received from
        here on. `patient`: wait a moment for the answers. Raises the error of a receive, where all queues that
        were asked have one and nothing came."""
        with self._changed:
            self._quiet = self._quiet and not asks
            lines = [self._line(place) for _, place in asks]
            for line in self._lines.values():
                line.room = 0
            for line in lines:
                line.lease_s = 1
            for (ask, _), line in zip(asks, lines, strict=True):  # asks of one queue share the longest lease
                line.room, line.lease_s = line.room + ask.limit, max(line.lease_s, math.ceil(ask.lease_ms / 1000))
                line.room_max = max(line.room_max, line.room)
            for line in lines:
                self._fill(line)
            if patient:
                self._wait_for_answers(lines)
            given = [self._take(line, ask.limit) for (ask, _), line in zip(asks, lines, strict=True)]
            if patient and not any(given):
                self._raise(lines)
            self._tell_of(lines)
            return given

    def _line(self, place: Place) -> Line:
        if place.url not in self._lines:
            self._lines[place.url] = Line(place)
            self._crew.grow(len(self._lines) + self._most)  # each may be polled, and one be busy beside that
        return self._lines[place.url]

    def _wait_for_answers(self, lines: Sequence[Line]) -> None:
        bound_s = ANSWER_S if self._poll_s else SHORT_ANSWER_S
        while True:
            open_lines = [line for line in lines if line.flying and (not self._poll_s or len(line.buffer) < line.room)]
            if self._poll_s and any(line.buffer for line in lines):
                return
            left_s = max((line.begun_s + bound_s for line in open_lines), default=0.0) - time.monotonic()
            if left_s <= 0:
                return
            self._changed.wait(left_s)

    def _take(self, line: Line, limit: int) -> list[Received]:
        taken = [line.buffer.popleft() for _ in range(min(limit, len(line.buffer)))]
        line.room -= len(taken)
        return taken

    def _raise(self, lines: Sequence[Line]) -> None:
        errors = [line.error for line in lines if line.error is not None]
        if not errors or len(errors) < len(lines):
            return
        for line in lines:
            line.not_before_s = 0.0  # who hears of it takes a pause
        if isinstance(errors[0], ConfigError):  # it was right when the worker began, and may be so again
            raise StoreUnavailable(str(errors[0])) from errors[0]
        raise errors[0]

    def _tell_of(self, lines: Sequence[Line]) -> None:
        """Of queues that cannot be received from, while others can."""
        for line in lines:
            if line.error is not None and not line.told:
                line.told = True
                self._tell(line.place.queue, f"nothing can be received, tried again and again: {line.error}")
            elif line.error is None and line.told:
                line.told = False
                self._tell(line.place.queue, "it can be received from again")

    def wait(self, lines: Sequence[Place], *, timeout_ms: int) -> None:
        """Return when something of these was received, on nudge, or after the timeout."""
        end_s = time.monotonic() + timeout_ms / 1000
        with self._changed:
            while not self._closed and not self._nudged():
                mine = [self._line(place) for place in lines]
                if any(line.buffer for line in mine) or self._all_failed(mine):
                    return
                for line in mine:
                    line.room = max(line.room, 1)
                    self._fill(line)
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return
                pauses_s = [self._pause_s(line) for line in mine if not line.flying]
                self._changed.wait(min([left_s, *pauses_s]))

    def _all_failed(self, lines: Sequence[Line]) -> bool:
        """Whether nothing can be received of any of them; said once for each failure."""
        if not lines or any(line.error is None for line in lines) or not any(line.waking for line in lines):
            return False
        for line in lines:
            line.waking = False
        return True

    def _pause_s(self, line: Line) -> float:
        """In how long a receive may be begun that is not worth it now, or not allowed."""
        now_s = time.monotonic()
        worth_s = line.room_since_s + ROOM_S if line.room_since_s < math.inf else 0.0
        return max(SHORT_AGAIN_S, line.not_before_s - now_s, worth_s - now_s)

    def _nudged(self) -> bool:
        seen = getattr(self._seen, "count", 0)
        self._seen.count = self._nudges
        return seen != self._nudges

    def nudge(self) -> None:
        with self._changed:
            self._nudges += 1
            self._changed.notify_all()

    def is_dry(self, place: Place) -> bool:
        """Whether the last receive brought nothing, and nothing lies here."""
        with self._changed:
            line = self._lines.get(place.url)
            return line is not None and line.dry and not line.buffer

    def put_back(self, place: Place, received: Sequence[Received], *, first: bool = True) -> None:
        """These are to be claimed next, or after what else was received."""
        with self._changed:
            buffer = self._line(place).buffer
            buffer.extendleft(reversed(received)) if first else buffer.extend(received)
            self._changed.notify_all()

    # -- receiving

    def _fill(self, line: Line) -> None:
        """Begin as many receives as there is room for. Under the lock."""
        while (
            not self._closed
            and line.flying < line.most
            and (want := min(ENTRIES_MAX, line.room - len(line.buffer) - line.expected)) > 0
            and (now_s := time.monotonic()) >= line.not_before_s
            and self._worth(line, want, now_s)
        ):
            line.room_since_s = math.inf
            line.flying += 1
            line.expected += want
            line.begun_s = time.monotonic()
            self._crew.start(lambda want=want: self._receive(line, want))  # type: ignore[misc]

    def _worth(self, line: Line, want: int, now_s: float) -> bool:
        """Whether there is room for ten, or for half of what an idle worker takes, which has the other half to do; or
        for anything for a while."""
        if not self._poll_s or want >= min(ENTRIES_MAX, line.room_max / 2):
            return True
        line.room_since_s = min(line.room_since_s, now_s)
        return now_s >= line.room_since_s + ROOM_S

    def _receive(self, line: Line, want: int) -> None:
        begun_s, lease_s, error = time.monotonic(), line.lease_s, None
        wait_s = self._poll_s if line.error is None else min(self._poll_s, PROBE_S)
        messages: list[dict[str, Any]] = []
        try:
            messages = (
                self._sqs.call(
                    "ReceiveMessage",
                    QueueUrl=line.place.url,
                    MaxNumberOfMessages=want,
                    WaitTimeSeconds=wait_s,
                    VisibilityTimeout=lease_s,
                    MessageSystemAttributeNames=SYSTEM,
                    MessageAttributeNames=["All"],
                ).get("Messages")
                or []
            )
        except (StoreError, ConfigError) as told:
            error = told
        except Exception as odd:  # whatever it is, the receive is over
            error = StoreUnavailable(f"SQS ReceiveMessage {line.place.name}: {odd!r}")
        took_s, now = time.monotonic() - begun_s, self._now_ms()
        if messages and (self._quiet or self._closed):  # nobody will claim them
            with suppress(Exception):  # then they come back when their lease ends
                self._give_back(line.place, [Received(raw, now, now + lease_s * 1000) for raw in messages])
                messages = []
        with self._changed:
            line.flying -= 1
            line.expected -= want
            line.error, line.waking = error, error is not None
            line.failures = 0 if error is None else line.failures + 1
            line.buffer.extend(Received(raw, now, now + lease_s * 1000) for raw in messages)
            self.received += len(messages)
            line.dry = error is None and not messages
            if messages:
                line.most, line.early, line.not_before_s = min(self._most, line.most * 2), 0, 0.0
            else:
                line.most = 1
                line.room = min(line.room, 0 if self._poll_s == 0 else line.room)
                if error is not None:
                    first_s, most_s = FAILED_PAUSE_S
                    line.not_before_s = time.monotonic() + min(most_s, first_s * 2 ** min(line.failures - 1, 10))
                elif took_s < wait_s * EARLY:
                    self._came_early(line)
            self._fill(line)
            self._changed.notify_all()

    def _came_early(self, line: Line) -> None:
        """At its cap of messages in flight SQS answers a long poll at once, and with nothing. Not to be asked again at
        once."""
        line.early += 1
        first_s, most_s = EARLY_PAUSE_S
        line.not_before_s = time.monotonic() + min(most_s, first_s * 2 ** min(line.early - 1, 10))
        if line.early == 3:
            self._tell(line.place.queue, "SQS answers at once that there is nothing, though it was asked to wait")

    def stir(self, place: Place) -> None:
        """Something of it was settled."""
        with self._changed:
            self._line(place).dry = False

    def hush(self) -> None:
        """Until the next ask nobody claims anything: what was received goes back, as does what polls under way
        bring."""
        with self._changed:
            self._quiet = True
            left = [(line.place, [*line.buffer]) for line in self._lines.values() if line.buffer]
            for line in self._lines.values():
                line.room = 0
                line.buffer.clear()
        for place, received in left:
            self._give_back(place, received)

    def drop(self) -> list[tuple[Place, list[Received]]]:
        """End, and give back what nobody claimed."""
        with self._changed:
            self._closed = True
            left = [(line.place, [*line.buffer]) for line in self._lines.values()]
            for line in self._lines.values():
                line.buffer.clear()
            self._changed.notify_all()
        self._crew.close()
        return left
