"""`redrive workers`: who is alive, and what they run; and drain one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ...present.workers import COLUMNS, work_lines, worker_record
from ..opening import OpenedStore, at_store
from ..selecting import signature
from ..subcommands import Subcommands
from ..terminal.nothing import unknown
from ..terminal.output import Output
from ..terminal.stderr import note

if TYPE_CHECKING:
    from ...presence import WorkerInfo


class _Listing(Subcommands):
    """A group of commands that runs `list` if no subcommand is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and (not args[0].startswith("-") or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else ["list", *args])


@click.group(cls=_Listing)
def workers() -> None:
    """List workers and schedulers, alive or killed lately; drain one.

    Without a subcommand it lists them: `redrive workers -v` is `redrive workers list -v`.
    """


@workers.command("list")
@at_store()
def list_(opened: OpenedStore, out: Output) -> None:
    """List workers and schedulers, alive or killed lately; -v shows what each runs.

    The list includes commands that wait for a redrive run and carry it out. Each process reports every 5 s. Without a
    report for 15 s, or if a newer process has its name, it is `gone`: it was killed, or it cannot reach the store. It
    is listed for five minutes, with its messages that no other worker has taken over. A `hung` process cannot begin
    messages: its event loop is blocked, or all places of a queue are past their timeouts. A process that ended by
    itself is not listed. Figures are of the last seconds, of the whole process; `clock` is how far its machine's clock
    is ahead of the store's.

    \b
      redrive workers --app tasks:app -v
    """
    from ...presence import read_workers

    infos = read_workers(opened.store)
    if not out.rows(map(worker_record, infos), COLUMNS, id="name", limit=0):
        note(f"no worker tells {opened.url} that it is alive, and none was killed in the last five minutes")
    if out.is_table and out.verbose:
        out.lines(line for info in infos for line in _runs(info, opened.store.now_ms()))


@workers.command()
@click.argument("name")
@signature()
@at_store()
def drain(opened: OpenedStore, out: Output, name: str, actor: str | None, reason: str) -> None:
    """Ask one worker to drain, as SIGTERM does.

    The worker stops claiming, lets running messages finish within its grace, gives back the rest uncounted, and ends.
    It reads the request within 5 s. `redrive worker` does not replace it, but a service manager that always restarts it
    may. NAME is the name in `redrive workers`.
    """
    from ...presence import read_workers
    from ...triage.draining import drain_worker

    known = [info.name for info in read_workers(opened.store)]
    if name not in known:
        raise unknown("worker", name, known, opened.url, look="workers", guess=False)
    drain_worker(opened.store, name, reason=reason, actor=actor)
    out.record({"name": name, "asked": True}, table=lambda: [f"{name} is asked to drain"])


def _runs(info: WorkerInfo, now_ms: int) -> Iterator[str]:
    """Yield lines about a process: the messages, redrive runs and schedules that it works on."""
    lines = list(work_lines(info, now_ms))
    if lines:
        held = f", {'not taken over yet:' if info.gone else 'holds'} {info.held:,}" if info.held else ""
        yield from ("", f"{info.name}, pid {info.pid}{held}", *(f"  {line}" for line in lines))
