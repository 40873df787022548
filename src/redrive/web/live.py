"""Tell browsers that something changed: one task looks at the store for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from ..store import Store

EVERY_S, BILLED_EVERY_S = 1.0, 2.0  # the latter where each call is billed: on SQS
PING_S = 15.0  # a proxy ends a connection that says nothing
LASTS_S = 600.0  # of one connection
SLOW_EVERY = 5  # looks: what changes without any message does so as seldom
REST = 20  # a look that takes half a second, as where millions are counted, is followed by ten without one
REST_MAX_S = 15.0  # one look that was slow by chance leaves no page behind for long
PAGES_PER_S = 20  # that watchers fetch in all: many of them see changes later
WATCHERS_MAX = 500


def glance(store: Store) -> bytes:
    """What a page may show, in few bytes: it differs after every change of counts, pauses, runs and processes."""
    counts = {name: msgspec.structs.astuple(found) for name, found in store.counts_by_queue().items()}
    seen: list[Any] = [
        sorted((name, *(part for part in found if not isinstance(part, float))) for name, found in counts.items()),
        sorted(store.paused()),
    ]
    if store.traits.cells:
        from ..triage.redrive.run import views

        seen.append([(run.id, run.state, run.phase, run.counts) for run in views(store, 20) if not run.closed])
    return hashlib.blake2b(msgspec.json.encode(seen), digest_size=8).digest()


class Live:
    """The number of the last change, and who waits for the next one. It looks only while somebody waits."""

    def __init__(self, look: Callable[[], bytes], every_s: Callable[[], float] = lambda: EVERY_S) -> None:
        self.version = 0
        self._look, self._every_s = look, every_s
        self._changed: asyncio.Event = asyncio.Event()
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def watchers(self) -> int:
        return self._watchers

    @property
    def looks(self) -> bool:
        """Whether a task looks at the store."""
        return self._task is not None and not self._task.done()

    def bump(self) -> None:
        """Something changed. Called on the event loop."""
        self.version += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def events(self) -> AsyncIterator[str]:
        """Lines of server-sent events for one browser: the number of the last change, now and at each change. They end
        after a while, and the browser asks again: who may not see the pages any more is found then."""
        self._watchers += 1
        ends = asyncio.get_running_loop().time() + LASTS_S
        if not self.looks:
            self._task = asyncio.create_task(self._watch())
        try:
            told = self.version
            yield f"retry: 2000\nevent: version\ndata: {told}\n\n"
            while not self._closed and asyncio.get_running_loop().time() < ends:
                # Changes while the line before was sent have set an event that is no longer this one.
                if self.version == told and not await _set(self._changed):
                    yield ": still here\n\n"
                elif self.version != told:
                    told = self.version
                    yield f"event: version\ndata: {told}\n\n"
        finally:
            self._watchers -= 1

    async def _watch(self) -> None:
        last, looks = b"", 0
        while self._watchers:
            looks, began = looks + 1, time.monotonic()
            try:
                found, pause_s = await asyncio.to_thread(lambda: (self._look(), self._every_s()))
                pause_s = max(pause_s, min(REST * (time.monotonic() - began), REST_MAX_S))
            except Exception as error:  # the page shows what is wrong with the store
                found, pause_s = repr(type(error)).encode(), EVERY_S
            if found != last or looks % SLOW_EVERY == 0:  # at first too: it may have changed since the page was read
                self.bump()
                last = found
            await asyncio.sleep(max(pause_s, self._watchers / PAGES_PER_S))

    async def close(self) -> None:
        """Stop looking, and end what browsers listen to."""
        self._closed = True
        self._wake()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None


async def _set(changed: asyncio.Event) -> bool:
    """Wait for a change; False where none came for a while."""
    try:
        await asyncio.wait_for(changed.wait(), PING_S)
    except TimeoutError:
        return False
    return True
