"""Write the counts of a process to its store within ten seconds. One thread serves all apps; it ends when idle."""

from __future__ import annotations

import atexit
import secrets
import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..chance import uniform
from ..errors import StoreError
from ..message import Draft, PutResult, Swap
from ..store import Store
from ..system import at_fork
from .done import DoneWriter
from .recorder import Recorder, SeriesName
from .writer import CELLS_AT_ONCE, HistoryWriter

EVERY_S = 10.0
LAST_S = 1.0  # the most seconds for which the end of a worker or process waits for its last write
OPEN_S = 600.0  # seconds: the puts in a transaction that stays open longer are not counted
OPEN_MAX = 10_000  # transactions whose ends are unknown; beyond this the oldest ones are not counted
_IDLE_S = 1.0  # seconds for which the thread waits for more work before it ends


class Flusher:
    """Writes the counts of `recorder` to the store, at most EVERY_S seconds after they were counted. `done` writes
    which messages were done, for `known_ms`; None if that is 0, or the store has no messages of its own."""

    asked: bool
    recorder: Recorder
    store: Store
    done: DoneWriter | None

    def __init__(self, recorder: Recorder, store: Store, known_ms: int = 0) -> None:
        self.recorder, self.store = recorder, store
        self.writer: HistoryWriter = HistoryWriter(store)
        self.done = DoneWriter(store, recorder.lock, known_ms) if known_ms and store.traits.finds else None
        self._writing = threading.Lock()
        self._open: dict[
            str, tuple[float, Mapping[SeriesName, int]]
        ] = {}  # by the key of its marker cell: when a transaction began, and its puts
        self._noting = threading.Lock()
        self.asked = False  # True if a turn on the thread is scheduled

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        """Put drafts in the store and count them. From any thread; raises what `Store.put` raises.

        A put in the caller's transaction is counted once that commits: the transaction also writes a marker cell, and a
        later turn counts the put if it finds that. If this process is killed before that, the cell expires.
        """
        if tx is None:
            puts = self.store.put(drafts, swaps=swaps)
            self._record(_names(drafts, puts))
            return puts
        key = f"history/tx/{secrets.token_hex(8)}"
        mark = Swap(key, 0, b"1", round(OPEN_S * 1000)) if drafts else None
        puts = self.store.put(drafts, swaps=swaps if mark is None else [*swaps, mark], tx=tx)
        if mark is not None:
            with self._noting:
                while len(self._open) >= OPEN_MAX:
                    del self._open[next(iter(self._open))]
                self._open[key] = time.monotonic(), _names(drafts, puts)
            self.counted()
        return puts

    def _record(self, names: Mapping[SeriesName, int]) -> None:
        try:
            self.recorder.count_puts(names, self.store.now_ms())
        except StoreError:  # the store failed after the put, and without its time the minute of the puts is unknown
            return
        self.counted()

    def _record_commits(self) -> None:
        """Count the puts whose transactions have committed, which their marker cells show."""
        with self._noting:
            noted = dict(self._open)  # a copy, as other threads add and remove entries while the cells are read
        keys = [*noted]
        for at in range(0, len(keys), CELLS_AT_ONCE):
            some = keys[at : at + CELLS_AT_ONCE]
            there = {key: cell for key, cell in zip(some, self.store.cells.read(some), strict=True) if cell is not None}
            self.store.cells.swap([Swap(key, cell.version, None) for key, cell in there.items()], durable=False)
            for key in some:
                began_s, names = noted[key]
                if key in there:
                    self.recorder.count_puts(names, self.store.now_ms())
                if key in there or time.monotonic() - began_s > OPEN_S:
                    with self._noting:
                        self._open.pop(key, None)

    def counted(self) -> None:
        """Schedule a write, unless one is scheduled. Call it after counting something. Thread-safe."""
        if not self.asked:
            self.asked = True
            _thread.ask(self, uniform(0.8, 1) * EVERY_S)  # random, so that processes do not all write at the same time

    def flush(self) -> None:
        """Write all counts now. Raises StoreError; the counts then wait for the next write."""
        with self._writing:
            self._record_commits()
            self.writer.write(self.recorder.take())
            if self.done is not None:
                self.done.write()

    def finish(self, within_s: float = LAST_S) -> None:
        """Write all counts that wait, and give the store `within_s` seconds at most for that."""
        if self.asked:
            done = threading.Event()
            _thread.ask(self, 0, done)
            done.wait(within_s)

    def turn(self) -> None:
        """Write the counts, on the thread; if the store fails, schedule another try."""
        self.asked = False
        try:
            self.flush()
        except StoreError:
            self.counted()
        except Exception:  # the store was closed meanwhile; the next count schedules another try
            return
        if self.writer.pending or self._open:
            self.counted()


def _names(drafts: Sequence[Draft], puts: Sequence[PutResult]) -> Mapping[SeriesName, int]:
    """Return how many of the drafts were put, by queue and task, without duplicates."""
    return Counter((d.queue, d.task) for d, p in zip(drafts, puts, strict=True) if not p.duplicate)


class _Thread:
    """The thread that runs the turns of flushers when they are due."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due_s: weakref.WeakKeyDictionary[Flusher, float] = weakref.WeakKeyDictionary()
        self._waiting: list[threading.Event] = []
        self._thread: threading.Thread | None = None

    def ask(self, flusher: Flusher, in_s: float, done: threading.Event | None = None) -> None:
        """Schedule a turn of the flusher in `in_s` seconds; `done`, if given, is set after that."""
        with self._changed:
            self._due_s[flusher] = time.monotonic() + in_s
            if done is not None:
                self._waiting.append(done)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="redrive-history", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # there are too many threads, or the interpreter ends: only counts are lost
                    flusher.asked = False
                    return
                self._thread = thread
            self._changed.notify()

    def finish(self) -> None:
        """Flush all flushers, at the end of the process."""
        with self._changed:
            flushers = list(self._due_s)
        for flusher in flushers:
            flusher.finish()

    def _run(self) -> None:
        while (flusher := self._next()) is not None:
            flusher.turn()
            del flusher
            with self._changed:
                now_s = time.monotonic()
                if all(due_s > now_s for due_s in self._due_s.values()):
                    for done in self._waiting:
                        done.set()
                    self._waiting.clear()

    def _next(self) -> Flusher | None:
        """Wait until a flusher is due, and return it; None after `_IDLE_S` without any."""
        idle_from_s = time.monotonic()
        with self._changed:
            while True:
                now_s = time.monotonic()
                first = min(self._due_s.items(), key=lambda item: item[1], default=None)
                if first is None:
                    if now_s - idle_from_s >= _IDLE_S:
                        self._thread = None
                        for done in self._waiting:
                            done.set()
                        self._waiting.clear()
                        return None
                    wait_s = _IDLE_S
                elif first[1] <= now_s:
                    del self._due_s[first[0]]
                    return first[0]
                else:
                    wait_s = first[1] - now_s
                del first
                self._changed.wait(wait_s)


_thread = _Thread()


def _after_fork() -> None:
    """Use a new thread object in a forked child: threads do not survive a fork, and the parent process writes its own
    counts."""
    global _thread
    _thread = _Thread()


at_fork(after_in_child=_after_fork)
atexit.register(lambda: _thread.finish())
