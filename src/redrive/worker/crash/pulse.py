"""Record that a worker process lives, independently of its store and its event loop."""

from __future__ import annotations

import threading
import time

from .ledger import CrashSlots

PULSE_EVERY_S = 0.5


class Pulse:
    """Writes a sign of life to a worker's crash ledger twice a second, on a thread of its own."""

    def __init__(self, slots: CrashSlots) -> None:
        self._slots, self._stopped = slots, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="redrive-pulse", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stopped.wait(PULSE_EVERY_S):
            self._slots.beat(time.monotonic())

    def stop(self) -> None:
        """Stop and join the thread. Call it before the ledger is closed."""
        self._stopped.set()
        self._thread.join()
