"""What a commit notifies other processes of: queues in which something is due, and due times in the past that it wrote.

Waiters of the queue are woken. The due times are for claim floors: below one, claims do not look by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

DueSpan = tuple[int, int]  # the first and last due time, in ms, of messages that may have been written
SPOTS_MAX = 16
NAME_MAX = 2000  # bytes of a queue's name; for a longer one the payload names no queue. The server accepts 8000
NAMED_MAX = 8
SLACK_MS = 100  # how far the estimate of the server's clock may be ahead


class Wakes(set[str]):
    """The queues whose waiters a commit notifies, with the past due times that it wrote."""

    def __init__(self, queues: Iterable[str] = ()) -> None:
        super().__init__(queues)
        self.dues_ms: dict[str, list[int]] = {}

    def due(self, queue: str, due_ms: int | None, now_ms: int) -> None:
        """Add a queue in which a message is due at this time, or from now on."""
        self.add(queue)
        if due_ms is not None and due_ms < now_ms:
            self.dues_ms.setdefault(queue, []).append(due_ms)


def named(queues: Iterable[str]) -> list[str]:
    """The queues to name in notifications; if there are too many, the empty name, which means any queue."""
    names = sorted(set(queues))
    return names if len(names) <= NAMED_MAX else [""]


def spots_of(queues: Iterable[str], queue: str) -> list[DueSpan]:
    """The due times written to this queue (empty: to any queue), clustered into spots."""
    dues = queues.dues_ms if isinstance(queues, Wakes) else {}
    return clustered(dues.get(queue, []) if queue else [ms for some in dues.values() for ms in some], SPOTS_MAX)


def payload(origin: str, queue: str, began_ms: int, spots: Sequence[DueSpan]) -> str:
    """The payload of a notification about a commit that began at this time."""
    ranges = "".join(f";{low_ms}-{until_ms}" for low_ms, until_ms in spots)
    return f"{origin};{began_ms - SLACK_MS}-{ranges} {short(queue)}"


def short(queue: str) -> str:
    return queue if len(queue.encode()) <= NAME_MAX else ""


def read(said: str, now_ms: Callable[[], int]) -> tuple[str, str, list[DueSpan]]:
    """Origin, queue (empty: any) and spots of a notification. Unreadable parts are ignored."""
    head, _, queue = said.partition(" ")
    origin, *ranges = head.split(";")
    spots: list[DueSpan] = []
    for one in ranges:
        low, _, until = one.partition("-")
        if low.isdecimal() and (until.isdecimal() or not until):
            spots.append((int(low), int(until) if until else now_ms()))
    return origin, queue, spots


def clustered(dues_ms: list[int], most: int) -> list[DueSpan]:
    """At most `most` ranges that contain all of these times, with little in between."""
    times = sorted(set(dues_ms))
    gaps = sorted(((later - time, time) for time, later in pairwise(times)), reverse=True)[: most - 1]
    ends = sorted(time for gap, time in gaps if gap > 1)
    spots: list[DueSpan] = []
    for end in (*ends, *times[-1:]):
        spots.append((times[0], end))
        times = [time for time in times if time > end]
    return spots
