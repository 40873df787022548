"""Waiting on PostgreSQL: a notification ends it, and what no notification told is found all the same."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from tests.support.servers import PostgresServer

from redrive.stores.postgres import listen
from redrive.stores.postgres.listen import Listener
from redrive.stores.postgres.session import Session
from redrive.stores.postgres.url import parse

FAR_MS = 60_000
PATIENCE_S = 40.0  # less than FAR_MS

Open = Callable[..., tuple[Session, Listener]]


@pytest.fixture
def open_listener(postgres_server: PostgresServer) -> Iterator[Open]:
    opened: list[tuple[Session, Listener]] = []

    def open_listener(options: str = "") -> tuple[Session, Listener]:
        link = Session(parse(f"{postgres_server.url}?{options}"))
        opened.append((link, Listener(link)))
        return opened[-1]

    yield open_listener
    for link, listener in opened:
        listener.close()
        link.close()


def never() -> None:
    return None


def put(link: Session, queue: str = "q") -> None:
    link.pipeline(lambda c, _: c.execute("select 1"), wake=[queue])


class Waiting:
    """A wait in a thread of its own."""

    def __init__(self, listener: Listener, queues: str = "q", due: Callable[[], float | None] = never) -> None:
        self.looks = 0
        self.looked, self.over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listener, {queues}, due), daemon=True)
        self._thread.start()
        assert self.looked.wait(PATIENCE_S)

    def _run(self, listener: Listener, queues: set[str], due: Callable[[], float | None]) -> None:
        def look() -> float | None:
            found = due()
            self.looks += 1
            self.looked.set()
            return found

        listener.wait(queues, look, FAR_MS)
        self.over.set()

    def ends(self) -> bool:
        return self.over.wait(PATIENCE_S)


def test_a_notification_of_its_queue_ends_a_wait_and_no_other(open_listener: Open) -> None:
    link, listener = open_listener()
    other, _ = open_listener()
    waiting = Waiting(listener)
    for sender in (link, other):
        put(sender, "another")
    time.sleep(0.1)
    assert not waiting.over.is_set()
    put(other)
    assert waiting.ends()
    assert waiting.looks == 1


def test_a_put_of_this_process_wakes_its_threads_without_the_server(open_listener: Open) -> None:
    link, listener = open_listener("listen=off")
    waiting = [Waiting(listener) for _ in range(3)]
    put(link)
    assert all(one.ends() for one in waiting)


def test_every_thread_that_waits_is_woken_though_one_reads(open_listener: Open) -> None:
    _, listener = open_listener()
    other, _ = open_listener()
    first = Waiting(listener)
    others = [Waiting(listener, "q" if n % 2 else "r") for n in range(4)]
    put(other, "r")
    assert others[0].ends() and others[2].ends()
    assert not first.over.is_set()
    put(other)
    assert first.ends() and others[1].ends() and others[3].ends()


def test_when_the_reading_thread_leaves_another_one_reads(open_listener: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "LOOK_EVERY_S", 3600.0)
    _, listener = open_listener()
    other, _ = open_listener()
    first = Waiting(listener, "first")
    second = Waiting(listener)
    put(other, "first")
    assert first.ends()
    put(other)
    assert second.ends()


def test_what_is_put_between_listening_and_sleeping_is_not_missed(
    open_listener: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "LOOK_EVERY_S", 3600.0)
    _, listener = open_listener()
    other, _ = open_listener()
    for _ in range(20):

        def look_and_be_late() -> None:
            put(other)  # just after the look found nothing

        assert Waiting(listener, due=look_and_be_late).ends()


def test_a_long_name_is_told_as_any_queue(open_listener: Open) -> None:
    _, listener = open_listener()
    other, _ = open_listener()
    waiting = Waiting(listener, "q" * 9000)
    put(other, "q" * 9000)
    assert waiting.ends()


def test_a_nudge_ends_every_wait_and_the_next_of_a_thread_that_was_busy(open_listener: Open) -> None:
    _, listener = open_listener()
    waiting = [Waiting(listener) for _ in range(3)]
    listener.nudge()
    assert all(one.ends() for one in waiting)
    listener.wait({"q"}, never, FAR_MS)
    start_s = time.monotonic()
    listener.wait({"q"}, never, 50)
    assert time.monotonic() - start_s >= 0.05


def test_a_wait_ends_when_something_comes_due(open_listener: Open) -> None:
    link, listener = open_listener()
    start_ms = link.now_ms()
    listener.wait({"q"}, lambda: start_ms + 80, FAR_MS)
    assert link.now_ms() >= start_ms + 80


def test_a_killed_listening_connection_is_replaced_and_what_it_missed_is_looked_for(
    open_listener: Open, postgres_server: PostgresServer
) -> None:
    _, listener = open_listener()
    other, _ = open_listener()
    waiting = Waiting(listener)
    connection = listener._connection
    assert connection is not None
    with psycopg.connect(postgres_server.url, autocommit=True) as c:
        c.execute("select pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
    assert waiting.ends()
    waiting = Waiting(listener)
    assert listener.listening
    put(other)
    assert waiting.ends()
    assert waiting.looks == 1


def test_where_nobody_can_listen_looking_finds_it(open_listener: Open) -> None:
    _, listener = open_listener("listen=off")
    found: list[float] = []
    waiting = Waiting(listener, due=lambda: found[0] if found else None)
    assert not listener.listening
    found.append(0)
    assert waiting.ends()


def test_listening_may_go_another_way(open_listener: Open, postgres_server: PostgresServer) -> None:
    elsewhere = f"{postgres_server.url}%3Fapplication_name=ears"
    _, listener = open_listener(f"listen={elsewhere}")
    link, _ = open_listener()
    waiting = Waiting(listener)
    assert link.look("select count(*) from pg_stat_activity where application_name = 'ears'") == [(1,)]
    put(link)
    assert waiting.ends()


def test_notifications_are_taken_though_nobody_waits(open_listener: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "TEND_EVERY_S", 0.02)
    _, listener = open_listener()
    other, _ = open_listener()
    listener.wait({"q"}, never, 200)
    assert listener.listening
    heard: list[str] = []
    hear = listener.wake
    monkeypatch.setattr(listener, "wake", lambda queues: (heard.extend(queues), hear(queues)))
    put(other)
    end_s = time.monotonic() + PATIENCE_S
    while heard != ["q"]:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    listener.wait({"q"}, never, 50)


def test_a_forked_child_listens_for_itself(open_listener: Open) -> None:
    _, listener = open_listener()
    other, _ = open_listener()
    waiting = Waiting(listener)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            waits = Waiting(listener)
            put(other)
            code = 0 if waits.ends() and listener.listening else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert waiting.ends()  # by what the child put


def test_an_idle_wait_costs_next_to_nothing(open_listener: Open) -> None:
    link, listener = open_listener()
    listener.wait({"q"}, never, 300)
    start_s = time.thread_time()
    listener.wait({"q"}, lambda: None if link.look("select 1") else 0.0, 3000)
    assert time.thread_time() - start_s < 0.03
