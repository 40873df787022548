"""Remove blobs in the background of a worker: those of settled messages, and once an hour those without a message."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from ..errors import StoreError
from ..message import BLOB, Message
from ..store import LargeBodies
from .claims import LOOKED_UP

PENDING_MAX = 10_000  # most messages queued for the removal of their blobs; the hourly sweep finds the others
LOOK_EVERY_S = 300.0  # seconds between a worker's checks if the hourly sweep is due
LAST_REMOVALS_S = 5.0  # seconds for which a worker that stops waits for queued removals


class Cleaner:
    """A daemon thread that removes blobs for one worker. `tell(name, text)` reports a notice."""

    def __init__(self, checked: LargeBodies, tell: Callable[[str, str], None]) -> None:
        self._checked, self._tell = checked, tell
        self._settled: SimpleQueue[Message | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="redrive-blobs", daemon=True)
        self._thread.start()

    def settled(self, messages: Sequence[Message]) -> None:
        """Queue the blobs of settled messages for removal. Never blocks or raises; the hourly sweep finds the rest."""
        for message in messages:
            if message.content == BLOB and self._settled.qsize() < PENDING_MAX:
                self._settled.put(message)

    def close(self) -> None:
        """Remove the queued blobs and end the thread; waits for LAST_REMOVALS_S at most."""
        self._settled.put(None)
        self._thread.join(LAST_REMOVALS_S)

    def _work(self) -> None:
        look_at_s = time.monotonic()
        while True:
            batch = self._batch(max(0.0, look_at_s - time.monotonic()))
            try:
                removed = [message for message in batch if message is not None]
                if removed:
                    self._checked.remove(removed)
                if None not in batch and time.monotonic() >= look_at_s:
                    look_at_s = time.monotonic() + LOOK_EVERY_S
                    self._sweep()
            except StoreError as error:
                if self._checked.complains():
                    self._tell("blobs_unavailable", str(error))
            if None in batch:
                return

    def _batch(self, timeout_s: float) -> list[Message | None]:
        batch: list[Message | None] = []
        try:
            batch.append(self._settled.get(timeout=timeout_s))
            while len(batch) < LOOKED_UP:
                batch.append(self._settled.get_nowait())
        except Empty:
            pass
        return batch

    def _sweep(self) -> None:
        count = self._checked.collect_if_due()
        if count:
            self._tell("collected_blobs", f"{count} blobs that no message referred to")
