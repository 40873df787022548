"""`redrive upcoming`: what comes due in the next minutes, hour and day."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from ...present.formats import timestamp
from ..opening import OpenedStore, at_store
from ..terminal.output import Column, Output
from ..terminal.stderr import note

if TYPE_CHECKING:
    from ...status import Upcoming, Wave

BAR = 40  # characters of the longest bar in the table
_COLUMNS = (Column("within"), Column("first"), Column("retries"), Column("all"), Column("bar", ""))
_FIELDS = (*map(Column, ("span", "from_s", "to_s", "first", "retries", "exact")),)


@click.command()
@click.argument("queue", required=False)
@at_store()
def upcoming(opened: OpenedStore, out: Output, queue: str | None) -> None:
    """Show how many scheduled messages of QUEUE come due, and when; without QUEUE, of all queues.

    `first` have not run yet, `retries` have failed before. A bar of retries is a wave of calls to the dependency that
    failed. Messages that are already due are not included: see `queue list`. A ~ marks an estimate, if there are too
    many to count. -o json and tsv have the next 60 steps of ten seconds, 60 minutes and 24 hours.
    """
    from ...status import HOUR_S, MINUTE_S, TEN_S, read_upcoming

    coming = read_upcoming(opened.store, queue)
    spans = (("10s", TEN_S, coming.tens), ("1m", MINUTE_S, coming.minutes), ("1h", HOUR_S, coming.hours))
    if out.is_table:
        rows = list(_rows(coming))
        last = max((n for n, row in enumerate(rows, 1) if row["all"] != 0), default=0)
        if last:
            out.rows(rows[:last], _COLUMNS, limit=0)
        if last < len(rows):
            note(f"nothing {'more ' if last else ''}is scheduled within a day")
        return
    steps = [
        {"span": span, "from_s": n * step_s, "to_s": (n + 1) * step_s, **asdict(wave)}
        for span, step_s, waves in spans
        for n, wave in enumerate(waves)
    ]
    if out.form == "json":
        out.record({"queue": queue, "at": timestamp(coming.at_ms), "upcoming": steps})
    else:
        out.rows(steps, _FIELDS, limit=0)


def _rows(coming: Upcoming) -> Iterator[dict[str, Any]]:
    """Yield a row for each of the next ten minutes, each ten minutes of the hour, and each four hours of the day."""
    parts = [(f"{n + 1}m", coming.minutes[n : n + 1]) for n in range(10)]
    parts += [(f"{n + 10}m", coming.minutes[n : n + 10]) for n in range(10, 60, 10)]
    parts += [(f"{n + 4}h", coming.hours[max(1, n) : n + 4]) for n in range(0, 24, 4)]
    most = max(sum(wave.all for wave in waves) for _, waves in parts) or 1
    for within, waves in parts:
        first, retries, exact = _sums(waves)
        bar = round(first / most * BAR) * "█" + round(retries / most * BAR) * "▒"
        counts = [number if exact else f"~{number}" for number in (first, retries, first + retries)]
        yield dict(zip(("within", "first", "retries", "all", "bar"), (within, *counts, bar), strict=True))


def _sums(waves: Iterable[Wave]) -> tuple[int, int, bool]:
    some = list(waves)
    return sum(wave.first for wave in some), sum(wave.retries for wave in some), all(wave.exact for wave in some)
