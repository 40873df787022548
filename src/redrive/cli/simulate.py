"""`redrive simulate`: load, outages and a past time on a virtual clock, with one policy or another."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace

from ..config import OURS, PYPROJECT, settings
from ..errors import ConfigError, near_miss
from ..present import plots
from ..present.formats import listed, number, seconds
from ..simulate import LoadPhase, ModelService, Scenario, ServicePhase, Simulated, read_scenario
from ..simulate import simulate as play
from ..simulate.past import SETTINGS, read_past, read_span, with_setting
from .opening import app_option, find, lead_on_at, output_option, url_option
from .terminal.output import Column, Output, bar
from .terminal.stderr import note

PRESETS = {
    "outage": ModelService(phases=(ServicePhase(60, 120, 1.0),)),
    "brownout": ModelService(phases=(ServicePhase(60, 120, 0.4),)),
    "slow": ModelService(phases=(ServicePhase(60, 120, latency_ms=2000),)),
    "overload": ModelService(capacity=15, queue_ms=4000, timeout_ms=2000),
}
_BARS, _WIDTH = " ▁▂▃▄▅▆▇█", 40
_COLUMNS = (
    Column("variant"),
    Column("messages"),
    Column("calls"),
    Column("per_message", "per message", number),
    Column("peak_per_s", "peak/s", number),
    Column("normal_per_s", "normal/s", number),
    Column("dead", None, listed),
    Column("left"),
    Column("drained_s", "drained", seconds),
    Column("p50_s", "p50", seconds, spare=2),
    Column("p99_s", "p99", seconds, spare=1),
    Column("opened", "breaker opened"),
    Column("plot", "calls"),
)


@click.command("simulate")
@click.argument("scenario", required=False)
@click.option("--rate", type=float, help="new messages a second  [default: 20]")
@click.option("--for", "for_s", type=float, help="seconds of load  [default: 300]")
@click.option(
    "--from-history", "span", metavar="TIME", help="a past time again: 'yesterday 14:00..16:00', '3h..1h' (ago)"
)
@click.option("-q", "--queue", help="with --from-history: of this queue only")
@click.option("--task", help="with --from-history: of this task only")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help=f"another policy: {SETTINGS}")
@click.option(
    "--compare", multiple=True, metavar="NAME=VALUE,…", help="one more variant, with these settings; repeatable"
)
@click.option("--seed", type=int, help="the same seed gives the same bytes  [default: the file's, or 0]")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=plots.HELP)
@app_option
@url_option
@output_option
def simulate(
    scenario: str | None, rate: float | None, for_s: float | None, span: str | None, queue: str | None,
    task: str | None, changes: tuple[str, ...], compare: tuple[str, ...], seed: int | None, plot: Path | None,
    app: str | None, url: str | None, output: str | None,
) -> None:  # fmt: skip
    """Simulate load on a dependency, by redrive's own decisions on a virtual clock.

    SCENARIO is a TOML file, or what the dependency does: `outage` for a minute, `brownout` in which 40 % fail, `slow`
    for a minute, or `overload`, too little capacity. By default it works well. --from-history plays a past time again:
    load and faults come from the store's history, the policy from the app's task. --set changes that policy, and shows
    both. Nothing else is read or written. Ctrl-C prints the results so far.
    """
    plots.check(plot)
    chosen = settings({"app": app, "url": url, "output": output})
    out = Output(chosen.output)
    seeds: tuple[int, ...] = (0,)
    if span is None:
        base, seeds = _base(scenario, rate, for_s)
        variants = {"as set" if changes else "default": base}
    elif scenario is not None or rate is not None or for_s is not None:
        raise ConfigError("--from-history has the load of its time; expected no SCENARIO, --rate or --for with it")
    else:
        lead_on_at(app, url)
        opened = find(chosen, app_flag=app is not None, url_flag=url is not None)
        try:
            times = read_span(span, opened.store.now_ms())
            past = read_past(opened.store, opened.app, *times, queue=queue, task=task)
        finally:
            opened.store.close()
        note(f"then: {past.enqueued:,} enqueued, {past.calls:,} calls, {past.failed:,} failed, {past.dead:,} died; "
             f"by slots of {seconds(past.step_s)}, with the policy of {past.task}")  # fmt: skip
        base = past.scenario
        variants = {"as it was": base}
    if changes:
        words = ",".join(changes)
        variants |= {words: with_setting(base, words)}
        variants.pop("as set", None)
    variants |= {words: with_setting(base, words) for words in compare}
    seeds = seeds if seed is None else (seed,)
    plays = [
        (name if len(seeds) == 1 else f"{name}, seed {each}", replace(variant, seed=each))
        for name, variant in variants.items()
        for each in seeds
    ]
    came = [*_play(plays)]
    rows = [_row(name, each, full=out.form in ("json", "jsonl")) for name, each in came]
    if out.form == "json":
        out.record({"seed": seeds[0], "variants": rows})
    else:
        out.rows(rows, _COLUMNS if out.is_table else _COLUMNS[:-1], id="variant", limit=0)
        if out.is_table:
            out.lines(["", f"seed {', '.join(map(str, seeds))}"])
    if plot is not None:
        plots.write_simulated(plot, dict(came))


def _base(name: str | None, rate: float | None, for_s: float | None) -> tuple[Scenario, tuple[int, ...]]:
    """Return a preset, or what a file says, and the seeds. Raises ConfigError."""
    if name is not None and name not in PRESETS:
        if Path(name).name in (OURS, PYPROJECT):
            raise ConfigError(f"{name} holds the settings of redrive, not a scenario; expected a file of another name, "
                              "such as outage.toml")  # fmt: skip
        if name.endswith(".toml"):
            if rate is not None or for_s is not None:
                raise ConfigError(f"{name} has a load of its own; expected no --rate or --for with it")
            return read_scenario(Path(name))
        near = near_miss(name, PRESETS)
        meant = f"did you mean {near!r}?" if near else f"expected {', '.join(PRESETS)}, or a file that ends in .toml"
        raise ConfigError(f"scenario {name!r} is unknown; {meant}")
    load = LoadPhase(0, 300.0 if for_s is None else for_s, 20.0 if rate is None else rate)
    return Scenario(load=(load,), arrivals="random", service=PRESETS.get(name or "", ModelService())), (0,)


def _play(plays: list[tuple[str, Scenario]]) -> Iterator[tuple[str, Simulated]]:
    """Yield what came of each. The first Ctrl-C ends the one that is played, and those after it are left out."""
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True

    ends_s = [max((*(load.until_s for load in each.load), *each.times), default=0.0) for _, each in plays]
    before = signal.signal(signal.SIGINT, stop)
    try:
        with bar(math.ceil(sum(ends_s)), "simulating") as advance:
            for name, scenario in plays:
                shown_s = 0

                def goes_on(passed_s: float, end_s: float) -> bool:
                    nonlocal shown_s
                    advance((now_s := int(min(passed_s, end_s))) - shown_s)
                    shown_s = now_s
                    return not stopped

                came = play(scenario, goes_on)
                yield name, came
                if stopped:
                    break
    finally:
        signal.signal(signal.SIGINT, before)
    if stopped:
        note("stopped: the last variant has what came until then, and those after it are left out")


def _row(name: str, came: Simulated, *, full: bool) -> dict[str, Any]:
    figures = {
        "variant": name, "messages": came.messages, "calls": sum(came.calls),
        "per_message": round(came.amplification, 3), "peak_per_s": came.peak_per_s, "normal_per_s": came.normal_per_s,
        "dead": dict(came.dead),
        "left": came.left, "drained_s": came.drained_s, "p50_s": came.p50_s, "p99_s": came.p99_s,
        "opened": sum(status == "open" for _, status in came.breaker),
    }  # fmt: skip
    return figures | (msgspec.to_builtins(came) if full else {"plot": _plot(came.calls)})


def _plot(calls: Any) -> str:
    """Return calls over time as a line of bars, from nothing to the most."""
    step = -(-len(calls) // _WIDTH) or 1
    sums = [sum(calls[at : at + step]) for at in range(0, len(calls), step)]
    most = max(sums, default=0) or 1
    return "".join(_BARS[-(-each * (len(_BARS) - 1) // most)] for each in sums)
