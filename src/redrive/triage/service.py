"""Run the open redrives of a store beside a worker, and the machines that redrive automatically.

Both run on one additional thread, which exists only while needed.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Collection

from ..errors import StoreError
from ..events import Notify
from ..registry import Registry
from ..worker import Service
from .auto.runner import AutoRunner
from .redrive.records import index
from .redrive.runner import Runner

POLL_S = 1.0  # seconds between checks for open runs
TROUBLE_S = 5.0  # seconds for which a run rests after an error
NOTICE_EVERY_S = 60.0  # fewest seconds between reports that the store is unavailable


class RedriveService(Service):
    """Runs the open redrives and the machines of an app's store, as `owner`. Processes share them: each run and machine
    is run by one process at a time."""

    def __init__(self, app: Registry, owner: str, notice: Notify) -> None:
        self._app, self._owner, self._notice = app, owner, notice
        self._autos = AutoRunner(app, owner, notice)
        self._runners: dict[str, Runner] = {}
        self._next_s: dict[str, float] = {}  # monotonic time of the next tick, by run
        self._poll_at_s = self._find_at_s = self._notice_at_s = 0.0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._ticked = True  # True if every open run has had at least one tick

    # -- on the worker's store thread

    def look(self, *, now: bool = False) -> None:
        """Start the thread if there is anything to run; checks at most once a second, unless `now`. If the cells are
        unreadable, the worker continues without redrives: the store is down, or the cells were altered or are newer.
        It also continues if no thread can start."""
        now_s = time.monotonic()
        if self._thread is not None or (now_s < self._poll_at_s and not now):
            return
        self._poll_at_s = now_s + POLL_S
        try:
            wanted = index(self._app.store).open or self._autos.wanted()
        except Exception as error:
            self._poll_at_s = now_s + TROUBLE_S
            self._failed(error)
            return
        if wanted:
            self._ticked, self._find_at_s = False, 0.0
            self._thread = threading.Thread(target=self._work, name="redrive-runs", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # there are too many threads
                self._ticked, self._thread, self._poll_at_s = True, None, now_s + TROUBLE_S
                self._failed(error)

    def busy(self, queues: Collection[str]) -> bool:
        """True if a burst worker on these queues must wait for a run with messages left to move."""
        return not self._ticked or any(runner.keeps(queues) for runner in list(self._runners.values()))

    def carried(self) -> list[str]:
        """Return the ids of the runs whose lease this service has. Thread-safe."""
        return [id for id, runner in list(self._runners.items()) if runner.carries]

    def close(self) -> None:
        """Let the thread count the outcomes that have arrived and give back all leases, and wait for its end."""
        self._stop.set()
        thread = self._thread
        if thread is not None:
            thread.join()

    # -- on its own thread

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                wait_s = self._round()
                if wait_s is None:
                    break
                self._stop.wait(wait_s)
            self._finish()
        finally:
            self._runners.clear()
            self._ticked, self._thread = True, None

    def _round(self) -> float | None:
        """Tick the runs and machines that are due; return the seconds to sleep, or None if there is nothing to run."""
        now_s = time.monotonic()
        try:
            if now_s >= self._find_at_s:
                self._find_at_s = now_s + POLL_S
                self._work_machines()
                self._find()
        except StoreError as error:
            self._failed(error)
            return POLL_S
        if not self._runners and not self._autos:
            return None
        for id, runner in list(self._runners.items()):
            if now_s >= self._next_s.get(id, 0.0):
                self._tick(id, runner)
        self._ticked = True
        return max(0.0, min([self._find_at_s, *self._next_s.values()]) - time.monotonic())

    def _work_machines(self) -> None:
        try:
            self._autos.tick()
        except StoreError:
            raise
        except Exception:  # a bug, or cells altered by hand: the runs continue
            self._notice("auto_failed", traceback.format_exc(limit=-3), "")

    def _find(self) -> None:
        open_runs = index(self._app.store).open
        for id in open_runs:
            if id not in self._runners:
                self._runners[id] = Runner(self._app.store, id, self._owner, self._notice, self._app)
                self._next_s[id] = 0.0
        for id in [id for id in self._runners if id not in open_runs]:
            del self._runners[id], self._next_s[id]

    def _tick(self, id: str, runner: Runner) -> None:
        try:
            wait_s = runner.tick()
        except StoreError as error:
            self._failed(error)
            wait_s = POLL_S
        except Exception:  # a bug, or cells altered by hand: the other runs continue
            self._notice("run_failed", traceback.format_exc(limit=-3), id)
            runner.moves, wait_s = False, TROUBLE_S
        self._next_s[id] = time.monotonic() + (POLL_S if wait_s is None else wait_s)

    def _finish(self) -> None:
        try:
            self._autos.close()
        except Exception as error:  # close must not fail: the lease expires
            self._failed(error)
        for runner in self._runners.values():
            try:
                runner.tick()
                runner.tick()
                runner.release()
            except Exception as error:  # the run's lease expires
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        now_s = time.monotonic()
        if now_s >= self._notice_at_s:
            self._notice_at_s = now_s + NOTICE_EVERY_S
            self._notice("runs_unavailable", str(error), "")
