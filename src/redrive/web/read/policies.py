"""Policies: the delays of each task's retries, and the other rules for its messages."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from ...duration import show
from ...flow.breaker import Breaker
from ...flow.budget import Budget
from ...flow.dependency import Dependency
from ...flow.limits import Rate
from ...observe.muting import dependency_of
from ...policy import KINDS, Retry, presets
from ...policy import preview as preview_of
from ...present.policies import policy_summary, step_record
from ...present.tasks import task_record
from ...triage.task_pauses import task_states
from ..ask import PageRequest, Problem, Record

if TYPE_CHECKING:
    from ...registry import Registry
    from ...task import TaskSpec

SHOWN = 20  # number of tasks on a page
STEPS_MAX = 60  # the most retries that a chart shows


def policies(ask: PageRequest) -> Record:
    """Return the policies of the app's tasks for one kind of fault; without an app, the presets."""
    kind, wanted, after = ask.text("kind", "default"), ask.text("task"), ask.text("after")
    if kind not in KINDS:
        raise Problem(f"there is no kind of fault {kind!r}", f"known: {', '.join(sorted(KINDS))}", status=422)
    app = ask.registry
    if app is None:
        shown = [_delays(name, retry, kind) for name, retry in presets.items()]
        rows, names, more = [{**each, "task": None, "rules": []} for each in shown], [], None
    else:
        names = sorted(name for name in app.tasks if not wanted or wanted in name)
        chosen = list(islice((name for name in names if name > after), SHOWN + 1))
        states = {state.name: task_record(state) for state in task_states(ask.store, app)}
        rows = [policy_of(app, app.tasks[name], kind) | {"state": states[name]} for name in chosen[:SHOWN]]
        more = chosen[SHOWN - 1] if len(chosen) > SHOWN else None
    words = ("policy", "list") if app is None else ("policy", "preview", "--task", rows[0]["task"] if rows else "TASK")
    return {
        "no_app": app is None,
        "pauses": ask.store.traits.skips,
        "kind": kind,
        "kinds": sorted(KINDS),
        "task": wanted,
        "policies": rows,
        "count": len(rows) if app is None else len(names),
        "more_after": more,
        "command": "redrive policy list" if app is None else ask.command(*words),
    }


def policy_of(app: Registry, task: TaskSpec, kind: str) -> Record:
    """Return the delays of a task's retries after faults of this kind, and its other rules."""
    delays = _delays(task.name, task.policy.retry, kind)
    return {**delays, "task": task.name, "queue": task.queue, "rules": _rules(app, task)}


def _delays(name: str, retry: Retry, kind: str) -> Record:
    """Return a policy's delays for a kind of fault, as `redrive policy preview -o json` does."""
    try:
        shown = preview_of(retry, kind=kind, limit=STEPS_MAX)
    except Exception as error:  # the app's own delay function may raise anything
        return {"name": name, "missing": f"{type(error).__name__}: {error}", "steps": []}
    steps = [step_record(step) for step in shown.steps]
    return {**policy_summary(name, shown), "kind": kind, "missing": None, "steps": steps}


def _rules(app: Registry, task: TaskSpec) -> list[Record]:
    """Return the other rules for a task's messages: each with a name, a text, and the address of a page about it."""
    policy, called = task.policy, dependency_of(app, task.name)
    within = f" within {show(policy.crashes_within_s)}" if policy.crashes_within_s else ""
    crashes = policy.crashes_alone_max
    lines: list[tuple[str, str | None, list[str]]] = [
        ("timeout", f"{show(policy.timeout_s)} a run", []),
        ("poison", f"quarantined after {crashes} crash{'es' * (crashes > 1)} alone{within}", []),
        ("dependency", called, ["flow", called] if called else []),
        *((name, words, []) for name, words in _flow(app, called)),
        ("rate", _rates(task.rate) if task.rate else None, []),
        ("idempotency", f"a key is kept for {show(task.idempotency.keep_ms / 1000)}" if task.idempotency else None, []),
        ("objective", str(task.slo) if task.slo else None, []),
        ("isolation", _isolation(task), []),
        ("on dead", f"enqueues {task.on_dead}" if task.on_dead else None, []),
        ("result", f"kept for {show(task.keep_ms / 1000)}" if task.keep_ms else None, []),
        ("version", str(task.version) if task.version != 1 else None, []),
    ]
    return [{"rule": name, "words": words, "to": to} for name, words, to in lines if words]


def _rates(rate: Rate) -> str:
    return "; ".join(each.words for each in rate.all)


def _isolation(task: TaskSpec) -> str | None:
    memory = f", in {task.memory_bytes / 2**20:,.0f} MiB" if task.memory_bytes else ""
    return f"{task.isolation}{memory}" if task.isolation else None


def _flow(app: Registry, called: str | None) -> list[tuple[str, str | None]]:
    """Return the limits of the dependency `called` that a task calls, as (name, text); empty without one."""
    if called is None:
        return []
    rule = app.dependencies.get(called) or Dependency(called.replace("/", "|"), Budget(), Breaker())  # if undeclared
    return [
        ("budget", _budget(rule.budget) if rule.budget else "none"),
        ("breaker", _breaker(rule.breaker) if rule.breaker else "none"),
        ("rate of dependency", _rates(rule.rate) if rule.rate else None),
        ("concurrency", _aimd(rule.concurrency) if rule.concurrency else None),
        ("kept apart by", rule.per),
        ("breaker over all keys", _breaker(rule.parent) if rule.parent else None),
    ]


def _budget(budget: Budget) -> str:
    then = "then they wait" if budget.on_exhausted == "defer" else "then they die"
    if budget.retries is not None:
        return f"{budget.retries:,} retries in {show(budget.per or 0)}, {then}"
    return f"{budget.ratio:g} retries for each first attempt and {budget.floor:g}/s, {then}"


def _breaker(breaker: Breaker) -> str:
    slow = f", or {breaker.slow_rate:.0%} slower than {show(breaker.slow_call)}" if breaker.slow_call else ""
    opens = (
        f"opens when {breaker.failure_rate:.0%} of at least {breaker.min_calls} calls in {show(breaker.window)} fail"
    )
    return f"{opens}{slow}; for {show(breaker.open_for)} to {show(breaker.max_open)}, then {breaker.probes} probes"


def _aimd(limit: Any) -> str:
    return f"adapts from {limit.least:g} to {limit.most:g}, begins at {limit.start:g}"
