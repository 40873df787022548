"""The stored form of a plan and its run: values, and the cells that hold them.

- `run/ID/plan`: the plan. `run/ID/c/N`: its chunk N, at most 1,000 messages as they were when it was made; handles of
  waiting messages have their fence and due time, and for an edit their queue, priority and deadline, so that an older
  program refuses the chunk. Chunks are written first and the plan last: an interrupted plan does not exist, and its
  chunks expire.
- `run/ID`: the state of the run. Every write that advances the run swaps this cell in the same commit, so that only one
  of two processes on the same run succeeds.
- `run/ID/r/N`: one letter for each message of chunk N, a `PlanMark`.
- `run/ID/story` and `run/ID/failed`: the events of the run, and the messages that failed again. `runs`: the index of
  runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...errors import PlanRefused
from ...flow.gates import Gates
from ...message import RUNS_CELL, UNREADABLE, Cell, Handle, Swap, decoded, required, version_of
from ...store import Cells, Store
from .pacing import Speed

CHUNK = 1000  # most messages in one cell
AT_ONCE = 10  # cells of chunks in one read
INDEX = RUNS_CELL
LEASE_MS = 5000  # ms for which a run rests after its runner was killed
CLOSED_KEPT = 200  # most closed runs in the index that people started
AUTO_KEPT = 100  # most closed runs in the index that machines started, maybe one every second
RECENT, RECENT_MAX = "plans/recent", 200  # the recent plans, found by the beginning of an id; their number
PLAN_KEPT_MS = 7 * 24 * 3_600_000  # ms that a plan is kept if it is not started
KEPT_MS = 400 * 86_400_000  # ms that the cells of an open run are kept after the last write of its state
OVER_KEPT_MS = 30 * 86_400_000  # ms that the cells of a closed run are kept
UNNAMED_KEPT_MS = 3_600_000  # ms that the cells of an automatic run are kept after it left the index
STORY_MAX = 500  # most lines of a story: the first hundred and the last ones are kept
FAILURES_MAX = 1000  # most failures stored with their errors

encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode  # for the values of all these cells


# -- the plan


class RedriveSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings with which a run moves the messages of a plan. `options.read_settings` converts options as people
    write them.

    Defaults are not stored, so that a new field does not change the digest of an older plan.
    """

    rate: float | None = None  # messages a second; None: MAX_PER_S
    at_once: int | None = None  # most messages that were moved and have no outcome yet; None: any number
    canary: int = 0  # number of messages moved first; the rest follows after their outcomes
    slow_start: bool = False
    halve_on_failures: bool = False
    stop_if: str = ""  # stop rule such as "failed>20%"; empty: never stop
    attempts: int | None = None  # attempts of the new life; None: the policy's
    to_queue: str | None = None
    delay_ms: int = 0
    spread_ms: int = 0  # each message is due up to so many ms later, at random
    keep_deadline: bool = False
    gates: Gates | None = None  # None: the defaults of Gates
    note: str = ""
    hurry: bool = False  # the messages wait: the run gives them another due time, and they keep their lives
    edit: bool = False  # the messages wait: the run changes what the options say, and they keep their lives
    priority: int | None = None  # of an edit, as all below; None: their own
    deadline_ms: int | None = None  # from the change on; 0: none; None: their own
    cancel: bool = False
    unwatched: bool = False  # a message is done once it is changed, as its outcome is hours away, or never comes

    @property
    def kind(self) -> str:
        """What the run does with the messages: redrive, hurry, edit or cancel."""
        return "hurry" if self.hurry else "cancel" if self.cancel else "edit" if self.edit else "redrive"

    @property
    def moves_due(self) -> bool:
        """True if a delay is set: the run gives messages other due times."""
        return bool(self.delay_ms or self.spread_ms)


class Plan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A plan: the settings of a run, and the counts of its messages.

    `selector` chose them at `made_ms`, by the store's clock. `by_queue` and `by_task` name at most a thousand; the
    others are counted together as "…". `by_age` counts them by time since death, or until they are due, each age
    without the ages below it. `excluded` counts the messages that were left out, by reason. `eta_s` estimates the
    duration of the run.
    `dependencies` are those of the messages' tasks, if the app is known. `digest` covers the plan and all its chunks.
    """

    id: str
    selector: str
    made_ms: int
    settings: RedriveSettings = RedriveSettings()
    total: int = 0
    chunks: int = 0
    by_queue: Mapping[str, int] = {}
    by_task: Mapping[str, int] = {}
    by_age: Mapping[str, int] = {}
    excluded: Mapping[str, int] = {}
    eta_s: float = 0.0
    dependencies: Mapping[str, str] = {}
    lasting: int = 0  # number of messages whose cancel an undo cannot take back: members of groups and batches
    digest: str = ""


_ids = msgspec.json.Decoder(list[str]).decode


def plan_cell(id: str) -> str:
    return f"run/{id}/plan"


def recent_plans(cells: Cells) -> list[str]:
    """Return the ids of recent plans, the newest first."""
    (cell,) = cells.read([RECENT])
    return decoded(cell, _ids, [])


def note_recent(cells: Cells, id: str) -> None:
    """Add the plan to the list of recent ones. After three failed swaps, leave it out: the list only saves typing."""
    for _ in range(3):
        (cell,) = cells.read([RECENT])
        known = decoded(cell, _ids, [])
        ids = msgspec.json.encode([id, *known][:RECENT_MAX])
        if all(cells.swap([Swap(RECENT, version_of(cell), ids, PLAN_KEPT_MS)])):
            return


def chunk_cell(id: str, n: int) -> str:
    """Return the key of the cell with chunk n, from 0."""
    return f"run/{id}/c/{n}"


def read_plan(cells: Cells, id: str) -> Plan | None:
    """Read the plan with this id; None if it is unknown or has expired. Raises PlanRefused if it is unreadable."""
    (cell,) = cells.read([plan_cell(id)])
    if cell is None:
        return None
    try:
        return msgspec.json.decode(cell.value, type=Plan)
    except UNREADABLE as error:
        raise PlanRefused(f"plan {id} cannot be read: it was altered", f"{error}", "altered") from error


def read_chunk(cells: Cells, id: str, n: int) -> list[Handle]:
    """Read the messages of the plan's chunk n. Raises PlanRefused if the chunk is missing or unreadable."""
    (cell,) = cells.read([chunk_cell(id, n)])
    if cell is None:
        raise _no_chunk(id, n)
    try:
        return msgspec.json.decode(cell.value, type=list[Handle])
    except UNREADABLE as error:
        raise PlanRefused(f"chunk {n} of plan {id} cannot be read: it was altered", f"{error}", "altered") from error


def _no_chunk(id: str, n: int) -> PlanRefused:
    return PlanRefused(f"chunk {n} of plan {id} is missing", "it was altered, or has expired", "altered")


def check(cells: Cells, plan: Plan) -> None:
    """Raise PlanRefused unless the plan and all of its chunks are unchanged."""
    digest = hashlib.sha256()
    for some in batched(plan):
        for n, cell in zip(some, cells.read([chunk_cell(plan.id, n) for n in some]), strict=True):
            if cell is None:
                raise _no_chunk(plan.id, n)
            digest.update(cell.value)
    if sealed(digest, plan) != plan.digest:
        raise PlanRefused(f"plan {plan.id} was altered since it was drawn up", "draw up another", "altered")


def keep(cells: Cells, plan: Plan, for_ms: int) -> None:
    """Extend the expiry of the plan and its chunks to `for_ms` from now. Raises PlanRefused if a cell is missing."""
    missing = prolong(cells, [plan_cell(plan.id)], for_ms)
    for some in batched(plan):
        missing += prolong(cells, [chunk_cell(plan.id, n) for n in some], for_ms)
    if missing:
        raise PlanRefused(f"{missing[0]} of plan {plan.id} is missing", "it was altered, or has expired", "altered")


def prolong(cells: Cells, keys: Sequence[str], for_ms: int) -> list[str]:
    """Extend the expiry of these cells to `for_ms` from now; returns the keys of missing ones."""
    stored = [*zip(keys, cells.read(keys), strict=True)]
    # if another write comes first, the swap fails, and that write extends the expiry
    cells.swap([Swap(key, cell.version, cell.value, for_ms) for key, cell in stored if cell is not None])
    return [key for key, cell in stored if cell is None]


def batched(plan: Plan) -> Iterator[range]:
    """Yield ranges of the numbers of the plan's chunks; the cells of one range are read at once."""
    for at in range(0, plan.chunks, AT_ONCE):
        yield range(at, min(plan.chunks, at + AT_ONCE))


def sealed(chunks: hashlib._Hash, plan: Plan) -> str:
    """Return the digest of a plan, given a hash of all its chunks in order."""
    whole = chunks.copy()
    whole.update(msgspec.json.encode(replace(plan, digest="")))
    return whole.hexdigest()


# -- the run


class RunStatus(StrEnum):
    """The status of a run: `stopped` by its own rule, `cancelled` by a person. These two and `done` are final."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    DONE = "done"


FINAL = frozenset({RunStatus.STOPPED, RunStatus.CANCELLED, RunStatus.DONE})


class PlanMark(StrEnum):
    """The mark that a run stores for one message of its plan."""

    LEFT = "."  # not tried yet
    WAITING = "w"  # moved, but its first execution has not been settled
    DONE = "d"
    FAILED = "f"
    CHANGED = "c"  # not moved: the message has changed since the plan
    ENDED = "s"  # moved, then ended by a person: cancelled, removed or redriven
    RETURNED = "u"  # an undo has returned the message


class RunState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a run. `at` and `known` are positions in the plan: messages before `at` were tried, and for those
    before `known` the marks say which were moved. Times are ms of the store's clock."""

    status: RunStatus = RunStatus.RUNNING
    phase: str = "starting"  # what the run does now, in words
    why: str = ""  # why the run has this status or waits; empty while it moves messages
    actor: str = ""
    reason: str = ""
    cause: str = ""  # "auto" if a machine started the run; empty for a person
    started_ms: int = 0
    over_ms: int = 0  # time at which the status became final
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
    still_ms: int = 0  # start of the present pause or wait, which stops the clock; 0 while messages are moved
    undo: int = -1  # the next chunk whose messages an undo returns, unless they ran; -1: no undo
    approved_by: str = ""
    owner: str = ""  # the runner that has the lease until `until_ms`
    until_ms: int = 0
    closed: bool = False  # True once the run needs no runner

    @property
    def last_tick(self) -> tuple[object, ...]:
        """The fields that only runners change, at each tick: while they are equal, no other runner has ticked."""
        counts = self.at, self.known, self.moved, self.done, self.failed, self.changed, self.ended, self.returned
        return self.owner, self.until_ms, *counts

    def held(self, now_ms: int) -> bool:
        """True if a runner has the lease. A lease that ends too late is void: the clock was set back after it began."""
        return now_ms < self.until_ms <= now_ms + 2 * LEASE_MS

    @property
    def waiting(self) -> int:
        """The number of messages that were moved and whose first execution has not been settled."""
        return self.moved - self.done - self.failed

    @property
    def counts(self) -> dict[str, int]:
        """Return the counts: planned = moved + changed + skipped + not tried yet, and moved = done + failed + waiting.

        Skipped are the messages that the run left where they are when it ended, those that an undo returned, and those
        that a person ended after the run had moved them.
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
    """A line of a run's story: what happened, and when."""

    at_ms: int
    text: str


class Failure(Struct, frozen=True, array_like=True):
    """A message that the run moved, and whose first execution after the move failed."""

    id: str
    kind: str = ""
    error: str = ""
    text: str = ""
    fingerprint: str = ""
    at_ms: int = 0


class Index(Struct, frozen=True):
    """The open runs, and the last closed ones, oldest first: people started `closed`, machines started `auto`."""

    open: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    auto: tuple[str, ...] = ()

    @property
    def over(self) -> tuple[str, ...]:
        """All closed runs, oldest first, as ids begin with their time."""
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


decode_state: Callable[[bytes | str], RunState] = msgspec.json.Decoder(RunState).decode
decode_index: Callable[[bytes | str], Index] = msgspec.json.Decoder(Index).decode
_lines = msgspec.json.Decoder(list[Line]).decode
_failures = msgspec.json.Decoder(list[Failure]).decode


def read_state(cell: Cell | None) -> RunState | None:
    """Return the state in a cell of a run; None without a cell. Raises Unreadable."""
    return required("run/ID", cell, decode_state, None)


def index(store: Store) -> Index:
    """Read the index of the store's runs. Raises StoreError, Unreadable."""
    return read_index(store.cells.read([INDEX])[0])


def state_of(store: Store, id: str) -> RunState | None:
    """Read the state of the run with this id; None if there is no such run. Raises StoreError, Unreadable."""
    return read_state(store.cells.read([state_cell(id)])[0])


def read_index(cell: Cell | None) -> Index:
    return required(INDEX, cell, decode_index, Index())


def read_story(cell: Cell | None) -> list[Line]:
    return decoded(cell, _lines, [])


def read_failures(cell: Cell | None) -> list[Failure]:
    return decoded(cell, _failures, [])


def longer(story: list[Line], lines: list[Line]) -> list[Line]:
    """Return the story with these lines added; beyond STORY_MAX lines its middle is dropped."""
    whole = [*story, *lines]
    return whole if len(whole) <= STORY_MAX else [*whole[: STORY_MAX // 5], *whole[-STORY_MAX * 4 // 5 :]]
