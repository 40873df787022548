"""Dependencies: the state of their flow control, and the messages that wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from ...errors import ConfigError
from ...flow.dependency import Dependency, about_of, key_of
from ...message import Filter, Lane, Message
from ...present.dependencies import dependency_record
from ...present.forecasts import breaker_forecast_record
from ...present.formats import timestamp
from ...simulate import forecast_breaker
from ...triage.controls import LOOKED, Control, Controls
from ...worker.flow.local_state import controls as controls_of
from ..ask import PageRequest, Problem, Record
from .plans import missing
from .waiting import counts_by_queue

WAITING = 50  # the most messages that a page lists
KEYS_MAX = 50
KEY_MAX = 200  # the most characters of a key in an address
WORDS = {
    "closed": "closed: calls go through",
    "open": "open: nothing calls it",
    "half_open": "half open: probes go through",
    "forced_open": "held open by hand: nothing calls it",
    "forced_closed": "held closed by hand: calls go through, whatever fails",
    None: "none: it has no breaker",
}


def controls(ask: PageRequest) -> Controls:
    """Return the controls of the store's dependencies, without the app's rules if only the store's URL is known."""
    return Controls(ask.store, ask.registry)


def flow(ask: PageRequest) -> Record:
    """Return each dependency with its breaker, limits and waiting messages; and the mutes."""
    known = controls(ask)
    kept = ask.kept("flow", lambda: {control.name: control for control in known.list()})
    return {
        "missing": missing(ask, "Breakers, budgets and rates"),
        "dependencies": [_control(_with_waiting(control, kept.value)) for control in known.list(waiting=False)],
        "mutes": mutes(ask),
        "age_s": kept.age_s,
        "looked": LOOKED,
        "more": _more(ask),
        "command": ask.command("flow", "list"),
    }


def _with_waiting(control: Control, known: Mapping[str, Control]) -> Control:
    """Return the control with the message counts of the cached one of its name."""
    counted = known.get(control.name)
    return control if counted is None else replace(control, waiting=counted.waiting, deferred=counted.deferred)


def _more(ask: PageRequest) -> bool:
    """Return True if the store has more waiting messages than were read."""
    return sum(counts.waiting for counts in counts_by_queue(ask).value.values()) > LOOKED


def mutes(ask: PageRequest, name: str | None = None) -> list[Record]:
    """Return the mutes of alerts; with `name`, those of this dependency."""
    return [
        {
            "about": mute.about,
            "queue": mute.queue,
            "dependency": mute.dependency,
            "until": timestamp(mute.until_ms),
            "by": mute.by,
            "reason": mute.reason,
        }
        for mute in ask.app.alerts.list()
        if name is None or mute.dependency == name
    ]


def dependency(ask: PageRequest) -> Record:
    """Return one dependency, or one key of it: state, transitions, waiting messages, and the tasks that call it."""
    name, key = ask.path["dependency"], ask.text("key")[:KEY_MAX]
    known = controls(ask)
    try:
        control = known.show(name, key=key, waiting=False)
    except ConfigError as error:
        what, _, why = str(error).partition("; ")
        raise Problem(what, why, "", 404) from error
    kept = ask.kept(f"flow/{ask.sees_bodies}/{about_of(name, key)}", lambda: _waits(ask, name, key))
    return {
        **_control(control),
        "waiting": kept.value["waiting"],
        "deferred": kept.value["deferred"],
        "keyed": kept.value["keyed"],
        "messages": kept.value["messages"],
        "age_s": kept.age_s,
        "looked": LOOKED,
        "more": _more(ask),
        "forecast": _forecast(ask, control),
        "tasks": _callers(ask, name),
        "mutes": mutes(ask, name),
        "command": ask.command("flow", "show", name, *(["--key", key] if key else [])),
    }


def _forecast(ask: PageRequest, control: Control) -> Record | None:
    """Return what an open breaker will do; cached while its status stays."""
    key = f"forecast/flow/{control.about}/{control.since_ms}"
    return ask.kept(key, lambda: breaker_forecast_record(forecast_breaker(ask.store, ask.registry, control))).value


def _control(control: Control) -> Record:
    """Return a control as in the command line's JSON, with its words, and the newest transition first."""
    record = dependency_record(control)
    return record | {"words": WORDS[control.breaker], "transitions": record["transitions"][::-1]}


def _waits(ask: PageRequest, name: str, key: str) -> Record:
    """Return the messages that the dependency deferred, then others of tasks that call it, and their number by key, out
    of the first waiting ones. Keys from bodies need the permission to view bodies."""
    if not ask.store.traits.finds:
        return {"waiting": None, "deferred": {}, "keyed": {}, "messages": []}
    found, hidden = [], False
    for message in ask.store.peek(Lane.READY, where=Filter(), limit=LOOKED).messages:
        rule = _rule(ask, name, message.task, message.queue)
        if rule is None and (message.deferral is None or message.deferral.by != name):
            continue
        hidden = hidden or (rule is not None and rule.per not in (None, "group") and not ask.sees_bodies)
        found.append((message, "" if rule is None or hidden else key_of(rule, message)))
    shown = [message for message, its in found if not key or its == key]
    shown.sort(key=lambda message: message.deferral is None)
    put_off = Counter(message.deferral.why for message in shown if message.deferral is not None)
    return {
        "waiting": None if ask.registry is None else len(shown),
        "deferred": dict(put_off),
        "keyed": dict(Counter(its for _, its in found if its).most_common(KEYS_MAX)),
        "messages": [_waiting(message) for message in shown[:WAITING]],
    }


def _rule(ask: PageRequest, name: str, task: str, queue: str) -> Dependency | None:
    """Return the rule of this name that applies to messages of the task in the queue; None if there is none."""
    if ask.registry is None:
        return None
    return next((rule for rule in controls_of(ask.registry, task, queue) if rule.name == name), None)


def _waiting(message: Message) -> Record:
    held = message.deferral
    return {
        "id": message.id,
        "task": message.task,
        "queue": message.queue,
        "why": None if held is None else held.why,
        "by": None if held is None else held.by or None,
        "due_at": timestamp(message.due_ms),
    }


def _callers(ask: PageRequest, name: str) -> list[Record]:
    """Return the tasks of the app that call the dependency, with their queues."""
    tasks = [] if ask.registry is None else sorted(ask.registry.tasks.values(), key=lambda task: task.name)
    return [
        {"task": task.name, "queue": task.queue}
        for task in tasks
        if _rule(ask, name, task.name, task.queue) is not None
    ]
