"""Send alerts without a monitoring stack: one for all events of a subject, then none for `every`.

`app.on("quarantined", fn)` and `redrive worker --notify URL` each create a `Watch`. Workers add events to it, and a
thread of its own sends the alerts. A cell of the store holds when a subject was last alerted, and its events since. So
however many worker processes there are, they send one alert, whose count includes every event. Another cell lists the
subjects with such events, so that other processes send what a process leaves behind when it ends.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import inspect
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..config import runbook_of
from ..duration import Duration, milliseconds, rfc3339
from ..events import DeliveryEvent, Event, Notice
from ..message import Swap, decoded, version_of
from ..redact import clip, many_lines, redact
from ..registry import Registry
from ..triage.annotations import NOTHING, read_annotations
from ..triage.group_states import read_states, root
from .alert import Alert as Alert
from .alert import AlertSubject, Pile, cause_of, command_of, page_of, place_of, spec_of, text_of, visible
from .muting import read_mutes

# the names of alerts on events; `thresholds` has the other names
NAMES = ("dead_growth", "quarantined", "breaker_opened", "run_stopped", "regressed")
TEXT_MAX = 500
NOTED_MAX = 16 * TEXT_MAX  # characters kept until secrets are hidden: a secret cut in half would not be recognized
GATHER_S = 1.0  # seconds: events within this time share an alert
DEPOSIT_S = 30.0  # seconds after which a process that may not send yet stores its events for the others
AGAIN_S = 60.0  # seconds until an alert that failed is sent again
LAST_WORDS_S = 2.0  # seconds for which a worker that stops waits for its alerts
SUBJECTS_MAX = 1000  # the most subjects with waiting events; events of further ones share an alert
FAILURES_MAX = 20  # fingerprints that get alerts of their own within `every`; other deaths share one alert per queue
KEPT_MS = 7 * 24 * 3600 * 1000  # ms for which an unused cell is kept
LISTED_MAX = 200  # the most subjects that a channel lists, the latest with waiting events
_SWAPS_MAX = 20
_encode = msgspec.json.Encoder().encode


class NotSent(Exception):
    """Raised by a function that did not deliver its alert, which is then sent again later."""


class SentAlert(Struct, frozen=True, array_like=True):
    """The value of a subject's cell: when its last alert was sent, and its events since then."""

    at_ms: int = 0
    pile: Pile = Pile()


_decode_sent = msgspec.json.Decoder(SentAlert).decode
_decode_listed = msgspec.json.Decoder(list[AlertSubject]).decode
_LIST = AlertSubject("list")  # stands for the list of subjects, among the times to check and in the key of its cell


class Watch:
    """Observes events of these `names`, and sends at most one alert for each subject in `every_ms`.

    `tell` is called on a thread of its own. If it raises NotSent, the alert is sent again later, with the events until
    then. Processes whose watches have the same `channel` send one alert between them.
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
        self._kept_ms = max(2 * every_ms, KEPT_MS)
        self._changed = threading.Condition()
        self._piles: dict[AlertSubject, Pile] = {}
        self._look_s: dict[AlertSubject, float] = {}  # by subject, when to check it next, by time.monotonic()
        self._sent_s: dict[AlertSubject, float] = {}  # when this process last alerted, in case the store fails
        self._hurry: dict[AlertSubject, None] = {}  # alerts to send at once; a dict keeps their order
        self._busy = False
        self._thread: threading.Thread | None = None

    def __call__(self, events: Sequence[Event]) -> None:
        stopped = False
        for event in events:
            if isinstance(event, DeliveryEvent):
                if event.outcome == "dead" and "dead_growth" in self._names:
                    subject = AlertSubject("dead_growth", event.task, event.queue, event.fingerprint or "")
                    self._note(subject, event.at_ms, cause_of(event), event.id)
                elif event.outcome == "quarantined" and "quarantined" in self._names:
                    self._note(AlertSubject(event.outcome, event.task, event.queue), event.at_ms, event.text, event.id)
            elif event.name in self._names:
                self._note(AlertSubject(event.name, about=event.about), event.at_ms, event.text)
            elif event.name == "auto_isolated" and "quarantined" in self._names:
                self._note(AlertSubject("quarantined", about=event.about), event.at_ms, event.text, count=event.count)
            elif event.name == "started":
                self._begin()
            else:
                stopped = stopped or event.name == "stopped"
        if stopped:
            with self._changed:
                self._look_s.pop(_LIST, None)
            self.flush(LAST_WORDS_S)  # sent now, as the process may end after this batch

    def _begin(self) -> None:
        with self._changed:
            self._look_s[_LIST] = time.monotonic()
            self._changed.notify_all()
            self._alive()

    def _note(
        self, subject: AlertSubject, at_ms: int, text: str | None, id: str | None = None, *, count: int = 1
    ) -> None:
        pile = Pile(count, at_ms, () if id is None else (id,), (text or "")[: NOTED_MAX + 1])
        with self._changed:
            if subject not in self._piles:
                subject = self._bound(subject)
            self._add(subject, pile, self._gather_s)
            self._alive()

    def _bound(self, subject: AlertSubject) -> AlertSubject:
        """Return the subject, or a wider one if too many have waiting events, so that failures that all differ share an
        alert."""
        if len(self._piles) >= SUBJECTS_MAX:
            return AlertSubject(subject.name)
        return self._widen(subject) if subject.name == "dead_growth" and subject.task else subject

    def _widen(self, subject: AlertSubject) -> AlertSubject:
        fresh_s = time.monotonic() - self._every_ms / 1000
        wide = AlertSubject(subject.name, queue=subject.queue)
        if self._sent_s.get(subject, -float("inf")) > fresh_s:
            return subject
        if wide in self._piles:  # checked first, as this code runs for every death
            return wide
        subjects = {s for s, at_s in self._sent_s.items() if at_s > fresh_s and s.name == subject.name and s.task}
        subjects |= {s for s in self._piles if s.name == subject.name and s.task}
        return wide if len(subjects) >= FAILURES_MAX else subject

    def flush(self, timeout_s: float) -> bool:
        """Send the alerts that are due, and store the other events; return False if it takes more than `timeout_s`."""
        with self._changed:
            self._hurry = dict.fromkeys(self._piles)
            if self._hurry:
                self._alive()
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._hurry and not self._busy, timeout_s)

    def _alive(self) -> None:
        if self._thread is None or not self._thread.is_alive():  # at the first event, or in a forked child
            self._busy = False
            self._thread = threading.Thread(target=self._work, name="redrive-alerts", daemon=True)
            self._thread.start()
            atexit.register(_last_words, weakref.ref(self))

    def _add(self, subject: AlertSubject, pile: Pile, look_in_s: float) -> None:
        """Add events to a subject, and let it be checked in `look_in_s` at the latest. Hold the lock."""
        self._piles[subject] = self._piles.get(subject, Pile()).plus(pile)
        self._look_s[subject] = min(self._look_s.get(subject, float("inf")), time.monotonic() + look_in_s)
        self._changed.notify_all()

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
                except Exception:  # a bug here must not stop later alerts
                    _print(f"an alert failed:\n{traceback.format_exc()}")
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _due(self) -> list[AlertSubject]:
        now_s = time.monotonic()
        return [*self._hurry, *(s for s, at_s in self._look_s.items() if at_s <= now_s and s not in self._hurry)]

    def _one(self, subject: AlertSubject, pile: Pile) -> None:
        if subject == _LIST:
            with contextlib.suppress(Exception):  # without the store it is read next time
                self._find()
            return
        with contextlib.suppress(Exception):  # merged groups share an alert; without the store each has its own
            if subject.about and subject.name == "dead_growth":
                subject = subject._replace(about=root(read_states(self._app.store), subject.about))
        pile = replace(pile, text=clip(pile.text, NOTED_MAX, TEXT_MAX))  # hides secrets, once for all events
        try:
            claimed = self._claim(subject, pile)
        except Exception:  # the store failed or is closed, so this process decides by the alerts that it sent
            claimed = self._claim_here(subject, pile)
        if claimed.count:
            self._remember(subject)
            self._send(subject, claimed)

    def _remember(self, subject: AlertSubject) -> None:
        now_s = time.monotonic()
        with self._changed:
            if len(self._sent_s) >= SUBJECTS_MAX:
                fresh_s = now_s - self._every_ms / 1000
                self._sent_s = {s: at_s for s, at_s in self._sent_s.items() if at_s > fresh_s}
            self._sent_s[subject] = now_s

    def _claim(self, subject: AlertSubject, pile: Pile) -> Pile:
        """Return the subject's events that this process has to report now; empty if the last alert is too recent, if
        alerts are muted, or if another process reports them."""
        store, key = self._app.store, self._key(subject)
        for _ in range(_SWAPS_MAX):
            version, old = self._read(key)
            now_ms, both = store.now_ms(), old.pile.plus(pile)
            if self._is_muted(subject, now_ms):
                self._forget(key, version, old)
                return Pile()
            left_ms = min(old.at_ms + self._every_ms - now_ms, self._every_ms)  # the clock may have been set back
            if not both.count:
                return both
            if left_ms > 0:
                self._look_in(subject, left_ms / 1000)
            if left_ms > 0 and not pile.count:
                return pile
            new = SentAlert(old.at_ms, both) if left_ms > 0 else SentAlert(now_ms)
            if store.cells.swap([Swap(key, version, _encode(new), self._kept_ms)])[0]:
                if left_ms <= 0:
                    return both  # from here, a crash loses this alert
                self._list(subject)
                return Pile()
        self._again(subject, pile, 1.0)  # other processes won all swaps
        return Pile()

    def _is_muted(self, subject: AlertSubject, now_ms: int) -> bool:
        """Return True if alerts about the subject's failure, queue or dependency are muted."""
        store, about = self._app.store, subject.about
        if read_mutes(store, self._app).cover(
            queue=subject.queue,
            task=subject.task,
            dependency=about.partition("/")[0] if subject.name == "breaker_opened" else None,
            about=about,
        ):
            return True
        if subject.name not in ("dead_growth", "regressed") or not about:
            return False
        return read_annotations(store, [about]).get(about, NOTHING).muted(now_ms)

    def _forget(self, key: str, version: int, old: SentAlert) -> None:
        if old.pile.count:
            self._app.store.cells.swap([Swap(key, version, _encode(SentAlert(old.at_ms)), self._kept_ms)])

    def _claim_here(self, subject: AlertSubject, pile: Pile) -> Pile:
        left_s = self._sent_s.get(subject, -float("inf")) + self._every_ms / 1000 - time.monotonic()
        if left_s <= 0 or not pile.count:
            return pile
        self._again(subject, pile, min(left_s, AGAIN_S))
        return Pile()

    def _send(self, subject: AlertSubject, pile: Pile) -> None:
        try:
            self._tell_it(self._alert(subject, pile))
        except NotSent as error:
            self._postpone(subject, pile, str(error))
        except Exception:  # a bug in the function, so calling it again would fail, too
            _print(f"{self._channel} failed on an alert:\n{traceback.format_exc()}")

    def _postpone(self, subject: AlertSubject, pile: Pile, why: str) -> None:
        again_ms = int(min(AGAIN_S * 1000, self._every_ms))
        text = f"alert {subject.name} could not be sent, and is sent again in {again_ms / 1000:g} s: {why}"
        with contextlib.suppress(Exception):
            self._app.events.emit([Notice(name="alert_lost", at_ms=self._app.store.now_ms(), text=text)])
        try:
            key = self._key(subject)
            version, old = self._read(key)
            new = SentAlert(self._app.store.now_ms() - self._every_ms + again_ms, pile.plus(old.pile))
            if self._app.store.cells.swap([Swap(key, version, _encode(new), self._kept_ms)])[0]:
                self._list(subject)
                self._look_in(subject, again_ms / 1000)
                return
        except Exception:
            self._sent_s.pop(subject, None)
        self._again(subject, pile, again_ms / 1000)

    def _look_in(self, subject: AlertSubject, left_s: float) -> None:
        """Check the subject again in `left_s`; meanwhile store its new events every DEPOSIT_S, for the process that
        sends the alert."""
        with self._changed:
            self._look_s[subject] = time.monotonic() + left_s
            if subject in self._piles:
                self._look_s[subject] = time.monotonic() + min(left_s, DEPOSIT_S)

    def _list(self, subject: AlertSubject) -> None:
        """List a subject whose cell has waiting events, for the other processes; not if the store fails."""
        with contextlib.suppress(Exception):
            key, cells = self._key(_LIST), self._app.store.cells
            for _ in range(_SWAPS_MAX):
                (cell,) = cells.read([key])
                listed = decoded(cell, _decode_listed, [])
                if subject in listed[-LISTED_MAX // 2 :]:
                    return
                new = [*(each for each in listed if each != subject), subject][-LISTED_MAX:]
                if cells.swap([Swap(key, version_of(cell), _encode(new), 4 * self._kept_ms)])[0]:
                    return

    def _find(self) -> None:
        """Find the listed subjects with waiting events, which an ended process may have left, to check them when they
        are due. Do so again after `every`. Raises StoreError."""
        self._look_in(_LIST, max(self._every_ms / 1000, AGAIN_S))
        store = self._app.store
        listed = decoded(store.cells.read([self._key(_LIST)])[0], _decode_listed, [])
        listed = [subject for subject in listed if subject.name in self._names]
        for subject, cell in zip(listed, store.cells.read([self._key(each) for each in listed]), strict=True):
            old = decoded(cell, _decode_sent, SentAlert())
            if old.pile.count and subject not in self._look_s:
                left_ms = old.at_ms + self._every_ms - store.now_ms()
                self._look_in(subject, min(max(left_ms, 0), self._every_ms) / 1000)

    def _again(self, subject: AlertSubject, pile: Pile, in_s: float) -> None:
        with self._changed:
            self._add(subject, pile, in_s)

    def _read(self, key: str) -> tuple[int, SentAlert]:
        cell = self._app.store.cells.read([key])[0]
        return version_of(cell), decoded(cell, _decode_sent, SentAlert())

    def _key(self, subject: AlertSubject) -> str:
        key = "/".join(("alert", self._channel, *filter(None, subject)))
        return key if len(key.encode()) <= 200 else f"alert/{hashlib.sha256(key.encode()).hexdigest()}"

    def _alert(self, subject: AlertSubject, pile: Pile) -> Alert:
        return Alert(
            name=subject.name,
            text=visible(text_of(subject, pile)),
            count=pile.count,
            ids=pile.ids,
            task=visible(subject.task) or None,
            queue=visible(subject.queue) or None,
            about=visible(subject.about) or None,
            app=self._spec or spec_of(self._app),
            since=rfc3339(pile.since_ms),
            at=rfc3339(self._now_ms()),
            command=visible(command_of(subject, pile, place_of(self._app, self._spec or spec_of(self._app)))),
            runbook=runbook_of(subject.name),
            page=page_of(subject.name, subject.task, subject.queue, subject.about, pile.ids),
        )

    def _now_ms(self) -> int:
        try:
            return self._app.store.now_ms()
        except Exception:
            return int(time.time() * 1000)


def on(app: Registry, name: str, fn: Callable[[Alert], Any], every: Duration) -> Callable[[], None]:
    """Register `fn` for alerts of this name: see `App.on`."""
    watch = Watch(app, [name], sync_call(fn), channel=channel_of(app, name, fn), every_ms=milliseconds(every, "every"))
    return app.subscribe(watch)


def sync_call(fn: Callable[[Alert], Any]) -> Callable[[Alert], object]:
    """Return a synchronous function that calls `fn`, which may be `async def`, to its end."""
    if inspect.iscoroutinefunction(fn):
        return lambda alert: asyncio.run(fn(alert))
    return fn


def channel_of(app: Registry, name: str, fn: Callable[..., Any]) -> str:
    """Return the channel for alerts of this name to a function: its qualified name, the same in every process, with a
    number if the app has registered it more than once."""
    module = getattr(fn, "__module__", None) or "builtins"
    full = f"{module}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"
    numbers = _NUMBERS.setdefault(app, {})
    number = numbers[name, full] = numbers.get((name, full), 0) + 1
    return full if number == 1 else f"{full}#{number}"


_NUMBERS: weakref.WeakKeyDictionary[Registry, dict[tuple[str, str], int]] = weakref.WeakKeyDictionary()


def _print(text: str) -> None:
    print(many_lines(redact(f"redrive: {text}")), file=sys.stderr)


def _last_words(watch: weakref.ref[Watch]) -> None:
    current = watch()
    if current is not None:
        current.flush(LAST_WORDS_S)
