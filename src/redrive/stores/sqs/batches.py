"""Everything in tens: batches of entries to SQS, whose failures are told entry by entry."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from ...errors import ConfigError, StoreError, StoreUnavailable
from .client import Sqs

SEND = "SendMessageBatch"
ENTRIES_MAX = 10
BYTES_MAX = 1024 * 1024  # of a batch, and of a message
TRIES = 4  # of an entry that failed on AWS's side
PAUSE_S = 0.05  # before the second try; twice that before each further one

Entry = dict[str, Any]


class Job(Struct):
    """Entries for one action on one queue; `answers` has, once it is done, None for each that succeeded, or why not."""

    action: str
    url: str
    entries: list[Entry]
    sizes: list[int] = []  # bytes of each, where the action has a bound
    answers: list[StoreError | ConfigError | None] = []


def run(sqs: Sqs, jobs: Sequence[Job]) -> None:
    """Do all jobs in batches of ten, as many at once as there are threads, but what is sent to a FIFO queue in its
    order. What cannot be done stands in its answers; nothing is raised."""
    works: list[Callable[[], None]] = []
    for job in jobs:
        job.answers = [None] * len(job.entries)
        if job.action == SEND and job.url.endswith(".fifo"):
            works.append(functools.partial(_in_order, sqs, job))
        else:
            works += [functools.partial(_batch, sqs, job, part) for part in parts(job)]
    sqs.all(works)


def _in_order(sqs: Sqs, job: Job) -> None:
    """One batch after another, up to the first that fails: what is behind it must not come before it. Within that batch
    SQS may have taken what stands behind the entry that it refused."""
    failed = None
    for part in parts(job):
        if failed is None:
            _batch(sqs, job, part)
            failed = next((job.answers[at] for at in part if job.answers[at] is not None), None)
        else:
            for at in part:
                job.answers[at] = StoreUnavailable(f"not sent, as what goes before it was not: {failed}")


def parts(job: Job) -> Iterator[range]:
    """Which entries go together."""
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


def _batch(sqs: Sqs, job: Job, part: Sequence[int]) -> None:
    for turn in range(TRIES):
        if turn:
            time.sleep(PAUSE_S * 2 ** (turn - 1))
        entries = [{"Id": str(at), **job.entries[at]} for at in part]
        try:
            failed = sqs.call(job.action, QueueUrl=job.url, Entries=entries).get("Failed") or ()
        except Exception as error:  # whatever it is: what is not told done is not done
            told = error if isinstance(error, StoreError | ConfigError) else StoreUnavailable(f"SQS: {error!r}")
            for at in part:
                job.answers[at] = told
            return
        for at in part:
            job.answers[at] = None
        for failure in failed:
            job.answers[int(failure["Id"])] = _told(job, failure)
        part = [int(failure["Id"]) for failure in failed if not failure.get("SenderFault")]
        if not part:
            return


def _told(job: Job, failure: dict[str, Any]) -> StoreError:
    where = job.url.rpartition("/")[2]
    told = f"SQS {job.action} {where}: {failure.get('Code')}: {failure.get('Message') or 'no reason given'}"
    return EntryRefused(told) if failure.get("SenderFault") else StoreUnavailable(told)


class EntryRefused(StoreError):
    """SQS refuses this entry of the batch, and would again."""
