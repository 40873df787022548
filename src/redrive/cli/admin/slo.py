"""`redrive slo`: objectives, their error budgets, and how fast these burn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ...duration import show
from ...present.commands import command
from ...present.failure import DONE, FAILED, USAGE, Failure
from ..opening import Opened, at_store
from ..terminal.output import Column, Output
from ..terminal.stderr import note
from .history import share

if TYPE_CHECKING:
    from ...history import Burn, SloStatus


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
def slo(opened: Opened, out: Output) -> int:
    """Show the objectives of tasks and queues, and their error budgets.

    `good` is the share of the messages that succeeded within the bound from when they were due, in the period of the
    objective. At a burn rate of 1 the budget is spent just when that period ends. `state` is `page` or `ticket` where
    the rates of a long and of a short window have both reached a threshold: 14.4 in 1h and 5m, 6 in 6h and 30m, 1 in 3d
    and 6h. Ends with code 1 where one of them does.
    """
    from ...history import read_objectives

    if opened.app is None:
        raise Failure("objectives are declared in an app", "none is named", f"{command()} --app MODULE:APP", USAGE)
    found = read_objectives(opened.store, opened.app)
    if not out.rows(map(row, found), _COLUMNS, id="name", limit=0):
        note('no task or queue has an objective: @app.task(slo=SLO("99.9% within 30s"))')
    return FAILED if any(each.firing for each in found) else DONE


def row(found: SloStatus) -> dict[str, Any]:
    """An objective as a row."""
    firing = {burn.severity for burn in found.firing}
    burns = {f"burn_{show(burn.long_ms / 1000)}": burn for burn in found.burns}
    return {
        "state": "page" if "page" in firing else "ticket" if firing else "ok" if found.all else "no messages",
        "kind": found.kind,
        "name": found.name,
        "objective": str(found.slo),
        "share": found.share,
        "good": found.good,
        "all": found.all,
        "budget_left": found.budget_left,
        **{name: burn.long for name, burn in burns.items()},
        "burns": [_burn(burn) for burn in found.burns],
    }


def _burn(burn: Burn) -> dict[str, Any]:
    return {
        "severity": burn.severity,
        "threshold": burn.threshold,
        "long_s": burn.long_ms // 1000,
        "short_s": burn.short_ms // 1000,
        "long": burn.long,
        "short": burn.short,
        "firing": burn.firing,
    }
