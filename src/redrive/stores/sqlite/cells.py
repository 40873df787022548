"""Cells in the SQLite store. Any number of swaps needs one read and one write.

A deleted cell stays as an expired row until a sweep removes it. The sweep records the highest version that it removed
(`cell_gone`), and versions of new cells start above that one, so that no key reuses a version.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from ...errors import Conflict
from ...message import Cell, Swap
from ..meta import text

SWEEP_MAX = 1000
T = TypeVar("T")


class Write(Protocol):
    """The type of `FileWriter.run`, which commits what `do` writes."""

    def __call__(self, do: Callable[[sqlite3.Connection], T], *, synced: bool = True) -> T: ...


_read = msgspec.json.Decoder(list[tuple[str, int, str]]).decode


class Swaps:
    """Some cells, as they are before and after swaps. Works inside the caller's transaction."""

    def __init__(self, c: sqlite3.Connection, sql: Mapping[str, str], swaps: Iterable[Swap], now: int) -> None:
        self._c, self._sql, self._now = c, sql, now
        self._gone, stored = c.execute(sql["cells_now"], (text([swap.key for swap in swaps]), now)).fetchone()
        rows = msgspec.json.decode(stored)
        self._last: dict[str, int] = {key: version for key, version, _ in rows}  # of all these rows, live or expired
        self._live: dict[str, int] = {key: version for key, version, live in rows if live}
        self._new: dict[str, Swap] = {}

    def try_one(self, swap: Swap) -> bool:
        key = swap.key
        if self._live.get(key, 0) != swap.version:
            return False
        version = self._last[key] = self._last.get(key, self._gone) + 1
        if swap.value is None:
            self._live.pop(key, None)
        else:
            self._live[key] = version
        self._new[key] = swap
        return True

    def try_all(self, swaps: Sequence[Swap]) -> bool:
        """Take in all of these swaps, or none if one does not apply; returns True if they were taken in."""
        if len(swaps) == 1:
            return self.try_one(swaps[0])
        before = self._last.copy(), self._live.copy(), self._new.copy()
        applied = all(map(self.try_one, swaps))
        if not applied:
            self._last, self._live, self._new = before
        return applied

    def write(self) -> None:
        """Write the cells that the swaps taken in have changed."""
        if not self._new:
            return
        rows: list[tuple[Any, ...]] = []
        values, end = [b"\0"], 1  # all values in one blob: substr() returns null for a part of an empty one
        for key, swap in self._new.items():
            begin, size, ttl_ms = None, 0, swap.ttl_ms
            if swap.value is None:
                ttl_ms = 0
            else:
                begin, size = end + 1, len(swap.value)
                values.append(swap.value)
                end += size
            rows.append((key, self._last[key], begin, size, None if ttl_ms is None else self._now + ttl_ms))
        self._c.execute(self._sql["write_cells"], (text(rows), b"".join(values)))


def to_cells(stored: str) -> dict[str, Cell]:
    """Return cells by key, from the JSON that the statement `read_cells` returns."""
    return {key: Cell(version, bytes.fromhex(value)) for key, version, value in _read(stored)}


def swap_all(c: sqlite3.Connection, sql: Mapping[str, str], swaps: Sequence[Swap], now: int) -> None:
    """Apply all swaps in the caller's transaction. Raises Conflict if one does not apply."""
    if not swaps:
        return
    cells = Swaps(c, sql, swaps, now)
    for swap in swaps:
        if not cells.try_one(swap):
            raise Conflict(f"cell {swap.key!r} is not at version {swap.version}; nothing was written, read it again")
    cells.write()


def swap_each(c: sqlite3.Connection, sql: Mapping[str, str], swaps: Sequence[Swap], now: int) -> list[bool]:
    cells = Swaps(c, sql, swaps, now)
    words = [*map(cells.try_one, swaps)]
    cells.write()
    return words


def sweep(c: sqlite3.Connection, sql: Mapping[str, str], now: int) -> bool:
    """Remove up to SWEEP_MAX expired cells; True if there may be more."""
    expired = c.execute(sql["expired_cells"], (now,)).fetchone()
    if expired[0] == 0:
        return False
    c.execute(sql["keep_versions"], (expired[1],))
    c.execute(sql["sweep_cells"], (now,))
    return bool(expired[0] == SWEEP_MAX)


class SqliteCells:
    """The cells of an SQLite store, in the file of its messages."""

    def __init__(
        self,
        sql: Mapping[str, str],
        read: Callable[..., list[tuple[Any, ...]]],
        write: Write,
        now_ms: Callable[[], int],
        clock_ms: Callable[[], int],
        sweep: Callable[[sqlite3.Connection, int], None],
    ) -> None:
        self._sql, self._read, self._write, self._sweep = sql, read, write, sweep
        self._now_ms, self._clock_ms = now_ms, clock_ms

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        rows = self._read(self._sql["read_cells"], text(list(keys)), self._now_ms())
        cells = to_cells(rows[0][0])
        return [cells.get(key) for key in keys]

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        def work(c: sqlite3.Connection) -> list[bool]:
            now = self._clock_ms()
            words = swap_each(c, self._sql, swaps, now)
            self._sweep(c, now)
            return words

        return self._write(work, synced=durable) if swaps else []
