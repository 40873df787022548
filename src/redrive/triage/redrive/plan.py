"""Plan a redrive: freeze the messages it would move, show them, and start the run. Planning moves nothing."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from ...audit import signed
from ...duration import Duration, milliseconds, show
from ...errors import PlanRefused
from ...ids import new_id
from ...message import Handle, Message, Swap
from ...registry import Registry
from ...store import Store
from .options import PlanOptions, read_settings
from .pacing import MAX_PER_S, STEP_MS
from .records import (
    CHUNK,
    PLAN_KEPT_MS,
    Plan,
    RedriveSettings,
    check,
    chunk_cell,
    note_recent,
    plan_cell,
    read_chunk,
    read_plan,
    sealed,
    state_cell,
)
from .run import Run, begin

MAX_AGE = "24h"
NAMES_MAX, OTHERS = 1000, "…"  # most queues, or tasks, that are counted by name; the name of the rest
AGES = ("<1h", "<6h", "<1d", "<7d", "<30d", ">=30d")  # ranges of time since death
_AGES_MS = [hours * 3_600_000 for hours in (1, 6, 24, 7 * 24, 30 * 24)]
CANARY_S = 1.0  # seconds until the outcomes of a canary, for the estimate


def is_edit(options: PlanOptions, *, scheduled: bool) -> bool:
    """Return whether a plan with these options over waiting messages is an edit. `scheduled`: none of them is due, so
    that a delay alone is no edit: the plan gives them another due time."""
    given: Mapping[str, Any] = options
    if any(given.get(name) is not None for name in ("priority", "deadline", "to_queue")) or given.get("cancel"):
        return True
    return not scheduled and any(given.get(name) not in (None, 0, "0s") for name in ("delay", "spread"))


class PlanHandle:
    """A stored plan: `plan` is its content, `start` starts its run."""

    def __init__(self, store: Store, plan: Plan, app: Registry | None = None) -> None:
        self.plan = plan
        self._store, self._app = store, app

    @classmethod
    def make(
        cls,
        store: Store,
        messages: Iterable[Message],
        selector: str,
        options: PlanOptions,
        *,
        app: Registry | None = None,
        excluded: Mapping[str, int] | None = None,
        hurry: bool = False,
        edit: bool = False,
    ) -> PlanHandle:
        """Store a new plan of these messages, with `hurry` or `edit` of waiting ones. Raises as `read_settings` and
        `draw_up`."""
        settings = read_settings(hurry=hurry, edit=edit, **options)
        return cls(store, draw_up(store, messages, selector, settings, app=app, excluded=excluded), app)

    @classmethod
    def find(cls, store: Store, id: str, app: Registry | None = None) -> PlanHandle:
        """Return the stored plan with this id. Raises PlanRefused."""
        return cls(store, _read(store, id), app)

    @property
    def id(self) -> str:
        """The id of the plan, and of its run."""
        return self.plan.id

    @property
    def total(self) -> int:
        """The number of messages that the plan would move."""
        return self.plan.total

    @property
    def by_queue(self) -> Mapping[str, int]:
        """The number of messages by queue, the largest first."""
        return self.plan.by_queue

    @property
    def by_task(self) -> Mapping[str, int]:
        """The number of messages by task, the largest first."""
        return self.plan.by_task

    @property
    def by_age(self) -> Mapping[str, int]:
        """The number of messages by range of the time since their death, or until waiting ones are due."""
        return self.plan.by_age

    @property
    def excluded(self) -> Mapping[str, int]:
        """The number of messages left out, by reason: quarantined, held, damaged, no such task, unread."""
        return self.plan.excluded

    @property
    def eta_s(self) -> float:
        """The estimated duration of the run in seconds, if nothing fails or delays it."""
        return self.plan.eta_s

    def __repr__(self) -> str:
        return f"<plan {self.id}: {self.total} messages in about {show(self.eta_s)}>"

    def handles(self) -> Iterator[Handle]:
        """Yield the messages of the plan, as they were when it was made. Raises PlanRefused if the plan has expired."""
        for n in range(self.plan.chunks):
            yield from read_chunk(self._store.cells, self.id, n)

    def ids(self) -> Iterator[str]:
        return (handle.id for handle in self.handles())

    def check(self, *, reason: str, max_age: Duration | None = MAX_AGE) -> None:
        """Raise PlanRefused if `start` would: no reason, or the plan is unknown, applied, altered, too old or empty.

        `max_age` bounds the age of the plan; None: no bound except its expiry.
        """
        if not reason or not reason.strip():
            raise PlanRefused("no reason is given", "say why it is done: the audit log keeps it", "reason")
        (run,) = self._store.cells.read([state_cell(self.id)])
        if run is not None:
            why = "one plan makes one run; draw up another for what is still dead"
            raise PlanRefused(f"plan {self.id} was applied already", why, "applied")
        if _read(self._store, self.id) != self.plan:
            raise PlanRefused(f"plan {self.id} was altered since it was drawn up", "draw up another", "altered")
        check(self._store.cells, self.plan)
        self._check_age(max_age)
        if not self.total:
            raise PlanRefused(f"plan {self.id} is empty", f"nothing was chosen by {self.plan.selector!r}", "empty")

    def start(self, *, reason: str, actor: str | None = None, max_age: Duration | None = MAX_AGE) -> Run:
        """Start the run: from now on any worker on the store runs it, and `run.wait()` does too.

        The audit log and the story of the run record `reason` and `actor` (default: user@host). Raises PlanRefused as
        `check`, ConfigError, StoreError.
        """
        self.check(reason=reason, max_age=max_age)
        name, why = signed(actor, reason, f"start of plan {self.id}")
        begin(self._store, self.plan, actor=name, reason=why)
        return Run(self._store, self.id, self._app)

    def _check_age(self, max_age: Duration | None) -> None:
        past_ms = self._store.now_ms() - self.plan.made_ms
        if max_age is not None and past_ms > milliseconds(max_age, "max_age"):
            most, past = show(milliseconds(max_age, "max_age") / 1000), show(past_ms / 1000)
            why = f"at most {most} is allowed; draw up another, for what is dead now"
            raise PlanRefused(f"plan {self.id} was drawn up {past} ago", why, "old")


def draw_up(
    store: Store,
    messages: Iterable[Message],
    selector: str,
    settings: RedriveSettings,
    *,
    app: Registry | None = None,
    excluded: Mapping[str, int] | None = None,
) -> Plan:
    """Store a plan of these messages, with one chunk of them in memory at a time. With `settings.hurry` or
    `settings.edit` they wait, otherwise they are at rest.

    `excluded` counts the messages left out, by reason; it is read after the last message. Raises StoreError.
    """
    made_ms = store.now_ms()
    id, digest, total, count = new_id(made_ms), hashlib.sha256(), 0, 0
    counts = _Counts(made_ms)
    for some in chunks(messages):
        edit, hurry = settings.edit, settings.hurry  # the first fields of a Handle
        frozen = [m.edit_handle if edit else m.waiting_handle[:5] if hurry else m.handle[:3] for m in some]
        value = msgspec.json.encode(frozen)
        store.cells.swap([Swap(chunk_cell(id, count), 0, value, PLAN_KEPT_MS)])
        digest.update(value)
        counts.add(some)
        total, count = total + len(some), count + 1
    settings = fitted(settings, total, unwatched=settings.edit and (settings.cancel or counts.later > 0))
    plan = Plan(
        id=id,
        selector=selector,
        made_ms=made_ms,
        settings=settings,
        total=total,
        chunks=count,
        by_queue=_largest(counts.queues),
        by_task=_largest(counts.tasks),
        by_age={age: counts.ages[n] for n, age in enumerate(AGES) if counts.ages[n]},
        excluded={why: count for why, count in (excluded or {}).items() if count},
        eta_s=estimate_s(settings, total),
        dependencies={} if settings.edit else _dependencies(app, counts.tasks),
        lasting=counts.members if settings.cancel else 0,
    )
    plan = replace(plan, digest=sealed(digest, plan))
    store.cells.swap([Swap(plan_cell(id), 0, msgspec.json.encode(plan), PLAN_KEPT_MS)])
    note_recent(store.cells, id)
    return plan


class _Counts:
    """Counts the messages of a plan by queue, task and time since death, or until they are due."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.queues: Counter[str] = Counter()
        self.tasks: Counter[str] = Counter()
        self.ages: Counter[int] = Counter()  # number of messages by index in AGES
        self.later = self.members = 0  # number of messages that are not due yet; of members of groups and batches

    def add(self, messages: Sequence[Message]) -> None:
        self.queues.update(m.queue for m in messages)
        self.tasks.update(m.task for m in messages)
        now_ms = self.now_ms
        self.later += sum((m.due_ms or 0) > now_ms for m in messages)
        self.members += sum(m.group is not None or m.batch is not None for m in messages)
        self.ages.update(bisect_right(_AGES_MS, abs(now_ms - (m.rested_ms or m.due_ms or now_ms))) for m in messages)


def chunks(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Yield lists of CHUNK messages, in order."""
    rest = iter(messages)
    while some := list(islice(rest, CHUNK)):
        yield some


def _largest(counts: Counter[str]) -> dict[str, int]:
    """Sort counts by name, the largest first. Names beyond NAMES_MAX are counted as one, to bound the plan's size."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    others = sum(count for _, count in ranked[NAMES_MAX:])
    return dict(ranked[:NAMES_MAX]) | ({OTHERS: others} if others else {})


def _dependencies(app: Registry | None, tasks: Iterable[str]) -> dict[str, str]:
    """Return the dependency by task. A task without one uses the dependency of the task's name, if the app has it."""
    if app is None:
        return {}
    named = {name: app.tasks[name].dependency or name for name in sorted(tasks) if name in app.tasks}
    return {task: d for task, d in named.items() if app.tasks[task].dependency == d or d in app.dependencies}


def _read(store: Store, id: str) -> Plan:
    plan = read_plan(store.cells, id)
    if plan is None:
        kept = show(PLAN_KEPT_MS / 1000)
        raise PlanRefused(f"there is no plan {id!r}", f"a plan that is not applied is kept for {kept}", "unknown")
    return plan


def estimate_s(settings: RedriveSettings, total: int) -> float:
    """Return the seconds until all messages are due, if nothing fails, delays or stops the run.

    Slow start moves 1/s for 10 s, then 2/s, 4/s, … up to the rate. The outcomes of a canary take a second.

    >>> estimate_s(RedriveSettings(rate=20.0), 100), estimate_s(RedriveSettings(rate=100.0, slow_start=True), 1270)
    (5.0, 70.0)
    """
    rate, left, past_s = settings.rate or MAX_PER_S, float(total), 0.0
    per_s = min(1.0, rate) if settings.slow_start else rate
    while per_s < rate and left > per_s * STEP_MS / 1000:
        left -= per_s * STEP_MS / 1000
        past_s += STEP_MS / 1000
        per_s = min(rate, per_s * 2)
    past_s += left / per_s
    canary_s = CANARY_S if 0 < settings.canary < total else 0.0
    waits_s = (settings.delay_ms + settings.spread_ms) / 1000 if total else 0.0
    return round(past_s + canary_s + waits_s, 3)


def fitted(settings: RedriveSettings, total: int, *, unwatched: bool = False) -> RedriveSettings:
    """Return the settings without canary and slow start if the plan has no more messages than its canary; if their
    outcomes are not awaited, without a stop rule as well."""
    if unwatched:
        return replace(settings, canary=0, slow_start=False, halve_on_failures=False, stop_if="", unwatched=True)
    return replace(settings, canary=0, slow_start=False) if total <= settings.canary else settings
