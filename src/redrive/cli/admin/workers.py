"""`redrive workers`: who is alive, and what they run; and drain one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from ...duration import show as show_duration
from ...present.formats import milliseconds, number, share, size
from ...present.workers import worker_record
from ..opening import OpenedStore, at_store
from ..selecting import signature
from ..subcommands import Subcommands
from ..terminal.nothing import unknown
from ..terminal.output import Column, Output
from ..terminal.stderr import note

if TYPE_CHECKING:
    from ...presence import WorkerInfo


_COLUMNS = (
    Column("name", shrinks=True),
    Column("state"),
    Column("pid", None, str),
    Column("queues", None, lambda queues: ", ".join(queues) or "–", shrinks=True),
    Column("held"),
    Column("running"),
    Column("claims_per_s", "claims/s", number),
    Column("cpu_share", "cpu", share, spare=1),
    Column("rss_bytes", "memory", size, spare=1),
    Column("loop_lag_ms", "loop lag p99", milliseconds, spare=2),
    Column("store_p50_ms", "store p50", milliseconds, spare=3),
    Column("store_p99_ms", "store p99", milliseconds, spare=2),
    Column("clock_ahead_ms", "clock", milliseconds, spare=3),
    Column("version", spare=3),
    Column("app", spare=3),
    Column("started_at", "started", spare=2),
    Column("seen_at", "seen"),
)


class _Listing(Subcommands):
    """A group of commands whose default is `list`."""

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

    Commands that wait for a redrive run and carry it out are listed, too. Each reports every 5 s. One that has not for
    15 s, or whose name a newer process has, is `gone`: it was killed, or it cannot reach the store. It is listed for
    five minutes, with those of its messages that were not taken over yet. One that is `hung` cannot begin messages: its
    event loop is blocked, or all places of a queue are past their timeouts. One that ended by itself is not listed.
    Figures are of the last seconds, of the whole process; `clock` is how far its machine's clock is ahead of the
    store's.

    \b
      redrive workers --app tasks:app -v
    """
    from ...presence import read_workers

    infos = read_workers(opened.store)
    if not out.rows(map(worker_record, infos), _COLUMNS, id="name", limit=0):
        note(f"no worker tells {opened.url} that it is alive, and none was killed in the last five minutes")
    if out.is_table and out.verbose:
        out.lines(line for info in infos for line in _runs(info, opened.store.now_ms()))


@workers.command()
@click.argument("name")
@signature()
@at_store()
def drain(opened: OpenedStore, out: Output, name: str, actor: str | None, reason: str) -> None:
    """Ask one worker to drain, as SIGTERM does.

    It claims nothing more, lets what runs finish within its grace, releases the rest uncounted, and ends. It reads the
    request when it next renews its record, within 5 s. `redrive worker` does not start another in its place; a service
    manager that restarts it whatever it ends with does. NAME is as the list has it.
    """
    from ...presence import read_workers
    from ...triage.draining import drain_worker

    known = [info.name for info in read_workers(opened.store)]
    if name not in known:
        raise unknown("worker", name, known, opened.url, look="workers", guess=False)
    drain_worker(opened.store, name, reason=reason, actor=actor)
    out.record({"name": name, "asked": True}, table=lambda: [f"{name} is asked to drain"])


def _runs(info: WorkerInfo, now_ms: int) -> Iterable[str]:
    """Yield lines about a process: the messages, runs and schedules that it works on."""
    if not (info.messages or info.runs or info.schedules or info.hung):
        return
    yield ""
    held = f", {'not taken over yet:' if info.gone else 'holds'} {info.held:,}" if info.held else ""
    yield f"{info.name}, pid {info.pid}{held}"
    if info.hung is not None and not info.gone:
        yield f"  {info.hung.text(info.name)}, for {show_duration(max(0, now_ms - info.hung.since_ms) // 1000)}"
    for message in info.messages:
        if message.since_ms is None:
            since = "claimed, not started"
        else:
            ago = show_duration(max(0, (info.seen_ms if info.gone else now_ms) - message.since_ms) / 1000)
            since = f"ran for {ago}" if info.gone else f"for {ago}"
        words = [word for word, is_so in (("isolated", message.isolated), ("alone", message.alone)) if is_so]
        yield "  ".join(["", message.id, message.task, ", ".join([since, *words])])
    if info.held > len(info.messages):
        yield f"  and {info.held - len(info.messages):,} more"
    if info.runs:
        yield f"  carries redrive runs: {', '.join(info.runs)}"
    if info.schedules:
        yield f"  schedules: {', '.join(info.schedules)}"
