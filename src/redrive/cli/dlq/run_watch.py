"""Watch a redrive run: a bar on a terminal, a line a second elsewhere; both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ...duration import rfc3339, show
from ...present.commands import program
from ...redact import one_line, redact
from ...triage.redrive.records import FINAL
from ...triage.redrive.run import Run, RunView
from ..terminal.stderr import note

if TYPE_CHECKING:
    from rich.progress import Progress

    from ...triage.redrive.records import Line

LOOK_S = 0.25  # seconds between two reads of the run
LINE_S = 1.0  # seconds between two lines about the run's state
LONELY_S = 5.0  # seconds after which a line says that no worker carries out the run


def follow(run: Run, now_ms: Callable[[], int], timeout: float | None = None) -> RunView:
    """Show a run until it is over; return its last state. Raises TimeoutError after `timeout` seconds, and
    StoreError."""
    began_s = time.monotonic()
    with ExitStack() as ending:
        screen: RunBar | RunLines = ending.enter_context(RunBar()) if sys.stderr.isatty() else RunLines()
        last: Line | None = None
        lonely_s = began_s
        while True:
            view, now_s = run.view(), time.monotonic()
            for line in _after(run.story(), last):
                screen.say(f"{rfc3339(line.at_ms)[11:19]}  {one_line(line.text)}")
                last = line
            screen.show(view, now_ms())
            if view.state in FINAL:
                return view
            if view.carried_by or view.state == "paused":
                lonely_s = now_s
            elif now_s - lonely_s >= LONELY_S:
                screen.say(f"no worker runs it now; start one of its app ({program()} worker MODULE:APP)")
                lonely_s = float("inf")
            if timeout is not None and now_s - began_s >= timeout:
                raise TimeoutError(f"run {run.id} is {view.state} ({view.phase}) after {show(timeout)}")
            time.sleep(LOOK_S)


def _after(story: Sequence[Line], last: Line | None) -> Sequence[Line]:
    """Return the lines of the story after the `last` one that was shown; a long story loses lines in its middle."""
    at = next((n for n in range(len(story), 0, -1) if story[n - 1] == last), 0)
    return story[at:]


def states(view: RunView) -> str:
    """Return the counts of a run in a few words."""
    c = view.counts
    words = [f"{c['moved']:,} of {c['planned']:,} moved"]
    words += [f"{c[name]:,} {name}" for name in ("done", "failed", "waiting", "changed", "skipped") if c[name]]
    return ", ".join(words)


def doing(view: RunView) -> str:
    """Return the phase of a running run, or the state of another one, with its rate."""
    what = view.phase if view.state == "running" else view.state
    return f"{what} at {view.per_s:,.3g}/s" if view.per_s else what


def settled(view: RunView) -> int:
    """Return how many of the run's messages have an outcome, or will never have one."""
    c = view.counts
    return min(c["planned"], c["done"] + c["failed"] + c["changed"] + c["skipped"])


class RunLines:
    """Writes the state of a run as a line when it changed, at most one a second, and each line of its story."""

    def __init__(self) -> None:
        self._last, self._at_s = "", -LINE_S

    def say(self, text: str) -> None:
        note(text)

    def show(self, view: RunView, now_ms: int) -> None:
        text = f"{doing(view)}: {states(view)}" + (f" ({one_line(view.why)})" if view.why else "")
        if text == self._last or (time.monotonic() - self._at_s < LINE_S and view.state not in FINAL):
            return
        self._last, self._at_s = text, time.monotonic()
        note(f"{max(0, now_ms - view.started_ms) / 1000:6.0f} s  {text}")


class RunBar:
    """Shows a bar with the state of a run below the lines of its story. A context manager."""

    def __init__(self) -> None:
        self._progress = _new_progress()
        self._task = self._progress.add_task("", total=None, visible=False, states="", elapsed="")

    def __enter__(self) -> RunBar:
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.console.print(one_line(redact(text)), markup=False, highlight=False, soft_wrap=True)

    def show(self, view: RunView, now_ms: int) -> None:
        end_ms = view.over_ms or now_ms
        why = f": {one_line(redact(view.why))}" if view.phase == "waiting" and view.why else ""
        self._progress.update(
            self._task,
            visible=True,
            description=doing(view) + why,
            total=view.counts["planned"],
            completed=settled(view),
            states=states(view),
            elapsed=show(max(0, end_ms - view.started_ms) // 1000) or "0s",
        )


def _new_progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    return Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[states]}", markup=False, table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[elapsed]}", markup=False, table_column=Column(no_wrap=True)),
        console=Console(stderr=True),
        refresh_per_second=8,
        expand=False,
    )
