"""Through a pooler in transaction mode: no statement of ours may need a session of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from redrive.stores._postgres_link import Link
from redrive.stores._postgres_listen import Listener
from redrive.stores._postgres_url import parse
from redrive.testing.servers import PostgresServer

from .pgbouncer import pgbouncer


@pytest.fixture(scope="module")
def pooler(postgres_server: PostgresServer) -> Iterator[str]:
    with pgbouncer(postgres_server, pool_size=2) as url:
        yield url


@pytest.fixture
def link(pooler: str) -> Iterator[Link]:
    link = Link(parse(f"{pooler}?synchronous_commit=off&timeout=5s"))
    yield link
    link.close()


def test_a_pooler_is_found_out(link: Link, postgres_server: PostgresServer) -> None:
    link.open()
    assert link.pooled
    direct = Link(parse(postgres_server.url))
    direct.open()
    assert not direct.pooled
    direct.close()


def test_many_threads_repeat_the_same_statements_over_few_sessions(link: Link) -> None:
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


def test_settings_hold_inside_a_transaction_and_stay_in_nobodys_session(link: Link, pooler: str) -> None:
    asked = "select current_setting('synchronous_commit'), current_setting('jit'), current_setting('statement_timeout')"

    def settings(c: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
        return c.execute(asked).fetchall()

    assert link.run(settings) == [("off", "off", "5s")]
    with psycopg.connect(pooler, autocommit=True, prepare_threshold=None) as other:
        assert {tuple(settings(other)[0]) for _ in range(10)} == {("on", "on", "0")}


def test_nobody_listens_through_a_pooler_unless_told_where(pooler: str, postgres_server: PostgresServer) -> None:
    for options, listens in (("", False), (f"listen={postgres_server.url}", True)):
        link = Link(parse(f"{pooler}?{options}"))
        link.open()
        listener = Listener(link)
        listener.wait({"q"}, lambda: None, 200)
        assert listener.listening is listens
        listener.close()
        link.close()
