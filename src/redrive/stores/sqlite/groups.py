"""Groups in the SQLite store: messages with a place, parked ones, and those that wait for their due time.

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
    """The state of a grouped message without a place: parked (`turn`) or waiting until `wake_ms`; a parked one is not
    due before that time either."""

    turn: int | None
    wake_ms: int | None


class HandleMatch(msgspec.Struct, array_like=True, frozen=True):
    """A message that is still as its handle says; `which` is the handle's index."""

    which: int
    seq: int
    lane: str
    queue: str
    group: str | None
    priority: int
    turn: int | None


class SqliteGroupRules(NamedTuple):
    """The group settings of a queue."""

    width: int
    strict: bool
    block: bool
    own_widths: bool  # True if some group has a width of its own


def spot(strict: bool, priority: int, number: int, due_ms: int, now_ms: int) -> GroupSpot:
    """The spot of a message that joins its group. `number` rises with every join. Strict groups order by it alone;
    others by priority first, and a message joins only when it is due."""
    if strict:
        return GroupSpot(number, due_ms if due_ms > now_ms else None)
    return GroupSpot(None, due_ms) if due_ms > now_ms else GroupSpot(priority << PRIORITY_SHIFT | number, None)


class SqliteGroups:
    """Admits messages of groups. Works on the given connection, inside its transaction."""

    def __init__(self, statements: Mapping[str, str]) -> None:
        self._sql = statements
        self.admitted = 0  # messages given a place since the last exchange reset this

    def rules(self, c: sqlite3.Connection, queue: str) -> SqliteGroupRules:
        width, order, on_dead, own = c.execute(self._sql["group_settings"], (queue,)).fetchone()
        strict = order == GroupOrder.STRICT
        return SqliteGroupRules(width, strict, strict and on_dead == OnDead.BLOCK, bool(own))

    # -- joining

    def put(
        self, c: sqlite3.Connection, groups: Sequence[str | None], rows: Sequence[tuple[Any, ...]], now: int
    ) -> None:
        """Insert rows in order, some of them with groups."""
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
        """Put a redriven message at the tail of its group; one that has the group's place keeps it."""
        if seen.group is None or (seen.turn == 0 and queue == seen.queue):
            return Touched()
        at = spot(self.rules(c, queue).strict, seen.priority, self._next_numbers(c, 1), due, now)
        c.execute(self._sql["rejoin"], (seen.seq, *at, now))
        return {(seen.queue, seen.group), (queue, seen.group)}

    def wake(self, c: sqlite3.Connection, queue: str, limit: int, now: int) -> None:
        """Move messages whose wait is over into their groups, the longest due first, at most `limit` or WOKEN_MIN."""
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
        """Reserve `count` numbers in the sequence that also numbers the rows; returns the first."""
        c.execute("update sqlite_sequence set seq = seq + ? where name = 'message'", (count,))
        return self._last_number(c) - count + 1

    # -- leaving

    def touched(self, c: sqlite3.Connection, seqs: Iterable[int | str]) -> Touched:
        """The groups in which these messages hold places, before a change."""
        pairs = msgspec.json.decode(c.execute(self._sql["touched"], (text([*seqs]),)).fetchone()[0])
        return {(queue, group) for queue, group in pairs}

    def touched_by_rest(self, c: sqlite3.Connection, lane: str, queue: str, bounds: tuple[Any, ...]) -> Touched:
        """The groups whose places are held by dead messages that retention will remove."""
        pairs = msgspec.json.decode(c.execute(self._sql["touched_by_rest"], (lane, queue, *bounds)).fetchone()[0])
        return {(queue, group) for queue, group in pairs}

    def settled(self, c: sqlite3.Connection, seqs: Iterable[int | str], touched: Touched, now: int) -> None:
        """After a settlement, keep or free the places of these messages, and admit the next ones."""
        listed = text([*seqs])
        for queue in {queue for queue, _ in touched}:
            rules = self.rules(c, queue)
            c.execute(self._sql["settled_in_groups"], (now, listed, queue, rules.strict, rules.block))
        self.admit(c, touched, now)

    def admit(self, c: sqlite3.Connection, touched: Touched, now: int) -> None:
        """Give the free places of these groups to parked messages, in order. Time spent parked counts as held."""
        for queue in {queue for queue, _ in touched}:
            rules = self.rules(c, queue)
            names = text([group for of, group in touched if of == queue])
            several = rules.width > 1 or rules.own_widths
            while admitted := c.execute(self._sql["admit"], (queue, names, now, rules.width)).rowcount:
                self.admitted += admitted
                if not several:
                    break

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
        """Raises ConfigError if the settings contradict each other; the caller's commit is undone."""
        width, order, on_dead, own = c.execute(self._sql["group_settings"], (queue,)).fetchone()
        refuse(queue, width, bool(own), GroupOrder(order), OnDead(on_dead))

    def admit_everywhere(self, c: sqlite3.Connection, now: int) -> None:
        """Admit in all groups, as an unreadable row may have freed a place in a group it does not name."""
        for queue in msgspec.json.decode(c.execute(self._sql["parked_queues"]).fetchone()[0]):
            self._admit_all(c, queue, now)

    def _admit_all(self, c: sqlite3.Connection, queue: str, now: int) -> None:
        names = msgspec.json.decode(c.execute(self._sql["parked_groups"], (queue,)).fetchone()[0])
        self.admit(c, {(queue, name) for name in names}, now)


def to_group(queue: str, row: tuple[str, int, int, int, str | None]) -> Group:
    name, width, taken, parked, blocked = row
    # (`check` reports an invalid width)
    return Group(queue, name, width if type(width) is int else 0, taken, parked, blocked)
