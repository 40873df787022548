"""Chain the entries of the audit log: each entry holds the hash of the one before, and the head cell that of the last.

A record is an entry's JSON, kept byte by byte, with its SHA-256. So fields of a newer version are kept unchanged, and
changing, removing or moving an entry breaks the chain at a numbered place. A user who may write to the store can also
write a whole new chain: keep the head (`Verified.head`) elsewhere to detect that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

import msgspec
from msgspec import Raw, Struct

from ..errors import ConfigError

SHOWN = 1000  # findings that are named


class Record(Struct, frozen=True):
    """An entry as it is stored. `hash` is the SHA-256 of the bytes of `entry`, in hex."""

    hash: str
    entry: Raw


class Head(Struct, frozen=True, omit_defaults=True):
    """The end of the log. `seq` and `hash` are those of the last entry, `records` the newest entries. Earlier ones are
    in the cells `first` to `last`; the newest entry of cell `first` has the time `first_ms`. `pruned` counts entries
    that were dropped for their age, and `pruned_hash` is the hash of the last of them. `lost` counts how often a head
    was missing or damaged, and was made again from the other cells."""

    seq: int = 0
    hash: str = ""
    first: int = 1
    last: int = 0
    first_ms: int = 0
    pruned: int = 0
    pruned_hash: str = ""
    lost: int = 0
    records: tuple[Record, ...] = ()


class Link(Struct, frozen=True):
    """The place of an entry in the chain, read from its JSON. `amends`: the entry that it corrects."""

    seq: int = 0
    prev: str = ""
    at_ms: int = 0
    action: str = ""
    actor: str = ""

    @property
    def named(self) -> str:
        return f"entry {self.seq} ({self.action} by {self.actor})"


class Verified(Struct, frozen=True):
    """The result of checking the chain. `problems` is empty for an intact chain. `head` is `SEQ:HASH` of the last
    entry: kept elsewhere, it detects a log that was rewritten as a whole. `outside`: entries of an older version."""

    problems: tuple[str, ...]
    entries: int
    pruned: int
    head: str
    outside: int = 0


records = msgspec.json.Decoder(tuple[Record, ...]).decode
head_of = msgspec.json.Decoder(Head).decode
link_of = msgspec.json.Decoder(Link).decode
encode = msgspec.json.Encoder().encode


def digest(entry: bytes | Raw) -> str:
    """The hash of an entry, by the bytes that are stored."""
    return sha256(bytes(entry)).hexdigest()


class Verifier:
    """Looks at the records of a log in the order in which they are stored: `see` each, then `end`. `anchor`: the
    number and the hash of an entry that must be among them."""

    def __init__(self, head: Head, anchor: tuple[int, str] = (0, "")) -> None:
        self._head, self._seq, self._hash = head, head.pruned, head.pruned_hash
        self._anchor, self._count, self._more = anchor, 0, 0
        self._problems: list[str] = []
        if head.lost:
            self._say(f"the head was lost {head.lost} times: entries after those left then are missing")
        if head.seq < anchor[0]:
            self._say(f"the log ends with entry {head.seq}, and entry {anchor[0]} was written: it was rewritten")

    def see(self, found: Iterable[Record]) -> None:
        for record in found:
            self._count += 1
            self._one(record)

    def damaged(self, cell: str) -> None:
        """A cell that is gone, or cannot be read. The entries of it are named as missing by what follows."""
        self._say(f"cell {cell} is missing or cannot be read")

    def _one(self, record: Record) -> None:
        try:
            link = link_of(record.entry)
        except msgspec.DecodeError:
            self._say(f"the entry after entry {self._seq} cannot be read")
            return
        if digest(record.entry) != record.hash:
            self._say(f"{link.named} was changed")
            if link.seq != self._seq + 1:  # its place may have been changed too: go by what follows
                return
        elif link.seq <= self._seq:
            self._say(f"{link.named} stands after entry {self._seq}: it was moved or repeated")
            return
        elif link.seq > self._seq + 1:
            self._say(f"{_numbers(self._seq + 1, link.seq - 1)} before {link.named}: removed, or moved")
        elif link.prev != self._hash:
            self._say(f"entry {self._seq} was replaced: {link.named} holds another hash of it")
        if link.seq == self._anchor[0] and record.hash != self._anchor[1]:
            self._say(f"{link.named} has another hash than the anchor: the log was rewritten")
        self._seq, self._hash = link.seq, record.hash

    def end(self) -> Verified:
        """Return the result."""
        head = self._head
        if self._seq < head.seq:
            self._say(f"{_numbers(self._seq + 1, head.seq)} at the end: removed")
        elif self._hash != head.hash or self._seq > head.seq:
            self._say(f"entry {self._seq}, the last one, was replaced: the head holds {head.seq}:{head.hash}")
        problems = [*self._problems, *([f"and {self._more:,} more"] if self._more else [])]
        return Verified(tuple(problems), self._count, head.pruned, f"{head.seq}:{head.hash}")

    def _say(self, text: str) -> None:
        if len(self._problems) < SHOWN:
            self._problems.append(text)
        else:
            self._more += 1


def _numbers(first: int, last: int) -> str:
    return f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"


def newest(found: Sequence[Record]) -> Link:
    """The place of the last of these; one of zeros where that cannot be read."""
    try:
        return link_of(found[-1].entry) if found else Link()
    except msgspec.DecodeError:
        return Link()


def anchor_of(text: str) -> tuple[int, str]:
    """The number and the hash of `SEQ:HASH`, as `Verified.head` says them. Raises ConfigError."""
    seq, _, hash = text.partition(":")
    if not seq.isdecimal() or len(hash) not in (0, 64) or (hash == "") != (int(seq) == 0):
        raise ConfigError(f"anchor {text!r}: expected SEQ:HASH, as the head of an earlier `redrive audit verify`")
    return int(seq), hash
