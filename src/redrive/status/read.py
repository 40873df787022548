"""Read the state of a store as one value: what `app.status()` returns and `redrive status` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from ..message import Counts, FailureGroup
from ..registry import Registry
from ..schedule.lateness import ScheduleStatus, schedule_statuses
from ..store import Store
from ..triage.annotations import Annotation, read_annotations
from ..triage.auto.machine import Machine, machines
from ..triage.controls import Control, Controls
from ..triage.redrive.run import RunView, views
from .hold import Hold, words
from .reasons import Reasons
from .workers import WorkerStatus, workers_of

RUNS_MAX = 100
FAILURES_MAX = 100
_UNCARRIED_MS = 10_000  # how long a run may wait for a worker


class Need(Struct, frozen=True, kw_only=True):
    """Something that needs a person: the area of `redrive status` that has the details, what it is, and the command
    that leads on, without the program's name."""

    area: str
    text: str
    next: str


class QueueStatus(Struct, frozen=True, kw_only=True):
    """A queue: its counts, and what holds its waiting messages, of the first 200 that were read."""

    name: str
    counts: Counts
    paused: bool = False
    holds: tuple[Hold, ...] = ()


class Status(Struct, frozen=True, kw_only=True):
    """What is going on in a store, at one moment. Times are ms of the store's clock.

    `needs` lists what needs a person; all is well if it is empty. `workers` are those that `tell` that they are alive,
    idle ones included, or that hold leases; where they do not tell, an idle one is not seen. `holds` are what keeps
    messages from running, over all queues. `failures` are the groups of dead messages, the largest first, with
    `annotations` by fingerprint. `schedules` are those of the app, late ones first. `runs` are the open redrive runs.
    `queues` are sorted by the age of their oldest message that is due.
    """

    at_ms: int
    needs: tuple[Need, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    tell: bool = False
    holds: tuple[Hold, ...] = ()
    failures: tuple[FailureGroup, ...] = ()
    annotations: Mapping[str, Annotation] = {}
    schedules: tuple[ScheduleStatus, ...] = ()
    runs: tuple[RunView, ...] = ()
    queues: tuple[QueueStatus, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing needs a person."""
        return not self.needs


def read_status(store: Store, app: Registry | None = None) -> Status:
    """The state of a store. Without `app`, its tasks, rules and schedules are unknown. Raises StoreError."""
    reasons = Reasons(store, app)
    queues = _queues(store, app, reasons)
    groups = tuple(store.failure_groups(trend=True)[:FAILURES_MAX]) if store.traits.triages else ()
    keeps_cells = store.traits.cells
    found = Status(
        at_ms=reasons.now_ms,
        workers=workers_of(store, reasons.now_ms, reasons.told),
        tell=reasons.told is not None,
        holds=_holds(queues, store, app, reasons) if keeps_cells else _all(queues),
        failures=groups,
        annotations=read_annotations(store, [group.fingerprint for group in groups]) if keeps_cells else {},
        schedules=schedule_statuses(app, store) if app is not None and keeps_cells else (),
        runs=tuple(run for run in views(store, RUNS_MAX) if not run.closed) if keeps_cells else (),
        queues=queues,
    )
    autos = {machine.scope: machine for machine in machines(store)} if keeps_cells else {}
    return replace(found, needs=tuple(_needs(found, autos, app)))


def _queues(store: Store, app: Registry | None, reasons: Reasons) -> tuple[QueueStatus, ...]:
    """The queues of the store and of the app, the one whose first due message has waited longest first."""
    declared = {task.queue for task in app.tasks.values()} | set(app.queues) if app is not None else set[str]()
    counts = dict.fromkeys(sorted(declared), Counts()) | store.counts_by_queue()
    paused = store.paused()
    found = [
        QueueStatus(name=name, counts=of, paused=name in paused, holds=reasons.of_queue(name, of))
        for name, of in counts.items()
    ]
    return tuple(sorted(found, key=lambda queue: (-queue.counts.oldest_age_s, queue.name)))


def _holds(queues: tuple[QueueStatus, ...], store: Store, app: Registry | None, reasons: Reasons) -> tuple[Hold, ...]:
    """What the queues' messages are held by, and dependencies that hold although nothing waits for them now."""
    found = _all(queues)
    known = {(hold.kind, hold.by) for hold in found}
    idle = [control for control in Controls(store, app).list(waiting=False) if _stopped(control)]
    rest = reasons.of_redrive((), (), [control.name for control in idle])
    return (*found, *(hold for hold in rest if (hold.kind, hold.by) not in known))


def _all(queues: tuple[QueueStatus, ...]) -> tuple[Hold, ...]:
    """One hold for each kind and origin, over all queues; those that need a person first."""
    found: dict[tuple[str, str], Hold] = {}
    for hold in (hold for queue in queues for hold in queue.holds):
        known = found.get((hold.kind, hold.by))
        if known is None:
            found[hold.kind, hold.by] = hold
        else:
            queue = hold.queue if hold.queue == known.queue else ""
            found[hold.kind, hold.by] = replace(known, count=known.count + hold.count, queue=queue)
    return tuple(sorted(found.values(), key=lambda hold: (not hold.needs_person, -hold.count)))


def _stopped(control: Control) -> bool:
    return control.breaker in ("open", "forced_open", "half_open") or control.cool_until_ms is not None


# -- what needs a person


def _needs(status: Status, autos: Mapping[str, Machine], app: Registry | None) -> Iterator[Need]:
    for hold in status.holds:
        if hold.needs_person:
            yield Need(area="held", text=hold.text, next=hold.next)
    yield from _dead(status, autos)
    quarantined = sum(queue.counts.quarantine for queue in status.queues)
    if quarantined:
        text = f"{_messages(quarantined)} in quarantine"
        yield Need(area="queues", text=text, next=words("dlq", "list", "lane:quarantine"))
    for schedule in status.schedules:
        if schedule.is_late:
            why = "no scheduler runs it" if schedule.unattended else "its ticks are late"
            next = words("scheduler", *((app.spec,) if app is not None and app.spec else ()))
            yield Need(area="schedules", text=f"schedule {schedule.name}: {why}", next=next)
    for run in status.runs:
        if run.state in ("paused", "stopped"):
            text = f"redrive run {run.id} is {run.state}" + (f": {run.why}" if run.why else "")
            yield Need(area="runs", text=text, next=words("run", "show", run.id))
        elif "approval" in run.why:
            text = f"redrive run {run.id}: {run.why}"
            yield Need(area="runs", text=text, next=words("run", "approve", run.id))
        elif not run.carried_by and status.at_ms - run.started_ms > _UNCARRIED_MS:
            text = f"redrive run {run.id} is open, and no worker carries it"
            yield Need(area="runs", text=text, next=words("run", "show", run.id))


def _dead(status: Status, autos: Mapping[str, Machine]) -> Iterator[Need]:
    """Dead messages that neither a rule, a mute nor an automatic redrive takes care of."""
    left = groups = known = 0
    for group in status.failures:
        about = status.annotations.get(group.fingerprint)
        if about is not None and (about.rule is not None or about.muted(status.at_ms)):
            known += group.count
            continue
        left, groups = left + group.count, groups + 1
    driven = sum(
        queue.counts.dead
        for queue in status.queues
        if (machine := autos.get(f"queue/{queue.name}")) is not None and machine.phase not in ("paused", "ended")
    )
    if left > driven:
        text = f"{_messages(left)} dead, in {groups:,} failure group{'s' * (groups > 1)}"
        text += f"; muted or under a rule: {known:,} more" if known else ""
        yield Need(area="failures", text=text, next=words("dlq", "groups"))


def _messages(count: int) -> str:
    return f"{count:,} message{'s are' if count > 1 else ' is'}"
