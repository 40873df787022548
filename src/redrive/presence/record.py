"""The report of a process about itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from .. import message
from ..message import Cell, Counts

LISTED_MAX = 100  # the most messages, runs and schedules that a record lists


class QueueWork(Struct, frozen=True, kw_only=True):
    """A queue that a worker runs: how many of the queue's messages it runs at once at most (`concurrency`) and how many
    it has claimed (`held`). `oldest_due_ms` is the due time of the oldest claimed message that has not begun."""

    name: str
    concurrency: int
    held: int = 0
    oldest_due_ms: int | None = None


class HeldMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that a worker has claimed. `since_ms`: when it began to run, None while it waits. `isolated`: it runs
    in a child process. `alone`: nothing else runs in the worker's process."""

    id: str
    task: str
    since_ms: int | None = None
    isolated: bool = False
    alone: bool = False


class Hung(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a worker cannot begin messages of these `queues` since `since_ms`: its event loop is blocked or, with
    `timeouts`, messages past their timeouts occupy all places. The message `id` of `task` blocks them at `place` in its
    code, if known."""

    since_ms: int
    queues: tuple[str, ...] = ()
    timeouts: bool = False
    task: str = ""
    id: str = ""
    place: str = ""

    def text(self, worker: str) -> str:
        """Return a sentence with the worker, the blocked queues and the cause."""
        what = f"the places of {_plural('queue', self.queues)}" if self.timeouts else "its event loop"
        text = f"worker {worker} is hung: {self.task or 'something'} blocks {what}"
        text += ", past its timeout" if self.timeouts else ""
        return f"{text}, at {self.place}" if self.place else text


def _plural(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'s' * (len(names) != 1)} {', '.join(names)}"


class WorkerInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process of the fleet, as it last reported at `seen_ms`. Times are ms of the store's clock.

    `kind` is worker, scheduler, or carrier: one that waits for a redrive run and carries it meanwhile. `name` is the
    name under which a worker claims. `app` is MODULE:APP, if known. `drain_asked`: a person asked the process to drain;
    it begins when it reads this. `held` messages are claimed, `running` of them have started; `messages` lists the
    first hundred, the one that runs longest first. `runs` are the redrive runs that it carries, `schedules` the first
    hundred that a scheduler enqueues.

    A process that ended by itself is not listed. One without a report for 15 s, or whose name a newer process has, is
    `gone`: it was killed, or it cannot reach the store. It is listed for five minutes, with those of its messages that
    others have not taken over.

    A worker that cannot begin messages is `hung`: it gave back those that it had claimed, and claims no more of them.

    Figures are of the time since its report before, and None where they are unknown: `claims_per_s`; `cpu_share` of one
    processor; `rss_bytes`; `loop_lag_ms`, by how much the event loop was late in 99 of 100 cases; `store_p50_ms` and
    `store_p99_ms`, how long the last 256 exchanges with the store took; `clock_ahead_ms`, by how much this machine's
    clock is ahead of the store's.
    """

    name: str
    kind: str = "worker"
    host: str = ""
    pid: int = 0
    version: str = ""
    app: str | None = None
    started_ms: int = 0
    seen_ms: int = 0
    gone: bool = False
    draining: bool = False
    drain_asked: bool = False
    queues: tuple[QueueWork, ...] = ()
    held: int = 0
    running: int = 0
    hung: Hung | None = None
    messages: tuple[HeldMessage, ...] = ()
    runs: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    claims_per_s: float | None = None
    cpu_share: float | None = None
    rss_bytes: int | None = None
    loop_lag_ms: float | None = None
    store_p50_ms: float | None = None
    store_p99_ms: float | None = None
    clock_ahead_ms: int | None = None

    @property
    def state(self) -> str:
        """The state as one word: gone; of a worker hung, draining, running or idle; else its kind."""
        if self.gone:
            return "gone"
        if self.kind != "worker":
            return self.kind
        if self.hung is not None:
            return "hung"
        return "draining" if self.draining else "running" if self.held else "idle"


def with_claimed(counts: Mapping[str, Counts], workers: Iterable[WorkerInfo] | None) -> dict[str, Counts]:
    """Return the counts by queue with the age of the oldest message that has not begun. A store knows the ready
    messages; the workers report those that they have claimed and not begun, as of their last record."""
    corrected = dict(counts)
    for info in workers or ():
        for queue in info.queues if not info.gone else ():
            of = corrected.get(queue.name)
            if of is not None and queue.oldest_due_ms is not None:
                age_s = (info.seen_ms - queue.oldest_due_ms) / 1000
                corrected[queue.name] = replace(of, oldest_age_s=max(of.oldest_age_s, age_s))
    return corrected


_info_of = msgspec.json.Decoder(WorkerInfo).decode


def decode_info(cell: Cell | None) -> WorkerInfo | None:
    """Return the record in a cell; None if there is none, or if a version of redrive with another format wrote it."""
    return message.decoded(cell, _info_of, None)


class _Request(Struct, frozen=True):
    """The one field of its record that a process reads back from the store."""

    drain_asked: bool = False


_request_of = msgspec.json.Decoder(_Request).decode


def is_asked(cell: Cell | None) -> bool:
    """Return True if the record in this cell asks its process to drain."""
    return message.decoded(cell, _request_of, _Request()).drain_asked
