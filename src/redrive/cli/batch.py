"""`redrive batch`: list, show and watch batches and their members, and cancel one."""

from __future__ import annotations

import sys
import time

import click

from ..batch import BatchInfo, BatchPhase, BatchRef, every
from ..duration import pauses
from ..errors import ConfigError
from ..message import Lane
from ..present.batches import batch_record, states
from ..present.commands import onward, program, typed
from ..present.failure import DONE, FAILED, INTERRUPTED, PARTIAL, REFUSED, TIMED_OUT, Failure
from ..present.messages import message_row
from ..store import Store
from .opening import OpenedStore, at_store
from .selecting import signature
from .subcommands import Subcommands
from .terminal.output import Column, Output
from .terminal.stderr import note
from .terminal.types import DURATION

LINE_S = 1.0  # seconds between two lines about a batch that is watched
_COLUMNS = (
    Column("state"),
    Column("name", shrinks=True),
    Column("total"),
    Column("open"),
    Column("done"),
    Column("dead"),
    Column("quarantine", spare=True),
    Column("cancelled", spare=True),
    Column("discarded", spare=True),
    Column("duplicate", spare=True),
    Column("episode", spare=True),
    Column("per_s", spare=True),
    Column("eta_s", spare=True),
    Column("created_at"),
    Column("ended_at", spare=True),
    Column("id"),
)
_MEMBERS = (
    Column("state"),
    Column("task", shrinks=True),
    Column("queue", shrinks=True),
    Column("attempt", spare=1),
    Column("redrives", spare=2),
    Column("due_at"),
    Column("id"),
)


@click.group(cls=Subcommands)
def batch() -> None:
    """List, show and watch batches: messages that you wait for together; cancel one."""


@batch.command("list")
@click.option("--name", help="only batches of this name")
@click.option("--state", type=click.Choice([phase.value for phase in BatchPhase]), help="only those in this state")
@click.option("--limit", type=click.IntRange(0), help="how many (default: 50 in a table, else all; 0: all)")
@at_store()
def list_(opened: OpenedStore, out: Output, name: str | None, state: str | None, limit: int | None) -> None:
    """List batches that have members, with the members counted by what became of them.

    A batch is `filling` until its producer seals it, and `running` while a member is open. Then it is `done`,
    `cancelled`, or `partial`: more members failed than it tolerates. Redrive these, and it continues. It is forgotten
    seven days after it has no open and no dead member.
    """
    wanted = (info for info in every(opened.store) if name in (None, info.name) and state in (None, info.state.value))
    if not out.rows(map(batch_record, wanted), _COLUMNS, id="id", limit=limit):
        note("no batches" if name is state is None else "no such batches")


@batch.command()
@click.argument("id")
@at_store()
def show(opened: OpenedStore, out: Output, id: str) -> None:
    """Show a batch, its steps and nested batches, and where its dead members are."""
    _, info = found(opened.store, id)
    record = batch_record(info)
    out.record({**record, "parts": [part["name"] for part in record["parts"]]} if out.is_table else record)
    if info.parts and out.is_table:
        note(f"its parts: {program()} workflow show {id}")
    if info.counts.dead and out.is_table:
        note(f"{info.counts.dead} dead: {program()} dlq list batch:{id}")


@batch.command()
@click.argument("id")
@click.option("--lane", type=click.Choice([lane.value for lane in Lane]), help="only those in this lane")
@click.option("--limit", type=click.IntRange(0), help="how many (default: 50 in a table, else all; 0: all)")
@at_store()
def members(opened: OpenedStore, out: Output, id: str, lane: str | None, limit: int | None) -> None:
    """List the members of a batch that are stored.

    Done members are deleted, unless their results are kept. `dlq list batch:ID` says why dead ones died.
    """
    ref, _ = found(opened.store, id)
    now_ms = opened.store.now_ms()
    if not out.rows((message_row(each, now_ms) for each in ref.members(lane)), _MEMBERS, id="id", limit=limit):
        note(f"no member of batch {id} is stored" + (f" in lane {lane}" if lane else ""))


@batch.command()
@click.argument("id")
@click.option("--timeout", type=DURATION, help="stop watching after this; the batch goes on (default: never)")
@at_store()
def watch(opened: OpenedStore, out: Output, id: str, timeout: float | None) -> int:
    """Watch a batch until its end: a line for each change, at most one a second, and at the end its counts.

    With `-o json` or `-o jsonl` each change is a line of JSON. Exit codes: 0 the batch is done, 5 it is partial, 1 it
    was cancelled, 124 the timeout is over, 130 Ctrl-C; in the last two cases the batch goes on.
    """
    again, lines = onward(f"batch watch {typed(id)}"), Output("jsonl") if out.form in ("json", "jsonl") else None
    try:
        info = _watched(opened.store, id, timeout, lines)
    except KeyboardInterrupt:
        note(f"not watched any more; the batch goes on: {again}")
        return INTERRUPTED
    except TimeoutError as error:
        raise Failure(str(error), "the batch goes on", again, TIMED_OUT) from None
    if lines is None:
        out.record(batch_record(info), id="id")
    if info.state is BatchPhase.PARTIAL and info.counts.dead:
        note(f"{info.counts.dead} dead: {program()} dlq list batch:{info.id}")
    return {BatchPhase.DONE: DONE, BatchPhase.PARTIAL: PARTIAL}.get(info.state, FAILED)


def _watched(store: Store, id: str, timeout: float | None, lines: Output | None) -> BatchInfo:
    """Write each change, as a line of JSON to `lines` or else to stderr; return the batch at its end."""
    looks, last, next_s = pauses(timeout, f"batch {id}"), None, 0.0
    while True:
        _, info = found(store, id)
        if info != last and (info.state.is_over or time.monotonic() >= next_s):
            last, next_s = info, time.monotonic() + LINE_S
            if lines is None:
                note(states(info))
            else:
                lines.record(batch_record(info))
                sys.stdout.flush()
        if info.state.is_over:
            return info
        time.sleep(next(looks))


@batch.command()
@click.argument("id")
@signature(required=False)
@at_store()
def cancel(opened: OpenedStore, out: Output, id: str, actor: str | None, reason: str) -> None:
    """End the waiting members of a batch, and ask the running ones to stop. A partial batch is given up."""
    ref, info = found(opened.store, id)
    if info.state.is_over:
        done = info.state is BatchPhase.DONE
        note(f"nothing is open in batch {id}: " + ("it is done" if done else "it is given up, and what is dead stays"))
    count = ref.cancel(reason=reason, actor=actor)
    out.record({**batch_record(ref.info()), "ended_now": count})


def found(store: Store, id: str) -> tuple[BatchRef, BatchInfo]:
    """Return the batch with this id. Raises Failure if there is none."""
    ref = BatchRef(id, store)
    try:
        return ref, ref.info()
    except ConfigError as error:
        why = "ids stand in the list; a batch is forgotten seven days after its end"
        raise Failure(str(error), why, f"{program()} batch list", REFUSED) from error
