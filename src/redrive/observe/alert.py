"""Alerts: their fields, their texts, and the command that shows more."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from ..config import web_link
from ..events import DeliveryEvent
from ..message import Filter
from ..redact import one_line, redact
from ..registry import Registry
from ..triage.select.terms import as_node
from ..urls import shown

BATCH_STATES = {"batch_partial": "partial", "batch_unsealed": "filling"}  # by alert, the state of its batches
IDS_MAX = 5  # the most ids of messages in an alert


class Alert(Struct, frozen=True, kw_only=True):
    """The argument of a function registered by `app.on`, and the JSON that a webhook receives.

    `count` is how often it happened in all processes since the last alert, and `since` when that began; `ids` names at
    most five of the messages. `about` is the fingerprint of a failure, the dependency of a breaker, the id of a run, or
    the name of batches. `app` is MODULE:APP, if known. `command` shows more, and `runbook` is the page of the docs that
    explains the alert: its address where the setting `runbook_url` is set, else its name. `page` is the address of the
    web page that shows more, where the setting `web_url` is set.

    An alert on a threshold has a `state`, firing or resolved, the `value`, in seconds if it is a duration, and the
    threshold, `above`; its `since` is when the value went above it or, once resolved, when it fired. Where the outage
    of a dependency pushes several tasks or queues above it, that is one alert about the dependency, and `affected`
    lists at most a hundred of them, the worst first; `value` is that of the worst.
    """

    name: str
    text: str
    count: int
    ids: tuple[str, ...] = ()
    task: str | None = None
    queue: str | None = None
    about: str | None = None
    app: str | None = None
    since: str
    at: str
    command: str
    runbook: str | None = None
    page: str | None = None
    state: str | None = None
    value: float | None = None
    above: float | None = None
    affected: tuple[str, ...] = ()


class AlertSubject(NamedTuple):
    """What an alert is about: events that are equal in these fields share one alert."""

    name: str
    task: str = ""
    queue: str = ""
    about: str = ""


class Pile(Struct, frozen=True, array_like=True):
    """Events of one subject that no alert has reported yet: how many, since when, some ids, and a text."""

    count: int = 0
    since_ms: int = 0
    ids: tuple[str, ...] = ()
    text: str = ""  # the text of the last event

    def plus(self, other: Pile) -> Pile:
        if not (self.count and other.count):
            return self if self.count else other
        ids = tuple(dict.fromkeys((*self.ids, *other.ids)))[:IDS_MAX]
        return Pile(self.count + other.count, min(self.since_ms, other.since_ms), ids, other.text or self.text)


def text_of(subject: AlertSubject, pile: Pile) -> str:
    many = pile.count > 1
    times = f" {pile.count:,} times" if many else ""
    of = f" of task {subject.task}" if subject.task else ""
    on = f" on queue {subject.queue}" if subject.queue else ""
    match subject.name:
        case "dead_growth":
            what = f"{pile.count:,} messages" if many else f"message {pile.ids[0] if pile.ids else ''}"
            text = f"{what}{of} died{on}"
        case "quarantined":
            what = f"{pile.count:,} messages were" if many else f"message {pile.ids[0]} was" if pile.ids else "one was"
            text = f"{what} quarantined{of}{on}" + (f" by auto-redrive of {subject.about}" if subject.about else "")
        case "run_stopped":
            text = f"run {subject.about} stopped itself" if subject.about else f"runs stopped themselves{times}"
        case "regressed":
            text = f"failure groups regressed{times}" if many else "regressed"
        case _:
            text = f"the breaker of {subject.about or 'several dependencies'} opened{times}"
    return text + (f"; the last: {pile.text}" if many and pile.text else f": {pile.text}" if pile.text else "")


def visible(text: str) -> str:
    """Return a text without secrets and control characters, as texts come from queues, errors or names."""
    return one_line(redact(text))


def cause_of(event: DeliveryEvent) -> str:
    return ": ".join(filter(None, (event.reason, event.error, event.text)))


def command_of(subject: AlertSubject, pile: Pile, place: Sequence[str]) -> str:
    match subject.name:
        case "dead_growth":
            words = _dead(subject)
        case "breaker_opened":
            name, _, key = subject.about.partition("/")
            words = ["flow", "show", name, *(["--key", key] if key else [])] if name else ["flow", "list"]
        case "run_stopped":
            words = ["run", "show", subject.about] if subject.about else ["run", "list"]
        case "regressed":
            words = ["dlq", "group", subject.about] if subject.about else ["dlq", "groups"]
        case _ if pile.count == 1 and pile.ids:
            words = ["job", "show", pile.ids[0]]
        case _:
            words = ["dlq", "list", "--quarantine", *(["--task", subject.task] if subject.task else [])]
    return shell_line(words, place)


def _dead(subject: AlertSubject) -> list[str]:
    """Return the words of the command that lists the dead messages of the subject: those of one failure; for several
    failures, or all queues, their groups."""
    queue = subject.queue or None
    if not subject.task:
        return ["dlq", "groups", *filter(None, [str(as_node(Filter(queue=queue)))])]
    if subject.about:
        return ["dlq", "list", str(as_node(Filter(queue=queue, fingerprint=subject.about)))]
    return ["dlq", "list", f"{as_node(Filter(queue=queue, task=subject.task))} -fingerprint:*"]


def place_of(app: Registry, spec: str | None) -> list[str]:
    """Return the options of a command that name the app (`spec`) or its store; none if the store's URL contains a
    password."""
    if spec is not None:
        return ["--app", spec]
    return ["--url", app.url] if app.url is not None and shown(app.url) == app.url else []


def shell_line(words: Sequence[str], place: Sequence[str]) -> str:
    """Return a redrive command with these words and the options of `place`, as it is typed in a shell."""
    return shlex.join(["redrive", *words, *place])


def page_of(name: str, task: str | None, queue: str | None, about: str | None, ids: Sequence[str] = ()) -> str | None:
    """Return the address of the web page that shows the subject of an alert; None without the setting `web_url`."""
    match name:
        case "dead_growth" | "regressed" if about:
            return web_link("groups", about)
        case "breaker_opened" | "breaker" if about:
            return web_link("flow", about.partition("/")[0])
        case "run_stopped" if about:
            return web_link("runs", about)
        case "quarantined" if len(ids) == 1:
            return web_link("messages", ids[0])
        case "no_workers" | "worker_hung":
            return web_link("workers")
        case "schedule_late":
            return web_link("schedules")
        case "batch_partial" | "batch_unsealed":
            return web_link("batches", state=BATCH_STATES[name])
        case _:
            pass
    if queue:
        return web_link("queues", queue)
    return web_link("groups") if task or name == "dead_growth" else web_link("")


def spec_of(app: Registry) -> str | None:
    """Return MODULE:APP of the app, which is searched in the modules of its handlers; None if it is not found there."""
    for module in dict.fromkeys(getattr(task.handler, "__module__", None) for task in list(app.tasks.values())):
        loaded = sys.modules.get(module or "")
        for name, value in list(vars(loaded).items()) if loaded is not None else ():
            if value is app and module != "__main__":
                return f"{module}:{name}"
            if value is app and (file := getattr(loaded, "__file__", None)):
                return f"{Path(file).stem}:{name}"
    return None
