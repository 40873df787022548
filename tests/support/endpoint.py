"""A real HTTP endpoint on loopback, in threads of the test's process, that keeps what it was sent."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple


class Request(NamedTuple):
    """One request as it arrived. `seen` counts the requests with this key, this one included."""

    at_s: float
    key: str
    body: bytes
    headers: dict[str, str]
    seen: int
    client: tuple[str, int]


class Answer(NamedTuple):
    status: int = 204
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""
    delay_s: float = 0.0


class Endpoint:
    """Answers as `answer(request)` says. Use it as a context; `url` is where it listens."""

    def __init__(self, answer: Callable[[Request], Answer] = lambda request: Answer()) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]

    def wait_for(self, count: int, timeout_s: float = 60) -> None:
        """Until so many requests came."""
        end = time.monotonic() + timeout_s
        while len(self.requests) < count:
            assert time.monotonic() < end, f"only {len(self.requests)} of {count} requests came"
            time.sleep(0.005)

    def __enter__(self) -> Endpoint:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def took(self, handler: BaseHTTPRequestHandler) -> Request | None:
        """The request, if all of it came: a killed sender leaves half of one."""
        size = int(handler.headers["Content-Length"])
        body = handler.rfile.read(size)
        if len(body) < size:
            return None
        headers = {name.lower(): value for name, value in handler.headers.items()}
        key = headers["idempotency-key"]
        with self._lock:
            self.seen[key] += 1
            request = Request(time.monotonic(), key, body, headers, self.seen[key], handler.client_address)
            self.requests.append(request)
        return request


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a connection that is kept alive must not hold the test up
    request_queue_size = 128  # or what many callers open at once is reset, where the machine is busy


def _handler(endpoint: Endpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            request = endpoint.took(self)
            if request is None:
                self.close_connection = True
                return
            answer = endpoint.answer(request)
            time.sleep(answer.delay_s)
            try:
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
