"""`redrive store`: the engine below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from ..duration import milliseconds
from .failure import DONE, FAILED, note, program
from .main import Subcommands
from .output import Output
from .place import Place, at_store
from .types import DURATION


@click.group(cls=Subcommands)
def store() -> None:
    """Check and describe the store."""


@store.command()
@at_store()
def check(place: Place, out: Output) -> int:
    """Look for damage; exits 1 if there is any."""
    problems = place.store.check()
    out.record({"ok": not problems, "problems": problems}, table=lambda: problems or ["ok"])
    if problems:
        note(f"{len(problems)} problems in {place.url}; stop the workers and copy the file before anything else")
        return FAILED
    note(f"no damage found in {place.url}")
    return DONE


@store.command()
@at_store()
def info(place: Place, out: Output) -> None:
    """Show what the store promises, what it holds and how large it is."""
    traits = msgspec.structs.asdict(place.store.traits)
    counts = msgspec.structs.asdict(place.store.counts())
    out.record({"url": place.url, **_file(place), **counts, "queues": place.store.queues(), **traits})
    if out.is_table:
        note(f"{program()} queue list shows the queues one by one")


@store.command()
@click.option("--older-than", type=DURATION, default="1h", help="leave blobs younger than this [1h]")
@at_store()
def sweep(place: Place, out: Output, older_than: float) -> None:
    """Remove blobs that no message refers to.

    Crashes leave them; workers do this once an hour. No put or transaction may take longer than --older-than: its blobs
    are written first.
    """
    from ..blobs import collect

    count = collect(place.store, milliseconds(older_than))
    out.record({"removed": count}, table=lambda: [f"{count:,} blobs removed"])


def _file(place: Place) -> dict[str, Any]:
    path: Path | None = getattr(place.store, "path", None)
    if path is None:
        return {}
    parts = [path, path.with_name(f"{path.name}-wal")]
    return {"path": str(path), "size_bytes": sum(part.stat().st_size for part in parts if part.exists())}
