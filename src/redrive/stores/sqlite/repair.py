"""Find rows of the SQLite store that are unreadable, or that nothing would ever claim, and repair them on request.

A row that is only in the wrong place goes back to its queue. A row with lost parts becomes dead, with the other parts,
for a person to inspect. A row without id, task, queue or body stays in quarantine, with its original values.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from ...errors import StoreError, StoreUnavailable
from ...message import DAMAGED, Damage, Lane, Message
from .batches import SqliteBatches
from .damage import UNREADABLE, Damages, RawRow, damage_of, look
from .rows import COLUMNS, Read, read_rows, to_message

PAGE = 1000
BEYOND_MENDING = ("id", "task", "queue", "body")
PLACES = frozenset(("due_ms", "priority", "wake_ms", "turn", "parked_ms"))
_STRANDED = "nothing would ever claim it: it has no time at which it is due, and no place in a group"


class Bad(NamedTuple):
    """A damaged row. `aside`: True if the row was in quarantine already."""

    seq: int
    message: Message
    wrong: frozenset[str]
    aside: bool = False

    @property
    def lost(self) -> list[str]:
        """The names of damaged columns without which the row cannot be repaired."""
        return [name for name in BEYOND_MENDING if name in self.wrong]

    @property
    def line(self) -> str:
        m, why = self.message, "" if self.message.damage is None else self.message.damage.why
        where = "set aside in quarantine, " if self.aside else ""
        end = f"; it cannot be mended without its {' and '.join(self.lost)}" if self.lost else ""
        return f"message {m.id}, task {m.task!r}, queue {m.queue!r}: {where}{why}{end}"


def bad_rows(read: Read, sql: Mapping[str, str]) -> Iterator[Bad]:
    """Yield all damaged rows, in the order in which the messages were put."""
    last = -1
    while True:
        seqs = [row[0] for row in read("select seq from message where seq > ? order by seq limit ?", last, PAGE)]
        if not seqs:
            return
        if not _readable(read, seqs):
            yield from _looked_at(read, seqs)
        for seq, before in read(sql["set_aside_among"], seqs[0], seqs[-1]):
            stored, damage = look(read, seq), damage_of(before)
            if stored is not None and damage is not None and not stored.wrong:
                message = msgspec.structs.replace(stored.message(seq), damage=damage)
                yield Bad(seq, message, frozenset(msgspec.json.decode(before).get("wrong", ())), aside=True)
        for (seq,) in read(sql["stranded_among"], seqs[0], seqs[-1]):
            stored = look(read, seq)
            if stored is not None and not stored.wrong:
                message = msgspec.structs.replace(stored.message(seq), damage=Damage(_STRANDED, stored.raw))
                yield Bad(seq, message, frozenset(("due_ms",)))
        last = seqs[-1]


def _readable(read: Read, seqs: list[int]) -> bool:
    bounds = seqs[0], seqs[-1]
    try:
        raw = read(f"select json_group_array(json_array({COLUMNS})) from message where seq between ? and ?", *bounds)
        rows = read_rows(raw[0][0])
        for row in rows:
            to_message(row)
    except StoreUnavailable:
        raise
    except (StoreError, *UNREADABLE):
        return False
    odd = read("select 1 from message where seq between ? and ? and priority not between 0 and 3 limit 1", *bounds)
    return len(rows) == len(seqs) and not odd


def _looked_at(read: Read, seqs: list[int]) -> Iterator[Bad]:
    for seq in seqs:
        row = look(read, seq)
        if row is not None and row.wrong:
            yield Bad(seq, row.message(seq), frozenset(row.wrong))


class Repairs:
    """Repairs damaged rows one by one, each in a commit of the caller."""

    def __init__(self, damages: Damages, batches: SqliteBatches) -> None:
        self._damages, self._batches = damages, batches

    def mend(self, c: sqlite3.Connection, bad: Bad, now: int) -> str:
        """Repair a damaged row; returns a sentence about the result."""

        def read(sql: str, *args: Any) -> list[tuple[Any, ...]]:
            return c.execute(sql, args).fetchall()

        id, row = bad.message.id, look(read, bad.seq)
        if row is None:
            return f"message {id} is gone meanwhile"
        if bad.lost:
            if not bad.aside:
                self._damages.set_aside(c, [bad.seq], now)
            return f"message {id} stays in quarantine: its {' and '.join(bad.lost)} cannot be read"
        live = bad.message.lane in (Lane.READY, Lane.LEASED)
        if bad.wrong <= PLACES and live:
            self._put_back(c, bad.seq, row, now)
            return f"message {id} is back in queue {bad.message.queue!r}"
        if not bad.aside:
            self._damages.set_aside(c, [bad.seq], now)
        with self._batches.moving(c, [bad.seq]):
            c.execute("update message set lane = 'dead', before = null where seq = ?", (bad.seq,))
        return f"message {id} is dead, as {DAMAGED}, without its {', '.join(sorted(bad.wrong))}"

    def _put_back(self, c: sqlite3.Connection, seq: int, row: RawRow, now: int) -> None:
        priority = row.values["priority"]
        c.execute(
            "update message set due_ms = ?, priority = ?, wake_ms = null, turn = null, parked_ms = null where seq = ?",
            (now, priority, seq),
        )
