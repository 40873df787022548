"""Carrying the runs of a store beside a worker, and working the machines that begin some: a thread of its own, there
while there is something of either."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Collection

from ...errors import StoreError
from ...events import Notify
from ...registry import Registry
from ...worker import Service
from ..auto.machine import Autos
from . import runs
from .runner import Carrier

LOOK_S = 1.0  # how often it looks for runs
TROUBLE_S = 5.0  # how long a run is left alone that could not be carried
TOLD_EVERY_S = 60.0  # how often it tells of a store that is out, at most


class Carrying(Service):
    """Carries the open runs of an app's store under `owner`'s name, and works its machines; several processes share
    them, each is carried by one at a time."""

    def __init__(self, app: Registry, owner: str, notice: Notify) -> None:
        self._app, self._owner, self._notice = app, owner, notice
        self._autos = Autos(app, owner, notice)
        self._carriers: dict[str, Carrier] = {}
        self._next_s: dict[str, float] = {}  # when each is to be called again
        self._look_at_s = self._find_at_s = self._tell_at_s = 0.0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._looked = True  # whether all open runs were ticked at least once

    # -- on the worker's store thread

    def look(self, *, now: bool = False) -> None:
        """Once a second, or `now`: see whether there is something to carry. The worker goes on without, where its cells
        cannot be read: they are out, were altered, or are a newer version's."""
        now_s = time.monotonic()
        if self._thread is not None or (now_s < self._look_at_s and not now):
            return
        self._look_at_s = now_s + LOOK_S
        try:
            wanted = runs.index(self._app.store).open or self._autos.wanted()
        except Exception as error:
            self._look_at_s = now_s + TROUBLE_S
            self._failed(error)
            return
        if wanted:
            self._looked, self._find_at_s = False, 0.0
            self._thread = threading.Thread(target=self._work, name="redrive-runs", daemon=True)
            self._thread.start()

    def busy(self, queues: Collection[str]) -> bool:
        """Whether a run that it carries has messages left that it may move: a burst of these queues waits for those."""
        return not self._looked or any(carrier.keeps(queues) for carrier in list(self._carriers.values()))

    def close(self) -> None:
        """Take up what is in, and let others carry on."""
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
            self._carriers.clear()
            self._looked, self._thread = True, None

    def _round(self) -> float | None:
        """Tick what is due; how long to sleep. None: there is nothing to carry."""
        now_s = time.monotonic()
        try:
            if now_s >= self._find_at_s:
                self._find_at_s = now_s + LOOK_S
                self._work_machines()
                self._find()
        except StoreError as error:
            self._failed(error)
            return LOOK_S
        if not self._carriers and not self._autos:
            return None
        for id, carrier in list(self._carriers.items()):
            if now_s >= self._next_s.get(id, 0.0):
                self._tick(id, carrier)
        self._looked = True
        return max(0.0, min([self._find_at_s, *self._next_s.values()]) - time.monotonic())

    def _work_machines(self) -> None:
        try:
            self._autos.tick()
        except StoreError:
            raise
        except Exception:  # a bug, or cells that somebody altered: the runs go on
            self._notice("auto_failed", traceback.format_exc(limit=-3), "")

    def _find(self) -> None:
        open_runs = runs.index(self._app.store).open
        for id in open_runs:
            if id not in self._carriers:
                self._carriers[id] = Carrier(self._app.store, id, self._owner, self._notice, self._app)
                self._next_s[id] = 0.0
        for id in [id for id in self._carriers if id not in open_runs]:
            del self._carriers[id], self._next_s[id]

    def _tick(self, id: str, carrier: Carrier) -> None:
        try:
            wait_s = carrier.tick()
        except StoreError as error:
            self._failed(error)
            wait_s = LOOK_S
        except Exception:  # a bug, or cells that somebody altered: the other runs go on
            self._notice("run_failed", traceback.format_exc(limit=-3), id)
            carrier.moves, wait_s = False, TROUBLE_S
        self._next_s[id] = time.monotonic() + (LOOK_S if wait_s is None else wait_s)

    def _finish(self) -> None:
        try:
            self._autos.close()
        except Exception as error:  # as below
            self._failed(error)
        for carrier in self._carriers.values():
            try:
                carrier.tick()
                carrier.tick()
                carrier.release()
            except Exception as error:  # its lease runs out by itself
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        now_s = time.monotonic()
        if now_s >= self._tell_at_s:
            self._tell_at_s = now_s + TOLD_EVERY_S
            self._notice("runs_unavailable", str(error), "")
