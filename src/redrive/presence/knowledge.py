"""What living workers know: the tasks of each release of an app, their versions and arguments.

Workers of one release with the same queues know the same tasks, so they share the cell `knows/DIGEST`, which never
changes. The cell `knows` says when a worker of each release was last alive: whichever of its workers renews a record
first after a few seconds writes it for all of them. So a fleet costs a swap every few seconds for each release, and a
reader reads one cell, whatever the number of workers.

The cell `waits` names tasks with messages that wait for a newer worker, so that a worker that starts knows whether to
look for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ..message import Cell, Swap, decoded, version_of
from ..store import Store
from .directory import GONE_MS, RENEW_S, TRIES

RELEASES = "knows"
WAITS = "waits"
REWRITE_MS = RENEW_S * 900  # ms after which a worker records again, in the cell RELEASES, that its release is alive
FORGOTTEN_MS = 7 * 24 * 3_600_000  # ms for which a release stays known after its last worker ended
WRITTEN_AGAIN_MS = 24 * 3_600_000  # ms after which a worker writes the tasks of its release again, before they expire
RELEASES_MAX = 64  # living workers may have more
WAITS_MAX = 200
WAITED_MS = 3_600_000  # ms for which a task stays listed after its last message was deferred
NAMED_AGAIN_MS = 60_000


class KnownTask(Struct, frozen=True, array_like=True):
    """A task as one release declares it: its version, and its arguments in sorted order."""

    version: int
    arguments: tuple[str, ...]


class Release(Struct, frozen=True):
    """The tasks that the workers of one release know, and the queues that these workers run."""

    queues: tuple[str, ...]
    tasks: dict[str, KnownTask]


def release_of(queues: Sequence[str], tasks: Mapping[str, Any]) -> Release:
    """Return the release of a worker of these queues with these tasks."""
    known = {
        name: KnownTask(task.version, tuple(sorted(task.codec.signature.parameters)))
        for name, task in sorted(tasks.items())
    }
    return Release(tuple(sorted(queues)), known)


_decode_times = msgspec.json.Decoder(dict[str, int]).decode
_decode_release = msgspec.json.Decoder(Release).decode


class Teller:
    """Reports which tasks this worker's release knows. Used by one thread."""

    def __init__(self, store: Store) -> None:
        self._store, self._cells = store, store.cells
        self._written: tuple[bytes, int] | None = None  # the release that was written last, and when, in ms

    def tell(self, release: Release) -> None:
        """Report that a worker of this release is alive. Raises StoreError."""
        value = msgspec.json.encode(release)
        digest, now_ms = hashlib.sha256(value).hexdigest()[:16], self._store.now_ms()
        if self._written is None or self._written[0] != value or now_ms - self._written[1] >= WRITTEN_AGAIN_MS:
            (cell,) = self._cells.read([_key(digest)])
            self._cells.swap([Swap(_key(digest), version_of(cell), value, FORGOTTEN_MS)], durable=False)
            self._written = value, now_ms
        for _ in range(TRIES):
            (cell,) = self._cells.read([RELEASES])
            times = _times(cell)
            if now_ms - times.get(digest, -FORGOTTEN_MS) < REWRITE_MS:
                return
            times[digest] = now_ms
            alive = sum(at_ms >= now_ms - GONE_MS for at_ms in times.values())
            if _write(self._store, RELEASES, cell, _newest(times, now_ms - FORGOTTEN_MS, max(RELEASES_MAX, alive))):
                return


class Knowledge:
    """The tasks that the workers of a store know, as this process last read them. Used by one thread."""

    def __init__(self, store: Store) -> None:
        self._store, self._cells = store, store.cells
        self._renewals: dict[str, int] = {}
        self._releases: dict[str, Release] = {}
        self._waits: tuple[Cell | None, dict[str, int]] = None, {}

    def read(self) -> None:
        """Read the releases and the waiting tasks again from the store. Raises StoreError."""
        cell, waits = self._cells.read([RELEASES, WAITS])
        self._renewals, self._waits = _times(cell), (waits, _times(waits))
        unread = [digest for digest in self._renewals if digest not in self._releases]
        cells = self._cells.read([_key(digest) for digest in unread]) if unread else []
        self._releases = {digest: each for digest, each in self._releases.items() if digest in self._renewals}
        for digest, each in zip(unread, cells, strict=True):
            release = _release(each)
            if release is not None:
                self._releases[digest] = release

    @classmethod
    def tasks(cls, store: Store) -> set[str]:
        """Return the names of all tasks that living workers know. Raises StoreError."""
        known = cls(store)
        known.read()
        alive = (each for digest, each in known._releases.items() if known.is_alive(known._renewals[digest]))
        return {name for release in alive for name in release.tasks}

    def known_ms(
        self, queue: str, task: str, version: int, arguments: Sequence[str] = (), above: int | None = None
    ) -> int | None:
        """Return the last time at which there was a worker of the queue that knows this task with these arguments, in
        this version or a later one; None if there was none. A worker with a later version than `above` need not have
        the arguments, as it may convert the body."""
        newest_ms = None
        for digest, release in self._releases.items():
            known = release.tasks.get(task)
            if known is None or queue not in release.queues or known.version < version:
                continue
            if set(arguments) <= set(known.arguments) or (above is not None and known.version > max(above, version)):
                newest_ms = max(newest_ms or 0, self._renewals[digest])
        return newest_ms

    def is_alive(self, known_ms: int | None) -> bool:
        """Return True if a worker that was last alive at `known_ms` may be alive now; False for None."""
        return known_ms is not None and self._store.now_ms() - known_ms < GONE_MS

    def waits(self, queue: str, tasks: Sequence[str]) -> None:
        """List these tasks of a queue as waiting for a newer worker. Raises StoreError."""
        cell, named = self._waits
        now_ms = self._store.now_ms()
        new = [name for task in tasks if now_ms - named.get(name := f"{queue}\0{task}", 0) >= NAMED_AGAIN_MS]
        if not new:
            return
        for _ in range(TRIES):
            merged = _newest(_times(cell) | dict.fromkeys(new, now_ms), now_ms - WAITED_MS, WAITS_MAX)
            if _write(self._store, WAITS, cell, merged):
                break
            (cell,) = self._cells.read([WAITS])
        self._waits = self._waits[0], named | dict.fromkeys(new, now_ms)


def waiting_tasks(store: Store) -> dict[str, list[str]]:
    """Return the tasks, by queue, whose messages may wait for a newer worker. Raises StoreError."""
    (cell,) = store.cells.read([WAITS])
    tasks: dict[str, list[str]] = {}
    for name in _times(cell):
        queue, _, task = name.partition("\0")
        tasks.setdefault(queue, []).append(task)
    return tasks


def _write(store: Store, key: str, cell: Cell | None, times: Mapping[str, int]) -> bool:
    value = msgspec.json.encode(times)
    return store.cells.swap([Swap(key, version_of(cell), value, FORGOTTEN_MS)], durable=False)[0]


def _newest(times: Mapping[str, int], since_ms: int, most: int) -> dict[str, int]:
    kept = sorted(((at_ms, name) for name, at_ms in times.items() if at_ms >= since_ms), reverse=True)[:most]
    return {name: at_ms for at_ms, name in sorted(kept)}


def _times(cell: Cell | None) -> dict[str, int]:
    return decoded(cell, _decode_times, {})


def _release(cell: Cell | None) -> Release | None:
    return decoded(cell, _decode_release, None)


def _key(digest: str) -> str:
    return f"knows/{digest}"
