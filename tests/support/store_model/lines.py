"""Groups, said plainly: who holds a place, who stands in line for one, who waits for his time.

A message of a group is claimed only with a place, and a group has as many as its width. Who joins a line is numbered;
in strict groups the number alone decides who is next, in others priority does first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tests.support.store_model.kept import Kept

from redrive.errors import ConfigError
from redrive.message import RESTING, Group, GroupOrder, Lane, OnDead

Name = tuple[str, str]
WIDTH_MAX = 100_000


@dataclass(slots=True)
class Rules:
    """What a queue was told of its groups."""

    group_width: int = 1
    group_order: GroupOrder = GroupOrder.TURNS
    on_dead: OnDead = OnDead.SKIP

    @property
    def strict(self) -> bool:
        return self.group_order is GroupOrder.STRICT


class PlainLines:
    """The rules of all queues, and what they make of messages. It holds no message."""

    def __init__(self) -> None:
        self.rules: dict[str, Rules] = {}
        self.own: dict[tuple[str, str | None], int] = {}  # widths set at run time; None: of all groups of the queue
        self.joined = 0

    def copy(self) -> PlainLines:
        other = PlainLines()
        other.rules = {queue: replace(rules) for queue, rules in self.rules.items()}
        other.own, other.joined = dict(self.own), self.joined
        return other

    # -- rules

    def configure(self, queue: str, kept: Iterable[Kept], now: int, **said: Any) -> None:
        changed = replace(self._rules(queue), **said)
        self._refuse(queue, changed, self.own)
        if changed.group_width not in range(1, WIDTH_MAX + 1):
            raise ConfigError("width")
        self.rules[queue] = changed
        blocks = changed.strict and changed.on_dead is OnDead.BLOCK
        for k in [k for k in kept if k.queue == queue]:
            if k.lane is Lane.READY and (k.due_ms or 0) > now and not changed.strict:
                k.place, k.number = False, None  # who is not due yet has neither where turns are taken
            elif k.lane in RESTING and not blocks:
                k.place = False

    def set_width(self, queue: str, group: str | None, width: int) -> None:
        """0 takes an own width back."""
        own = {name: other for name, other in self.own.items() if name != (queue, group)}
        own |= {(queue, group): width} if width else {}
        self._refuse(queue, self._rules(queue), own)
        if width not in range(WIDTH_MAX + 1):
            raise ConfigError("width")
        self.own = own

    def _refuse(self, queue: str, rules: Rules, own: dict[tuple[str, str | None], int]) -> None:
        widths = {own.get((queue, None), rules.group_width)}
        widths |= {width for (of, group), width in own.items() if of == queue and group is not None}
        if rules.strict and widths != {1}:
            raise ConfigError("a strict group has one place")
        if rules.on_dead is OnDead.BLOCK and not rules.strict:
            raise ConfigError("only strict groups are blocked")

    def blocks(self, queue: str) -> bool:
        """Whether a dead head holds its group's line there."""
        rules = self._rules(queue)
        return rules.strict and rules.on_dead is OnDead.BLOCK

    def _rules(self, queue: str) -> Rules:
        return self.rules.get(queue, Rules())

    def width(self, name: Name) -> int:
        return self.own.get(name) or self.own.get((name[0], None)) or self._rules(name[0]).group_width

    # -- messages

    def join(self, k: Kept, now: int) -> None:
        """It stands in line, unless turns are taken and its time has not come."""
        k.place, k.number = False, None
        later = k.due_ms if k.due_ms is not None and k.due_ms > now else None
        if self._rules(k.queue).strict or later is None:
            self.joined += 1
            k.number = self.joined
        k.parked_ms = now
        k.due_ms = later
        k.due_least_ms = None if later is None else k.due_least_ms

    def put_off(self, k: Kept, due_ms: int) -> None:
        """It waits until then, and not in line where turns are taken."""
        k.due_ms, k.due_least_ms = due_ms, None
        if k.sent.group is not None and not self._rules(k.queue).strict:
            k.place, k.number = False, None

    def settled(self, k: Kept, now: int) -> None:
        """After a settlement: who waits gives its place up where turns are taken, who dies unless it blocks."""
        rules = self._rules(k.queue)
        if k.lane is Lane.READY:
            k.place = k.place and (rules.strict or (k.due_ms or 0) <= now)
        else:
            k.place = k.place and k.lane is not Lane.DONE and rules.strict and rules.on_dead is OnDead.BLOCK

    def wake(self, queue: str, kept: Iterable[Kept], now: int) -> None:
        """Those whose time has come stand in line, the longest due first."""
        waiting = [k for k in kept if k.queue == queue and k.parked and k.number is None and (k.due_ms or 0) <= now]
        for k in sorted(waiting, key=lambda k: (k.due_ms or 0, k.order)):
            self.join(k, now)

    def admit(self, kept: Iterable[Kept], now: int) -> None:
        """Free places are given to the first in line; who gets one is due now, if its time has come. What it was
        due for without one, it was held."""
        groups: dict[Name, list[Kept]] = {}
        for k in kept:
            if k.sent.group is not None:
                groups.setdefault((k.queue, k.sent.group), []).append(k)
        for name, members in groups.items():
            free = self.width(name) - sum(k.place for k in members)
            for k in self._line(name, members)[: max(0, free)]:
                k.place, k.number = True, None
                k.held_ms += max(0, now - max(k.parked_ms, k.due_ms or 0))
                k.due_ms = max(now, k.due_ms or 0)

    def _line(self, name: Name, members: Iterable[Kept]) -> list[Kept]:
        strict = self._rules(name[0]).strict
        line = [k for k in members if k.number is not None]
        return sorted(line, key=lambda k: (0 if strict else k.sent.priority, k.number or 0))

    def groups(self, queue: str, kept: Iterable[Kept]) -> list[Group]:
        """Those in which somebody stands or rests, or that have a width of their own."""
        found: dict[str, list[Kept]] = {group: [] for of, group in self.own if of == queue and group is not None}
        for k in kept:
            if k.queue == queue and k.sent.group is not None and (k.place or k.number is not None):
                found.setdefault(k.sent.group, []).append(k)
        return [self._group((queue, group), found[group]) for group in sorted(found, key=str.encode)]

    def _group(self, name: Name, members: list[Kept]) -> Group:
        blocks = [k.id for k in members if k.place and k.lane in (Lane.DEAD, Lane.QUARANTINE)]
        places, parked = sum(k.place for k in members), sum(k.number is not None for k in members)
        return Group(*name, self.width(name), places, parked, max(blocks, default=None))
