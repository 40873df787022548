"""`redrive group`: list groups, see which messages run or wait, and set widths while workers run."""

from __future__ import annotations

import click
import msgspec

from ..message import Filter, Group
from ..present.commands import program, typed
from ..present.failure import REFUSED, Failure
from ..triage import pauses
from ..triage.select.terms import as_node
from .opening import OpenedStore, at_store, note_unknown_queues
from .selecting import here, signature
from .subcommands import Subcommands
from .terminal.output import Column, Output
from .terminal.stderr import note

_COLUMNS = (
    Column("group", shrinks=True),
    Column("width"),
    Column("taken"),
    Column("parked"),
    Column("blocked_by", "blocked by", lambda id: id or ""),
)


@click.group(cls=Subcommands)
def group() -> None:
    """List groups, set their widths, resume blocked ones."""


@group.command("list")
@click.argument("queue")
@click.option("--blocked", is_flag=True, help="only groups that a dead message blocks")
@click.option("--limit", type=click.IntRange(0), help="how many (default: 50 in a table, else all; 0: all)")
@at_store()
def list_(opened: OpenedStore, out: Output, queue: str, blocked: bool, limit: int | None) -> None:
    """List the groups of a queue that hold messages or have a width of their own.

    `taken` counts messages that run or run next; `parked` ones wait for these. A blocked group continues when the dead
    message is redriven or discarded, or by `redrive group resume`.
    """
    groups = [group for group in opened.store.groups(queue) if group.blocked_by or not blocked]
    if not groups:
        here(opened).preflight(as_node(Filter(queue=queue)))
    if not out.rows(map(_row, groups), _COLUMNS, id="group", limit=limit):
        note(f"no {'blocked ' if blocked else ''}groups in queue '{queue}'")


@group.command()
@click.argument("queue")
@click.argument("number", type=click.IntRange(1), required=False)
@click.option("--group", "name", help="for this group only (default: for all of the queue)")
@click.option("--reset", is_flag=True, help="back to what the app declared")
@signature(required=False)
@at_store()
def width(
    opened: OpenedStore,
    out: Output,
    queue: str,
    number: int | None,
    name: str | None,
    reset: bool,
    actor: str | None,
    reason: str,
) -> None:
    """Set how many messages of a group may run at once: for all workers, at once, and permanently."""
    if (number is None) != reset:
        raise click.UsageError("give a NUMBER, or --reset")
    note_unknown_queues(opened, [queue])
    pauses.set_width(opened.store, queue, name, number or 0, actor=actor, reason=reason)
    row = {"queue": queue, "group": name, "width": number}
    columns = (
        Column("queue"),
        Column("group", None, lambda n: n or "all"),
        Column("width", None, lambda n: f"{n:,}" if n else "as declared"),
    )
    out.rows([row], columns, id="queue", limit=0)


@group.command()
@click.argument("queue")
@click.argument("names", nargs=-1, required=True, metavar="GROUP…")
@signature(required=False)
@at_store()
def resume(
    opened: OpenedStore, out: Output, queue: str, names: tuple[str, ...], actor: str | None, reason: str
) -> None:
    """Unblock groups. The message that blocked a group stays dead, and joins at its end if it is redriven."""
    blocked = {group.name: group for group in opened.store.groups(queue) if group.blocked_by}
    unknown = [name for name in names if name not in blocked]
    if unknown:
        why = f"blocked there: {', '.join(list(blocked)[:5]) or 'none'}"
        raise Failure(
            f"group '{unknown[0]}' of queue '{queue}' is not blocked",
            why,
            f"{program()} group list {typed(queue)}",
            REFUSED,
        )
    for name in names:
        pauses.resume_group(opened.store, queue, name, actor=actor, reason=reason)
    now = {group.name: group for group in opened.store.groups(queue)}  # an emptied group is not in this list any more
    out.rows((_row(now.get(name) or _emptied(blocked[name])) for name in names), _COLUMNS, id="group", limit=0)


def _emptied(group: Group) -> Group:
    return msgspec.structs.replace(group, taken=0, parked=0, blocked_by=None)


def _row(group: Group) -> dict[str, object]:
    row = msgspec.structs.asdict(group)
    return {"group": row.pop("name"), **row}
