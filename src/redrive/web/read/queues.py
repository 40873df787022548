"""Queues: their depths, workers and upcoming messages."""

from __future__ import annotations

from typing import Any

from ...duration import show
from ...errors import Unsupported
from ...message import Counts
from ...policy.retry import Retry
from ...presence import with_claimed
from ...present.forecasts import queue_forecast_record
from ...present.workers import worker_record
from ...simulate import forecast_queue
from ...status import HOUR_S, MINUTE_S, TEN_S, Reasons, Status, Wave, worker_reports
from ..ask import PageRequest, Problem, Record
from . import fields

PAST_MAX = 20  # the most queues of the list whose last hour is read
QUEUES_SHOWN = 100  # number of queues on a page
GROUPS_MAX = 100


def queues(ask: PageRequest) -> Record:
    """Return a page of queues with lanes, last hour and holds, by the age of their oldest due message."""
    kept = ask.status()
    hours = ask.kept("hours", lambda: _hours(ask, kept.value)).value
    every, number = kept.value.queues, ask.number("page", 1, least=1)
    rows = []
    for each in every[(number - 1) * QUEUES_SHOWN : number * QUEUES_SHOWN]:
        row = fields.queue(ask, each.name, each.counts, paused=each.paused, holds=each.holds)
        rows.append(row | {"past": hours.get(each.name)})
    return {
        "queues": rows,
        "number": number,
        "pages": -(-len(every) // QUEUES_SHOWN),
        "queue_count": len(every),
        "unread": kept.value.unread,
        "age_s": kept.age_s,
        "command": ask.command("queue", "list"),
    }


def _hours(ask: PageRequest, status: Status) -> dict[str, Record]:
    """Return the last hour of the first PAST_MAX queues of the status, by their names."""
    read = {each.name: fields.past(ask, each.name, back="1h") for each in status.queues[:PAST_MAX]}
    return {name: _short(past) for name, past in read.items() if not past["missing"]}


def _short(past: Record) -> Record:
    """Return the last hour of a queue: runs by five minutes, messages a second, and the retry ratio."""
    total = past["total"]
    return {
        "runs": fields.runs_of(past),
        "in_per_s": sum(past["enqueued"]) / 3600,
        "out_per_s": total["done"] / 3600,
        "retry_ratio": total["retry_ratio"],
        "wait_p95_ms": total["wait"]["p95_ms"],
    }


def queue(ask: PageRequest) -> Record:
    """Return one queue: lanes, history, workers, policy, groups and upcoming messages."""
    name = ask.path["queue"]
    store = ask.store
    counts = store.counts(name)
    declared = ask.registry.queues.get(name) if ask.registry is not None else None
    tasks = [task for task in ask.registry.tasks.values() if task.queue == name] if ask.registry is not None else []
    if counts == Counts() and declared is None and not tasks and name not in store.queues():
        raise Problem(f"there is no queue {name!r}", "nothing was ever enqueued in it, and no task names it", "", 404)
    workers = _workers(ask, name)
    counts = with_claimed({name: counts}, worker_reports(store))[name]
    held = ask.kept(f"held/{name}", lambda: Reasons(store, ask.registry).of_queue(name, counts))
    return {
        **fields.queue(ask, name, counts, paused=name in store.paused(), holds=held.value),
        "past": fields.past_and_before(ask, fields.span(ask), queue=name),
        "sinces": list(fields.SINCE),
        "workers": workers,
        "concurrency": sum(worker["queues"][name]["concurrency"] for worker in workers),
        "held_count": sum(worker["queues"][name]["held"] for worker in workers),
        "declared": None if declared is None else _declared(declared),
        "tasks": [
            {"task": task.name, "retry": _retries(task.policy.retry), "timeout_s": task.policy.timeout_s}
            for task in tasks
        ],
        "groups": _groups(ask, name),
        "forecast": queue_forecast_record(
            ask.kept(f"forecast/queue/{name}", lambda: forecast_queue(store, name)).value
        ),
        "wave": _wave(ask, name),
        "command": ask.command("upcoming", name),
    }


def _retries(retry: Retry) -> str:
    """Return the limits of a retry policy in a few words."""
    attempts = f"{retry.max_attempts} attempts" if retry.max_attempts else "attempts without a bound"
    elapsed = f" within {show(retry.max_elapsed)}" if retry.max_elapsed else ""
    return f"{attempts}{elapsed}"


def _workers(ask: PageRequest, name: str) -> list[Record]:
    try:
        alive = [info for info in ask.app.workers() if not info.gone]
    except Unsupported:
        return []
    rows = [worker_record(info) for info in alive]
    return [row for row in rows if name in row["queues"]]


def _declared(queue: Any) -> Record:
    names = ("concurrency", "weight", "group_width", "group_order", "on_dead", "retry_share")
    return {name: None if (value := getattr(queue, name)) is None else str(value) for name in names}


def _groups(ask: PageRequest, name: str) -> list[Record]:
    """Return groups of the queue, up to GROUPS_MAX: blocked ones first, then those with the most parked messages."""
    try:
        groups = ask.store.groups(name)
    except Unsupported:
        return []
    first = sorted(groups, key=lambda group: (group.blocked_by is None, -group.parked, group.name))[:GROUPS_MAX]
    names = ("name", "width", "taken", "parked", "blocked_by")
    return [{name: getattr(group, name) for name in names} for group in first]


def _wave(ask: PageRequest, name: str) -> Record:
    """Return the queue's upcoming messages, counted for each ten seconds, minute and hour."""
    try:
        kept = ask.kept(f"upcoming/{name}", lambda: ask.app.upcoming(name))
    except Unsupported as error:
        return {"missing": str(error), "spans": []}
    found = kept.value
    spans = (("the next 10 minutes", TEN_S, found.tens), ("the next hour", MINUTE_S, found.minutes),
             ("the next day", HOUR_S, found.hours))  # fmt: skip
    return {
        "missing": None,
        "age_s": kept.age_s,
        "spans": [_span(name, step_s, waves) for name, step_s, waves in spans],
    }


def _span(name: str, step_s: int, waves: tuple[Wave, ...]) -> Record:
    return {
        "name": name,
        "step_s": step_s,
        "times": [show(n * step_s) for n in range(1, len(waves) + 1)],
        "first": [wave.first for wave in waves],
        "retries": [wave.retries for wave in waves],
        "all": sum(wave.all for wave in waves),
        "exact": all(wave.exact for wave in waves),
    }
