"""The audit log: who changed what, when and why. An entry is written by the commit of the change that it tells of.

Entries lie in cells of at most 100, `audit/1`, `audit/2`, …; the cell `audit` names the last. Each is kept for 400 days
from when its cell was last written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec import Struct

from ..errors import Conflict
from ..message import Swap, version_of
from ..redact import redact
from ..store import Store

CHUNK_MAX, CHUNK_BYTES = 100, 128 * 1024  # entries in a cell, and bytes from which on it takes no more
IDS_MAX = 500  # messages that an entry names; `count` says how many there were
TEXT_MAX = 4000  # characters
KEPT_MS = 400 * 86_400_000
TRIES = 20
AMENDED = 3  # cells that are looked through for an entry just written
HEAD = "audit"

T = TypeVar("T")


class Entry(Struct, frozen=True, omit_defaults=True):
    """One change. `action` is a word such as `edit` or `discard`; `about` names what it was done to: a selector, a
    fingerprint, a run; `ids` the messages, at most 500 of the `count` that there were; `text` says more."""

    at_ms: int
    action: str
    actor: str
    reason: str = ""
    text: str = ""
    ids: tuple[str, ...] = ()
    count: int = 0
    about: str = ""


_decode = msgspec.json.Decoder(list[Entry]).decode
_encode = msgspec.json.Encoder().encode


class Audit:
    """The audit log of a store. Iterating yields its entries, the newest first."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def entry(
        self,
        action: str,
        actor: str,
        reason: str = "",
        text: str = "",
        *,
        ids: Sequence[str] = (),
        count: int | None = None,
        about: str = "",
    ) -> Entry:
        """An entry of now, not written yet, its texts without secrets; `count` None: as many as `ids`. Raises
        StoreError."""
        if len(text) > TEXT_MAX:
            text = text[: TEXT_MAX - 1] + "…"
        count = len(ids) if count is None else count
        reason, text, about = redact(reason), redact(text), redact(about)
        return Entry(self._store.now_ms(), action, actor, reason, text, tuple(ids[:IDS_MAX]), count, about)

    def swaps(self, entry: Entry) -> list[Swap]:
        """What writes the entry, for the commit of the change. Where that raises Conflict somebody else's entry came
        first: ask again. Raises StoreError."""
        head = self._store.cells.read([HEAD])[0]
        number = 1 if head is None else int(head.value)
        cell = self._store.cells.read([_key(number)])[0]
        version, entries = (0, []) if cell is None else (cell.version, _decode(cell.value))
        if cell is not None and (len(entries) >= CHUNK_MAX or len(cell.value) >= CHUNK_BYTES):
            number, version, entries = number + 1, 0, []
        swaps = [Swap(_key(number), version, _encode([*entries, entry]), KEPT_MS)]
        if head is None or number != int(head.value):
            swaps.insert(0, Swap(HEAD, version_of(head), str(number).encode()))
        return swaps

    def commit(self, entry: Entry, write: Callable[[list[Swap]], T]) -> T:
        """Call `write` with the swaps of the entry until they apply, at most 20 times; what it returned.

        `write` makes its change and the swaps in one commit, and raises Conflict where they do not apply. Raises
        Conflict after the last time.
        """
        for _ in range(TRIES - 1):
            try:
                return write(self.swaps(entry))
            except Conflict:
                continue
        return write(self.swaps(entry))

    def keep(self, entry: Entry) -> None:
        """Write the entry alone. Raises StoreError."""

        def put(swaps: list[Swap]) -> None:
            self._store.put([], swaps=swaps)

        self.commit(entry, put)

    def amend(self, entry: Entry, *, ids: Sequence[str] = (), count: int | None = None) -> None:
        """Say of an entry just written that the change came to these messages only (`count` None: as many as `ids`),
        as others had moved meanwhile. Where it came to none the entry goes. Raises StoreError."""
        count = len(ids) if count is None else count
        less = msgspec.structs.replace(entry, ids=tuple(ids[:IDS_MAX]), count=count)
        for _ in range(TRIES):
            for number in islice(range(self._last(), 0, -1), AMENDED):
                version, entries = self._read(number)
                if entry not in entries:
                    continue
                at = entries.index(entry)
                entries[at : at + 1] = [less] if count else []
                if self._store.cells.swap([Swap(_key(number), version, _encode(entries), KEPT_MS)])[0]:
                    return
                break
            else:
                return

    def __iter__(self) -> Iterator[Entry]:
        return self.entries()

    def entries(self, *, since_ms: int = 0) -> Iterator[Entry]:
        """The entries since then, the newest first, read cell by cell. Raises StoreError."""
        for number in range(self._last(), 0, -1):
            version, entries = self._read(number)
            yield from (entry for entry in reversed(entries) if entry.at_ms >= since_ms)
            # No cell: it has expired, and so have those before it. Entries lie in the order of their commits, which
            # is nearly that of their times: so a whole cell must be too old.
            if version == 0 or (entries and all(entry.at_ms < since_ms for entry in entries)):
                return

    def _last(self) -> int:
        head = self._store.cells.read([HEAD])[0]
        return 0 if head is None else int(head.value)

    def _read(self, number: int) -> tuple[int, list[Entry]]:
        cell = self._store.cells.read([_key(number)])[0]
        return (0, []) if cell is None else (cell.version, _decode(cell.value))


def _key(number: int) -> str:
    return f"{HEAD}/{number}"
