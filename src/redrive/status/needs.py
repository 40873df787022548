"""The needs: what a person has to do, most important first, for `redrive status`, `redrive top`, the pages and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..batch import BatchInfo
from ..history import SloStatus
from ..registry import Registry
from ..triage.auto.machine import Machine
from ..triage.controls import Control
from ..triage.redrive.run import RunView
from .batches import Cause, batch_needs
from .hold import Hold, is_forgotten, words
from .reasons import LOOKED
from .record import NOTE, PAGE, TICKET, Need, Status

_RANKS = {PAGE: 0, TICKET: 1, NOTE: 2}
_UNCARRIED_MS = 10_000  # ms for which an open run may be without a worker before that is a need
_STUCK_MS = 10_000  # ms for which a run may wait for what it is to wait for before that is a need
_STOPPED_MS = 24 * 3_600_000  # ms after its end for which a run that stopped itself is a need
_SEVERE = ("no_worker",)  # kinds of holds that stop all work of a queue


class NeedSources(NamedTuple):
    """The input of `needs_of`. `runs` are open and closed ones; `forced` are dependencies whose breaker a person keeps
    closed."""

    status: Status
    app: Registry | None
    autos: Mapping[str, Machine]
    runs: Sequence[RunView]
    forced: Sequence[Control]
    objectives: Sequence[SloStatus]
    batches: Sequence[BatchInfo]
    causes: Mapping[str, Cause]


def needs_of(seen: NeedSources) -> tuple[Need, ...]:
    """Return the needs, the most important first. Pure."""
    status = seen.status
    needs = [
        *_objectives(seen.objectives),
        *_holds(status),
        *_workers(status),
        *_regressed(status),
        *_dead(status, seen.autos),
        *_held(status),
        *_quarantine(status),
        *batch_needs(seen.batches, status.at_ms, seen.causes),
        *_schedules(status, seen.app),
        *_runs(seen.runs, status.at_ms),
        *_overrides(seen.forced, status.at_ms),
    ]
    return tuple(sorted(needs, key=lambda need: _RANKS[need.severity]))


def _objectives(objectives: Iterable[SloStatus]) -> Iterator[Need]:
    for each in objectives:
        firing = {burn.severity for burn in each.firing}
        if not firing:
            continue
        burn = max(burn.long for burn in each.firing)
        text = f"the objective of {each.kind} {each.name}, {each.slo}, burns {burn:,.1f} times too fast"
        text += f"; {each.budget_left:.0%} of its budget is left"
        place = ("queues", each.name) if each.kind == "queue" else ("policies",)
        severity = PAGE if PAGE in firing else TICKET
        yield Need(
            area="objectives", text=text, next=words("slo"), severity=severity, about=f"{each.kind}/{each.name}",
            place=place,
        )  # fmt: skip


def _holds(status: Status) -> Iterator[Need]:
    """Yield needs for holds that a person has to end, and for open breakers: one for all keys of a dependency. Those
    that a person forced are none for a while (`is_forgotten`)."""
    open_ones: dict[str, list[Hold]] = {}
    for hold in status.holds:
        if hold.kind == "breaker" and not (hold.needs_person or hold.actor) and hold.until_ms is not None:
            open_ones.setdefault(hold.by.partition("/")[0], []).append(hold)
        elif hold.needs_person:
            yield _need_of(hold)
    for name, some in open_ones.items():
        yield _open(name, some, status)


def _need_of(hold: Hold) -> Need:
    about, place, query = _object(hold)
    severity = NOTE if hold.kind == "pause" or hold.actor else PAGE if hold.kind in _SEVERE else TICKET
    return Need(
        area="held", text=hold.text, next=hold.next, severity=severity, about=about, place=place,
        query=query, since_ms=hold.since_ms, until_ms=hold.until_ms if hold.actor else None, actor=hold.actor,
        reason=hold.reason,
    )  # fmt: skip


def _open(name: str, some: Sequence[Hold], status: Status) -> Need:
    first, one = some[0], len(some) == 1
    text = first.text if one else f"the breakers of {len(some):,} keys of {name} are open"
    since = [hold.since_ms for hold in some if hold.since_ms is not None]
    about, place, query = _object(first) if one else (f"flow/{name}", ("flow", name), {})
    return Need(
        area="held", text=text + _waiting(some, status), next=first.next if one else words("flow", "show", name),
        about=about, place=place, query=query, since_ms=min(since, default=None),
    )  # fmt: skip


def _waiting(some: Sequence[Hold], status: Status) -> str:
    """Return how many messages these holds concern, as text; `at least` if a queue has more than were read."""
    count = sum(hold.count for hold in some)
    if not count:
        return ""
    queues = {hold.queue for hold in some}
    waiting = [each.counts.waiting for each in status.queues if {each.name, ""} & queues]
    least = "at least " if max(waiting, default=0) > LOOKED else ""
    return f"; {least}{count:,} message{'s' * (count > 1)} wait{'s' * (count == 1)} for it"


def _object(hold: Hold) -> tuple[str, tuple[str, ...], Mapping[str, str]]:
    """Return the subject of a hold, and the parts and the query of its page's address."""
    match hold.kind:
        case "breaker" | "cool-down" | "budget" | "rate" | "ramp" | "concurrency":
            name, _, key = hold.by.partition("/")
            return f"flow/{hold.by}", ("flow", name), {"key": key} if key else {}
        case "pause" | "no_worker" | "group":
            return f"queue/{hold.queue or hold.by}", ("queues", hold.queue or hold.by), {}
        case "task_pause":
            return f"task/{hold.by}", ("policies",), {"task": hold.by}
        case "no_task" | "no_key":
            return f"task/{hold.by}", ("messages",), {"task": hold.by, "state": "any"}
        case _ if not hold.queue:
            return "queues", ("queues",), {}
        case _:
            return f"queue/{hold.queue}", ("queues", hold.queue), {}


def _workers(status: Status) -> Iterator[Need]:
    """Yield needs for workers that are hung, gone, or do not report themselves."""
    for worker in status.workers:
        report, hung = worker.report, worker.report.hung
        if worker.state == "gone":
            text = f"worker {worker.name} is gone: it told nothing any more, and did not end by itself"
            held = f"; {report.held:,} of its messages were not taken over yet" if report.held else ""
            yield Need(
                area="workers", text=text + held, next=words("workers"), severity=TICKET if report.held else NOTE,
                about=f"worker/{worker.name}", place=("workers",), since_ms=report.seen_ms,
            )  # fmt: skip
        elif hung is not None:
            next = words("job", "show", hung.id) if hung.id else words("workers", "-v")
            yield Need(
                area="workers", text=hung.text(worker.name), next=next, severity=PAGE,
                about=f"worker/{worker.name}", place=("workers",), since_ms=hung.since_ms,
            )  # fmt: skip


def _dead(status: Status, autos: Mapping[str, Machine]) -> Iterator[Need]:
    """Yield the need for dead messages that no rule, mute or automatic redrive covers."""
    left = groups = known = 0
    for group in status.failures:
        about = status.annotations.get(group.fingerprint)
        if about is not None and (about.rule is not None or about.muted(status.at_ms)):
            known += group.count
            continue
        count = group.count - status.held.get((group.fingerprint, group.task), 0)
        left, groups = left + count, groups + (count > 0)
    driven = sum(
        queue.counts.dead
        for queue in status.queues
        if (machine := autos.get(f"queue/{queue.name}")) is not None and machine.phase not in ("paused", "ended")
    )
    if left > driven:
        left += sum(status.dead_by_task.values()) - sum(group.count for group in status.failures)
        groups += max(0, status.group_count - len(status.failures))  # whose rules and mutes were not read
        text = f"{_messages(left)} dead, in {groups:,} failure group{'s' * (groups > 1)}"
        text += f"; muted or under a rule: {known:,} more" if known else ""
        yield Need(area="failures", text=text, next=words("dlq", "groups"), place=("groups",))


def _regressed(status: Status) -> Iterator[Need]:
    """Yield a need for each group that died again after a person resolved it."""
    for fingerprint, about in status.annotations.items():
        if about.state.word == "regressed" and not about.into and not about.muted(status.at_ms):
            yield Need(
                area="failures", text=f"failure group {fingerprint} {about.state.story}",
                next=words("dlq", "group", fingerprint), about=fingerprint, place=("groups", fingerprint),
                since_ms=about.state.regressed_ms,
            )  # fmt: skip


def _held(status: Status) -> Iterator[Need]:
    """Yield the need for messages whose retries are used up, and about which a person is to decide."""
    if count := sum(status.held.values()):
        text, query = f"{_messages(count)} held for a person, who retries, edits or discards", {"q": "reason:held"}
        yield Need(
            area="failures", text=text, next=words("dlq", "list", "reason:held"), place=("messages",), query=query
        )


def _quarantine(status: Status) -> Iterator[Need]:
    quarantined = sum(queue.counts.quarantine for queue in status.queues)
    if quarantined:
        text, query = f"{_messages(quarantined)} in quarantine", {"q": "lane:quarantine"}
        next = words("dlq", "list", "lane:quarantine")
        yield Need(area="queues", text=text, next=next, place=("messages",), query=query)


def _schedules(status: Status, app: Registry | None) -> Iterator[Need]:
    for schedule in status.schedules:
        if schedule.is_late:
            why = "no scheduler runs" if schedule.unattended else "late are the ticks of"
            next = words("scheduler", *((app.spec,) if app is not None and app.spec else ()))
            text, about = f"{why} schedule {schedule.name}", f"schedule/{schedule.name}"
            yield Need(area="schedules", text=text, next=next, about=about, place=("schedules",))


def _runs(runs: Sequence[RunView], now_ms: int) -> Iterator[Need]:
    """Yield needs for runs that wait for a person, and for stopped runs that no later one replaced."""
    last = {run.selector: run.started_ms for run in sorted(runs, key=lambda run: run.started_ms)}
    for run in runs:
        name, about, place = words(run.id), f"run/{run.id}", ("runs", run.id)
        since_ms: int | None = None
        if run.state == "stopped":
            if now_ms - run.over_ms > _STOPPED_MS or last[run.selector] > run.started_ms or run.returned:
                continue
            text, next, since_ms = f"redrive run {run.id} stopped itself: {run.why}", "show", run.over_ms
        elif run.closed:
            continue
        elif run.state == "paused":
            text, next = f"redrive run {run.id} is paused" + (f": {run.why}" if run.why else ""), "show"
        elif "approval" in run.why:
            text, next, since_ms = f"redrive run {run.id}: {run.why}", "approve", run.started_ms
        elif not run.carried_by and now_ms - run.started_ms > _UNCARRIED_MS:
            text, next = f"redrive run {run.id} is open, and no worker carries it", "show"
        elif run.is_outside_window:
            continue  # on purpose, and it ends by itself
        elif run.why and run.still_ms and now_ms - run.still_ms >= _STUCK_MS:
            text, next, since_ms = f"redrive run {run.id} moves nothing: {run.why}", "show", run.still_ms
        else:
            continue
        yield Need(
            area="runs", text=text, next=f"run {next} {name}", about=about, place=place, since_ms=since_ms,
            severity=NOTE if run.state == "paused" else TICKET, actor=run.actor, reason=run.reason,
        )  # fmt: skip


def _overrides(controls: Iterable[Control], now_ms: int) -> Iterator[Need]:
    """Yield needs for breakers that a person keeps closed and may have forgotten, as they protect nothing."""
    for control in controls:
        if not is_forgotten(control.since_ms, control.until_ms, now_ms):
            continue
        last = next((each for each in reversed(control.transitions) if each.actor), None)
        actor, reason = ("", "") if last is None else (last.actor, last.reason)
        text = f"the breaker of {control.name} is held closed" + (f" by {actor}: {reason}" if actor else "")
        text += "; calls go through, whatever fails"
        release = words("flow", "set", control.name, "--breaker", "auto", "--reason", "…")
        yield Need(
            area="held", text=text, next=release, severity=NOTE, about=f"flow/{control.name}",
            place=("flow", control.name), since_ms=control.since_ms, until_ms=control.until_ms, actor=actor,
            reason=reason,
        )  # fmt: skip


def _messages(count: int) -> str:
    return f"{count:,} message{'s are' if count > 1 else ' is'}"
