"""A TCP proxy between a client and a server of the tests that fails as networks do: resets, silence, slowness.

with PostgresServer() as server, FaultProxy(server) as proxy:
    app = App(proxy.url)
    proxy.cut_after(100)    # the reply is cut off after 100 bytes
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.support.servers import HOST, PORTS, Server, free_ports

T = TypeVar("T")
CHUNK_BYTES = 65_536
PIECES_PER_S = 20  # what is slowed down comes in so many pieces a second
CALL_WITHIN_S = 10.0
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST, and drops what is not sent


class FaultProxy:
    """Listens on a port of loopback and passes bytes on to `to`, a private server or a port of this machine.

    Everything passes until one of `cut_after`, `black_hole`, `slow` or `refuse` is called; each holds for the
    connections there are and for new ones, from its return until another is called or `heal`. May be called from any
    thread; the proxy works on one of its own. As a context manager it is closed at the end.
    """

    def __init__(self, to: Server | int) -> None:
        self._to = to
        self._links: set[_Link] = set()
        self._fault: _Fault = _Fault()
        self.accepted = 0  # connections so far
        self.response_bytes = 0  # that came from the server so far

    # -- faults

    def cut(self) -> None:
        """Reset every connection now; new ones pass."""
        self._call(self._cut)

    def cut_after(self, response_bytes: int, *, before: Callable[[], object] | None = None) -> None:
        """Let so many bytes of responses pass, counted from now over all connections, then reset the one that bore the
        last of them; with 0 the next reply is lost whole. Once: what comes later passes. `before` is called on a thread
        of its own before the reset, when the server has done what the reply would have said."""
        self._set(_Fault(cut_after=response_bytes, before=before))

    def black_hole(self) -> None:
        """Connections are accepted and stay open, and nothing passes, as behind a firewall that drops packets. Those
        that lost bytes are reset at `heal`."""
        self._set(_Fault(black=True))

    def slow(self, *, bytes_per_s: float = float("inf"), delay_s: float = 0.0) -> None:
        """Each way passes so many bytes a second at most, and each chunk waits `delay_s` first."""
        self._set(_Fault(bytes_per_s=bytes_per_s, delay_s=delay_s))

    def refuse(self) -> None:
        """Refuse new connections, as if nobody listened; those there are go on."""
        self._set(_Fault(refuse=True))

    def heal(self) -> None:
        """Everything passes again."""
        self._set(_Fault())

    # -- life

    def start(self) -> Self:
        """Begin to listen, on a thread of its own."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="redrive-proxy", daemon=True)
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self._end()
            raise
        return self

    def close(self) -> None:
        """Reset every connection and listen no more."""
        try:
            self._run(self._shut())
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def url(self) -> str:
        """What `App` takes: the server's URL by way of this proxy."""
        if isinstance(self._to, int):
            raise ValueError(f"this proxy leads to port {self._to}, whose URL it does not know; use its `port`")
        return self._to.url_at(self.port)

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        return self._port

    # -- calls from other threads

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_WITHIN_S)

    def _call(self, function: Callable[[], None]) -> None:
        async def call() -> None:
            function()

        self._run(call())

    def _set(self, fault: _Fault) -> None:
        self._run(self._changed(fault))

    # -- on the proxy's thread

    async def _open(self) -> None:
        for port in free_ports():
            with contextlib.suppress(OSError):
                self._server = await asyncio.start_server(self._accepted, HOST, port)
                self._port = port
                return
        raise OSError(f"no free port for a proxy in {PORTS}")

    async def _changed(self, fault: _Fault) -> None:
        before, self._fault = self._fault, fault
        if fault.refuse:
            self._server.close()
        elif before.refuse:
            self._server = await asyncio.start_server(self._accepted, HOST, self._port)
        if not fault.black:
            for link in [link for link in self._links if link.lost]:
                link.reset()

    def _cut(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _shut(self) -> None:
        self._server.close()
        self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(writer)
        self._links.add(link)
        try:
            while self._fault.black:  # nobody answers; what is sent here is lost
                link.lost = True
                if not await reader.read(CHUNK_BYTES):
                    return
            port = self._to if isinstance(self._to, int) else self._to.port
            back, forth = await asyncio.open_connection(HOST, port)
            link.writers.append(forth)
            await asyncio.gather(self._pump(link, reader, forth), self._pump(link, back, writer, response=True))
        # One side is gone, and so shall the other be; or the proxy is closed, and Python 3.11 would print a task that
        # ends as cancelled.
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(link)
            link.reset()

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, response: bool = False
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if response:
                self.response_bytes += len(data)
            await self._fault.delay()
            while data:
                piece, data, cut = self._fault.piece(data, response)
                await self._fault.pace(len(piece))
                if self._fault.black:
                    link.lost = True
                    break
                writer.write(piece)
                await writer.drain()
                if cut:
                    if self._fault.before is not None:
                        await asyncio.to_thread(self._fault.before)
                    await asyncio.sleep(0.001)  # so that the other side has the piece before the reset
                    link.reset()
                    return
        if writer.can_write_eof():
            writer.write_eof()


class _Link:
    """One connection through the proxy: its two sides, and whether it lost bytes."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.writers = [client]
        self.lost = False

    def reset(self) -> None:
        """RST to both sides; nothing where they are closed."""
        for writer in self.writers:
            if not writer.transport.is_closing():
                sock = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            writer.transport.abort()


class _Fault:
    """What the proxy does to bytes now."""

    def __init__(
        self,
        *,
        black: bool = False,
        refuse: bool = False,
        cut_after: int | None = None,
        before: Callable[[], object] | None = None,
        bytes_per_s: float = float("inf"),
        delay_s: float = 0.0,
    ) -> None:
        self.black, self.refuse, self._left = black, refuse, cut_after
        self._bytes_per_s, self._delay_s, self.before = bytes_per_s, delay_s, before

    def piece(self, data: bytes, response: bool) -> tuple[bytes, bytes, bool]:
        """(what passes at once, what is left, whether the connection is reset behind it)."""
        most = max(1, int(min(self._bytes_per_s / PIECES_PER_S, CHUNK_BYTES)))
        if self._left is None or not response:
            return data[:most], data[most:], False
        here = min(most, self._left)
        self._left -= len(data[:here])
        cut = self._left == 0 and here <= len(data)
        if cut:
            self._left = None
        return data[:here], data[here:], cut

    async def delay(self) -> None:
        if self._delay_s:
            await asyncio.sleep(self._delay_s)

    async def pace(self, size: int) -> None:
        if wait_s := size / self._bytes_per_s:
            await asyncio.sleep(wait_s)
