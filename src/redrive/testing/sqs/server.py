"""An SQS that listens on loopback: the JSON protocol over HTTP/1.1, long polls, faults on demand, a log of requests.

For load, exact timing and counting requests, which emulators of AWS do badly. Its clock can be the test's.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

from ...stores.clock import wall_ms
from .actions import Account
from .faults import Faults
from .messages import SqsError

HOST = "127.0.0.1"
ENDS = 20  # attempts to cancel the calls that are in progress
POLL_CAP_S = 0.2  # the longest long poll in real seconds, if the clock is a test's
SWEEP_S = 0.005  # real seconds between two reads of a test's clock in a long poll
_JSON = b"application/x-amz-json-1.0"


class Request(NamedTuple):
    """An answered call: the number of `entries` sent or received, how many of them `failed`, and the HTTP `status`."""

    action: str
    queue: str
    entries: int
    failed: int
    status: int
    at_s: float


class SqsServer:
    """A stand-in SQS in a thread of this process: `with SqsServer() as server:`, and a client of `server.url`.

    `clock_ms` replaces the wall clock (a `ManualClock`): delays, visibility, retention and long polls go by it. `log`
    has every request, `requests` counts them by action, `faults` makes some fail. `receive_max` bounds the messages of
    one receive, as SQS often returns fewer than requested.
    """

    url: str

    def __init__(
        self,
        clock_ms: Callable[[], int] | None = None,
        *,
        port: int = 0,
        region: str = "eu-central-1",
        receive_max: int = 10,
    ) -> None:
        self._clock_ms, self._manual = clock_ms or wall_ms, clock_ms is not None
        self._port, self._region, self._receive_max = port, region, receive_max
        self.faults: Faults = Faults()
        self.log: list[Request] = []
        self.requests: Counter[str] = Counter()
        self._started = threading.Event()
        self._failed: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._news: dict[str, asyncio.Event] = {}  # by queue: set when one of its messages may have become visible
        self.url = ""
        self.account: Account

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="sqs", daemon=True)
        self._thread.start()
        self._started.wait(10)
        if self._failed is not None:
            raise self._failed
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end the thread."""
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await asyncio.start_server(self._accepted, HOST, self._port, limit=4 * 1024 * 1024)
        except OSError as error:
            self._failed = error
            self._started.set()
            return
        self._port = server.sockets[0].getsockname()[1]
        self.url = f"http://{HOST}:{self._port}"
        self.account = Account(self.url, self._region, self._clock_ms, self._receive_max)
        self._started.set()
        async with server:
            await self._stop.wait()
            for socket in server.sockets:  # a server that closes loses a connection which it has only begun to accept
                self._loop.remove_reader(socket.fileno())
            await self._end()

    async def _end(self) -> None:
        """End all connections, and those that are being accepted once they are connections."""
        for _ in range(ENDS):  # a poll that times out at this moment swallows one cancellation
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if not left:
                break
            for task in left & self._connections:
                task.cancel()
            await asyncio.wait(left, timeout=0.05)
        await asyncio.sleep(0)  # lets the connections close before the loop does

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection, and close it even if its task is cancelled before it begins."""
        task = asyncio.create_task(self._connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.close())

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (asked := await _request(reader)) is not None:
                path, headers, body = asked
                if not path.startswith(b"POST"):
                    writer.write(_response(200, json.dumps(dict(self.requests)).encode()))
                    continue
                answer = await self._answer(headers.get(b"x-amz-target", b"").decode().rpartition(".")[2], body)
                if answer is None:
                    break  # the requested fault is to lose the answer
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass

    async def _answer(self, action: str, body: bytes) -> bytes | None:
        """Carry out a call; return the body of its answer, or None to break the connection."""
        given: dict[str, Any] = {}
        try:
            given = json.loads(body or b"{}")
            fault = self.faults.next(action)
            if fault is not None and fault.before:
                fault.strike(given)
            answer = await self._call(action, given)
            if fault is not None:
                fault.strike(given)
        except SqsError as error:
            self._note(action, given, 0, 0, error.status)
            return _error(error)
        except ConnectionResetError:
            self._note(action, given, 0, 0, 0)
            return None
        failed = len(answer.get("Failed", ()))
        self._note(action, given, failed + sum(len(answer.get(k, ())) for k in ("Successful", "Messages")), failed, 200)
        return _response(200, json.dumps(answer, separators=(",", ":")).encode())

    def _note(self, action: str, given: dict[str, Any], entries: int, failed: int, status: int) -> None:
        self.requests[action] += 1
        queue = str(given.get("QueueUrl") or given.get("QueueName") or "").rpartition("/")[2]
        self.log.append(Request(action, queue, entries, failed, status, time.monotonic()))

    async def _call(self, action: str, given: dict[str, Any]) -> dict[str, Any]:
        if action != "ReceiveMessage":
            answer = self.account.call(action, given, self.faults)
            self._tell(self.account.touched())
            return answer
        return await self._receive(given)

    async def _receive(self, given: dict[str, Any]) -> dict[str, Any]:
        wait_s = self.account.wait_s(given)
        end_ms, end_s = self._clock_ms() + wait_s * 1000, time.monotonic() + (POLL_CAP_S if self._manual else wait_s)
        while True:
            answer = self.account.receive(given, long_poll=wait_s > 0)
            self._tell(self.account.touched())
            now_ms, now_s = self._clock_ms(), time.monotonic()
            if answer or now_ms >= end_ms or now_s >= end_s:
                return answer
            await self._news_of(given, min(end_s - now_s, (end_ms - now_ms) / 1000))

    async def _news_of(self, given: dict[str, Any], most_s: float) -> None:
        """Sleep for at most `most_s` seconds, until a message of the queue may be visible."""
        queue = self.account.queue(given)
        event = self._news.setdefault(queue.name, asyncio.Event())
        next_ms = queue.next_ms()
        wait_s = most_s if next_ms is None else min(most_s, max(0.0, (next_ms - self._clock_ms()) / 1000))
        if self._manual:
            wait_s = SWEEP_S
        try:
            await asyncio.wait_for(event.wait(), max(wait_s, 0.001))
        except TimeoutError:
            return

    def _tell(self, names: Iterable[str]) -> None:
        for name in names:
            event = self._news.pop(name, None)
            if event is not None:
                event.set()


async def _request(reader: asyncio.StreamReader) -> tuple[bytes, dict[bytes, bytes], bytes] | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head[:-4].split(b"\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    length = int(headers.get(b"content-length", b"0"))
    return first, headers, await reader.readexactly(length) if length else b""


def _response(status: int, body: bytes, extra: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\nx-amzn-RequestId: 0\r\n%s\r\n"
    return head % (status, _JSON, len(body), extra) + body


def _error(error: SqsError) -> bytes:
    body = json.dumps({"__type": f"com.amazonaws.sqs#{error.type}", "message": error.text}).encode()
    code = f"x-amzn-query-error: {error.code};{'Sender' if error.sender else 'Receiver'}\r\n"
    return _response(error.status, body, code.encode())
