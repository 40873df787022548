"""What is stored about a batch beside its counts: one cell, changed by compare-and-set."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..chain import BATCH_GROUP
from ..errors import Unreadable
from ..ids import new_id, part_id
from ..message import ENVELOPE, BatchCounts, Cell, Draft, Swap, required, version_of
from ..store import Store
from .parts import NOTHING, Part, Seen, Tolerance
from .stop_if import StopIf

KEPT_MS = 7 * 24 * 3600 * 1000  # for how long an ended batch is kept


class BatchPhase(StrEnum):
    """The state of a batch, to display: `filling` until it is sealed, `running` while a member is open, `waiting` while
    none is and a nested batch is being filled, then `done` (on_success was enqueued), `partial` (members are dead,
    discarded or cancelled), or `cancelled` after `cancel`."""

    FILLING = "filling"
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    PARTIAL = "partial"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        """True if nothing is open, and no producer fills the batch or one nested in it; a redrive may open it again."""
        return self in (BatchPhase.DONE, BatchPhase.PARTIAL, BatchPhase.CANCELLED)


class BatchState(Struct, frozen=True, omit_defaults=True):
    """A batch as its cell says. `filled`: how many drafts its producers have put; `sealed`: no producer adds more.

    `filled_ms` is when they last did. `completions`: how often on_complete was due: once for each episode, which ends
    when nothing is open. `opened` and `died` are these fields of the counts at that time, so a count above them belongs
    to a later episode. `alarmed` is the episode in which on_death was due, and `succeeded` says that on_success was.
    """

    id: str
    name: str
    created_ms: int
    on_success: Draft | None = None
    on_complete: Draft | None = None
    on_death: Draft | None = None
    tolerance: Tolerance = Tolerance()
    filled: int = 0
    filled_ms: int = 0
    sealed: bool = False
    cancelled: bool = False
    succeeded: bool = False
    completions: int = 0
    opened: int = 0
    died: int = 0
    alarmed: int = 0
    ended_ms: int | None = None  # when nothing was left that could change the batch
    parts: tuple[Part, ...] = ()
    stop_if: StopIf | None = None
    stopping: bool = False  # the rule was reached
    stopped: bool = False  # then the members that waited were cancelled
    expect_ms: int = 0  # how long it may take after its sealing; 0: any time
    width: int = 0  # how many members may run at once in each of its `queues`; 0: any number
    queues: tuple[str, ...] = ()  # the queues in which its group has this width
    passed: Mapping[str, str] = {}  # headers that each member gets: see `redrive.chain.heir`

    @property
    def episode(self) -> int:
        """The number of the present episode, from 1."""
        return self.completions + 1

    @property
    def group(self) -> str | None:
        """The group of members without one of their own; None without a width."""
        return f"{BATCH_GROUP}{self.id}" if self.width else None

    @property
    def expected_ms(self) -> int | None:
        """When the first episode is expected to have ended: `expect_ms` after the sealing. None if that is over, the
        batch is still filled, or nothing is expected."""
        return self.filled_ms + self.expect_ms if self.expect_ms and self.sealed and not self.completions else None

    @property
    def is_stopping(self) -> bool:
        """True if the members that wait are to be cancelled now."""
        return self.stopping and not self.stopped

    def phase(self, counts: BatchCounts, parts: Mapping[str, Seen] = NOTHING) -> BatchPhase:
        """Return the state to display, given the counts of the batch's own members, and its parts as read."""
        if not self.sealed:
            return BatchPhase.CANCELLED if self.cancelled and not counts.open else BatchPhase.FILLING
        if self.is_open(counts, parts):
            members = counts.open or any(seen.counts.open for seen in parts.values())
            filling = any(part.nested and parts[part.name].open for part in self.parts if part.name in parts)
            return BatchPhase.RUNNING if members or not filling else BatchPhase.WAITING
        if self.succeeded or self.is_done(counts):
            return BatchPhase.DONE
        return BatchPhase.CANCELLED if self.cancelled else BatchPhase.PARTIAL

    @property
    def is_filled(self) -> bool:
        """True until the batch is sealed, or cancelled and over, as a producer may have been killed."""
        return not self.sealed and self.ended_ms is None

    @property
    def feeding(self) -> Part | None:
        """The first step that has stored drafts to put now; None in a batch that is cancelled."""
        return None if self.cancelled else next((part for part in self.parts if part.feeds), None)

    @property
    def lists(self) -> list[str]:
        """The cells with stored drafts of steps that are not yet put."""
        return [chunk_of(self.id, part.name, n) for part in self.parts for n in range(part.put, part.chunks)]

    def is_open(self, counts: BatchCounts, parts: Mapping[str, Seen] = NOTHING) -> bool:
        """True if a member is open, a nested batch is, or a step has drafts that are not yet put. Once the batch is
        cancelled, it waits only for members, as a nested batch may never be filled."""
        waits = any(seen.counts.open or (seen.open and not self.cancelled) for seen in parts.values())
        return counts.open > 0 or waits or self.feeding is not None

    def is_done(self, counts: BatchCounts) -> bool:
        """True if each part is done, and no more of the batch's own members failed than are tolerated."""
        return all(part.done for part in self.parts) and self.tolerance.allows(counts)


_decode = msgspec.json.Decoder(BatchState).decode
_decode_drafts = msgspec.json.Decoder(tuple[Draft, ...]).decode
_SEALED = "batch"  # what an encrypted state is bound to


def id_of(name: str, key: str | None, now_ms: int) -> str:
    """Return the id of a new batch; of one with a key the same id each time, whichever producer asks."""
    if key is None:
        return new_id(now_ms)
    digest = hashlib.sha256(f"{name}\0{key}".encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"


def cell_of(id: str) -> str:
    return f"batch/{id}"


def state_in(store: Store, id: str, cell: Cell | None) -> BatchState | None:
    """Return the state in a batch's cell; None without a cell. Raises Unreadable for a damaged one, KeyMissing for one
    that is encrypted with a key that is missing."""
    return required(cell_of(id), cell, lambda value: _decode(_opened(store, id, value)), None)


def _opened(store: Store, id: str, value: bytes) -> bytes:
    box = store.box if value.startswith(ENVELOPE) else None
    return value if box is None else box.open(value, _SEALED, "", id, "")


def _closed(store: Store, id: str, value: bytes) -> bytes:
    """Return what a cell of a batch stores: encrypted if messages are, as callbacks and drafts have bodies, too."""
    return value if store.box is None else store.box.seal(value, _SEALED, "", id, "")


def swap_of(store: Store, state: BatchState, cell: Cell | None) -> Swap:
    """Return the swap that stores the state. That of an ended batch is removed after KEPT_MS."""
    value = _closed(store, state.id, msgspec.json.encode(state))
    return Swap(cell_of(state.id), version_of(cell), value, None if state.ended_ms is None else KEPT_MS)


def chunk_of(id: str, step: str, n: int) -> str:
    """Return the cell with the n-th list of drafts of a step, until they are put."""
    return f"batch-drafts/{id}/{step}/{n}"


def chunk_swap(store: Store, id: str, step: str, n: int, drafts: Sequence[Draft]) -> Swap:
    """Return the swap that stores a list of drafts of a step."""
    return Swap(chunk_of(id, step, n), 0, _closed(store, id, msgspec.json.encode(drafts)))


def stored_drafts(store: Store, id: str, part: Part) -> tuple[tuple[Draft, ...], Swap]:
    """Return the next list of drafts of a step, and the swap that removes it. Raises Unreadable if it is gone or
    damaged, KeyMissing."""
    key = chunk_of(id, part.name, part.put)
    (cell,) = store.cells.read([key])
    if cell is None:
        raise Unreadable(f"the members {part.put + 1} of step {part.name!r} are gone: cell {key!r} does not exist")
    drafts = required(key, cell, lambda value: _decode_drafts(_opened(store, id, value)), None)
    batch = part_id(id, part.name)
    return tuple(replace(draft, batch=batch) for draft in drafts or ()), Swap(key, cell.version, None)
