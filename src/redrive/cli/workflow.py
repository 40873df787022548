"""`redrive workflow`: show the steps of a workflow."""

from __future__ import annotations

import click

from ..present.batches import batch_record, drawn
from ..present.commands import program
from .batch import found
from .opening import OpenedStore, at_store
from .subcommands import Subcommands
from .terminal.output import Column, Output
from .terminal.stderr import note

_PARTS = (
    Column("part", shrinks=True),
    Column("state"),
    Column("after", spare=True),
    Column("total"),
    Column("open"),
    Column("done"),
    Column("dead"),
    Column("quarantine", spare=True),
    Column("id", spare=True),
)


@click.group(cls=Subcommands)
def workflow() -> None:
    """Show the steps of a workflow; `redrive batch` has the rest."""


@workflow.command("show")
@click.argument("id")
@at_store()
def show(opened: OpenedStore, out: Output, id: str) -> None:
    """Show the steps of a workflow, or the batches nested in a batch, each below the last one that it begins after.

    A step is `waiting` until the steps before it are done, then `running`. It ends as `done`, or as `partial` if
    members of it are dead. Redrive these, and the workflow continues.
    """
    _, info = found(opened.store, id)
    rows = ({"part": text, **part} for text, part in drawn(batch_record(info)["parts"]))
    out.rows(rows, _PARTS, id="id", limit=0)
    if out.is_table:
        note(f"{info.name} is {info.state.value}: {info.counts.done:,} of {info.counts.total:,} members are done")
        if info.counts.dead:
            note(f"{info.counts.dead} dead: {program()} dlq list batch:{id}")
