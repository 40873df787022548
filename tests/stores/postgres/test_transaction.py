"""Enqueueing in a transaction of the caller's own on PostgreSQL: with its data, or not at all."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.rows import dict_row
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from tests.support.pgbouncer import pgbouncer
from tests.support.servers import PostgresServer

from redrive.errors import EnqueueError, StoreUnavailable, Unsupported
from redrive.message import Ack, ClaimRequest, Draft, Settlement, Swap
from redrive.stores.postgres.store import PostgresStore

DRAFT = Draft(task="push")
SCHEMA = "tx"


@pytest.fixture
def store(postgres_server: PostgresServer) -> Iterator[PostgresStore]:
    store = PostgresStore(f"{postgres_server.url}?schema={SCHEMA}")
    store._link.run(lambda c: c.execute(f"create table {SCHEMA}.orders (n integer)"))
    yield store
    store._link.run(lambda c: c.execute(f"drop schema {SCHEMA} cascade"))
    store.close()


@pytest.fixture
def connection(postgres_server: PostgresServer, store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server.url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def engine(postgres_server: PostgresServer) -> Iterator[Engine]:
    engine = create_engine(postgres_server.url.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


def order(connection: psycopg.Connection[Any]) -> None:
    connection.execute(f"insert into {SCHEMA}.orders values (1)")


def stored(store: PostgresStore, table: str = "message") -> int:
    found: int = store._link.look(f"select count(*) from {SCHEMA}.{table}")[0][0]
    return found


def test_messages_are_there_with_the_data_once_it_commits(
    store: PostgresStore, connection: psycopg.Connection[Any]
) -> None:
    order(connection)
    put = store.put([DRAFT, DRAFT], tx=connection)
    assert (stored(store), stored(store, "orders")) == (0, 0)
    connection.commit()
    assert (stored(store), stored(store, "orders")) == (2, 1)
    assert store.find([put[0].id])[0] is not None


def test_they_go_with_the_data_when_it_rolls_back(store: PostgresStore, connection: psycopg.Connection[Any]) -> None:
    store.put([DRAFT], tx=connection)  # begins the transaction, as an insert of the caller's would
    order(connection)
    connection.rollback()
    assert (stored(store), stored(store, "orders")) == (0, 0)


def test_a_transaction_block_of_psycopgs_is_one(store: PostgresStore, connection: psycopg.Connection[Any]) -> None:
    connection.autocommit = True
    with connection.transaction():
        order(connection)
        with connection.transaction(force_rollback=True):
            store.put([DRAFT], tx=connection)
        store.put([DRAFT], tx=connection)
    assert (stored(store), stored(store, "orders")) == (1, 1)


def test_a_refused_put_leaves_the_callers_work_as_it_was(
    store: PostgresStore, connection: psycopg.Connection[Any]
) -> None:
    taken = store.put([DRAFT])[0].id
    order(connection)
    with pytest.raises(EnqueueError):
        store.put([DRAFT, Draft(task="push", id=taken)], tx=connection)
    connection.commit()
    assert (stored(store), stored(store, "orders")) == (1, 1)


def test_keys_groups_and_swaps_hold_there_too(store: PostgresStore, connection: psycopg.Connection[Any]) -> None:
    grouped = Draft(task="push", group="g")
    keyed = Draft(task="push", key="k")
    puts = store.put([grouped, grouped, keyed, keyed], swaps=[Swap("cell", 0, b"1")], tx=connection)
    assert [put.duplicate for put in puts] == [False, False, False, True]
    connection.commit()
    assert len(store.exchange([], [ClaimRequest("default", 10, 1000)]).deliveries) == 2
    assert store.put([keyed])[0].duplicate
    assert store.cells.read(["cell"])[0] is not None


def test_how_the_caller_reads_rows_does_not_matter(postgres_server: PostgresServer, store: PostgresStore) -> None:
    with psycopg.connect(postgres_server.url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as connection:
        store.put([Draft(task="push", key="k")], tx=connection)
        assert store.put([Draft(task="push", key="k")], tx=connection)[0].duplicate
        assert connection.execute(f"select count(*) from {SCHEMA}.message").fetchone() == {"count": 1}
        connection.rollback()


def test_a_pipeline_of_the_callers_goes_on(store: PostgresStore, connection: psycopg.Connection[Any]) -> None:
    with connection.pipeline():
        order(connection)
        store.put([DRAFT], tx=connection)
        order(connection)
    connection.commit()
    assert (stored(store), stored(store, "orders")) == (1, 2)


def test_the_callers_way_may_lead_through_a_pooler(postgres_server: PostgresServer, store: PostgresStore) -> None:
    with pgbouncer(postgres_server) as url, psycopg.connect(url, prepare_threshold=None) as connection:
        store.put([DRAFT], tx=connection)
        connection.commit()
    assert stored(store) == 1


@pytest.mark.parametrize("which", ["other database", "no connection"])
def test_what_is_not_this_database_is_refused(
    store: PostgresStore, postgres_server: PostgresServer, which: str
) -> None:
    tx: Any = object()
    if which == "other database":
        tx = psycopg.connect(postgres_server.url.removesuffix("postgres") + "template1")
    with pytest.raises(Unsupported):
        store.put([DRAFT], tx=tx)
    if which == "other database":
        tx.close()
    assert stored(store) == 0


def test_another_server_is_refused_though_all_its_names_are_the_same(
    store: PostgresStore, connection: psycopg.Connection[Any]
) -> None:
    with PostgresServer() as other:
        twin = PostgresStore(f"{other.url}?schema={SCHEMA}")
        with pytest.raises(Unsupported, match="another server"):
            twin.put([DRAFT], tx=connection)
        twin.close()


def test_a_connection_that_commits_by_itself_is_refused(postgres_server: PostgresServer, store: PostgresStore) -> None:
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        with pytest.raises(EnqueueError, match="begin"):
            store.put([DRAFT], tx=connection)
        connection.execute("begin")
        store.put([DRAFT], tx=connection)
        connection.execute("commit")
    assert stored(store) == 1


def test_a_transaction_that_has_failed_or_only_reads_is_refused(
    store: PostgresStore, connection: psycopg.Connection[Any]
) -> None:
    with pytest.raises(psycopg.Error):
        connection.execute("select 1/0")
    with pytest.raises(EnqueueError, match="roll it back"):
        store.put([DRAFT], tx=connection)
    connection.rollback()
    connection.read_only = True
    with pytest.raises(EnqueueError, match="only reads"):
        store.put([DRAFT], tx=connection)


SNAPSHOTS = {"repeatable read": IsolationLevel.REPEATABLE_READ, "serializable": IsolationLevel.SERIALIZABLE}


@pytest.mark.parametrize("level", SNAPSHOTS)
@pytest.mark.parametrize(
    ("draft", "has"), [(Draft(task="push", group="g"), "a group"), (Draft(task="push", key="k"), "a unique key")]
)
def test_a_key_or_a_group_is_refused_where_the_transaction_sees_what_was_before(
    store: PostgresStore, connection: psycopg.Connection[Any], level: str, draft: Draft, has: str
) -> None:
    """It would be told that the key is held, or be parked behind a message, long after that one is done."""
    store.put([draft])
    connection.isolation_level = SNAPSHOTS[level]
    order(connection)
    (delivery,) = store.exchange([], [ClaimRequest("default", 1, 60_000)]).deliveries
    store.exchange([Settlement(delivery.receipt, Ack())], [])
    with pytest.raises(EnqueueError, match=f"isolation level is '{level}', and a message of task 'push' has {has}"):
        store.put([DRAFT, draft], tx=connection)
    connection.commit()
    assert (stored(store), stored(store, "orders")) == (0, 1)


@pytest.mark.parametrize("level", SNAPSHOTS)
def test_other_messages_are_put_at_any_isolation_level(
    store: PostgresStore, connection: psycopg.Connection[Any], level: str
) -> None:
    connection.isolation_level = SNAPSHOTS[level]
    order(connection)
    store.put([DRAFT, Draft(task="push", batch="b")], swaps=[Swap("cell", 0, b"1")], tx=connection)
    connection.commit()
    assert (stored(store), stored(store, "orders"), stored(store, "cell")) == (2, 1, 1)


def test_a_connection_that_is_closed_or_lost_says_so(store: PostgresStore, postgres_server: PostgresServer) -> None:
    connection = psycopg.connect(postgres_server.url)
    store._link.look("select pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
    with pytest.raises(StoreUnavailable, match="tx="):
        store.put([DRAFT], tx=connection)
    connection.close()
    with pytest.raises(EnqueueError, match="closed"):
        store.put([DRAFT], tx=connection)


@pytest.mark.parametrize("kind", ["connection", "session"])
@pytest.mark.parametrize("first", ["data", "message"])
def test_sqlalchemy_commits_both_or_neither(store: PostgresStore, engine: Engine, kind: str, first: str) -> None:
    for commits in (False, True):
        with engine.connect() if kind == "connection" else Session(engine) as tx:
            if first == "message":
                store.put([DRAFT], tx=tx)
            tx.execute(text(f"insert into {SCHEMA}.orders values (1)"))
            if first == "data":
                store.put([DRAFT], tx=tx)
            tx.commit() if commits else tx.rollback()
        assert stored(store) == stored(store, "orders") == commits


def test_sqlalchemy_commits_where_there_is_nothing_but_messages(store: PostgresStore, engine: Engine) -> None:
    with engine.connect() as tx:
        store.put([DRAFT], tx=tx)
        tx.commit()
    with engine.begin() as tx:
        store.put([DRAFT], tx=tx)
    assert stored(store) == 2


def test_sqlalchemy_that_commits_by_itself_is_refused(store: PostgresStore, engine: Engine) -> None:
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as tx, pytest.raises(EnqueueError):
        store.put([DRAFT], tx=tx)


class _Foreign:
    """Stands for a connection of a driver that is not installed here."""


def test_another_driver_is_told_what_works(store: PostgresStore) -> None:
    for module in ("psycopg2.extensions", "asyncpg.connection"):
        kind = type("connection", (_Foreign,), {"__module__": module})
        with pytest.raises(Unsupported, match=rf"{module}.*psycopg 3.*SQLAlchemy"):
            store.put([DRAFT], tx=kind())


def test_the_callers_commit_wakes_who_waits_and_not_before(
    store: PostgresStore, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stores.postgres.listen.LOOK_EVERY_S", 3600.0)
    woken = threading.Event()

    def wait() -> None:
        store.wait([ClaimRequest("default", 1, 1000)], timeout_ms=60_000)
        woken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    store.put([DRAFT], tx=connection)
    assert not woken.wait(0.3)
    connection.commit()
    assert woken.wait(20)
    waiting.join()


_DJANGO = """
import sys
from django.conf import settings

url = sys.argv[1]
host, port = url.rpartition("@")[2].partition("/")[0].split(":")
database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres"}
database |= {"HOST": host, "PORT": port}
settings.configure(DATABASES={"default": database}, USE_TZ=True)
from django.db import connection, transaction
from redrive.errors import EnqueueError
from redrive.message import Draft
from redrive.stores.postgres.store import PostgresStore

store = PostgresStore(f"{url}?schema=tx")
try:
    store.put([Draft(task="push")], tx=connection)
except EnqueueError as error:
    assert "transaction.atomic" in str(error)
else:
    raise AssertionError("it would have been committed by itself")
with transaction.atomic():
    store.put([Draft(task="push")], tx=connection)
    transaction.set_rollback(True)
with transaction.atomic():
    connection.cursor().execute("insert into tx.orders values (1)")
    store.put([Draft(task="push")], tx=connection)
connection.close()
store.close()
"""


def test_djangos_connection_is_one_within_atomic(store: PostgresStore, postgres_server: PostgresServer) -> None:
    subprocess.run([sys.executable, "-c", _DJANGO, postgres_server.url], check=True)
    assert (stored(store), stored(store, "orders")) == (1, 1)
