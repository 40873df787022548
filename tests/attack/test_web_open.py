"""A control room that stays open: whatever some visitors send, the others get their pages, and it ends when it is asked
to."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.support.sites import Browser, on_a_loop

import redrive.web.live as live
from redrive import App, Draft
from redrive.stores.sqlite.store import SqliteStore
from redrive.web.connections import ConnectionBounds
from redrive.web.live import Glance, Live
from redrive.web.serve import PagesServer, listening

PATIENCE_S = 60.0


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path / 'work.db'}")
    yield app
    app.store.close()


@contextmanager
def served(site: Any, **bounds: Any) -> Iterator[tuple[str, int]]:
    """A site on a free port of loopback."""
    ready = threading.Event()
    with listening("127.0.0.1", 0) as ours:
        server = PagesServer(site, lambda url: ready.set(), ConnectionBounds(**bounds))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([ours])))
        thread.start()
        assert ready.wait(PATIENCE_S)
        try:
            yield ours.getsockname()[:2]
        finally:
            server.stop()
            thread.join(PATIENCE_S)


def begun(at: tuple[str, int], text: bytes) -> socket.socket:
    made = socket.create_connection(at, timeout=PATIENCE_S)
    made.sendall(text)
    return made


def answered(at: tuple[str, int], path: str = "/keys") -> int:
    with closing(begun(at, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())) as made:
        return int(made.makefile("rb").readline().split()[1])


def is_closed(one: socket.socket) -> bool:
    """Whether the server has closed it, or does so while this waits."""
    try:
        while one.recv(4096):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


HEADS = [b"GET /queues HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: 1\r\n", b""]
LOGIN = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\ntoken="


@pytest.mark.parametrize("head", HEADS)
def test_a_head_that_does_not_arrive_in_time_is_not_waited_for(app: App, head: bytes) -> None:
    with served(app.dashboard(), head_s=0.2) as at, closing(begun(at, head)) as slow:
        assert is_closed(slow) and answered(at) == 200


@pytest.mark.parametrize(
    "start", [LOGIN, LOGIN.replace(b"POST", b"GET"), LOGIN.replace(b"/login", b"/nowhere")], ids=["read", "GET", "404"]
)
def test_a_body_that_does_not_arrive_in_time_is_not_waited_for(app: App, start: bytes) -> None:
    site = app.dashboard(token="correct-horse-battery-staple")
    with served(site, body_s=0.2) as at, closing(begun(at, start)) as slow:
        assert is_closed(slow) and answered(at, "/login") == 200


@pytest.mark.parametrize("start", [*HEADS, LOGIN])
def test_who_waits_for_a_request_makes_room_for_one_that_arrives(app: App, start: bytes) -> None:
    site = app.dashboard(token="correct-horse-battery-staple")
    with served(site, most=20, waiting_of_one=1000, head_s=PATIENCE_S, body_s=PATIENCE_S) as at:
        slow = [begun(at, start) for _ in range(60)]
        assert [answered(at, "/login") for _ in range(5)] == [200] * 5
        assert all(is_closed(each) for each in slow[:30]), "the oldest go first"
        for each in slow:
            each.close()


def test_one_address_has_a_bound_of_its_own(app: App) -> None:
    with served(app.dashboard(), waiting_of_one=10, head_s=PATIENCE_S) as at:
        slow = [begun(at, b"GET /") for _ in range(40)]
        assert all(is_closed(each) for each in slow[:30]) and answered(at) == 200
        for each in slow:
            each.close()


def test_a_stream_of_updates_outlasts_the_deadlines_and_a_connection_is_used_again(app: App) -> None:
    with served(app.dashboard(), head_s=0.3, body_s=0.3) as at:
        stream = begun(at, b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        lines = stream.makefile("rb")
        assert b"200" in lines.readline()
        with closing(HTTPConnection(*at, timeout=PATIENCE_S)) as again:
            for _ in range(3):
                again.request("GET", "/static/icon.svg")
                assert again.getresponse().read()
        for _ in range(2):  # longer than a deadline
            with closing(begun(at, b"GET / HT")) as slow:
                assert is_closed(slow)
        app.store.put([Draft(task="t")])
        while b"event: version" not in lines.readline():
            pass
        stream.close()


class Large:
    """A site whose one page is large."""

    base_path = ""

    def __init__(self) -> None:
        self.readings = self  # which are closed, too

    def begin_sums(self) -> None: ...

    async def close(self) -> None: ...

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(200):
            await send({"type": "http.response.body", "body": b"x" * (1 << 18), "more_body": True})
        await send({"type": "http.response.body", "body": b"y" * (1 << 24)})


def test_an_answer_that_is_not_taken_is_given_up_and_one_that_is_taken_slowly_is_not() -> None:
    with served(Large(), head_s=0.3, taken_s=0.3) as at:
        with closing(begun(at, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")) as never:
            time.sleep(1)
            got = sum(map(len, iter(lambda: _received(never), b"")))
            assert got < 50 << 20
        with closing(begun(at, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")) as slow:
            got = 0
            while part := slow.recv(1 << 20):
                got += len(part)
                time.sleep(0.02)
            assert got >= (50 << 20) + (1 << 24)


def _received(one: socket.socket) -> bytes:
    try:
        return one.recv(1 << 20)
    except ConnectionResetError:
        return b""


def test_a_server_has_as_many_descriptors_as_it_may() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2048))\n"
        "from redrive.web.connections import raise_descriptors\n"
        "print(raise_descriptors(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2048:
        code = code.replace("2048", "512")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert said[1] == said[2] and int(said[0]) == int(said[1]) - 200


HANGS = """
from redrive import App, Backoff, Retry

app = App("sqlite:///work.db")


def endless(attempt, fault):
    print("it began", flush=True)
    while True:
        pass


@app.task(retry=Retry(backoff=Backoff.custom(endless)))
def push() -> None: ...
"""


def test_sigterm_ends_the_server_whatever_its_threads_do(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGS)
    SqliteStore(tmp_path / "work.db").close()
    words = [sys.executable, "-m", "redrive", "web", "--app", "hanging:app", "--port", "0"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None and server.stdout is not None
        line = server.stderr.readline()
        while "open http" not in line:
            assert line, "it did not start"
            line = server.stderr.readline()
        port = int(line.rpartition(":")[2].split("/")[0])
        with closing(begun(("127.0.0.1", port), b"GET /policies HTTP/1.1\r\nHost: localhost\r\n\r\n")):
            assert server.stdout.readline() == "it began\n"
            server.send_signal(signal.SIGTERM)
            assert server.wait(PATIENCE_S) == 128 + signal.SIGTERM
        assert "still being made" in server.stderr.read()


# -- streams


class Nothing(Glance):
    def look(self) -> bytes:
        return b""

    def wait(self, timeout_s: float) -> bool:
        return False

    def nudge(self) -> None: ...


@on_a_loop
async def test_streams_of_one_reader_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WATCHERS_MAX", 5)
    updates = Live(Nothing(lambda: None), lambda: 0.01)  # type: ignore[arg-type, return-value]
    greedy = [updates.events("greedy") for _ in range(5)]
    for each in greedy:
        await anext(each)
    others = [updates.events(f"other {n}") for n in range(3)]
    for each in others:
        assert "event: version" in await anext(each)
    for each in greedy[:3]:  # they end, the oldest first
        assert not [line async for line in each if "data" not in line]
    assert updates.watchers == 5
    updates.bump()
    assert "data" in await anext(greedy[4])
    await updates.close()
    for each in (*greedy, *others):
        await each.aclose()  # type: ignore[attr-defined]
    assert updates.watchers == 0


@pytest.mark.parametrize("name", ["x" * 5_000, "../serve.py", "a/b.css", "\0.css", "redrive.css/", "é" * 300 + ".css"])
def test_a_file_of_any_name_is_there_or_not(app: App, name: str) -> None:
    from urllib.parse import quote

    assert Browser(app.dashboard()).get(f"/static/{quote(name, safe='')}").status_code == 404
    assert Browser(app.dashboard()).get("/static/redrive.css").status_code == 200


def test_guesses_under_many_names_of_a_proxy_are_bounded_together(app: App) -> None:
    site = app.dashboard(token="correct-horse-battery-staple", hosts=["127.0.0.1"])
    with served(site) as at:
        codes = []
        for n in range(110):
            head = f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong-token-{n}\r\n"
            head += f"Accept: application/json\r\nX-Forwarded-For: 198.51.100.{n}\r\nConnection: close\r\n\r\n"
            with closing(begun(at, head.encode())) as made:
                codes.append(int(made.makefile("rb").readline().split()[1]))
    assert codes[:100] == [401] * 100 and set(codes[100:]) == {429}
