"""`redrive scheduler`: enqueue an app's schedules, tick by tick."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ..config import LOGS, settings
from ..observe.logs import JsonLog, TextLog
from ..present.commands import program, typed
from ..present.failure import REFUSED, USAGE, Failure
from .opening import app_option, load_app, move, one_app, url_option, wait_for_store
from .terminal.stderr import note
from .terminal.warnings import tell_warnings

if TYPE_CHECKING:
    from ..app import App


@click.command()
@click.argument("app_argument", required=False, metavar="[MODULE:APP]")
@app_option
@url_option
@click.option(
    "--log",
    type=click.Choice(LOGS),
    help="a line for each tick on stderr (default: text on a terminal, otherwise json) [REDRIVE_LOG]",
)
def scheduler(app_argument: str | None, app: str | None, url: str | None, log: str | None) -> int:
    """Enqueue the ticks of an app's schedules until SIGTERM or Ctrl-C.

    Any number may run, on any machine: each tick is enqueued once, also if a scheduler is killed. It runs no messages;
    `redrive worker --scheduler` does both.
    """
    chosen = settings({"app": one_app(app_argument, app), "url": url, "log": log})
    if chosen.app is None:
        why = "neither an argument, REDRIVE_APP nor redrive.toml names it"
        raise Failure("which app has the schedules?", why, f"{program()} scheduler tasks:app", USAGE)
    loaded = load_app(chosen.app, chosen.folder)
    if url is not None:
        move(loaded, chosen.url)
    tell_warnings(chosen.log)
    wait_for_store(loaded)
    if not loaded.store.traits.shared:
        why = "what it enqueues in its own memory no worker can see; a worker can run the schedules itself"
        fix = f"{program()} worker {typed(chosen.app)} --scheduler"
        raise Failure(f"a scheduler cannot work on the store {loaded.store.traits.name}", why, fix, REFUSED)
    warn_without_schedules(loaded, chosen.app)
    write_log(loaded, chosen.log)
    from ..thresholds import rules_of, watching

    try:
        with watching(loaded, rules_of(loaded)):
            loaded.run_scheduler()
    finally:
        loaded.store.close()
    return 0


def warn_without_schedules(app: App, named: str) -> None:
    """Warn on stderr if an app has no schedules, which is probably a mistake. `named` is how the user named the app."""
    if not app.schedules:
        note(f"warning: {named} has no schedules; declare one with @app.periodic(…)")


def write_log(app: App, log: str) -> None:
    """Write the app's events as lines on stderr, in the form that `log` names."""
    form = log if log != "auto" else "text" if sys.stderr.isatty() else "json"
    if form != "off":
        app.subscribe(JsonLog(sys.stderr) if form == "json" else TextLog(sys.stderr))
