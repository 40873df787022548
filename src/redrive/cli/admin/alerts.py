"""`redrive alerts`: mute alerts about a queue or a dependency, such as during planned maintenance."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ...present.formats import timestamp
from ..opening import OpenedStore, at_store, note_unknown_queues
from ..selecting import signature, understood
from ..subcommands import Subcommands
from ..terminal.output import Column, Output
from ..terminal.stderr import note
from ..terminal.types import DURATION

if TYPE_CHECKING:
    from ...observe.muting import Mute, Muting

_COLUMNS = (
    Column("kind"),
    Column("name", shrinks=True),
    Column("until"),
    Column("by", spare=1),
    Column("reason", shrinks=True),
    Column("at", "since", spare=2),
)


@click.group(cls=Subcommands)
def alerts() -> None:
    """Mute alerts about a queue or a dependency for a while.

    `redrive dlq mute` mutes those about a failure group.
    """


def _named() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds `--queue` and `--dependency`."""

    def wrap(command: Callable[..., Any]) -> Callable[..., Any]:
        queue = click.option("-q", "--queue", help="alerts about this queue")
        return queue(click.option("--dependency", help="alerts about this dependency, and tasks that call it")(command))

    return wrap


@alerts.command("list")
@at_store()
def list_(opened: OpenedStore, out: Output) -> None:
    """List the queues and dependencies that are muted, and until when."""
    if not out.rows(map(_row, _muting(opened).list()), _COLUMNS, id="name", limit=0):
        note("no queue and no dependency is muted; muted failure groups are in `redrive dlq groups`")


@alerts.command()
@_named()
@click.option("--for", "for_", type=DURATION, required=True, help="how long, such as 2h; a year at most")
@signature()
@at_store()
def mute(
    opened: OpenedStore,
    out: Output,
    queue: str | None,
    dependency: str | None,
    for_: float,
    actor: str | None,
    reason: str,
) -> None:
    """Send no alerts about a queue, or about a dependency and the tasks that call it, for a while.

    Messages run as before. An alert that still fires when the mute ends is sent then. Muting again sets a new end.
    Which tasks call a dependency is known from --app.
    """
    _one(queue, dependency)
    with understood():
        made = _muting(opened).mute(queue=queue, dependency=dependency, for_=for_, reason=reason, actor=actor)
    if queue is not None:
        note_unknown_queues(opened, [queue])
    record = _row(made)
    out.record(record, id="name")


@alerts.command()
@_named()
@signature(required=False)
@at_store()
def unmute(
    opened: OpenedStore, out: Output, queue: str | None, dependency: str | None, actor: str | None, reason: str
) -> None:
    """End a mute before its time."""
    _one(queue, dependency)
    with understood():
        _muting(opened).unmute(queue=queue, dependency=dependency, reason=reason, actor=actor)
    note(f"alerts about {queue or dependency} are told again")


def _one(queue: str | None, dependency: str | None) -> None:
    if (queue is None) == (dependency is None):
        raise click.UsageError("give --queue or --dependency")


def _muting(opened: OpenedStore) -> Muting:
    from ...observe.muting import Muting
    from ...registry import Registry

    return Muting(opened.store, opened.app if opened.app is not None else Registry(store=opened.store))


def _row(mute: Mute) -> dict[str, Any]:
    return {
        "kind": "dependency" if mute.queue is None else "queue",
        "name": mute.dependency if mute.queue is None else mute.queue,
        "until": timestamp(mute.until_ms),
        "by": mute.by,
        "reason": mute.reason,
        "at": timestamp(mute.at_ms),
    }
