"""Know within seconds that the store does not answer, and keep what pages showed before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
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
ANSWERS_S = 2.0  # a store that takes longer for the least question hangs, as far as a reader can tell
LOST_S = 0.3  # how long one that did not answer is waited for
RECENT_S = 1.0  # an answer is good for so long
KEPT_MAX = 200  # records


class Vigil:
    """Asks the store the least there is to ask, and remembers when it last answered, and what pages showed then. A
    question that hangs is waited for by all; no second one is asked meanwhile."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._lock = Lock()
        self._asked: Future[bool] | None = None
        self._records: dict[Any, Mapping[str, Any]] = {}
        self.answered_s = time.time()  # when it last did
        self.lost = False

    async def answers(self) -> bool:
        """Whether the store answers now."""
        if not self.lost and 0 <= time.time() - self.answered_s < RECENT_S:
            return True
        asked = asyncio.wrap_future(self._ask())
        done, _ = await asyncio.wait({asked}, timeout=LOST_S if self.lost else ANSWERS_S)
        if done and asked.result():
            return True
        self.lost = True
        return False

    def heard(self) -> None:
        """It answered."""
        self.answered_s, self.lost = time.time(), False

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
        except Exception:  # whatever is wrong with it, the page says what
            changed = False
        with self._lock:
            self._asked = None
        asked.set_result(changed)

    def keep(self, key: Any, record: Mapping[str, Any]) -> None:
        """Keep what a page shows, for as long as the store will not answer."""
        self._records.pop(key, None)
        self._records[key] = record
        while len(self._records) > KEPT_MAX:
            del self._records[next(iter(self._records))]

    def last(self, key: Any) -> Mapping[str, Any] | None:
        """What the page showed last."""
        return self._records.get(key)


class Readings:
    """Reads pages: once for all who ask for the same, and as they were where the store does not answer."""

    def __init__(self, url: str, vigil: Vigil) -> None:
        self._url, self._vigil = url, vigil
        self._shared: dict[Any, asyncio.Future[Any]] = {}
        self._version, self._since = -1, 0.0

    async def seen(self, page: SitePage, request: Request, ask: PageRequest, version: int | None = None) -> Record:
        """What a page shows, with how old it is where that is old. If the store does not answer, what the page showed
        last, with since when. `version`: it is read once for all who ask for it after a change."""

        def read() -> Record:
            return _read(page, ask)

        key = key_of(request, ask)
        once = asyncio.to_thread(read) if version is None else self.once(key, version, read)
        reading = asyncio.ensure_future(once)
        problem: Exception | None = None
        try:
            while not page.needs_store or await self._vigil.answers():
                done, _ = await asyncio.wait({reading}, timeout=ANSWERS_S)
                if done:
                    record = reading.result()
                    self._vigil.keep(key, record)
                    return record
        except Exception as error:
            if problem_of(error, self._url).status != 503:
                raise
            problem = error
        reading.add_done_callback(_forget)
        shown, since = self._vigil.last(key), rfc3339(round(self._vigil.answered_s * 1000))
        if shown is None or wants_json(request):
            raise problem or StoreUnavailable(f"it has not answered since {since}")
        lost = {**shown, "lost": {"since": since, "store": self._url}}
        return PageAnswer(lost, status=503, typed=shown.typed if isinstance(shown, PageAnswer) else None)

    async def once(self, key: Any, version: int, read: Callable[[], T]) -> T:
        """What one browser's request read for this version of the store answers the others' too: those of the same
        name and permissions. Without watchers nothing counts versions, so none is kept long."""
        now = asyncio.get_running_loop().time()
        if version != self._version or len(self._shared) > _SHARED_MAX or now - self._since > _SHARED_S:
            self._shared.clear()
            self._version, self._since = version, now
        reading = self._shared.get(key)
        if reading is None:
            reading = self._shared[key] = asyncio.ensure_future(asyncio.to_thread(read))
        try:
            value: T = await asyncio.shield(reading)
            return value
        except Exception:
            self._shared.pop(key, None)
            raise


def key_of(request: Request, ask: PageRequest) -> tuple[Any, ...]:
    """What a record depends on: a run's page says who may approve it."""
    return request.scope["path"], request.scope.get("query_string"), ask.user


def _read(page: SitePage, ask: PageRequest) -> Record:
    """What a page shows; with `stale`, if a sum in it is old."""
    record = page.read(ask)
    old = ask.stale(ask.store.now_ms()) if ask.ages_s else None
    if old is not None:
        record["stale"] = old
    return record


def _forget(reading: asyncio.Future[Any]) -> None:
    """Take its error: the answer was given without it."""
    if not reading.cancelled():
        reading.exception()
