"""Connections for one target: as many as requests run at once, each used by one request at a time.

httpx's own pool hands an idle connection to every request that waits, of which all but one have to ask again: 40
requests at once were slower than one. Here a request takes a lane, a pool of one connection, and gives it back; the
one used last is taken first, so that no more connections are kept open than are needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx


class Lanes(httpx.AsyncBaseTransport):
    """A transport of `count` lanes, each made by `new` when it is first needed; more requests at once wait for one."""

    def __init__(self, count: int, new: Callable[[], httpx.AsyncBaseTransport]) -> None:
        self._new = new
        self._places = asyncio.Semaphore(count)
        self._free: list[httpx.AsyncBaseTransport] = []
        self._all: list[httpx.AsyncBaseTransport] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await self._places.acquire()
        lane = self._free.pop() if self._free else self._open()
        try:
            answer = await lane.handle_async_request(request)
        except BaseException:
            self._give(lane)
            raise
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        stream = _Stream(answer.stream, lambda: self._give(lane))
        return httpx.Response(answer.status_code, headers=answer.headers, stream=stream, extensions=answer.extensions)

    async def aclose(self) -> None:
        for lane in self._all:
            await lane.aclose()

    def _open(self) -> httpx.AsyncBaseTransport:
        lane = self._new()
        self._all.append(lane)
        return lane

    def _give(self, lane: httpx.AsyncBaseTransport) -> None:
        self._free.append(lane)
        self._places.release()


class _Stream(httpx.AsyncByteStream):
    """The body of an answer; its end gives the lane back, once."""

    def __init__(self, inner: httpx.AsyncByteStream, give: Callable[[], None]) -> None:
        self._inner, self._give, self._given = inner, give, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._inner:
            yield part

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            if not self._given:
                self._given = True
                self._give()
