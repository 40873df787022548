"""Notify browsers of changes: one task polls the store for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from ..message import ClaimRequest
from ..store import Store

EVERY_S, BILLED_EVERY_S = 1.0, 2.0  # seconds between two reads of the store; the second if each call is billed (SQS)
PING_S = 15.0  # seconds between two signs of life in a stream, as proxies close a silent connection
LASTS_S = 600.0  # seconds after which a stream ends
SLOW_S = 4.5  # seconds after which pages reload even if nothing changed: their figures are never 5 s old
REST = 20  # a rest lasts so many times as long as the read before it, but no longer than REST_S, as pages are to show
REST_S, LEAST_SHARE = 3.0, 4  # within 5 s what changed, unless reads then take more than this part of the time
REST_MAX_S = 15.0  # the longest such rest in seconds, as one read may be slow by chance
PAGES_PER_S = 20  # reloads of all watchers together; if there are many watchers, each one sees changes later
WATCHERS_MAX = 500
WAITED_FOR_MAX = 20  # the most queues waited for: each costs a query, through a pooler of PostgreSQL five a second
HANGS_S = 2.0  # seconds after which a read is abandoned: the store hangs, or counts millions
STALE_S = 0.02  # seconds: a shorter wait may have ended for a change that the last read included


class Glance:
    """Reads a digest of all that pages show of a store, and waits for a wake-up of the store. Called by one thread at a
    time. `store` returns the store, `more` what else the digest is of; both may raise."""

    def __init__(self, store: Callable[[], Store], more: Callable[[], Any] = lambda: None) -> None:
        self._store, self._more = store, more
        self._idle: list[str] = []  # queues without a due message

    def look(self) -> bytes:
        """Return a digest that changes with the counts, pauses, runs and processes of the store."""
        store = self._store()
        counts, paused = store.counts_by_queue(), sorted(store.paused())
        idle = [name for name, count in counts.items() if not count.ready and name not in paused]
        self._idle = idle[:WAITED_FOR_MAX]
        each = {name: msgspec.structs.astuple(count) for name, count in counts.items()}
        seen: list[Any] = [
            sorted((name, *(part for part in count if not isinstance(part, float))) for name, count in each.items()),
            paused,
            self._more(),
        ]
        if store.traits.cells:
            from ..triage.redrive.run import views

            seen.append([(run.id, run.state, run.phase, run.counts) for run in views(store, 20) if not run.closed])
        return hashlib.blake2b(msgspec.json.encode(seen), digest_size=8).digest()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the store reports a due message in an idle queue; return False at the timeout, and at once if no
        queue is idle. Raises StoreError."""
        if not self._idle:
            return False
        asks, ends = [ClaimRequest(queue, 1, 1) for queue in self._idle], time.monotonic() + timeout_s
        for _ in range(2):  # an old wake-up may end the first of two waits
            began = time.monotonic()
            self._store().wait(asks, timeout_ms=math.ceil(max(0.0, ends - began) * 1000))
            if time.monotonic() > began + STALE_S:
                break
        return time.monotonic() < ends

    def nudge(self) -> None:
        self._store().nudge()


class _Watcher:
    """One stream of events. `ended`: it was closed to make room for another."""

    ended = False


class Live:
    """Numbers the changes of a store, and wakes the streams that wait for the next one. Reads the store only while a
    stream waits.

    `every_s` returns the rest between two reads. While reads show no change, a wake-up of the store ends a rest early,
    unless each call is billed.
    """

    version: int

    def __init__(
        self, glance: Glance, every_s: Callable[[], float] = lambda: EVERY_S, heard: Callable[[], None] | None = None,
        doubt: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Take the `glance`, the seconds between its reads, `heard`, to call after each successful one, and `doubt`, to
        call if one hangs."""
        self.version = 0
        self._heard, self._doubt = heard, doubt
        self._looking: asyncio.Future[tuple[bytes, float]] | None = None
        self._glance, self._every_s = glance, every_s
        self._changed: asyncio.Event = asyncio.Event()
        self._watching: dict[Any, list[_Watcher]] = {}  # by reader, its streams, the oldest first
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def watchers(self) -> int:
        return sum(map(len, self._watching.values()))

    @property
    def looks(self) -> bool:
        """True while a task polls the store."""
        return self._task is not None and not self._task.done()

    def bump(self) -> None:
        """Count a change, and wake all streams. Call it on the event loop."""
        self.version += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def events(self, reader: Any = "") -> AsyncIterator[str]:
        """Yield the lines of server-sent events for one browser: the number of the last change, at once and at each
        change. The stream ends after LASTS_S; the browser connects again, and its permission is checked again. Beyond
        WATCHERS_MAX, the oldest stream of the reader with the most streams ends."""
        watcher, ends = _Watcher(), asyncio.get_running_loop().time() + LASTS_S
        if self.watchers >= WATCHERS_MAX:
            self._end_oldest()
        mine = self._watching.setdefault(reader, [])
        mine.append(watcher)
        if not self.looks:
            self._task = asyncio.create_task(self._watch())
        try:
            sent = self.version
            yield f"retry: 2000\nevent: version\ndata: {sent}\n\n"
            while not (self._closed or watcher.ended) and asyncio.get_running_loop().time() < ends:
                # A change while the line was sent has set an event that is replaced already, so compare the numbers
                # first.
                if self.version == sent and not await _set(self._changed):
                    yield ": still here\n\n"
                elif self.version != sent:
                    sent = self.version
                    yield f"event: version\ndata: {sent}\n\n"
        finally:
            if watcher in mine:
                mine.remove(watcher)
            if not mine and self._watching.get(reader) is mine:
                del self._watching[reader]

    def _end_oldest(self) -> None:
        most = max(self._watching.values(), key=len)
        most.pop(0).ended = True
        self._wake()

    async def _watch(self) -> None:
        thread = ThreadPoolExecutor(1, "redrive-live")  # one, as a store's wait belongs to its caller's thread
        last, bumped, woken = b"", -SLOW_S, False
        try:
            while self.watchers:
                began, quiet = time.monotonic(), False
                try:
                    state, pause_s = await self._looked(thread)
                    pause_s = max(pause_s, _rest_s(time.monotonic() - began))
                    quiet = state == last and not woken
                except Exception as error:  # an error counts as a change, and the page shows it
                    state, pause_s = repr(type(error)).encode(), EVERY_S
                # Also at the first read, as the pages were read earlier.
                if state != last or time.monotonic() + pause_s - bumped > SLOW_S:
                    self.bump()
                    last, bumped = state, time.monotonic()
                woken = await self._rest(thread, max(pause_s, self.watchers / PAGES_PER_S), quiet)
        finally:
            thread.shutdown(wait=False)

    async def _looked(self, thread: ThreadPoolExecutor) -> tuple[bytes, float]:
        """Return a digest of the store, and how many seconds the read took. Raises TimeoutError after HANGS_S; the next
        call then waits for the same read."""
        if self._looking is None:
            self._looking = asyncio.wrap_future(thread.submit(self._look))
        done, _ = await asyncio.wait({self._looking}, timeout=HANGS_S)
        if not done:
            if self._doubt is not None:
                self._doubt()
            raise TimeoutError
        looking, self._looking = self._looking, None
        return looking.result()

    def _look(self) -> tuple[bytes, float]:
        state = self._glance.look(), self._every_s()
        if self._heard is not None:
            self._heard()
        return state

    async def _rest(self, thread: ThreadPoolExecutor, pause_s: float, quiet: bool) -> bool:
        """Wait until the next read; return True if the store ended the wait early. The wait after that is never ended
        early (`quiet` is False), so that a busy fleet is read at most twice as often. A long wait (calls are billed,
        reads are slow, or there are many watchers) is a plain sleep."""
        ends = time.monotonic() + pause_s
        if quiet and pause_s < BILLED_EVERY_S:
            with contextlib.suppress(Exception):  # a read-only user gets no wake-ups, and the next read reports errors
                waiting = asyncio.wrap_future(thread.submit(self._glance.wait, pause_s))
                if await asyncio.wait_for(asyncio.shield(waiting), pause_s + HANGS_S):
                    return True
        await asyncio.sleep(max(0.0, ends - time.monotonic()))
        return False

    async def close(self) -> None:
        """Stop reading, and end all streams."""
        self._closed = True
        self._wake()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(Exception):
                self._glance.nudge()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None


def _rest_s(read_s: float) -> float:
    """Return for how many seconds to rest after a read that took `read_s`."""
    return min(REST * read_s, max(REST_S, LEAST_SHARE * read_s), REST_MAX_S)


async def _set(changed: asyncio.Event) -> bool:
    """Wait for a change, and return True; return False after PING_S without one."""
    try:
        await asyncio.wait_for(changed.wait(), PING_S)
    except TimeoutError:
        return False
    return True
