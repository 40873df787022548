"""`redrive audit`: list, verify and export the audit log."""

from __future__ import annotations

import sys
from typing import IO

import click
import msgspec

from ...audit.log import Audit
from ...errors import ConfigError
from ..dlq.groups import audit as list_
from ..main import Subcommands
from ..opening import Opened, at_store
from ..terminal import views
from ..terminal.failure import (
    DONE,
    FAILED,
    USAGE,
    Failure,
    command,
    note,
    onward,
)
from ..terminal.output import Output

OUTSIDE_SHOWN = 20


@click.group(cls=Subcommands)
def audit() -> None:
    """List, verify and export the audit log."""


audit.add_command(list_, "list")


@audit.command()
@click.option(
    "--anchor",
    default="",
    metavar="SEQ:HASH:DATE",
    help="the head that an earlier call printed: it must still be in the log",
)
@at_store()
def verify(opened: Opened, out: Output, anchor: str) -> int:
    """Find entries that were changed, removed or moved since they were written; exits 1 if there are any.

    Each entry holds the hash of the one before, and the head the hash of the last. Anyone who may write to the store
    can also rewrite the whole log: store the `head` that this prints elsewhere, and give it as --anchor next time.

    Entries from before the log had hashes are counted as `outside`, and the first ones are named.
    """
    log = Audit(opened.store)
    try:
        found = log.verify(anchor)
    except ConfigError as error:
        raise Failure("--anchor is no SEQ:HASH:DATE", str(error), f"{command()} --help", USAGE) from error
    record = {"ok": not found.problems, **msgspec.structs.asdict(found)}
    told = {name: value for name, value in record.items() if name not in ("problems", "ok")}
    out.record(
        record,
        table=lambda: [*(found.problems or ["ok"]), *(f"{name}: {value}" for name, value in told.items() if value)],
    )
    for _, entry in zip(range(OUTSIDE_SHOWN), log.outside(), strict=False):
        note(f"outside the chain: {entry.action} by {entry.actor} at {views.time(entry.at_ms)}")
    if found.outside > OUTSIDE_SHOWN:
        note(f"and {found.outside - OUTSIDE_SHOWN:,} more: {onward('audit export')}")
    if found.problems:
        note(f"the audit log of {opened.url} does not hold what was written")
        return FAILED
    return DONE


@audit.command()
@click.option("-f", "--file", type=click.File("wb", atomic=True), help="write here, whole or not at all [stdout]")
@at_store()
def export(opened: Opened, out: Output, file: IO[bytes] | None) -> None:
    """Write the whole log as JSON lines, the oldest first, as it is stored: {"hash": …, "entry": {…}}.

    `hash` is the SHA-256 of the bytes of `entry`, and `prev` in it is the hash of the line before. A correction is an
    entry of its own (`amends`). Entries outside the chain come first, with an empty hash.
    """
    log, stream = Audit(opened.store), file or sys.stdout.buffer
    count = 0
    for line in log.lines():
        stream.write(line + b"\n")
        count += 1
    stream.flush()
    note(f"{count:,} entries exported" + (f" to {file.name}" if file is not None else ""))
