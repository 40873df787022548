"""The demo's endpoint, a process of its own: `python -m redrive.demo.endpoint --seed N --log FILE …`.

A small HTTP/1.1 server on loopback that answers by a FailurePlan. Before each answer it appends a line to its log, in
one write. It prints its port, repairs itself at the word `fix` on standard input, and ends when that is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import os
import random
import socket
import sys
import time
from collections import Counter
from email.utils import formatdate

import msgspec

from ..deliver import read_secret, sign
from .plan import FOR_GOOD, FailurePlan, draw, event_ids, one_outage

LATENCY_S = (0.005, 0.030)
HEAD_MAX = 64 * 1024
RETRY_AFTER_S = 1
_REASONS = {
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    410: "Gone",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_encode = msgspec.json.Encoder().encode


class EndpointLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request in the endpoint's log. `accepted`: the endpoint took the event. `lost`: why the answer of an accepted
    request did not reach the sender."""

    at_ms: int
    number: int
    key: str
    nth: int  # its number among the requests with this key, from 1
    event: str | None
    answer: str
    accepted: bool = False
    lost: str | None = None
    fixed: bool = False


class EndpointRequest(msgspec.Struct, frozen=True):
    number: int
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers.get("idempotency-key", "")


class Endpoint:
    def __init__(self, plan: FailurePlan, seed: int, log: int, secret: bytes, timeout_s: float) -> None:
        self._plan, self._log, self._secret, self._timeout_s = plan, log, secret, timeout_s
        self._latency = random.Random(seed)
        self._number = 0
        self._seen: Counter[str] = Counter()
        self._served: Counter[str] = Counter()  # by event: how many failures of its script were served already
        self._writers: set[asyncio.StreamWriter] = set()
        self._fixed = False
        # Bound but not listening, this socket keeps the port during the outage: no other process can take it, and
        # connections are refused.
        self._place = _bound(0)
        self.port: int = self._place.getsockname()[1]

    async def run(self) -> None:
        """Serve until standard input is closed."""
        await self._listen()
        print(self.port, flush=True)
        commands = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        while line := await commands.readline():
            self._fixed = self._fixed or line.strip() == b"fix"
            print("ok", flush=True)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=_bound(self.port), limit=HEAD_MAX)

    async def _outage(self) -> None:
        self._note(EndpointLine(_now_ms(), self._number, "", 0, None, f"outage of {self._plan.outage_s} s begins"))
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(self._plan.outage_s)
        await self._listen()
        self._note(EndpointLine(_now_ms(), self._number, "", 0, None, "outage ends"))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client has gone, or this process ends
        finally:
            self._writers.discard(writer)
            with contextlib.suppress(ConnectionError):
                writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Read and answer one request; return False if the connection has ended."""
        head = await reader.readuntil(b"\r\n\r\n")
        self._number += 1
        number = self._number
        lines = head.decode("latin-1").split("\r\n")[1:]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
        request = EndpointRequest(number, headers, b"")
        if number == self._plan.outage_after and not self._fixed:
            self._task = asyncio.create_task(self._outage())
        if number in self._plan.cut and not self._fixed:
            self._write(request, None, "dropped before it was read")
            writer.transport.abort()
            return False
        request = EndpointRequest(number, headers, await reader.readexactly(int(headers.get("content-length", "0"))))
        await asyncio.sleep(self._latency.uniform(*LATENCY_S))
        return not writer.transport.is_closing() and await self._answer(request, writer)

    async def _answer(self, request: EndpointRequest, writer: asyncio.StreamWriter) -> bool:
        event = msgspec.json.decode(request.body)["id"]
        kind = self._kind(request, event)
        match kind:
            case "slow":
                self._write(request, event, "204, too late", accepted=True, lost="answered after the timeout")
                await asyncio.sleep(2 * self._timeout_s)
            case "dropped":
                self._write(request, event, "none", accepted=True, lost="connection dropped before the answer")
                writer.transport.abort()
                return False
            case "204":
                self._write(request, event, "204", accepted=True)
            case _:
                self._write(request, event, kind)
        writer.write(_response(kind))
        await writer.drain()
        return True

    def _kind(self, request: EndpointRequest, event: str) -> str:
        stamp = int(request.headers.get("webhook-timestamp", "0"))
        expected = sign(request.key, stamp, request.body, self._secret)
        if not hmac.compare_digest(expected, request.headers.get("webhook-signature", "")):
            return "401"
        lasting = self._plan.lasting.get(event)
        if lasting is not None and (not self._fixed or lasting in FOR_GOOD):
            return lasting
        script = self._plan.scripts.get(event, ())
        at = self._served[event]
        if self._fixed or at >= len(script):
            return "204"
        self._served[event] += 1
        return script[at]

    def _write(
        self,
        request: EndpointRequest,
        event: str | None,
        answer: str,
        *,
        accepted: bool = False,
        lost: str | None = None,
    ) -> None:
        self._seen[request.key] += 1
        nth = self._seen[request.key]
        self._note(
            EndpointLine(_now_ms(), request.number, request.key, nth, event, answer, accepted, lost, self._fixed)
        )

    def _note(self, seen: EndpointLine) -> None:
        os.write(self._log, _encode(seen) + b"\n")


def _response(kind: str) -> bytes:
    status = 204 if kind == "slow" else int(kind[:3])
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", f"Date: {formatdate(usegmt=True)}"]
    if kind == "429-date":
        lines.append(f"Retry-After: {formatdate(time.time() + RETRY_AFTER_S + 1, usegmt=True)}")
    elif kind in ("429", "503-after"):
        lines.append(f"Retry-After: {RETRY_AFTER_S}")
    if status != 204:
        lines.append("Content-Length: 0")
    return "\r\n".join([*lines, "", ""]).encode()


def _bound(port: int) -> socket.socket:
    socket_ = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    socket_.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    socket_.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    socket_.bind(("127.0.0.1", port))
    return socket_


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m redrive.demo.endpoint", description=__doc__)
    plans = parser.add_mutually_exclusive_group(required=True)
    plans.add_argument("--seed", type=int, help="draw the faults from it")
    plans.add_argument("--one-outage", action="store_true", help="one outage and no other fault")
    parser.add_argument("--log", required=True)
    parser.add_argument("--secret", required=True)
    parser.add_argument("--timeout", type=float, required=True, help="the sender's, in seconds")
    given = parser.parse_args()
    log = os.open(given.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    plan = one_outage() if given.one_outage else draw(given.seed, event_ids())
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Endpoint(plan, given.seed or 0, log, read_secret(given.secret), given.timeout).run())


if __name__ == "__main__":
    main()
