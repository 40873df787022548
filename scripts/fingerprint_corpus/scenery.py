"""What the causes are raised with: values that vary from run to run, and an endpoint that misbehaves."""

from __future__ import annotations

import http.server
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

CAUSES: list[tuple[str, str, Callable[..., Any]]] = []  # library, cause, what raises it


def cause(library: str, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that fails. With several causes in one function it is told which: `fail(vary, cause)`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CAUSES.extend((library, name, function) for name in names)
        return function

    return register


class Vary:
    """Values of one run: other ids, hosts, times and names under each seed."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        pick = self.random.choice
        self.number = pick([self.random.randrange(1, 99), self.random.randrange(1_000, 99_999_999)])
        self.small = self.random.randrange(2, 9)
        self.uuid = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        self.hex = f"{self.random.getrandbits(96):024x}"
        self.token = "".join(pick("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789") for _ in range(17))
        self.customer = f"cus_{self.token}"
        self.name = pick(["alice", "Bob Smith", "Zoë", "o'neil", "maria-jose", "Li Wei", "x"])
        self.word = pick(["blue", "n/a", "unknown", "12,50", "Friday", "ten", "--", "abc", "NaN%"])
        self.email = f"{pick(['ann', 'bob.smith', 'eve+x'])}{self.small}@{pick(['example.com', 'mail.example.org'])}"
        self.host = f"{pick(['api', 'billing', 'cache-01', 'db.eu-west-1'])}.{pick(['shop', 'corp', 'k8s'])}.invalid"
        self.path = f"/{pick(['srv', 'mnt', 'data'])}/{pick(['in', 'out/2026/11', 'tenant-7'])}/{self.token}.csv"
        self.time = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=self.random.randrange(90_000_000))
        self.money = f"{self.random.randrange(1, 99_999)}.{self.random.randrange(100):02d}"
        self.sku = f"{pick(['SKU', 'ART', 'P'])}-{self.random.randrange(10, 99_999)}"
        # What is data stands here and not in the handlers, as data is no literal of a program.
        self.short = pick(["x", ""])
        self.someday = pick(["soon", "next week or so", self.customer])
        self.weight = pick(["heavy", "1,5", "", f"{self.money} kg"])
        self.words = " ".join(pick(["red", "shoe", "size", "order", "late", "42", "x1"]) for _ in range(self.small))

    def among(self, *values: Any) -> Any:
        return self.random.choice(values)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        what, _, rest = self.path.lstrip("/").partition("/")
        getattr(self, f"_{what}", self._status)(rest.split("/")[0].split("?")[0])

    do_POST = do_PUT = do_DELETE = do_GET

    def _send(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def _status(self, rest: str) -> None:
        self._send(int(rest) if rest.isdigit() else 404, b'{"error": {"message": "no", "type": "api_error"}}')

    def _stripe(self, rest: str) -> None:
        error = STRIPE.get(rest, STRIPE["missing"])
        self._send(
            error[0], error[1].replace("%s", uuid.uuid4().hex[:14]).encode(), Request_Id=f"req_{uuid.uuid4().hex[:14]}"
        )

    def _loop(self, rest: str) -> None:
        self._send(302, b"", Location=f"/loop/{int(rest or 0) + 1}")

    def _html(self, rest: str) -> None:
        self._send(200, b"<html><body>maintenance</body></html>", "text/html")

    def _cut(self, rest: str) -> None:
        self._send(200, b'{"id": 12', Content_Language="de")

    def _slow(self, rest: str) -> None:
        time.sleep(0.6)
        self._status("200")

    def _drop(self, rest: str) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _short(self, rest: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5000")
        self.end_headers()
        self.wfile.write(b"x" * (7 * len(rest) + 1))
        self.wfile.flush()
        self._drop(rest)

    def _garbage(self, rest: str) -> None:
        self.wfile.write(b"\x16\x03 no http at all\r\n\r\n")
        self.wfile.flush()
        self._drop(rest)

    def _gzip(self, rest: str) -> None:
        self._send(200, b"this is not gzip", Content_Encoding="gzip")

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


STRIPE = {
    "missing": (404, '{"error": {"message": "No such customer: \'cus_%s\'", "type": "invalid_request_error"}}'),
    "declined": (
        402,
        '{"error": {"message": "Your card was declined.", "type": "card_error", "code": "card_declined"}}',
    ),
    "funds": (
        402,
        '{"error": {"message": "Your card has insufficient funds.", "type": "card_error", "code": "card_declined",'
        ' "decline_code": "insufficient_funds"}}',
    ),
    "key": (401, '{"error": {"message": "Invalid API Key provided: sk_test_***", "type": "invalid_request_error"}}'),
    "rate": (429, '{"error": {"message": "Too many requests", "type": "rate_limit_error", "code": "rate_limit"}}'),
}


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, address: Any) -> None:
        """A client that went away is what some causes are about."""


def site() -> str:
    """An endpoint whose path says what it does: /status/404, /loop, /html, /slow, /drop, /short, /garbage, /gzip."""
    server = _Server(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def closed_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def server_of(name: str) -> str:
    """The URL of a throw-away server, out of the environment: REDIS_URL, POSTGRES_URL."""
    return os.environ[name]
