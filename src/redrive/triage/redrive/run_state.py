"""What is kept of a redrive run, and in which cells.

`run/ID` is the run's state: every write that carries it on swaps this cell in its commit, so that two who carry the
same run never both succeed. `run/ID/r/N` says of each message of chunk N, by a letter, what became of it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from ...message import Cell
from .pacing import Speed

INDEX = "runs"
LEASE_MS = 5000  # how long nobody carries a run whose carrier was killed
CLOSED_KEPT = 200  # closed runs that the index names: so many of people's
AUTO_KEPT = 100  # and so many of those that no person began, which may come by the second
KEPT_MS = 400 * 86_400_000  # cells of a run that is under way; refreshed with every write of the state
OVER_KEPT_MS = 30 * 86_400_000  # and of one that is closed
UNNAMED_KEPT_MS = 3_600_000  # and of one that no person began, once the index does not name it any more
STORY_MAX = 500  # lines; the first hundred and the last stay
FAILURES_MAX = 1000  # failures whose error is kept

encode = msgspec.json.Encoder().encode  # the value of any of these cells


class Status(StrEnum):
    """Stopped: by its own rule. Cancelled: by a person. Those two and done are final."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    DONE = "done"


FINAL = frozenset({Status.STOPPED, Status.CANCELLED, Status.DONE})


class Mark(StrEnum):
    """What became of one message of a plan."""

    LEFT = "."  # not tried yet
    WAITING = "w"  # moved; its first run has not settled
    DONE = "d"
    FAILED = "f"
    CHANGED = "c"  # it was not as planned any more: not moved
    ENDED = "s"  # moved, and then ended by a person: cancelled, removed, driven on
    RETURNED = "u"  # by undo


class RunState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run as it stands. Positions count messages in the plan's order: up to `at` they were tried, up to `known` it is
    written in their letters which were moved. Times are ms of the store's clock."""

    status: Status = Status.RUNNING
    phase: str = "starting"  # for people: what it is at
    why: str = ""  # of the status, or of what it waits for
    actor: str = ""
    reason: str = ""
    cause: str = ""  # who planned it where that was no person
    started_ms: int = 0
    over_ms: int = 0  # since when its status is final
    total: int = 0
    at: int = 0
    known: int = 0
    moved: int = 0
    done: int = 0
    failed: int = 0
    changed: int = 0
    ended: int = 0
    returned: int = 0
    canary_over: bool = False
    speed: Speed | None = None
    still_ms: int = 0  # since when its clock stands still: it is paused, or waits; 0: it goes
    undo: int = -1  # chunks up to here were looked through to return what has not run; -1: nobody asked
    approved_by: str = ""
    owner: str = ""  # who carries it, until
    until_ms: int = 0
    closed: bool = False  # nobody carries it any more

    @property
    def carried(self) -> tuple[object, ...]:
        """What only they change who carry it, and each of them with every commit."""
        books = self.at, self.known, self.moved, self.done, self.failed, self.changed, self.ended, self.returned
        return self.owner, self.until_ms, *books

    def held(self, now_ms: int) -> bool:
        """Whether somebody has the lease. One that lasts longer than any was given before the clock was set back."""
        return now_ms < self.until_ms <= now_ms + 2 * LEASE_MS

    @property
    def waiting(self) -> int:
        """Messages that were moved and whose first run has not settled."""
        return self.moved - self.done - self.failed

    @property
    def counts(self) -> dict[str, int]:
        """planned = moved + changed + skipped + what is still to come; moved = done + failed + waiting.

        Skipped are those left where they are as the run ended before, those returned, and those that a person ended
        after they were moved.
        """
        left = self.total - self.at if self.status in FINAL else 0
        return {
            "planned": self.total,
            "moved": self.moved,
            "done": self.done,
            "failed": self.failed,
            "skipped": self.ended + self.returned + left,
            "changed": self.changed,
            "waiting": self.waiting,
        }


class Line(Struct, frozen=True, array_like=True):
    """A line of a story: what happened, and when."""

    at_ms: int
    text: str


class Failure(Struct, frozen=True, array_like=True):
    """A message that the run moved and that failed in its first run after that."""

    id: str
    kind: str = ""
    error: str = ""
    text: str = ""
    fingerprint: str = ""
    at_ms: int = 0


class Index(Struct, frozen=True):
    """Runs that somebody may have to carry, and the last that are closed, oldest first: of people, and `auto`, which
    no person began."""

    open: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    auto: tuple[str, ...] = ()

    @property
    def over(self) -> tuple[str, ...]:
        """All that are closed, oldest first: an id begins with its time."""
        return tuple(sorted((*self.closed, *self.auto)))

    def with_open(self, id: str) -> Index:
        return Index((*self.open, id), _without(self.closed, id), _without(self.auto, id))

    def with_closed(self, id: str, *, auto: bool) -> Index:
        left, mine = _without(self.open, id), (*(self.auto if auto else self.closed), id)
        return Index(left, self.closed, mine[-AUTO_KEPT:]) if auto else Index(left, mine[-CLOSED_KEPT:], self.auto)


def _without(ids: tuple[str, ...], id: str) -> tuple[str, ...]:
    return tuple(other for other in ids if other != id)


def state_cell(id: str) -> str:
    return f"run/{id}"


def marks_cell(id: str, chunk: int) -> str:
    return f"run/{id}/r/{chunk}"


def story_cell(id: str) -> str:
    return f"run/{id}/story"


def failures_cell(id: str) -> str:
    return f"run/{id}/failed"


def read_state(cell: Cell | None) -> RunState | None:
    return None if cell is None else msgspec.json.decode(cell.value, type=RunState)


def read_index(cell: Cell | None) -> Index:
    return Index() if cell is None else msgspec.json.decode(cell.value, type=Index)


def read_story(cell: Cell | None) -> list[Line]:
    return [] if cell is None else msgspec.json.decode(cell.value, type=list[Line])


def read_failures(cell: Cell | None) -> list[Failure]:
    return [] if cell is None else msgspec.json.decode(cell.value, type=list[Failure])


def longer(story: list[Line], lines: list[Line]) -> list[Line]:
    """The story with these lines, without its middle where it has grown too long."""
    whole = [*story, *lines]
    return whole if len(whole) <= STORY_MAX else [*whole[: STORY_MAX // 5], *whole[-STORY_MAX * 4 // 5 :]]
