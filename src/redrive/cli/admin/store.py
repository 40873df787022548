"""`redrive store`: check, describe, repair and upgrade the store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import click
import msgspec

from ...config import settings
from ...duration import milliseconds
from ...errors import Unsupported
from ...files import create
from ...message import Damage, Message
from ...present.commands import command, onward, program
from ...present.failure import DONE, FAILED, USAGE, Failure
from ...urls import shown
from ..opening import (
    OpenedStore,
    app_option,
    at_store,
    output_option,
    require,
    url_of,
    url_option,
)
from ..selecting import signature
from ..subcommands import Subcommands
from ..terminal.output import Output
from ..terminal.stderr import note
from ..terminal.types import DURATION
from .doctor import doctor


@click.group(cls=Subcommands)
def store() -> None:
    """Check, describe and upgrade the store."""


@store.command()
@click.option("--repair", is_flag=True, help="repair what can be repaired, after writing a copy of it")
@click.option("--copy", metavar="FILE", help="the file for the copy (default: redrive-repair-TIME.jsonl here)")
@at_store()
def check(opened: OpenedStore, out: Output, repair: bool, copy: str | None) -> int:
    """Look for damage; exits 1 if there is any.

    Names each message that cannot be read, or that would never be claimed, and settings, counters and cells with
    impossible values. --repair puts a message back into its queue if only its index is wrong. A message that lost a
    field becomes dead, with the rest of its fields. A message without its task or body stays in quarantine.
    """
    from ...status.cells import problems

    if repair:
        return _repair(opened, out, copy)
    lines = problems(opened.store)
    out.record({"ok": not lines, "problems": lines}, table=lambda: lines or ["ok"])
    if lines:
        one = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
        note(f"{one} in {opened.url}; stop the workers and {_keep(opened)} before anything else")
        return FAILED
    note(f"no damage found in {opened.url}")
    return DONE


def _repair(opened: OpenedStore, out: Output, copy: str | None) -> int:
    """Repair damaged rows, after writing a copy of each to the file `copy`; return 1 if damage is left."""
    from ...status.cells import problems

    path = Path(copy or f"redrive-repair-{opened.store.now_ms()}.jsonl")
    with Copies(path) as copies:
        done = opened.store.repair(copies.keep)
    left = problems(opened.store)
    out.record({"repaired": done, "problems": left}, table=lambda: [*done, *left] or ["ok"])
    if done:
        note(f"{len(done)} looked at; as they were they stand in {path}")
    if left:
        note(f"{len(left)} left that cannot be mended: {onward('dlq show ID')} shows what there is of one")
    return FAILED if left else DONE


class Copies:
    """A file with a JSON line for each damaged row, written before its repair. Created with the first row; never
    replaces a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()

    def keep(self, message: Message) -> None:
        """Write the row of a damaged message to the file, durably. Raises Failure if the file cannot be created."""
        if self._file is None:
            try:
                fd = create(self._path)
            except OSError as error:
                what = f"{self._path} cannot be made: {error.strerror}"
                raise Failure(what, "nothing was repaired", f"{command()} --help") from error
            self._file = os.fdopen(fd, "wb")
        damage = message.damage or Damage("")
        row = {"id": message.id, "queue": message.queue, "why": damage.why, "row": damage.raw}
        self._file.write(msgspec.json.encode(row) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _keep(opened: OpenedStore) -> str:
    return "copy the file" if opened.store.traits.name == "sqlite" else "make a backup"


store.add_command(doctor)


@store.command()
@at_store()
def info(opened: OpenedStore, out: Output) -> None:
    """Show the engine of the store, its guarantees, its contents and its size."""
    traits = msgspec.structs.asdict(opened.store.traits)
    counts = msgspec.structs.asdict(opened.store.counts())
    out.record({"url": opened.url, **opened.store.info(), **counts, "queues": opened.store.queues(), **traits})
    if out.is_table:
        note(f"{program()} queue list shows the queues one by one")


@store.command()
@click.argument("url_argument", required=False, metavar="[URL]")
@url_option
@app_option
@click.option(
    "--from-version", "since", type=click.IntRange(0), default=0, help="upgrade a schema of this version [0: create it]"
)
def sql(url_argument: str | None, url: str | None, app: str | None, since: int) -> None:
    """Print the SQL that creates or upgrades the store's schema, for a person who may run it. Connects to nothing.

    It begins with the rights that workers need, which are fewer. If you run it by hand, `migrate=off` in the URL keeps
    workers from trying.
    """
    from ...stores.upkeep import ddl

    click.echo(ddl(_url(url_argument, url, app), since), nl=False)


@store.command()
@click.argument("url_argument", required=False, metavar="[URL]")
@url_option
@app_option
@output_option
def upgrade(url_argument: str | None, url: str | None, app: str | None, output: str | None) -> None:
    """Upgrade the schema of the store, and print the versions before and after.

    Workers may continue meanwhile, also those of the version before. Without this command, the first process that opens
    the store upgrades it, unless the URL has `migrate=off`. A store without a schema has nothing to upgrade.
    """
    from ...stores import engine_of
    from ...stores.upkeep import upgrade as bring_up

    out, named = Output(settings({"output": output}).output), _url(url_argument, url, app)
    if engine_of(named) == "sqlite":
        require(named)
    try:
        before, after = bring_up(named)
    except Unsupported as error:  # not a failure, as a roll-out script may run this command for any store
        note(f"nothing to upgrade: {error}")
        return
    out.record(
        {"url": shown(named), "before": before, "after": after},
        table=lambda: [f"schema {after}, as it was" if before == after else f"schema {before} → {after}"],
    )


def _url(argument: str | None, flag: str | None, app: str | None) -> str:
    """Return the URL of the store that the argument, the flag or the app names. Raises Failure if argument and flag
    differ, or if the app was given a store object."""
    if argument and flag and argument != flag:
        raise Failure("give the URL once", "the argument and --url differ", f"{command()} --help", USAGE)
    return url_of(
        settings({"app": app, "url": argument or flag}), app_flag=app is not None, url_flag=bool(argument or flag)
    )


@store.command()
@click.option("--older-than", type=DURATION, default="1h", help="leave blobs younger than this [1h]")
@signature(required=False)
@at_store()
def sweep(opened: OpenedStore, out: Output, older_than: float, actor: str | None, reason: str) -> None:
    """Remove blobs that no message refers to.

    Crashes leave such blobs; workers remove them once an hour. No put or transaction may take longer than --older-than,
    as its blobs are written first.
    """
    from ...blobs import collect
    from ...triage.pauses import tell

    count = collect(opened.store, milliseconds(older_than))
    tell(opened.store, "sweep", "blobs", count=count, actor=actor, reason=reason)
    out.record({"removed": count}, table=lambda: [f"{count:,} blobs removed"])
