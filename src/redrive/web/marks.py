"""The counts beside the pages of the menu."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..status import Status


class Mark(NamedTuple):
    """A count beside a page of the menu, what it counts, and whether it waits for a person (`warn`) or needs one to act
    (`bad`)."""

    number: int
    kind: str
    of: str


def marks_of(status: Status | None) -> dict[str, Mark]:
    """Return the marks of the menu's pages by name, those of zero left out; none without a status."""
    return {} if status is None else {name: mark for name, mark in _marks(status) if mark.number}


def _marks(status: Status) -> Iterator[tuple[str, Mark]]:
    lost = sum(worker.state in ("gone", "hung") for worker in status.workers)
    breakers = sum(hold.kind == "breaker" for hold in status.holds)
    yield "overview", Mark(len(status.needs), "bad" if _is_urgent(status) else "warn", "need a person")
    yield "queues", Mark(sum(bool(queue.holds) for queue in status.queues), "warn", "held")
    yield "workers", Mark(lost, "bad", "gone or hung") if lost else Mark(len(status.workers), "", "alive")
    yield "schedules", Mark(sum(each.late_ms is not None for each in status.schedules), "warn", "late")
    yield "groups", Mark(sum(queue.counts.dead for queue in status.queues), "bad", "dead")
    yield "runs", Mark(len(status.runs), "warn", "open")
    yield "flow", Mark(breakers, "bad", "open")


def _is_urgent(status: Status) -> bool:
    return any(need.severity == "page" for need in status.needs)
