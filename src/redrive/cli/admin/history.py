"""`redrive history`: what happened, by the minute, the hour or the day."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...duration import show
from ...fault import kind_word
from ...present.formats import milliseconds, share, timestamp
from ...present.history import tally_record, tally_row
from ..opening import OpenedStore, at_store
from ..terminal.output import Column, Output
from ..terminal.stderr import note
from ..terminal.types import DURATION

if TYPE_CHECKING:
    from ...history import Tally


_COLUMNS = (
    Column("at"),
    Column("enqueued"),
    Column("done"),
    Column("retried", spare=1),
    Column("dead"),
    Column("error_rate", "errors", share),
    Column("run_p50_ms", "run p50", milliseconds, spare=3),
    Column("run_p95_ms", "run p95", milliseconds),
    Column("wait_p95_ms", "wait p95", milliseconds, spare=1),
    Column("first_try_p95_ms", "1st try p95", milliseconds, spare=2),
    Column("after_retries_p95_ms", "retried p95", milliseconds, spare=2),
)


@click.command()
@click.option("-q", "--queue", help="of this queue only")
@click.option("--task", help="of this task only")
@click.option("--since", type=DURATION, default="24h", help="how far back, up to 35d (default: 24h)")
@click.option(
    "--step", type=DURATION, help="the length of a row: whole minutes, beyond 24h whole hours (default: about 24 rows)"
)
@at_store()
def history(
    opened: OpenedStore, out: Output, queue: str | None, task: str | None, since: float, step: float | None
) -> None:
    """Show what happened, by time: outcomes, error rate and durations.

    Workers count, and add their counts to the store every ten seconds. A killed worker loses the counts of its last ten
    seconds, never a message. `errors` is the share of failed runs. p95 is the time that 95 of 100 did not exceed,
    within a tenth: of the run, of the wait from the due time to the start, and of the time from the due time to the
    success, at the first try and after retries. -o json has all counts, by attempt, reason and kind.
    """
    from ...history import read_history

    past = read_history(opened.store, queue, task, since, step)
    if out.form == "json":
        about = {"queue": queue, "task": task, "since": timestamp(past.since_ms), "until": timestamp(past.until_ms)}
        points = [{"at": timestamp(point.at_ms), **tally_record(point.tally)} for point in past.points]
        out.record({**about, "step_s": past.step_ms // 1000, "total": tally_record(past.total), "points": points})
        return
    rows = [{"at": timestamp(point.at_ms), **tally_row(point.tally)} for point in past.points]
    if not out.rows(rows, _COLUMNS, limit=0):
        note(f"nothing happened in the last {show(since)}, or nothing was told yet: workers tell every 10 s")
    elif out.is_table:
        out.lines(_total(past.total, show(since)))


def _total(tally: Tally, since: str) -> list[str]:
    """Return lines about the whole time `since`, with counts that the rows do not have."""
    lines = ["", f"in {since}: {tally.enqueued:,} enqueued, {tally.done:,} done, {tally.failed:,} runs failed"]
    by_attempt = tally.by_attempt.get("done", {})
    if len(by_attempt) > 1:
        lines.append("  done at attempt " + ", ".join(f"{band}: {count:,}" for band, count in by_attempt.items()))
    faults = {kind_word(kind): count for kind, count in tally.faults.items()}
    for name, counts in (("dead by reason", tally.dead), ("faults", faults), ("crashes", tally.crashes)):
        if counts:
            lines.append(f"  {name}: " + ", ".join(f"{key} {count:,}" for key, count in counts.items()))
    if tally.deferrals:
        held = (
            f"{why} {count:,} × {milliseconds(long_ms / count)}" for why, (count, long_ms) in tally.deferrals.items()
        )
        lines.append("  held by flow control: " + ", ".join(held))
    if tally.redriven:
        lines.append("  redriven: " + ", ".join(f"{count:,} {verdict}" for verdict, count in tally.redriven.items()))
    return lines
