"""`redrive task`: list, show, pause and resume tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import click

from ..present.commands import onward
from ..present.tasks import task_record
from ..triage import task_pauses
from .opening import OpenedStore, at_store
from .selecting import signature, understood
from .subcommands import Subcommands
from .terminal.output import Column, Output
from .terminal.stderr import note
from .terminal.types import DURATION

_COLUMNS = (
    Column("task", shrinks=True),
    *map(Column, ("queue", "paused", "by", "until")),
    Column("reason", shrinks=True),
    Column("since", spare=True),
    Column("pattern", spare=True),
)


@click.group(cls=Subcommands)
def task() -> None:
    """List tasks; pause and resume single ones."""


@task.command("list")
@click.option("--paused", is_flag=True, help="only those that are paused")
@at_store(absent=True)
def list_(opened: OpenedStore, out: Output, paused: bool) -> None:
    """List the tasks that the app declares or living workers know, and who paused them.

    A paused pattern that matches no task has a row of its own.
    """
    states = task_pauses.task_states(opened.store, opened.app)
    if not _write(out, [state for state in states if state.paused or not paused]):
        note("no task is paused" if paused else "no tasks: --app names an app that declares some")


@task.command()
@click.argument("name")
@at_store(absent=True)
def show(opened: OpenedStore, out: Output, name: str) -> None:
    """Show a task: its queue, and the pause that holds it."""
    out.record(task_record(task_pauses.task_state(opened.store, opened.app, name)), id="task")


@task.command()
@click.argument("names", nargs=-1, required=True, metavar="TASK…")
@click.option("--for", "for_", type=DURATION, help="resume by itself after this time, such as 2h")
@signature()
@at_store()
def pause(
    opened: OpenedStore, out: Output, names: tuple[str, ...], for_: float | None, reason: str, actor: str | None
) -> None:
    """Let no worker claim messages of tasks, each given by its name or a pattern such as 'crm.*'.

    The other tasks of the same queues continue. Waiting messages spend no attempt. Workers follow within two seconds:
    messages that they have claimed and not begun go back to their place, and running ones continue. Not on SQS.
    """
    _each(opened, out, names, partial(task_pauses.pause_task, reason=reason, for_=for_, actor=actor))


@task.command()
@click.argument("names", nargs=-1, required=True, metavar="TASK…")
@signature(required=False)
@at_store()
def resume(opened: OpenedStore, out: Output, names: tuple[str, ...], reason: str, actor: str | None) -> None:
    """End pauses, each given by the name or the pattern that was paused."""
    _each(opened, out, names, partial(task_pauses.resume_task, reason=reason, actor=actor))


def _each(opened: OpenedStore, out: Output, names: Sequence[str], change: Callable[..., object]) -> None:
    with understood(onward("task list")):
        for name in names:
            change(opened.store, opened.app, name)
    _write(out, [task_pauses.task_state(opened.store, opened.app, name) for name in names])


def _write(out: Output, states: Sequence[task_pauses.TaskState]) -> int:
    return out.rows(map(task_record, states), _COLUMNS, id="task", limit=0)
