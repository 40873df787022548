"""Find the reasons why messages do not run, for the app's `status()` and for every command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
from msgspec.structs import replace

from ..decide import parked_since_ms
from ..errors import PlanRefused
from ..flow import dependency as flow
from ..flow.dependency import Dependency, DependencyState
from ..message import Counts, Filter, Group, Lane, Message
from ..paused_task import PausedTask, pause_of
from ..presence import WorkerInfo
from ..presence.knowledge import Knowledge
from ..registry import Registry
from ..store import Store
from ..triage.pauses import Pause, paused_by
from ..triage.redrive.records import CHUNK, Plan, read_chunk
from ..triage.redrive.run import RunView
from ..triage.task_pauses import read_pauses
from ..worker.flow.local_state import controls
from ..worker.flow.transitions import Transition, read
from .flow import flow_holds
from .hold import Hold, is_forgotten, words
from .timing import IDLE_MS, due_hold, no_worker, outbox_hold, time_hold
from .workers import worked, worker_reports

LOOKED = 200  # waiting messages that are read per queue
CELLS_AT_ONCE = 100
MOVED = 50  # messages that are read per redrive run
QUEUES_MAX = 20  # queues that are considered per plan
QUEUES_READ = 300  # queues whose messages are read for one status
NORMAL = ("turn", "delay", "retry")  # kinds of holds that are normal waits, which a queue does not list


class Reasons:
    """The reasons why messages of a store do not run now. It caches its reads, so make a new one for each answer.

    Without an app, tasks and their dependencies are unknown; it then finds pauses, groups, times and deferrals only.
    """

    unread: int
    now_ms: int

    def __init__(self, store: Store, app: Registry | None = None) -> None:
        self._store, self._app, self.now_ms = store, app, store.now_ms()
        self.unread = 0  # number of queues with waiting messages that were not read
        self._states: dict[str, DependencyState] = {}
        self._groups: dict[str, Mapping[str, Group]] = {}
        self._counts: dict[str, Counts] = {}

    def of(self, message: Message) -> tuple[Hold, ...]:
        """Return why this message does not run, the decisive reason first; empty if it runs or rests.
        Raises StoreError."""
        if message.lane is not Lane.READY or message.damage is not None:
            return ()
        self._read_states([message])
        holds = tuple(_once(self._of(message)))
        return holds or (self._due(message),)

    def _of(self, message: Message) -> Iterator[Hold]:
        if message.queue in self._paused:
            yield self._pause(message.queue)
        paused = pause_of(self.task_pauses, message.task, self.now_ms)
        if paused is not None:
            yield self.task_hold(paused)
        unknown = self._unknown(message)
        if unknown is not None and self._is_known_elsewhere(message, unknown):
            yield self._release(message)
            return
        if unknown is not None and self._app is not None and message.task not in self._app.tasks:
            yield self._unknown_task(message.task)
        elif unknown is not None and parked_since_ms(message) is None:  # no worker has claimed and parked it yet
            yield self._misfit(message, unknown)
        ahead = message.due_ms is not None and message.due_ms > self.now_ms
        if message.parked and not ahead and message.group is not None:
            yield from self._group(message.queue, message.group)
        if message.task in (self._app.tasks if self._app is not None else ()):
            for rule in controls(self._app, message.task, message.queue):
                key = flow.key_of(rule, message)
                state, tried = self._states[flow.cell_of(rule.name, key)], message.attempt > 0
                yield from flow_holds(state, rule, rule.name, key, self.now_ms, self._history, retries=tried)
        if ahead:
            yield time_hold(message)

    def _unknown(self, message: Message) -> Sequence[str] | None:
        """Return the arguments of the message that the app's task does not accept; empty if the app does not have the
        task or its version; None if the app can run the message, judged by the arguments' names alone."""
        if self._app is None or not self._app.tasks:
            return None
        task = self._app.tasks.get(message.task)
        if task is None or message.version > task.version:
            return ()
        if message.version < task.version or message.content != "json":
            return None
        try:
            given = msgspec.json.decode(message.body, type=dict[str, msgspec.Raw]).keys()
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return sorted(given - task.codec.signature.parameters.keys()) or None

    def _is_known_elsewhere(self, message: Message, arguments: Sequence[str]) -> bool:
        """Return True if a living worker of another release can run the message."""
        if self._knowledge is None:
            return False
        known_ms = self._knowledge.known_ms(message.queue, message.task, message.version, arguments)
        return self._knowledge.is_alive(known_ms)

    @cached_property
    def _knowledge(self) -> Knowledge | None:
        """The tasks that living workers know; None if workers do not report. Raises StoreError."""
        if self.workers is None:
            return None
        knowledge = Knowledge(self._store)
        knowledge.read()
        return knowledge

    def _due(self, message: Message) -> Hold:
        counts = self._counts.get(message.queue)
        if counts is None:
            counts = self._counts[message.queue] = self._store.counts(message.queue)
        worked = None if self.worked is None else message.queue in self.worked
        return due_hold(message, leased=counts.leased, waiting=counts.ready, worked=worked, now_ms=self.now_ms)

    def of_queues(self, counts: Mapping[str, Counts]) -> Mapping[str, tuple[Hold, ...]]:
        """Return the holds of each queue, as `of_queue` does. Reads the messages of at most QUEUES_READ queues: those
        whose due message has waited longest, and those with many scheduled messages and none due. Of the other queues,
        only a pause is returned. Raises StoreError."""
        self._counts |= counts
        waiting = [name for name, of in counts.items() if of.waiting]
        due = sorted((name for name in waiting if counts[name].ready), key=lambda name: -counts[name].oldest_age_s)
        later = sorted((name for name in waiting if not counts[name].ready), key=lambda name: -counts[name].scheduled)
        first = due[: max(QUEUES_READ // 2, QUEUES_READ - len(later))]
        read = {*first, *later[: QUEUES_READ - len(first)]}
        self.unread = len(waiting) - len(read)
        return {
            name: self.of_queue(name, of) if name in read else self._of_unread(name, of) for name, of in counts.items()
        }

    def _of_unread(self, queue: str, counts: Counts) -> tuple[Hold, ...]:
        waits = counts.waiting
        return (replace(self._pause(queue), count=waits),) if queue in self._paused else ()

    def of_queue(self, queue: str, counts: Counts) -> tuple[Hold, ...]:
        """Return the holds of a queue's waiting messages, those with the most messages first, without normal waits (a
        turn, a delay, a retry). Reads at most LOOKED messages. Raises StoreError."""
        self._counts[queue] = counts
        if not counts.waiting:
            return (self._pause(queue),) if queue in self._paused else ()
        holds: dict[tuple[str, str], Hold] = {}
        for message in self._waiting(queue):
            for hold in self.of(message):
                _add(holds, replace(hold, queue=queue, count=1))
        if queue in self._paused and not holds:
            _add(holds, replace(self._pause(queue), count=counts.waiting))
        if not self._store.traits.finds and counts.ready and not counts.leased:
            holds |= self._of_unseen(queue, counts)
        if queue in self._outbox:
            _add(holds, outbox_hold(queue, self._outbox[queue]))
        held = [hold for hold in holds.values() if hold.kind not in NORMAL]
        return tuple(sorted(held, key=lambda hold: (not hold.needs_person, -hold.count)))

    def _of_unseen(self, queue: str, counts: Counts) -> dict[tuple[str, str], Hold]:
        """Return the holds of a queue whose waiting messages the store cannot list."""
        if counts.oldest_age_s * 1000 < IDLE_MS or queue in self._paused or queue in (self.worked or ()):
            return {}
        hold = no_worker(queue, known=self.worked is not None, count=counts.ready)
        return {(hold.kind, hold.by): hold}

    def _waiting(self, queue: str) -> Sequence[Message]:
        if not self._store.traits.finds:
            return ()
        messages = self._store.peek(Lane.READY, where=Filter(queue=queue), limit=LOOKED).messages
        self._read_states(messages)
        return messages

    def of_redrive(self, tasks: Iterable[str], queues: Iterable[str], dependencies: Iterable[str]) -> tuple[Hold, ...]:
        """Return the holds that would apply to messages of these tasks in these queues. `dependencies` are those that a
        plan names, as NAME or NAME/KEY. Raises StoreError."""
        holds: dict[tuple[str, str], Hold] = {}
        named, wanted = list(queues), list(tasks)
        for queue in named:
            if queue in self._paused:
                _add(holds, self._pause(queue))
        for task in wanted:
            if (paused := pause_of(self.task_pauses, task, self.now_ms)) is not None:
                _add(holds, self.task_hold(paused))
            if self._app is not None and self._app.tasks and task not in self._app.tasks:
                _add(holds, self._unknown_task(task))
        rules = {rule.name: rule for task in wanted for queue in named for rule in self._rules(task, queue)}
        abouts = [about.partition("/") for about in sorted({*rules, *dependencies})]
        cells = {(name, key): flow.cell_of(name, key) for name, _, key in abouts}
        self._read(cells.values())
        for (name, key), cell in cells.items():
            for hold in flow_holds(self._states[cell], rules.get(name), name, key, self.now_ms, self._history):
                _add(holds, hold)
        for queue in named:
            for hold in self.of_queue(queue, self._store.counts(queue)):
                if hold.kind in ("no_worker", "group"):
                    _add(holds, hold)
            if self.worked and queue not in self.worked and ("no_worker", queue) not in holds:
                _add(holds, no_worker(queue, known=True, count=0))  # only if others have one: perhaps a misspelled name
        return tuple(holds.values())

    def of_plan(self, plan: Plan) -> tuple[Hold, ...]:
        """Return the holds that will apply to a plan's messages once they are in its largest queues. Raises
        StoreError."""
        if not plan.total or plan.settings.unwatched:
            return ()
        queues = [plan.settings.to_queue] if plan.settings.to_queue else list(plan.by_queue)[:QUEUES_MAX]
        return self.of_redrive(plan.by_task, queues, set(plan.dependencies.values()))

    def of_run(self, run: RunView, plan: Plan | None) -> tuple[Hold, ...]:
        """Return the holds of messages that a run has moved and that have not run yet: those of the messages moved
        last, and those of the plan's tasks and queues. Raises StoreError."""
        if plan is None or run.state != "running" or not run.counts.get("waiting", 0):
            return ()
        holds: dict[tuple[str, str], Hold] = {}
        for message in self._last_moves(run):
            for hold in self.of(message):
                if hold.kind not in (*NORMAL, "spread"):
                    _add(holds, replace(hold, queue=message.queue, count=1))
        shared = {(hold.kind, hold.by): hold for hold in self.of_plan(plan)}
        return tuple((shared | holds).values())

    def _last_moves(self, run: RunView) -> Sequence[Message]:
        """Return up to MOVED of the messages that the run moved last."""
        last = sum(run.counts.get(name, 0) for name in ("moved", "changed")) - 1
        if last < 0 or not self._store.traits.finds:
            return ()
        try:
            handles = read_chunk(self._store.cells, run.id, last // CHUNK)
        except PlanRefused:  # the plan has expired or was altered
            return ()
        some = [handle.id for handle in handles[: last % CHUNK + 1][-MOVED:]]
        return [m for m in self._store.find(some) if m is not None and m.run_id == run.id]

    @cached_property
    def workers(self) -> tuple[WorkerInfo, ...] | None:
        """The records of workers; None if they do not report. Raises StoreError."""
        return worker_reports(self._store)

    @cached_property
    def worked(self) -> frozenset[str] | None:
        """The queues that a living worker claims from; None if workers do not report. Raises StoreError."""
        return worked(self.workers)

    @cached_property
    def _outbox(self) -> Mapping[str, Counts]:
        return self._store.outgoing()

    @cached_property
    def _paused(self) -> frozenset[str]:
        return self._store.paused()

    @cached_property
    def _paused_by(self) -> Mapping[str, Pause]:
        return paused_by(self._store, sorted(self._paused))

    @cached_property
    def task_pauses(self) -> Mapping[str, PausedTask]:
        """The pauses of tasks, by name or pattern. Raises StoreError."""
        return read_pauses(self._store)

    def _rules(self, task: str, queue: str) -> tuple[Dependency, ...]:
        return controls(self._app, task, queue) if self._app is not None else ()

    def _history(self, about: str) -> Sequence[Transition]:
        return read(self._store.cells, about)

    def _read_states(self, messages: Iterable[Message]) -> None:
        self._read(
            flow.cell_of(rule.name, flow.key_of(rule, message))
            for message in messages
            for rule in self._rules(message.task, message.queue)
        )

    def _read(self, cells: Iterable[str]) -> None:
        wanted = [cell for cell in dict.fromkeys(cells) if cell not in self._states]
        for at in range(0, len(wanted), CELLS_AT_ONCE):
            some = wanted[at : at + CELLS_AT_ONCE]
            contents = self._store.cells.read(some)
            self._states |= {name: flow.decode(cell) for name, cell in zip(some, contents, strict=True)}

    def _pause(self, queue: str) -> Hold:
        by = self._paused_by.get(queue)
        text = f"queue {queue} is paused"
        if by is not None:
            text += f" by {by.actor}" + (f": {by.reason}" if by.reason else "")
        since_ms, until_ms = (None, None) if by is None else (by.at_ms, by.until_ms)
        return Hold(
            kind="pause", by=queue, text=text, until_ms=until_ms, next=words("queue", "resume", queue), queue=queue,
            needs_person=is_forgotten(since_ms, until_ms, self.now_ms),
            since_ms=since_ms, actor="" if by is None else by.actor,
            reason="" if by is None else by.reason,
        )  # fmt: skip

    def task_hold(self, pause: PausedTask) -> Hold:
        """Return the hold of the tasks that a person paused."""
        text = f"tasks {pause.name} are paused" if pause.is_pattern else f"task {pause.name} is paused"
        return Hold(
            kind="task_pause", by=pause.name, text=f"{text} by {pause.by}: {pause.reason}", until_ms=pause.until_ms,
            next=words("task", "resume", pause.name), since_ms=pause.at_ms, actor=pause.by, reason=pause.reason,
            needs_person=is_forgotten(pause.at_ms, pause.until_ms, self.now_ms),
        )  # fmt: skip

    @property
    def _name(self) -> str:
        return (self._app.spec if self._app is not None else None) or "this app"

    def _misfit(self, message: Message, unknown: Sequence[str]) -> Hold:
        what = f"no argument {' or '.join(map(repr, unknown))} is" if unknown else f"version {message.version} is not"
        text = f"a message of {message.task} waits for a newer worker: {what} known to {self._name}"
        next = words("job", "show", message.id)
        return Hold(kind="no_task", by=message.task, text=text, next=next, needs_person=True, queue=message.queue)

    def _unknown_task(self, task: str) -> Hold:
        app = self._name
        text = f"{app} has no task '{task}', and a message of an unknown task dies in time"
        return Hold(kind="no_task", by=task, text=text, next=words("job", "list", "--task", task), needs_person=True)

    def _release(self, message: Message) -> Hold:
        text = f"task {message.task} is known to workers of another release than {self._name}, and left to them"
        next = words("workers")
        return Hold(kind="release", by=message.task, text=text, next=next, queue=message.queue)

    def _group(self, queue: str, name: str) -> Iterator[Hold]:
        """Yield the hold of the group, unless it has a free place: then the next claim lets the message in."""
        if queue not in self._groups:
            self._groups[queue] = {group.name: group for group in self._store.groups(queue)}
        group = self._groups[queue].get(name)
        if group is not None and group.blocked_by is not None:
            text = f"group {name} waits behind a dead message, {group.blocked_by}"
            next = words("dlq", "show", group.blocked_by)
            yield Hold(kind="group", by=name, text=text, next=next, needs_person=True, queue=queue)
        elif group is not None and group.taken >= group.width:
            text = f"group {name} of queue {queue} has {group.taken:,} of {group.width:,} places taken"
            yield Hold(kind="group", by=name, text=text, next=words("group", "list", queue), queue=queue)


def _once(holds: Iterable[Hold]) -> Iterator[Hold]:
    """Yield the first of the holds with the same kind and origin."""
    seen = set[tuple[str, str]]()
    for hold in holds:
        if (hold.kind, hold.by) not in seen:
            seen.add((hold.kind, hold.by))
            yield hold


def _add(holds: dict[tuple[str, str], Hold], hold: Hold) -> None:
    """Add a hold; of two with the same kind and origin, keep the one that ends first, with the sum of their counts."""
    key = hold.kind, hold.by
    known = holds.get(key)
    if known is None:
        holds[key] = hold
        return
    first = min((known, hold), key=lambda each: (each.until_ms is None, each.until_ms or 0))
    holds[key] = replace(first, count=known.count + hold.count)
