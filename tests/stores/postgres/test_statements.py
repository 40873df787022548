"""Statements are sent as they are in statements.sql, with fragments in place of the words in braces."""

from __future__ import annotations

import psycopg
import pytest
from tests.support.servers import PostgresServer

from redrive.stores.postgres.schema import statements
from redrive.stores.postgres.statements import Numbered, prepared
from redrive.stores.postgres.store import PostgresStore

CLAIMS = ("claim", "claim_skipping", "claim_sharing", "next_due", "next_due_skipping")


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return prepared("some_schema")


def test_a_statement_is_sent_with_its_name_first(texts: dict[str, str]) -> None:
    assert all(sql.startswith(f"-- name: {name}\n") for name, sql in texts.items())
    assert {*texts} == {name for names in statements() for name in names.split(", ")}


def test_a_fragment_names_the_parameters_from_its_number_on() -> None:
    sql = "select {pair[7]} and {pair[2]}"
    assert sql.format(pair=Numbered(lambda n: f"(${n}, ${n + 1})")) == "select ($7, $8) and ($2, $3)"


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_reads_priorities_whole_or_parts_of_the_due_index(name: str, texts: dict[str, str]) -> None:
    whole, above = texts[name], texts[f"{name}_above"]
    assert "low_ms" not in whole and "(values (0::smallint)" in whole
    assert "(due_ms, lane, seq) >= (p.low_ms, p.low_lane, p.low_seq)" in above and "and wake_ms >= $" in above
    assert whole.count("$") < above.count("$")


@pytest.mark.slow
def test_the_server_takes_every_statement_as_it_is_spelled(postgres_server: PostgresServer) -> None:
    schema = "spelled"
    PostgresStore(f"{postgres_server.url}?schema={schema}").close()
    built_when_asked = {"failure_groups"}  # with its source
    with psycopg.connect(postgres_server.url, autocommit=True) as c:
        for name, sql in prepared(schema).items():
            if not name.startswith("migration_") and name not in built_when_asked:
                assert c.pgconn.prepare(name.encode(), sql.encode()).status == psycopg.pq.ExecStatus.COMMAND_OK, name
        c.execute(f"drop schema {schema} cascade".encode())
