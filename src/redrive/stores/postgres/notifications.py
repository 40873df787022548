"""The notifications of a commit to other processes: queues in which something is due, and past due times that it wrote.

Waiters of the queue are woken. The due times are for claim floors: claims do not look below a floor by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

DueSpan = tuple[int, int]  # first and last due time, in ms, at which messages may have been written
SPOTS_MAX = 16
NAME_MAX = 2000  # longest name of a queue in a payload, in bytes; the server accepts 8000 in all
NAMED_MAX = 8
SLACK_MS = 100  # how far the estimate of the server's clock may be ahead of that clock


class Wakes(set[str]):
    """The queues whose waiters a commit notifies, and by queue the past due times that the commit wrote."""

    def __init__(self, queues: Iterable[str] = ()) -> None:
        super().__init__(queues)
        self.dues_ms: dict[str, list[int]] = {}

    def due(self, queue: str, due_ms: int | None, now_ms: int) -> None:
        """Add a queue in which a message is due at `due_ms` (None: now); keep a due time that is past."""
        self.add(queue)
        if due_ms is not None and due_ms < now_ms:
            self.dues_ms.setdefault(queue, []).append(due_ms)


def named(queues: Iterable[str]) -> list[str]:
    """Return the queues to name in notifications; if there are too many, the empty name, which means any queue."""
    names = sorted(set(queues))
    return names if len(names) <= NAMED_MAX else [""]


def spots_of(queues: Iterable[str], queue: str) -> list[DueSpan]:
    """Return the past due times written to this queue (empty: to any queue), clustered into spots."""
    dues = queues.dues_ms if isinstance(queues, Wakes) else {}
    return clustered(dues.get(queue, []) if queue else [ms for some in dues.values() for ms in some], SPOTS_MAX)


def payload(origin: str, queue: str, began_ms: int, spots: Sequence[DueSpan]) -> str:
    """Return the payload of a notification about a commit whose transaction began at `began_ms`."""
    ranges = "".join(f";{low_ms}-{until_ms}" for low_ms, until_ms in spots)
    return f"{origin};{began_ms - SLACK_MS}-{ranges} {short(queue)}"


def short(queue: str) -> str:
    return queue if len(queue.encode()) <= NAME_MAX else ""


def read(said: str, now_ms: Callable[[], int]) -> tuple[str, str, list[DueSpan]]:
    """Return origin, queue (empty: any) and spots from a notification's payload. Unreadable spots are ignored."""
    head, _, queue = said.partition(" ")
    origin, *ranges = head.split(";")
    spots: list[DueSpan] = []
    for one in ranges:
        low, _, until = one.partition("-")
        if low.isdecimal() and (until.isdecimal() or not until):
            spots.append((int(low), int(until) if until else now_ms()))
    return origin, queue, spots


def clustered(dues_ms: list[int], most: int) -> list[DueSpan]:
    """Return at most `most` ranges that contain all of these times, with the widest gaps left out."""
    times = sorted(set(dues_ms))
    gaps = sorted(((later - time, time) for time, later in pairwise(times)), reverse=True)[: most - 1]
    ends = sorted(time for gap, time in gaps if gap > 1)
    spots: list[DueSpan] = []
    for end in (*ends, *times[-1:]):
        spots.append((times[0], end))
        times = [time for time in times if time > end]
    return spots
