"""Find the keys that the stored messages still need."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ..errors import Unsupported
from ..message import Cell, Filter, Lane
from ..store import Store, pages
from .box import OVERHEAD, key_of
from .fields import keys_in

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


def key_uses(store: Store, batches: Iterable[Cell] = ()) -> tuple[list[Use], list[str]]:
    """Return the uses of each key, including the keys of this process, and in words which parts could not be read.

    `batches` are the cells of batches (`batch_cells`). Reads every message and blob, which takes a while on a large
    store. Raises StoreError.
    """
    counts: dict[str, dict[str, int]] = {}
    unseen = _of_messages(store, counts) + _of_blobs(store, counts)
    for cell in batches:
        if (key := key_of(cell.value)) is not None:
            _count(counts, key, "batches")
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
    for page in pages(store, lane, Filter()):
        for message in page:
            for part, key in keys_in(message):
                _count(counts, key, part)


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


def _count(counts: dict[str, dict[str, int]], key: str, part: str) -> None:
    parts = counts.setdefault(key, {})
    parts[part] = parts.get(part, 0) + 1
