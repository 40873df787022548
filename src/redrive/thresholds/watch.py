"""Check rules every few seconds in one process of the fleet, and send alerts as they fire or are resolved.

The states of a rule's subjects are in one cell, with the time of the last check. A process that finds this time old
checks and swaps the cell, and sends if the swap succeeds. So any number of processes send each alert once, and a killed
process leaves the states. A kill between the swap and the sending loses that one alert; while it fires, it is sent
again after `every`. If the receiver refuses an alert, the cell is changed so that a check a minute later, in whatever
process, sends the alert again if it still holds.
"""

from __future__ import annotations

import hashlib
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..config import runbook_of
from ..duration import rfc3339
from ..errors import StoreError, Unsupported
from ..events import Notice, Notify, complain
from ..message import Filter, Swap, decoded, version_of
from ..observe.alert import BATCH_STATES, Alert, page_of, place_of, shell_line, spec_of, visible
from ..observe.alerts import AGAIN_S, NotSent
from ..registry import Registry
from ..store import Store
from ..triage.select.terms import as_node
from ..worker.services import Service
from .grouping import GROUPED, Surroundings, group_values, key_of, members, subject_of
from .machine import AlertState, step
from .measure import Figures, FigureSubject
from .rule import AlertRule, figure_text

LOOK_S = 5.0
REFUSED_S = 5.0  # seconds of refusals in one check after which a channel's other alerts wait for the next check
KEPT_MS = 7 * 24 * 3600 * 1000
AFFECTED_MAX, NAMED_MAX = 100, 5  # most tasks and queues that an alert lists, and that its text names
FIRING, RESOLVED = "firing", "resolved"


class Watched(NamedTuple):
    """A rule, the function that gets its alerts, and the name of that receiver, which is the same in every process."""

    rule: AlertRule
    tell: Callable[[Alert], object]
    channel: str

    @property
    def cell(self) -> str:
        """The key of the cell with the rule's states. It contains a hash of the rule, so a changed rule starts over."""
        of = msgspec.json.encode([self.channel, self.rule])
        return f"threshold/{self.rule.name}/{hashlib.blake2b(of, digest_size=8).hexdigest()}"


class _Kept(Struct, array_like=True):
    looked_ms: int = 0
    states: dict[str, AlertState] = {}
    groups: dict[str, str] = {}  # name of the dependency whose outage groups a subject, by the subject's key


class _StateChange(NamedTuple):
    subject: FigureSubject
    word: str
    state: AlertState
    affected: Sequence[FigureSubject] = ()  # the subjects that an outage groups under this one, the worst first


class Watching:
    """Checks the rules of an app, from a thread between `start` and `close`, or when `look` is called."""

    def __init__(self, app: Registry, rules: Sequence[Watched], *, app_spec: str | None = None) -> None:
        self._app, self._rules, self._spec = app, rules, app_spec
        self._unsent: list[tuple[Watched, _StateChange, int]] = []  # alerts to put off, each until this time in ms
        self._unkept: set[str] = set()  # names of alerts whose figures this store does not keep
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that checks the rules, if there are rules and the store has cells."""
        if self._rules and self._app.store.traits.cells:
            self._thread = threading.Thread(target=self._run, name="redrive-thresholds", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread; waits at most a second for a slow receiver of an alert."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            try:
                self.look()
            except StoreError:
                continue  # the worker itself reports an outage of the store
            except Exception:
                if not self._closed.is_set():
                    complain("looking at thresholds")

    def look(self) -> None:
        """Check once the rules that are due, and send their alerts. Raises StoreError."""
        self._put_off()  # what the last check could not store
        store, refused_s = self._app.store, dict[str, float]()
        figures, around = Figures(store, self._app), Surroundings(store, self._app)
        for watched in self._rules:
            if watched.rule.name not in self._unkept:
                try:
                    self._one(store, figures, around, watched, refused_s)
                except Unsupported as error:
                    self._unkept.add(watched.rule.name)
                    complain(f"the alert {watched.rule.name}: {error}")

    def _one(
        self, store: Store, figures: Figures, around: Surroundings, watched: Watched, refused_s: dict[str, float]
    ) -> None:
        """Check a rule if it is due, and send its alerts. `refused_s` has the seconds that the refusals of this check
        took, by channel."""
        (cell,) = store.cells.read([watched.cell])
        now_ms = store.now_ms()
        kept = decoded(cell, _kept, _Kept())
        if 0 <= now_ms - kept.looked_ms < LOOK_S * 900:
            return  # another process has just checked
        values = figures.of(watched.rule)
        left, changes = _step(watched.rule, kept, values, around, now_ms)
        swap = Swap(watched.cell, version_of(cell), msgspec.json.encode(left), KEPT_MS)
        if store.cells.swap([swap], durable=False)[0]:
            for each in changes:
                spent_s = refused_s.get(watched.channel, 0.0)
                if spent_s > REFUSED_S:
                    self._unsent.append((watched, each, now_ms))
                    continue
                began_s = time.monotonic()
                if not self._send(watched, each, now_ms):
                    refused_s[watched.channel] = spent_s + time.monotonic() - began_s
            self._put_off()

    def _send(self, watched: Watched, change: _StateChange, now_ms: int) -> bool:
        """Send an alert; return False if the receiver refuses it."""
        rule = watched.rule
        try:
            watched.tell(self._alert(rule, change, now_ms))
        except NotSent as error:
            again_ms = int(min(AGAIN_S * 1000, rule.every_ms))
            self._unsent.append((watched, change, now_ms + again_ms))
            text = f"alert {rule.name} could not be sent, and is sent again in {again_ms / 1000:g} s: {error}"
            self._app.events.emit([Notice(name="alert_lost", at_ms=now_ms, text=text)])
            return False
        except Exception:
            complain(f"{watched.channel} on an alert:\n{traceback.format_exc()}")
        return True

    def _put_off(self) -> None:
        """Store that the alerts which were not sent are to be sent again. Raises StoreError."""
        self._unsent = [each for each in self._unsent if not self._stored(*each)]

    def _stored(self, watched: Watched, change: _StateChange, again_ms: int) -> bool:
        (cell,) = self._app.store.cells.read([watched.cell])
        left = _unsent(watched.rule, decoded(cell, _kept, _Kept()), change, again_ms)
        if left is None:
            return True
        swap = Swap(watched.cell, version_of(cell), msgspec.json.encode(left), KEPT_MS)
        return self._app.store.cells.swap([swap], durable=False)[0]

    def _alert(self, rule: AlertRule, change: _StateChange, now_ms: int) -> Alert:
        subject, word, state, affected = change
        spec = self._spec or spec_of(self._app)
        since_ms = state.above_ms if word == FIRING else state.fired_ms
        return Alert(
            name=rule.name,
            text=visible(text_of(rule, subject, word, state, now_ms, affected)),
            count=1,
            task=visible(subject.task) or None,
            queue=visible(subject.queue) or None,
            about=visible(subject.about) or None,
            app=spec,
            since=rfc3339(since_ms),
            at=rfc3339(now_ms),
            command=visible(shell_line(_command(rule.name, subject, bool(affected)), place_of(self._app, spec))),
            state=word,
            value=round(state.value, 4),
            above=rule.above,
            runbook=runbook_of(rule.name),
            page=page_of(rule.name, subject.task, subject.queue, subject.about),
            affected=tuple(visible(place_in_words(each)) for each in affected[:AFFECTED_MAX]),
        )


def _step(
    rule: AlertRule, kept: _Kept, figures: Mapping[FigureSubject, float], around: Surroundings, now_ms: int
) -> tuple[_Kept, list[_StateChange]]:
    """Return the next states of a rule's subjects, and the changes that alerts report."""
    cause = around.cause if rule.name in GROUPED else lambda _: None
    values, groups = group_values(rule, kept.states, kept.groups, figures, cause)
    left: dict[str, AlertState] = {}
    changes: list[_StateChange] = []
    for key in sorted({*kept.states, *values}):
        subject = subject_of(key)
        group = members(groups, subject.about) if subject.about else ()
        before = kept.states.get(key) or _first_state(kept.states, group)
        value = values.get(key)
        muted = value is not None and value > rule.above and around.muted(subject)
        after, word = step(rule, before, value, now_ms, muted=muted)
        if after is not None:
            left[key] = after
        if word is not None:
            ranked = sorted(group, key=lambda each: -figures.get(each, 0.0))
            above = [each for each in ranked if figures.get(each, 0.0) > rule.above]
            changes.append(_StateChange(subject, word, after or before, above if word == FIRING else ranked))
    held = {key: name for key, name in groups.items() if key_of(FigureSubject(about=name)) in left}
    return _Kept(now_ms, left, held), changes


def _unsent(rule: AlertRule, kept: _Kept, change: _StateChange, again_ms: int) -> _Kept | None:
    """Return the states with which the first check after `again_ms` sends the alert again, if it still holds; None if
    the subject had another change since.

    A firing subject is due for its repetition then. A resolved subject fires on until then, as its receiver does not
    know better; if its value rises above the threshold again, the receiver is told that it fires.
    """
    subject, word, state, affected = change
    key, sent_ms = key_of(subject), again_ms - rule.every_ms
    now = kept.states.get(key)
    if word == FIRING:
        if now is None or now.sent_ms != state.sent_ms:
            return None
        return replace(kept, states=kept.states | {key: replace(now, sent_ms=sent_ms)})
    if now is not None and now.sent_ms:
        return None
    fires = replace(state, below_ms=again_ms - rule.for_ms, sent_ms=sent_ms)
    groups = {key_of(each): subject.about for each in affected} | kept.groups
    return replace(kept, states=kept.states | {key: fires}, groups=groups)


def _first_state(states: Mapping[str, AlertState], group: Sequence[FigureSubject]) -> AlertState:
    """Return the first state of a group: above the threshold since the first of its members was."""
    since = [state.above_ms for each in group if (state := states.get(key_of(each))) is not None]
    return AlertState(above_ms=min(since, default=0))


_kept = msgspec.json.Decoder(_Kept).decode


def place_in_words(subject: FigureSubject) -> str:
    """Return the subject's queue or task in words."""
    of = f"task {subject.task}" if subject.task else f"queue {subject.queue}"
    return f"{of} on queue {subject.queue}" if subject.task and subject.queue else of


def text_of(
    rule: AlertRule,
    subject: FigureSubject,
    word: str,
    state: AlertState,
    now_ms: int,
    affected: Sequence[FigureSubject] = (),
) -> str:
    """Return the text of an alert, in one sentence."""
    of = place_in_words(affected[0] if affected else subject)
    value, above, one = figure_text(rule.unit, state.value), figure_text(rule.unit, rule.above), state.value == 1
    what = {
        "depth": f"{value} messages wait on {of}",
        "dead": f"{value} messages are dead on {of}",
        "age": f"the oldest message that is due on {of} has waited {value}",
        "error_rate": f"{value} of the runs of {of} failed in the last 15 minutes",
        "p95": f"5% of the runs of {of} took longer than {value} in the last 15 minutes",
        "no_workers": f"no worker runs {of}, and {value} messages wait there",
        "worker_hung": f"worker {subject.about} is hung: it has not been able to begin a message for {value}",
        "slo_burn": f"the error budget of {of} burns {value} times as fast as it may",
        "schedule_late": f"schedule {subject.about} is {value} late",
        "batch_partial": f"{value} {'batch' if one else 'batches'} named {subject.about} wait{'s' * one} for a redrive",
        "batch_unsealed": f"a batch named {subject.about} is not sealed, and nothing was added to it for {value}",
    }[rule.name]
    if affected:
        named = ", ".join(place_in_words(each) for each in affected[:NAMED_MAX])
        rest = f" and {len(affected) - NAMED_MAX:,} more" if len(affected) > NAMED_MAX else ""
        what = f"the breaker of {subject.about} opened: {what}; affected: {named}{rest}"
    if word == RESOLVED:
        return f"resolved after {figure_text('seconds', (now_ms - state.fired_ms) / 1000)}: {what}"
    plain = not rule.above and rule.name in ("no_workers", "worker_hung", "slo_burn", "batch_partial")
    return what if plain else f"{what}; the threshold is {above}"


def _command(name: str, subject: FigureSubject, is_group: bool) -> Sequence[str]:
    if is_group:
        return ["flow", "show", subject.about]
    match name:
        case "dead":
            return ["dlq", "groups", *filter(None, [str(as_node(Filter(queue=subject.queue or None)))])]
        case "error_rate" | "p95":
            of = ["--queue", subject.queue, "--task", subject.task]
            return ["history", *(word for word in of if word), "--since", "1h"]
        case "slo_burn":
            return ["slo"]
        case "schedule_late":
            return ["schedule", "list"]
        case "no_workers" | "worker_hung":
            return ["workers"]
        case "batch_partial" | "batch_unsealed":
            return ["batch", "list", "--name", subject.about, "--state", BATCH_STATES[name]]
        case _:
            return ["status"]


class WatchService(Service):
    """Watches the thresholds of these rules beside a worker."""

    def __init__(self, app: Registry, rules: Sequence[Watched], name: str, change: Notify) -> None:
        self._watching = Watching(app, rules)

    def begin(self) -> None:
        self._watching.start()

    def close(self) -> None:
        self._watching.close()


@contextmanager
def watching(app: Registry, rules: Collection[Watched]) -> Iterator[None]:
    """Watch the thresholds of these rules until the block ends."""
    watch = Watching(app, [*rules])
    watch.start()
    try:
        yield
    finally:
        watch.close()
