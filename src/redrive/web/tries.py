"""Limit how fast a client can guess tokens."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

WRONG_MAX = 10  # wrong tokens that one client may send within WITHIN_S
WRONG_BY_PROXY_MAX = 100  # wrong tokens that all clients of one proxy together may send within WITHIN_S
WITHIN_S = 60.0
CLIENTS_MAX = 1_000  # clients that are remembered; beyond this, the one with the oldest wrong token is forgotten


class LoginTries:
    """The times of wrong tokens by client. After too many within a minute, every token of that client is refused for a
    minute, even the right one, as accepting it would reveal it. Open sessions continue."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def wait_s(self, client: str, most: int = WRONG_MAX) -> int:
        """Return how many seconds this client has to wait after `most` wrong tokens; 0 if it may try now."""
        with self._lock:
            times = self._wrong.get(client, [])
            left = times[-1] + WITHIN_S - self._clock() if len(times) >= most else 0.0
            if left <= 0 and len(times) >= most:
                del self._wrong[client]
            return max(0, int(left + 0.999))

    def wrong(self, client: str, most: int = WRONG_MAX) -> None:
        """Count a wrong token of this client; keep the times of the last `most`."""
        with self._lock:
            now = self._clock()
            times = [at for at in self._wrong.pop(client, []) if now - at < WITHIN_S]
            self._wrong[client] = [*times, now][-most:]
            while len(self._wrong) > CLIENTS_MAX:
                self._wrong.popitem(last=False)
