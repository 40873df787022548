"""What several worker processes counted, added up: each keeps a file in one directory; who serves metrics reads all.

A process takes the first file whose lock is free, counts on from what stands in it, and writes it anew, whole, twice a
second while something happens. So counters never fall when a process is replaced, and there are never more files than
there were processes at once. A kill -9 loses what was counted since the last write.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..config.resolve import is_shared
from ..errors import Refused
from ..events import Event, Notice
from ..files import NotOurs, make_folder, open_file, read_regular, rewrite
from ..registry import Registry
from .tally import Counting, Labels, Numbers, Series, empty, merge

WRITE_EVERY_S = 0.5
PROCESSES_MAX = 1000

_Written = dict[str, list[tuple[Labels, Numbers]]]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Written).decode


class SharedCounting:
    """An observer that counts, and keeps what it counted in a file of `directory` for `read`.

    Raises OSError where the directory cannot be written or is somebody else's, Refused where no file in it is free.
    """

    def __init__(self, counting: Counting, directory: Path) -> None:
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
            self.write()  # the process may end before the thread's next turn

    def write(self) -> None:
        """Write what was counted up to now. What cannot be written now is written with the next; work goes on."""
        with self._writing, contextlib.suppress(OSError):
            new = self._path.with_suffix(".new")
            counted = _encode({name: list(of.items()) for name, of in self._counting.copy().items()})
            rewrite(new, counted, shared=self._shared)
            new.replace(self._path)

    def close(self) -> None:
        """Give the file to the next process. Not needed before a process ends."""
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
    """Count what this process's workers do, for whoever serves `directory`: what `redrive worker --metrics` does in
    each of its processes. Raises OSError, Refused."""
    counting = Counting(app.tasks)
    counting.expect((task.queue, task.name) for task in app.tasks.values())
    shared = SharedCounting(counting, directory)
    shared.write()
    app.subscribe(shared)


def read(directory: Path) -> Series:
    """What all processes that share `directory` counted; nothing where there is no such directory."""
    total = empty()
    for path in directory.glob("*.json"):
        merge(total, _read(path))
    return total


def _read(path: Path) -> Series:
    """What stands in a file: nothing where it is not there yet, or was cut off by a power failure."""
    try:
        return {name: dict(of) for name, of in _decode(read_regular(path)).items()}
    except (OSError, msgspec.DecodeError):
        return {}


def _take(directory: Path) -> tuple[Path, int]:
    """The first file that no living process has, and the lock that keeps it ours until this process ends."""
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
