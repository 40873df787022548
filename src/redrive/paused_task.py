"""The tasks that people paused: how they are stored, and which tasks a pause holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec import Struct

CELL = "task-pauses"  # key of the cell that has all of them, so that one read gets them


class PausedTask(Struct, frozen=True, kw_only=True):
    """A pause of one task, or of all tasks that a pattern such as `crm.*` matches, from `at_ms` until `until_ms` (None:
    until it is resumed). Times are ms of the store's clock. `by` and `reason` are of the person."""

    name: str
    at_ms: int
    by: str
    reason: str
    until_ms: int | None = None

    @property
    def is_pattern(self) -> bool:
        return any(each in self.name for each in "*?[")

    def is_over(self, now_ms: int) -> bool:
        return self.until_ms is not None and self.until_ms <= now_ms

    def holds(self, task: str) -> bool:
        """Return True if the pause is of this task."""
        return task == self.name or (self.is_pattern and fnmatchcase(task, self.name))


decode: Callable[[bytes | str], dict[str, PausedTask]] = msgspec.json.Decoder(dict[str, PausedTask]).decode
encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


def pause_of(pauses: Mapping[str, PausedTask], task: str, now_ms: int) -> PausedTask | None:
    """Return the pause that holds a task at `now_ms`: one of its own name, else the pattern that ends last."""
    holding = [each for each in pauses.values() if not each.is_over(now_ms) and each.holds(task)]
    return max(holding, key=lambda each: (each.name == task, each.until_ms is None, each.until_ms or 0), default=None)


def held_tasks(pauses: Mapping[str, PausedTask], known: Iterable[str], now_ms: int) -> frozenset[str]:
    """Return the names of paused tasks at `now_ms`: the known ones that a pause holds, and those paused by name."""
    held, names = set[str](), {*known, *(name for name, each in pauses.items() if not each.is_pattern)}
    for name, each in pauses.items():
        if not each.is_over(now_ms):  # a thousand names are not compared with each other: workers call this each second
            held |= set(filter(each.holds, names)) if each.is_pattern else {name}
    return frozenset(held)
