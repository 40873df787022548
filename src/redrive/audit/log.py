"""Write and read the audit log: who changed what, when and why. The commit of a change writes its entry.

The cell `audit/log` is the head (`chain.Head`): it holds the newest entries, at most 100, and the end of the chain.
When it is full they move to the cells `audit/log/1`, `audit/log/2`, …, so a change swaps one more cell, however many
write. An entry is never rewritten: if it claims too much, a second entry corrects it, and `entries` merges the two.
Entries are kept for 400 days; the head keeps the hash of those that were dropped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count as numbers_from
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from ..chance import uniform
from ..errors import Conflict
from ..message import UNREADABLE, Cell, Swap, version_of
from ..redact import redact
from ..store import Store
from . import chain
from .actor import signed, user
from .chain import KEPT_MS, ChainRecord, Head, Verified, Verifier

CHUNK_MAX, CHUNK_BYTES = 100, 128 * 1024  # the most entries in the head, and the bytes from which on it is full
IDS_MAX = 500  # the most ids in an entry; its `count` includes the others
TEXT_MAX, LOOKED_MAX = 4000, 64_000  # characters of a text that an entry keeps, and in which secrets are searched
AMENDED_MS = 3_600_000  # ms after an entry within which a correction of it applies
TRIES = 100  # tries of a commit; each one fails because another writer succeeded
PAUSE_S = 0.05  # the longest pause between two tries, in seconds
PROBED = 100  # cells read at a time to find the entries after the head was lost
HEAD = "audit/log"

T = TypeVar("T")


class Entry(Struct, frozen=True, omit_defaults=True):
    """One change. `action` is a word such as `edit` or `discard`; `about` names what it was done to: a selector, a
    fingerprint, a run; `ids` the messages, at most 500 of the `count` that there were; `text` says more.

    `actor` is the user by the operating system, `claimed` the name that was given (`--actor`, `actor=`), of a person or
    a machine. `seq` and `prev` are its number in the chain and the hash of the entry before it; 0 for one that is not
    written yet. `amends`: the entry that this one corrects.
    """

    at_ms: int
    action: str
    actor: str
    reason: str = ""
    text: str = ""
    ids: tuple[str, ...] = ()
    count: int = 0
    about: str = ""
    claimed: str = ""
    id: str = ""
    amends: str = ""
    seq: int = 0
    prev: str = ""

    @property
    def who(self) -> str:
        """The given name and the system's user, for display."""
        return f"{self.claimed} ({self.actor})" if self.claimed else self.actor


_decode = msgspec.json.Decoder(Entry).decode


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
        """Return a new entry with the current time and without secrets in its texts; it is not written yet. `count`
        defaults to the number of `ids`; `actor` is the given name, recorded beside that of the process's user. Raises
        StoreError."""
        count = len(ids) if count is None else count
        reason, text, about = redact(reason), _clip(text), _clip(about)
        real, now_ms = user(), self._store.now_ms()
        claimed = "" if actor == real else redact(actor)
        return Entry(
            now_ms, action, real, reason, text, tuple(ids[:IDS_MAX]), count, about, claimed, os.urandom(8).hex()
        )

    def by_hand(
        self,
        action: str,
        about: str,
        actor: str | None,
        reason: str,
        text: str = "",
        *,
        ids: Sequence[str] = (),
        count: int | None = None,
    ) -> Entry:
        """Return a new entry for a change that needs no reason; it is not written yet. Raises ConfigError for a blank
        reason or a text that is too long."""
        who, why = signed(actor, reason, f"{action} of {about}" if about else action, needed=False)
        return self.entry(action, who, why, text, ids=ids, count=count, about=about)

    def swaps(self, entry: Entry) -> list[Swap]:
        """Return the swaps that write the entry, for the commit of the change. If that commit raises Conflict, another
        entry was written first: call this again. Raises StoreError."""
        (cell,) = self._store.cells.read([HEAD])
        head, swaps = self._head(cell), []
        full = len(head.records) >= CHUNK_MAX or (cell is not None and len(cell.value) >= CHUNK_BYTES)
        if head.records and full:
            head, moved = self._move(head)
            swaps.append(moved)
        head, gone = self._prune(head)
        linked = chain.encode(replace(entry, seq=head.seq + 1, prev=head.hash))
        record = ChainRecord(chain.digest(linked), Raw(linked))
        head = replace(head, seq=head.seq + 1, hash=record.hash, records=(*head.records, record))
        return [*swaps, *gone, Swap(HEAD, version_of(cell), chain.encode(head))]

    def _move(self, head: Head) -> tuple[Head, Swap]:
        """Return the head without its records, and the swap that writes these to a new cell. The swap replaces a cell
        that a partial commit left there."""
        (cell,) = self._store.cells.read([_key(head.last + 1)])
        first_ms = head.first_ms if head.last >= head.first else chain.newest(head.records).at_ms
        kept = Swap(_key(head.last + 1), version_of(cell), chain.encode(head.records))
        return replace(head, last=head.last + 1, first_ms=first_ms, records=()), kept

    def _prune(self, head: Head) -> tuple[Head, list[Swap]]:
        """Return the head without its oldest cell if all entries there are too old, and the swap that deletes that
        cell. The head keeps the hash of the dropped entries."""
        before_ms = self._store.now_ms() - KEPT_MS
        if head.last < head.first or head.first_ms >= before_ms:
            return head, []
        oldest, next = self._store.cells.read([_key(head.first), _key(head.first + 1)])
        if oldest is None:
            return head, []  # the cell was deleted by hand, which `verify` reports
        left = _records(next) if head.first < head.last else head.records
        went = _records(oldest)
        if not went:
            return head, []
        gone, first_ms = chain.newest(went).seq, chain.newest(left).at_ms
        swap = Swap(_key(head.first), oldest.version, None)
        pruned_ms = max(chain.newest(went).at_ms, head.pruned_ms)
        head = replace(head, pruned=gone, pruned_hash=went[-1].hash, pruned_ms=pruned_ms)
        return replace(head, first=head.first + 1, first_ms=first_ms), [swap]

    def _head(self, cell: Cell | None) -> Head:
        """Return the head in this cell. If it is missing or damaged, return one rebuilt from the other cells: the loss
        must not stop work, and `verify` reports it."""
        try:
            if cell is not None:
                return chain.head_of(cell.value)
        except UNREADABLE:
            pass
        left: dict[int, Cell] = {}
        for begin in numbers_from(1, PROBED):
            numbers = range(begin, begin + PROBED)
            cells = self._store.cells.read([_key(number) for number in numbers])
            chunks = {n: each for n, each in zip(numbers, cells, strict=True) if each is not None}
            if not chunks:
                break
            left |= chunks
        if not left:
            return Head(lost=int(cell is not None))
        last = _records(left[max(left)])
        hash = last[-1].hash if last else ""
        return Head(chain.newest(last).seq, hash, first=min(left), last=max(left), lost=1)

    def commit(self, entry: Entry, write: Callable[[list[Swap]], T]) -> T:
        """Call `write` with the swaps of the entry until they apply, at most 100 times; return its result.

        `write` makes its change and the swaps in one commit, and raises Conflict where they do not apply. Raises
        Conflict after the last time. A store without cells has no log: there, `write` gets no swaps.
        """
        if not self._store.traits.cells:
            return write([])
        return again(lambda: write(self.swaps(entry)))

    def beside(self, entry: Entry, write: Callable[[list[Swap]], T]) -> T:
        """Commit a change that must not be made twice: as `commit`, but if the store cannot commit both together (SQS),
        the entry is written right after the change."""
        if self._store.traits.atomic_moves:
            return self.commit(entry, write)
        done = write([])
        self.keep(entry)
        return done

    def keep(self, entry: Entry) -> None:
        def put(swaps: list[Swap]) -> None:
            if swaps:
                self._store.put([], swaps=swaps)

        self.commit(entry, put)

    def amend(self, entry: Entry, *, ids: Sequence[str] = (), count: int | None = None) -> None:
        """Correct an entry just written: only these messages were changed (`count` defaults to their number), as others
        had moved meanwhile. If there are none, the entry is no longer listed. A correction by another actor, or more
        than an hour later, has no effect. `export` always has both entries. Raises StoreError."""
        less = self.entry("amended", entry.claimed or entry.actor, ids=ids, count=count, about=entry.about)
        self.keep(replace(less, amends=entry.id))

    def __iter__(self) -> Iterator[Entry]:
        return self.entries()

    def entries(self, *, since_ms: int = 0, until_ms: int | None = None) -> Iterator[Entry]:
        """Yield the entries from `since_ms` to `until_ms`, newest first, corrected, reading cell by cell. Raises
        StoreError."""
        since_ms = max(since_ms, self._store.now_ms() - KEPT_MS)
        amended: dict[tuple[str, str], Entry] = {}  # by (entry, actor), as only an entry's own actor can correct it
        for entry in self._walk(since_ms, None if until_ms is None else until_ms + AMENDED_MS):
            if entry.amends:
                amended.setdefault((entry.amends, entry.who), entry)
            elif until_ms is not None and entry.at_ms > until_ms:
                continue
            elif (less := amended.pop((entry.id, entry.who), None)) is None or less.at_ms - entry.at_ms > AMENDED_MS:
                yield entry
            elif less.count:
                yield replace(entry, ids=less.ids, count=less.count)

    def _walk(self, since_ms: int, until_ms: int | None = None) -> Iterator[Entry]:
        head = self._head(self._store.cells.read([HEAD])[0])
        last = head.last + 1 if until_ms is None else self._last_until(head, until_ms)
        for number, records in self._cells(head, range(last, head.first - 1, -1)):
            if number is None:
                return
            entries = [entry for record in reversed(records) if (entry := _entry(record)) is not None]
            yield from (entry for entry in entries if entry.at_ms >= since_ms)
            # Entries are in the order of commits, which differs a little from the order of their times: stop only at a
            # cell that is too old as a whole.
            if entries and all(entry.at_ms < since_ms for entry in entries):
                return

    def _last_until(self, head: Head, until_ms: int) -> int:
        """Return the number of the last cell that may have entries up to `until_ms`. It is found by bisection, as a
        long log has many cells."""
        low, high = head.first, head.last + 1
        while low < high:
            middle = (low + high + 1) // 2
            records = head.records if middle > head.last else _records(self._store.cells.read([_key(middle)])[0])
            entry = _entry(records[0]) if records else None
            if entry is None or entry.at_ms > until_ms:  # an unreadable cell: rather read one cell too many
                high = middle - 1
            else:
                low = middle
        return min(low + 1, head.last + 1)  # one more, as entries are only nearly in the order of their times

    def lines(self) -> Iterator[bytes]:
        """Yield the log's records as stored, `{"hash": …, "entry": {…}}`, oldest first, with corrections. Leaves out
        unreadable cells. Raises StoreError."""
        head = self._head(self._store.cells.read([HEAD])[0])
        for _, records in self._cells(head, range(head.first, head.last + 2)):
            yield from map(chain.encode, records)

    def verify(self, anchor: str = "") -> Verified:
        """Return the result of checking whether an entry was changed, removed or moved. `anchor`: `SEQ:HASH:DATE`, the
        `head` of an earlier check, whose entry the log must contain unless it is older than 400 days. Raises
        ConfigError for an invalid anchor, StoreError."""
        head = self._head(self._store.cells.read([HEAD])[0])
        verifier = Verifier(head, self._store.now_ms(), chain.anchor_of(anchor) if anchor else None)
        for number, records in self._cells(head, range(head.first, head.last + 2)):
            if number is None:
                verifier.unread(f"{PROBED} cells in a row are missing; those that follow were not read")
            elif records or number > head.last:
                verifier.see(records)
            else:
                verifier.note_damage(_key(number))
        (now,) = self._store.cells.read([HEAD])
        if self._head(now).first != head.first:  # entries were dropped while the cells were read
            return self.verify(anchor)
        return verifier.end()

    def _cells(self, head: Head, numbers: range) -> Iterator[tuple[int | None, tuple[ChainRecord, ...]]]:
        """Yield the number and the records of each of these cells, the head's after the last one; no records if a cell
        is missing or damaged. After PROBED such cells in a row, yield None as number, then the head's: a damaged head
        may name any number of cells."""
        missing = 0
        for number in numbers:
            records = head.records if number > head.last else _records(self._store.cells.read([_key(number)])[0])
            yield number, records
            missing = 0 if records else missing + 1
            if missing >= PROBED:
                yield None, ()
                if numbers.step > 0:
                    yield head.last + 1, head.records
                return


def again(write: Callable[[], T]) -> T:
    """Call `write` until it raises no Conflict, at most 100 times, with short random pauses that let competing writers
    succeed. Raises Conflict after the last time."""
    for tried in range(TRIES - 1):
        try:
            return write()
        except Conflict:
            time.sleep(uniform(0, min(PAUSE_S, 0.001 * 2 ** min(tried, 10))))
    return write()


def _clip(text: str) -> str:
    """Return a text without secrets, cut afterwards, as a secret cut in half would not be recognized."""
    text = redact(text[:LOOKED_MAX])
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _records(cell: Cell | None) -> tuple[ChainRecord, ...]:
    try:
        return () if cell is None else chain.records(cell.value)
    except UNREADABLE:
        return ()


def _entry(record: ChainRecord) -> Entry | None:
    """Return the entry in a record; None if it is damaged, which `verify` reports."""
    try:
        return _decode(record.entry)
    except UNREADABLE:
        return None


def _key(number: int) -> str:
    return f"{HEAD}/{number}"
