"""The schema is brought up to date once, whole, and while others work in it; and a server that would lose messages is
refused."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from redrive.errors import Refused, SchemaError, StoreUnavailable
from redrive.stores import _postgres_schema
from redrive.stores._postgres_doctor import doctor, preflight
from redrive.stores._postgres_link import Link
from redrive.stores._postgres_schema import Version, open_schema, version_of
from redrive.stores._postgres_url import parse
from redrive.testing.servers import PostgresServer

ONE = {"migration_1": "-- compatible from 1\ncreate table {s}.message (n int);"}
TWO = ONE | {"migration_2": "-- compatible from 1\nalter table {s}.message add column m int default 7;"}
BREAKS = ONE | {"migration_2": "-- compatible from 2\nalter table {s}.message rename column n to m;"}
FAILS = ONE | {"migration_2": "alter table {s}.message add column m int; select 1/0;"}

Open = Callable[..., Link]
_numbers = count()


@pytest.fixture
def schema() -> str:
    return f"schema_{next(_numbers)}"


@pytest.fixture
def open_link(postgres_server: PostgresServer, schema: str) -> Iterator[Open]:
    links: list[Link] = []

    def open_link(options: str = "", user: str = "postgres") -> Link:
        url = postgres_server.url.replace("postgres@", f"{user}@")
        links.append(Link(parse(f"{url}?schema={schema}&{options}")))
        return links[-1]

    yield open_link
    open_link().run(lambda c: c.execute(f"drop schema if exists {schema} cascade"))
    for link in links:
        link.close()


@pytest.fixture
def link(open_link: Open) -> Link:
    return open_link()


def test_opening_makes_what_is_missing_once(link: Link) -> None:
    assert version_of(link) == Version(0, 0)
    assert open_schema(link, ONE) == Version(1, 1)
    assert open_schema(link, TWO) == Version(2, 1)
    assert open_schema(link, TWO) == Version(2, 1)
    assert link.look(f"select n, m from {link.schema}.message") == []


def test_an_older_program_goes_on_beside_a_newer_schema_that_says_so(link: Link) -> None:
    open_schema(link, TWO)
    assert open_schema(link, ONE) == Version(2, 1)
    other = TWO | {"migration_3": BREAKS["migration_2"].replace("from 2", "from 3").replace("to m", "to k")}
    open_schema(link, other)
    with pytest.raises(SchemaError, match="upgrade redrive"):
        open_schema(link, TWO)


def test_without_migrating_a_missing_version_is_told(open_link: Open) -> None:
    with pytest.raises(SchemaError, match="redrive store upgrade"):
        open_schema(open_link("migrate=off"), ONE)
    open_schema(open_link(), ONE)
    assert open_schema(open_link("migrate=off"), ONE) == Version(1, 1)
    with pytest.raises(SchemaError, match="version 1, this redrive needs 2"):
        open_schema(open_link("migrate=off"), TWO)


def test_a_migration_that_fails_leaves_nothing_of_it(link: Link) -> None:
    with pytest.raises(Exception, match="division by zero"):
        open_schema(link, FAILS)
    assert version_of(link) == Version(1, 1)
    assert open_schema(link, TWO) == Version(2, 1)


def test_a_role_that_may_not_is_told_who_may(link: Link, open_link: Open) -> None:
    link.run(lambda c: c.execute("create role humble login"))
    try:
        with pytest.raises(SchemaError, match="redrive store sql"):
            open_schema(open_link(user="humble"), ONE)
    finally:
        link.run(lambda c: c.execute("drop role humble"))


def test_a_role_that_may_only_use_its_schema_can_make_the_tables(link: Link, open_link: Open, schema: str) -> None:
    link.run(lambda c: c.execute(f"create role modest login; create schema {schema} authorization modest"))
    try:
        assert open_schema(open_link(user="modest"), TWO) == Version(2, 1)
    finally:
        link.run(lambda c: c.execute("drop owned by modest cascade; drop role modest"))


_OPEN = """
import sys
from redrive.stores._postgres_link import Link
from redrive.stores._postgres_schema import open_schema
from redrive.stores._postgres_url import parse
sys.stdin.readline()
print(open_schema(Link(parse(sys.argv[1])), {"migration_1": sys.argv[2]}).number)
"""


def test_eight_processes_open_an_empty_database_at_once(
    postgres_server: PostgresServer, open_link: Open, schema: str
) -> None:
    url = f"{postgres_server.url}?schema={schema}"
    slow = f"{ONE['migration_1']} select pg_sleep(0.5);"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _OPEN, url, slow], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    open_link()
    assert [process.communicate(timeout=60)[0] for process in processes] == ["1\n"] * 8


def test_workers_go_on_while_a_migration_runs(link: Link, open_link: Open, schema: str) -> None:
    """Old programs put and delete without a pause longer than a migration may wait for its lock, while an old
    transaction keeps the lock from the migration."""
    open_schema(link, ONE)
    stop = threading.Event()
    slowest: list[float] = []
    errors: list[BaseException] = []

    def work() -> None:
        mine = open_link()
        try:
            while not stop.is_set():
                start_s = time.monotonic()
                mine.run(lambda c: c.execute(f"insert into {schema}.message (n) values (1)"))
                mine.run(lambda c: c.execute(f"delete from {schema}.message where n = 1"))
                slowest.append(time.monotonic() - start_s)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    holder = open_link()._pool.take(time.monotonic() + 5)
    holder.execute(f"begin; select from {schema}.message limit 1")
    releasing = threading.Timer(2.5, lambda: holder.execute("commit"))
    releasing.start()
    try:
        assert open_schema(open_link(), TWO) == Version(2, 1)
    finally:
        releasing.join()
        stop.set()
        for worker in workers:
            worker.join()
    assert errors == []
    assert max(slowest) < _postgres_schema.LOCK_TIMEOUT_S + 4
    assert len(slowest) > 20
    holder.drop()


def test_a_migration_gives_up_on_a_table_that_is_never_free(
    link: Link, open_link: Open, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_postgres_schema, "LOCK_TRIES", 2)
    monkeypatch.setattr(_postgres_schema, "LOCK_TIMEOUT_S", 0.1)
    open_schema(link, ONE)
    holder = open_link()._pool.take(time.monotonic() + 60)
    holder.execute(f"begin; select from {schema}.message limit 1")
    with pytest.raises(StoreUnavailable, match="pg_stat_activity"):
        open_schema(link, TWO)
    holder.drop()


def test_a_sound_server_passes_and_has_nothing_to_say(link: Link) -> None:
    preflight(link)
    assert doctor(link) == []


@pytest.fixture(scope="module")
def reckless() -> Iterator[PostgresServer]:
    settings = {
        "fsync": "off",
        "full_page_writes": "off",
        "autovacuum": "off",
        "synchronous_commit": "off",
        "max_connections": 7,
        "superuser_reserved_connections": 3,
        "max_prepared_transactions": 1,
    }
    with PostgresServer(settings=settings) as server:
        yield server


def test_a_server_that_would_lose_messages_is_refused_unless_that_is_meant(reckless: PostgresServer) -> None:
    link = Link(parse(reckless.url))
    with pytest.raises(Refused, match=r"fsync = on.*\?fsync=off"):
        preflight(link)
    link.close()
    meant = Link(parse(f"{reckless.url}?fsync=off"))
    preflight(meant)
    assert meant.look("select current_setting('synchronous_commit')") == [("on",)]
    meant.close()


def test_a_database_that_cannot_hold_every_text_is_refused(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url, autocommit=True) as c:
        c.execute("create database latin encoding 'LATIN1' locale 'C' template template0")
        link = Link(parse(f"{postgres_server.url.removesuffix('postgres')}latin"))
        with pytest.raises(Refused, match="UTF8"):
            preflight(link)
        link.close()
        c.execute("drop database latin")


def test_the_doctor_names_what_is_wrong_and_what_to_do(
    reckless: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(parse(f"{reckless.url}?fsync=off&synchronous_commit=off&pool=1"))
    said = "\n".join(doctor(link))
    for words in (
        "fsync=off in the URL",
        "synchronous_commit=off",
        "set full_page_writes = on",
        "set autovacuum = on",
        "raise max_connections",
    ):
        assert words in said
    link.close()


def test_the_doctor_finds_what_holds_back_vacuum(open_link: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    from redrive.stores import _postgres_doctor

    monkeypatch.setattr(_postgres_doctor, "_OLD", _postgres_doctor._OLD.replace("300 s", "0 s"))
    link, other = open_link(), open_link()
    open_schema(link, ONE)
    link.run(lambda c: c.execute(f"alter table {link.schema}.message set (autovacuum_enabled = false)"))
    holder: Any = other._pool.take(time.monotonic() + 5)
    holder.execute("begin")
    said = "\n".join(doctor(link))
    assert f"pg_terminate_backend({holder.info.backend_pid})" in said
    assert "reset (autovacuum_enabled)" in said
    other._pool.lose(holder)
