"""The way to a server fails: connections reset in the middle of a reply, silent or slow. All go on by themselves."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.crash.children import SERVER_ENGINES, until
from tests.support.crash.ledger import opened, url_of
from tests.support.crash.loads import Load, pause
from tests.support.proxy import FaultProxy

from redrive.errors import EnqueueError
from redrive.ids import new_id
from redrive.message import Ack, ClaimRequest, Draft, Settlement, Swap
from redrive.store import Store
from redrive.stores import open_store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.turns(2),
    pytest.mark.parametrize("place", SERVER_ENGINES, indirect=True),
]
RECOVERY_S = 10.0  # from the end of the fault until every worker settles something again; asserted in soaks


@pytest.fixture
def proxy(place: Path, request: pytest.FixtureRequest) -> Iterator[FaultProxy]:
    """Stands before the place's server."""
    kind = "redis" if url_of(place).startswith("redis") else "postgres"
    with FaultProxy(request.getfixturevalue(f"{kind}_server")) as proxy:
        yield proxy


def by_way_of(proxy: FaultProxy, place: Path) -> str:
    return f"{proxy.url}?{url_of(place).partition('?')[2]}"


@pytest.mark.fault("connection reset in the middle of a reply")
def test_connections_reset_in_the_middle_of_replies_lose_and_repeat_nothing(
    place: Path, proxy: FaultProxy, seed: int, soak: bool, record_property: pytest.RecordProperty
) -> None:
    rng = random.Random(seed)
    resets = 200 if soak else 12
    with Load(place, busy_s=0.12 * resets, url=by_way_of(proxy, place)) as load:
        for _ in range(resets):
            proxy.cut_after(rng.choice((0, 1, rng.randrange(100), rng.randrange(4000))))
            pause(rng, 0.02, 0.2)
        proxy.heal()
        load.goes_on(time.monotonic())
        load.finish()
    print(f"seed {seed}: {proxy.accepted} connections; refused: {load.refusals()}")
    assert proxy.accepted > 3 + resets // 4, "hardly any connection was cut"
    record_property("resets", resets)


@pytest.mark.fault("connection reset in the middle of a reply")
@pytest.mark.parametrize("given", [True, False])
def test_put_whose_reply_is_lost_is_repeated_and_stored_once(place: Path, proxy: FaultProxy, given: bool) -> None:
    with closing(open_store(by_way_of(proxy, place))) as store, closing(opened(place)) as direct:
        store.put([Draft(task="t")])
        proxy.cut_after(0)
        drafts = [Draft(task="t", id=new_id(1) if given else None, key=key) for key in (None, "k")]
        puts = store.put(drafts, swaps=[Swap("cell", 0, b"1")])
        assert [put.duplicate for put in puts] == [False, False]
        assert direct.counts().ready == 3 and None not in direct.find([put.id for put in puts])
        (cell,) = direct.cells.read(["cell"])
        assert cell is not None and cell.value == b"1"
        if given:
            with pytest.raises(EnqueueError, match="already stored"):
                store.put(drafts[:1])
    assert proxy.accepted > 1


@pytest.mark.parametrize("key", [None, "k"])
def test_put_whose_reply_is_lost_runs_again_if_it_was_done_before_the_repeat_and_a_key_excludes_that(
    place: Path, proxy: FaultProxy, key: str | None
) -> None:
    with closing(open_store(by_way_of(proxy, place))) as store, closing(opened(place)) as direct:
        store.put([Draft(task="t", queue="other")])
        commits = iter([lambda: proxy.cut_after(0, before=lambda: done_at_once(direct))])
        store.failpoint = lambda point: next(commits, lambda: None)() if point == "commit" else None  # type: ignore[attr-defined]
        store.put([Draft(task="t", key=key, key_for_ms=60_000 if key else 0)])
        assert direct.counts("default").ready == (0 if key else 1)


def done_at_once(store: Store) -> None:
    until("it is there", lambda: store.counts("default").ready == 1)
    [delivery] = store.exchange([], [ClaimRequest("default", 1, 30_000)]).deliveries
    store.exchange([Settlement(delivery.receipt, Ack())], [])


@pytest.mark.fault("network goes silent for a while (black hole)")
def test_silence_is_a_typed_error_and_everybody_goes_on_after_it(
    place: Path, proxy: FaultProxy, seed: int, soak: bool, record_property: pytest.RecordProperty
) -> None:
    url = by_way_of(proxy, place) + "&timeout=2s"
    with Load(place, busy_s=6, url=url, lease="30s" if soak else "12s") as load:
        proxy.black_hole()
        before = len(load.refusals())
        time.sleep(12.0 if soak else 4.0)
        until("somebody is told", lambda: len(load.refusals()) > before)
        proxy.heal()
        back_s = time.monotonic()
        took_s = load.goes_on(back_s, producer=True)
        load.finish()
    print(f"seed {seed}: went on after {took_s:.2f} s; refused: {load.refusals()}")
    assert set(load.refusals()) == {"StoreUnavailable"}
    assert not soak or took_s <= RECOVERY_S
    record_property("recovery_s", round(took_s, 2))


@pytest.mark.fault("slow network (30 KB/s, 20 ms more each way)")
def test_slow_connections_delay_and_repeat_nothing(place: Path, proxy: FaultProxy, seed: int, soak: bool) -> None:
    with Load(place, busy_s=20 if soak else 3, url=by_way_of(proxy, place), lease="30s") as load:
        proxy.slow(bytes_per_s=30_000, delay_s=0.02)
        load.goes_on(time.monotonic())
        load.finish()
    assert load.refusals() == []
