"""Through a pooler in transaction mode: no statement of ours may need a session of its own."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.pgbouncer import pgbouncer
from tests.support.servers import PostgresServer

from redrive.errors import StoreUnavailable
from redrive.message import Ack, ClaimRequest, Draft, RetryAt, Settled, Settlement
from redrive.store import Store
from redrive.stores.postgres.listen import Listener
from redrive.stores.postgres.session import Session
from redrive.stores.postgres.store import PostgresStore
from redrive.stores.postgres.url import parse
from redrive.testing import ManualClock, StoreContract


@pytest.fixture(scope="module")
def pooler(postgres_server: PostgresServer) -> Iterator[str]:
    with pgbouncer(postgres_server, pool_size=4) as url:
        yield url


@pytest.fixture
def link(pooler: str) -> Iterator[Session]:
    link = Session(parse(f"{pooler}?synchronous_commit=off&timeout=5s"))
    yield link
    link.close()


def test_a_pooler_is_found_out(link: Session, postgres_server: PostgresServer) -> None:
    link.open()
    assert link.pooled
    direct = Session(parse(postgres_server.url))
    direct.open()
    assert not direct.pooled
    direct.close()


def test_many_threads_repeat_the_same_statements_over_few_sessions(link: Session) -> None:
    link.run(lambda c: c.execute("create table pooled (n int)"))
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for i in range(20):
                row = (n * 20 + i,)
                link.pipeline(lambda c, _, row=row: c.execute("insert into pooled values (%s)", row), wake=["q"])
                assert link.look("select count(*) from pooled where n = %s", row) == [(1,)]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert link.look("select count(*) from pooled") == [(160,)]
    link.run(lambda c: c.execute("drop table pooled"))


def test_settings_hold_inside_a_transaction_and_stay_in_nobodys_session(link: Session, pooler: str) -> None:
    asked = "select current_setting('synchronous_commit'), current_setting('jit'), current_setting('statement_timeout')"

    def settings(c: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
        return c.execute(asked).fetchall()

    assert link.run(settings) == [("off", "off", "5s")]
    with psycopg.connect(pooler, autocommit=True, prepare_threshold=None) as other:
        assert {tuple(settings(other)[0]) for _ in range(10)} == {("on", "on", "0")}


@pytest.mark.parametrize("way", ["run", "pipeline"])
def test_a_statement_that_takes_too_long_is_ended_behind_the_pooler_too(
    pooler: str, postgres_server: PostgresServer, way: str
) -> None:
    hasty = Session(parse(f"{pooler}?timeout=0.3s"))
    hasty.open()

    def work(c: psycopg.Connection[Any], *_: Any) -> None:
        c.execute("set local statement_timeout = 0")
        c.execute("select pg_sleep(61)").fetchall()

    with pytest.raises(StoreUnavailable):
        getattr(hasty, way)(work)
    hasty.close()
    with psycopg.connect(postgres_server.url, autocommit=True) as c:
        end_s = time.monotonic() + 10
        running = "select count(*) from pg_stat_activity where query like '%sleep(61)' and state = 'active'"
        while c.execute(running).fetchone() != (0,):
            assert time.monotonic() < end_s


def test_nobody_listens_through_a_pooler_unless_told_where(pooler: str, postgres_server: PostgresServer) -> None:
    for options, listens in (("", False), (f"listen={postgres_server.url}", True)):
        link = Session(parse(f"{pooler}?{options}"))
        link.open()
        listener = Listener(link)
        listener.wait({"q"}, lambda: None, 200)
        assert listener.listening is listens
        listener.close()
        link.close()


def test_stores_of_many_threads_put_claim_and_settle_through_it(pooler: str, link: Session) -> None:
    stores = [PostgresStore(f"{pooler}?schema=pooled") for _ in range(3)]
    acked: list[int] = []
    errors: list[BaseException] = []

    def work(store: PostgresStore) -> None:
        try:
            for _ in range(10):
                store.put([Draft(task="push"), Draft(task="push", group="g"), Draft(task="push", delay_ms=60_000)])
                deliveries = store.exchange([], [ClaimRequest("default", 5, 60_000)]).deliveries
                settlements = [Settlement(d.receipt, RetryAt(0, why="again")) for d in deliveries[:1]]
                settlements += [Settlement(d.receipt, Ack()) for d in deliveries[1:]]
                words = store.exchange(settlements, []).settled
                assert words == [Settled.OK] * len(settlements)
                acked.append(len(deliveries[1:]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(store,)) for store in stores * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    counts = stores[0].counts()
    assert counts.ready + counts.scheduled + counts.parked + sum(acked) == 6 * 10 * 3
    assert sum(acked) > 0
    for store in stores:
        store.close()
    link.run(lambda c: c.execute("drop schema pooled cascade"))


@pytest.mark.soak
class TestThroughAPooler(StoreContract):
    """Every rule of the contract, on sessions that others use in between."""

    @pytest.fixture(autouse=True)
    def _schema(self, pooler: str, postgres_server: PostgresServer, tmp_path: Path) -> Iterator[None]:
        name = f"p_{hashlib.blake2b(str(tmp_path).encode(), digest_size=8).hexdigest()}"
        self.url = f"{pooler}?schema={name}&synchronous_commit=off"
        yield
        with psycopg.connect(postgres_server.url, autocommit=True) as c:
            c.execute(f"drop schema if exists {name} cascade")

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return PostgresStore(self.url, clock_ms=clock)
