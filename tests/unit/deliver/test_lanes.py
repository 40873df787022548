"""A request that is cut off at any step leaves a client that serves the next one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.support.sites import on_a_loop

from redrive.deliver.sending import UrlTarget, new_client

PATIENCE_S = 30.0
STEPS_MAX = 200


class Endpoint:
    """Answers each request with `body`, sent in two parts, on connections that it keeps open."""

    def __init__(self, body: bytes) -> None:
        self.url, self._body = "", body
        self._open = set[asyncio.StreamWriter]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        half = len(self._body) // 2
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(2)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(self._body) + self._body[:half])
                await writer.drain()
                writer.write(self._body[half:])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def lose_connections(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def endpoint(body: bytes) -> AsyncIterator[Endpoint]:
    at = Endpoint(body)
    server = await asyncio.start_server(at.serve, "127.0.0.1", 0)
    at.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    yield at
    await at.lose_connections()
    server.close()


async def post(client: httpx.AsyncClient, url: str) -> bytes:
    async with client.stream("POST", url, content=b"{}") as answer:
        return b"".join([part async for part in answer.aiter_raw()])


async def cut_off(at: Endpoint, step: int, lost: bool) -> bool:
    """Cut a request off after so many turns of the loop, and make two more; return False if it ended before that.
    `lost`: it finds a connection that the endpoint has closed."""
    async with new_client(UrlTarget(url=at.url), 1) as client:
        if lost:
            await post(client, at.url)
            await at.lose_connections()
        cut = asyncio.create_task(post(client, at.url))
        for _ in range(step):
            await asyncio.sleep(0)
        if cut.done():
            return False
        cut.cancel()
        with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
            await cut
        for _ in range(2):
            async with asyncio.timeout(PATIENCE_S):
                assert len(await post(client, at.url)) == 20, f"cut off at step {step}"
        return True


@pytest.mark.parametrize("lost", [False, True])
@on_a_loop
async def test_a_request_that_is_cut_off_at_any_step_keeps_no_connection_busy(lost: bool) -> None:
    async with endpoint(b"x" * 20) as at:
        steps = 0
        while steps < STEPS_MAX and await cut_off(at, steps, lost):
            steps += 1
    assert 5 < steps < STEPS_MAX
