"""`redrive job`: show, list, run and cancel messages."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from ..blobs import whole_body
from ..message import ABSENT, Cancel, Filter, Lane, Message
from ..present.commands import completed, onward, typed
from ..present.done import done_of, done_record, done_text
from ..present.failure import DONE, FAILED, PARTIAL, Failure
from ..present.formats import seconds, state_word, timestamp
from ..present.holds import hold_record, holds_text
from ..present.messages import body_json, message_row, running_record
from ..present.story import story
from ..triage.select.parser import parse
from ..triage.select.terms import SINCE, Node, PointInTime, Term, as_node, both, exactly, opposite
from ..triage.selection import LOOKED_MAX, MatchCount, Selection
from ..triage.timeline import ended_by
from .opening import OpenedStore, at_store
from .revealing import Reveal, reveal_option
from .selecting import here, message_id, note_unread, selector_argument, signature, understood
from .subcommands import Subcommands
from .terminal.output import Column, Output
from .terminal.stderr import note
from .terminal.types import PAST

if TYPE_CHECKING:
    from ..status import Running

STATES = ("ready", "scheduled", "parked", "running", "dead", "quarantine", "done", "cancelled")
_CANCELLED = exactly("reason", "cancelled")
_LANES: dict[str, Node] = {state: exactly("lane", "leased" if state == "running" else state) for state in STATES} | {
    "done": both((exactly("lane", "done"), opposite(_CANCELLED))),
    "cancelled": both((exactly("lane", "done"), _CANCELLED)),
}
_RUNNING = (
    Column("id"),
    Column("task", shrinks=True),
    Column("queue", shrinks=True),
    Column("attempt", spare=1),
    Column("running_s", "running for", lambda value: "not begun" if value is None else seconds(value)),
    Column("worker", shrinks=True),
)
_COLUMNS = (
    Column("id"),
    Column("task", shrinks=True),
    Column("queue", shrinks=True),
    Column("state", None, state_word),
    Column("attempt", spare=1),
    Column("redrives", spare=2),
    Column("due_at"),
)


@click.group(cls=Subcommands)
def job() -> None:
    """Show, list, run and cancel messages."""


body_option = click.option("--body", is_flag=True, help="show a body from blob storage, instead of its reference")


@job.command()
@click.argument("id")
@body_option
@reveal_option()
@at_store()
def show(opened: OpenedStore, out: Output, id: str, body: bool, reveal: Reveal) -> None:
    """Show a message: its error, why it waits or died, its body, its life, and the next commands.

    If the message was done within the last hour, it shows when, where and for how long it ran. Secrets are hidden,
    unless --reveal is given. -v shows all fields and faults.
    """
    id = message_id(opened, id)
    if opened.store.find([id])[0] is None and (done := done_of(opened.store, id)) is not None:
        text = f"{id}: {done_text(done, opened.store.now_ms())}"
        out.record(done_record(done), id="id", table=lambda: [text])
        return
    message = message_of(opened, id)
    reveal.of(opened, out, ids=[message.id])
    write_message(opened, out, message, body=body)


def message_of(opened: OpenedStore, id: str) -> Message:
    """Return the message with this id, whole or shortened. Raises Failure if there is none, which says who removed the
    message if the audit log has that."""
    id = message_id(opened, id)
    message = opened.store.find([id])[0]
    if message is None:
        raise _gone(opened, id)
    return message


def _gone(opened: OpenedStore, id: str) -> Failure:
    entry = ended_by(opened.store, id)
    if entry is None:
        why = "the id is wrong, or the message is done: done messages are deleted"
        if opened.store.traits.cancels and not opened.store.traits.finds:
            why = "the id is wrong, or the message is done: neither a record nor the triage store knows it"
            return Failure(f"there is no message {id} in {opened.url}", why, onward("dlq list"))
        if not opened.store.traits.finds:
            why = "it does not rest: SQS can look up nothing that waits or runs, and done messages are deleted"
            return Failure(f"there is no message {id} in the triage store", why, onward("dlq list"))
        return Failure(f"there is no message {id} in {opened.url}", why, onward("job list"))
    why = f"{entry.reason} ({entry.who}, {timestamp(entry.at_ms)})"
    if entry.action == "edit":
        new = entry.ids[1]
        return Failure(f"message {id} was edited: {new} took its place", why, onward(f"job show {typed(new)}"))
    return Failure(f"message {id} was discarded", why, onward(f"dlq audit --id {typed(id)}"))


def write_message(opened: OpenedStore, out: Output, message: Message, *, body: bool = False) -> None:
    """Write a message to stdout. `body`: read its body from the blob, if it has one."""
    from ..present.detail import message_detail

    now_ms = opened.store.now_ms()
    record, holds, _ = message_detail(opened.store, opened.app, message, now_ms)
    if body and message.content != ABSENT:
        record["body"] = body_json(whole_body(opened.store, message))
    why = holds_text(holds, now_ms)
    out.record(record, id="id", table=lambda: story(out.hidden(record), out, why=why))


@job.command("list")
@selector_argument
@click.option("-q", "--queue", help="only messages of this queue")
@click.option("--task", help="only messages of this task")
@click.option("--state", type=click.Choice(STATES), help="only messages in this state")
@click.option("--since", type=PAST, help="only messages done, dead or enqueued since this time: 6h, or a time")
@click.option("--until", type=PAST, help="only messages done, dead or enqueued before this time")
@click.option("--limit", type=click.IntRange(0), help="how many (default: 50 in a table, else all; 0: all)")
@click.option("--count", "counts", is_flag=True, help="print the number of matches, if it can be known")
@click.option(
    "--look",
    type=click.IntRange(0),
    help="stop after this many that do not match (default: 20,000 for a table or a count, else all; 0: all)",
)
@at_store()
def list_(
    opened: OpenedStore,
    out: Output,
    selector: tuple[str, ...],
    queue: str | None,
    task: str | None,
    state: str | None,
    since: int | None,
    until: int | None,
    limit: int | None,
    counts: bool,
    look: int | None,
) -> int:
    """List messages: running and waiting ones by queue, then dead, quarantined and done ones by the time of their end.

    `--state running` lists running messages, the longest first: for how long they run, and in which worker. A worker
    reports the first hundred messages that it holds.

    SELECTOR says which ones, in any state: `'key:order-7'`, `'lane:scheduled due:<6h args.tenant:acme'`. A bare word
    is searched in ids, keys, correlation ids, faults and arguments: `job list acme`.
    """
    from ..status import running_of, worker_reports

    with understood():
        node = both([as_node(Filter(queue=queue, task=task)), parse(" ".join(selector))])
    times = [(op, ms) for op, ms in ((">=", since), ("<", until)) if ms is not None]
    bounds = [Term(SINCE, (PointInTime(op, ms),)) for op, ms in times]
    of_state = [] if state is None else [_LANES[state]]
    with understood():
        matching = Selection(opened.store, both([node, *bounds, *of_state]), app=opened.app, every=True)
    most = look if look is not None else LOOKED_MAX if counts or out.is_table else 0
    if counts:
        return _write_count(out, matching.counted(*((most,) if most else (sys.maxsize, math.inf))))
    if most:
        matching.bounded(most)
    runs = running_of(worker_reports(opened.store)) if state in (None, "running") else {}
    chosen: Iterator[dict[str, Any]] = (_row(message, runs, matching.now_ms) for message in matching)
    if state == "running":
        chosen = iter(sorted(chosen, key=lambda row: (row["running_s"] is None, -(row["running_s"] or 0))))
    first = next(chosen, None)
    if first is None and not matching.cut:
        here(opened).preflight(node)
    columns = _RUNNING if state == "running" else _COLUMNS
    none = not out.rows(chain(() if first is None else (first,), chosen), columns, id="id", limit=limit)
    if matching.cut:
        more = completed("--look", "0")
        note(f"looked at the first {matching.looked:,} only; narrow it by queue: or id:, or look at all: {more}")
    elif none:
        note(f"no message in {opened.url} matches; {onward('queue list')} counts what is there")
    note_unread(matching)
    return DONE


def _write_count(out: Output, counted: MatchCount) -> int:
    """Write the number of messages, or how many were looked at. Exits 5 if that was not enough to count."""
    out.record({**asdict(counted), "text": str(counted)}, table=lambda: [str(counted)])
    return DONE if counted.count is not None else PARTIAL


def _row(message: Message, runs: Mapping[str, Running], now_ms: int) -> dict[str, Any]:
    """Return a message as a row, with the worker that runs it, if any."""
    running = running_record(runs.get(message.id), now_ms) or {"since": None, "for_s": None}
    return {
        **message_row(message, now_ms),
        "worker": message.worker if message.lane is Lane.LEASED else None,
        "running_since": running["since"],
        "running_s": running["for_s"],
    }


@job.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@signature(required=False)
@at_store()
def run(opened: OpenedStore, out: Output, ids: tuple[str, ...], actor: str | None, reason: str) -> int:
    """Make waiting messages due now: those that wait after a failure, for a delay or for a schedule.

    Prints for each: due, held (by a pause, a group or flow control, which stay), running, too_late (it is dead or done)
    or unknown. Attempts and history stay. Exit 5 if some are neither due nor running, 1 if none is.
    """
    from ..status import run_now

    ids = tuple(message_id(opened, id) for id in ids)
    answers = run_now(opened.store, opened.app, ids, actor=actor, reason=reason)
    rows = [
        {
            "id": answer.id,
            "result": answer.result,
            "was_due_at": timestamp(answer.was_due_ms),
            "text": answer.text,
            "held": [hold_record(hold) for hold in answer.holds],
        }
        for answer in answers
    ]
    out.rows(rows, (Column("id"), Column("result"), Column("text", shrinks=True)), id="id", limit=0)
    results = {answer.result for answer in answers}
    if results == {"unknown"}:
        raise Failure("no message was made due: none has that id", answers[0].text, onward("job list"), FAILED)
    if held := next((answer.holds[0] for answer in answers if answer.holds and answer.holds[0].next), None):
        note(f"held: {onward(held.next)}")
    if "too_late" in results:
        note(f"at rest: {onward('dlq retry ID')} sends dead ones back")
    went = sum(answer.result in ("due", "running") for answer in answers)
    return DONE if went == len(ids) else PARTIAL if went else FAILED


@job.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID…")
@click.option("--kill", is_flag=True, help="kill the child process of an isolated run")
@signature(required=False)
@at_store()
def cancel(opened: OpenedStore, out: Output, ids: tuple[str, ...], kill: bool, actor: str | None, reason: str) -> int:
    """Cancel messages that wait, and ask running ones to stop.

    Prints for each: cancelled, requested (it runs, and is notified within a third of its lease), too_late (it is dead
    or done) or unknown.

    With `--kill`, a handler that runs isolated, in a child process, is killed half a second after the request. Other
    handlers end only if they check for it, or with their worker.
    """
    from ..status import running_of, worker_reports
    from ..triage.pauses import cancel

    ids = tuple(message_id(opened, id) for id in ids)
    results = cancel(opened.store, ids, kill=kill, actor=actor, reason=reason)
    runs = running_of(worker_reports(opened.store)) if Cancel.REQUESTED in results else {}
    rows = [{"id": id, "result": str(result)} for id, result in zip(ids, results, strict=True)]
    out.rows(rows, (Column("id"), Column("result")), id="id", limit=0)
    if set(results) == {Cancel.UNKNOWN}:
        why = "an id is wrong, or its message is done: done messages are deleted"
        raise Failure("no message was cancelled: none has that id", why, onward("job list"), FAILED)
    worked = sum(result in (Cancel.CANCELLED, Cancel.REQUESTED) for result in results)
    for id, result in zip(ids, results, strict=True):
        if result is Cancel.REQUESTED and (run := runs.get(id)) is not None and (kill or run.hung):
            note(f"{id}: {run.end}")
    if Cancel.TOO_LATE in results:
        note(f"too late: the message is at rest; {onward('dlq list')} shows dead ones")
    return DONE if worked == len(ids) else PARTIAL if worked else FAILED
