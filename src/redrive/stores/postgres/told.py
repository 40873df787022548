"""What other processes are told of a commit: that a queue has something, and where in the due index it may lie.

A notification reads `ORIGIN;LOW-UNTIL;… QUEUE`: due times that the commit wrote or may have written, each a range in
ms of the store's clock. A range without an end goes on until the notification comes: the commit took until then. Older
programs take all up to the first space for the origin, and go by the queue alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .floor import Spot, clustered

SPOTS_MAX = 16  # in one notification
NAME_MAX = 2000  # bytes of a queue's name in one; a longer one is told as any queue. The server takes 8000
NAMED_MAX = 8
SLACK_MS = 100  # how far the estimate of the server's clock may be ahead of it


class Told(set[str]):
    """The queues whose waiters are told of a commit, with due times in the past that it wrote."""

    def __init__(self, queues: Iterable[str] = ()) -> None:
        super().__init__(queues)
        self.dues_ms: dict[str, list[int]] = {}

    def due(self, queue: str, due_ms: int | None, now_ms: int) -> None:
        """Something is due there at this time, or from now on."""
        self.add(queue)
        if due_ms is not None and due_ms < now_ms:
            self.dues_ms.setdefault(queue, []).append(due_ms)


def named(queues: Iterable[str]) -> list[str]:
    """Those to name in notifications; more than a few are told as any queue, by one."""
    found = sorted(set(queues))
    return found if len(found) <= NAMED_MAX else [""]


def spots_of(told: Iterable[str], queue: str) -> list[Spot]:
    """Of this queue, or of any."""
    dues = told.dues_ms if isinstance(told, Told) else {}
    return clustered(dues.get(queue, []) if queue else [ms for some in dues.values() for ms in some], SPOTS_MAX)


def payload(origin: str, queue: str, began_ms: int, spots: Sequence[Spot]) -> str:
    """What is said of a commit that began at this time."""
    ranges = "".join(f";{low_ms}-{until_ms}" for low_ms, until_ms in spots)
    return f"{origin};{began_ms - SLACK_MS}-{ranges} {short(queue)}"


def short(queue: str) -> str:
    return queue if len(queue.encode()) <= NAME_MAX else ""


def read(said: str, now_ms: Callable[[], int]) -> tuple[str, str, list[Spot]]:
    """Origin, queue (empty: any) and ranges of a notification. What cannot be read of it says nothing."""
    head, _, queue = said.partition(" ")
    origin, *ranges = head.split(";")
    spots: list[Spot] = []
    for one in ranges:
        low, _, until = one.partition("-")
        if low.isdecimal() and (until.isdecimal() or not until):
            spots.append((int(low), int(until) if until else now_ms()))
    return origin, queue, spots
