"""Find unreadable rows of the SQLite store, and quarantine them.

Nothing here runs while all rows are readable: code that fails on a row uses this module to find the damaged rows. A
damaged row goes to quarantine: unreadable columns get a default, and the column `before` keeps the whole row as JSON.
So every version can then read the message.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...message import DAMAGED, PRIORITIES, Damage, Lane, Message
from ..meta import Meta, read_deferral, read_meta, text
from .batches import SqliteBatches
from .groups import SqliteGroups
from .rows import COLUMNS, Read, read_faults, read_rows, to_message

UNREADABLE = (sqlite3.OperationalError, msgspec.MsgspecError, UnicodeError, ValueError, TypeError)
_EMPTY = Meta()


def _whole(value: Any) -> None:
    if type(value) is not int:
        raise ValueError(f"{_shown(value)} is no whole number")


def _count(value: Any) -> None:
    _whole(value)
    if not 0 <= value < 2**31:
        raise ValueError(f"{value} counts nothing")


def _fence(value: Any) -> None:
    _whole(value)
    if not 0 <= value < 2**32:
        raise ValueError(f"{value} is no fence")


def _words(value: Any) -> None:
    if type(value) is not str:
        raise ValueError(f"{_shown(value)} is no text")


def _octets(value: Any) -> None:
    if type(value) is not bytes:
        raise ValueError(f"{_shown(value)} is no blob")


def _priority(value: Any) -> None:
    _whole(value)
    if value not in PRIORITIES:
        raise ValueError(f"{value} is none of {', '.join(map(str, PRIORITIES))}")


def _lane(value: Any) -> None:
    _words(value)
    Lane(value)


def _json(read: Callable[[str], Any]) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        _words(value)
        read(value)

    return check


# By column: the check of a value, and the default for an unreadable one. If the default is None, NULL is valid too.
_CHECKS: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    **dict.fromkeys(("id", "task", "queue"), (_words, "")),
    "lane": (_lane, ""),
    "priority": (_priority, 2),
    "fence": (_fence, 0),
    **dict.fromkeys(("attempt", "crashes", "crashes_alone", "redrives", "suspect", "cancel"), (_count, 0)),
    **dict.fromkeys(("enqueued_ms", "life_ms", "held_ms"), (_whole, 0)),
    "version": (_whole, 1),
    **dict.fromkeys(("due_ms", "deadline_ms", "rested_ms", "wake_ms", "parked_ms", "expires_ms"), (_whole, None)),
    "attempts_allowed": (_count, None),
    "turn": (_whole, None),
    **dict.fromkeys(("key", "grp", "run", "worker", "producer", "reason", "fingerprint", "error"), (_words, None)),
    "batch": (_words, None),
    "meta": (_json(read_meta), None),
    "faults": (_json(read_faults), None),
    "deferral": (_json(read_deferral), None),
    "before": (_json(msgspec.json.decode), None),
    "body": (_octets, b""),
    **dict.fromkeys(("progress", "result", "before_progress", "before_result"), (_octets, None)),
}


class RawRow:
    """A row by column: `raw` has the values as SQL, `values` the readable ones or defaults, `wrong` the reasons."""

    def __init__(self, cells: Mapping[str, Any]) -> None:
        self.raw: dict[str, str] = {name: _literal(value) for name, value in cells.items() if value is not None}
        self.values: dict[str, Any] = {}
        self.wrong: dict[str, str] = {}
        for name, value in cells.items():
            check, default = _CHECKS.get(name, (_anything, None))
            try:
                if value is not None or default is not None:
                    check(value)
                self.values[name] = value
            except (ValueError, TypeError, msgspec.MsgspecError) as error:
                self.values[name], self.wrong[name] = default, str(error)
        lane, due = self.values["lane"], self.values["due_ms"]
        if due is not None and lane in (Lane.DEAD, Lane.QUARANTINE, Lane.DONE):
            self.wrong["lane"] = f"it is {lane}, but has a time at which it is due"

    @property
    def why(self) -> str:
        return "; ".join(f"column {name}: {why}" for name, why in self.wrong.items())

    def message(self, seq: int) -> Message:
        """Return a message with the readable values and the defaults."""
        v = self.values
        meta = _EMPTY if v["meta"] is None else read_meta(v["meta"])
        id = v["id"] or f"damaged-{seq}"
        return Message(
            id=id,
            task=v["task"],
            queue=v["queue"],
            body=v["body"],
            correlation_id=meta.correlation_id or id,
            lane=Lane(v["lane"]) if v["lane"] else Lane.QUARANTINE,
            priority=v["priority"],
            due_ms=v["due_ms"],
            **{name: v[name] for name in _ALIKE},
            suspect=v["suspect"] != 0,
            cancel=v["cancel"] != 0,
            group=v["grp"],
            reason=DAMAGED,
            content=meta.content,
            headers=meta.headers,
            causation_id=meta.causation_id,
            traceparent=meta.traceparent,
            keep_ms=meta.keep_ms,
            faults=() if v["faults"] is None else read_faults(v["faults"]),
            damage=Damage(self.why, self.raw),
        )


_ALIKE = (
    *("fence", "attempt", "enqueued_ms", "life_ms", "worker", "producer", "crashes", "crashes_alone", "redrives"),
    *("held_ms", "deadline_ms", "attempts_allowed", "version", "key", "run", "batch", "rested_ms", "result"),
    "progress",
)


def read_each(read: Read, seqs: Sequence[int]) -> Iterator[tuple[int, Message]]:
    """Yield these messages in order, each from a read of its own; a damaged one with its readable parts and damage."""
    for seq in seqs:
        stored = look(read, seq)
        if stored is not None and stored.wrong:
            yield seq, stored.message(seq)
        elif stored is not None:
            rows = read(f"select json_array(json_array({COLUMNS})) from message where seq = ?", seq)
            yield from ((row[0], to_message(row)) for (one,) in rows for row in read_rows(one))


def raw_of(message: Message) -> Mapping[str, str]:
    return {} if message.damage is None else message.damage.raw


def look(read: Read, seq: int) -> RawRow | None:
    """Read the row with this seq, column by column; None if there is none."""
    names = [row[0] for row in read("select name from pragma_table_info('message')")]
    parts = ", ".join(f"typeof({name}), hex({name})" for name in names)
    rows = read(f"select {parts} from message where seq = ?", seq)
    if not rows:
        return None
    return RawRow({name: _value(*rows[0][2 * n : 2 * n + 2]) for n, name in enumerate(names) if name != "seq"})


class Damages:
    """Quarantines damaged rows. Works on the connection of the caller, inside its transaction."""

    def __init__(self, statements: Mapping[str, str], groups: SqliteGroups, batches: SqliteBatches) -> None:
        self._sql, self._groups, self._batches = statements, groups, batches

    def set_aside(self, c: sqlite3.Connection, seqs: Sequence[int], now: int) -> list[Message]:
        """Quarantine the unreadable ones of these rows, so that they do not block others; returns their messages."""

        def read(sql: str, *args: Any) -> list[tuple[Any, ...]]:
            return c.execute(sql, args).fetchall()

        moved = []
        for seq in seqs:
            row = look(read, seq)
            if row is None or not row.wrong:
                continue
            moved.append(self._move(c, seq, row, now))
        return moved

    def _move(self, c: sqlite3.Connection, seq: int, row: RawRow, now: int) -> Message:
        message = row.message(seq)
        held = row.values["turn"] == 0 and type(message.group) is str
        values = {
            **{name: row.values[name] for name in row.wrong},
            "id": message.id,
            "lane": Lane.QUARANTINE.value,
            "reason": DAMAGED,
            "rested_ms": now,
            "due_ms": None,
            "wake_ms": None,
            "parked_ms": None,
            "expires_ms": None,
            "turn": 0 if held else None,
            "deferral": None,
            "before": text({"damaged": row.raw, "why": row.why, "wrong": [*row.wrong]}),
        }
        words = ", ".join(f"{name} = ?" for name in values)
        with self._batches.moving(c, [seq] if message.batch is not None else []):
            c.execute(f"update message set {words} where seq = ?", (*values.values(), seq))
        if message.group is not None:
            touched = {(message.queue, message.group)}
            self._groups.settled(c, [seq] if held else [], touched, now)
        if row.wrong.keys() & {"queue", "grp", "turn"}:
            self._groups.admit_everywhere(c, now)
        return msgspec.structs.replace(message, lane=Lane.QUARANTINE, due_ms=None, rested_ms=now, deferral=None)


def damage_of(before: Any) -> Damage | None:
    """Return the damage of a quarantined row, from its column `before`; None if there is none."""
    try:
        kept = msgspec.json.decode(before, type=dict[str, Any])
        return Damage(kept["why"], kept["damaged"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None


def _anything(value: Any) -> None:
    """Accept any value: the check of a column that a newer version added."""


def _value(kind: str, hexed: str) -> Any:
    """Return a column's value from its type and bytes; a text that is not UTF-8 becomes `Garbled`."""
    raw = bytes.fromhex(hexed)
    match kind:
        case "null":
            return None
        case "integer":
            return int(raw)
        case "real":
            return float(raw)
        case "text":
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return Garbled(raw)
        case _:
            return raw


class Garbled:
    """A stored text whose bytes are not UTF-8."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


def _literal(value: Any) -> str:
    """Return a value as an SQL literal, from which it can be restored."""
    match value:
        case Garbled():
            return f"cast(x'{value.raw.hex()}' as text)"
        case bytes():
            return f"x'{value.hex()}'"
        case str() if "\0" in value:
            return f"cast(x'{value.encode().hex()}' as text)"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case _:
            return repr(value)


def _shown(value: Any) -> str:
    said = _literal(value)
    return said if len(said) <= 60 else f"{said[:59]}…"
