"""`redrive batch`: list and show batches, and cancel one."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ..batch import BatchInfo, BatchPhase, BatchRef, ids_above, infos
from ..errors import ConfigError
from ..present.batches import batch_record
from ..present.commands import program
from ..present.failure import REFUSED, Failure
from ..store import Store
from .opening import OpenedStore, at_store
from .selecting import signature
from .subcommands import Subcommands
from .terminal.output import Column, Output
from .terminal.stderr import note

PAGE = 500
_COLUMNS = (
    Column("state"),
    Column("name", shrinks=True),
    Column("total"),
    Column("open"),
    Column("done"),
    Column("dead"),
    Column("quarantine", spare=True),
    Column("cancelled", spare=True),
    Column("discarded", spare=True),
    Column("duplicate", spare=True),
    Column("episode", spare=True),
    Column("created_at"),
    Column("ended_at", spare=True),
    Column("id"),
)


@click.group(cls=Subcommands)
def batch() -> None:
    """List and show batches of messages that are waited for together; cancel one."""


@batch.command("list")
@click.option("--name", help="only batches of this name")
@click.option("--state", type=click.Choice([phase.value for phase in BatchPhase]), help="only those in this state")
@click.option("--limit", type=click.IntRange(0), help="how many (default: 50 in a table, else all; 0: all)")
@at_store()
def list_(opened: OpenedStore, out: Output, name: str | None, state: str | None, limit: int | None) -> None:
    """List batches that have members, with the members counted by what became of them.

    A batch is `filling` until its producer seals it, and `running` while a member is open. Then it is `done`,
    `cancelled`, or `partial`: more members failed than it tolerates. Redrive these, and it goes on. It is forgotten
    seven days after nothing is left that could change it.
    """
    wanted = (info for info in _all(opened.store) if name in (None, info.name) and state in (None, info.state.value))
    if not out.rows(map(batch_record, wanted), _COLUMNS, id="id", limit=limit):
        note("no batches" if name is state is None else "no such batches")


def _all(store: Store) -> Iterator[BatchInfo]:
    after = ""
    while ids := ids_above(store, after, PAGE):
        yield from infos(store, ids)
        after = ids[-1]


@batch.command()
@click.argument("id")
@at_store()
def show(opened: OpenedStore, out: Output, id: str) -> None:
    """Show a batch, its steps and nested batches, and where its dead members are."""
    _, info = found(opened.store, id)
    record = batch_record(info)
    out.record({**record, "parts": [part["name"] for part in record["parts"]]} if out.is_table else record)
    if info.parts and out.is_table:
        note(f"its parts: {program()} workflow show {id}")
    if info.counts.dead and out.is_table:
        note(f"{info.counts.dead} dead: {program()} dlq list batch:{id}")


@batch.command()
@click.argument("id")
@signature(required=False)
@at_store()
def cancel(opened: OpenedStore, out: Output, id: str, actor: str | None, reason: str) -> None:
    """End the waiting members of a batch, and ask the running ones to stop. A partial batch is given up."""
    ref, info = found(opened.store, id)
    if not info.counts.open and info.state is not BatchPhase.FILLING:
        done = info.state is BatchPhase.DONE
        note(f"nothing is open in batch {id}: " + ("it is done" if done else "it is given up, and what is dead stays"))
    count = ref.cancel(reason=reason, actor=actor)
    out.record({**batch_record(ref.info()), "ended_now": count})


def found(store: Store, id: str) -> tuple[BatchRef, BatchInfo]:
    """Return the batch with this id. Raises Failure if there is none."""
    ref = BatchRef(id, store)
    try:
        return ref, ref.info()
    except ConfigError as error:
        why = "ids stand in the list; a batch is forgotten seven days after its end"
        raise Failure(str(error), why, f"{program()} batch list", REFUSED) from error
