"""Mute alerts about a queue or a dependency until a time, such as the end of planned maintenance.

All mutes are stored in one cell, so that one read gets them. Each change is one commit with its entry in the audit log.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ..audit import Audit, Entry, signed
from ..duration import Duration, milliseconds, rfc3339
from ..errors import ConfigError
from ..message import Swap, decoded, required, version_of
from ..registry import Registry
from ..store import Store
from ..triage.controls import Controls

CELL = "alerts/mutes"
MUTES_MAX = 1000
NAME_MAX = 200  # the most characters of a queue's or dependency's name
LONGEST_MS = 366 * 86_400_000


class Mute(Struct, frozen=True, kw_only=True):
    """A mute of the alerts about a queue or dependency until `until_ms`. Times are ms of the store's clock."""

    queue: str | None = None
    dependency: str | None = None
    until_ms: int
    at_ms: int
    by: str
    reason: str

    @property
    def about(self) -> str:
        """The subject of the mute as in the audit log: `queue/NAME` or `flow/NAME`."""
        return f"queue/{self.queue}" if self.queue is not None else f"flow/{self.dependency}"


_decode = msgspec.json.Decoder(dict[str, Mute]).decode
_encode = msgspec.json.Encoder().encode


class Mutes:
    """The mutes at one moment. `app` knows which dependency each task calls."""

    def __init__(self, app: Registry, abouts: frozenset[str]) -> None:
        self._app, self._abouts = app, abouts

    def cover(
        self, *, queue: str | None = None, task: str | None = None, dependency: str | None = None, about: str = ""
    ) -> bool:
        """Return True if alerts about these are muted: by a mute of the queue, of the dependency, or of the dependency
        that the task (without one: every task of the queue) calls. `about` is `queue/NAME` or `flow/NAME`."""
        if not self._abouts:
            return False
        called = [dependency_of(self._app, task)] if task else dependencies_of(self._app, queue) if queue else []
        return (
            about in self._abouts
            or (bool(queue) and f"queue/{queue}" in self._abouts)
            or (bool(dependency) and f"flow/{dependency}" in self._abouts)
            or (bool(called) and all(f"flow/{name}" in self._abouts for name in called))
        )


def read_mutes(store: Store, app: Registry) -> Mutes:
    return Mutes(app, frozenset(mute.about for mute in listed(store)))


def listed(store: Store) -> tuple[Mute, ...]:
    """Return the mutes of queues and dependencies that have not ended, the next to end first. Raises StoreError."""
    (cell,) = store.cells.read([CELL])
    now_ms = store.now_ms()
    left = [mute for mute in decoded(cell, _decode, {}).values() if mute.until_ms > now_ms]
    return tuple(sorted(left, key=lambda mute: (mute.until_ms, mute.about)))


def dependency_of(app: Registry, task: str) -> str | None:
    """Return the dependency that a task of the app calls; None if it calls none."""
    known = app.tasks.get(task)
    named = None if known is None else known.dependency
    return named or (task if task in app.dependencies else None)


def dependencies_of(app: Registry, queue: str) -> list[str | None]:
    """Return the dependencies that the queue's tasks call, each once; None stands for tasks that call none."""
    tasks = [task.name for task in list(app.tasks.values()) if task.queue == queue]
    return list(dict.fromkeys(dependency_of(app, name) for name in tasks))


class Muting:
    """Lists and changes the mutes of alerts about queues and dependencies, as `app.alerts`."""

    def __init__(self, store: Store, app: Registry) -> None:
        self._store, self._app = store, app

    def list(self) -> tuple[Mute, ...]:
        """Return the mutes that have not ended, the next to end first. Raises StoreError."""
        return listed(self._store)

    def mute(
        self,
        *,
        queue: str | None = None,
        dependency: str | None = None,
        for_: Duration,
        reason: str,
        actor: str | None = None,
    ) -> Mute:
        """Mute alerts about a queue, or about a dependency with its tasks and queues, for `for_`, at most a year. A
        later mute of the same replaces it. Messages run as before, and an alert that still fires when the mute ends is
        sent then. `actor` defaults to user@host. Raises ConfigError, StoreError."""
        about = self._about(queue, dependency)
        if dependency is not None and dependency not in (known := Controls(self._store, self._app).names()):
            names = ", ".join(known) or "none"
            raise ConfigError(f"mute of dependency {dependency!r}: there is none of this name; known: {names}")
        span_ms = milliseconds(for_, "for_")
        if not 0 < span_ms <= LONGEST_MS:
            raise ConfigError(f"mute of {about} for {for_}: expected more than 0 and a year at most")
        who, why = signed(actor, reason, f"mute {about}")
        until_ms = self._store.now_ms() + span_ms
        entry = Audit(self._store).entry("mute", who, why, f"until {rfc3339(until_ms)}", about=about)
        by = entry.claimed or entry.actor
        made = Mute(
            queue=queue, dependency=dependency, until_ms=until_ms, at_ms=entry.at_ms, by=by, reason=entry.reason
        )
        self._change(entry, about, made)
        return made

    def unmute(
        self, *, queue: str | None = None, dependency: str | None = None, reason: str = "", actor: str | None = None
    ) -> None:
        """End a mute of a queue or a dependency. Raises ConfigError if there is none, and StoreError."""
        about = self._about(queue, dependency)
        if about not in {mute.about for mute in self.list()}:
            muted = ", ".join(mute.about for mute in self.list()) or "nothing"
            raise ConfigError(f"{about} is not muted; muted: {muted}")
        entry = Audit(self._store).by_hand("mute", about, actor, reason, "off")
        self._change(entry, about, None)

    def _about(self, queue: str | None, dependency: str | None) -> str:
        given = queue if queue is not None else dependency
        if (queue is None) == (dependency is None) or not given or len(given) > NAME_MAX:
            raise ConfigError(f"mute with {queue=} and {dependency=}: expected the name of one queue or one dependency")
        return f"flow/{given}" if queue is None else f"queue/{given}"

    def _change(self, entry: Entry, about: str, made: Mute | None) -> None:
        def write(swaps: Sequence[Swap]) -> None:
            (cell,) = self._store.cells.read([CELL])
            now_ms = self._store.now_ms()
            known = required(CELL, cell, _decode, {})
            left = {key: mute for key, mute in known.items() if mute.until_ms > now_ms and key != about}
            if made is not None:
                left[about] = made
            if len(left) > MUTES_MAX:
                raise ConfigError(f"mute of {about}: there are {MUTES_MAX:,} mutes, which is the most; end one first")
            mine = [Swap(CELL, version_of(cell), _encode(left) if left else None)] if left or cell else []
            self._store.put([], swaps=[*mine, *swaps])

        Audit(self._store).commit(entry, write)
