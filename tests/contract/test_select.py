"""Selections on the stores with a server: what tests/unit/triage/test_select.py shows of every selector, of some."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.selecting import World, fill
from tests.support.selections import check_selection
from tests.support.servers import PostgresServer, RedisServer
from tests.support.urls import url_of
from tests.support.waiting import FOUND
from tests.support.waiting import fill as fill_waiting

from redrive.message import ClaimRequest, Draft, Filter, Lane, Message
from redrive.store import Store, pages
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


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "redis"])
def test_what_is_read_by_due_time_and_line_is_what_reading_all_finds(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str
) -> None:
    store = open_store(url_of(engine, request, tmp_path))
    store.configure("strict", group_order="strict", group_width=1)
    store.configure("wide", group_width=2)
    draw = Random(7)
    store.put(
        [
            Draft(
                task=f"t{n % 3}",
                queue=draw.choice(["plain", "strict", "wide"]),
                group=draw.choice([None, "a", "b"]),
                priority=draw.randrange(4),
                delay_ms=draw.choice([0, 0, 60_000, 3_600_000]),
            )
            for n in range(120)
        ]
    )
    for queue in ("plain", "strict", "wide"):
        store.exchange([], [ClaimRequest(queue, 4, 600_000, worker="w")])
    now_ms = store.now_ms()
    every = [m for lane in (Lane.READY, Lane.LEASED) for m in all_of(store, lane)]
    assert len(every) == 120
    lanes = ["lane:ready", "lane:scheduled", "lane:parked", "lane:(ready,parked)", "lane:(ready,scheduled,parked)"]
    times = ["", "due:<10m", "due:>10m", "due:>=0s due:<10m", "due:<0s", "due:<2026-01-31T00:00:00Z"]
    met = 0
    for lane, due, more in product(lanes, times, ["", "group:a", "queue:strict", "task:t1 group:b queue:wide"]):
        selection = Selection(store, f"{lane} {due} {more}", now_ms)
        expected = {message.id for message in every if selection.matches(message)}
        found = [message.id for message in selection.messages()]
        assert len(found) == len(set(found)) and set(found) == expected, str(selection)
        assert selection.counted().count == len(expected)
        met += len(expected)
    assert met > 500
    store.close()


def all_of(store: Store, lane: Lane) -> list[Message]:
    return [message for page in pages(store, lane, Filter()) for message in page]
