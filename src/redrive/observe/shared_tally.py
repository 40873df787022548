"""Add up the counts of several worker processes: each keeps a file in one directory, and the metrics server reads all.

A process takes the first file whose lock is free, continues its counts, and rewrites it twice a second while they
change. So counters never fall when a process is replaced, and there are never more files than processes at one time. A
kill -9 loses what was counted since the last write.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..config import is_shared
from ..errors import Refused
from ..events import Event, Notice
from ..files import NotOurs, make_folder, open_file, read_regular, rewrite
from ..message import UNREADABLE
from ..registry import Registry
from .tally import EventCounter, Labels, MetricSeries, Numbers, empty, merge, put_by

WRITE_EVERY_S = 0.5
PROCESSES_MAX = 1000

_StoredSeries = dict[str, list[tuple[Labels, Numbers]]]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_StoredSeries).decode


class SharedCounting:
    """An observer that counts, and writes its counts to a file of `directory`, for `read`.

    Raises OSError if the directory cannot be written or belongs to another user, Refused if no file in it is free.
    """

    def __init__(self, counting: EventCounter, directory: Path) -> None:
        make_folder(directory, shared=is_shared())
        self._counting, self._shared = counting, is_shared()
        self._path, self._lock = _take(directory)
        counting.add(_read(self._path))
        self._changed, self._closed = threading.Event(), threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._write_on, name="redrive-metrics", daemon=True)
        self._thread.start()

    def __call__(self, events: Sequence[Event]) -> None:
        self._counting(events)
        if not self._changed.is_set():
            self._changed.set()
        if any(isinstance(event, Notice) and event.name == "stopped" for event in events):
            self.write()  # the process may end before the thread writes again

    def write(self) -> None:
        """Write the counts to the file. After an error, work continues, and the next write includes these counts."""
        with self._writing, contextlib.suppress(OSError):
            new = self._path.with_suffix(".new")
            counted = _encode({name: list(of.items()) for name, of in self._counting.copy().items()})
            rewrite(new, counted, shared=self._shared)
            new.replace(self._path)

    def close(self) -> None:
        """Stop writing, and release the file for another process. The end of this process releases it, too."""
        self._closed.set()
        self._changed.set()
        self._thread.join()
        os.close(self._lock)

    def _write_on(self) -> None:
        while self._changed.wait() and not self._closed.is_set():
            self._changed.clear()
            self.write()
            self._closed.wait(WRITE_EVERY_S)


def share(app: Registry, directory: Path) -> None:
    """Count the work of this process in `directory`, as each process of `redrive worker --metrics` does. Raises
    OSError, Refused."""
    counting = EventCounter(app.tasks, lambda: put_by(app))
    counting.expect((task.queue, task.name) for task in app.tasks.values())
    shared = SharedCounting(counting, directory)
    shared.write()
    app.subscribe(shared)


def read(directory: Path) -> MetricSeries:
    """Return the sum of the counts of all processes that share `directory`; empty if it does not exist."""
    total = empty()
    for path in directory.glob("*.json"):
        merge(total, _read(path))
    return total


def _read(path: Path) -> MetricSeries:
    """Return the counts in a file; none if it does not exist yet, or was truncated by a power failure."""
    try:
        return {name: dict(of) for name, of in _decode(read_regular(path)).items()}
    except (OSError, *UNREADABLE):
        return {}


def _take(directory: Path) -> tuple[Path, int]:
    """Lock the first file of the directory that no living process uses; return its path, and the lock to hold until
    this process ends."""
    import fcntl

    for number in range(PROCESSES_MAX):
        try:
            lock = open_file(directory / f"{number}.lock", os.O_RDWR | os.O_CREAT, shared=is_shared())
        except NotOurs:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return directory / f"{number}.json", lock
    raise Refused(f"all {PROCESSES_MAX} metrics files in {directory} are taken; expected one process per file")
