"""Tasks: how often they run, how long, how they fail, and the policy of each."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, cast

import msgspec
from markupsafe import escape

from ...enqueue import Task
from ...present.groups import group_records
from ...present.schemas import schema_of, schema_text
from ...present.tasks import task_record
from ...redact import in_json
from ...triage.task_pauses import task_state, task_states
from .. import exact, schemas
from ..ask import PageAnswer, PageRequest, Problem, Record
from . import fields
from .policies import policy_of
from .selecting import failure_groups

_EXAMPLES: Mapping[object, object] = {
    "string": "text", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {},
}  # fmt: skip
SHOWN = 30  # number of tasks on a page; the last hour of each is read


def tasks(ask: PageRequest) -> Record:
    """Return a page of the tasks that the app declares or living workers know, by name, with the last hour of each."""
    wanted, after = ask.text("q"), ask.text("after")
    kept = ask.status()
    states = [state for state in task_states(ask.store, ask.registry) if wanted in state.name]
    chosen = list(islice((state for state in states if state.name > after), SHOWN + 1))
    hours = ask.kept(f"tasks/{wanted}/{after}", lambda: {each.name: _hour(ask, each.name) for each in chosen[:SHOWN]})
    dead = kept.value.dead_by_task
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


class EnqueueForm:
    """The form of a new message: a field for each argument of its task that is a text, a number or a boolean, and the
    whole body as JSON. `body` is what they make together; None if that is no JSON object, or nothing was typed yet."""

    body: bytes | None
    mistake: str

    def __init__(self, task: Task[Any, Any], typed: Mapping[str, str]) -> None:
        self._schema, self._typed = schema_of(task), typed
        kinds = {name: self._schema["properties"][name].get("type") for name in self._schema["required"]}
        empty = {"array": [], "object": exact.Pairs()}
        begun = exact.Pairs((name, empty[kind]) for name, kind in kinds.items() if kind in empty)
        self._fields = schemas.form_of(self._schema, begun)
        self._text, self.body, self.mistake = typed.get("body") or exact.pretty(begun), None, ""
        if typed:
            self._read()

    def _read(self) -> None:
        try:
            body = exact.read(self._text)
        except (ValueError, RecursionError) as error:
            self.mistake = f"the body is not JSON: {error}"
            return
        if not isinstance(body, exact.Pairs):
            self.mistake = "the body is no JSON object of arguments by name"
            return
        body = schemas.changed(self._fields, body, self._typed)
        self.body = exact.write(body).encode()

    def refused(self, why: str) -> EnqueueForm:
        """Return this form with why its message was not enqueued."""
        self.mistake = why
        return self

    @property
    def typed(self) -> Record:
        """What was typed, for the page that shows the form again."""
        fields = schemas.typed_fields(self._fields, self._typed or None)
        others = {name: escape(self._typed.get(name, "")) for name in ("reason", "delay")}
        return {"fields": fields, "body": escape(in_json(self._text)), **others}

    @property
    def schema(self) -> str:
        return schema_text(self._schema)


def task(ask: PageRequest) -> PageAnswer:
    """Return one task: its pause, its history, the causes of its deaths, its policy, and the schema of its bodies."""
    name = ask.path["task"]
    known = declared(ask, name)
    return task_page(ask, name, None if known is None else EnqueueForm(known, {}))


def declared(ask: PageRequest, name: str) -> Task[Any, Any] | None:
    """Return the task of this name that the app declares; None if no app is named here, or it has none."""
    return None if ask.registry is None else cast("Task[Any, Any] | None", ask.registry.tasks.get(name))


def task_page(ask: PageRequest, name: str, form: EnqueueForm | None) -> PageAnswer:
    """Return the page of a task with this form; without one if no app named here declares the task."""
    mistake = "" if form is None else form.mistake
    about = {"mistake": mistake or None, "schema": None if form is None else form.schema}
    typed = {} if form is None else form.typed
    return PageAnswer(_task(ask, name) | about, status=422 if mistake else 200, typed=typed, name="task")


def _task(ask: PageRequest, name: str) -> Record:
    registry = ask.registry
    known = None if registry is None else registry.tasks.get(name)
    status = ask.status().value
    groups = [group for group in failure_groups(ask) if group.task == name]
    if known is None and not groups and all(state.name != name for state in task_states(ask.store, registry)):
        why = "no app named here declares it, no worker knows it, and none of its messages is dead"
        raise Problem(f"there is no task {name!r}", why, "", 404)
    return task_record(task_state(ask.store, registry, name)) | {
        "pauses": ask.store.traits.skips,
        "past": fields.past_and_before(ask, fields.span(ask), task=name),
        "sinces": list(fields.SINCE),
        "groups": group_records(groups, status.annotations, status.held, status.at_ms),
        "objective": _objectives(ask).get(name),
        "policy": None if registry is None or known is None else policy_of(registry, known, "default"),
        "enqueue_command": ask.command("enqueue", name, "{}"),
        "command": ask.command("task", "show", name),
    }


def first_command(ask: PageRequest) -> str:
    """Return the command that enqueues a first message: of a task of the app whose arguments an example fills, if it
    has one."""
    for task in [] if ask.registry is None else ask.registry.tasks.values():
        schema = schema_of(cast("Task[Any, Any]", task))
        kinds = {name: schema["properties"][name].get("type") for name in schema["required"]}
        if all(kind in _EXAMPLES for kind in kinds.values()):
            example = {name: _EXAMPLES[kind] for name, kind in kinds.items()}
            return ask.command("enqueue", task.name, msgspec.json.encode(example).decode())
    return ask.command("enqueue", "TASK", "{}")


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
