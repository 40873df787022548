"""`redrive slo`: objectives, their error budgets, and how fast these burn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...present.commands import command
from ...present.failure import DONE, FAILED, USAGE, Failure
from ...present.formats import share
from ...present.objectives import objective_record
from ..opening import OpenedStore, at_store
from ..terminal.output import Column, Output
from ..terminal.stderr import note

if TYPE_CHECKING:
    pass


def _rate(value: float) -> str:
    return f"{value:,.1f}"


_COLUMNS = (
    Column("state"),
    Column("kind"),
    Column("name", shrinks=True),
    Column("objective"),
    Column("share", "good", lambda value: "–" if value is None else f"{value:.3%}"),
    Column("all", "messages"),
    Column("budget_left", "budget left", share),
    Column("burn_1h", "burn 1h", _rate, spare=1),
    Column("burn_6h", "burn 6h", _rate, spare=1),
    Column("burn_3d", "burn 3d", _rate, spare=1),
)


@click.command()
@at_store(absent=True)
def slo(opened: OpenedStore, out: Output) -> int:
    """Show the objectives of tasks and queues, and their error budgets.

    `good` is the share of the period's messages that succeeded in time, counted from when they were due. At a burn rate
    of 1 the budget lasts exactly until the period ends. `state` is `page` or `ticket` if the rates of a long and of a
    short window have both reached a threshold: 14.4 in 1h and 5m, 6 in 6h and 30m, 1 in 3d and 6h. Exits 1 if one of
    them has.
    """
    from ...history import read_objectives

    if opened.app is None:
        raise Failure("objectives are declared in an app", "none is named", f"{command()} --app MODULE:APP", USAGE)
    statuses = read_objectives(opened.store, opened.app)
    if not out.rows(map(objective_record, statuses), _COLUMNS, id="name", limit=0):
        note('no task or queue has an objective: @app.task(slo=SLO("99.9% within 30s"))')
    return FAILED if any(each.firing for each in statuses) else DONE
