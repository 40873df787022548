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
from tests.support.servers import PostgresServer

from redrive.errors import ConfigError, Refused, SchemaError, StoreUnavailable
from redrive.message import (
    Ack,
    ClaimRequest,
    Draft,
    Settled,
    Settlement,
    Swap,
)
from redrive.stores.postgres import schema as postgres_schema
from redrive.stores.postgres.doctor import doctor, preflight
from redrive.stores.postgres.schema import (
    Version,
    migrations,
    open_schema,
    sql,
    statements,
    upgrade,
    version_of,
)
from redrive.stores.postgres.session import Session
from redrive.stores.postgres.store import PostgresStore
from redrive.stores.postgres.url import parse

ONE = {"migration_1": "-- compatible from 1\ncreate table {s}.message (n int);"}
TWO = ONE | {"migration_2": "-- compatible from 1\nalter table {s}.message add column m int default 7;"}
BREAKS = ONE | {"migration_2": "-- compatible from 2\nalter table {s}.message rename column n to m;"}
FAILS = ONE | {"migration_2": "alter table {s}.message add column m int; select 1/0;"}

ASK = ClaimRequest("default", 9, 30_000)
Open = Callable[..., Session]
_numbers = count()


@pytest.fixture
def schema() -> str:
    return f"schema_{next(_numbers)}"


@pytest.fixture
def open_link(postgres_server: PostgresServer, schema: str) -> Iterator[Open]:
    links: list[Session] = []

    def open_link(options: str = "", user: str = "postgres") -> Session:
        url = postgres_server.url.replace("postgres@", f"{user}@")
        links.append(Session(parse(f"{url}?schema={schema}&{options}")))
        return links[-1]

    yield open_link
    open_link().run(lambda c: c.execute(f"drop schema if exists {schema} cascade"))
    for link in links:
        link.close()


@pytest.fixture
def link(open_link: Open) -> Session:
    return open_link()


def test_opening_makes_what_is_missing_once(link: Session) -> None:
    assert version_of(link) == Version(0, 0)
    assert open_schema(link, ONE) == Version(1, 1)
    assert open_schema(link, TWO) == Version(2, 1)
    assert open_schema(link, TWO) == Version(2, 1)
    assert link.look(f"select n, m from {link.schema}.message") == []


def test_an_older_program_goes_on_beside_a_newer_schema_that_says_so(link: Session) -> None:
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


@pytest.mark.parametrize("options", ["", "migrate=off"])
def test_a_version_of_before_the_first_release_is_refused_and_left_alone(
    link: Session, open_link: Open, schema: str, options: str, postgres_server: PostgresServer
) -> None:
    open_schema(link, ONE)
    first = migrations(statements())[0].number
    for open_it in (
        lambda: open_schema(open_link(options)),
        lambda: upgrade(f"{postgres_server.url}?schema={schema}&{options}"),
    ):
        with pytest.raises(SchemaError, match=rf"version 1, which no release had.*knows {first} and later.*\?schema="):
            open_it()
    assert version_of(link) == Version(1, 1)


def test_a_migration_that_fails_leaves_nothing_of_it(link: Session) -> None:
    with pytest.raises(Exception, match="division by zero"):
        open_schema(link, FAILS)
    assert version_of(link) == Version(1, 1)
    assert open_schema(link, TWO) == Version(2, 1)


def test_a_role_that_may_not_is_told_who_may(link: Session, open_link: Open) -> None:
    link.run(lambda c: c.execute("create role humble login"))
    try:
        with pytest.raises(SchemaError, match="redrive store sql"):
            open_schema(open_link(user="humble"), ONE)
    finally:
        link.run(lambda c: c.execute("drop role humble"))


def test_a_role_that_may_only_use_its_schema_can_make_the_tables(link: Session, open_link: Open, schema: str) -> None:
    link.run(lambda c: c.execute(f"create role modest login; create schema {schema} authorization modest"))
    try:
        assert open_schema(open_link(user="modest"), TWO) == Version(2, 1)
    finally:
        link.run(lambda c: c.execute("drop owned by modest cascade; drop role modest"))


_OPEN = """
import sys
from redrive.stores.postgres.session import Session
from redrive.stores.postgres.schema import open_schema
from redrive.stores.postgres.url import parse
from redrive.stores.postgres.store import PostgresStore
sys.stdin.readline()
print(open_schema(Session(parse(sys.argv[1])), {"migration_1": sys.argv[2]}).number)
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


def test_workers_go_on_while_a_migration_runs(link: Session, open_link: Open, schema: str) -> None:
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
    holder.execute(f"begin; set local idle_in_transaction_session_timeout = 0; select from {schema}.message limit 1")
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
    assert max(slowest) < postgres_schema.LOCK_TIMEOUT_S + 4
    assert len(slowest) > 20
    holder.drop()


def test_a_migration_gives_up_on_a_table_that_is_never_free(
    link: Session, open_link: Open, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_schema, "LOCK_TRIES", 2)
    monkeypatch.setattr(postgres_schema, "LOCK_TIMEOUT_S", 0.1)
    open_schema(link, ONE)
    holder = open_link()._pool.take(time.monotonic() + 60)
    holder.execute(f"begin; set local idle_in_transaction_session_timeout = 0; select from {schema}.message limit 1")
    with pytest.raises(StoreUnavailable, match="pg_stat_activity"):
        open_schema(link, TWO)
    holder.drop()


def test_a_sound_server_passes_and_has_nothing_to_say(link: Session) -> None:
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
    link = Session(parse(reckless.url))
    with pytest.raises(Refused, match=r"fsync = on.*\?fsync=off"):
        preflight(link)
    link.close()
    meant = Session(parse(f"{reckless.url}?fsync=off"))
    preflight(meant)
    assert meant.look("select current_setting('synchronous_commit')") == [("on",)]
    meant.close()


def test_a_database_that_cannot_hold_every_text_is_refused(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url, autocommit=True) as c:
        c.execute("create database latin encoding 'LATIN1' locale 'C' template template0")
        link = Session(parse(f"{postgres_server.url.removesuffix('postgres')}latin"))
        with pytest.raises(Refused, match="UTF8"):
            preflight(link)
        link.close()
        c.execute("drop database latin")


def test_the_doctor_names_what_is_wrong_and_what_to_do(
    reckless: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Session(parse(f"{reckless.url}?fsync=off&synchronous_commit=off&pool=1"))
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
    from redrive.stores.postgres import doctor as postgres_doctor

    monkeypatch.setattr(postgres_doctor, "_OLD", postgres_doctor._OLD.replace("300 s", "0 s"))
    link, other = open_link(), open_link()
    open_schema(link, ONE)
    link.run(lambda c: c.execute(f"alter table {link.schema}.message set (autovacuum_enabled = false)"))
    holder: Any = other._pool.take(time.monotonic() + 5)
    holder.execute("begin")
    said = "\n".join(doctor(link))
    assert f"pg_terminate_backend({holder.info.backend_pid})" in said
    assert "reset (autovacuum_enabled)" in said
    other._pool.lose(holder)


def shape(link: Session, schema: str) -> list[tuple[Any, ...]]:
    """What the schema consists of, but for its name."""
    columns = "select table_name, column_name, data_type, column_default from information_schema.columns"
    found = link.look(f"{columns} where table_schema = %s order by 1, 2", [schema])
    found += link.look("select tablename, indexname, indexdef, '' from pg_indexes where schemaname = %s", [schema])
    options = (
        "select relname, array_to_string(reloptions, ','), '', '' from pg_class where relnamespace = %s::regnamespace"
    )
    found += link.look(options, [schema])
    return sorted(tuple(str(part).replace(schema, "") for part in row) for row in found)


def test_what_is_printed_for_an_administrator_is_what_opening_makes(
    postgres_server: PostgresServer, link: Session, schema: str
) -> None:
    made = f"{postgres_server.url}?schema={schema}"
    link.run(lambda c: c.execute(f"drop schema if exists {schema} cascade"))
    printed = sql(made)
    with psycopg.connect(postgres_server.url, autocommit=True) as c:
        c.execute(printed)
        by_hand = shape(link, schema)
        c.execute(f"drop schema {schema} cascade")
    assert upgrade(f"{made}&migrate=off") == (0, migrations(statements())[-1].number)
    assert shape(link, schema) == by_hand
    assert upgrade(made) == (migrations(statements())[-1].number,) * 2
    assert sql(made, since=migrations(statements())[-1].number).count("begin;") == 0


def test_what_is_printed_for_an_upgrade_is_what_an_upgrade_makes(link: Session, open_link: Open, schema: str) -> None:
    known = migrations(statements())
    for since in (step.number for step in known[:-1]):
        earlier = {name: part for name, part in statements().items() if name.startswith("migration_")}
        open_schema(link, {name: part for name, part in earlier.items() if int(name[10:]) <= since})
        with pytest.raises(SchemaError, match=f"at version {since}, .*`redrive store sql --from-version {since}`"):
            open_schema(open_link("migrate=off"))
        link.run(lambda c, since=since: c.execute(sql(f"postgresql://h/d?schema={schema}", since=since)))
        assert version_of(link).number == known[-1].number
        by_hand = shape(link, schema)
        link.run(lambda c: c.execute(f"drop schema {schema} cascade"))
        open_schema(link)
        assert shape(link, schema) == by_hand
        link.run(lambda c: c.execute(f"drop schema {schema} cascade"))
    for since in (1, known[-1].number + 1):
        with pytest.raises(ConfigError, match=rf"from schema {since}; .*{known[0].number} to {known[-1].number}"):
            sql("postgresql://h/d", since=since)


def test_a_worker_needs_no_more_rights_than_are_printed(
    postgres_server: PostgresServer, link: Session, schema: str
) -> None:
    printed = sql(f"{postgres_server.url}?schema={schema}")
    grants = [line.removeprefix("--   ") for line in printed.splitlines() if line.startswith("--   grant ")]
    assert len(grants) >= 3
    with psycopg.connect(postgres_server.url, autocommit=True) as c:
        c.execute(printed)
        c.execute("create role plain_worker login")
        c.execute("\n".join(grants).replace("ROLE", "plain_worker"))
        store = PostgresStore(
            f"{postgres_server.url.replace('postgres@', 'plain_worker@')}?schema={schema}&migrate=off"
        )
        store.put([Draft(task="push", key="k", group="g"), Draft(task="push")], swaps=[Swap("cell", 0, b"1")])
        deliveries = store.exchange([], [ClaimRequest("default", 10, 1000)]).deliveries
        store.exchange([Settlement(d.receipt, Ack()) for d in deliveries], [])
        assert store.counts().ready == 0 and len(deliveries) == 2
        store.configure("default", group_width=2)
        store.wait([ClaimRequest("default", 10, 1000)], timeout_ms=10)
        assert store.doctor() == []
        store.close()
        c.execute("drop owned by plain_worker cascade; drop role plain_worker")


def test_old_and_new_stores_work_side_by_side_while_the_schema_grows(
    postgres_server: PostgresServer, open_link: Open, schema: str
) -> None:
    url = f"{postgres_server.url}?schema={schema}&synchronous_commit=off"
    stores = [PostgresStore(url) for _ in range(3)]
    known = migrations(statements())[-1].number
    grown = statements() | {
        f"migration_{known + 1}": f"-- compatible from {known}\n"
        "alter table {s}.message add column later bigint not null default 7;\n"
        "create index message_later on {s}.message(later);"
    }
    stop = threading.Event()
    put, acked = [0] * 3, [0] * 3
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            settlements: list[Settlement] = []
            while not stop.is_set() or settlements:
                if not stop.is_set():
                    put[n] += len(stores[n].put([Draft(task="push")] * 20))
                done = stores[n].exchange(settlements, [ClaimRequest("default", 50, 60_000)])
                acked[n] += sum(word is Settled.OK for word in done.settled)
                settlements = [Settlement(d.receipt, Ack()) for d in done.deliveries]
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for worker in workers:
        worker.start()
    time.sleep(0.3)
    try:
        assert open_schema(open_link(), grown) == Version(known + 1, known)
        stores.append(PostgresStore(url))  # an old program that starts beside the newer schema
        assert len(stores[-1].put([Draft(task="push", queue="other")])) == 1
        time.sleep(0.3)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert errors == []
    left = stores[0].counts("default")
    assert sum(put) == sum(acked) + left.ready + left.leased
    assert min(acked) > 0
    for store in stores:
        store.close()
