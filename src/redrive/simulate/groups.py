"""Groups of messages in a simulated queue: who has a place in its group, and who is parked behind."""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import NamedTuple

from msgspec.structs import replace

from ..message import Message


class GroupRule(NamedTuple):
    """Messages belong to one of `groups` groups by chance. In each, `width` run at once. In strict order one does, and
    keeps its place while it waits for a retry."""

    groups: int
    width: int = 1
    strict: bool = False


class Groups:
    """The places of a scenario's groups. In `strict` ones, a message that waits for its retry keeps its place."""

    def __init__(self, rule: GroupRule, seed: int) -> None:
        self._rule, self._random = rule, random.Random(f"groups {seed}")
        self.strict: bool = rule.strict
        self._width = 1 if rule.strict else rule.width
        self._taken = Counter[str]()
        self._parked: dict[str, deque[Message]] = {}

    def member(self, message: Message) -> Message:
        """Return the message as a member of a group."""
        return replace(message, group=str(self._random.randrange(self._rule.groups)))

    def enter(self, message: Message) -> bool:
        """Take a place for the message, or park it as the last one of its group."""
        group = message.group or ""
        if self._taken[group] < self._width:
            self._taken[group] += 1
            return True
        self._parked.setdefault(group, deque()).append(message)
        return False

    def leave(self, message: Message) -> Message | None:
        """Free the place of the message; return the one that has it now, if any waits."""
        group = message.group or ""
        if parked := self._parked.get(group):
            return parked.popleft()
        self._taken[group] -= 1
        return None
