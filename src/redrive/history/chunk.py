"""A cell of history: counts of one queue and task in one span of time, by slots.

There are three kinds, by what they are read for: counts by the minute for a day, histograms by five minutes for three
hours, and both by the hour for 35 days. A histogram by the minute would be most of the bytes, and is too thin to have
percentiles. A value is MessagePack, compressed by zlib: for each key the differences from slot to slot, as integers of
variable length. That is half of what lists of numbers take, since counts differ little from one minute to the next.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from ..message import UNREADABLE
from .tally import is_histogram

NONCES = 16  # writes that a cell remembers, so that a write whose answer was lost is recognised
NONCE_BYTES = 3
BYTES_MAX = 4 * 1024 * 1024  # the most bytes of an unpacked chunk; a larger one counts as damaged
SHIFT_MAX = 63  # the most bits of a count that the decoder accepts
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


class ChunkKind(NamedTuple):
    """A kind of chunk: its letter, the length and number of its slots, how long it is kept after its end, and True for
    what it holds, `counts` and `histograms`."""

    letter: str
    slot_ms: int
    slots: int
    kept_ms: int
    counts: bool
    histograms: bool

    @property
    def span_ms(self) -> int:
        """The time that a chunk covers, in ms."""
        return self.slot_ms * self.slots

    def holds(self, key: str) -> bool:
        """Return True if chunks of this kind keep counts under this key."""
        return self.histograms if is_histogram(key) else self.counts


MINUTES = ChunkKind("m", MINUTE_MS, 60, 24 * HOUR_MS, counts=True, histograms=False)
FIVES = ChunkKind("f", 5 * MINUTE_MS, 12, 3 * HOUR_MS, counts=False, histograms=True)
HOURS = ChunkKind("h", HOUR_MS, 24, 35 * 24 * HOUR_MS, counts=True, histograms=True)
KINDS = (MINUTES, FIVES, HOURS)


class HistoryChunk(Struct):
    """The content of a cell of history: `counts` by key, one per slot; `nonces` of the last writes, the newest last."""

    counts: dict[str, list[int]]
    nonces: list[bytes]


class _Stored(Struct, array_like=True):
    counts: dict[str, bytes]
    nonces: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode


def read_chunk(value: bytes | None) -> HistoryChunk:
    """Return the chunk in a cell's value; an empty one if the value is missing or damaged."""
    try:
        stored = _Stored({}) if value is None else _decode(zlib.decompressobj().decompress(value, BYTES_MAX))
        counts = {key: _numbers(packed) for key, packed in stored.counts.items()}
    except (zlib.error, *UNREADABLE):
        return HistoryChunk({}, [])
    nonces = stored.nonces
    return HistoryChunk(counts, [nonces[at : at + NONCE_BYTES] for at in range(0, len(nonces), NONCE_BYTES)])


def write_chunk(chunk: HistoryChunk) -> bytes:
    """Return a chunk encoded as the value of a cell."""
    counts = {key: _pack(numbers) for key, numbers in sorted(chunk.counts.items())}
    return zlib.compress(_encode(_Stored(counts, b"".join(chunk.nonces[-NONCES:]))))


def add_counts(chunk: HistoryChunk, slot: int, counts: Mapping[str, int]) -> None:
    """Add these counts to one slot of a chunk."""
    for key, count in counts.items():
        numbers = chunk.counts.setdefault(key, [])
        if slot >= len(numbers):
            numbers.extend([0] * (slot + 1 - len(numbers)))
        numbers[slot] += count


def slots_of(kind: ChunkKind, chunk: HistoryChunk, start_ms: int) -> Iterator[tuple[int, str, int]]:
    """Yield (start of the slot, key, count) for each count above 0 of a chunk that began at `start_ms`."""
    for key, numbers in chunk.counts.items():
        for slot, count in enumerate(numbers):
            if count:
                yield start_ms + slot * kind.slot_ms, key, count


def _pack(numbers: Sequence[int]) -> bytes:
    """Return counts packed as differences from one to the next: the sign in the lowest bit, seven bits a byte, lowest
    first."""
    out, before = bytearray(), 0
    for number in numbers:
        change, before = number - before, number
        rest = change << 1 if change >= 0 else ~change << 1 | 1
        while rest > 127:
            out.append(rest & 127 | 128)
            rest >>= 7
        out.append(rest)
    return bytes(out)


def _numbers(packed: bytes) -> list[int]:
    numbers, before, rest, shift = [], 0, 0, 0
    for byte in packed:
        if shift > SHIFT_MAX:
            raise ValueError("a count is too large")
        rest |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            before += ~(rest >> 1) if rest & 1 else rest >> 1
            numbers.append(before)
            rest = shift = 0
    return numbers
