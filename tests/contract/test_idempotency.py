"""One effect per key on the stores with a server: what tests/unit/worker/test_idempotency.py shows, and
PostgreSQL's own transactions."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from tests.support.direct_calls import test_a_direct_call_runs_once_for_its_key  # noqa: F401
from tests.support.idempotency_rules import (  # noqa: F401
    test_a_completed_duplicate_is_done_with_the_stored_result_and_is_not_run,
    test_a_failed_run_frees_the_key_and_runs_again_at_once,
    test_a_live_conflict_defers_and_its_message_waits_unspent,
    test_a_message_takes_over_from_its_own_earlier_run_at_once,
    test_a_zombie_is_refused_and_the_new_owners_claim_survives,
    test_of_two_in_one_batch_one_runs_and_the_other_is_put_off_not_acked,
    test_the_same_key_with_other_arguments_is_dead_and_permanent,
    test_who_waits_takes_over_once_the_others_time_is_over,
)
from tests.support.idempotent_tasks import kept
from tests.support.servers import PostgresServer, RedisServer

from redrive import App, Context, Idempotency

SCHEMA = "idem"


@pytest.fixture(params=["postgres", "redis"])
def app(request: pytest.FixtureRequest) -> Iterator[App]:
    server: PostgresServer | RedisServer = request.getfixturevalue(f"{request.param}_server")
    own = "schema" if request.param == "postgres" else "namespace"
    made = App(f"{server.url}?{own}=idem_{secrets.token_hex(4)}")
    yield made
    made.store.close()


@pytest.fixture
def bank(postgres_server: PostgresServer) -> Iterator[App]:
    """An app on a schema that holds payments too."""
    made = App(f"{postgres_server.url}?schema={SCHEMA}")
    made.store.now_ms()
    with psycopg.connect(postgres_server.url) as c:
        c.execute(f"create table {SCHEMA}.payment (order_id integer)")
    yield made
    with psycopg.connect(postgres_server.url) as c:
        c.execute(f"drop schema {SCHEMA} cascade")
    made.store.close()


def payments(server: PostgresServer) -> int:
    with psycopg.connect(server.url) as c:
        row = c.execute(f"select count(*) from {SCHEMA}.payment").fetchone()
    return 0 if row is None else int(row[0])


@pytest.mark.parametrize("driver", ["psycopg", "sqlalchemy"])
def test_effect_and_completion_are_one_transaction(bank: App, postgres_server: PostgresServer, driver: str) -> None:
    ran: list[int] = []
    engine = create_engine(postgres_server.url.replace("postgresql://", "postgresql+psycopg://"))

    @bank.task(name="charge", ctx=True, idempotency=Idempotency(lambda order: f"order-{order}"), keep_result="1h")
    def charge(ctx: Context, order: int) -> str:
        ran.append(order)
        statement: Any = f"insert into {SCHEMA}.payment values ({order})"
        if driver == "psycopg":
            with psycopg.connect(postgres_server.url) as c:
                c.execute(statement)
                ctx.complete("paid", tx=c)
        else:
            with Session(engine) as session, session.begin():
                session.execute(text(statement))
                ctx.complete("paid", tx=session)
        if order == 8:
            raise ConnectionError("after the commit")
        return "paid"

    refs = [charge.enqueue(7), charge.enqueue(8)]
    bank.run_worker(burst=True)
    again = charge.enqueue(8)
    bank.run_worker(burst=True)
    assert [ref.wait("1s") for ref in (*refs, again)] == ["paid"] * 3
    assert sorted(ran) == [7, 8] and payments(postgres_server) == 2
    record = kept(bank, "charge", "order-7")
    assert record is not None and record.done and record.result == b'"paid"'
    engine.dispose()
