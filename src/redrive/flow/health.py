"""Health checks for gates: a URL or a function of the app, called without delaying the work.

A check runs on a thread of its own, one at a time for each name. A query gets the last answer; only the first one waits
a moment.
"""

from __future__ import annotations

import asyncio
import http.client
import inspect
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .._version import __version__
from ..errors import ConfigError, near_miss
from .gates import is_url

TIMEOUT_S = 5.0  # most seconds to connect, and between two bytes of the response
FRESH_S = 1.0  # seconds for which an answer is used before the check runs again
GOOD_S = 10.0  # seconds for which an answer is used while the next check runs
FIRST_S = 0.2  # seconds for which a query waits for the first answer

Check = Callable[[], Any]  # def or async def; returns a true value if healthy, and may raise


class _Answer(NamedTuple):
    at_s: float
    why: str | None  # None: the check is healthy


class HealthChecks:
    """The health checks of an app. Thread-safe."""

    def __init__(self, *, clock_s: Callable[[], float] = time.monotonic, first_s: float = FIRST_S) -> None:
        self._checks: dict[str, Check] = {}
        self._answers: dict[str, _Answer] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        self._clock_s, self._first_s = clock_s, first_s

    def __contains__(self, health: str) -> bool:
        return is_url(health) or health in self._checks

    def register(self, name: str, check: Check) -> None:
        """Register `check` under this name. Raises ConfigError if it is not callable, or for an invalid name."""
        called: object = name
        if not isinstance(called, str) or not called.strip() or "://" in called:
            raise ConfigError(f"health check {name!r}: expected a name, such as 'crm-up'")
        if not callable(check):
            raise ConfigError(f"health check {name!r}: {check!r} cannot be called; expected fn() that is true when up")
        self._checks[name] = check

    def down(self, health: str) -> str | None:
        """Return why this URL, or the check of this name, reports a problem; None if healthy.

        An answer is used for FRESH_S; then the check runs again, and the old answer is used meanwhile, up to GOOD_S.
        """
        if health not in self:
            near = near_miss(health, self._checks)
            meant = f"; did you mean {near!r}?" if near else ""
            return f"health check {health!r} is not known to this worker's app{meant}"
        with self._lock:
            answer, thread = self._answers.get(health), self._threads.get(health)
            if (answer is None or self._clock_s() - answer.at_s >= FRESH_S) and thread is None:
                thread = threading.Thread(target=self._ask, args=(health,), name="redrive-health", daemon=True)
                self._threads[health] = thread
                thread.start()
        if thread is not None and (answer is None or self._clock_s() - answer.at_s >= GOOD_S):
            thread.join(self._first_s)
            answer = self._answers.get(health)
        if answer is None or self._clock_s() - answer.at_s >= GOOD_S:
            return f"health check {shown(health)} has not answered yet"
        return answer.why

    def _ask(self, health: str) -> None:
        why: str | None = f"health check {shown(health)} ended its thread"
        try:
            why = _get(health) if is_url(health) else _call(health, self._checks[health])
        finally:
            self._answers[health] = _Answer(self._clock_s(), why)
            with self._lock:
                del self._threads[health]


def shown(health: str) -> str:
    """Return the URL without its query, which may hold secrets; the name of a check in quotes."""
    if not is_url(health):
        return repr(health)
    parts = urlsplit(health)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _get(url: str) -> str | None:
    headers = {"User-Agent": f"redrive/{__version__}", "Cache-Control": "no-cache"}
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.build_opener(_RefuseRedirects).open(request, timeout=TIMEOUT_S) as answer:
            return None if 200 <= answer.status < 300 else f"{shown(url)} answered {answer.status}"
    except urllib.error.HTTPError as error:
        error.close()
        return f"{shown(url)} answered {error.code}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{shown(url)} did not answer: {type(getattr(error, 'reason', error)).__name__}"


def _call(name: str, check: Check) -> str | None:
    try:
        answer = check()
        if inspect.iscoroutine(answer):
            answer = asyncio.run(answer)
    except Exception as error:
        return f"health check {name!r} raised {type(error).__name__}"
    return None if answer else f"health check {name!r} says no"


class _RefuseRedirects(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as unhealthy: it may lead to a page for people, such as a login page."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None
