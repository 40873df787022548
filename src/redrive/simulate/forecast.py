"""Forecast what a plan, an open breaker and a queue will do, from a store's history, by the simulator.

The cost is bounded: at most SIMULATED_MAX messages are simulated, LOOKED waiting messages read, and RUNS_READ runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..decide import Policy
from ..errors import Unsupported
from ..flow import breaker as breakers
from ..flow import dependency as flow
from ..flow.breaker import Breaker
from ..flow.budget import Budget
from ..flow.dependency import Dependency, DependencyState
from ..history import Tally, counts_of, read_history
from ..history.names import read_names
from ..history.recorder import SeriesName
from ..history.tally import tally_of
from ..message import Filter, Lane, Message
from ..presence import WorkerInfo, read_workers
from ..registry import Registry
from ..store import Store
from ..triage.controls import LOOKED, Control
from ..triage.redrive.pacing import MAX_PER_S
from ..triage.redrive.plan import estimate_s
from ..triage.redrive.records import Plan, RunStatus, decode_state, index, plan_cell, state_cell
from ..worker.flow.local_state import controls
from .scenario import LoadPhase, PlannedRedrive, Scenario, Simulated, simulate
from .service import ModelService, ServicePhase
from .world import FleetSize

SIMULATED_MAX = 3_000  # the most messages of one simulation
RUNS_READ = 50  # closed runs among which those like a plan are looked for
LIKE_MAX = 10  # the most of them that count, the newest first
NAMES_MAX = 50  # the most queues and tasks whose history is read
LATELY_S, HOUR_S = 300, 3600
OPEN_FOR_S = (300, 1800, 14_400)  # for how long a breaker may stay open in a forecast
LATENCY_MS = 50.0  # assumed where nothing is known
PROCESSES_MAX = 64
PROCESSOR_BOUND = 0.8  # the share of one processor from which a worker's calls wait for it
_CLAIMS_LEAST = 10.0  # a second: with fewer, what a worker needs at rest would count as the cost of its messages
_PLACES = 20


class PlanForecast(Struct, frozen=True, kw_only=True):
    """What the run of a plan will do, if the dependency is as it was lately.

    `peak_per_s` is the most calls that it adds in a second, beside `took_per_s` and `took_most_per_s`, which its tasks
    made in the last hour and in the busiest minute of it (None: no history). `over_s` is how long the run lasts (None:
    longer than the simulation), `failed` how many of its messages fail at first, `stopped` why it stops itself.

    `fails` is the share of failures that is assumed, by `basis`: "earlier runs", "the last 5m" or "nothing known". Of
    `like` earlier runs of these tasks, `came_through` were done, with `like_done` and `like_failed` messages.
    `workers` is how many run its queues now; if none, one with 20 places is assumed. `processor` is how much of a
    processor each of them needs at the peak, by what messages lately cost it (None: unknown). The simulation knows no
    processors, so from PROCESSOR_BOUND on calls wait for one and last longer than foretold.
    """

    made_ms: int
    total: int
    peak_per_s: float
    took_per_s: float | None
    took_most_per_s: float | None
    over_s: float | None
    failed: int
    stopped: str
    fails: float
    basis: str
    like: int
    came_through: int
    like_done: int
    like_failed: int
    workers: int
    processor: float | None = None

    @property
    def processor_bound(self) -> bool:
        """True if calls will wait for a processor."""
        return self.processor is not None and self.processor >= PROCESSOR_BOUND


class BreakerReturn(Struct, frozen=True):
    """What comes of an opening that lasts `open_s` longer: `died` messages, `peak_per_s` calls in the busiest second
    after it, and `gone_s` from its end until nothing waits (None: longer than the simulation)."""

    open_s: float
    died: int
    peak_per_s: float
    gone_s: float | None


class BreakerForecast(Struct, frozen=True, kw_only=True):
    """What an open breaker holds back: `waiting` messages, while `in_per_s` come. `soon` says what comes back if the
    next probes succeed, `later` what if it stays open for longer."""

    waiting: int
    in_per_s: float
    soon: BreakerReturn
    first_minute: Sequence[int]  # calls in each of the first 60 seconds after it closes
    later: Sequence[BreakerReturn]


class QueueForecast(Struct, frozen=True):
    """When a queue's backlog is gone at the rates of the last five minutes. `gone_s` is None if it never is, or if
    nothing is known (`in_per_s` and `out_per_s` are None)."""

    waiting: int
    in_per_s: float | None
    out_per_s: float | None
    gone_s: float | None


def forecast_plan(store: Store, app: Registry | None, plan: Plan) -> PlanForecast | None:
    """Return the forecast of a plan; None for an empty one, and for an edit, which calls nothing. Raises StoreError."""
    if not plan.total or plan.settings.edit:
        return None
    now_ms, tasks = store.now_ms(), [*plan.by_task]
    hour = _minutes(store, tasks, now_ms)
    like = _runs_like(store, plan)
    done, failed = sum(d for _, d, _ in like), sum(f for _, _, f in like)
    basis, well, ill = "earlier runs", done, failed
    if not done + failed:
        lately = _minutes(store, tasks, now_ms, LATELY_S) or []
        basis, well, ill = "the last 5m", sum(t.done for t in lately), sum(t.failed for t in lately)
    fails, basis = (ill / (well + ill), basis) if well + ill else (0.0, "nothing known")
    d = _dependency(app, plan)
    queues = [plan.settings.to_queue] if plan.settings.to_queue else [*plan.by_queue]
    fleet, alive = _fleet(store, queues)
    count = min(plan.total, SIMULATED_MAX)
    scenario = Scenario(
        redrive=PlannedRedrive(total=count, settings=plan.settings),
        policy=_policy(app, tasks[0]),
        dependency=d,
        service=ModelService(latency_ms=_latency_ms(store, tasks, now_ms), fails=fails),
        fleet=_less_busy(fleet, hour),
        start_ms=now_ms,
        state=_state(store, d),
    )
    came = simulate(scenario)
    stretch = estimate_s(plan.settings, plan.total) / max(1e-9, estimate_s(plan.settings, count))
    peak_per_s = float(max(came.peak_per_s, (plan.settings.rate or MAX_PER_S) if plan.total > count else 0))
    return PlanForecast(
        made_ms=now_ms,
        total=plan.total,
        peak_per_s=peak_per_s,
        took_per_s=None if hour is None else sum(map(_ended, hour)) / HOUR_S,
        took_most_per_s=None if hour is None else max((_ended(tally) for tally in hour), default=0) / 60,
        over_s=None if came.over_s is None else came.over_s if came.stopped else came.over_s * stretch,
        failed=came.failed if came.stopped else round(came.failed * plan.total / count),
        stopped=came.stopped,
        fails=fails,
        basis=basis,
        like=len(like),
        came_through=sum(status is RunStatus.DONE for status, _, _ in like),
        like_done=done,
        like_failed=failed,
        workers=len(alive),
        processor=_processor(alive, peak_per_s),
    )


def forecast_breaker(store: Store, app: Registry | None, control: Control) -> BreakerForecast | None:
    """Return what an open breaker will do; None if it is closed and at rest, or no app tells which tasks it holds. One
    of a dependency that is split by `per` is forecast for one key. Raises StoreError."""
    ramp = control.ramp_per_s is not None
    if app is None or not (control.breaker in ("open", "half_open", "forced_open") or ramp):
        return None
    tasks = [t for t in app.tasks.values() if any(c.name == control.name for c in controls(app, t.name, t.queue))]
    if not tasks or not store.traits.finds:
        return None
    now_ms = store.now_ms()
    rule = next(c for c in controls(app, tasks[0].name, tasks[0].queue) if c.name == control.name)
    some, waiting = _waiting(store, [t.name for t in tasks], sorted({t.queue for t in tasks}), rule, control.key)
    hour = None if control.key else _minutes(store, [t.name for t in tasks], now_ms)
    in_per_s = 0.0 if hour is None else sum(tally.enqueued for tally in hour) / HOUR_S
    state = flow.decode(store.cells.read([flow.cell_of(control.name, control.key)])[0])
    if rule.breaker is not None and state.breaker.status == "forced_open":
        state = flow.with_breaker(state, breakers.force(state.breaker, rule.breaker, "auto", now_ms))
    fleet, _ = _fleet(store, sorted({t.queue for t in tasks}))
    whole = Scenario(
        policy=tasks[0].policy,
        dependency=replace(rule, per=None, parent=None),
        service=ModelService(latency_ms=_latency_ms(store, [t.name for t in tasks], now_ms)),
        fleet=fleet,
        start_ms=now_ms,
        state=state,
    )
    room = SIMULATED_MAX - min(waiting, SIMULATED_MAX // 2)
    backlog = tuple(_more(some, min(waiting, SIMULATED_MAX // 2)))
    soon, first_minute = _return(whole, backlog, waiting, in_per_s, 0.0, room)
    later = [_return(whole, backlog, waiting, in_per_s, open_s, room)[0] for open_s in OPEN_FOR_S]
    return BreakerForecast(waiting=waiting, in_per_s=in_per_s, soon=soon, first_minute=first_minute, later=tuple(later))


def _return(
    whole: Scenario, backlog: Sequence[Message], waiting: int, in_per_s: float, open_s: float, room: int
) -> tuple[BreakerReturn, Sequence[int]]:
    """Simulate a dependency that is down for `open_s` more, then up; at most `room` new messages come."""
    load_s = open_s + LATELY_S
    least = min(1.0, room / max(1.0, in_per_s * load_s))  # of what comes, this share is simulated
    came = simulate(
        replace(
            whole,
            backlog=tuple(backlog),
            load=(LoadPhase(0.0, load_s, in_per_s * least),) if in_per_s else (),
            service=replace(whole.service, phases=(ServicePhase(0.0, open_s, 1.0),) if open_s else ()),
        )
    )
    scale = (waiting + in_per_s * load_s) / max(1.0, len(backlog) + in_per_s * least * load_s)
    closed_s = next((at_s for at_s, status in came.breaker if status == "closed" and at_s >= open_s), open_s)
    calls = came.calls[int(closed_s) :]
    gone_s = _gone_s(came, closed_s)
    if gone_s is not None and scale > 1:  # what is not simulated goes at the highest rate that was reached
        gone_s += (scale - 1) * sum(calls) / max(1, *calls) if calls else 0.0
    died = round(sum(came.dead.values()) * scale)
    return BreakerReturn(open_s, died, float(max(calls, default=0)), gone_s), tuple(calls[:60])


def _gone_s(came: Simulated, closed_s: float) -> float | None:
    """Return the seconds from `closed_s` until the backlog was gone: nothing that came in an earlier second waits."""
    waiting, gone = came.messages - sum(came.arrived), None
    for second in range(max(len(came.arrived), len(came.done), len(came.deaths))):
        arrived, ended = _at(came.arrived, second), _at(came.done, second) + _at(came.deaths, second)
        waiting += arrived - ended
        if second >= closed_s and waiting <= max(1, 2 * arrived):
            gone = second + 1 - closed_s
            break
    return gone if gone is not None or came.drained_s is None else max(0.0, came.drained_s - closed_s)


def _at(counts: Sequence[int], second: int) -> int:
    return counts[second] if second < len(counts) else 0


def forecast_queue(store: Store, queue: str) -> QueueForecast:
    """Return when the backlog of a queue is gone. Raises StoreError."""
    counts = store.counts(queue)
    waiting = counts.ready + counts.scheduled + counts.leased
    try:
        past = read_history(store, queue, since=LATELY_S, step=60)
    except Unsupported:
        return QueueForecast(waiting, None, None, None if waiting else 0.0)
    if not past.points:
        return QueueForecast(waiting, None, None, None if waiting else 0.0)
    span_s = max(60.0, (past.until_ms - max(past.since_ms, past.points[0].at_ms)) / 1000)
    total = past.total
    moved = sum(total.redriven.values())
    gone = sum(total.outcomes.get(word, 0) for word in ("done", "dead", "quarantined", "cancelled"))
    in_per_s, out_per_s = (total.enqueued + moved) / span_s, gone / span_s
    if not waiting:
        return QueueForecast(0, in_per_s, out_per_s, 0.0)
    gain = out_per_s - in_per_s
    return QueueForecast(waiting, in_per_s, out_per_s, waiting / gain if gain > 1e-9 else None)


# -- what is read


def _minutes(store: Store, tasks: Collection[str], now_ms: int, back_s: int = HOUR_S) -> list[Tally] | None:
    """Return the counts of these tasks in each minute with any, of the last time; None without a history."""
    if not store.traits.cells:
        return None
    names = _names(store, tasks)
    minutes: dict[int, dict[str, int]] = {}
    for at_ms, key, count in counts_of(store, names, now_ms - back_s * 1000, now_ms):
        of = minutes.setdefault(at_ms - at_ms % 60_000, {})
        of[key] = of.get(key, 0) + count
    return [tally_of(counts) for counts in minutes.values()]


def _names(store: Store, tasks: Collection[str]) -> list[SeriesName]:
    return [name for name in sorted(read_names(store)) if name[1] in tasks][:NAMES_MAX]


def _ended(tally: Tally) -> int:
    return tally.done + tally.failed


def _latency_ms(store: Store, tasks: Collection[str], now_ms: int) -> float:
    """Return the mean duration of these tasks' runs in the last three hours."""
    if not store.traits.cells:
        return LATENCY_MS
    count = sum_ms = 0
    for _, key, number in counts_of(store, _names(store, tasks), now_ms - 3 * HOUR_S * 1000, now_ms):
        if key == "R+":
            sum_ms += number
        elif key[0] == "R":
            count += number
    return max(1.0, sum_ms / count) if count else LATENCY_MS


def _runs_like(store: Store, plan: Plan) -> list[tuple[RunStatus, int, int]]:
    """Return status, done and failed messages of the last closed runs that moved a task of the plan."""
    ids = [id for id in reversed(index(store).over) if id != plan.id][:RUNS_READ]
    if not ids:
        return []
    cells = store.cells.read([*map(plan_cell, ids), *map(state_cell, ids)])
    found = []
    for planned, kept in zip(cells[: len(ids)], cells[len(ids) :], strict=True):
        if planned is None or kept is None:
            continue
        tasks, state = _by_task(planned.value), decode_state(kept.value)
        if not tasks.isdisjoint(plan.by_task) and state.moved:
            found.append((state.status, state.done, state.failed))
    return found[:LIKE_MAX]


class _Tasks(Struct):
    """The only field of a plan that is needed of earlier ones."""

    by_task: dict[str, int] = {}


def _by_task(value: bytes) -> set[str]:
    try:
        return {*msgspec.json.decode(value, type=_Tasks).by_task}
    except msgspec.DecodeError:
        return set()


def _fleet(store: Store, queues: Collection[str]) -> tuple[FleetSize, list[WorkerInfo]]:
    """Return the places that living workers have for these queues, and these workers."""
    try:
        alive = [info for info in read_workers(store) if not info.gone and not info.draining]
    except Unsupported:
        alive = []
    of = [(info, sum(q.concurrency for q in info.queues if q.name in queues)) for info in alive]
    of = [(info, count) for info, count in of if count]
    if not of:
        return FleetSize(1, _PLACES), []
    processes = min(len(of), PROCESSES_MAX)
    return FleetSize(processes, max(1, round(sum(count for _, count in of) / processes))), [info for info, _ in of]


def _processor(workers: Sequence[WorkerInfo], more_per_s: float) -> float | None:
    """Return the share of a processor that the busiest of these workers needs if all take so many more messages."""
    needed = [
        share * (1 + more_per_s / len(workers) / claims_per_s)
        for share, claims_per_s in ((info.cpu_share, info.claims_per_s) for info in workers)
        if share is not None and claims_per_s is not None and claims_per_s >= _CLAIMS_LEAST
    ]
    return max(needed, default=None)


def _less_busy(fleet: FleetSize, hour: Iterable[Tally] | None) -> FleetSize:
    """Return the fleet without the places that the present load takes on average."""
    busy_ms = sum(tally.run.sum_ms for tally in hour or ())
    taken = busy_ms / 1000 / HOUR_S / fleet.processes
    return FleetSize(fleet.processes, max(1, round(fleet.concurrency - taken)))


def _policy(app: Registry | None, task: str) -> Policy:
    return app.tasks[task].policy if app is not None and task in app.tasks else Policy()


def _dependency(app: Registry | None, plan: Plan) -> Dependency | None:
    """Return the dependency that most of the plan's messages call, if it is not split by key."""
    counts: dict[str, int] = {}
    for task, name in plan.dependencies.items():
        counts[name] = counts.get(name, 0) + plan.by_task.get(task, 0)
    if app is None or not counts:
        return None
    name = max(counts, key=lambda each: (counts[each], each))
    d = app.dependencies.get(name) or Dependency(name, Budget(), Breaker())
    return None if d.per is not None else d


def _state(store: Store, d: Dependency | None) -> DependencyState | None:
    return None if d is None else flow.decode(store.cells.read([flow.cell_of(d.name, "")])[0])


def _waiting(
    store: Store, tasks: Collection[str], queues: Sequence[str], rule: Dependency, key: str
) -> tuple[list[Message], int]:
    """Return some of the messages that wait for a dependency, and how many there are, estimated from the share of the
    first LOOKED ones of these queues."""
    looked = store.peek(Lane.READY, where=Filter(queue=tuple(queues)), limit=LOOKED).messages
    some = [m for m in looked if m.task in tasks and (not key or flow.key_of(rule, m) == key)]
    counts = [store.counts(queue) for queue in queues]
    everything = sum(each.ready + each.scheduled for each in counts)
    return some, max(len(some), round(everything * len(some) / max(1, len(looked))))


def _more(some: Sequence[Message], count: int) -> Iterable[Message]:
    """Yield so many messages: these, and others like them."""
    for n in range(count if some else 0):
        message = some[n % len(some)]
        yield message if n < len(some) else replace(message, id=f"{message.id}-{n // len(some)}")
