"""`redrive policy`: list presets, preview the delays of a policy, and check an app's."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import click

from ..config import settings
from ..duration import show
from ..fault import kind_word
from ..policy import (
    KINDS,
    Preview,
    Retry,
    presets,
)
from ..policy import preview as preview_of
from ..present.commands import program, typed
from ..present.failure import USAGE, Failure
from ..present.policies import policy_summary, step_record
from .opening import app_option, load_app, output_option
from .policy_check import check
from .subcommands import Subcommands
from .terminal.nothing import unknown
from .terminal.output import Column, Output
from .terminal.stderr import note

STEPS_MAX = 1000
_PLOT_CELLS = 30
_LOG_FROM = 20.0  # a plot is logarithmic if its longest bar is more than so many times its shortest
_ENDS = {
    "attempts": "ends when its attempts are used up",
    "elapsed": "ends when its time is over",
    "refused": "is not retried at all",
    "limit": "goes on; this preview stops at its --limit",
}


@click.group(cls=Subcommands)
def policy() -> None:
    """Preview the delays of a retry policy; check the policies of an app."""


policy.add_command(check)


@policy.command("list")
@output_option
def list_(output: str | None) -> None:
    """List the presets: attempts, first delay and horizon."""
    out = Output(settings({"output": output}).output)
    columns = (
        Column("name"),
        Column("max_attempts"),
        Column("retries"),
        Column("backoff"),
        Column("total_s", "takes (mean)", show),
        Column("horizon_s", "horizon", show),
    )
    out.rows([policy_summary(name, preview_of(retry)) for name, retry in presets.items()], columns, id="name")


@policy.command()
@click.argument("preset", required=False, type=click.Choice(tuple(presets)), metavar="[PRESET]")
@app_option
@click.option("--task", help="the policy of this task of --app")
@click.option(
    "--kind",
    metavar="KIND",
    type=click.Choice(sorted(KINDS)),
    default="default",
    help="the kind of fault it meets every time: transient, throttled, … [default]",
)
@click.option("--error", help="the exception it meets every time, by its qualified name: httpx.ReadTimeout")
@click.option("--limit", type=click.IntRange(1, STEPS_MAX), default=100, help="how many retries to show at most [100]")
@output_option
def preview(
    preset: str | None, app: str | None, task: str | None, kind: str, error: str | None, limit: int, output: str | None
) -> None:
    """Show each delay of a policy with its jitter range, when each retry starts, the total and the horizon.

    PRESET is a name from `redrive policy list`. --task shows the policy of a task of the app. Without either it shows
    the default policy.
    """
    chosen = settings({"app": app, "output": output})
    name, retry = _policy(preset, task, chosen.app, chosen.folder)
    try:
        shown = preview_of(retry, kind=kind, error=error, limit=limit)
    except ValueError as problem:
        what, _, why = str(problem).partition("; ")
        raise Failure(what, why, f"{program()} policy preview --help", USAGE) from None
    out = Output(chosen.output)
    record = {**policy_summary(name, shown), "kind": kind, "steps": [step_record(s) for s in shown.steps]}
    if out.form == "json":
        out.record(record)
        return
    if out.is_table:
        out.lines([f"{out.dim('policy')} {name}, {out.dim('faults')} {error or kind_word(kind)}: {record['backoff']}"])
    if shown.steps or not out.is_table:
        out.rows(_plotted(record["steps"]) if out.is_table else record["steps"], _columns(out, shown), limit=0)
    if out.is_table:
        out.lines(_footer(shown))


def _policy(preset: str | None, task: str | None, app: str | None, folder: str | None) -> tuple[str, Retry]:
    if task is None:
        return (preset, presets[preset]) if preset else ("default", Retry())
    if preset is not None or app is None:
        why = "--task needs --app MODULE:APP, and no preset beside it"
        raise Failure(
            "which policy is meant?", why, f"{program()} policy preview --app tasks:app --task {typed(task)}", USAGE
        )
    loaded = load_app(app, folder)
    if task not in loaded.tasks:
        raise unknown("task", task, sorted(loaded.tasks), app, look="schema export")
    from ..worker.preflight import unmatched

    for line in unmatched(loaded, task):
        note(f"warning: {line}")
    return task, loaded.tasks[task].policy.retry


def _columns(out: Output, shown: Preview) -> tuple[Column, ...]:
    plain = (
        Column("retry"),
        Column("mean_s", "delay", show),
        Column("low_s", "from", show),
        Column("high_s", "to", show),
        Column("at_mean_s", "starts at", show),
        Column("at_low_s", "earliest", show),
        Column("at_high_s", "latest", show),
    )
    longest_s = max((step.high_s for step in shown.steps), default=0.0)
    scale = "log scale" if _logarithmic([step.high_s for step in shown.steps]) else "to scale"
    return (*plain, Column("plot", f"0s … {show(longest_s)}, {scale}")) if out.is_table else plain


def _plotted(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps, each with a bar: full up to the shortest delay, shaded up to the longest."""
    full, shaded = _marks()
    ends = _scaled([s["low_s"] for s in steps], [s["high_s"] for s in steps])
    return [s | {"plot": full * low + shaded * (high - low)} for s, (low, high) in zip(steps, ends, strict=True)]


def _scaled(lows: list[float], highs: list[float]) -> list[tuple[int, int]]:
    """Return the two ends of each bar, in cells. A delay above 0 takes at least one cell."""
    longest = max(highs, default=0.0)
    log = _logarithmic(highs)
    # A logarithmic scale has no 0: the shortest bar takes a third of its width.
    floor = min((h for h in highs if h > 0), default=1.0) ** 1.5 / math.sqrt(longest or 1.0)

    def place(value: float) -> int:
        if value <= 0 or longest <= 0:
            return 0
        part = math.log(max(value, floor) / floor) / math.log(longest / floor) if log else value / longest
        return max(1, round(part * _PLOT_CELLS))

    return [(place(low), place(high)) for low, high in zip(lows, highs, strict=True)]


def _logarithmic(highs: list[float]) -> bool:
    some = [high for high in highs if high > 0]
    return bool(some) and max(some) > _LOG_FROM * min(some)


def _marks() -> tuple[str, str]:
    try:
        "█░".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "#", "."
    return "█", "░"


def _footer(shown: Preview) -> Iterator[str]:
    if shown.ends == "refused":
        yield f"Never retried: {shown.chosen.why}."
        return
    yield ""
    many = (
        f"{shown.retries}"
        if shown.retries_least == shown.retries_most
        else f"{shown.retries} ({shown.retries_least} to {shown.retries_most})"
    )
    yield f"total    {many} retries, the last {show(shown.total_s)} after the first failure at mean delays"
    bound = "" if shown.chosen.max_elapsed_s is None else f" (max elapsed {show(shown.chosen.max_elapsed_s)})"
    held = ", and is then held for a person" if shown.chosen.on_exhausted == "hold" else ""
    yield f"horizon  {show(shown.horizon_s)}: no retry starts later than that; it {_ENDS[shown.ends]}{bound}{held}"
    yield "counted  from its first run on: runs and these delays, not what it waits for besides"
