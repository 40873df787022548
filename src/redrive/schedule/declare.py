"""Declare a schedule: its times, its task, and the message of each tick."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from ..audit import Audit, Entry
from ..duration import Duration, milliseconds, rfc3339
from ..enqueue import Ref, Task
from ..errors import ConfigError, EnqueueError, near_miss
from ..ids import new_id
from ..message import Cell, Draft, Swap, decoded
from ..registry import Registry
from ..run_context import refuse_loop
from .cron import Cron, Every, times
from .turn import Missed, ScheduleState, resumed

NAME_HEADER, TICK_HEADER = "redrive-schedule", "redrive-tick"
_to_state = msgspec.json.Decoder(ScheduleState).decode
_encode = msgspec.json.Encoder().encode


class Schedule(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A task that schedulers enqueue by the clock. Made by `@app.periodic(…)`; `app.schedules` has it by name."""

    name: str
    times: Cron | Every
    task: Task[Any, Any]
    missed: Missed = Missed.LAST
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}  # options for `task.using`
    jitter_ms: int = 0

    @property
    def key(self) -> str:
        """The key of the cell with the schedule's state."""
        return f"schedule:{self.name}"

    @property
    def queue(self) -> str:
        """The queue of the schedule's messages."""
        return str(self.options.get("queue", self.task.queue))

    def draft(self, tick_ms: int) -> Draft:
        """Return the message of a tick, with the headers `redrive-schedule` and `redrive-tick` (RFC 3339, UTC)."""
        return self._draft(tick_ms, {NAME_HEADER: self.name, TICK_HEADER: rfc3339(tick_ms)})

    def _draft(self, tick_ms: int, headers: dict[str, str], delayed: bool = True) -> Draft:
        kwargs = dict(self.kwargs)
        if "tick" in self.task.codec.signature.parameters:
            kwargs["tick"] = self.times.at(tick_ms)
        delay = timedelta(milliseconds=self._jitter_ms(tick_ms)) if delayed and self.jitter_ms else None
        return self.task.using(**self.options, headers=headers, delay=delay).draft(*self.args, **kwargs)

    def _jitter_ms(self, tick_ms: int) -> int:
        """Return the delay of a tick, from a hash of name and tick, so that every scheduler computes the same."""
        return zlib.crc32(f"{self.name} {tick_ms}".encode()) * self.jitter_ms >> 32

    def run(self, *, reason: str = "", actor: str | None = None) -> Ref[Any]:
        """Enqueue one message now, apart from the ticks: it has the header `redrive-schedule` but no `redrive-tick`,
        and a parameter `tick` gets the present time. The message and its entry in the audit log are one commit; on SQS
        the entry comes right after."""
        refuse_loop("Schedule.run()", "await asyncio.to_thread(schedule.run)")
        store, entry = self.task.app.store, self._entry("run", reason, actor)
        draft = self._draft(store.now_ms(), {NAME_HEADER: self.name}, delayed=False)
        draft = replace(draft, id=draft.id or new_id(store.now_ms()))
        entry = replace(entry, ids=(draft.id or "",), count=1)
        audit = Audit(self.task.app.store)
        (put,) = audit.beside(entry, lambda swaps: self.task.app.put([draft], swaps=swaps))
        if put.duplicate:  # an earlier message has the key, so nothing was enqueued
            audit.amend(entry)
        return Ref(put.id, draft.task, draft.queue, put.duplicate, self.task.app)

    def next(self, n: int = 1, after: datetime | None = None) -> list[datetime]:
        """Return the next `n` ticks after `after` (default: now, by the store's clock), in the schedule's zone."""
        after_ms = self.task.app.store.now_ms() if after is None else round(after.timestamp() * 1000)
        return [self.times.at(tick_ms) for tick_ms in islice(self.times.after(after_ms), n)]

    @property
    def state(self) -> ScheduleState | None:
        """Return the stored state; None if no scheduler has read the schedule yet."""
        return state_in(self.task.app.store.cells.read([self.key])[0])

    def pause(self, *, reason: str = "", actor: str | None = None) -> None:
        """Let no scheduler enqueue ticks until `resume`, in one commit with the entry in the audit log."""
        self._set(True, self._entry("pause", reason, actor))

    def resume(self, *, reason: str = "", actor: str | None = None) -> None:
        """Let schedulers enqueue ticks again; `missed=` applies to the ticks since `pause`. Otherwise as `pause`."""
        self._set(False, self._entry("resume", reason, actor))

    def _set(self, paused: bool, entry: Entry) -> None:
        store = self.task.app.store

        def write(swaps: list[Swap]) -> None:
            cell, now_ms = store.cells.read([self.key])[0], store.now_ms()
            state = state_in(cell) or ScheduleState(self.times.spec, now_ms)
            wanted = resumed(state, self.missed, paused, now_ms)
            store.put([], swaps=[swap_of(self, cell, wanted), *swaps])

        Audit(self.task.app.store).commit(entry, write)

    def _entry(self, word: str, reason: str, actor: str | None) -> Entry:
        return Audit(self.task.app.store).by_hand(word, f"schedule/{self.name}", actor, reason)


def state_in(cell: Cell | None) -> ScheduleState | None:
    """Decode a schedule's state. An unreadable state counts as missing, so that the schedule starts from now."""
    return decoded(cell, _to_state, None)


def swap_of(schedule: Schedule, cell: Cell | None, state: ScheduleState) -> Swap:
    """Return the swap that writes the state over the schedule's cell as it was read."""
    return Swap(schedule.key, cell.version if cell is not None else 0, _encode(state))


def periodic(
    app: Registry,
    register: Callable[..., Callable[[Callable[..., Any]], Task[..., Any]]],
    cron: str | None,
    *,
    every: Duration | None,
    tz: str,
    name: str | None,
    missed: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    queue: str | None,
    jitter: Duration,
    using: Mapping[str, Any],
    task_options: Mapping[str, Any],
) -> Any:
    """Declare a schedule, as `App.periodic` documents. `register` is `app.task`."""
    ticks = times(cron, every, tz)
    policy = _to_missed(missed)
    try:
        jitter_ms = milliseconds(jitter, "jitter")
    except (ValueError, TypeError) as error:
        raise ConfigError(str(error)) from None

    def declare(handler: Callable[..., Any]) -> Task[..., Any]:
        task = handler if isinstance(handler, Task) else _register(register, handler, name, queue, task_options)
        if task is handler:
            _check(app, task, task_options)
        options = {key: value for key, value in {"queue": queue, **using}.items() if value is not None}
        schedule = Schedule(
            name=name or task.name,
            times=ticks,
            task=task,
            missed=policy,
            args=tuple(args),
            kwargs=dict(kwargs or {}),
            options=options,
            jitter_ms=jitter_ms,
        )
        _check_draft(schedule)
        if schedule.name in app.schedules:
            raise ConfigError(f"schedule {schedule.name!r} is declared twice; give one of them another name=")
        app.schedules[schedule.name] = schedule
        return task

    return declare


def _register(
    register: Callable[..., Callable[[Callable[..., Any]], Task[..., Any]]],
    handler: Callable[..., Any],
    name: str | None,
    queue: str | None,
    options: Mapping[str, Any],
) -> Task[..., Any]:
    if not callable(handler):
        raise ConfigError(f"@app.periodic(…) stands above a task or a function, not {handler!r}")
    placed: dict[str, Any] = {} if queue is None else {"queue": queue}
    return register(name=name, **placed, **options)(handler)


def _check(app: Registry, task: Task[..., Any], task_options: Mapping[str, Any]) -> None:
    if task.app is not app:
        raise ConfigError(f"task {task.name!r} belongs to another app; declare its schedule there")
    if task_options:
        words = ", ".join(f"{option}=" for option in task_options)
        raise ConfigError(f"{words} of task {task.name!r}: give it to @app.task(…), below @app.periodic(…)")


def _check_draft(schedule: Schedule) -> None:
    """Check the arguments now, with the draft of an example tick, not at the first tick. Raises ConfigError."""
    what = f"schedule {schedule.name!r}"
    if "tick" in schedule.kwargs:
        raise ConfigError(f"{what}: parameter 'tick' is given the tick's time; leave it out of kwargs=")
    try:
        schedule.draft(int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000))
    except (TypeError, EnqueueError, ConfigError) as error:
        raise ConfigError(f"{what}: {error}") from None


def _to_missed(word: str) -> Missed:
    try:
        return Missed(word)
    except ValueError:
        near = near_miss(str(word), list(Missed))
        meant = f"did you mean {str(near)!r}? " if near else ""
        raise ConfigError(f"missed={word!r}: {meant}expected one of {', '.join(Missed)}") from None
