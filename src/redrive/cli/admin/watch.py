"""`redrive watch`: check thresholds and report alerts, without running messages."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ...config import settings
from ...events import Event, Notice
from ...present.failure import DONE, FAILED
from ..opening import OpenedStore, at_store
from ..terminal.output import Column, Output
from ..terminal.stderr import note
from ..terminal.types import DURATION

if TYPE_CHECKING:
    from ...observe.alert import Alert
    from ...registry import Registry
    from ...thresholds import AlertRule

_COLUMNS = (
    Column("alert"),
    Column("queue", shrinks=True),
    Column("task", shrinks=True),
    Column("about", shrinks=True),
    Column("value"),
    Column("above"),
)


@click.command()
@click.option("--waiting", type=float, default=5000, help="messages due in a queue (default: 5000)")
@click.option("--dead", type=float, default=100, help="dead messages of a queue (default: 100)")
@click.option("--age", type=DURATION, default="15m", help="wait of the oldest that is due (default: 15m)")
@click.option("--errors", type=float, default=0.3, help="share of failed runs in 15 minutes (default: 0.3)")
@click.option("--p95", type=DURATION, help="the time that 95 of 100 runs in 15 minutes may take (default: any time)")
@click.option("--for", "for_", type=DURATION, help="how long a value may be above (default: 1m; dead, burn: 0s)")
@click.option(
    "--every", type=DURATION, default="10m", help="repeat an alert that still fires after this time (default: 10m)"
)
@click.option("--notify", metavar="URL", help="post each alert there as JSON [REDRIVE_NOTIFY]")
@click.option("--once", is_flag=True, help="look once, and exit with code 1 if a value is above")
@at_store()
def watch(opened: OpenedStore, out: Output, once: bool, notify: str | None, **options: Any) -> int:
    """Check thresholds every 5 s, and report alerts that fire or are resolved, until SIGTERM or Ctrl-C.

    Checks waiting and dead messages, the age of the oldest, error rates, queues without a living worker, hung workers,
    batches that are partial or were never sealed and, with --app, objectives and schedules. A line of JSON for each
    alert goes to stdout. Rules that the app declares by `app.on("depth", …)` are checked, too. Workers do the same, but
    only this command can notice that the last worker is gone.
    """
    from ...registry import Registry
    from ...thresholds import Watched, rules_of, watching

    app: Registry = opened.app if opened.app is not None else Registry(store=opened.store)
    rules = list(_rules(app, **options))
    if once:
        return _once(opened, out, app, rules)
    tell = _teller(notify or settings().notify)
    app.subscribe(_note_lost)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with watching(app, [*(Watched(rule, tell, "watch") for rule in rules), *rules_of(app)]):
        note(f"watching {opened.url}: a line for each alert")
        while not stopped.wait(1.0):
            pass
    return DONE


def _note_lost(events: Sequence[Event]) -> None:
    for event in events:
        if isinstance(event, Notice) and event.name == "alert_lost":
            note(event.text)


def _rules(
    app: Registry, *, waiting: float, dead: float, age: float, errors: float, **rest: Any
) -> Iterator[AlertRule]:
    from ...thresholds import rule

    often = {"every": rest["every"], "for_": rest["for_"]}
    yield rule("depth", above=waiting, **often)
    yield rule("dead", above=dead, **often)
    yield rule("age", above=age, **often)
    if app.flusher is not None:  # the app has a flusher if the store keeps records of workers and history
        yield rule("no_workers", **often)
        yield rule("worker_hung", **often)
        yield rule("error_rate", above=errors, **often)
        if rest["p95"] is not None:
            yield rule("p95", above=rest["p95"], **often)
        if any(t.slo is not None for t in app.tasks.values()) or any(q.slo is not None for q in app.queues.values()):
            yield rule("slo_burn", **often)
    if app.schedules:
        yield rule("schedule_late", **often)
    if app.store.traits.batches and app.store.traits.cells:
        yield rule("batch_partial", **often)
        yield rule("batch_unsealed", **often)


def _once(opened: OpenedStore, out: Output, app: Registry, rules: list[AlertRule]) -> int:
    from ...thresholds.measure import Figures
    from ...thresholds.rule import figure_text

    figures = Figures(opened.store, app)
    rows = [
        {
            "alert": rule.name,
            "queue": subject.queue or None,
            "task": subject.task or None,
            "about": subject.about or None,
            "value": figure_text(rule.unit, value),
            "above": figure_text(rule.unit, rule.above),
        }
        for rule in rules
        for subject, value in sorted(figures.of(rule).items())
        if value > rule.above
    ]
    if not out.rows(rows, _COLUMNS, limit=0):
        note("no value is above its threshold")
    return FAILED if rows else DONE


def _teller(url: str | None) -> Callable[[Alert], None]:
    """Return the function that handles an alert: it prints the alert as a line, and posts it to the webhook at `url`,
    if any."""
    from ...observe.webhook import Webhook

    hook = None if url is None else Webhook(url)

    def tell(alert: Alert) -> None:
        sys.stdout.write(msgspec.json.encode(alert).decode() + "\n")
        sys.stdout.flush()
        if hook is not None:
            hook(alert)

    return tell
