"""Chain the entries of the audit log: each entry holds the hash of the one before, and the head cell that of the last.

A record is an entry's JSON, kept byte by byte, with its SHA-256. So fields of a newer version are kept unchanged, and
changing, removing or moving an entry breaks the chain at a numbered place. A user who may write to the store can also
write a whole new chain: keep the head (`Verified.head`) elsewhere to detect that. Its date shows whether the entry may
be gone because of its age.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from ..errors import ConfigError
from ..message import UNREADABLE

SHOWN = 1000  # the most problems that a result lists; more are counted
KEPT_MS = 400 * 86_400_000  # ms: a younger entry is never dropped
NEAR_MS = 3_600_000  # ms by which the times of neighbours may be out of order, as clocks differ


class ChainRecord(Struct, frozen=True):
    """An entry as it is stored. `hash` is the SHA-256 of the bytes of `entry`, in hex."""

    hash: str
    entry: Raw


class Head(Struct, frozen=True, omit_defaults=True):
    """The end of the log. `seq` and `hash` are those of the last entry, `records` the newest entries. Earlier ones are
    in the cells `first` to `last`; the newest entry of cell `first` has the time `first_ms`. `pruned` counts entries
    that were dropped for their age; `pruned_hash` and `pruned_ms` belong to the last one. `lost` counts how often the
    head was rebuilt from the other cells, because it was missing or damaged."""

    seq: int = 0
    hash: str = ""
    first: int = 1
    last: int = 0
    first_ms: int = 0
    pruned: int = 0
    pruned_hash: str = ""
    pruned_ms: int = 0
    lost: int = 0
    records: tuple[ChainRecord, ...] = ()


class ChainLink(Struct, frozen=True):
    """The place of an entry in the chain, read from the entry's JSON. `amends`: the id of the entry it corrects."""

    seq: int = 0
    prev: str = ""
    at_ms: int = 0
    action: str = ""
    actor: str = ""

    @property
    def label(self) -> str:
        return f"entry {self.seq} ({self.action} by {self.actor})"


class Verified(Struct, frozen=True):
    """The result of checking the chain. `problems` is empty for an intact chain; `pruned` counts entries that were
    dropped for their age. `head` is `SEQ:HASH:DATE` of the last entry: kept elsewhere, it detects a log that was
    rewritten or emptied."""

    problems: tuple[str, ...]
    entries: int
    pruned: int
    head: str


records: Callable[[bytes | str], tuple[ChainRecord, ...]] = msgspec.json.Decoder(tuple[ChainRecord, ...]).decode
head_of: Callable[[bytes | str], Head] = msgspec.json.Decoder(Head).decode
link_of: Callable[[bytes | str], ChainLink] = msgspec.json.Decoder(ChainLink).decode
encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


def digest(entry: bytes | Raw) -> str:
    """Return the SHA-256 of an entry's stored bytes, in hex."""
    return sha256(bytes(entry)).hexdigest()


class Anchor(NamedTuple):
    """An entry that must be in the log, unless it is older than KEPT_MS: its number, its hash, and its day (None:
    unknown)."""

    seq: int = 0
    hash: str = ""
    day: date | None = None

    def is_over(self, now_ms: int) -> bool:
        """Return True if the anchor's entry may be gone because of its age."""
        return self.day is not None and now_ms - KEPT_MS >= _ms_of(self.day)


class Verifier:
    """Checks the records of a log in stored order: call `see` for each, then `end`."""

    def __init__(self, head: Head, now_ms: int, anchor: Anchor | None = None) -> None:
        self._head, self._seq, self._hash = head, head.pruned, head.pruned_hash
        self._anchor, self._count, self._more = anchor or Anchor(), 0, 0
        self._at_ms = 0  # the time of the newest entry checked so far
        self._problems: list[str] = []
        if head.lost:
            self._say(f"the head was lost {head.lost} times: entries after those left then are missing")
        self._check_pruned(now_ms)
        if head.seq < self._anchor.seq:
            self._say(f"the log ends with entry {head.seq}, and entry {self._anchor.seq} was written: it was rewritten")

    def _check_pruned(self, now_ms: int) -> None:
        """Check that entries were dropped only because of their age, and that not all of them were."""
        head, anchor = self._head, self._anchor
        if not head.pruned:
            return
        dropped = "entry 1" if head.pruned == 1 else f"entries 1 to {head.pruned}"
        if head.pruned_ms <= 0 or head.pruned_ms > now_ms - KEPT_MS:
            self._say(f"{dropped} are not there, and were not 400 days old: they were removed")
        elif head.pruned >= head.seq:
            self._say(f"{dropped} are not there, nor the one that dropped them: they were removed")
        if 0 < anchor.seq <= head.pruned and not anchor.is_over(now_ms):
            age = (
                "the anchor has no date"
                if anchor.day is None
                else f"it was written on {anchor.day}, 400 days ago at most"
            )
            self._say(f"entry {anchor.seq}, the anchor, is not there, and {age}: it was removed")

    def see(self, records: Iterable[ChainRecord]) -> None:
        for record in records:
            self._count += 1
            self._one(record)

    def note_damage(self, cell: str) -> None:
        """Note that a cell is missing or damaged; the next record shows which entries it had."""
        self._say(f"cell {cell} is missing or cannot be read")

    def unread(self, why: str) -> None:
        """Note as a problem that cells were not read, and why."""
        self._say(why)

    def _one(self, record: ChainRecord) -> None:
        try:
            link = link_of(record.entry)
        except UNREADABLE:
            self._say(f"the entry after entry {self._seq} cannot be read")
            return
        if digest(record.entry) != record.hash:
            self._say(f"{link.label} was changed")
            if link.seq != self._seq + 1:  # the entry's number may itself have been changed, so the next record decides
                return
        elif link.seq <= self._seq:
            self._say(f"{link.label} stands after entry {self._seq}: it was moved or repeated")
            return
        elif link.seq > self._seq + 1:
            self._say(f"{_numbers(self._seq + 1, link.seq - 1)} before {link.label}: removed, or moved")
        elif link.prev != self._hash:
            self._say(f"entry {self._seq} was replaced: {link.label} holds another hash of it")
        if link.seq == self._anchor.seq and record.hash != self._anchor.hash:
            self._say(f"{link.label} has another hash than the anchor: the log was rewritten")
        if self._seq == self._head.pruned and link.at_ms < self._head.pruned_ms - NEAR_MS:
            self._say(
                f"{link.label} is older than entry {self._seq}, which was dropped for its age: others were removed"
            )
        self._seq, self._hash, self._at_ms = link.seq, record.hash, max(self._at_ms, link.at_ms)

    def end(self) -> Verified:
        """Return the result. Call it after the last record."""
        head = self._head
        if self._seq < head.seq:
            self._say(f"{_numbers(self._seq + 1, head.seq)} at the end: removed")
        elif self._hash != head.hash or self._seq > head.seq:
            self._say(f"entry {self._seq}, the last one, was replaced: the head holds {head.seq}:{head.hash}")
        problems = [*self._problems, *([f"and {self._more:,} more"] if self._more else [])]
        day = f":{_day_of(self._at_ms)}" if head.seq else ""
        return Verified(tuple(problems), self._count, head.pruned, f"{head.seq}:{head.hash}{day}")

    def _say(self, text: str) -> None:
        if len(self._problems) < SHOWN:
            self._problems.append(text)
        else:
            self._more += 1


def _numbers(first: int, last: int) -> str:
    return f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"


def newest(records: Sequence[ChainRecord]) -> ChainLink:
    """Return the link of the last of these records; a link of zeros if there is none or it cannot be read."""
    try:
        return link_of(records[-1].entry) if records else ChainLink()
    except UNREADABLE:
        return ChainLink()


def anchor_of(text: str) -> Anchor:
    """Return the anchor in a text `SEQ:HASH:DATE`, the format of `Verified.head`; the date is optional. Raises
    ConfigError."""
    seq, hash, day = [*text.split(":", 2), "", ""][:3]
    try:
        if not (seq.isascii() and seq.isdecimal() and len(seq) < 19):
            raise ValueError
        if len(hash) not in (0, 64) or (hash == "") != (int(seq) == 0):
            raise ValueError
        return Anchor(int(seq), hash, date.fromisoformat(day) if day else None)
    except ValueError:
        why = "expected SEQ:HASH:DATE, as the head of an earlier `redrive audit verify`"
        raise ConfigError(f"anchor {text!r}: {why}") from None


def _day_of(ms: int) -> date:
    return datetime.fromtimestamp(min(max(ms, 0), 2**47) / 1000, UTC).date()


def _ms_of(day: date) -> int:
    """Return the end of the day in UTC, in ms since the epoch."""
    end = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(1)
    return int(end.timestamp() * 1000)
