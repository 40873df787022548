"""`redrive status`: what is going on, and what needs a person."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ...config import runbook_of, web_link
from ...crypto import shown_text
from ...duration import show as show_duration
from ...present.commands import onward, typed
from ...present.failure import DONE, FAILED
from ...present.formats import listed, seconds, state_word, timestamp
from ...present.groups import group_records
from ...present.holds import hold_record
from ...present.queues import LANES, counts_record, lanes_shown, queue_record
from ...present.runs import run_record, run_text
from ...present.schedules import schedule_record
from ...present.status import NEEDS_SHOWN, QUEUES_SHOWN, need_record, schedule_state
from ...present.table import table
from ...present.workers import leased_worker_record
from ...redact import Joined, joined, redact
from ..opening import OpenedStore, at_store
from ..terminal.output import Column, Output

if TYPE_CHECKING:
    from ...message import FailureGroup
    from ...status import Hold, Need, QueueStatus, Status, WorkerStatus

SHOWN = 5  # failure groups, holds and runs that the text lists at most; `-o json` has more
_QUEUES = (
    Column("queue", shrinks=True),
    *(Column(lane, state_word(lane)) for lane in LANES[:-1]),  # without done messages, which need no action
    Column("oldest_age_s", "oldest", seconds),
    Column("held", shrinks=True),
)
_ROWS = (Column("area"), Column("text"), Column("until"), Column("next"))


@click.command()
@at_store()
def status(opened: OpenedStore, out: Output) -> int:
    """Show the state of the store, and problems that need a person; exits 1 if there are any.

    Shows workers, what holds messages back and until when, failures with their whole text, late
    schedules, open redrive runs, and queues by the age of their oldest message. Each entry names the command that leads
    on. With --url alone, tasks, dependencies and schedules are unknown.

    \b
      redrive status --app tasks:app
    """
    from ...status import read_status

    current = read_status(opened.store, opened.app)
    match out.form:
        case "table":
            out.lines(_screen(current, opened, out))
        case "tsv":
            out.rows(_rows(current), _ROWS, limit=0)
        case _:
            out.record(_record(current, opened))
    return DONE if current.ok else FAILED


def _screen(status: Status, opened: OpenedStore, out: Output) -> Iterator[str]:
    """Yield the lines of the status for a terminal: a section for each area that has entries."""
    wide, now_ms = shutil.get_terminal_size((100, 24)).columns, status.at_ms

    def wrapped(text: str, indent: int = 2) -> list[str]:
        space = " " * indent
        lines = redact(text).splitlines() or [""]
        return [
            Joined(part)
            for line in lines
            for part in textwrap.wrap(line, wide, initial_indent=space, subsequent_indent=space) or [""]
        ]

    def leads(words: str, page: str | None = None) -> str:
        return out.dim(f"    {onward(words)}" + (f"\n    {page}" if page else ""))

    count = len(status.needs)
    yield f"{count} thing{'s' * (count != 1)} need{'s' * (count == 1)} a person" if count else "all is well"
    for need in status.needs[:NEEDS_SHOWN]:
        yield from wrapped(need.line(now_ms))
        yield leads(need.next, _page(need))
        if "://" in (runbook := runbook_of(need.area) or ""):
            yield out.dim(f"    {runbook}")
    if count > NEEDS_SHOWN:
        yield f"  {count - NEEDS_SHOWN:,} more"
    if status.unread_batches:
        yield "  only some of the batches were looked at"
        yield leads("batch list --state partial")
    yield from ("", "workers" if status.tell else "workers, by the leases they hold")
    for worker in status.workers:
        yield from wrapped(_worker(worker, now_ms))
    if not status.workers:
        yield "  none is alive" if status.tell else "  none holds a lease; an idle worker is not seen"
    calm = [hold for hold in status.holds if not hold.needs_person]
    if calm:
        yield from ("", "held")
    for hold in calm[:SHOWN]:
        yield from wrapped(_told(hold, now_ms))
        yield leads(hold.next)
    if status.failures:
        yield from ("", "failures")
    for group in status.failures[:SHOWN]:
        ago = show_duration(max(0, now_ms - group.last_ms) / 1000)
        what = f"{group.count:,} × {group.error} in "
        yield from wrapped(joined(what, group.task, f": {group.trend}, the last {ago} ago"))
        yield from wrapped(str(shown_text(group.text) or ""), 4)
        yield leads(_group_next(group), web_link("groups", group.fingerprint))
    yield from _more(status.group_count, "failure groups", "dlq groups", out)
    late = [schedule for schedule in status.schedules if schedule.is_late]
    if late:
        yield from ("", "schedules")
    for schedule in late:
        yield from wrapped(joined(schedule.name, f": {schedule_state(schedule, now_ms)}"))
        yield leads("schedule list")
    if status.runs:
        yield from ("", "redrive runs")
    for run in status.runs[:SHOWN]:
        yield from wrapped(run_text(run))
        yield leads(f"run watch {typed(run.id)}", web_link("runs", run.id))
    yield from _more(len(status.runs), "runs", "run list", out)
    yield from ("", f"queues of {opened.url}")
    rows = [_queue(queue, now_ms) for queue in status.queues[:QUEUES_SHOWN]]
    absent = {*LANES} - {*lanes_shown(rows)}
    columns = tuple(column for column in _QUEUES if column.name not in absent)
    yield from (f"  {line}" for line in (table(rows, columns, wide - 2).lines if rows else ["none"]))
    yield from _more(len(status.queues), "queues", "queue list", out, QUEUES_SHOWN)


def _more(count: int, what: str, words: str, out: Output, shown: int = SHOWN) -> Iterator[str]:
    if count > shown:
        yield f"  {count - shown:,} more {what}"
        yield out.dim(f"    {onward(words)}")


def _told(hold: Hold, now_ms: int) -> str:
    where = f" in queue {hold.queue}" if hold.queue else ""
    return hold.line(now_ms) + (f" ({hold.count:,} wait{'s' * (hold.count == 1)}{where})" if hold.count else "")


def _worker(worker: WorkerStatus, now_ms: int) -> str:
    return joined(worker.name, f": {_works(worker, now_ms)}")


def _works(worker: WorkerStatus, now_ms: int) -> str:
    if worker.state == "gone":
        ago = show_duration(max(0, now_ms - worker.report.seen_ms) // 1000)
        left = f"; {worker.leased:,} still held" if worker.leased else ""
        return f"gone, told {ago} ago; {worker.report.held:,} of its messages not taken over{left}"
    if worker.report.hung is not None:
        for_ = show_duration(max(0, now_ms - worker.report.hung.since_ms) // 1000)
        return f"hung for {for_}, {worker.leased:,} running, {listed(_leased(worker.queues))}"
    if not worker.leased:
        return f"{worker.state}, works {', '.join(worker.queues)}"
    state = "" if worker.state in ("running", "silent", "idle") else f"{worker.state}, "
    return f"{state}{worker.leased:,} running, {listed(_leased(worker.queues))}"


def _leased(queues: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in queues.items() if count}


def _page(need: Need) -> str | None:
    """Return the address of the web page about a need, if the setting `web_url` is set."""
    return web_link(*need.place, **need.query) if need.place else None


def _group_next(group: FailureGroup) -> str:
    return f"dlq list {typed(f'fingerprint:{group.fingerprint}')}"


def _queue(queue: QueueStatus, now_ms: int) -> dict[str, Any]:
    held = "; ".join(hold.short(now_ms) for hold in queue.holds)
    return queue_record(queue.name, queue.counts, paused=queue.paused, held=held)


def _rows(status: Status) -> Iterable[dict[str, Any]]:
    """Yield a row for each entry of the status, for pipes."""
    for need in status.needs[:NEEDS_SHOWN]:
        yield {"area": "needs", "text": need.line(status.at_ms), "next": onward(need.next)}
    for worker in status.workers:
        yield {"area": "worker", "text": _worker(worker, status.at_ms), "until": timestamp(worker.until_ms)}
    for hold in status.holds:
        yield {"area": "held", "text": hold.text, "until": timestamp(hold.until_ms), "next": onward(hold.next)}
    for group in status.failures:
        text = joined(f"{group.count:,} × {group.error} in ", group.task, ": ", str(shown_text(group.text)))
        yield {"area": "failure", "text": text, "next": onward(_group_next(group))}
    for schedule in status.schedules:
        text = joined(schedule.name, f": {schedule_state(schedule, status.at_ms)}")
        yield {"area": "schedule", "text": text, "until": timestamp(schedule.next_ms)}
    for run in status.runs:
        yield {"area": "run", "text": run_text(run), "next": onward(f"run watch {typed(run.id)}")}
    for queue in status.queues[:QUEUES_SHOWN]:
        shown = lanes_shown([counts_record(queue.counts)])[:-1]
        lanes = listed({state_word(lane): getattr(queue.counts, lane) for lane in shown})
        text = joined(queue.name, f": {lanes}; oldest {seconds(queue.counts.oldest_age_s)}")
        yield {"area": "queue", "text": text, "next": onward("queue list")}


def _record(status: Status, opened: OpenedStore) -> dict[str, Any]:
    now_ms, declared = status.at_ms, opened.app.schedules if opened.app is not None else {}
    return {
        "ok": status.ok,
        "at": timestamp(now_ms),
        "url": opened.url,
        "needs": [
            need_record(need, onward(need.next)) | ({"page": page} if (page := _page(need)) else {})
            for need in status.needs[:NEEDS_SHOWN]
        ],
        "need_count": len(status.needs),
        "unread_batches": status.unread_batches,
        "workers": [leased_worker_record(worker) for worker in status.workers],
        "held": [hold_record(hold) for hold in status.holds],
        "failures": [
            record | {"next": onward(_group_next(group))}
            for group, record in zip(
                status.failures, group_records(status.failures, status.annotations, status.held, now_ms), strict=True
            )
        ],
        "schedules": [schedule_record(declared[one.name], one, now_ms) for one in status.schedules],
        "runs": [run_record(run) | {"next": onward(f"run watch {typed(run.id)}")} for run in status.runs],
        "queues": [
            queue_record(queue.name, queue.counts, paused=queue.paused, held=list(map(hold_record, queue.holds)))
            for queue in status.queues[:QUEUES_SHOWN]
        ],
        "queue_count": len(status.queues),
    }
