"""Plans: choose the messages and the options of a redrive, and review a frozen plan before it is applied."""

from __future__ import annotations

import sys
from collections import Counter

import msgspec

from ...duration import milliseconds, show
from ...errors import Misread, PlanRefused, Unsupported
from ...message import UNREADABLE, decoded
from ...present.forecasts import plan_forecast_record, score_words
from ...present.formats import timestamp
from ...present.groups import task_group_record
from ...present.plans import plan_record
from ...present.runs import run_record
from ...simulate import PlanForecast, forecast_plan, foretold, read_score
from ...triage.lanes import of_waiting
from ...triage.lookup import run_ids
from ...triage.redrive.options import OPTIONS, OptionKind, PlanOption, settings_words
from ...triage.redrive.pacing import MAX_PER_S, STEP_MS
from ...triage.redrive.plan import MAX_AGE, PlanHandle
from ...triage.redrive.records import Plan, decode_state, plan_cell, recent_plans, state_cell, state_of
from ...triage.selection import Selection
from ..ask import PageRequest, Problem, Record
from . import fields
from .selecting import COUNTED_MAX, at_rest, completions, failure_groups, mistake, plannable
from .waiting import counts_by_queue

GROUPS, PLANS = 10, 20  # the most rows of the tables of groups and of plans
QUEUES_MAX = 20  # the most queues, or tasks, whose messages are counted one by one
LOADED_MAX = 10  # the most queues whose load is predicted
SCANNED_S = 2.0  # the most seconds in which messages are counted if no index can count them
APPLIED_WITHIN_MS = milliseconds(MAX_AGE, "max_age")
LIVE_S = 300  # seconds of history from which the load is predicted


def missing(ask: PageRequest, what: str) -> str | None:
    """Return how to enable shared state, without which `what` are not kept; None if the store has shared state."""
    return None if ask.store.traits.cells else f"{what} are not kept: name cells= in the store's URL"


def planning(ask: PageRequest) -> Record:
    """Return the number of a selector's messages and the form of a plan; without a selector, groups to redrive."""
    words, selection, wrong = ask.text("q"), None, None
    if words:
        try:
            selection = plannable(ask, words)
        except Misread as error:
            wrong = mistake(error)
    return {
        "q": words,
        "mistake": wrong,
        "missing": missing(ask, "Plans"),
        "matching": None if selection is None else _matching(ask, selection),
        "filled": {name: ask.text(name) for name in ("approval", "window", "note")},
        "options": [_option(ask, option) for option in OPTIONS],
        "groups": [] if selection is not None else [task_group_record(group) for group in failure_groups(ask)[:GROUPS]],
        "plans": recent(ask),
        "completions": completions(ask),
        "command": ask.command("dlq", "plan", *([words] if selection is not None else [])),
    }


def _option(ask: PageRequest, option: PlanOption) -> Record:
    """Return an option of a plan as a record for the form, with its current value."""
    if option.kind in (OptionKind.FLAG, OptionKind.SWITCH):
        default = "on" if option.default else "off"
    else:
        default = "" if option.default in (None, 0) else str(option.default)
    return {
        "name": option.name, "kind": option.kind.value, "label": option.label, "group": option.group,
        "hint": option.hint, "value": ask.text(option.name, default),
    }  # fmt: skip


def recent(ask: PageRequest) -> list[Record]:
    """Return recent plans as records, with their states. Raises StoreError."""
    cells = ask.store.cells
    ids = recent_plans(cells)[:PLANS]
    plans, states = cells.read([*map(plan_cell, ids)]), cells.read([*map(state_cell, ids)])
    rows = []
    for cell, state in zip(plans, (decoded(state, decode_state, None) for state in states), strict=True):
        if cell is None:
            continue  # the plan has expired
        try:
            plan = msgspec.json.decode(cell.value, type=Plan)
        except UNREADABLE:
            continue  # the plan's own page reports that it was altered
        rows.append(
            {
                "id": plan.id,
                "selector": plan.selector,
                "total": plan.total,
                "made_at": timestamp(plan.made_ms),
                "note": plan.settings.note or None,
                "run": None if state is None else str(state.status),
            }
        )
    return rows


def _matching(ask: PageRequest, selection: Selection) -> Record:
    """Return how many messages match, in all and by queue and task. `count` is None while a thread still counts."""
    few = at_rest(ask) <= COUNTED_MAX and not of_waiting(selection.node)
    keep = ask.kept if few else ask.kept_soon
    counted = keep(f"plan/{selection}", lambda: _counted(ask, selection))
    if counted is None:
        return {"count": None, "whole": False, "by_queue": {}, "by_task": {}, "age_s": 0.0}
    return {**counted.value, "age_s": counted.age_s}


def _counted(ask: PageRequest, selection: Selection) -> Record:
    return _by_index(ask, selection) if selection.indexed else _by_reading(ask, selection)


def _by_index(ask: PageRequest, selection: Selection) -> Record:
    by_task: Counter[str] = Counter()
    for group in selection.groups():
        by_task[group.task] += group.count
    return _sums(Counter(_of_queues(ask, selection)), by_task, whole=True)


def _of_queues(ask: PageRequest, selection: Selection) -> dict[str, int]:
    """Return how many messages match in each queue; empty if there are too many queues, or no index to count by."""
    by, named = ask.store.traits.groups_by, selection.where.queue
    if named is None:
        queues = [name for name, counts in counts_by_queue(ask).value.items() if counts.dead]
    else:
        queues = [named] if isinstance(named, str) else [*named]
    if len(queues) > QUEUES_MAX or (by is not None and "queue" not in by):
        return {}
    return {name: selection.count_in(name) for name in queues}


def _by_reading(ask: PageRequest, selection: Selection) -> Record:
    """Count the matching messages by reading them; `whole` is False if SCANNED_S was not enough to read all."""
    by_queue: Counter[str] = Counter()
    by_task: Counter[str] = Counter()
    read = Selection(ask.store, selection.node, selection.now_ms).bounded(sys.maxsize, SCANNED_S)
    for message in read:
        by_queue[message.queue] += 1
        by_task[message.task] += 1
    return _sums(by_queue, by_task, whole=not read.cut)


def _sums(by_queue: Counter[str], by_task: Counter[str], *, whole: bool) -> Record:
    return {
        "count": by_task.total(),
        "whole": whole,
        "by_queue": {name: count for name, count in by_queue.most_common(QUEUES_MAX) if count},
        "by_task": dict(by_task.most_common(QUEUES_MAX)),
    }


def handle_of(ask: PageRequest, given: str) -> PlanHandle:
    """Return the plan whose id is `given`, or the only one whose id begins so. Raises Problem if there is none."""
    ids = run_ids(ask.store, given).found
    try:
        return ask.dlq.plan(ids[0] if len(ids) == 1 else given)
    except PlanRefused as error:
        raise Problem(error.what, error.why, "", 404 if error.word == "unknown" else 409) from error


def plan(ask: PageRequest) -> Record:
    """Return a frozen plan: its messages, pace and holds, the current load, and whether it can be applied."""
    handle = handle_of(ask, ask.path["id"])
    made = handle.plan
    word, why = _state(ask, handle)
    applied = state_of(ask.store, made.id) is not None
    rate = peak_per_s(made)
    return {
        **plan_record(made),
        "state": "applied" if applied else word,
        "why": "" if applied else why,
        "run": _run(ask, made.id) if applied else None,
        "expires_at": timestamp(made.made_ms + APPLIED_WITHIN_MS),
        "how": list(settings_words(made.settings)),
        "kind": made.settings.kind,
        "peak_per_s": rate,
        "load": _load(ask, made, rate),
        "held": [] if applied else _held(ask, made),
        "forecast": plan_forecast_record(_forecast(ask, handle)),
        "score": ask.kept("forecast-score", lambda: score_words(read_score(ask.store))).value,
        "command": ask.command("dlq", "apply", made.id, "--reason", made.settings.note or "…"),
    }


def _forecast(ask: PageRequest, handle: PlanHandle) -> PlanForecast | None:
    """Return the forecast that was kept with the plan, or one made now, which is cached and not kept."""
    if (kept := foretold(ask.store, handle.id)) is not None:
        return kept
    return ask.kept(f"forecast/{handle.id}", lambda: forecast_plan(ask.store, ask.registry, handle.plan)).value


def _state(ask: PageRequest, handle: PlanHandle) -> tuple[str, str]:
    """Return the state of a plan in one word, and why it cannot be applied. The plan's age is checked each time. The
    check of its chunks reads them all, so its result is cached (see `sums.py`)."""
    word, why = ask.kept(f"plan-sound/{handle.id}", lambda: _refused(handle)).value
    past_ms = ask.store.now_ms() - handle.plan.made_ms
    if word == "frozen" and past_ms > APPLIED_WITHIN_MS:
        return "expired", f"it was drawn up {show(past_ms / 1000)} ago, and can be applied for {MAX_AGE}"
    return word, why


def _refused(handle: PlanHandle) -> tuple[str, str]:
    try:
        handle.check(reason="to show it", max_age=None)
    except PlanRefused as error:
        return error.word, f"{error.what}; {error.why}"
    return "frozen", ""


def _run(ask: PageRequest, id: str) -> Record:
    return run_record(ask.dlq.run(id).view())


def peak_per_s(made: Plan) -> float:
    """Return the highest rate that the plan's run reaches, in messages a second: with a slow start it may not reach its
    limit."""
    rate, left = made.settings.rate or MAX_PER_S, float(made.total)
    per_s = min(1.0, rate) if made.settings.slow_start else rate
    while per_s < rate and left > per_s * STEP_MS / 1000:
        left -= per_s * STEP_MS / 1000
        per_s = min(rate, per_s * 2)
    return min(per_s, max(1.0, float(made.total)))


def _load(ask: PageRequest, made: Plan, rate: float) -> list[Record]:
    """Return each target queue's runs a second (None without a history), and what the plan adds at this `rate`."""
    target = made.settings.to_queue
    counts = {target: made.total} if target else dict(made.by_queue)
    return [
        {"queue": name, "count": count, "now_per_s": _per_s(ask, name), "added_per_s": rate * count / made.total}
        for name, count in list(counts.items())[:LOADED_MAX]
        if made.total
    ]


def _per_s(ask: PageRequest, queue: str) -> float | None:
    try:
        past = ask.app.history(queue, since=LIVE_S, step=60)
    except Unsupported:
        return None
    span_s = (past.until_ms - past.since_ms) / 1000
    return (past.total.done + past.total.failed) / max(1.0, span_s)


def _held(ask: PageRequest, made: Plan) -> list[Record]:
    """Return the holds that will apply to the plan's messages once they are moved."""
    from ...status import Reasons

    holds = Reasons(ask.store, ask.registry).of_plan(made)
    return [fields.hold(ask, each) for each in holds]
