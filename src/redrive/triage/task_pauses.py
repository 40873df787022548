"""Pause and resume tasks by name or pattern, with entries in the audit log; and what is known of each task.

All pauses are stored in one cell, which workers read once a second. Each change is one commit with its entry in the
audit log.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..audit import Audit, Entry, signed
from ..duration import Duration, rfc3339
from ..errors import ConfigError, Unsupported, near_miss
from ..message import Swap, decoded, required, version_of
from ..paused_task import CELL, PausedTask, decode, encode, pause_of
from ..presence import Knowledge
from ..registry import Registry
from ..store import Store
from .pauses import span_of

NAME_MAX = 200  # the most characters of a task's name or a pattern
PAUSES_MAX = 1000


class TaskState(Struct, frozen=True, kw_only=True):
    """A task at one moment: the queue that the app declares for it (None: it does not declare the task), and the pause
    that holds it, if one does."""

    name: str
    queue: str | None = None
    paused: PausedTask | None = None


def read_pauses(store: Store) -> dict[str, PausedTask]:
    """Return the pauses that are not over, by name or pattern. Raises StoreError."""
    if not store.traits.cells:
        return {}
    (cell,) = store.cells.read([CELL])
    now_ms = store.now_ms()
    return {name: each for name, each in decoded(cell, decode, {}).items() if not each.is_over(now_ms)}


def task_state(store: Store, app: Registry | None, name: str) -> TaskState:
    """Return the state of the task with this name, which need not be known. Raises StoreError."""
    return _state(app, name, read_pauses(store), store.now_ms())


def task_states(store: Store, app: Registry | None) -> list[TaskState]:
    """Return the tasks that the app declares or living workers know, and the paused ones, by name; and each pattern
    that holds none of them, as if it were a task. Raises StoreError."""
    pauses, known, now_ms = read_pauses(store), task_names(store, app), store.now_ms()
    names = {*known, *(n for n, each in pauses.items() if not (each.is_pattern and any(map(each.holds, known))))}
    return [_state(app, name, pauses, now_ms) for name in sorted(names)]


def task_names(store: Store, app: Registry | None) -> set[str]:
    """Return the names of tasks that the app declares or living workers know. Raises StoreError."""
    return {*(() if app is None else app.tasks), *(Knowledge.tasks(store) if store.traits.cells else ())}


def pause_task(
    store: Store, app: Registry | None, name: str, *, reason: str, for_: Duration | None, actor: str | None
) -> PausedTask:
    """Let no worker claim messages of this task, or of all tasks that a pattern matches: see `App.pause_task`."""
    if not store.traits.skips:
        why = "workers cannot leave single tasks unclaimed in SQS, and each receive counts towards maxReceiveCount"
        next = "pause its queue, or hold the breaker of its dependency open"
        raise Unsupported(f"task {name!r} cannot be paused on {store.traits.name}: {why}; {next}")
    span_ms = span_of(for_, f"pause of task {name!r}")
    if not 0 < len(name) <= NAME_MAX:
        raise ConfigError(f"pause of task {name!r}: expected a name or a pattern of at most {NAME_MAX} characters")
    known = task_names(store, app)
    if not any(map(PausedTask(name=name, at_ms=0, by="", reason="").holds, known)) and (near := near_miss(name, known)):
        raise ConfigError(f"there is no task {name!r}; did you mean {near!r}?")
    who, why = signed(actor, reason, f"pause of task {name}")
    until_ms = None if span_ms is None else store.now_ms() + span_ms
    text = "" if until_ms is None else f"until {rfc3339(until_ms)}"
    entry = Audit(store).entry("task-pause", who, why, text, about=f"task/{name}")
    who = entry.claimed or entry.actor
    made = PausedTask(name=name, at_ms=entry.at_ms, by=who, reason=entry.reason, until_ms=until_ms)
    _change(store, entry, name, made)
    return made


def resume_task(
    store: Store, app: Registry | None, name: str, *, reason: str = "", actor: str | None = None
) -> TaskState:
    """End the pause of this name or pattern: see `App.resume_task`."""
    pauses = read_pauses(store)
    if name not in pauses:
        by = pause_of(pauses, name, store.now_ms())
        held = f"it is held by the pause of {by.name!r}, which ends as a whole" if by else "it is not paused"
        raise ConfigError(f"nothing to resume for task {name!r}: {held}; paused: {', '.join(sorted(pauses)) or 'none'}")
    entry = Audit(store).by_hand("task-resume", f"task/{name}", actor, reason)
    _change(store, entry, name, None)
    return task_state(store, app, name)


def _state(app: Registry | None, name: str, pauses: dict[str, PausedTask], now_ms: int) -> TaskState:
    declared = None if app is None else app.tasks.get(name)
    queue = None if declared is None else declared.queue
    return TaskState(name=name, queue=queue, paused=pause_of(pauses, name, now_ms))


def _change(store: Store, entry: Entry, name: str, made: PausedTask | None) -> None:
    def write(swaps: Sequence[Swap]) -> None:
        (cell,) = store.cells.read([CELL])
        now_ms = store.now_ms()
        known = required(CELL, cell, decode, {})
        left = {key: each for key, each in known.items() if key != name and not each.is_over(now_ms)}
        if made is not None:
            left[name] = made
        if len(left) > PAUSES_MAX:
            raise ConfigError(f"pause of task {name!r}: there are {PAUSES_MAX:,} pauses, which is the most")
        mine = [Swap(CELL, version_of(cell), encode(left) if left else None)] if left or cell else []
        store.put([], swaps=[*mine, *swaps])

    Audit(store).commit(entry, write)
