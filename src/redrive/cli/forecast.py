"""`redrive forecast`: how near the forecasts of redrives were."""

from __future__ import annotations

from pathlib import Path

import click

from ..present import plots
from ..present.forecasts import score_record
from ..present.formats import seconds, share
from .opening import OpenedStore, at_store
from .subcommands import Subcommands
from .terminal.output import Column, Output
from .terminal.stderr import note

_COLUMNS = (
    Column("run"),
    Column("total"),
    Column("over_s", "foretold", seconds),
    Column("came_s", "came", seconds),
    Column("off", None, share),
    Column("failed", "failing, foretold"),
    Column("came_failed", "failed"),
    Column("state"),
)


@click.group(cls=Subcommands)
def forecast() -> None:
    """Show how near the forecasts of redrives were."""


@forecast.command()
@click.option(
    "--last", type=click.IntRange(1, 200), default=10, show_default=True, help="the number of latest finished runs"
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=plots.HELP)
@at_store()
def score(opened: OpenedStore, out: Output, last: int, plot: Path | None) -> None:
    """Compare the forecasts of the last redrives with their results.

    `dlq plan` and the page of plans keep a forecast with each plan. `foretold` and `came` are the duration of the run
    in the forecast and in reality, and `off` is their difference, relative to reality. `off` is empty if only one of
    them stopped itself, and for a run under way, which comes first and does not count. Runs that a person cancelled are
    left out. Forecasts are kept for 30 days after a run. The page /forecasts shows the same.
    """
    from ..simulate import read_score

    plots.check(plot)
    came = read_score(opened.store, last)
    record = score_record(came)
    if plot is not None and came.scored:
        plots.write_score(plot, came, record["words"])
    elif plot is not None:
        note(f"{plot} was not written: no run with a forecast is over")
    if out.form == "json":
        out.record(record)
        return
    rows = record["pending"] + record["forecasts"]
    if out.rows(rows, _COLUMNS, id="run", limit=0) and out.is_table:
        out.lines(["", record["words"]])
    elif not rows:
        note(record["words"])
