"""`redrive audit`: list, verify and export the audit log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

import click
import msgspec

from ...audit import Audit
from ...config import is_shared
from ...errors import ConfigError
from ...files import output
from ...present.commands import command
from ...present.failure import DONE, FAILED, USAGE, Failure
from ..dlq.groups import audit as list_
from ..opening import OpenedStore, at_store
from ..subcommands import Subcommands
from ..terminal.output import Output
from ..terminal.stderr import note


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
def verify(opened: OpenedStore, out: Output, anchor: str) -> int:
    """Find entries that were changed, removed or moved since they were written; exits 1 if there are any.

    Each entry holds the hash of the one before, and the head the hash of the last. Anyone who may write to the store
    can also rewrite the whole log: store the `head` that this prints elsewhere, and give it as --anchor next time.
    """
    log = Audit(opened.store)
    try:
        verdict = log.verify(anchor)
    except ConfigError as error:
        raise Failure("--anchor is no SEQ:HASH:DATE", str(error), f"{command()} --help", USAGE) from error
    record = {"ok": not verdict.problems, **msgspec.structs.asdict(verdict)}
    counts = {name: value for name, value in record.items() if name not in ("problems", "ok")}
    out.record(
        record,
        table=lambda: [*(verdict.problems or ["ok"]), *(f"{name}: {value}" for name, value in counts.items() if value)],
    )
    if verdict.problems:
        note(f"the audit log of {opened.url} does not hold what was written")
        return FAILED
    return DONE


@audit.command()
@click.option("-f", "--file", type=click.Path(path_type=Path), help="write to this file, all or nothing [stdout]")
@at_store()
def export(opened: OpenedStore, out: Output, file: Path | None) -> None:
    """Write the whole log as JSON lines, the oldest first, as it is stored: {"hash": …, "entry": {…}}.

    `hash` is the SHA-256 of the bytes of `entry`, and `prev` in it is the hash of the line before. A correction is an
    entry of its own (`amends`).
    """
    log = Audit(opened.store)
    if file is None or str(file) == "-":
        count = _write(log, sys.stdout.buffer)
    else:
        try:
            with output(file, shared=is_shared()) as out_file:
                count = _write(log, out_file)
        except OSError as error:
            raise Failure(f"{file} cannot be written", str(error), f"{command()} --help") from error
    note(f"{count:,} entries exported" + (f" to {file}" if file is not None else ""))


def _write(log: Audit, file: IO[bytes]) -> int:
    count = sum(bool(file.write(line + b"\n")) for line in log.lines())
    file.flush()
    return count
