"""Ingest SQS dead-letter queues into a triage store: receive ten messages, write them there, and only then delete them.

A kill at any point leaves a message in the queue, in the store, or in both. If it is received again, it is recognised
by its id. While the store is full or cannot be reached, nothing is deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from msgspec import Struct

from ...codec import Routes
from ...errors import StoreError
from ...message import Lane, Message
from ...store import Cells, Store
from ...store.sqs import SqsCaller
from ...stores.sqs.outbox import LetterEnd, lay
from ...stores.sqs.wire import MessageState, decode
from ...worker import Service
from ...worker.redrive_outcome import swap_of_dead
from .message import dead_letter

HIDDEN_S = 120  # seconds for which received messages are hidden from other consumers while they are written
THREADS = 4  # threads that drain one queue
EMPTY_S = 3  # seconds for which a queue is polled before it counts as empty
POLL_S = 20  # longest poll, in seconds
PAUSE_S = (1.0, 60.0)  # first and longest pause after a failure to drain a queue
CLOSE_S = 1.0  # seconds for which `close` waits for the threads
RECORDS = "sqs/m/"  # prefix of the keys of cells, followed by SQS's message id


class DeadLetterSource(Struct, frozen=True):
    """A queue of SQS to drain. Its messages become messages of redrive's `queue` in `lane`."""

    queue: str
    url: str
    lane: Lane = Lane.DEAD

    @property
    def name(self) -> str:
        """The name of the queue in SQS."""
        return self.url.rpartition("/")[2]


class IngestCounts(Struct):
    """The numbers of messages of a source that were `received`: `written` (new in the store, or after an older death),
    `known` (already stored), or `left` in the queue, as the store does not accept them now."""

    received: int = 0
    written: int = 0
    known: int = 0
    left: int = 0

    def add(self, other: IngestCounts) -> None:
        self.received += other.received
        self.written += other.written
        self.known += other.known
        self.left += other.left


class DeadLetterIngest:
    """Drains dead-letter queues into one triage store. Threads and processes may do so concurrently."""

    def __init__(
        self,
        sqs: SqsCaller,
        triage: Store,
        routes: Routes,
        cells: Cells | None = None,
        count_dead: Callable[[Sequence[Message]], object] = lambda messages: None,
    ) -> None:
        """`cells` hold the state of messages that waited in SQS for a retry. `count_dead` counts members of batches."""
        self._sqs, self._triage, self._routes, self._cells = sqs, triage, routes, cells
        self._count_dead = count_dead

    def once(
        self, source: DeadLetterSource, wait_s: int | None = None, *, wanted: Callable[[], bool] = lambda: True
    ) -> IngestCounts:
        """Ingest up to ten messages; none if the queue stays empty for `wait_s` (None: EMPTY_S).

        Raises StoreError if SQS or the triage store is unusable, ConfigError if the queue does not exist: then received
        messages stay in the queue.
        """
        raws = self._receive(source, EMPTY_S if wait_s is None else wait_s)
        if raws and not wanted():  # the ingest ended during the poll
            self._show_again(source, raws)
            return IngestCounts()
        if not raws:
            return IngestCounts()
        try:
            words = self._lay(source, raws)
        except BaseException:
            self._show_again(source, raws)
            raise
        safe = [raw for raw, word in zip(raws, words, strict=True) if word is not LetterEnd.LEFT]
        self._delete(source, safe)
        written = sum(word in (LetterEnd.NEW, LetterEnd.REPLACED) for word in words)
        return IngestCounts(len(raws), written, words.count(LetterEnd.KNOWN), words.count(LetterEnd.LEFT))

    def drain(
        self, source: DeadLetterSource, said: Callable[[IngestCounts], object] = lambda counts: None
    ) -> IngestCounts:
        """Ingest all messages, on several threads. `said` gets the counts of each batch. Raises as `once`."""
        counts, lock, errors = IngestCounts(), threading.Lock(), list[BaseException]()

        def work() -> None:
            try:
                while not errors and (some := self.once(source)).received:
                    with lock:
                        counts.add(some)
                        said(some)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, name="redrive-ingest", daemon=True) for _ in range(THREADS - 1)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return counts

    def _receive(self, source: DeadLetterSource, wait_s: int) -> list[dict[str, Any]]:
        answer = self._sqs.call(
            "ReceiveMessage",
            QueueUrl=source.url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=wait_s,
            VisibilityTimeout=HIDDEN_S,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return list(answer.get("Messages") or ())

    def _lay(self, source: DeadLetterSource, raws: Sequence[dict[str, Any]]) -> list[LetterEnd]:
        now_ms = self._triage.now_ms()
        letters = [
            dead_letter(raw, queue=source.queue, lane=source.lane, routes=self._routes, now_ms=now_ms, record=record)
            for raw, record in zip(raws, self._records(raws), strict=True)
        ]
        self._tell_runs([letter.message for letter in letters if letter.untold])
        words = lay(self._triage, [letter.message for letter in letters])
        self._count_dead([letter.message for letter in letters])  # a kill before it leaves them in SQS
        return words

    def _records(self, raws: Sequence[dict[str, Any]]) -> list[MessageState | None]:
        """Read the state of each message from its cell; None if the message did not wait there for a retry."""
        if self._cells is None:
            return [None] * len(raws)
        cells = self._cells.read([RECORDS + str(raw.get("MessageId")) for raw in raws])
        return [None if cell is None else decode(cell.value) for cell in cells]

    def _tell_runs(self, messages: Iterable[Message]) -> None:
        """Record failures with the redrive runs that moved these messages, if no worker settled them since."""
        swaps = [swap for message in messages if (swap := swap_of_dead(message)) is not None]
        if swaps:
            self._triage.cells.swap(swaps)  # a swap that is refused was already applied

    def _delete(self, source: DeadLetterSource, raws: Sequence[dict[str, Any]]) -> None:
        """Delete these messages. A message that cannot be deleted now is received again, and recognised."""
        entries = [{"Id": str(n), "ReceiptHandle": raw["ReceiptHandle"]} for n, raw in enumerate(raws)]
        if entries:
            self._sqs.call("DeleteMessageBatch", QueueUrl=source.url, Entries=entries)

    def _show_again(self, source: DeadLetterSource, raws: Sequence[dict[str, Any]]) -> None:
        """Make these messages visible at once. If the call fails, they become visible after HIDDEN_S."""
        entries = [
            {"Id": str(n), "ReceiptHandle": raw["ReceiptHandle"], "VisibilityTimeout": 0} for n, raw in enumerate(raws)
        ]
        try:
            self._sqs.call("ChangeMessageVisibilityBatch", QueueUrl=source.url, Entries=entries)
        except Exception:
            return


class Ingesting(Service):
    """Drains sources on a few threads beside a worker, until `close`."""

    def __init__(
        self,
        ingest: DeadLetterIngest,
        sources: Sequence[DeadLetterSource],
        tell: Callable[[str, str, str, int], object],
    ) -> None:
        self._ingest, self._sources, self._tell = ingest, list(sources), tell
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        count = min(THREADS, len(self._sources))
        for n in range(count):
            thread = threading.Thread(
                target=self._work, args=(self._sources[n::count],), name="redrive-ingest", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Stop once received messages are written. A poll may take longer; it puts back what it receives."""
        self._stop.set()
        end_s = monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - monotonic()))

    def _work(self, sources: Sequence[DeadLetterSource]) -> None:
        wait_s = max(1, POLL_S // len(sources))
        pauses = dict.fromkeys((source.url for source in sources), 0.0)
        again_s = dict.fromkeys((source.url for source in sources), 0.0)
        while not self._stop.is_set():
            due = [source for source in sources if monotonic() >= again_s[source.url]]
            if not due:
                self._stop.wait(max(0.01, min(again_s.values()) - monotonic()))
            for source in due:
                if self._stop.is_set():
                    return
                try:
                    self._all_of(source, wait_s)
                    pauses[source.url] = 0.0
                except Exception as error:
                    if not pauses[source.url]:
                        self._tell("ingest_unavailable", f"{source.name}: {error}", "", 1)
                    pauses[source.url] = min(max(2 * pauses[source.url], PAUSE_S[0]), PAUSE_S[1])
                    again_s[source.url] = monotonic() + pauses[source.url]
                    if not isinstance(error, StoreError | ValueError):
                        raise

    def _all_of(self, source: DeadLetterSource, wait_s: int) -> None:
        counts = IngestCounts()
        while not self._stop.is_set():
            some = self._ingest.once(source, wait_s, wanted=lambda: not self._stop.is_set())
            counts.add(some)
            if some.received < 10:
                break
        if counts.left:
            text = f"{counts.left:,} of {source.name}: the store does not take them now"
            self._tell("ingest_left", text, source.queue, counts.left)
        if counts.written:
            self._tell("ingested", f"{counts.written:,} of {source.name}", source.queue, counts.written)
