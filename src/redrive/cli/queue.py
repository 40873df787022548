"""`redrive queue`: list, show, pause, resume and purge queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..errors import near_miss
from ..history import done_by_queue
from ..message import Counts, Filter
from ..present.commands import onward, program
from ..present.failure import DONE, FAILED, Failure
from ..present.forecasts import queue_forecast_record
from ..present.formats import seconds, state_word
from ..present.holds import hold_record
from ..present.queues import LANES, queue_record
from ..present.table import field_lines
from ..triage.select.terms import as_node
from .opening import OpenedStore, at_store, note_unknown_queues
from .selecting import confirmed, here, signature, stated
from .subcommands import Subcommands
from .terminal.nothing import unknown
from .terminal.output import Column, Output, bar
from .terminal.stderr import note
from .terminal.types import DURATION

if TYPE_CHECKING:
    from ..status import Hold

_COLUMNS = (
    Column("queue", shrinks=True),
    *(Column(lane, state_word(lane)) for lane in LANES[:-1]),
    Column("done_1h", "done 1h"),
    Column("done", "kept"),
    Column("oldest_age_s", "oldest", seconds),
    Column("paused"),
    Column("held", shrinks=True),
)


@click.group(cls=Subcommands)
def queue() -> None:
    """List, show, pause, resume and purge queues."""


@queue.command("list")
@click.option("--limit", type=click.IntRange(0), help="how many (default: 50 in a table, else all; 0: all)")
@at_store()
def list_(opened: OpenedStore, out: Output, limit: int | None) -> None:
    """List queues with the number of messages in each lane.

    `scheduled` counts delayed and retrying messages, `parked` those in line for a place in their group. `oldest` is the
    time since the oldest waiting message was due. On SQS a retry that waits hidden counts as running, and the age of
    the oldest message is unknown.

    `done 1h` counts the messages done within the last hour, `kept` the done messages that are kept (keep_result=).

    `held` says what keeps waiting messages from running, of the first 200: a pause, a breaker, a rate, no worker, …
    """
    from ..presence import with_claimed
    from ..status import Reasons
    from .dlq.sqs import note_outside

    paused, declared = opened.store.paused(), opened.declared_queues
    by_queue = dict.fromkeys(declared, Counts())
    # An SQS FIFO queue has two names, with the suffix and without: list it under the declared one.
    by_queue |= {name: opened.store.counts(name) for name in declared if name.endswith(".fifo")}
    by_queue |= opened.store.counts_by_queue()
    done = done_by_queue(opened.store)
    by_queue = {name: Counts() for name, count in done.items() if count} | by_queue
    reasons, full = Reasons(opened.store, opened.app), out.form in ("json", "jsonl")
    by_queue = with_claimed(by_queue, reasons.workers)
    holds = reasons.of_queues(by_queue)
    shown_ms = reasons.now_ms
    rows = [
        _row(name, counts, name in paused, holds[name], shown_ms, full)
        | ({} if full else {"done_1h": done.get(name, 0)})  # the shape of a queue in JSON is that of all pages
        for name, counts in sorted(by_queue.items())
    ]
    rare = {name for name in ("parked", "done", "held") if out.is_table and not any(row[name] for row in rows)}
    shown = tuple(column for column in _COLUMNS if column.name not in rare)
    count = out.rows(rows, shown, id="queue", limit=limit)
    if not count:
        note(f"no queues: nothing was ever enqueued in {opened.url}")
    if reasons.unread:
        note(f"what holds the messages of {reasons.unread:,} queues was not read, only of those that wait longest")
    note_outside(opened)


def _row(name: str, counts: Counts, paused: bool, holds: Sequence[Hold], now_ms: int, full: bool) -> dict[str, Any]:
    """Return a queue as a row, with its holds: as records if `full`, else as text."""
    held = list(map(hold_record, holds)) if full else "; ".join(hold.short(now_ms) for hold in holds)
    return queue_record(name, counts, paused=paused, held=held)


@queue.command()
@click.argument("name", metavar="QUEUE")
@at_store()
def show(opened: OpenedStore, out: Output, name: str) -> None:
    """Show a queue: its messages by lane, what holds them, and when its backlog is gone.

    The forecast divides the number of waiting messages, scheduled ones too, by the rate at which the queue shrank in
    the last five minutes.
    """
    from ..simulate import forecast_queue
    from ..status import Reasons

    if name not in (known := here(opened).queues()) and name not in opened.declared_queues:
        raise unknown("queue", name, sorted(known), opened.url, look="queue list")
    counts, reasons = opened.store.counts(name), Reasons(opened.store, opened.app)
    holds = reasons.of_queue(name, counts)
    record = _row(name, counts, name in opened.store.paused(), holds, reasons.now_ms, full=True)
    record["forecast"] = queue_forecast_record(forecast_queue(opened.store, name))
    shown = {lane: value for lane, value in record.items() if lane not in ("held", "forecast")}
    shown["held"] = "; ".join(hold.short(reasons.now_ms) for hold in holds)
    shown["forecast"] = record["forecast"]["words"]
    out.record(record, id="queue", table=lambda: field_lines({k: v for k, v in shown.items() if v not in (None, "")}))


@queue.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE…")
@click.option("--for", "for_", type=DURATION, help="let a worker resume it after this time, such as 2h")
@signature()
@at_store()
def pause(
    opened: OpenedStore, out: Output, names: tuple[str, ...], for_: float | None, reason: str, actor: str | None
) -> None:
    """Stop claiming from queues. Messages that run continue, others wait."""
    _set(opened, out, names, paused=True, reason=reason, actor=actor, for_=for_)


@queue.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE…")
@signature(required=False)
@at_store()
def resume(opened: OpenedStore, out: Output, names: tuple[str, ...], reason: str, actor: str | None) -> None:
    """Claim from paused queues again."""
    _set(opened, out, names, paused=False, reason=reason, actor=actor)


def _set(
    opened: OpenedStore, out: Output, names: tuple[str, ...], *, paused: bool, reason: str, actor: str | None,
    for_: float | None = None,
) -> None:  # fmt: skip
    from ..triage import pauses

    idle = [] if paused else [name for name in names if name not in opened.store.paused()]
    if idle and not set(idle) & set(here(opened).queues()):
        _refuse_idle(opened, idle[0])
    known = here(opened).queues() if paused else []
    for name in names if paused else ():
        if name not in known and near_miss(name, known):
            raise unknown("queue", name, sorted(known), opened.url, look="queue list")
    note_unknown_queues(opened, names)
    for name in names:
        if paused:
            pauses.pause(opened.store, name, for_=for_, actor=actor, reason=reason)
        else:
            pauses.resume(opened.store, name, actor=actor, reason=reason)
    rows = [{"queue": name, "paused": paused} for name in names]
    out.rows(rows, (Column("queue"), Column("paused")), id="queue", limit=0)


def _refuse_idle(opened: OpenedStore, name: str) -> NoReturn:
    known = here(opened).queues()
    near = near_miss(name, known)
    meant = f"did you mean '{near}'? " if near else ""
    why = f"{meant}paused: {', '.join(opened.store.paused()) or 'none'}"
    raise Failure(f"nothing to resume: there is no queue '{name}' in {opened.url}", why, onward("queue list"))


_PURGED = (Column("queue"), Column("cancelled"), Column("asked_to_stop"), Column("waiting", "still waiting"))


@queue.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE…")
@click.option("--yes", is_flag=True, help="do not ask")
@signature(required=False)
@click.option("--dry-run", is_flag=True, help="show what would be cancelled; change nothing")
@at_store()
def purge(
    opened: OpenedStore, out: Output, names: tuple[str, ...], yes: bool, reason: str, actor: str | None, dry_run: bool
) -> int:
    """Cancel all waiting messages of queues: ready, scheduled and parked ones.

    Running, dead, quarantined and done messages stay, and so do messages enqueued after the command has started.
    Cancelled messages can be shown for 24 hours (`redrive job list --state cancelled`), with who cancelled them and
    why, and take their space as long. Their unique keys are free at once.

    Workers may continue. Messages that they have claimed run to their end; one that is claimed just before it is
    cancelled is asked to stop, as by `redrive job cancel`. `redrive queue pause` avoids that.

    Refused on SQS, where waiting messages cannot be listed. Needs a --reason, except with --dry-run.
    """
    from ..audit import signed
    from ..triage.purge import Purged, admit, purge

    if not dry_run:
        stated(reason)
    actor, reason = signed(actor, reason, "purge", needed=False)
    for name in names:
        admit(opened.store, name)

    names = tuple(dict.fromkeys(names))
    waiting = {name: counts.waiting for name in names for counts in [opened.store.counts(name)]}
    if not any(waiting.values()):
        for name in names:
            here(opened).preflight(as_node(Filter(queue=name)), acts=True)
    if dry_run:
        columns = (Column("queue"), Column("would_cancel"))
        out.rows([{"queue": name, "would_cancel": waiting[name]} for name in names], columns, id="queue", limit=0)
        note("dry run: nothing was cancelled")
        return DONE
    if not any(waiting.values()):
        raise _nothing_waits(opened, names)
    said = ", ".join(f"{count:,} of queue '{name}'" for name, count in waiting.items())
    if not confirmed(f"Cancel what waits in {opened.url}: {said}?", f"messages wait: {said}", yes):
        note("nothing was cancelled")
        return FAILED
    done: dict[str, Purged] = {}
    with bar(sum(waiting.values()), "cancelling") as tick:
        for name in names:
            done[name] = purge(opened.store, name, actor=actor, reason=reason, tick=tick)
    rows = (
        {"queue": name, "cancelled": of.cancelled, "asked_to_stop": of.asked_to_stop, "waiting": left}
        for name, of in done.items()
        for counts in [opened.store.counts(name)]
        for left in [counts.waiting]
    )
    out.rows(rows, _PURGED, id="queue", limit=0)
    note(f"they can be looked up for 24 hours: {program()} job list --state cancelled")
    return DONE


def _nothing_waits(opened: OpenedStore, names: Sequence[str]) -> Failure:
    there = {name: counts.waiting for name, counts in opened.store.counts_by_queue().items()}
    waiting = ", ".join(f"{name} {count:,}" for name, count in there.items() if count)
    what = f"nothing was cancelled: nothing waits in queue{'s' * (len(names) > 1)} {', '.join(names)}"
    return Failure(what, f"what waits: {waiting}" if waiting else "nothing waits in any queue", onward("queue list"))
