"""What is stored about a batch beside its counts: one cell, changed by compare-and-set."""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec
from msgspec import Struct

from ..ids import new_id
from ..message import ENVELOPE, BatchCounts, Cell, Draft, Swap, required, version_of
from ..store import Store

KEPT_MS = 7 * 24 * 3600 * 1000  # for how long an ended batch is kept


class BatchPhase(StrEnum):
    """The state of a batch, to display: `filling` until it is sealed, `running` while a member is open, then `done`
    (on_success was enqueued), `partial` (members are dead, discarded or cancelled), or `cancelled` after `cancel`."""

    FILLING = "filling"
    RUNNING = "running"
    DONE = "done"
    PARTIAL = "partial"
    CANCELLED = "cancelled"


class Tolerance(Struct, frozen=True):
    """How many members may fail: a number, or a percentage of all members."""

    count: int = 0
    percent: float = 0.0

    def allows(self, counts: BatchCounts) -> bool:
        """True if no more members than this failed: are dead, quarantined, cancelled or discarded."""
        return counts.failed <= max(self.count, int(counts.total * self.percent / 100))


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

    @property
    def episode(self) -> int:
        """The number of the present episode, from 1."""
        return self.completions + 1

    def phase(self, counts: BatchCounts) -> BatchPhase:
        """Return the state to display, given the batch's counts."""
        if not self.sealed:
            return BatchPhase.CANCELLED if self.cancelled and not counts.open else BatchPhase.FILLING
        if counts.open:
            return BatchPhase.RUNNING
        if self.succeeded or self.tolerance.allows(counts):
            return BatchPhase.DONE
        return BatchPhase.CANCELLED if self.cancelled else BatchPhase.PARTIAL


_decode = msgspec.json.Decoder(BatchState).decode
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

    def decode(value: bytes) -> BatchState:
        if store.box is not None and value.startswith(ENVELOPE):
            value = store.box.open(value, _SEALED, "", id, "")
        return _decode(value)

    return required(cell_of(id), cell, decode, None)


def swap_of(store: Store, state: BatchState, cell: Cell | None) -> Swap:
    """Return the swap that stores the state, encrypted if messages are, as callbacks have bodies too. The state of an
    ended batch is removed after KEPT_MS."""
    value = msgspec.json.encode(state)
    if store.box is not None:
        value = store.box.seal(value, _SEALED, "", state.id, "")
    return Swap(cell_of(state.id), version_of(cell), value, None if state.ended_ms is None else KEPT_MS)
