"""`redrive forecast`: how near the forecasts of redrives were."""

from __future__ import annotations

import click

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
@at_store()
def score(opened: OpenedStore, out: Output, last: int) -> None:
    """Compare the forecasts of the last redrives with their results.

    `dlq plan` and the page of plans keep a forecast with each plan. `foretold` and `came` are the duration of the run
    in the forecast and in reality, and `off` is their difference, relative to reality. `off` is empty if only one of
    them stopped itself. Runs that a person cancelled are left out. Forecasts are kept for 30 days after a run.
    """
    from ..simulate import read_score

    record = score_record(read_score(opened.store, last))
    if out.form == "json":
        out.record(record)
        return
    if out.rows(record["forecasts"], _COLUMNS, id="run", limit=0) and out.is_table:
        out.lines(["", record["words"]])
    elif not record["forecasts"]:
        note(record["words"])
