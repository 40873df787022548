"""Follow a delivery: a tally of its outcomes, and a progress bar that shows them on a terminal."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ..events import DeliveryEvent, Event
from .ingest import FileRecord

if TYPE_CHECKING:
    from rich.progress import Progress

ENDS = ("done", "dead", "quarantined", "cancelled")
RATE_WINDOW_S = 5.0
ERROR_MAX = 40  # characters of the last error on display


class OutcomeTally:
    """An observer that counts outcomes in this process. The store thread writes all fields but `put`."""

    delivered_later: int
    last_error: str

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.put = 0  # number of messages enqueued by this run
        self.delivered_later = 0  # number of messages that a later attempt than the first delivered
        self._retrying = 0
        self._base = 0  # number of stored messages that had not ended when this process started
        self.last_error = ""
        self.notices: deque[str] = deque(maxlen=20)
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def __call__(self, events: Sequence[Event]) -> None:
        for event in events:
            if not isinstance(event, DeliveryEvent):
                self.notices.append(f"{event.name}: {event.text}")
                continue
            self.outcomes[event.outcome] += 1
            if event.outcome in ENDS:
                self.delivered_later += event.outcome == "done" and event.attempt > 1
                self._retrying -= event.attempt > 1
            elif event.outcome == "retry":
                self._retrying += event.attempt == 1
            if event.text:
                self.last_error = event.text

    @property
    def waiting(self) -> int:
        """The number of messages that are stored and have not ended."""
        return self._base + self.put - self.ended

    def correct(self, waiting: int) -> None:
        """Correct the number of waiting messages to `waiting`, the store's count."""
        self._base += waiting - self.waiting

    @property
    def retrying(self) -> int:
        """The number of messages that failed at least once and have not ended."""
        return max(0, min(self._retrying, self.waiting))

    @property
    def ended(self) -> int:
        """The number of messages that ended in this process."""
        return sum(self.outcomes[name] for name in ENDS)

    @property
    def retries(self) -> int:
        return self.outcomes["retry"]

    def rate(self) -> float:
        """Return messages ended per second, over the last RATE_WINDOW_S. Each call adds a measurement."""
        now, ended = time.monotonic(), self.ended
        self._marks.append((now, ended))
        while len(self._marks) > 2 and self._marks[0][0] < now - RATE_WINDOW_S:
            self._marks.popleft()
        since, before = self._marks[0]
        return (ended - before) / max(now - since, 0.001)


class RunningDelivery(Protocol):
    """The part of a delivery that the bar displays."""

    tally: OutcomeTally
    stopping: int

    @property
    def record(self) -> FileRecord: ...


class ProgressBar:
    """A progress bar on stderr, if stderr is a terminal. Use it as a context manager."""

    def __init__(self) -> None:
        self._progress = _new_progress() if sys.stderr.isatty() else None
        self._task = None if self._progress is None else self._progress.add_task("", total=None, states="", error="")

    def __enter__(self) -> ProgressBar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def checked(self, size: int) -> None:
        """Show the number of bytes checked so far."""
        self._show(description=f"checking, {size / 1e6:,.0f} MB")

    def tick(self, delivery: RunningDelivery) -> None:
        """Show the state of a delivery."""
        record, tally = delivery.record, delivery.tally
        words = [f"{tally.rate():,.0f}/s"]
        words += [f"{tally.retrying:,} retrying"] if tally.retrying else []
        words += [f"{dead:,} dead"] if (dead := tally.outcomes["dead"] + tally.outcomes["quarantined"]) else []
        words += [f"{record.total - record.done:,} to enqueue"] if not record.complete else []
        self._show(
            description="finishing what is under way; Ctrl-C again cuts it off" if delivery.stopping else "delivering",
            total=record.total,
            completed=record.done - tally.waiting,
            states=", ".join(words),
            error=tally.last_error.partition(" from http")[0][:ERROR_MAX] if tally.retrying or dead else "",
        )

    def _show(
        self, description: str, total: int | None = None, completed: int = 0, states: str = "", error: str = ""
    ) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(
                self._task, description=description, total=total, completed=completed, states=states, error=error
            )


def _new_progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    whole = Column(no_wrap=True)  # only the last error is shortened to fit the line
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(table_column=whole),
        TextColumn("{task.fields[states]}", markup=False, table_column=whole),
        TimeElapsedColumn(table_column=whole),
        TextColumn("{task.fields[error]}", style="dim", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        console=Console(stderr=True),
        refresh_per_second=8,
        expand=False,
    )
