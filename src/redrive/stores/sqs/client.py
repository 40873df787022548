"""Call SQS: count calls, translate errors, and make batches of ten on a bounded number of threads."""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from ...awsapi.client import errors, failure, method_of, opened
from ...awsapi.http import QuickCalls
from ...errors import ConfigError, StoreError, StoreUnavailable

SEND, DELETE, HIDE = "SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"
QUICK = (SEND, "ReceiveMessage", DELETE, HIDE)  # actions called frequently
THREADS = 12  # concurrent calls of one store, besides those that wait for messages
ENTRIES_MAX = 10  # entries of one batch
BYTES_MAX = 1024 * 1024  # bytes of a batch, and of a message
TRIES = 4  # attempts of an entry that failed on AWS's side
PAUSE_S = 0.05  # pause before the second attempt; doubles with each attempt


class Sqs:
    """A thread-safe client. `requests` counts calls by action, including each attempt. `boto3`: make even the frequent
    calls with boto3, as is always done behind a proxy."""

    def __init__(
        self, region: str, endpoint: str | None = None, *, connections: int = THREADS, boto3: bool = False
    ) -> None:
        self.requests: Counter[str] = Counter()
        api = opened("sqs", region=region, endpoint=endpoint, pool=connections)
        self._client = api.client
        self._quick: QuickCalls | None = None
        if api.direct and not boto3:
            self._quick = QuickCalls(api.client, api.credentials, counted=self._counted, ca=api.ca)
        self._client.meta.events.register("before-send.sqs", self._count)
        self._errors = errors()
        self._crew = Crew("redrive-sqs", THREADS)

    def _count(self, event_name: str, **_: Any) -> None:
        self._counted(event_name.rpartition(".")[2])

    def _counted(self, action: str) -> None:
        self.requests[action] += 1

    def call(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Make the call; returns its response. Raises StoreUnavailable, StoreError, ConfigError."""
        try:
            if self._quick is None or action not in QUICK:
                answer: dict[str, Any] = getattr(self._client, method_of(action))(**parameters)
            else:
                answer = self._quick.call(action, parameters)
        except self._errors as error:
            where = str(parameters.get("QueueUrl") or parameters.get("QueueName") or "").rpartition("/")[2]
            raise failure(error, f"SQS {action} {where}".rstrip()) from error
        return answer

    def all(self, works: Sequence[Callable[[], None]]) -> None:
        """Run all works, as parallel as threads allow, and return when they are done. They must not raise."""
        if len(works) == 1:
            works[0]()
        elif works:
            self._crew.all(works)

    def close(self) -> None:
        self._crew.close()
        if self._quick is not None:
            self._quick.close()
        self._client.close()


class Crew:
    """Daemon threads that start with the first work, at most `most` of them."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0
        self._closed = False

    def grow(self, most: int) -> None:
        """Allow at least this many threads."""
        with self._lock:
            self._most = max(self._most, most)

    def start(self, work: Callable[[], None]) -> None:
        """Run `work` when a thread is free; after `close` on the caller's thread."""
        with self._lock:
            if self._closed:
                pass
            elif self._idle > 0:
                self._idle -= 1
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
            if not self._closed:
                return self._works.put(work)
        work()

    def all(self, works: Sequence[Callable[[], None]]) -> None:
        """Run all works, and return when they are done."""
        left, lock, over = [len(works)], threading.Lock(), threading.Event()

        def one(work: Callable[[], None]) -> None:
            try:
                work()
            finally:
                with lock:
                    left[0] -= 1
                    last = left[0] == 0
                if last:
                    over.set()

        for work in works[1:]:
            self.start(lambda work=work: one(work))  # type: ignore[misc]
        one(works[0])
        over.wait()

    def _work(self) -> None:
        while (work := self._works.get()) is not None:
            try:
                work()
            except BaseException:  # the thread ends with its error, and another replaces it
                with self._lock:
                    self._threads -= 1
                raise
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """End the threads, each after its current work."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._works.put(None)


# -- batches

BatchEntry = dict[str, Any]


class BatchJob(Struct):
    """Entries for one action on one queue. After `run`, `answers` has None or the error of each."""

    action: str
    url: str
    entries: list[BatchEntry]
    sizes: list[int] = []  # bytes of each entry, if the action limits them
    answers: list[StoreError | ConfigError | None] = []


def run(sqs: Sqs, jobs: Sequence[BatchJob]) -> None:
    """Run all jobs in batches of ten, as parallel as threads allow, but sends to a FIFO queue in order. Errors are in
    the answers; raises nothing."""
    works: list[Callable[[], None]] = []
    for job in jobs:
        job.answers = [None] * len(job.entries)
        if job.action == SEND and job.url.endswith(".fifo"):
            works.append(functools.partial(_in_order, sqs, job))
        else:
            works += [functools.partial(_batch, sqs, job, part) for part in parts(job)]
    sqs.all(works)


def _in_order(sqs: Sqs, job: BatchJob) -> None:
    """Send batch after batch, up to the first failure, so that no later message overtakes it. Within that batch SQS may
    have accepted entries after the failed one."""
    failed = None
    for part in parts(job):
        if failed is None:
            _batch(sqs, job, part)
            failed = next((job.answers[at] for at in part if job.answers[at] is not None), None)
        else:
            for at in part:
                job.answers[at] = StoreUnavailable(f"not sent, as what goes before it was not: {failed}")


def parts(job: BatchJob) -> Iterator[range]:
    """Yield the ranges of entries that form batches."""
    begin = size = 0
    for at in range(len(job.entries)):
        more = job.sizes[at] if job.sizes else 0
        if at - begin == ENTRIES_MAX or (at > begin and size + more > BYTES_MAX):
            yield range(begin, at)
            begin = at
            size = 0
        size += more
    if begin < len(job.entries):
        yield range(begin, len(job.entries))


def _batch(sqs: Sqs, job: BatchJob, part: Sequence[int]) -> None:
    for turn in range(TRIES):
        if turn:
            time.sleep(PAUSE_S * 2 ** (turn - 1))
        entries = [{"Id": str(at), **job.entries[at]} for at in part]
        try:
            failed = sqs.call(job.action, QueueUrl=job.url, Entries=entries).get("Failed") or ()
        except Exception as error:  # any error: an entry without a response is not done
            answer = error if isinstance(error, StoreError | ConfigError) else StoreUnavailable(f"SQS: {error!r}")
            for at in part:
                job.answers[at] = answer
            return
        for at in part:
            job.answers[at] = None
        for each in failed:
            job.answers[int(each["Id"])] = _entry_error(job, each)
        part = [int(each["Id"]) for each in failed if not each.get("SenderFault")]
        if not part:
            return


def _entry_error(job: BatchJob, failure: dict[str, Any]) -> StoreError:
    where = job.url.rpartition("/")[2]
    text = f"SQS {job.action} {where}: {failure.get('Code')}: {failure.get('Message') or 'no reason given'}"
    return EntryRefused(text) if failure.get("SenderFault") else StoreUnavailable(text)


class EntryRefused(StoreError):
    """SQS rejects this entry, and would again."""
