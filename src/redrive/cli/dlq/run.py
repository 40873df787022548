"""`redrive run`: show redrive runs, and pause, resume, cancel, undo and approve them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from ...duration import show as show_duration
from ...errors import ConfigError, PlanRefused, Refused
from ...fault import kind_word
from ...present.commands import onward, program, typed
from ...present.failure import DONE, FAILED, INTERRUPTED, REFUSED, TIMED_OUT, Failure
from ...present.formats import timestamp
from ...present.holds import hold_record, holds_text
from ...present.runs import COUNTS, failed_again_record, run_record
from ...present.table import field_lines
from ...redact import one_line
from ...triage.redrive.records import state_of
from ...triage.redrive.run import Run, RunView
from ...triage.redrive.run import views as views_of
from ..opening import OpenedStore, at_store
from ..revealing import Reveal, reveal_option
from ..selecting import run_id, signature, stated
from ..subcommands import Subcommands
from ..terminal.output import Column, Output
from ..terminal.stderr import note
from ..terminal.types import DURATION
from .run_watch import follow

if TYPE_CHECKING:
    from ...status import Hold

from typing import TYPE_CHECKING

from ...triage.redrive.records import Line

LISTED = 10_000
_COLUMNS = (
    Column("id"),
    Column("state"),
    *(Column(name) for name in COUNTS[:5]),
    *(Column(name, spare=True) for name in COUNTS[5:]),
    Column("started_at", "started at", spare=True),
    Column("selector", shrinks=True, spare=True),
    Column("why", shrinks=True),
)
_FAILURES = (
    Column("id"),
    Column("kind", show=kind_word, spare=2),
    Column("fingerprint", spare=3),
    Column("error", shrinks=True, spare=1),
    Column("text", shrinks=True),
    Column("at", "failed at", spare=2),
)


@click.group(cls=Subcommands)
def run() -> None:
    """Show and watch redrive runs; pause, cancel and undo them.

    A run is a plan that was applied (`redrive dlq plan`, then `redrive dlq apply`), and has its id. Any worker of the
    app runs it.
    """


@run.command("list")
@click.option("--open", "open_only", is_flag=True, help="only open runs")
@click.option("--limit", type=click.IntRange(0), help="how many (default: 50 in a table, else all; 0: all)")
@at_store(absent=True)
def list_(opened: OpenedStore, out: Output, open_only: bool, limit: int | None) -> None:
    """List runs: first the open ones, then the last 200 others, the newest first."""
    rows = [run_record(view) for view in views_of(opened.store, LISTED) if not (open_only and view.closed)]
    if not out.rows(rows, _COLUMNS, id="id", limit=limit):
        note(f"no run {'is open' if open_only else 'is known'} in {opened.url}")


@run.command()
@click.argument("id")
@at_store()
def show(opened: OpenedStore, out: Output, id: str) -> None:
    """Show a run: its counts, what it waits for or why it ended, and its story."""
    handle = _known(opened, id)
    view = handle.view()
    held = _held(opened, handle, view)
    record = {**run_record(view), "held": [hold_record(hold) for hold in held]}
    record |= {"story": [{"at": timestamp(line.at_ms), "text": line.text} for line in handle.story()]}
    why = holds_text(held, opened.store.now_ms())
    out.record(record, id="id", table=lambda: _lines(view, handle.story(), out, why))
    _lead_on(view)


@run.command()
@click.argument("id")
@click.option("--timeout", type=DURATION, help="stop watching after this; the run continues (default: never)")
@at_store()
def watch(opened: OpenedStore, out: Output, id: str, timeout: float | None) -> int:
    """Watch a run until it is over: a bar on a terminal, a line a second elsewhere, and at the end its counts.

    Watching moves no messages and needs no app. Exit codes: 0 the run is done, 1 it stopped itself or was cancelled,
    124 the timeout is over, 130 Ctrl-C; in the last two cases the run continues.
    """
    return watched(opened, out, _known(opened, id), timeout)


def watched(opened: OpenedStore, out: Output, handle: Run, timeout: float | None = None) -> int:
    """Watch a run until it is over, write its result, and return the exit code. Raises Failure at the timeout, and if
    the run is over without being done."""
    again = onward(f"run watch {handle.id}")
    try:
        view = follow(handle, opened.store.now_ms, timeout)
    except KeyboardInterrupt:
        note(f"not watched any more; the run goes on: {again}")
        return INTERRUPTED
    except TimeoutError as error:
        raise Failure(str(error), "the run goes on", again, TIMED_OUT) from None
    out.record(run_record(view), id="id", table=lambda: field_lines(_told(view)))
    if view.state == "done":
        _lead_on(view)
        return DONE
    next = onward(f"run {'failures' if view.counts['failed'] else 'show'} {view.id}")
    what = "stopped itself" if view.state == "stopped" else "was cancelled"
    raise Failure(f"run {view.id} {what}", view.why or "its story says more", next, FAILED)


def steering(word: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes a function the command `word`, which changes a run: with the run's id, the actor
    and the reason as arguments."""

    def wrap(act: Callable[..., Any]) -> Callable[..., Any]:
        @run.command(word)
        @click.argument("id")
        @signature()
        @at_store()
        @functools.wraps(act)
        def steer(opened: OpenedStore, out: Output, id: str, reason: str, actor: str | None) -> None:
            handle = _known(opened, id)
            reason = stated(reason)
            try:
                text = act(handle, reason=reason, actor=actor)
            except Refused as error:
                what, _, why = str(error).partition(": ")
                why = why or "its plan says whose approval it waits for"
                raise Failure(what, why, onward(f"run show {typed(id)}"), REFUSED) from error
            view = handle.view()
            out.record(run_record(view), id="id", table=lambda: field_lines(_told(view)))
            note(text)

        return act

    return wrap


@steering("pause")
def _pause(handle: Run, **by: Any) -> str:
    """Move no more messages until the run is resumed. Those that it has moved still run."""
    handle.pause(**by)
    return "paused; go on by: " + onward(f"run resume {handle.id} --reason '…'")


@steering("resume")
def _resume(handle: Run, **by: Any) -> str:
    """Continue a paused run."""
    handle.resume(**by)
    return "resumed; see: " + onward(f"run watch {handle.id}")


@steering("cancel")
def _cancel(handle: Run, **by: Any) -> str:
    """End a run: messages that it has not moved stay dead, those that it has moved still run."""
    handle.cancel(**by)
    undo = onward(f"run undo {handle.id} --reason '…'")
    return f"cancelled; what it moved and has not run yet can be taken back: {undo}"


@steering("undo")
def _undo(handle: Run, **by: Any) -> str:
    """End a run, and make messages that it moved and that have not run yet dead again.

    Messages that have run, or run now, stay as they are.
    """
    returned = handle.undo(**by)
    return f"{returned:,} are back where they lay; {handle.counts['moved']:,} that it moved had begun to run"


@steering("approve")
def _approve(handle: Run, **by: Any) -> str:
    """Approve a run that waits for you."""
    handle.approve(**by)
    return "approved; see: " + onward(f"run watch {handle.id}")


@run.command()
@click.argument("id")
@click.option("--limit", type=click.IntRange(0), help="how many (default: 50 in a table, else all; 0: all)")
@reveal_option()
@at_store()
def failures(opened: OpenedStore, out: Output, id: str, limit: int | None, reveal: Reveal) -> None:
    """List the messages that a run moved and that failed again, with their errors: the first thousand."""
    handle = _known(opened, id)
    kept = handle.failures()
    reveal.of(opened, out, handle.id, ids=[each.id for each in kept])
    if not out.rows(map(failed_again_record, kept), _FAILURES, id="id", limit=limit):
        note(f"nothing that run {id} moved has failed")
    elif (failed := handle.counts["failed"]) > len(kept):
        note(f"{failed:,} failed in all; of the first {len(kept):,} it is kept what they failed of")


def _told(view: RunView) -> dict[str, Any]:
    """Return a run as a record for a terminal, without its empty fields."""
    record = {name.replace("_", " "): value for name, value in run_record(view).items()}
    kept = {name: value for name, value in record.items() if value not in (None, "") and name not in (*COUNTS, "phase")}
    if view.state == "running":
        kept["state"] = f"running: {view.phase}"
    if not view.returned:
        del kept["returned"]
    took_ms = view.over_ms - view.started_ms if view.over_ms else None
    return {
        "id": kept.pop("id"),
        "state": kept.pop("state"),
        **({"why": kept.pop("why")} if "why" in kept else {}),
        "messages": ", ".join(f"{view.counts[name]:,} {name}" for name in COUNTS if view.counts[name]) or "none",
        **kept,
        **({} if took_ms is None else {"took": show_duration(took_ms / 1000) or "0s"}),
    }


def _held(opened: OpenedStore, handle: Run, view: RunView) -> Sequence[Hold]:
    """Return the holds of messages that the run has moved; none if its plan cannot be read."""
    from ...status import Reasons

    try:
        plan = handle.plan
    except (ConfigError, PlanRefused):  # raised if the plan has expired or was altered
        return ()
    return Reasons(opened.store, opened.app).of_run(view, plan)


def _lines(view: RunView, story: Any, out: Output, why: str = "") -> Iterator[str]:
    held = {"held by": one_line(why)} if why else {}
    return chain(field_lines(_told(view) | held), (story_line(line, out) for line in story))


def _lead_on(view: RunView) -> None:
    if view.counts["failed"]:
        note(f"{view.counts['failed']:,} failed again: " + onward(f"run failures {view.id}"))
    elif view.phase == "awaiting approval":
        note("it waits for approval: " + onward(f"run approve {view.id} --reason '…'"))
    if view.state == "running" and not view.carried_by:
        note(f"no worker runs it now; start one of its app ({program()} worker MODULE:APP)")


def _known(opened: OpenedStore, id: str) -> Run:
    """Return the run with this id, whole or shortened. Raises Failure if there is none."""
    id = run_id(opened, id)
    if state_of(opened.store, id) is None:
        why = "the id is wrong, its plan was not applied, or it was over more than a month ago"
        raise Failure(f"there is no run {id} in {opened.url}", why, onward("run list"))
    return Run(opened.store, id, opened.app)


def story_line(line: Line, out: Output) -> str:
    return f"{out.dim(timestamp(line.at_ms) or '')}  {one_line(line.text)}"
