"""The way to the PostgreSQL server: what breaks is repeated or told, and nothing hangs."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.support.servers import PostgresServer

from redrive.errors import ConfigError, StoreError, StoreFull, StoreUnavailable
from redrive.stores.postgres.session import Clock, Session
from redrive.stores.postgres.url import parse

Open = Callable[..., Session]


@pytest.fixture(scope="module")
def fragile() -> Iterator[PostgresServer]:
    """A server that tests of this module break; each leaves it running."""
    with PostgresServer(settings={"max_connections": 12, "superuser_reserved_connections": 0}) as server:
        yield server


@pytest.fixture
def open_link() -> Iterator[Open]:
    links: list[Session] = []

    def open_link(server: PostgresServer, options: str = "", **more: Any) -> Session:
        links.append(Session(parse(f"{server.url}?{options}"), **more))
        return links[-1]

    yield open_link
    for link in links:
        link.close()


@pytest.fixture
def link(postgres_server: PostgresServer, open_link: Open) -> Session:
    return open_link(postgres_server)


@pytest.fixture
def table(link: Session) -> Iterator[str]:
    name = f"link_{os.getpid()}"
    link.run(lambda c: c.execute(f"create table {name} (n int)"))
    yield name
    link.run(lambda c: c.execute(f"drop table {name}"))


def kill_backend(server: PostgresServer, pid: int) -> None:
    """End a session of the server as an administrator would, and see it gone."""
    with psycopg.connect(server.url, autocommit=True) as c:
        c.execute("select pg_terminate_backend(%s, 5000)", (pid,))


def rows(link: Session, table: str) -> list[int]:
    return [row[0] for row in link.look(f"select n from {table} order by n")]


def test_a_transaction_is_committed_whole_or_not_at_all(link: Session, table: str) -> None:
    def half(c: psycopg.Connection[Any]) -> None:
        c.execute(f"insert into {table} values (1)")
        raise KeyError("of the caller")

    with pytest.raises(KeyError):
        link.run(half)
    with pytest.raises(KeyError):
        link.pipeline(lambda c, _: half(c))
    with pytest.raises(StoreError):
        link.pipeline(lambda c, _: (c.execute(f"insert into {table} values (2)"), c.execute("select 1/0")))
    assert rows(link, table) == []
    assert link.run(lambda c: c.execute(f"insert into {table} values (3) returning n").fetchall()) == [(3,)]
    cursor = link.pipeline(lambda c, _: c.execute(f"insert into {table} values (4) returning n"))
    assert cursor.fetchall() == [(4,)]
    assert rows(link, table) == [3, 4]


@pytest.mark.parametrize("way", ["run", "pipeline"])
@pytest.mark.parametrize("when", ["before", "during", "commit"])
def test_a_connection_killed_in_a_transaction_is_replaced_and_the_work_done_once(
    postgres_server: PostgresServer, open_link: Open, table: str, way: str, when: str
) -> None:
    kills: list[int] = []

    def kill_once(pid: int) -> None:
        if not kills:
            kills.append(pid)
            kill_backend(postgres_server, pid)

    def failpoint(point: str) -> None:
        if point == when:
            kill_once(link._pool._taken.copy().pop().info.backend_pid)

    def work(c: psycopg.Connection[Any], *pipeline: Any) -> None:
        if when == "before":
            kill_once(c.info.backend_pid)
        c.execute(f"insert into {table} values (1)")
        if when == "during":
            kill_once(c.info.backend_pid)

    link = open_link(postgres_server, failpoint=failpoint)
    getattr(link, way)(work)
    assert len(kills) == 1
    assert rows(link, table) == [1]


def test_what_must_not_be_repeated_says_that_its_commit_is_unknown(
    postgres_server: PostgresServer, open_link: Open, table: str
) -> None:
    def failpoint(point: str) -> None:
        if point == "commit":
            kill_backend(postgres_server, link._pool._taken.copy().pop().info.backend_pid)

    link = open_link(postgres_server, failpoint=failpoint)
    with pytest.raises(StoreUnavailable, match="may have taken place"):
        link.run(lambda c: c.execute(f"insert into {table} values (1)"), again=False)


def test_idle_connections_that_died_cost_no_call(fragile: PostgresServer, open_link: Open) -> None:
    link = open_link(fragile)
    assert link.look("select 1") == [(1,)]
    fragile.kill()
    fragile.restart()
    assert link.look("select 1") == [(1,)]


def test_a_server_that_comes_back_soon_is_waited_for(fragile: PostgresServer, open_link: Open) -> None:
    link = open_link(fragile)
    link.open()
    fragile.kill()
    back = threading.Timer(0.2, fragile.restart)
    back.start()
    try:
        done = []
        while not done:  # how long it recovers is its own affair
            try:
                done = link.run(lambda c: c.execute("select 1").fetchall())
            except StoreUnavailable:
                continue
    finally:
        back.join()
    assert done == [(1,)]


def test_a_server_that_is_gone_is_told_soon(fragile: PostgresServer, open_link: Open) -> None:
    link = open_link(fragile)
    link.open()
    fragile.stop()
    start_s = time.monotonic()
    try:
        with pytest.raises(StoreUnavailable):
            link.look("select 1")
        assert time.monotonic() - start_s < 9
    finally:
        fragile.restart()


@pytest.mark.parametrize("opened", [True, False])
def test_a_server_that_stands_still_is_told_within_the_timeout(
    fragile: PostgresServer, open_link: Open, opened: bool
) -> None:
    link = open_link(fragile, "timeout=1s")
    if opened:
        link.look("select 1")
    fragile.pause()
    start_s = time.monotonic()
    try:
        for call in (lambda: link.look("select 1"), lambda: link.pipeline(lambda c, _: c.execute("select 1"))):
            with pytest.raises(StoreUnavailable):
                call()
        assert time.monotonic() - start_s < 20
    finally:
        fragile.resume()
    assert link.look("select 1") == [(1,)]


def test_a_statement_that_takes_too_long_is_ended_on_the_server_too(
    postgres_server: PostgresServer, open_link: Open, link: Session
) -> None:
    hasty = open_link(postgres_server, "timeout=0.3s&application_name=hasty")
    with pytest.raises(StoreUnavailable, match="timeout"):
        hasty.run(lambda c: c.execute("select pg_sleep(60)"))
    running = "select count(*) from pg_stat_activity where application_name = 'hasty' and state = 'active'"
    end_s = time.monotonic() + 10
    while link.look(running) != [(0,)]:
        assert time.monotonic() < end_s


@pytest.mark.parametrize(
    "code, error",
    [
        ("53100", StoreFull),
        ("53200", StoreFull),
        ("40001", StoreUnavailable),
        ("08006", StoreUnavailable),
        ("57014", StoreUnavailable),
        ("23505", StoreError),
    ],
)
def test_each_code_of_the_server_has_its_error(link: Session, code: str, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        link.run(lambda c: c.execute(f"do $$ begin raise sqlstate '{code}'; end $$"))
    assert type(raised.value) is error
    assert code in str(raised.value)


def test_deadlocks_are_repeated(postgres_server: PostgresServer, open_link: Open, table: str) -> None:
    link = open_link(postgres_server, "timeout=60")
    link.run(lambda c: c.execute(f"insert into {table} values (1), (2)"))
    sessions: set[int] = set()
    both = threading.Barrier(2)
    met: list[int] = []

    def work(c: psycopg.Connection[Any], first: int) -> None:
        sessions.add(c.info.backend_pid)
        c.execute("set local idle_in_transaction_session_timeout = 0")  # however long the other lets it wait
        c.execute(f"select from {table} where n = %s for update", (first,))
        if len(met) < 2:
            met.append(first)
            both.wait(60)
        c.execute(f"select from {table} where n = %s for update", (3 - first,))

    threads = [threading.Thread(target=lambda n=n: link.run(lambda c: work(c, n))) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert link._pool._out == 0
    assert len(sessions) == 2  # whoever lost goes on in its session


def test_a_full_connection_table_says_what_to_do(fragile: PostgresServer, open_link: Open) -> None:
    others: list[psycopg.Connection[Any]] = []
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            others.append(psycopg.connect(fragile.url))
    link = open_link(fragile)
    try:
        with pytest.raises(StoreUnavailable, match="max_connections"):
            link.look("select 1")
    finally:
        for other in others:
            other.close()
    assert link.look("select 1") == [(1,)]


def test_sixteen_threads_share_three_connections(postgres_server: PostgresServer, open_link: Open, table: str) -> None:
    link = open_link(postgres_server, "pool=3&application_name=shared")
    counts: list[int] = []

    def work(n: int) -> None:
        for i in range(10):
            row = (n * 10 + i,)
            link.pipeline(lambda c, _, row=row: c.execute(f"insert into {table} values (%s)", row))
            seen = link.look("select count(*) from pg_stat_activity where application_name = 'shared'")
            counts.append(seen[0][0])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rows(link, table) == list(range(160))
    assert max(counts) <= 3


def test_who_finds_no_free_connection_is_told_within_the_timeout(
    postgres_server: PostgresServer, open_link: Open
) -> None:
    link = open_link(postgres_server, "pool=1&timeout=0.3s")
    connection = link._pool.take(time.monotonic() + 5)
    with pytest.raises(StoreUnavailable, match="pool="):
        link.look("select 1")
    link._pool.give(connection)
    assert link.look("select 1") == [(1,)]


def test_a_forked_child_has_connections_of_its_own(link: Session, table: str) -> None:
    parents = link.look("select pg_backend_pid()")
    held = link._pool.take(time.monotonic() + 5)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            mine = link.look("select pg_backend_pid()")
            link.run(lambda c: c.execute(f"insert into {table} values (1)"))
            code = 0 if mine != parents else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held.execute("select 1").fetchall() == [(1,)]
    link._pool.give(held)
    assert link.look("select pg_backend_pid()") == parents
    assert rows(link, table) == [1]


def test_a_closed_link_says_so(link: Session) -> None:
    link.open()
    link.close()
    with pytest.raises(StoreError, match="closed"):
        link.look("select 1")


def test_a_standby_is_refused_until_it_writes(open_link: Open) -> None:
    with PostgresServer() as server:
        server.stop()
        signal = server.data / "standby.signal"
        signal.touch()
        server.restart()
        link = open_link(server)
        with pytest.raises(StoreUnavailable, match="standby"):
            link.open()
        with psycopg.connect(server.url, autocommit=True) as c:
            c.execute("select pg_promote()")
        assert link.look("select 1") == [(1,)]


@pytest.mark.parametrize("part", ["database", "user"])
def test_what_the_url_names_and_is_not_there_is_a_setting(postgres_server: PostgresServer, part: str) -> None:
    url = {
        "database": postgres_server.url + "_none",
        "user": postgres_server.url.replace("//postgres@", "//nobody:secret@"),
    }[part]
    link = Session(parse(url))
    with pytest.raises(ConfigError) as raised:
        link.open()
    assert "secret" not in str(raised.value)


def test_the_clock_is_the_servers(link: Session) -> None:
    link.open()
    for _ in range(20):
        sent_s = time.monotonic()
        before = link.now_ms()
        server = link.look("select (extract(epoch from clock_timestamp()) * 1000)::bigint")[0][0]
        link.saw_clock(server, sent_s)
        assert before <= server + 1
        assert server - link.now_ms() <= (time.monotonic() - sent_s) * 1000 + 2


def test_an_estimate_follows_a_clock_that_is_set() -> None:
    clock = Clock()
    assert clock.now_ms() is None
    for server_ms in (5_000_000, 1_000_000, 9_000_000):
        clock.saw(server_ms, time.monotonic())
        now = clock.now_ms()
        assert now is not None
        assert server_ms <= now < server_ms + 500


def test_a_slow_reply_does_not_spoil_a_good_estimate() -> None:
    clock = Clock()
    clock.saw(1_000_000, time.monotonic())
    clock.saw(1_000_000, time.monotonic() - 5)  # five seconds on the way: it may have been read at any time in them
    now = clock.now_ms()
    assert now is not None
    assert 1_000_000 <= now < 1_000_500
