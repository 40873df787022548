"""Write counts to the store: merge them into cells that all processes share, each count once.

A process reads the cells that its counts belong to, adds, and swaps. Where another process was faster it reads again;
after TRIES losses it goes on in another of SHARDS cells, and readers add those up. So few processes share one cell, and
two hundred spread by themselves.

Every swap leaves a random nonce in its cell. If the answer to a swap is lost, the counts stay, with that nonce; once it
is found in the cell, they were written. If so many others wrote meanwhile that it may have been there and gone, they
are dropped: a count may be missing, but is never counted twice.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping

from msgspec import Struct, field

from ..chance import randrange, uniform
from ..errors import StoreError
from ..message import Cell, Swap, version_of
from ..store import Store
from .chunk import KINDS, MINUTE_MS, NONCE_BYTES, NONCES, ChunkKind, add_counts, read_chunk, write_chunk
from .names import EVERYTHING, SeriesNames, id_of
from .recorder import Minutes, SeriesName
from .tally import TallyCounts, add

SHARDS = 8
TRIES = 3  # swaps that the writer may lose to other processes before it changes to another shard
ROUNDS = 8
CELLS_AT_ONCE = 100
_PAUSE_S = 0.005  # the longest pause before the second round, in seconds; pauses are random and grow
PENDING_MAX = 10_000  # cells whose counts wait for the store; beyond this the oldest ones are dropped


class CountBatch(Struct, gc=False, eq=False):
    """Counts by slot, with the nonces of the swaps that may have written these counts."""

    slots: dict[int, TallyCounts] = field(default_factory=dict)
    nonces: set[bytes] = field(default_factory=set)
    after: int = 0  # the version of the cell before the first of those swaps


class CellUpdate(Struct, gc=False, eq=False):
    """A cell to write, and the batches to add to it. The last takes more counts; others may have been written."""

    base: str  # the cell's key without the shard
    kind: ChunkKind
    shard: int = 0
    lost: int = 0
    batches: list[CountBatch] = field(default_factory=list)

    @property
    def key(self) -> str:
        return f"{self.base}/{self.shard}"


class HistoryWriter:
    """Merges the counts of one process into the store. Used by one thread at a time.

    `retries` counts swaps that another process won. `dropped` counts batches that may or may not have been written, and
    cells whose counts were given up, as too many waited.
    """

    retries: int
    dropped: int

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names = SeriesNames(store)
        self._unlisted: dict[SeriesName, Minutes] = {}
        self._targets: dict[str, CellUpdate] = {}  # by `CellUpdate.base`
        self.retries = self.dropped = 0

    @property
    def pending(self) -> bool:
        return bool(self._targets or self._unlisted)

    def write(self, taken: Mapping[SeriesName, Minutes]) -> None:
        """Add these counts, and those that wait from before, to the store. Raises StoreError; all of them then wait."""
        for name, minutes in taken.items():
            waiting = self._unlisted.setdefault(name, {})
            for minute, counts in minutes.items():
                add(waiting.setdefault(minute, {}), counts)
        if self._unlisted:
            kept = self._names.list(self._unlisted, self._store.now_ms())
            for name, minutes in self._unlisted.items():
                for of in (kept[name], EVERYTHING):
                    self._add(id_of(of), minutes)
            self._unlisted = {}
        for tried in range(ROUNDS):
            if not self._targets:
                return
            time.sleep(uniform(0, _PAUSE_S * tried))
            targets = list(self._targets.values())
            for at in range(0, len(targets), CELLS_AT_ONCE):
                self._swap(targets[at : at + CELLS_AT_ONCE])

    def _add(self, id: str, minutes: Minutes) -> None:
        for minute, counts in minutes.items():
            at_ms = minute * MINUTE_MS
            for kind in KINDS:
                kept = {key: count for key, count in counts.items() if kind.holds(key)}
                if not kept:
                    continue
                base = f"history/{id}/{kind.letter}/{at_ms // kind.span_ms}"
                target = self._targets.get(base)
                if target is None:
                    self._bound()
                    target = self._targets[base] = CellUpdate(base, kind)
                if not target.batches or target.batches[-1].nonces:
                    target.batches.append(CountBatch())
                add(target.batches[-1].slots.setdefault(at_ms % kind.span_ms // kind.slot_ms, {}), kept)

    def _bound(self) -> None:
        while len(self._targets) >= PENDING_MAX:
            del self._targets[next(iter(self._targets))]
            self.dropped += 1

    def _swap(self, targets: list[CellUpdate]) -> None:
        cells = self._store.cells.read([target.key for target in targets])
        nonce = secrets.token_bytes(NONCE_BYTES)
        swaps, going = [], []
        for target, cell in zip(targets, cells, strict=True):
            value = self._merge(target, cell, nonce)
            if value is None:
                del self._targets[target.base]
            else:
                ttl_ms = target.kind.span_ms + target.kind.kept_ms
                swaps.append(Swap(target.key, version_of(cell), value, ttl_ms))
                going.append((target, version_of(cell)))
        if not swaps:
            return
        try:
            words = self._store.cells.swap(swaps, durable=False)
        except StoreError:
            for target, version in going:
                for batch in target.batches:
                    batch.after = batch.after if batch.nonces else version
                    batch.nonces.add(nonce)
            raise
        for (target, _), written in zip(going, words, strict=True):
            if written:
                del self._targets[target.base]
            else:
                self._lose(target)

    def _merge(self, target: CellUpdate, cell: Cell | None, nonce: bytes) -> bytes | None:
        """Add the pending batches to the cell's chunk, and return the cell's new value; None if no batch is pending."""
        chunk = read_chunk(None if cell is None else cell.value)
        left = [batch for batch in target.batches if not self._is_over(batch, chunk.nonces, version_of(cell))]
        target.batches = left
        if not left:
            return None
        for batch in left:
            for slot, counts in batch.slots.items():
                add_counts(chunk, slot, counts)
        chunk.nonces = [*chunk.nonces, nonce][-NONCES:]
        return write_chunk(chunk)

    def _is_over(self, batch: CountBatch, nonces: Collection[bytes], version: int) -> bool:
        """Return True if a batch was written, or may have been and its nonce is already overwritten; count it as
        dropped in the second case."""
        if not batch.nonces:
            return False
        if not batch.nonces.isdisjoint(nonces):
            return True
        if len(nonces) < NONCES or 0 <= version - batch.after <= NONCES:
            return False  # the cell has the nonces of all writes since, and this batch's nonces are not among them
        self.dropped += 1
        return True

    def _lose(self, target: CellUpdate) -> None:
        self.retries += 1
        target.lost += 1
        if target.lost >= TRIES and not any(batch.nonces for batch in target.batches):
            target.shard, target.lost = randrange(SHARDS), 0
