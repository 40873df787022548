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
QUICK = (SEND, "ReceiveMessage", DELETE, HIDE)  # frequent actions, which are called without boto3 where possible
THREADS = 12  # concurrent calls of one store, besides calls that wait for messages
ENTRIES_MAX = 10  # most entries in one batch
BYTES_MAX = 1024 * 1024  # most bytes in one batch, and in one message
TRIES = 4  # attempts for an entry that failed on AWS's side
PAUSE_S = 0.05  # pause before the second attempt; doubles before each further one


class Sqs:
    """A thread-safe client of SQS. `requests` counts calls by action, every attempt. `boto3`: make the frequent calls
    with boto3 too, as is always done behind a proxy."""

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
        """Call SQS with the action; returns the response. Raises StoreUnavailable, StoreError, ConfigError."""
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
        """Run all works, as parallel as threads allow, and return when the last one ends. Works must not raise."""
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
    """A group of at most `most` daemon threads, each started when a work finds no idle thread."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0
        self._closed = False

    def grow(self, most: int) -> None:
        """Raise the limit of threads to `most`, unless it is higher already."""
        with self._lock:
            self._most = max(self._most, most)

    def start(self, work: Callable[[], None]) -> None:
        """Run `work` on a thread, when one is free; after `close`, run it now on the caller's thread."""
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
        """Run all works, the first on the caller's thread, and return when the last one ends."""
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
            except BaseException:  # this thread ends with the error; a later work starts another
                with self._lock:
                    self._threads -= 1
                raise
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """End the threads, each after the works that wait for it."""
        with self._lock:
            self._closed = True
            for _ in range(self._threads):
                self._works.put(None)


# -- batches

BatchEntry = dict[str, Any]


class BatchJob(Struct):
    """Entries for one action on one queue. After `run`, `answers` has for each entry its error, or None."""

    action: str
    url: str
    entries: list[BatchEntry]
    sizes: list[int] = []  # bytes of each entry; empty if the action does not limit them
    answers: list[StoreError | ConfigError | None] = []


def run(sqs: Sqs, jobs: Sequence[BatchJob]) -> None:
    """Run all jobs in batches of ten, as parallel as threads allow; a job that sends to a FIFO queue runs its batches
    in order. Raises nothing: errors are in the jobs' `answers`."""
    works: list[Callable[[], None]] = []
    for job in jobs:
        job.answers = [None] * len(job.entries)
        if job.action == SEND and job.url.endswith(".fifo"):
            works.append(functools.partial(_in_order, sqs, job))
        else:
            works += [functools.partial(_batch, sqs, job, part) for part in parts(job)]
    sqs.all(works)


def _in_order(sqs: Sqs, job: BatchJob) -> None:
    """Send the job's batches in order, up to the first that has a failed entry, so that no later message overtakes that
    one. Within that batch SQS may have accepted entries after the failed one."""
    failed = None
    for part in parts(job):
        if failed is None:
            _batch(sqs, job, part)
            failed = next((job.answers[at] for at in part if job.answers[at] is not None), None)
        else:
            for at in part:
                job.answers[at] = StoreUnavailable(f"not sent, as what goes before it was not: {failed}")


def parts(job: BatchJob) -> Iterator[range]:
    """Yield the range of the job's entries that go into each batch."""
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
        except Exception as error:  # any error: without a response, each entry counts as failed
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
    """SQS rejects an entry, and would reject it again."""
