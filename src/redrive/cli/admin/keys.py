"""`redrive keys`: the keys that payloads are encrypted with."""

from __future__ import annotations

from typing import Any

import click

from ...config import settings
from ...present.failure import DONE, FAILED
from ..opening import OpenedStore, at_store, output_option
from ..subcommands import Subcommands
from ..terminal.output import Column, Output
from ..terminal.stderr import note

_COLUMNS = (
    Column("key", shrinks=True),
    Column("state"),
    Column("bodies"),
    Column("results"),
    Column("checkpoints"),
    Column("texts"),
    Column("blobs"),
    Column("batches"),
)


@click.group(cls=Subcommands)
def keys() -> None:
    """Create a key; list the keys that stored data still needs."""


@keys.command()
@click.argument("id")
@output_option
def new(output: str | None, id: str) -> None:
    """Print a new random key with this id, for REDRIVE_KEYS.

    Put it first to write with it: REDRIVE_KEYS=NEW:…,OLD:…. It is printed once and stored nowhere.
    """
    from ...crypto.keys import Key, new_secret

    Key(id, bytes(32))
    out = Output(settings({"output": output}).output)
    secret = new_secret()
    if out.form in ("table", "tsv"):
        click.echo(f"{id}:{secret}")
        return
    out.record({"id": id, "key": secret})


@keys.command()
@at_store()
def status(opened: OpenedStore, out: Output) -> int:
    """Show which keys encrypt stored data. Exits 1 if one of them is missing here.

    You can remove a key if its counts are zero, every process writes with a newer one, and the results of idempotency
    keys that it encrypted have expired (these are not counted). Reads every message, blob and batch.
    """
    from ...batch import batch_cells
    from ...crypto import key_uses

    uses, unseen = key_uses(opened.store, batch_cells(opened.store))
    rows: list[dict[str, Any]] = [
        {"key": use.key, "state": _state(use.writes, use.here, use.used), **use.parts} for use in uses
    ]
    out.rows(rows, _COLUMNS, id="key", limit=0)
    for line in unseen:
        note(f"{line}: keep a key for as long as messages may wait there")
    missing = [use.key for use in uses if use.used and not use.here]
    if missing:
        note(f"not here: {', '.join(missing)}; what they encrypt waits for a worker that has them")
    return FAILED if missing else DONE


def _state(writes: bool, here: bool, used: bool) -> str:
    if writes:
        return "writes"
    if not here:
        return "missing"
    return "in use" if used else "unused"
