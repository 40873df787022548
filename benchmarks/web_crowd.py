"""How long a visitor of the pages waits beside others who hold connections, send slowly, send much, or watch."""

from __future__ import annotations

import contextlib
import http.client
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from .harness import ROOT, Child, Options, Place, Reading, fresh, percentile
from .web import address_of

HALF_OPEN, SLOW_BODIES, STREAMS, FORM_BYTES = 1_000, 10_000, 500, 15 << 20
VISITS, PAUSE_S, GIVEN_UP_S = 40, 0.05, 30.0
FORM = "application/x-www-form-urlencoded"
_HEAD = f"POST /login HTTP/1.1\r\nHost: %s\r\nContent-Type: {FORM}\r\nContent-Length: 100\r\n\r\n".encode()
Crowd = Callable[[str], contextlib.AbstractContextManager[object]]


def web_crowd(options: Options) -> list[Reading]:
    """How long a visitor of the pages waits beside 1,000 half-open connections, 10,000 slow bodies, forms of 15 MiB and
    500 streams; with `--before`, as that checkout serves them, too."""
    found = _measured(fresh(options, "web_crowd"), ROOT, "", "≤ 1000")
    if options.before is not None:
        found += _measured(fresh(options, "web_crowd_then"), Path(options.before), ", then", None)
    return found


def _measured(place: Place, root: Path, suffix: str, wanted: str | None) -> list[Reading]:
    crowds: dict[str, Crowd] = {
        "nobody": lambda _: contextlib.nullcontext(),
        f"{HALF_OPEN:,} half-open connections": lambda at: _held(at, HALF_OPEN, lambda _: b"GET /queues HT"),
        f"{SLOW_BODIES:,} slow bodies": lambda at: _held(at, SLOW_BODIES, lambda host: _HEAD % host.encode()),
        "forms of 15 MiB": _forms,
        f"{STREAMS} streams": lambda at: _held(at, STREAMS, _stream),
    }
    found = []
    for name, crowd in crowds.items():
        port = place.folder / "port"
        port.unlink(missing_ok=True)
        with Child(place.folder, "site", place.url, place.folder / "calls", port, root=root) as child:
            host = urlsplit(address_of(child, port)).netloc
            with _descriptors(), crowd(host):
                waits = _waits_ms(host)
        found.append(Reading(f"visitor's wait p95, beside {name}{suffix}", "ms", [percentile(waits, 0.95)], wanted))
    return found


@contextlib.contextmanager
def _descriptors() -> Iterator[None]:
    """Let this process have all that it may, and not the server, which began before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _waits_ms(host: str) -> list[float]:
    """Of VISITS visits, or of those that began within a minute."""
    waits, end_s = list[float](), time.monotonic() + 60
    while len(waits) < VISITS and time.monotonic() < end_s:
        waits.append(_visit_ms(host))
    return waits


def _visit_ms(host: str) -> float:
    """One visit by a connection of its own: what it takes, tried again where it is refused, up to a bound."""
    begun = time.perf_counter()
    while (took := time.perf_counter() - begun) < GIVEN_UP_S:
        visitor = http.client.HTTPConnection(host, timeout=GIVEN_UP_S - took)
        with contextlib.suppress(OSError, http.client.HTTPException), closing(visitor):
            visitor.request("GET", "/queues", headers={"Accept": "text/html"})
            answer = visitor.getresponse()
            answer.read()
            if answer.status == 200:
                break
        time.sleep(PAUSE_S)
    took = time.perf_counter() - begun
    time.sleep(PAUSE_S)
    return took * 1000


def _stream(host: str) -> bytes:
    return f"GET /live HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n".encode()


@contextlib.contextmanager
def _held(host: str, count: int, first: Callable[[str], bytes]) -> Iterator[None]:
    """So many connections that have sent this and no more; those that the server closes are opened again."""
    name, port = host.rsplit(":", 1)
    over, held = threading.Event(), list[socket.socket]()

    def hold() -> None:
        while not over.is_set():
            for at in range(len(held), count):
                if over.is_set():
                    return
                with contextlib.suppress(OSError):
                    one = socket.create_connection((name, int(port)), timeout=1.0)
                    one.sendall(first(host))
                    one.setblocking(False)
                    held.append(one)
                if at % 100 == 0:
                    time.sleep(0.001)
            held[:] = [one for one in held if not _is_closed(one)]
            time.sleep(0.1)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    time.sleep(3.0)
    try:
        yield
    finally:
        over.set()
        thread.join()
        for one in held:
            one.close()


def _is_closed(one: socket.socket) -> bool:
    try:
        return not one.recv(1 << 16)
    except BlockingIOError:
        return False
    except OSError:
        return True


@contextlib.contextmanager
def _forms(host: str) -> Iterator[None]:
    """Four who send one form of 15 MiB after the other."""
    over, form = threading.Event(), b"queue=" + b"q" * FORM_BYTES

    def send() -> None:
        while not over.is_set():
            sender = http.client.HTTPConnection(host, timeout=5)
            with contextlib.suppress(OSError, http.client.HTTPException), closing(sender):
                sender.request("POST", "/do/pause-queue", form, {"Content-Type": FORM})
                sender.getresponse().read()

    threads = [threading.Thread(target=send, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
