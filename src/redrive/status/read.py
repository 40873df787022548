"""Read the state of a store as one value: what `app.status()` returns and `redrive status` shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from ..history import read_objectives
from ..message import Counts, FailureGroup
from ..presence import with_claimed
from ..registry import Registry
from ..schedule.lateness import schedule_statuses
from ..store import Store
from ..triage.annotations import read_annotations
from ..triage.auto.machine import machines
from ..triage.controls import Control, Controls
from ..triage.group_states import combined, held_counts, read_states
from ..triage.redrive.run import views
from .batches import ReadBatches, batch_causes, read_batches
from .hold import Hold, words
from .needs import NeedSources, needs_of
from .reasons import Reasons
from .record import QueueStatus, Status
from .workers import workers_of

HOLDS_MAX = 100  # the most holds of one kind
_MORE = {
    "no_worker": "no worker runs {:,} more queues, and messages are due there",
    "pause": "{:,} more queues are paused",
    "task_pause": "{:,} more tasks or patterns of tasks are paused",
    "group": "{:,} more groups wait",
}
RUNS_MAX = 100
FAILURES_MAX = 100


def read_status(store: Store, app: Registry | None = None) -> Status:
    """Read the state of a store. Without `app`, its tasks, rules and schedules are unknown. Raises StoreError."""
    reasons = Reasons(store, app)
    queues = _queues(store, app, reasons)
    keeps_cells, states = store.traits.cells, read_states(store)
    every = combined(states, store.failure_groups(trend=True)) if store.traits.triages else ()
    groups = tuple(every[:FAILURES_MAX])
    died = {group.fingerprint for group in every}
    told = [group.fingerprint for group in groups]
    told += [each for each, of in states.items() if each in died or of.regressed_ms]
    runs = views(store, RUNS_MAX) if keeps_cells else []
    controls = Controls(store, app).list(waiting=False) if keeps_cells else []
    batches = read_batches(store) if keeps_cells else ReadBatches()
    bare = Status(
        at_ms=reasons.now_ms,
        workers=workers_of(store, reasons.now_ms, reasons.workers),
        tell=reasons.workers is not None,
        holds=_holds(queues, controls, reasons),
        failures=groups,
        annotations=read_annotations(store, [*dict.fromkeys(told)]) if keeps_cells else {},
        schedules=schedule_statuses(app, store) if app is not None and keeps_cells else (),
        runs=tuple(run for run in runs if not run.closed),
        queues=queues,
        unread=reasons.unread,
        unread_batches=batches.unread,
        group_count=len(every),
        dead_by_task=_by_task(every),
        held=held_counts(store, states) if any(queue.counts.dead for queue in queues) else {},
    )
    seen = NeedSources(
        status=bare,
        app=app,
        autos={machine.scope: machine for machine in machines(store)} if keeps_cells else {},
        runs=runs,
        forced=[
            Controls(store, app).show(control.name, waiting=False)
            for control in controls
            if control.breaker == "forced_closed"
        ],
        objectives=read_objectives(store, app) if app is not None and keeps_cells else (),
        batches=batches.found,
        causes=batch_causes(store, batches.found),
    )
    return replace(bare, needs=needs_of(seen))


def _by_task(groups: Sequence[FailureGroup]) -> Mapping[str, int]:
    found = Counter[str]()
    for group in groups:
        found[group.task] += group.count
    return found


def _queues(store: Store, app: Registry | None, reasons: Reasons) -> tuple[QueueStatus, ...]:
    """Return the queues of the store and the app, the one whose oldest due message has waited longest first."""
    declared = app.queue_names if app is not None else ()
    counts = dict.fromkeys(sorted(declared), Counts()) | store.counts_by_queue()
    counts = with_claimed(counts, reasons.workers)
    paused, holds = store.paused(), reasons.of_queues(counts)
    statuses = [
        QueueStatus(name=name, counts=of, paused=name in paused, holds=holds[name]) for name, of in counts.items()
    ]
    return tuple(sorted(statuses, key=_order))


def _order(queue: QueueStatus) -> tuple[float, int, str]:
    counts = queue.counts
    return -counts.oldest_age_s, -(counts.dead + counts.quarantine), queue.name


def _holds(queues: tuple[QueueStatus, ...], controls: Sequence[Control], reasons: Reasons) -> tuple[Hold, ...]:
    """Return the holds of the queues' messages, and of stopped dependencies and paused tasks without any."""
    holds = _all(queues)
    known = {(hold.kind, hold.by) for hold in holds}
    idle = [control for control in controls if _is_stopped(control)]
    rest = [
        *reasons.of_redrive((), (), [control.name for control in idle]),
        *map(reasons.task_hold, reasons.task_pauses.values()),
    ]
    return (*holds, *(hold for hold in rest if (hold.kind, hold.by) not in known))


def _all(queues: tuple[QueueStatus, ...]) -> tuple[Hold, ...]:
    """Return the holds of all queues, merged by kind and origin; those that need a person first."""
    merged: dict[tuple[str, str], Hold] = {}
    for hold in (hold for queue in queues for hold in queue.holds):
        known = merged.get((hold.kind, hold.by))
        if known is None:
            merged[hold.kind, hold.by] = hold
        else:
            queue = hold.queue if hold.queue == known.queue else ""
            merged[hold.kind, hold.by] = replace(known, count=known.count + hold.count, queue=queue)
    return tuple(_fold(sorted(merged.values(), key=lambda hold: (not hold.needs_person, -hold.count))))


def _fold(holds: Sequence[Hold]) -> Iterator[Hold]:
    """Yield the first HOLDS_MAX holds of each kind, and one that sums up the rest of the kind."""
    seen, more = Counter[str](), dict[str, list[Hold]]()
    for hold in holds:
        seen[hold.kind] += 1
        if seen[hold.kind] <= HOLDS_MAX:
            yield hold
        else:
            more.setdefault(hold.kind, []).append(hold)
    for kind, some in more.items():
        text = _MORE.get(kind, "{:,} more of that kind hold messages").format(len(some))
        count, person = sum(hold.count for hold in some), some[0].needs_person
        yield Hold(
            kind="more", by=f"{kind}, {len(some):,} more", text=text, next=words("queue", "list"), needs_person=person,
            count=count,
        )  # fmt: skip


def _is_stopped(control: Control) -> bool:
    return control.breaker in ("open", "forced_open", "half_open") or control.cool_until_ms is not None
