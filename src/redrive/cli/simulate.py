"""`redrive simulate`: load, outages and a past time on a virtual clock, with one policy or another."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from msgspec.structs import replace

from ..config import settings
from ..present.formats import listed, number, seconds
from ..simulate import LoadPhase, ModelService, Scenario, ServicePhase, Simulated
from ..simulate import simulate as play
from ..simulate.past import SETTINGS, read_past, read_span, with_setting
from .opening import app_option, find, lead_on_at, output_option, url_option
from .terminal.output import Column, Output
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
    Column("dead", None, listed),
    Column("left"),
    Column("drained_s", "drained", seconds),
    Column("p50_s", "p50", seconds, spare=2),
    Column("p99_s", "p99", seconds, spare=1),
    Column("opened", "breaker opened"),
    Column("plot", "calls"),
)


@click.command("simulate")
@click.argument("preset", required=False, type=click.Choice(tuple(PRESETS)))
@click.option("--rate", type=float, default=20.0, show_default=True, help="new messages a second")
@click.option("--for", "for_s", type=float, default=300.0, show_default=True, help="seconds of load")
@click.option(
    "--from-history", "span", metavar="TIME", help="a past time again: 'yesterday 14:00..16:00', '3h..1h' (ago)"
)
@click.option("-q", "--queue", help="with --from-history: of this queue only")
@click.option("--task", help="with --from-history: of this task only")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help=f"another policy: {SETTINGS}")
@click.option(
    "--compare", multiple=True, metavar="NAME=VALUE,…", help="one more variant, with these settings; repeatable"
)
@click.option("--seed", type=int, default=0, show_default=True, help="the same seed gives the same bytes")
@app_option
@url_option
@output_option
def simulate(
    preset: str | None, rate: float, for_s: float, span: str | None, queue: str | None, task: str | None,
    changes: tuple[str, ...], compare: tuple[str, ...], seed: int, app: str | None, url: str | None, output: str | None,
) -> None:  # fmt: skip
    """Simulate load on a dependency, by redrive's own decisions on a virtual clock.

    PRESET is what the dependency does: an outage of a minute, a brown-out in which 40 % fail, a minute in which it is
    slow, or too little capacity; by default it is well. --from-history plays load and faults of a past time again, as
    the store's history has them, with the policy of the app's task; --set changes that policy, and is then shown beside
    it. Nothing is read or written otherwise.
    """
    chosen = settings({"app": app, "url": url, "output": output})
    out = Output(chosen.output)
    if span is None:
        service = PRESETS.get(preset or "", ModelService())
        base = Scenario(load=(LoadPhase(0, for_s, rate),), arrivals="random", service=service, seed=seed)
        variants = {"as set" if changes else "default": base}
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
        base = replace(past.scenario, seed=seed)
        variants = {"as it was": base}
    if changes:
        words = ",".join(changes)
        variants |= {words: with_setting(base, words)}
        variants.pop("as set", None)
    variants |= {words: with_setting(base, words) for words in compare}
    rows = [_row(name, play(scenario), full=out.form in ("json", "jsonl")) for name, scenario in variants.items()]
    if out.form == "json":
        out.record({"seed": seed, "variants": rows})
    else:
        out.rows(rows, _COLUMNS if out.is_table else _COLUMNS[:-1], id="variant", limit=0)
        if out.is_table:
            out.lines(["", f"seed {seed}"])


def _row(name: str, came: Simulated, *, full: bool) -> dict[str, Any]:
    figures = {
        "variant": name, "messages": came.messages, "calls": sum(came.calls),
        "per_message": round(came.amplification, 3), "peak_per_s": came.peak_per_s, "dead": dict(came.dead),
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
