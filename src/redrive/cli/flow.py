"""`redrive flow`: show breakers, budgets, rates and cool-downs of dependencies, and set breakers by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any

import click

from ..duration import show as show_duration
from ..present.commands import program, typed
from ..present.dependencies import dependency_record, dependency_row
from ..present.forecasts import breaker_forecast_record
from ..present.formats import DASH, listed, number
from ..present.table import field_lines
from ..redact import one_line
from ..triage.controls import Control, Controls
from .opening import OpenedStore, at_store
from .selecting import signature
from .subcommands import Subcommands
from .terminal.nothing import unknown
from .terminal.output import Column, Output
from .terminal.stderr import note
from .terminal.types import DURATION


def _columns(now_ms: int) -> tuple[Column, ...]:
    """Return the columns of the list of dependencies; a table shows times relative to `now_ms`."""

    def ahead(time: str | None) -> str:
        if time is None:
            return "–"
        left_ms = datetime.fromisoformat(time).timestamp() * 1000 - now_ms
        return f"in {show_duration(left_ms / 1000)}" if left_ms > 0 else "now"

    return (
        Column("dependency"),
        Column("breaker", None, lambda word: "–" if word is None else word.replace("_", " ")),
        Column("until", None, ahead),
        Column("budget_left", "budget left", number),
        Column("rate_per_s", "rate/s", number, spare=True),
        Column("next_slot_at", "next slot", ahead, spare=True),
        Column("concurrency", spare=True),
        Column("cool_until", "cool-down", ahead),
        Column("waiting"),
        Column("deferred", None, lambda counts: listed(counts) or DASH, shrinks=True),
    )


@click.group(cls=Subcommands)
def flow() -> None:
    """Show breakers, budgets and limits of dependencies; hold breakers open or closed.

    With --app, shows everything that the app declares. With --url alone, rules are unknown: then it shows breakers,
    cool-downs and deferred messages of each dependency that a worker has used.
    """


key_option = click.option("--key", default="", help="for this key, if the dependency is split by group or argument")


@flow.command("list")
@click.option("--limit", type=click.IntRange(0), help="how many (default: 50 in a table, else all; 0: all)")
@at_store(absent=True)
def list_(opened: OpenedStore, out: Output, limit: int | None) -> None:
    """List dependencies, and why their messages are held back now.

    `until` is the time at which an open breaker permits probes. `waiting` and `deferred` count the first thousand
    waiting messages: those of its tasks, and those that were claimed and put off, by reason. On SQS both are empty, as
    waiting messages cannot be listed there.
    """
    rows = [dependency_row(control) for control in Controls(opened.store, opened.app).list()]
    if not out.rows(rows, _columns(opened.store.now_ms()), id="dependency", limit=limit):
        note(f"no dependencies: no task names one, and none was ever called from {opened.url}")


@flow.command()
@click.argument("name")
@key_option
@at_store(absent=True)
def show(opened: OpenedStore, out: Output, name: str, key: str) -> None:
    """Show a dependency, with the last transitions of its breaker. If the breaker is open, also forecast how many
    messages come back when it closes, and how many die if it stays open."""
    from ..simulate import forecast_breaker

    control = _known(opened, name).show(name, key=key)
    _write(out, control, breaker_forecast_record(forecast_breaker(opened.store, opened.app, control)))


@flow.command(name="set")
@click.argument("name")
@key_option
@click.option(
    "--breaker",
    type=click.Choice(["auto", "open", "closed"]),
    help="auto: by how calls end; or hold it open, or closed",
)
@click.option(
    "--for", "for_", type=DURATION, help="with --breaker open or closed: release it by itself after this time"
)
@click.option("--cooldown", type=click.Choice(["off"]), help="end the cool-down that it asked for (Retry-After)")
@click.option("--budget", type=click.Choice(["reset"]), help="reset its retry budget")
@click.option("--ramp", type=click.Choice(["off"]), help="end the ramp: let waiting messages go at once")
@signature()
@at_store()
def set_(
    opened: OpenedStore,
    out: Output,
    name: str,
    key: str,
    for_: float | None,
    actor: str | None,
    reason: str,
    **words: str | None,
) -> None:
    """Hold the breaker of a dependency open or closed, for all workers, until `--breaker auto` or for the time `--for`.

    Or end what flow control started: a cool-down, a ramp, or a spent budget.

    `--breaker auto` ends a hold: then the breaker opens and closes by how calls end. Do not leave a breaker closed by
    hand: it protects nothing. After 15 minutes `redrive status` names each breaker that is held without --for.

    While it is open, no worker calls the dependency, waiting messages lose no attempt, and other tasks continue. Once
    it is closed, waiting messages are let go in a ramp, as always. Workers follow within a quarter of a second. The
    audit log records each change.
    """
    controls = _known(opened, name)
    given = {option: word for option, word in words.items() if word is not None}
    if not given:
        raise click.UsageError("give --breaker, --cooldown, --budget or --ramp")
    if for_ is not None and given.get("breaker") not in ("open", "closed"):
        raise click.UsageError("--for bounds --breaker open or --breaker closed")
    acts: dict[tuple[str, str], Callable[..., Control]] = {
        ("breaker", "open"): partial(controls.open, for_=for_),
        ("breaker", "closed"): partial(controls.close, for_=for_),
        ("breaker", "auto"): controls.auto,
        ("cooldown", "off"): controls.end_cooldown,
        ("budget", "reset"): controls.reset_budget,
        ("ramp", "off"): controls.end_ramp,
    }
    states = [acts[each](name, reason=reason, actor=actor, key=key) for each in given.items()]
    _write(out, states[-1])


def _known(opened: OpenedStore, name: str) -> Controls:
    """Return the controls of dependencies, after checking that one has this name. Raises Failure."""
    controls = Controls(opened.store, opened.app)
    known = controls.names()
    if name not in known:
        raise unknown("dependency", name, known, opened.url, look="flow list")
    return controls


def _write(out: Output, control: Control, forecast: dict[str, Any] | None = None) -> None:
    record = dependency_record(control) | {"forecast": forecast}
    out.record(record, id="dependency", table=lambda: _lines(out.hidden(record), out))
    if control.per is not None and not control.key:
        one = f"{program()} flow show {typed(control.name)} --key KEY"
        note(f"{control.name} is controlled per {control.per}: {one} shows one")
        if control.parent is not None:
            note(f"the breaker over all of them: {program()} flow show {typed(control.parent)}")


def _lines(record: dict[str, Any], out: Output) -> Iterator[str]:
    """Yield the fields of a dependency's record, without empty ones, then its transitions, the last one first."""
    shown = {
        name: value
        for name, value in record.items()
        if name not in ("transitions", "forecast") and value not in (None, 0, {}, "", [])
    }
    if record["deferred"]:
        shown["deferred"] = listed(record["deferred"])
    if record["rates"]:
        shown["rates"] = "; ".join(record["rates"])
    for name in ("budget_left", "rate_per_s", "ramp_per_s", "mean_cost"):
        if record[name] is not None:
            shown[name] = number(record[name])
    if record["forecast"] is not None:
        shown["forecast"] = "; ".join(record["forecast"]["words"])
    named = {name.replace("_", " "): v.replace("_", " ") if name == "breaker" else v for name, v in shown.items()}
    return chain(field_lines(named), *(_transition(t, out) for t in reversed(record["transitions"])))


def _transition(t: dict[str, Any], out: Output) -> Iterator[str]:
    turn = f"{t['before']} to {t['after']}".replace("_", " ")
    by = f" by {t['actor']}" if t["actor"] else ""
    why = t["reason"] or t["why"]
    yield f"{out.dim(t['at'])}  {turn}{one_line(by)}" + (f": {one_line(why)}" if why else "")
