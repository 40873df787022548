"""`redrive schedule`: list, run, pause and resume schedules."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ..config import settings
from ..present.commands import program
from ..present.failure import USAGE, Failure
from ..present.formats import timestamp
from ..present.schedules import schedule_record
from ..redact import one_line
from .opening import OpenedStore, app_option, at_store, load_app, output_option
from .selecting import signature
from .subcommands import Subcommands
from .terminal.nothing import unknown
from .terminal.output import Column, Output
from .terminal.stderr import note
from .terminal.types import TIME

if TYPE_CHECKING:
    from ..app import App
    from ..schedule import Schedule

_COLUMNS = (
    Column("state"),
    Column("name", shrinks=True),
    Column("cron"),
    Column("tz"),
    Column("task", shrinks=True),
    Column("queue", shrinks=True, spare=True),
    Column("missed", spare=True),
    Column("last_at"),
    Column("next_at"),
)


@click.group(cls=Subcommands)
def schedule() -> None:
    """List schedules, see their times, run, pause and resume them."""


@schedule.command("list")
@at_store(absent=True)
def list_(opened: OpenedStore, out: Output) -> None:
    """List an app's schedules, late ones first.

    `state` says how long the first tick that no scheduler has enqueued is overdue, and whether a scheduler was seen
    within the last minute. `last_at` is the last tick that was enqueued, `next_at` the next one.
    """
    from ..schedule import warning
    from ..status import schedule_statuses

    schedules, now_ms = _schedules(opened.app), opened.store.now_ms()
    assert opened.app is not None
    rows = [schedule_record(schedules[one.name], one, now_ms) for one in schedule_statuses(opened.app, opened.store)]
    if not out.rows(rows, _COLUMNS, id="name", limit=0):
        note("no schedules; declare one with @app.periodic(…)")
    if out.is_table and (text := warning(opened.app, opened.store)) is not None:
        note(f"warning: {text}")


@schedule.command("next")
@click.argument("name")
@click.option("-n", "count", type=click.IntRange(1, 10_000), default=5, help="how many [5]")
@click.option("--after", type=TIME, help="later than this point in time (default: now)")
@app_option
@output_option
def next_(name: str, count: int, after: datetime | None, app: str | None, output: str | None) -> None:
    """Show the next times of a schedule, in UTC and in its own zone."""
    chosen = settings({"app": app, "output": output})  # no store is opened: the times depend only on the calendar
    declared = _found(load_app(chosen.app, chosen.folder) if chosen.app else None, name)
    rows = [
        {"at": timestamp(_ms(at)), "local": at.isoformat(sep=" "), "tz": declared.times.tz}
        for at in declared.next(count, after or datetime.now(UTC))
    ]
    Output(chosen.output).rows(rows, (Column("at", "UTC", str), Column("local"), Column("tz")), id="at", limit=0)


@schedule.command()
@click.argument("name")
@signature(required=False)
@at_store(create=True)
def run(opened: OpenedStore, out: Output, name: str, actor: str | None, reason: str) -> None:
    """Enqueue one message of a schedule now, outside its ticks, and print its id."""
    ref = _found(opened.app, name).run(reason=reason, actor=actor)
    if ref.duplicate:
        note(f"not put: message {ref.id} holds the schedule's key")
    record = {"id": ref.id, "task": ref.task, "queue": ref.queue, "duplicate": ref.duplicate}
    if out.form in ("json", "jsonl"):
        out.record(record)
    else:
        click.echo(one_line(ref.id))


@schedule.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@signature(required=False)
@at_store(create=True)
def pause(opened: OpenedStore, out: Output, names: tuple[str, ...], actor: str | None, reason: str) -> None:
    """Enqueue no more ticks of schedules, in any scheduler."""
    _set(opened, out, names, lambda one: one.pause(reason=reason, actor=actor), paused=True)


@schedule.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@signature(required=False)
@at_store(create=True)
def resume(opened: OpenedStore, out: Output, names: tuple[str, ...], actor: str | None, reason: str) -> None:
    """Resume paused schedules; `missed=` of a schedule decides about the ticks that it missed."""
    _set(opened, out, names, lambda one: one.resume(reason=reason, actor=actor), paused=False)


def _set(
    opened: OpenedStore, out: Output, names: tuple[str, ...], change: Callable[[Schedule], None], *, paused: bool
) -> None:
    for one in [_found(opened.app, name) for name in names]:  # all names are checked before the first change
        change(one)
    rows = [{"name": name, "paused": paused} for name in names]
    out.rows(rows, (Column("name"), Column("paused")), id="name", limit=0)


def _found(app: App | None, name: str) -> Schedule:
    known = _schedules(app)
    if name in known:
        return known[name]
    raise unknown("schedule", name, list(known), "the app", look="schedule list")


def _schedules(app: App | None) -> dict[str, Schedule]:
    if app is None:
        why = "schedules are declared in an app; a store alone does not know them"
        raise Failure("which app has the schedules?", why, f"{program()} schedule list --app tasks:app", USAGE)
    return app.schedules


def _ms(at: datetime) -> int:
    return round(at.astimezone(UTC).timestamp() * 1000)
