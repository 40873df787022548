"""The progress bar of a delivery, on a terminal only: how far, how fast, what fails."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from .run import Delivery

ERROR_MAX = 40  # characters shown of the last error


class Bar:
    """A bar on stderr; where stderr is no terminal it shows nothing. Use it as a context."""

    def __init__(self) -> None:
        self._progress = _new_progress() if sys.stderr.isatty() else None
        self._task = None if self._progress is None else self._progress.add_task("", total=None, states="", error="")

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def checked(self, size: int) -> None:
        """So many bytes of the file are checked."""
        self._show(description=f"checking, {size / 1e6:,.0f} MB")

    def tick(self, delivery: Delivery) -> None:
        """Show how a delivery stands."""
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

    whole = Column(no_wrap=True)  # what is too long for the line is the last error
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
