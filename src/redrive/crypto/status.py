"""Find the keys that the stored messages still need."""

from __future__ import annotations

import contextlib

from msgspec import Struct

from ..batch.state import cell_of, state_in
from ..errors import Unreadable, Unsupported
from ..ids import wholes_of
from ..message import Lane
from ..store import Store
from .box import OVERHEAD, key_of
from .fields import keys_in

PAGE = 500
PARTS = ("bodies", "results", "checkpoints", "texts", "blobs", "batches")


class Use(Struct, frozen=True):
    """The number of stored parts that a key encrypts, by kind. `writes`: new data too; `here`: this process has it."""

    key: str
    writes: bool
    here: bool
    parts: dict[str, int]

    @property
    def used(self) -> bool:
        return any(self.parts.values())


def key_uses(store: Store) -> tuple[list[Use], list[str]]:
    """Return the uses of each key, including the keys of this process, and in words which parts could not be read.

    Reads every message, blob and batch, which takes a while on a large store. Raises StoreError.
    """
    counts: dict[str, dict[str, int]] = {}
    unseen = _of_messages(store, counts) + _of_blobs(store, counts)
    _of_batches(store, counts)
    box = store.box
    if box is not None and (writes := box.writes()) is not None:
        counts.setdefault(writes, {})
        for id in getattr(box.keys, "ids", ()):
            counts.setdefault(id, {})
    else:
        writes = None
    return [
        Use(id, id == writes, box is not None and box.has(id), {part: parts.get(part, 0) for part in PARTS})
        for id, parts in sorted(counts.items())
    ], unseen


def _of_messages(store: Store, counts: dict[str, dict[str, int]]) -> list[str]:
    store = store.engine  # the engine returns messages as stored
    unseen = []
    for lane in [None] if store.traits.finds else list(Lane):
        try:
            _of_lane(store, lane, counts)
        except Unsupported:
            unseen.append(f"lane {lane} of {store.traits.name} cannot be looked through")
    return unseen


def _of_lane(store: Store, lane: Lane | None, counts: dict[str, dict[str, int]]) -> None:
    cursor = None
    while True:
        page = store.peek(lane, limit=PAGE, cursor=cursor)
        for message in page.messages:
            for part, key in keys_in(message):
                _count(counts, key, part)
        cursor = page.cursor
        if cursor is None:
            return


def _of_blobs(store: Store, counts: dict[str, dict[str, int]]) -> list[str]:
    if store.large_bodies is None:
        return []
    blobs = store.large_bodies.stored()
    for name in blobs.listed():
        begin = blobs.get(name, OVERHEAD)
        key = None if begin is None else key_of(begin)
        if key is not None:
            _count(counts, key, "blobs")
    return []


def _of_batches(store: Store, counts: dict[str, dict[str, int]]) -> None:
    """Count the states of batches, and the stored drafts of steps."""
    after, seen = "", set[str]()
    while ids := store.batch_ids(after=after, limit=PAGE):
        for whole in {whole for id in ids for whole in wholes_of(id)} - seen:
            seen.add(whole)
            cells = store.cells.read([cell_of(whole)])
            with contextlib.suppress(Unreadable):
                state = state_in(store, whole, cells[0])
                cells += [] if state is None else store.cells.read(state.lists)
            for cell in cells:
                key = None if cell is None else key_of(cell.value)
                if key is not None:
                    _count(counts, key, "batches")
        after = ids[-1]


def _count(counts: dict[str, dict[str, int]], key: str, part: str) -> None:
    parts = counts.setdefault(key, {})
    parts[part] = parts.get(part, 0) + 1
