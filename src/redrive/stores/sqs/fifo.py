"""The groups of FIFO queues: one message of a group runs at a time, and the rest of what was received waits behind it.

SQS hands out several messages of a group at once, in order. Were they run side by side, a retry of the first would come
after the second. While one of a group is in flight SQS delivers no other of it to anybody.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from .receive import Received

Group = tuple[str, str]  # a queue's URL, and the group


class Order:
    """Who of each group runs, and who waits behind it."""

    def __init__(self) -> None:
        self._behind: dict[Group, deque[Received]] = {}  # has an entry for each group of which one runs
        self._heads: dict[Group, str] = {}  # SQS's id of that one
        self._lock = threading.Lock()

    def heads(self, url: str, received: Sequence[Received]) -> list[Received]:
        """Those that may run now; the others wait. Where the one that runs is delivered again, its lease ran out, and
        with it those of all that waited behind it: they come again too."""
        heads = []
        with self._lock:
            for one in received:
                group, id = (url, group_of(one)), one.raw["MessageId"]
                if group in self._behind and self._heads[group] != id:
                    self._behind[group].append(one)
                else:
                    self._behind[group], self._heads[group] = deque(), id
                    heads.append(one)
        return heads

    def behind(self, group: Group) -> list[Received]:
        """Who waits."""
        with self._lock:
            return [*self._behind.get(group, ())]

    def renewed(self, group: Group, until_ms: int) -> None:
        """Those who wait are ours until then."""
        with self._lock:
            line = self._behind.get(group, deque())
            for at, one in enumerate(line):
                line[at] = Received(one.raw, one.at_ms, until_ms)

    def over(self, group: Group) -> list[Received]:
        """The one that ran is settled, or lost: those who waited, in their order. They run next where it is done with,
        and go back to the queue where it will be delivered again, before them."""
        with self._lock:
            self._heads.pop(group, None)
            return [*self._behind.pop(group, ())]


def group_of(one: Received) -> str:
    """Of a message of a FIFO queue."""
    return str(one.raw["Attributes"].get("MessageGroupId", ""))
