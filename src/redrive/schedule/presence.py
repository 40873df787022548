"""Record which schedules a scheduler runs, so that others can warn about those without one.

Every scheduler writes its schedules' names and the time into one cell, about three times a minute. The cell is a hint:
ticks are enqueued without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

import msgspec

from ..errors import StoreError
from ..events import Notify
from ..message import Swap, decoded, version_of
from ..registry import Registry
from ..store import Store
from ..worker.services import Service
from .declare import state_in

CELL = "schedulers"
SEEN_EVERY_MS = 20_000
LATELY_MS = 60_000  # ms; a schedule that no scheduler has run for so long counts as unattended
WATCH_S = 5.0  # seconds from the start of a worker to its check, as a scheduler may be starting too
_KEPT_MS = 30 * 86_400_000
_TRIES = 3
_times = msgspec.json.Decoder(dict[str, int]).decode


class SchedulerPresence:
    """Writes into the cell which schedules one scheduler runs."""

    def __init__(self, store: Store) -> None:
        self._store, self._at_ms = store, -SEEN_EVERY_MS

    def write(self, names: Collection[str], now_ms: int) -> None:
        """Record that these schedules run, at most once per SEEN_EVERY_MS. Raises StoreError."""
        if not names or 0 <= now_ms - self._at_ms < SEEN_EVERY_MS:
            return
        for _ in range(_TRIES):  # a scheduler of another app may write the cell too
            (cell,) = self._store.cells.read([CELL])
            known = decoded(cell, _times, {})
            fresh = {name: at_ms for name, at_ms in known.items() if now_ms - at_ms < _KEPT_MS}
            value = msgspec.json.encode(fresh | dict.fromkeys(names, now_ms))
            if self._store.cells.swap([Swap(CELL, version_of(cell), value, _KEPT_MS)], durable=False)[0]:
                break
        self._at_ms = now_ms


def last_seen(store: Store) -> Mapping[str, int]:
    """Return when a scheduler last ran each schedule, in ms, without schedules that never ran. Raises StoreError."""
    (cell,) = store.cells.read([CELL])
    return decoded(cell, _times, {})


def unattended(app: Registry, store: Store) -> list[str]:
    """Return the names of the app's schedules, without paused ones, that no scheduler ran lately. Raises StoreError."""
    if not app.schedules:
        return []
    seen, now_ms = last_seen(store), store.now_ms()
    names = [name for name in app.schedules if not 0 <= now_ms - seen.get(name, 0) < LATELY_MS]
    cells = store.cells.read([app.schedules[name].key for name in names]) if names else []
    states = [state_in(cell) for cell in cells]
    return [name for name, state in zip(names, states, strict=True) if state is None or not state.paused]


def warning(app: Registry, store: Store) -> str | None:
    """Return a warning about schedules that no scheduler runs, for people; None if each has one. Raises StoreError."""
    names = unattended(app, store)
    if not names:
        return None
    some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    which = f"schedule {some} has" if len(names) == 1 else f"{len(names)} schedules ({some}) have"
    fix = f"run `redrive scheduler {app.spec or 'MODULE:APP'}`, or one worker with --scheduler"
    return f"{which} no scheduler: nothing enqueues the ticks; {fix}"


class SchedulerWatch(Service):
    """Warns once, soon after a worker has started, if no scheduler runs some of the app's schedules."""

    def __init__(self, app: Registry, worker: str, notify: Notify, *, after_s: float = WATCH_S) -> None:
        self._app, self._notify, self._after_s = app, notify, after_s
        self._due_s: float | None = None
        self._clock: Callable[[], float] = time.monotonic

    def begin(self) -> None:
        self._due_s = self._clock() + self._after_s

    def look(self, *, now: bool = False) -> None:
        if self._due_s is None or self._clock() < self._due_s:
            return
        self._due_s = None
        if self._app.schedules_watched:
            return
        try:
            text = warning(self._app, self._app.store)
        except StoreError:
            return  # the worker itself reports an outage of the store
        if text is not None:
            self._notify("no_scheduler", text)
            self._app.events.warn(text)
