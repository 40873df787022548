"""Write what a process counted, ten seconds later at the latest: one thread for all its apps, which ends while there is
nothing to write."""

from __future__ import annotations

import atexit
import os
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
from .recorder import Recorder, SeriesName
from .writer import CELLS_AT_ONCE, HistoryWriter

EVERY_S = 10.0
LAST_S = 1.0  # how long the end of a worker or a process waits for its last write
OPEN_S = 600.0  # a transaction that is open for longer is not counted
OPEN_MAX = 10_000  # puts in transactions whose end is not known, beyond which the oldest are not counted
_IDLE_S = 1.0  # how long the thread waits for more before it ends


class Flusher:
    """Writes what `recorder` counts to the store, EVERY_S after it was counted or sooner."""

    def __init__(self, recorder: Recorder, store: Store) -> None:
        self.recorder, self.store = recorder, store
        self.writer = HistoryWriter(store)
        self._writing = threading.Lock()
        self._open: dict[
            str, tuple[float, Mapping[SeriesName, int]]
        ] = {}  # puts in transactions, by the cells beside them
        self._noting = threading.Lock()
        self.asked = False  # whether the thread has it

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        """Put drafts in the store and count them. From any thread; raises what `Store.put` raises.

        A put in a transaction of the caller's is counted once that is committed: a cell of its own is written beside
        the messages, and a later turn finds it or not. If this process is killed before that, the cell expires.
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
        except StoreError:  # the store went away since: not even the time is known
            return
        self.counted()

    def _record_commits(self) -> None:
        """Count the puts whose transactions have been committed since."""
        with self._noting:
            noted = dict(self._open)  # while the cells are read, others put and drop
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
        """Something was counted. From any thread."""
        if not self.asked:
            self.asked = True
            _thread.ask(self, uniform(0.8, 1) * EVERY_S)  # so that processes do not write all at once

    def flush(self) -> None:
        """Write everything now. Raises StoreError: the counts wait for the next time."""
        with self._writing:
            self._record_commits()
            self.writer.write(self.recorder.take())

    def finish(self, within_s: float = LAST_S) -> None:
        """Write everything before this ends, if the store answers in time."""
        if self.asked:
            done = threading.Event()
            _thread.ask(self, 0, done)
            done.wait(within_s)

    def turn(self) -> None:
        """Write, on the thread; again later if the store is out."""
        self.asked = False
        try:
            self.flush()
        except StoreError:
            self.counted()
        except Exception:  # the store was closed under it: what is counted from here on tries again
            return
        if self.writer.pending or self._open:
            self.counted()


def _names(drafts: Sequence[Draft], puts: Sequence[PutResult]) -> Mapping[SeriesName, int]:
    """How many were put of each queue and task; a duplicate was not."""
    return Counter((d.queue, d.task) for d, p in zip(drafts, puts, strict=True) if not p.duplicate)


class _Thread:
    """Runs the turns of flushers when they are due."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due_s: weakref.WeakKeyDictionary[Flusher, float] = weakref.WeakKeyDictionary()
        self._waiting: list[threading.Event] = []
        self._thread: threading.Thread | None = None

    def ask(self, flusher: Flusher, in_s: float, done: threading.Event | None = None) -> None:
        """Let it have a turn in so many seconds; then set `done`."""
        with self._changed:
            self._due_s[flusher] = time.monotonic() + in_s
            if done is not None:
                self._waiting.append(done)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="redrive-history", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # too many threads, or the process ends: what was put was put all the same
                    flusher.asked = False
                    return
                self._thread = thread
            self._changed.notify()

    def finish(self) -> None:
        """Let all have their turns, as the process ends."""
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
        """The flusher that is due, after a wait; None if there is none for a while."""
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
    """A forked child has no threads; what its parent counted is the parent's to write."""
    global _thread
    _thread = _Thread()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: _thread.finish())
