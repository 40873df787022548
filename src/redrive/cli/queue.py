"""`redrive queue`: how much lies where, and pausing."""

from __future__ import annotations

from typing import Any

import click

from ..message import Counts
from .failure import note
from .main import Subcommands
from .output import Column, Output, age
from .place import Place, at_store, declared_queues, note_unknown_queues

_LANES = ("ready", "scheduled", "leased", "dead", "quarantine", "done")
_COLUMNS = (
    Column("queue", shrinks=True),
    *(Column(lane) for lane in _LANES),
    Column("oldest_age_s", "oldest", age),
    Column("paused"),
)


@click.group(cls=Subcommands)
def queue() -> None:
    """List, pause and resume queues."""


@queue.command("list")
@click.option("--limit", type=click.IntRange(0), help="how many (default: 50 in a table, else all; 0: all)")
@at_store()
def list_(place: Place, out: Output, limit: int | None) -> None:
    """List queues with how many messages lie in each lane.

    `scheduled` are delayed and retrying messages; `oldest` is how long the first of the ready ones has been due.
    """
    paused = place.store.paused()
    found = {**dict.fromkeys(declared_queues(place), Counts()), **place.store.counts_by_queue()}
    rows = (_row(name, counts, name in paused) for name, counts in sorted(found.items()))
    count = out.rows(rows, _COLUMNS, id="queue", limit=limit)
    if not count:
        note(f"no queues: nothing was ever enqueued in {place.url}")


def _row(name: str, counts: Counts, paused: bool) -> dict[str, Any]:
    lanes = {lane: getattr(counts, lane) for lane in _LANES}
    return {"queue": name, **lanes, "oldest_age_s": counts.oldest_age_s, "paused": paused}


@queue.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE…")
@at_store()
def pause(place: Place, out: Output, names: tuple[str, ...]) -> None:
    """Stop claiming from queues; what runs goes on, what waits waits."""
    _set(place, out, names, paused=True)


@queue.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE…")
@at_store()
def resume(place: Place, out: Output, names: tuple[str, ...]) -> None:
    """Claim from paused queues again."""
    _set(place, out, names, paused=False)


def _set(place: Place, out: Output, names: tuple[str, ...], *, paused: bool) -> None:
    note_unknown_queues(place, names)
    for name in names:
        place.store.configure(name, paused=paused)
    rows = [{"queue": name, "paused": paused} for name in names]
    out.rows(rows, (Column("queue"), Column("paused")), id="queue", limit=0)
