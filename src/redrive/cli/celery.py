"""`redrive celery`: move what Celery's producers send to the queues of an app."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..config import settings
from ..present.commands import program, typed
from ..present.failure import USAGE, Failure
from .opening import app_option, load_app, one_app
from .terminal.stderr import note
from .terminal.types import DURATION

if TYPE_CHECKING:
    from ..contrib.celery import CeleryBridge


@click.command()
@click.argument("app_argument", required=False, metavar="[MODULE:APP]")
@app_option
@click.option("--burst", is_flag=True, help="end when Celery's queues are empty")
@click.option(
    "--held",
    type=DURATION,
    metavar="AGE",
    help="first take over messages that stopped Celery workers have held for longer than this",
)
def celery(app_argument: str | None, app: str | None, burst: bool, held: float | None) -> int:
    """Move messages from Celery's broker to the queues of an app, until SIGTERM or Ctrl-C.

    The app's module declares a CeleryBridge. Workers of the app run the messages. Any number of bridges may run, and
    none loses a message when it is killed.
    """
    chosen = settings({"app": one_app(app_argument, app)})
    if chosen.app is None:
        why = "neither an argument, REDRIVE_APP nor redrive.toml names it"
        raise Failure("which app has the bridge?", why, f"{program()} celery tasks:app", USAGE)
    bridge = _bridge_of(chosen.app, chosen.folder)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        if held is not None:
            note(f"{bridge.take_held(held):,} taken over from Celery's workers")
        note(f"moving messages of {', '.join(bridge.queues)} from {bridge.source.where}")
        click.echo(bridge.run(burst=burst, stop=stop))
    finally:
        bridge.close()
        bridge.app.store.close()
    return 0


def _bridge_of(spec: str, folder: str | None) -> CeleryBridge:
    """Return the bridge that the app's module declares for this app. Raises Failure if there is none."""
    from ..contrib.celery import CeleryBridge

    app, module = load_app(spec, folder), spec.partition(":")[0]
    for value in vars(sys.modules[module]).values():
        if isinstance(value, CeleryBridge) and value.app is app:
            return value
    why = f"module '{module}' declares no CeleryBridge for it"
    next = typed(Path(sys.executable).name, "-m", "pydoc", "redrive.contrib.celery.CeleryBridge")
    raise Failure(f"{spec} has no bridge to Celery", why, next, USAGE)
