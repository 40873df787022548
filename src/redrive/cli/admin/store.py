"""`redrive store`: the engine below."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import click
import msgspec

from ...config.resolve import settings
from ...duration import milliseconds
from ...errors import Unsupported
from ...message import Damage, Message
from ...urls import shown
from ..main import Subcommands
from ..opening import (
    Opened,
    app_option,
    at_store,
    output_option,
    require,
    url_of,
    url_option,
)
from ..terminal.failure import (
    DONE,
    FAILED,
    USAGE,
    Failure,
    command,
    note,
    onward,
    program,
)
from ..terminal.output import Output
from ..terminal.types import DURATION


@click.group(cls=Subcommands)
def store() -> None:
    """Check, describe and upgrade the store."""


@store.command()
@click.option("--repair", is_flag=True, help="mend what can be mended, once a copy of it is written")
@click.option("--copy", metavar="FILE", help="where --repair writes it (default: redrive-repair-TIME.jsonl here)")
@at_store()
def check(opened: Opened, out: Output, repair: bool, copy: str | None) -> int:
    """Look for damage; exits 1 if there is any.

    It names each message that cannot be read, or that nothing would ever claim. With --repair a message that only
    stands in the wrong place goes back to its queue; one that lost something of itself rests dead, with what is left of
    it. What it cannot be without (its task, its body) is not made up: such a message stays in quarantine.
    """
    if repair:
        return _repair(opened, out, copy)
    problems = opened.store.check()
    out.record({"ok": not problems, "problems": problems}, table=lambda: problems or ["ok"])
    if problems:
        one = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        note(f"{one} in {opened.url}; stop the workers and {_keep(opened)} before anything else")
        return FAILED
    note(f"no damage found in {opened.url}")
    return DONE


def _repair(opened: Opened, out: Output, copy: str | None) -> int:
    """Exits 1 where something is left that is damaged."""
    path = Path(copy or f"redrive-repair-{opened.store.now_ms()}.jsonl")
    with Copies(path) as copies:
        done = opened.store.repair(copies.keep)
    left = opened.store.check()
    out.record({"repaired": done, "problems": left}, table=lambda: [*done, *left] or ["ok"])
    if done:
        note(f"{len(done)} looked at; as they were they stand in {path}")
    if left:
        note(f"{len(left)} left that cannot be mended: {onward('dlq show ID')} shows what there is of one")
    return FAILED if left else DONE


class Copies:
    """A file of rows as they were, a JSON object in each line; made when there is the first, and never over another."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()

    def keep(self, message: Message) -> None:
        """On the disk before this returns. Raises Failure."""
        if self._file is None:
            try:
                fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                what = f"{self._path} cannot be made: {error.strerror}"
                raise Failure(what, "nothing was repaired", f"{command()} --help") from error
            self._file = os.fdopen(fd, "wb")
        damage = message.damage or Damage("")
        row = {"id": message.id, "queue": message.queue, "why": damage.why, "row": damage.raw}
        self._file.write(msgspec.json.encode(row) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _keep(opened: Opened) -> str:
    return "copy the file" if opened.store.traits.name == "sqlite" else "make a backup"


@store.command()
@at_store()
def doctor(opened: Opened, out: Output) -> int:
    """Look for what is unsafe or slow about the set-up; exits 1 if there is any.

    Each line says what it is, what may come of it, and what to do. It changes nothing. With --app it also looks
    whether the store can carry the app's tasks, as a worker does before it starts.
    """
    from ...worker.preflight import advice

    told = [*opened.store.doctor(), *(advice(opened.app, opened.store) if opened.app else ())]
    findings = list(dict.fromkeys(told))
    out.record({"ok": not findings, "findings": findings}, table=lambda: findings or ["ok"])
    if findings:
        note(f"{len(findings)} finding{'s' * (len(findings) > 1)} about {opened.url}")
        return FAILED
    note(f"nothing to mend about {opened.url}")
    return DONE


@store.command()
@at_store()
def info(opened: Opened, out: Output) -> None:
    """Show what the store is, what it promises, what it holds and how large it is."""
    traits = msgspec.structs.asdict(opened.store.traits)
    counts = msgspec.structs.asdict(opened.store.counts())
    out.record({"url": opened.url, **opened.store.about(), **counts, "queues": opened.store.queues(), **traits})
    if out.is_table:
        note(f"{program()} queue list shows the queues one by one")


@store.command()
@click.argument("url_argument", required=False, metavar="[URL]")
@url_option
@app_option
def sql(url_argument: str | None, url: str | None, app: str | None) -> None:
    """Print the statements that make the store's schema, for somebody who may run them. Connects to nothing.

    They begin with the rights that workers need, which are fewer. Where they are run by hand, `migrate=off` in the URL
    keeps workers from trying.

    \b
      redrive store sql 'postgresql://db.example.com/app?schema=redrive' > redrive.sql
    """
    from ...stores.upkeep import ddl

    click.echo(ddl(_url(url_argument, url, app)), nl=False)


@store.command()
@click.argument("url_argument", required=False, metavar="[URL]")
@url_option
@app_option
@output_option
def upgrade(url_argument: str | None, url: str | None, app: str | None, output: str | None) -> None:
    """Bring the store's schema up to date, and say from which version to which.

    Workers may go on meanwhile, those of the version before too. Without it, whoever opens the store first does the
    same, unless the URL says `migrate=off`. A store without a schema has nothing to upgrade.
    """
    from ...stores import engine_of
    from ...stores.upkeep import upgrade as bring_up

    out, named = Output(settings({"output": output}).output), _url(url_argument, url, app)
    if engine_of(named) == "sqlite":
        require(named)
    try:
        before, after = bring_up(named)
    except Unsupported as error:  # whoever runs this at each roll-out need not know which store it is
        note(f"nothing to upgrade: {error}")
        return
    out.record(
        {"url": shown(named), "before": before, "after": after},
        table=lambda: [f"schema {after}, as it was" if before == after else f"schema {before} → {after}"],
    )


def _url(argument: str | None, flag: str | None, app: str | None) -> str:
    """The URL of the store that is meant. Raises Failure where it is named twice, or an app brought a store object."""
    if argument and flag and argument != flag:
        raise Failure("give the URL once", "the argument and --url differ", f"{command()} --help", USAGE)
    return url_of(
        settings({"app": app, "url": argument or flag}), app_flag=app is not None, url_flag=bool(argument or flag)
    )


@store.command()
@click.option("--older-than", type=DURATION, default="1h", help="leave blobs younger than this [1h]")
@at_store()
def sweep(opened: Opened, out: Output, older_than: float) -> None:
    """Remove blobs that no message refers to.

    Crashes leave them; workers do this once an hour. No put or transaction may take longer than --older-than: its blobs
    are written first.
    """
    from ...blobs import collect
    from ...triage.pauses import tell

    count = collect(opened.store, milliseconds(older_than))
    tell(opened.store, "sweep", "blobs", count=count)
    out.record({"removed": count}, table=lambda: [f"{count:,} blobs removed"])
