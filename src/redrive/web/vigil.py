"""Detect within seconds that the store does not answer, and show earlier records of pages meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import Lock, Thread
from typing import Any, TypeVar

from starlette.requests import Request

from ..duration import rfc3339
from ..errors import StoreUnavailable
from ..store import Store
from .answers import problem_of
from .ask import PageAnswer, PageRequest, Record
from .requests import wants_json
from .table import SitePage

T = TypeVar("T")
_SHARED_MAX, _SHARED_S = 200, 2.0
ANSWERS_S = 2.0  # seconds for the cheapest call of the store, after which the store counts as hung
LOST_S = 0.3  # seconds for that call if the store did not answer the last one
RECENT_S = 1.0  # seconds for which an answer of the store is taken to mean that it still answers
KEPT_MAX = 200  # the most records of pages that are kept
THREADS_MAX = 16  # the most calls of the store at the same time
JOINED_S = 2.0  # seconds after which an equal request waits for a read that has not ended, and begins none


class Vigil:
    """Calls the store cheaply to check that it answers, and keeps the time of the last answer. All requests share a
    call that hangs."""

    answered_s: float
    lost: bool

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = Lock()
        self._asked: Future[bool] | None = None
        self.answered_s = time.time()  # time.time() of the store's last answer
        self.lost = False

    async def answers(self) -> bool:
        """Return True if the store answers now, or did so within RECENT_S; else note in `lost` that it does not."""
        if not self.lost and 0 <= time.time() - self.answered_s < RECENT_S:
            return True
        asked = asyncio.wrap_future(self._ask())
        done, _ = await asyncio.wait({asked}, timeout=LOST_S if self.lost else ANSWERS_S)
        if done and asked.result():
            return True
        self.lost = True
        return False

    def heard(self) -> None:
        """Note that the store has answered."""
        self.answered_s, self.lost = time.time(), False

    def doubt(self) -> None:
        """Note that a read hangs: unless the store has just answered another, pages wait for it only LOST_S."""
        if time.time() - self.answered_s >= RECENT_S:
            self.lost = True

    def _ask(self) -> Future[bool]:
        with self._lock:
            if self._asked is None:
                self._asked = Future()
                Thread(target=self._put, args=(self._asked,), daemon=True, name="redrive-vigil").start()
            return self._asked

    def _put(self, asked: Future[bool]) -> None:
        try:
            self._store().paused()
            self.heard()
            changed = True
        except Exception:  # the page itself reports the error
            changed = False
        with self._lock:
            self._asked = None
        asked.set_result(changed)


class Readings:
    """Reads pages: once for equal requests at the same time, and from kept records while the store does not answer.

    Reads have threads of their own. So if the store hangs, they take none of the event loop's, which rendering needs
    and, where the site is mounted, the other application."""

    def __init__(self, url: str, vigil: Vigil) -> None:
        self._url, self._vigil = url, vigil
        self._threads = ThreadPoolExecutor(THREADS_MAX, "redrive-page")
        self._records: dict[Any, Record] = {}  # by key, the last record, to show while the store does not answer
        self._pending: dict[Any, tuple[Future[Any], float]] = {}  # by key, the last read, and when it was begun
        self._shared: dict[Any, asyncio.Future[Any]] = {}
        self._version, self._since = -1, 0.0

    async def seen(self, page: SitePage, request: Request, ask: PageRequest, version: int | None = None) -> Record:
        """Return the record of a page. If the store does not answer, return the last record that was kept, with its
        time. With `version`, the record is shared with other requests after the same change."""
        key, problem = key_of(request, ask), None
        if not page.needs_store or not self._vigil.lost or await self._vigil.answers():
            begin = partial(self._begin, key, partial(_read, page, ask))
            reading = asyncio.ensure_future(begin() if version is None else self.once(key, version, begin))
            try:
                while not page.needs_store or await self._vigil.answers():
                    done, _ = await asyncio.wait({reading}, timeout=ANSWERS_S)
                    if done:
                        record = reading.result()
                        self._records.pop(key, None)
                        self._records[key] = record
                        if len(self._records) > KEPT_MAX:
                            del self._records[next(iter(self._records))]
                        return record
            except Exception as error:
                if problem_of(error, self._url).status != 503:
                    raise
                problem = error
            reading.add_done_callback(_forget)
        shown, since = self._records.get(key), rfc3339(round(self._vigil.answered_s * 1000))
        if shown is None or wants_json(request):
            raise problem or StoreUnavailable(f"it has not answered since {since}")
        lost = {**shown, "lost": {"since": since, "store": self._url}}
        return PageAnswer(lost, status=503, typed=shown.typed if isinstance(shown, PageAnswer) else None)

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that uses the store on a thread of the reads, in the caller's context."""
        return await asyncio.wrap_future(self._threads.submit(copy_context().run, function, *args))

    async def close(self) -> None:
        """Wait for the calls that are under way, and drop those that wait for a thread."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    def forget(self) -> None:
        """Let later requests read pages again, after a change of the store."""
        self._pending.clear()

    def _begin(self, key: Any, read: Callable[[], Record]) -> asyncio.Future[Record]:
        """Begin a read, unless the last one of this key waits for a thread or has not ended after JOINED_S."""
        reading, began_s = self._pending.get(key, (None, 0.0))
        if reading is None or reading.done() or (reading.running() and time.monotonic() - began_s <= JOINED_S):
            if len(self._pending) > KEPT_MAX:
                self._pending = {key: last for key, last in self._pending.items() if not last[0].done()}
            reading = self._threads.submit(copy_context().run, read)
            self._pending[key] = reading, time.monotonic()
        return asyncio.wrap_future(reading)

    async def once(self, key: Any, version: int, begin: Callable[[], Awaitable[T]]) -> T:
        """Return the value that `begin` made for this key and version, shared between requests. Values are dropped with
        the next version or after two seconds, as versions are counted only while browsers watch."""
        now = asyncio.get_running_loop().time()
        if version != self._version or len(self._shared) > _SHARED_MAX or now - self._since > _SHARED_S:
            self._shared.clear()
            self._version, self._since = version, now
        reading = self._shared.get(key)
        if reading is None:
            reading = self._shared[key] = asyncio.ensure_future(begin())
        try:
            value: T = await asyncio.shield(reading)
            return value
        except Exception:
            self._shared.pop(key, None)
            raise


def key_of(request: Request, ask: PageRequest) -> tuple[Any, ...]:
    """Return the key of a page's record: path, query and user, as a run's page depends on the permission to approve."""
    return request.scope["path"], request.scope.get("query_string"), ask.user


def _read(page: SitePage, ask: PageRequest) -> Record:
    """Return the record of a page, with `stale` if a sum in it is old."""
    record = page.read(ask)
    old = ask.stale(ask.store.now_ms()) if ask.ages_s else None
    if old is not None:
        record["stale"] = old
    return record


def _forget(reading: asyncio.Future[Any]) -> None:
    """Retrieve the error of an abandoned reading, as asyncio would log it otherwise."""
    if not reading.cancelled():
        reading.exception()
