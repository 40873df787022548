"""What `https://example.com` and its sub-domains stand for while pages run: a server on loopback.

The last part of a path says how it answers: `limited` with 429 and a Retry-After of one second, then 200; `flaky` with
503, then 200; `down` with 503, `gone` with 410; a number as an API that syncs records: those ending in 00 with 422, in
01 to 04 once or twice with 503; anything else with 200.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar


class Endpoint(BaseHTTPRequestHandler):
    """Answers GET and POST alike, with a JSON object that names the path."""

    seen: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status = self._status()
        body = b'{"path": "%s"}' % self.path.encode()
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_GET

    def _status(self) -> int:
        manner = self.path.partition("?")[0].rpartition("/")[2]
        self.seen[self.path] += 1
        first = self.seen[self.path] == 1
        if manner.isdigit():
            last = int(manner[-2:])
            return 422 if last == 0 else 503 if 1 <= last <= 4 and self.seen[self.path] <= 1 + last % 2 else 200
        return {"limited": 429 if first else 200, "flaky": 503 if first else 200, "down": 503, "gone": 410}.get(
            manner, 200
        )

    def log_message(self, *_: Any) -> None:
        """Say nothing: its lines would stand between those of the page."""


@contextmanager
def serving() -> Iterator[str]:
    """The server's base URL; it ends with the block."""
    Endpoint.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
