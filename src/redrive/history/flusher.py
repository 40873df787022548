"""Write what a process counted, ten seconds later at the latest: one thread for all its apps, which ends while there is
nothing to write."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Sequence

from ..chance import uniform
from ..errors import StoreError
from ..message import Draft, Put
from ..store import Store
from .recorder import Recorder
from .writer import Writer

EVERY_S = 10.0
LAST_S = 1.0  # how long the end of a worker or a process waits for its last write
_IDLE_S = 1.0  # how long the thread waits for more before it ends


class Flusher:
    """Writes what `recorder` counts to the store, EVERY_S after it was counted or sooner."""

    def __init__(self, recorder: Recorder, store: Store) -> None:
        self.recorder, self.store = recorder, store
        self.writer = Writer(store)
        self._writing = threading.Lock()
        self.asked = False  # whether the thread has it

    def enqueued(self, drafts: Sequence[Draft], puts: Sequence[Put]) -> None:
        """Count what was put. From any thread; raises nothing, as the messages are stored."""
        try:
            self.recorder.enqueued(drafts, self.store.now_ms(), puts)
        except StoreError:  # the store went away since: not even the time is known
            return
        self.counted()

    def counted(self) -> None:
        """Something was counted. From any thread."""
        if not self.asked:
            self.asked = True
            _thread.ask(self, uniform(0.8, 1) * EVERY_S)  # so that processes do not write all at once

    def flush(self) -> None:
        """Write everything now. Raises StoreError: the counts wait for the next time."""
        with self._writing:
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
        if self.writer.pending:
            self.counted()


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
                found = min(self._due_s.items(), key=lambda item: item[1], default=None)
                if found is None:
                    if now_s - idle_from_s >= _IDLE_S:
                        self._thread = None
                        for done in self._waiting:
                            done.set()
                        self._waiting.clear()
                        return None
                    wait_s = _IDLE_S
                elif found[1] <= now_s:
                    del self._due_s[found[0]]
                    return found[0]
                else:
                    wait_s = found[1] - now_s
                del found
                self._changed.wait(wait_s)


_thread = _Thread()


def _forked() -> None:
    """A forked child has no threads; what its parent counted is the parent's to write."""
    global _thread
    _thread = _Thread()


os.register_at_fork(after_in_child=_forked)
atexit.register(lambda: _thread.finish())
