"""Alerts without a monitoring stack: what happens together is told once, and not again before `every` is over.

`app.on("quarantined", fn)` and `redrive worker --notify URL` are a `Watch` each. Workers only add to what it has to
tell; a thread of its own tells. When something was told last stands in a cell of the store, with what has happened
since: so any number of worker processes tell of it once between them, and nothing that happened is left out of a count.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import inspect
import shlex
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..config.resolve import near_miss
from ..duration import Duration, milliseconds
from ..errors import ConfigError
from ..events import Event, Fate, Notice
from ..message import Swap, Where
from ..redact import clip, redact
from ..redact.visible import many_lines, one_line
from ..registry import Registry
from ..times import rfc3339
from ..triage.annotations import NOTHING, read_annotations
from ..triage.select.terms import as_node
from ..urls import shown

NAMES = ("dead_growth", "quarantined", "breaker_opened", "run_stopped")
IDS_MAX = 5  # sample ids that an alert carries
TEXT_MAX = 500
NOTED_MAX = 16 * TEXT_MAX  # characters of a text until its secrets are hidden: a half of one is not known for one
GATHER_S = 1.0  # what happens together is told together
DEPOSIT_S = 30.0  # how often a process that may not tell yet leaves what it knows to the others
AGAIN_S = 60.0  # when it is tried again where nobody answered
LAST_WORDS_S = 2.0  # how long a worker that stops waits for what it has to tell
SUBJECTS_MAX = 1000  # that may wait to be told; what goes beyond is told as one
FAILURES_MAX = 20  # fingerprints told one by one within `every`; what else dies is told together, by queue
KEPT_MS = 7 * 24 * 3600 * 1000  # how long a cell stays that nobody takes up again
_SWAPS_MAX = 20
_encode = msgspec.json.Encoder().encode


class Alert(Struct, frozen=True, kw_only=True):
    """What a function of `app.on` is called with, and what a webhook gets as JSON.

    `count` is how often it happened since it was told last, in all processes, and `since` when that began; `ids` are
    at most five of the messages. `about` is the fingerprint of what died, the dependency of a breaker, or the id of a
    run. `app` is its MODULE:APP, where that is known. `command` leads on.
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


class NotTold(Exception):
    """Nobody took the alert; it is told again later."""


class Subject(NamedTuple):
    """What an alert is about: what is alike in these is told together."""

    name: str
    task: str = ""
    queue: str = ""
    about: str = ""


class Pile(Struct, frozen=True, array_like=True):
    """What has happened and was not told yet."""

    count: int = 0
    since_ms: int = 0
    ids: tuple[str, ...] = ()
    text: str = ""  # of the last one

    def plus(self, other: Pile) -> Pile:
        if not (self.count and other.count):
            return self if self.count else other
        ids = tuple(dict.fromkeys((*self.ids, *other.ids)))[:IDS_MAX]
        return Pile(self.count + other.count, min(self.since_ms, other.since_ms), ids, other.text or self.text)


class Told(Struct, frozen=True, array_like=True):
    """A cell: when the subject was told last, and what has happened since."""

    at_ms: int = 0
    pile: Pile = Pile()


class Watch:
    """An observer that tells of `names`, each subject at most once in `every_ms`. `tell` is called on its own thread;
    where it raises NotTold, the same is told again later, with what has happened until then.

    `channel` tells this watch from others on the same store: processes with the same one tell once between them.
    """

    def __init__(
        self,
        app: Registry,
        names: Iterable[str],
        tell: Callable[[Alert], object],
        *,
        channel: str,
        every_ms: int,
        app_spec: str | None = None,
        gather_s: float = GATHER_S,
    ) -> None:
        self._app, self._names, self._tell_it = app, frozenset(names), tell
        self._channel, self._every_ms, self._spec, self._gather_s = channel, every_ms, app_spec, gather_s
        self._changed = threading.Condition()
        self._piles: dict[Subject, Pile] = {}
        self._look_s: dict[Subject, float] = {}  # when to see whether it may be told
        self._told_s: dict[Subject, float] = {}  # by this process, for when the store cannot be asked
        self._hurry: dict[Subject, None] = {}  # told at once, in this order
        self._busy = False
        self._thread: threading.Thread | None = None

    # -- on the worker's threads

    def __call__(self, events: Sequence[Event]) -> None:
        stopped = False
        for event in events:
            if isinstance(event, Fate):
                if event.outcome == "dead" and "dead_growth" in self._names:
                    subject = Subject("dead_growth", event.task, event.queue, event.fingerprint or "")
                    self._note(subject, event.at_ms, _died(event), event.id)
                elif event.outcome == "quarantined" and "quarantined" in self._names:
                    self._note(Subject(event.outcome, event.task, event.queue), event.at_ms, event.text, event.id)
            elif event.name in self._names:
                self._note(Subject(event.name, about=event.about), event.at_ms, event.text)
            elif event.name == "auto_isolated" and "quarantined" in self._names:
                self._note(Subject("quarantined", about=event.about), event.at_ms, event.text, count=event.count)
            else:
                stopped = stopped or event.name == "stopped"
        if stopped:
            self.flush(LAST_WORDS_S)  # the process may end after this

    def _note(self, subject: Subject, at_ms: int, text: str | None, id: str | None = None, *, count: int = 1) -> None:
        pile = Pile(count, at_ms, () if id is None else (id,), (text or "")[: NOTED_MAX + 1])
        with self._changed:
            if subject not in self._piles:
                subject = self._bounded(subject)
            self._add(subject, pile, self._gather_s)
            self._alive()

    def _bounded(self, subject: Subject) -> Subject:
        """The subject, or a wider one where there are too many: failures that all differ are not told one by one."""
        if len(self._piles) >= SUBJECTS_MAX:
            return Subject(subject.name)
        return self._wide(subject) if subject.name == "dead_growth" and subject.task else subject

    def _wide(self, subject: Subject) -> Subject:
        fresh_s = time.monotonic() - self._every_ms / 1000
        wide = Subject(subject.name, queue=subject.queue)
        if self._told_s.get(subject, -float("inf")) > fresh_s:
            return subject
        if wide in self._piles:  # looked at first, as it may be asked for every death
            return wide
        told = {s for s, at_s in self._told_s.items() if at_s > fresh_s and s.name == subject.name and s.task}
        told |= {s for s in self._piles if s.name == subject.name and s.task}
        return wide if len(told) >= FAILURES_MAX else subject

    def flush(self, timeout_s: float) -> bool:
        """Tell now what may be told, and leave the rest in the store; False where that took too long."""
        with self._changed:
            self._hurry = dict.fromkeys(self._piles)
            if self._hurry:
                self._alive()
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._hurry and not self._busy, timeout_s)

    def _alive(self) -> None:
        if self._thread is None or not self._thread.is_alive():  # the first time, or in a fork
            self._busy = False
            self._thread = threading.Thread(target=self._work, name="redrive-alerts", daemon=True)
            self._thread.start()
            atexit.register(_last_words, weakref.ref(self))

    def _add(self, subject: Subject, pile: Pile, look_in_s: float) -> None:
        """With the lock held."""
        self._piles[subject] = self._piles.get(subject, Pile()).plus(pile)
        self._look_s[subject] = min(self._look_s.get(subject, float("inf")), time.monotonic() + look_in_s)
        self._changed.notify_all()

    # -- on its own thread

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (due := self._due()):
                    next_s = min(self._look_s.values(), default=None)
                    self._changed.wait(None if next_s is None else max(0.0, next_s - time.monotonic()))
                taken = [(subject, self._piles.pop(subject, Pile())) for subject in due]
                for subject in due:
                    self._look_s.pop(subject, None)
                    self._hurry.pop(subject, None)
                self._busy = True
            for subject, pile in taken:
                try:
                    self._one(subject, pile)
                except Exception:  # of ours: the next alert must come through
                    _print(f"an alert failed:\n{traceback.format_exc()}")
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _due(self) -> list[Subject]:
        now_s = time.monotonic()
        return [*self._hurry, *(s for s, at_s in self._look_s.items() if at_s <= now_s and s not in self._hurry)]

    def _one(self, subject: Subject, pile: Pile) -> None:
        pile = replace(pile, text=clip(pile.text, NOTED_MAX, TEXT_MAX))  # here, once for all that were piled up
        try:
            told = self._claim(subject, pile)
        except Exception:  # the store is down, or closed: go by what this process told
            told = self._claim_here(subject, pile)
        if told.count:
            self._remember(subject)
            self._send(subject, told)

    def _remember(self, subject: Subject) -> None:
        now_s = time.monotonic()
        with self._changed:
            if len(self._told_s) >= SUBJECTS_MAX:
                fresh_s = now_s - self._every_ms / 1000
                self._told_s = {s: at_s for s, at_s in self._told_s.items() if at_s > fresh_s}
            self._told_s[subject] = now_s

    def _claim(self, subject: Subject, pile: Pile) -> Pile:
        """What to tell now, by this process alone: nothing while it was told a short time ago, or by another."""
        store, key = self._app.store, self._key(subject)
        for _ in range(_SWAPS_MAX):
            version, old = self._read(key)
            now_ms, both = store.now_ms(), old.pile.plus(pile)
            if self._muted(subject, now_ms):
                self._forget(key, version, old)
                return Pile()
            left_ms = min(old.at_ms + self._every_ms - now_ms, self._every_ms)  # at most: a clock may be set back
            if not both.count:
                return both
            if left_ms > 0:
                self._look_in(subject, left_ms / 1000)
            if left_ms > 0 and not pile.count:
                return pile
            new = Told(old.at_ms, both) if left_ms > 0 else Told(now_ms)
            if store.cells.swap([Swap(key, version, _encode(new), max(2 * self._every_ms, KEPT_MS))])[0]:
                return Pile() if left_ms > 0 else both  # killed from here on, and nobody is told of these
        self._again(subject, pile, 1.0)  # many others are at it
        return Pile()

    def _muted(self, subject: Subject, now_ms: int) -> bool:
        """Whether a person asked not to hear of this failure for now."""
        if subject.name != "dead_growth" or not subject.about:
            return False
        return read_annotations(self._app.store, [subject.about]).get(subject.about, NOTHING).muted(now_ms)

    def _forget(self, key: str, version: int, old: Told) -> None:
        if old.pile.count:
            self._app.store.cells.swap([Swap(key, version, _encode(Told(old.at_ms)), max(2 * self._every_ms, KEPT_MS))])

    def _claim_here(self, subject: Subject, pile: Pile) -> Pile:
        left_s = self._told_s.get(subject, -float("inf")) + self._every_ms / 1000 - time.monotonic()
        if left_s <= 0 or not pile.count:
            return pile
        self._again(subject, pile, min(left_s, AGAIN_S))
        return Pile()

    def _send(self, subject: Subject, told: Pile) -> None:
        try:
            self._tell_it(self._alert(subject, told))
        except NotTold as error:
            self._lost(subject, told, str(error))
        except Exception:  # a function's bug would be the same each time
            _print(f"{self._channel} failed on an alert:\n{traceback.format_exc()}")

    def _lost(self, subject: Subject, told: Pile, why: str) -> None:
        again_ms = int(min(AGAIN_S * 1000, self._every_ms))
        text = f"{subject.name} could not be told, and is told again in {again_ms / 1000:g} s: {why}"
        with contextlib.suppress(Exception):
            self._app.events.emit([Notice(name="alert_lost", at_ms=self._app.store.now_ms(), text=text)])
        try:
            key = self._key(subject)
            version, old = self._read(key)
            new = Told(self._app.store.now_ms() - self._every_ms + again_ms, told.plus(old.pile))
            if self._app.store.cells.swap([Swap(key, version, _encode(new), max(2 * self._every_ms, KEPT_MS))])[0]:
                self._look_in(subject, again_ms / 1000)
                return
        except Exception:
            self._told_s.pop(subject, None)
        self._again(subject, told, again_ms / 1000)

    def _look_in(self, subject: Subject, left_s: float) -> None:
        """See again when it may be told; what happens until then is left to the others now and then."""
        with self._changed:
            self._look_s[subject] = time.monotonic() + left_s
            if subject in self._piles:
                self._look_s[subject] = time.monotonic() + min(left_s, DEPOSIT_S)

    def _again(self, subject: Subject, pile: Pile, in_s: float) -> None:
        with self._changed:
            self._add(subject, pile, in_s)

    def _read(self, key: str) -> tuple[int, Told]:
        cell = self._app.store.cells.read([key])[0]
        return (0, Told()) if cell is None else (cell.version, msgspec.json.decode(cell.value, type=Told))

    def _key(self, subject: Subject) -> str:
        key = "/".join(("alert", self._channel, *filter(None, subject)))
        return key if len(key.encode()) <= 200 else f"alert/{hashlib.sha256(key.encode()).hexdigest()}"

    def _alert(self, subject: Subject, told: Pile) -> Alert:
        return Alert(
            name=subject.name,
            text=_seen(_text(subject, told)),
            count=told.count,
            ids=told.ids,
            task=_seen(subject.task) or None,
            queue=_seen(subject.queue) or None,
            about=_seen(subject.about) or None,
            app=self._spec or _spec_of(self._app),
            since=rfc3339(told.since_ms),
            at=rfc3339(self._now_ms()),
            command=_seen(_command(subject, told, self._place())),
        )

    def _now_ms(self) -> int:
        try:
            return self._app.store.now_ms()
        except Exception:
            return int(time.time() * 1000)

    def _place(self) -> list[str]:
        """What names the app, or the store, to a command; nothing where that would tell a password."""
        spec, url = self._spec or _spec_of(self._app), self._app.url
        if spec is not None:
            return ["--app", spec]
        return ["--url", url] if url is not None and shown(url) == url else []


def on(app: Registry, name: str, fn: Callable[[Alert], Any], every: Duration) -> Callable[[], None]:
    """What `App.on` does."""
    if name not in NAMES:
        near = near_miss(str(name), NAMES)
        meant = f"did you mean {near!r}? " if near else ""
        raise ConfigError(f"there is no alert {name!r}; {meant}known: {', '.join(map(repr, NAMES))}")
    if not callable(fn):
        raise ConfigError(f"on({name!r}, {fn!r}): expected a function that takes an Alert")
    watch = Watch(app, [name], _called(fn), channel=_channel(app, name, fn), every_ms=milliseconds(every, "every"))
    return app.subscribe(watch)


def _called(fn: Callable[[Alert], Any]) -> Callable[[Alert], object]:
    if inspect.iscoroutinefunction(fn):
        return lambda alert: asyncio.run(fn(alert))
    return fn


def _channel(app: Registry, name: str, fn: Callable[..., Any]) -> str:
    """The function's name, which is the same in every process; a number tells those of one name apart."""
    module = getattr(fn, "__module__", None) or "builtins"
    called = f"{module}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"
    named = _NAMED.setdefault(app, {})
    number = named[name, called] = named.get((name, called), 0) + 1
    return called if number == 1 else f"{called}#{number}"


_NAMED: weakref.WeakKeyDictionary[Registry, dict[tuple[str, str], int]] = weakref.WeakKeyDictionary()


def _text(subject: Subject, told: Pile) -> str:
    many = told.count > 1
    times = f" {told.count:,} times" if many else ""
    of = f" of task {subject.task}" if subject.task else ""
    on = f" on queue {subject.queue}" if subject.queue else ""
    match subject.name:
        case "dead_growth":
            what = f"{told.count:,} messages" if many else f"message {told.ids[0] if told.ids else ''}"
            text = f"{what}{of} died{on}"
        case "quarantined":
            what = f"{told.count:,} messages were" if many else f"message {told.ids[0]} was" if told.ids else "one was"
            text = f"{what} quarantined{of}{on}" + (f" by auto-redrive of {subject.about}" if subject.about else "")
        case "run_stopped":
            text = f"run {subject.about} stopped itself" if subject.about else f"runs stopped themselves{times}"
        case _:
            text = f"the breaker of {subject.about or 'several dependencies'} opened{times}"
    return text + (f"; the last: {told.text}" if many and told.text else f": {told.text}" if told.text else "")


def _seen(text: str) -> str:
    """As people may see it: what was queued, raised or named elsewhere may hold secrets, or act on a terminal."""
    return one_line(redact(text))


def _print(text: str) -> None:
    print(many_lines(redact(f"redrive: {text}")), file=sys.stderr)


def _died(fate: Fate) -> str:
    return ": ".join(filter(None, (fate.reason, fate.error, fate.text)))


def _command(subject: Subject, told: Pile, place: Sequence[str]) -> str:
    match subject.name:
        case "dead_growth":
            words = _dead(subject)
        case "breaker_opened":
            name, _, key = subject.about.partition("/")
            words = ["flow", "show", name, *(["--key", key] if key else [])] if name else ["flow", "list"]
        case "run_stopped":
            words = ["run", "show", subject.about] if subject.about else ["run", "list"]
        case _ if told.count == 1 and told.ids:
            words = ["job", "show", told.ids[0]]
        case _:
            words = ["dlq", "list", "--quarantine", *(["--task", subject.task] if subject.task else [])]
    return shlex.join(["redrive", *words, *place])


def _dead(subject: Subject) -> list[str]:
    """Lists what failed alike; where that is many failures, or of all queues, their groups."""
    queue = subject.queue or None
    if not subject.task:
        return ["dlq", "groups", *filter(None, [str(as_node(Where(queue=queue)))])]
    if subject.about:
        return ["dlq", "list", str(as_node(Where(queue=queue, fingerprint=subject.about)))]
    return ["dlq", "list", f"{as_node(Where(queue=queue, task=subject.task))} -fingerprint:*"]


def _spec_of(app: Registry) -> str | None:
    """MODULE:APP, found by looking for the app where its handlers were written."""
    for module in dict.fromkeys(getattr(task.handler, "__module__", None) for task in list(app.tasks.values())):
        found = sys.modules.get(module or "")
        for name, value in list(vars(found).items()) if found is not None else ():
            if value is app and module != "__main__":
                return f"{module}:{name}"
            if value is app and (file := getattr(found, "__file__", None)):
                return f"{Path(file).stem}:{name}"
    return None


def _last_words(watch: weakref.ref[Watch]) -> None:
    found = watch()
    if found is not None:
        found.flush(LAST_WORDS_S)
