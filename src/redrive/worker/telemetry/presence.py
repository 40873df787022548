"""The record that a worker keeps about itself."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from ...events import Notify
from ...presence import LISTED_MAX, HeldMessage, Keeper, LoopLag, QueueWork, RateMeter, WorkerInfo, is_on
from ...store import Store
from ..execution import NO_TASK, Execution, InFlightExecutions
from ..hang import Hangs
from ..services import Service


class WorkerPresence(Service):
    """Keeps a worker's record. `queues` has how many messages of each may run at once. `carried` returns the redrive
    runs that it carries out. `drain` is called when a person requests it; `renewed` after each write of the record. A
    hang that `hangs` detects is written at once. The store thread adds the durations of its exchanges to `trips`, in
    seconds."""

    trips: deque[float]

    def __init__(
        self,
        store: Store,
        name: str,
        app: str | None,
        queues: Sequence[tuple[str, int]],
        in_flight: InFlightExecutions,
        draining: Callable[[], bool],
        carried: Callable[[], Sequence[str]],
        notice: Notify,
        drain: Callable[[], None],
        renewed: Callable[[], None],
        hangs: Hangs,
    ) -> None:
        self._store, self._name, self._app, self._queues = store, name, app, queues
        self._in_flight, self._draining = in_flight, draining
        self._carried, self._hangs = carried, hangs
        self._lag, self._claims = LoopLag(), RateMeter()
        self._was_draining, self._hang = False, hangs.hang
        self.keeper: Keeper = Keeper(store, self.sample, notice, counts_trips=False, drain=drain, renewed=renewed)
        self.trips = self.keeper.trips

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Measure from now on how late this event loop runs its callbacks. Call it on the loop's thread."""
        self._loop = loop
        if is_on(self._store):
            self._lag.start(loop)

    def begin(self) -> None:
        self.keeper.start()

    def look(self, *, now: bool = False) -> None:
        draining, hang = self._draining(), self._hangs.hang
        if draining is not self._was_draining or hang is not self._hang:
            self._was_draining, self._hang = draining, hang
            self.keeper.soon()

    def close(self) -> None:
        self.keeper.close()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lag.stop)

    def sample(self) -> WorkerInfo:
        """Return the worker's record as of now. Called on the keeper's thread."""
        held = self._in_flight.all()
        running = [execution for execution in held if execution.started_s and not execution.finished_s]
        hang, now_ms, oldest = self._hangs.hang, self._store.now_ms(), _oldest(held)
        return WorkerInfo(
            name=self._name,
            app=self._app,
            draining=self._draining(),
            queues=tuple(
                QueueWork(
                    name=name, concurrency=most, held=self._in_flight.counts[name], oldest_due_ms=oldest.get(name)
                )
                for name, most in self._queues
            ),
            held=len(held),
            running=len(running),
            hung=None if hang is None else hang.record(time.monotonic(), now_ms),
            messages=_listed(held, running, now_ms),
            runs=tuple(self._carried()),
            claims_per_s=self._claims.take(self._in_flight.claimed, 1),
            loop_lag_ms=self._lag.lag_ms(),
        )


def _oldest(held: Sequence[Execution]) -> dict[str, int]:
    """Return, by queue, the due time of the oldest held message that has not begun."""
    oldest: dict[str, int] = {}
    for execution in held:
        if not execution.started_s:
            message = execution.delivery.message
            due_ms = execution.delivery.due_ms or message.life_ms
            oldest[message.queue] = min(due_ms, oldest.get(message.queue, due_ms))
    return oldest


def _listed(held: Sequence[Execution], running: Sequence[Execution], now_ms: int) -> tuple[HeldMessage, ...]:
    """Return up to LISTED_MAX held messages: the running ones, the longest first, then those that wait to start."""
    now_s = time.monotonic()
    some = sorted(running, key=lambda execution: execution.started_s)[:LISTED_MAX]
    some += [execution for execution in held if not execution.started_s][: LISTED_MAX - len(some)]
    return tuple(
        HeldMessage(
            id=execution.delivery.message.id,
            task=execution.delivery.message.task,
            since_ms=now_ms - round((now_s - execution.started_s) * 1000) if execution.started_s else None,
            isolated=execution.apart or (execution.task is not NO_TASK and execution.task.place == "process"),
            alone=execution.alone,
        )
        for execution in some
    )
