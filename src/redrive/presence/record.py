"""What a process tells about itself."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..message import Cell

LISTED_MAX = 100  # messages, runs and schedules that a record lists


class QueueWork(Struct, frozen=True, kw_only=True):
    """A queue that a worker runs, with the most messages of it that it runs at once, and how many it holds."""

    name: str
    concurrency: int
    held: int = 0


class HeldMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that a worker holds: since when it runs, None while it waits to start; and whether it runs `isolated`,
    in a child process, or `alone`, with nothing else in the process."""

    id: str
    task: str
    since_ms: int | None = None
    isolated: bool = False
    alone: bool = False


class WorkerInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process of the fleet, as it last told at `seen_ms`. Times are ms of the store's clock.

    `kind` is worker, scheduler, or carrier: one that waits for a redrive run and carries it meanwhile. `name` is the
    name under which a worker claims. `app` is MODULE:APP, where that is known. `drain_asked`: a person asked it to
    drain, and it begins once it reads that. `held` messages are claimed, `running` of them have started; `messages`
    lists the first hundred, the one that runs longest first. `runs` are the redrive runs that it carries, `schedules`
    the first hundred that a scheduler enqueues.

    A process that ended by itself is not listed. One that has told nothing for 15 s, or whose name a newer process has,
    is `gone`: it was killed, or it cannot reach the store. It is listed for five minutes, with
    what others have not taken over of what it held.

    Figures are of the time since it told before, and None where they are unknown: `claims_per_s`; `cpu_share` of one
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
        """In a word: gone; of a worker draining, running or idle; else its kind."""
        if self.gone:
            return "gone"
        if self.kind != "worker":
            return self.kind
        return "draining" if self.draining else "running" if self.held else "idle"


def decoded(cell: Cell | None) -> WorkerInfo | None:
    """The record in a cell; None where there is none, or another version wrote it in another form."""
    try:
        return None if cell is None else msgspec.json.decode(cell.value, type=WorkerInfo)
    except msgspec.DecodeError:
        return None


class _Request(Struct, frozen=True):
    """What a process looks for in its own record."""

    drain_asked: bool = False


_request_of = msgspec.json.Decoder(_Request).decode


def is_asked(cell: Cell | None) -> bool:
    """Whether the record in this cell asks its process to drain."""
    try:
        return cell is not None and _request_of(cell.value).drain_asked
    except msgspec.DecodeError:
        return False  # altered by hand
