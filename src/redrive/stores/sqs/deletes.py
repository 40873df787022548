"""The last step of settling: delete messages or change their visibility, in batches of ten.

Entries that do not fill a batch wait a moment for those of the next call, so that a request rarely carries fewer than
ten; their messages stay hidden meanwhile. A failed entry is retried until its message's visibility ends. Then SQS
delivers that message again, as after a crash.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from ...errors import ConfigError, StoreError
from .client import DELETE, ENTRIES_MAX, HIDE, BatchJob, EntryRefused, Sqs, run

LINGER_S = 0.1
AGAIN_S = 1.0  # how long a failed entry waits for its next attempt
SECONDS_MAX = 12 * 3600


class End(NamedTuple):
    """A message to delete, or to hide until `until_ms`. A failed attempt is repeated until `expires_ms`."""

    url: str
    handle: str
    expires_ms: int
    until_ms: int | None = None
    most_s: int = SECONDS_MAX  # longest time for which SQS may hide the message now


class Deletes:
    """Deletes and hides messages in batches of ten."""

    def __init__(self, sqs: Sqs, *, now_ms: Callable[[], int], tell: Callable[[str, str], None]) -> None:
        self._sqs, self._now_ms, self._tell = sqs, now_ms, tell
        self._left: list[End] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._adopted, self._undeleted = set[str](), dict[str, End]()  # by SQS's receipt
        self._due_s = math.inf  # when entries in partial batches are sent at the latest

    def end(self, ends: Sequence[End], *, last: bool) -> None:
        """Add entries and send the full batches; with `last`, send all entries. Adopted messages are not deleted."""
        with self._changed:
            todo, self._left = [*self._left, *self._without_adopted(ends)], []
        if not last:
            todo, left = _full(todo)
            self._keep(left, LINGER_S)
        self._do(todo)

    def flush(self) -> None:
        """Send all entries that wait for a full batch."""
        self.end([], last=True)

    # -- messages that Lambda received

    def adopt(self, handles: Collection[str]) -> None:
        """Withhold the deletes of these messages, which Lambda received, until `over` is called for them."""
        self._adopted.update(handles)

    def _without_adopted(self, ends: Sequence[End]) -> Sequence[End]:
        if not self._adopted:
            return ends
        left = {end.handle: end for end in ends if end.until_ms is None and end.handle in self._adopted}
        self._undeleted |= left
        return [end for end in ends if end.handle not in left]

    def over(self, handles: Collection[str]) -> list[End]:
        """Return the withheld deletes of these messages, and end the adoption of the messages that have one."""
        ends = [self._undeleted.pop(handle) for handle in handles if handle in self._undeleted]
        self._adopted.difference_update(end.handle for end in ends)
        return ends

    def forget(self, handles: Collection[str]) -> None:
        """End the adoption of these messages, whether they have a withheld delete or not."""
        self._adopted.difference_update(handles)

    # -- batches

    def _keep(self, ends: Sequence[End], within_s: float) -> None:
        if not ends:
            return
        with self._changed:
            self._left += ends
            self._due_s = min(self._due_s, time.monotonic() + within_s)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="redrive-sqs-deletes", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (left_s := self._due_s - time.monotonic()) > 0:
                    self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
                if self._closed:
                    return
                todo, self._left, self._due_s = self._left, [], math.inf
            self._do(todo)

    def _do(self, ends: Sequence[End]) -> None:
        if not ends:
            return
        jobs, now = dict[tuple[str, str], tuple[BatchJob, list[End]]](), self._now_ms()
        for end in ends:
            action = DELETE if end.until_ms is None else HIDE
            job, mine = jobs.setdefault((action, end.url), (BatchJob(action, end.url, []), []))
            entry: dict[str, object] = {"ReceiptHandle": end.handle}
            if end.until_ms is not None:
                entry["VisibilityTimeout"] = min(max(0, math.ceil((end.until_ms - now) / 1000)), max(0, end.most_s))
            job.entries.append(entry)
            mine.append(end)
        run(self._sqs, [job for job, _ in jobs.values()])
        failed = [
            (end, error)
            for job, mine in jobs.values()
            for end, error in zip(mine, job.answers, strict=True)
            if error is not None
        ]
        self._again(failed)

    def _again(self, failed: Sequence[tuple[End, StoreError | ConfigError]]) -> None:
        """Retry failed entries later, and report those that were refused or too late; SQS may redeliver them."""
        now = self._now_ms()
        again = [end for end, error in failed if not isinstance(error, EntryRefused) and now < end.expires_ms]
        lost = [(end, error) for end, error in failed if end not in again]
        if lost:
            where = lost[0][0].url.rpartition("/")[2]
            self._tell(where, f"{len(lost)} messages could not be ended, and may be delivered again: {lost[0][1]}")
        self._keep(again, AGAIN_S)

    def close(self) -> None:
        self.flush()
        with self._changed:
            self._closed = True
            self._changed.notify()


def _full(ends: Sequence[End]) -> tuple[list[End], list[End]]:
    """Split the entries into those that fill batches of ten, by queue and action, and the rest."""
    kinds: dict[tuple[str, bool], list[End]] = {}
    for end in ends:
        kinds.setdefault((end.url, end.until_ms is None), []).append(end)
    full, left = list[End](), list[End]()
    for kind in kinds.values():
        whole = len(kind) - len(kind) % ENTRIES_MAX
        full += kind[:whole]
        left += kind[whole:]
    return full, left
