"""The counts of batches in the SQLite store. Each call is part of the commit of the caller that moves the members.

Members are counted together: a commit adds to the row of a batch once for each kind of move, whatever their number.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache

import msgspec
from msgspec.structs import astuple

from ...message import RESTING, Verdict
from .. import batches
from ..meta import text

Move = tuple[str, str | None, str | None]  # a member of this batch left this field of its counts for that one
_read_members = msgspec.json.Decoder(list[tuple[int, str, str]]).decode
_read_ids = msgspec.json.Decoder(list[str]).decode


class SqliteBatches:
    """Counts members on the connection of the caller, and knows which batches an exchange has to name."""

    def __init__(self, statements: Mapping[str, str]) -> None:
        self._sql = statements
        self._ends: set[tuple[str, str | None]] | None = None  # batch and end of what was open, within an exchange

    def begin(self) -> None:
        """Remember from now on what was settled, until `news`."""
        self._ends = set()

    def count(self, c: sqlite3.Connection, moves: Mapping[Move, int]) -> None:
        """Add to the counts; `moves` says how often each move took place."""
        rows = [(batch, *(n * each for each in _added(old, new))) for (batch, old, new), n in moves.items()]
        c.execute(self._sql["count_members"], (text(rows),))
        if self._ends is not None:
            self._ends.update((batch, new) for batch, old, new in moves if old == "open")

    @contextmanager
    def moving(self, c: sqlite3.Connection, seqs: Sequence[int], verdict: Verdict | None = None) -> Iterator[None]:
        """Count these members by what becomes of them within the block. `verdict`: by which it removes them."""
        before = self._states(c, seqs) if seqs else {}
        yield
        if before:
            after = self._states(c, seqs)
            moves = Counter[Move]()
            for seq, (batch, old) in before.items():
                new = after[seq][1] if seq in after else batches.removed_as(old, verdict)
                if new != old:
                    moves[batch, old, new] += 1
            self.count(c, moves)

    def _states(self, c: sqlite3.Connection, seqs: Sequence[int]) -> dict[int, tuple[str, str]]:
        (found,) = c.execute(self._sql["members"], (text(seqs),)).fetchone()
        return {seq: (batch, state) for seq, batch, state in _read_members(found)}

    def news(self, c: sqlite3.Connection) -> tuple[str, ...]:
        """Return the batches that the exchange has to name, sorted."""
        ends, self._ends = self._ends, None
        if not ends:
            return ()
        (ended,) = c.execute(self._sql["ended"], (text([batch for batch, _ in ends]),)).fetchone()
        return tuple(sorted({*_read_ids(ended), *(batch for batch, end in ends if end in RESTING)}))


@cache
def _added(old: str | None, new: str | None) -> tuple[int, ...]:
    """Return what the move of a member adds to each of its batch's counts."""
    return astuple(batches.moved(batches.NOTHING, old, new))


def miscounted(id: str, odd: int, *pairs: int) -> list[str]:
    """Return what is wrong with the counts of a batch, from a row of the statement `miscounted`."""
    wrong = [f"batch {id}: a count is no number"] if odd else []
    fields = zip(batches.STORED, pairs[::2], pairs[1::2], strict=True)
    return wrong + [
        batches.miscounted(id, field, counted, stored) for field, counted, stored in fields if counted != stored
    ]
