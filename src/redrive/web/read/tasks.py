"""Tasks: how often they run, how long, how they fail, and the policy of each."""

from __future__ import annotations

from itertools import islice

from ...present.groups import group_records
from ...present.tasks import task_record
from ...triage.task_pauses import task_state, task_states
from ..ask import PageRequest, Problem, Record
from . import fields
from .policies import policy_of

SHOWN = 30  # number of tasks on a page; the last hour of each is read


def tasks(ask: PageRequest) -> Record:
    """Return a page of the tasks that the app declares or living workers know, by name, with the last hour of each."""
    wanted, after = ask.text("q"), ask.text("after")
    kept = ask.status()
    states = [state for state in task_states(ask.store, ask.registry) if wanted in state.name]
    chosen = list(islice((state for state in states if state.name > after), SHOWN + 1))
    hours = ask.kept(f"tasks/{wanted}/{after}", lambda: {each.name: _hour(ask, each.name) for each in chosen[:SHOWN]})
    dead: dict[str, int] = {}
    for group in kept.value.failures:
        dead[group.task] = dead.get(group.task, 0) + group.count
    objectives = _objectives(ask)
    return {
        "q": wanted,
        "tasks": [
            task_record(state)
            | {
                "past": hours.value.get(state.name),
                "dead": dead.get(state.name, 0),
                "objective": objectives.get(state.name),
            }
            for state in chosen[:SHOWN]
        ],
        "count": len(states),
        "more_after": chosen[SHOWN - 1].name if len(chosen) > SHOWN else None,
        "age_s": max(kept.age_s, hours.age_s),
        "command": ask.command("task", "list"),
    }


def task(ask: PageRequest) -> Record:
    """Return one task: its pause, its history, the causes of its deaths, and its policy."""
    name, registry = ask.path["task"], ask.registry
    declared = None if registry is None else registry.tasks.get(name)
    status = ask.status().value
    groups = [group for group in status.failures if group.task == name]
    if declared is None and not groups and all(state.name != name for state in task_states(ask.store, registry)):
        why = "no app named here declares it, no worker knows it, and none of its messages is dead"
        raise Problem(f"there is no task {name!r}", why, "", 404)
    return task_record(task_state(ask.store, registry, name)) | {
        "pauses": ask.store.traits.skips,
        "past": fields.past_and_before(ask, fields.span(ask), task=name),
        "sinces": list(fields.SINCE),
        "groups": group_records(groups, status.annotations, status.held, status.at_ms),
        "objective": _objectives(ask).get(name),
        "policy": None if registry is None or declared is None else policy_of(registry, declared, "default"),
        "enqueue_command": ask.command("enqueue", name, "{}"),
        "command": ask.command("task", "show", name),
    }


def _hour(ask: PageRequest, name: str) -> Record | None:
    """Return the last hour of a task by five minutes; None if no history is kept."""
    past = fields.past(ask, task=name, back="1h", step="5m")
    if past["missing"] is not None:
        return None
    total = past["total"]
    return {
        "runs": fields.runs_of(past),
        "ended": total["done"] + total["failed"],
        "error_rate": total["error_rate"],
        "run_p50_ms": total["run"]["p50_ms"],
        "run_p95_ms": total["run"]["p95_ms"],
        "wait_p95_ms": total["wait"]["p95_ms"],
    }


def _objectives(ask: PageRequest) -> dict[str, Record]:
    """Return the objectives of tasks, by the task's name."""
    return {each["name"]: each for each in fields.objectives(ask) if each["kind"] == "task"}
