"""Groups in the SQLite store: messages with a place, parked ones, and those that wait until they are due to join.

Every statement that moves grouped messages is followed, in the same commit, by `admit` for the groups it touched. So no
commit leaves a message parked while its group has a free place, and no process has to search for such messages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...message import Group, GroupOrder, OnDead
from ..groups import PRIORITY_SHIFT, WOKEN_MIN, refuse
from ..meta import text

Touched = set[tuple[str, str]]


class GroupSpot(NamedTuple):
    """How a grouped message without a place is stored: parked with a turn, or waiting until `wake_ms` to join; a parked
    message with a `wake_ms` is not due before that time."""

    turn: int | None
    wake_ms: int | None


class HandleMatch(msgspec.Struct, array_like=True, frozen=True):
    """A message that is still as its handle says. `which` is the index of that handle."""

    which: int
    seq: int
    lane: str
    queue: str
    group: str | None
    priority: int
    turn: int | None
    batch: str | None


class SqliteGroupRules(NamedTuple):
    """The settings that a queue has for its groups."""

    width: int
    strict: bool
    block: bool
    own_widths: bool  # True: some group of the queue has a width of its own


def spot(strict: bool, priority: int, number: int, due_ms: int, now_ms: int) -> GroupSpot:
    """Return the spot of a message that joins its group. `number` rises with every join. Strict groups order by number
    only; others by priority first, and their messages join only when they are due."""
    if strict:
        return GroupSpot(number, due_ms if due_ms > now_ms else None)
    return GroupSpot(None, due_ms) if due_ms > now_ms else GroupSpot(priority << PRIORITY_SHIFT | number, None)


class SqliteGroups:
    """Admits messages of groups. Works on the connection of the caller, inside its transaction."""

    admitted: int

    def __init__(self, statements: Mapping[str, str]) -> None:
        self._sql = statements
        self.admitted = 0  # how many messages got a place since an exchange last set this to 0

    def rules(self, c: sqlite3.Connection, queue: str) -> SqliteGroupRules:
        width, order, on_dead, own = c.execute(self._sql["group_settings"], (queue,)).fetchone()
        strict = order == GroupOrder.STRICT
        return SqliteGroupRules(width, strict, strict and on_dead == OnDead.BLOCK, bool(own))

    # -- joining

    def put(
        self, c: sqlite3.Connection, groups: Sequence[str | None], rows: Sequence[tuple[Any, ...]], now: int
    ) -> None:
        """Insert rows in order, each with its group or None, and admit to the groups."""
        rules: dict[str, SqliteGroupRules] = {}
        touched, placed, first = Touched(), [], self._last_number(c) + 1
        for number, (group, row) in enumerate(zip(groups, rows, strict=True), first):
            if group is None:
                placed.append((*row, None, None, None))
                continue
            queue, priority, due = row[2:5]
            if queue not in rules:
                rules[queue] = self.rules(c, queue)
            at = spot(rules[queue].strict, priority, number, due, now)
            placed.append((*row[:4], None, *row[5:], *at, now))
            touched.add((queue, group))
        c.executemany(self._sql["put_grouped"], placed)
        self.admit(c, touched, now)

    def rejoin(self, c: sqlite3.Connection, seen: HandleMatch, queue: str, due: int, now: int) -> Touched:
        """Put a redriven message last in its group; one that kept its place keeps it still. Returns groups touched."""
        if seen.group is None or (seen.turn == 0 and queue == seen.queue):
            return Touched()
        at = spot(self.rules(c, queue).strict, seen.priority, self._next_numbers(c, 1), due, now)
        c.execute(self._sql["rejoin"], (seen.seq, *at, now))
        return {(seen.queue, seen.group), (queue, seen.group)}

    def wake(self, c: sqlite3.Connection, queue: str, limit: int, now: int) -> None:
        """Let waiting messages that are due join their groups, the longest due first, up to `limit` or WOKEN_MIN."""
        woken = msgspec.json.decode(c.execute(self._sql["woken"], (queue, now, max(limit, WOKEN_MIN))).fetchone()[0])
        if not woken:
            return
        strict, first = self.rules(c, queue).strict, self._next_numbers(c, len(woken))
        turns = [
            (seq, spot(strict, priority, number, 0, now).turn) for number, (seq, _, priority) in enumerate(woken, first)
        ]
        c.execute(self._sql["park"], (text(turns), now))
        self.admit(c, {(queue, group) for _, group, _ in woken}, now)

    def _last_number(self, c: sqlite3.Connection) -> int:
        row = c.execute("select seq from sqlite_sequence where name = 'message'").fetchone()
        return row[0] if row else 0

    def _next_numbers(self, c: sqlite3.Connection, count: int) -> int:
        """Reserve `count` numbers in the sequence that also numbers the rows; returns the first of them."""
        c.execute("update sqlite_sequence set seq = seq + ? where name = 'message'", (count,))
        return self._last_number(c) - count + 1

    # -- leaving

    def touched(self, c: sqlite3.Connection, seqs: Iterable[int | str]) -> Touched:
        """Return the groups in which these messages hold places. Call it before a change."""
        pairs = msgspec.json.decode(c.execute(self._sql["touched"], (text([*seqs]),)).fetchone()[0])
        return {(queue, group) for queue, group in pairs}

    def touched_by_rest(self, c: sqlite3.Connection, lane: str, queue: str, bounds: tuple[Any, ...]) -> Touched:
        """Return the groups in which dead messages that retention is about to remove hold places."""
        pairs = msgspec.json.decode(c.execute(self._sql["touched_by_rest"], (lane, queue, *bounds)).fetchone()[0])
        return {(queue, group) for queue, group in pairs}

    def settled(self, c: sqlite3.Connection, seqs: Iterable[int | str], touched: Touched, now: int) -> None:
        """After the settlement of these grouped messages, keep or free their places, and admit others to free ones."""
        listed = text([*seqs])
        for queue in {queue for queue, _ in touched}:
            rules = self.rules(c, queue)
            c.execute(self._sql["settled_in_groups"], (now, listed, queue, rules.strict, rules.block))
        self.admit(c, touched, now)

    def admit(self, c: sqlite3.Connection, touched: Touched, now: int) -> None:
        """Give free places of these groups to parked messages, in order. The time spent parked counts as held."""
        for queue in {queue for queue, _ in touched}:
            rules = self.rules(c, queue)
            names = text([group for of, group in touched if of == queue])
            several = rules.width > 1 or rules.own_widths
            sql = self._sql["admit_several" if several else "admit"]
            self.admitted += c.execute(sql, (queue, names, now, rules.width)).rowcount

    # -- settings

    def configure(
        self,
        c: sqlite3.Connection,
        queue: str,
        paused: bool | None,
        width: int | None,
        order: GroupOrder | None,
        on_dead: OnDead | None,
        now: int,
    ) -> None:
        was_strict = self.rules(c, queue).strict
        c.execute(self._sql["configure"], (queue, paused, width, order, on_dead))
        strict = self.rules(c, queue).strict
        if strict != was_strict:
            if not strict:
                c.execute(self._sql["unpark_waiting"], (queue, now))
                c.execute(self._sql["give_way"], (queue, now))
            c.execute(self._sql["reorder"], (queue, strict))
        self._checked(c, queue)
        if not self.rules(c, queue).block:
            c.execute(self._sql["unblock"], (queue,))
        if (width, order, on_dead) != (None, None, None):
            self._admit_all(c, queue, now)

    def configure_group(
        self, c: sqlite3.Connection, queue: str, group: str | None, width: int | None, resume: bool, now: int
    ) -> None:
        name = group or ""
        if width == 0:
            c.execute(self._sql["unset_group_width"], (queue, name))
        elif width is not None:
            c.execute(self._sql["set_group_width"], (queue, name, width))
        if resume:
            c.execute(self._sql["resume"], (queue, name))
        self._checked(c, queue)
        self._admit_all(c, queue, now)

    def _checked(self, c: sqlite3.Connection, queue: str) -> None:
        """Raise ConfigError, which undoes the caller's commit, if the settings of the queue contradict each other."""
        width, order, on_dead, own = c.execute(self._sql["group_settings"], (queue,)).fetchone()
        refuse(queue, width, bool(own), GroupOrder(order), OnDead(on_dead))

    def admit_everywhere(self, c: sqlite3.Connection, now: int) -> None:
        """Admit to all groups: an unreadable row does not name the group in which it may have held a place."""
        for queue in msgspec.json.decode(c.execute(self._sql["parked_queues"]).fetchone()[0]):
            self._admit_all(c, queue, now)

    def _admit_all(self, c: sqlite3.Connection, queue: str, now: int) -> None:
        names = msgspec.json.decode(c.execute(self._sql["parked_groups"], (queue,)).fetchone()[0])
        self.admit(c, {(queue, name) for name in names}, now)


def to_group(queue: str, row: tuple[str, int, int, int, str | None]) -> Group:
    name, width, taken, parked, blocked = row
    # `check` reports a width that is not a number
    return Group(queue, name, width if type(width) is int else 0, taken, parked, blocked)
