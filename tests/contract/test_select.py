"""Selections on the stores with a server: what tests/unit/triage/test_select.py shows of every selector, of some."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.selecting import World, fill
from tests.support.selections import check_selection
from tests.support.servers import PostgresServer, RedisServer
from tests.support.waiting import FOUND
from tests.support.waiting import fill as fill_waiting

from redrive.stores import open_store
from redrive.triage.selection import Selection


@pytest.fixture(params=["postgres", "redis"], scope="module")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    server: PostgresServer | RedisServer = request.getfixturevalue(f"{request.param}_server")
    own = "schema" if request.param == "postgres" else "namespace"
    store = open_store(f"{server.url}?{own}=select_{secrets.token_hex(4)}")
    yield fill(store, lambda ms: None, count=40)
    store.close()


@settings(deadline=None, max_examples=30, derandomize=True, database=None)
@given(st.data())
def test_a_selection_is_the_same_set_however_it_is_had(world: World, draw: st.DataObject) -> None:
    check_selection(world, draw)


@pytest.mark.parametrize("engine", ["postgres", "redis"])
def test_messages_that_wait_or_run_are_found_by_the_name_of_their_lane(
    request: pytest.FixtureRequest, engine: str
) -> None:
    server: PostgresServer | RedisServer = request.getfixturevalue(f"{engine}_server")
    own = "schema" if engine == "postgres" else "namespace"
    store = open_store(f"{server.url}?{own}=select_{secrets.token_hex(4)}")
    ids = fill_waiting(store)
    now_ms = store.now_ms()
    for selector, found in FOUND:
        selection = Selection(store, selector, now_ms)
        assert {name for name, id in ids.items() if id in set(selection.ids())} == found, selector
        assert selection.count() == len(found)
        if found:
            assert selection.counted().count == len(found)
    store.close()
