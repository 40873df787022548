"""PostgreSQL against the contract, and what is its own: many processes at once on one schema."""

from __future__ import annotations

import threading
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest
from tests.support.schemas import schema  # noqa: F401

from redrive.ids import new_id
from redrive.message import SKIP_LOOKED, Ack, ClaimRequest, Draft, RetryAt, Settled, Settlement, Swap
from redrive.store import Store
from redrive.stores.postgres.groups import STEP
from redrive.stores.postgres.store import PostgresStore
from redrive.testing import ManualClock, StoreContract


class TestPostgres(StoreContract):
    @pytest.fixture(autouse=True)
    def _schema(self, schema: str) -> None:
        self.url = schema

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return PostgresStore(self.url, clock_ms=clock)


def test_rows_of_groups_in_which_nobody_is_are_swept_away(schema: str) -> None:
    clock = ManualClock()
    store = PostgresStore(schema, clock_ms=clock)
    store.put([Draft(task="t", group=group) for group in ("gone", "gone", "held", "waits")])
    store.configure_group("default", "wide", width=3)
    ask = ClaimRequest("default", 9, 600_000)
    while acks := [d for d in store.exchange([], [ask]).deliveries if d.message.group == "gone"]:
        store.exchange([Settlement(delivery.receipt, Ack()) for delivery in acks], [])
    for _ in range(2):
        clock.advance("61s")
        store.exchange([], [ask])
    left = store._link.look(f"select name from {store._link.schema}.line order by name")
    assert left == [("held",), ("waits",), ("wide",)]
    store.close()


def groups_of(store: PostgresStore) -> int:
    found: int = store._link.look(f"select count(*) from {store._link.schema}.line")[0][0]
    return found


def empty_groups(store: PostgresStore, first: int, last: int) -> None:
    line = f"{store._link.schema}.line(queue, name)"
    made = f"insert into {line} select 'default', 'g' || n from generate_series(%s::int, %s) n"
    store._link.run(lambda c: c.execute(made, (first, last)))


def test_however_many_groups_are_empty_their_rows_go_within_a_minute(schema: str) -> None:
    """A sweep that found many goes on at the next exchange."""
    clock = ManualClock()
    with closing(PostgresStore(schema, clock_ms=clock)) as store:
        empty_groups(store, 10_001, 22_000)
        clock.advance("61s")
        for left in (7000, 2000, 0):
            store.exchange([], [])
            assert groups_of(store) == left


def test_a_group_that_was_busy_at_the_sweep_is_looked_at_again_though_later_names_come(schema: str) -> None:
    clock = ManualClock()
    with closing(PostgresStore(schema, clock_ms=clock)) as store:
        store.put([Draft(task="t", group="early")])
        clock.advance("61s")
        (delivery,) = store.exchange([], [ClaimRequest("default", 1, 60_000)]).deliveries
        store.exchange([Settlement(delivery.receipt, Ack())], [])
        assert groups_of(store) == 1
        empty_groups(store, 1, 1)
        clock.advance("61s")
        store.exchange([], [])
        assert groups_of(store) == 0


def keys_of(store: PostgresStore) -> int:
    found: int = store._link.look(f"select count(*) from {store._link.schema}.unique_key")[0][0]
    return found


def expired_keys(store: PostgresStore, count: int, id: str) -> None:
    """Make rows of keys whose time is over, ten of each millisecond, of the message with that id, if there is one."""
    made = (
        f"insert into {store._link.schema}.unique_key(task, key, id, until_ms) "
        "select 't', %s || n, %s, %s + n / 10 from generate_series(0, %s - 1) n"
    )
    store._link.run(lambda c: c.execute(made, (id, id, store.now_ms() - 60_000, count)))


def test_however_many_keys_are_over_their_rows_go_within_a_minute(schema: str) -> None:
    """A sweep that found many goes on at the next exchange."""
    clock = ManualClock()
    with closing(PostgresStore(schema, clock_ms=clock)) as store:
        expired_keys(store, 12_000, new_id(0))
        store.put([Draft(task="t", key="later", key_for_ms=3_600_000), Draft(task="t", key="life")])
        clock.advance("61s")
        for left in (7002, 2002, 2, 2):
            store.exchange([], [])
            assert keys_of(store) == left
        clock.advance("2h")
        store.exchange([], [])
        assert keys_of(store) == 2  # messages have them


def test_keys_that_messages_have_keep_no_other_from_the_sweep(schema: str) -> None:
    """It looks at some of them a minute, and begins again after the last."""
    clock = ManualClock()
    with closing(PostgresStore(schema, clock_ms=clock)) as store:
        (put,) = store.put([Draft(task="t")])
        expired_keys(store, 7000, put.id)
        clock.advance("10s")
        expired_keys(store, 10, new_id(0))
        for left in (7010, 7000):
            clock.advance("61s")
            store.exchange([], [])
            assert keys_of(store) == left
        (delivery,) = store.exchange([], [ClaimRequest("default", 1, 60_000)]).deliveries
        store.exchange([Settlement(delivery.receipt, Ack())], [])
        clock.advance("61s")
        for left in (2000, 0):
            store.exchange([], [])
            assert keys_of(store) == left


def test_expired_and_deleted_cells_leave_no_row(schema: str) -> None:
    clock = ManualClock()
    store = PostgresStore(schema, clock_ms=clock)
    count = f"select count(*) from {store._link.schema}.cell"
    for first in range(0, 2500, 500):
        keys = [f"k{n}" for n in range(first, first + 500)]
        assert all(store.cells.swap([Swap(key, 0, b"x", ttl_ms=30_000) for key in keys], durable=False))
    assert store.cells.swap([Swap("stays", 0, b"x"), Swap("long", 0, b"x", ttl_ms=3_600_000)]) == [True, True]
    assert store.cells.swap([Swap("goes", 0, b"x"), Swap("goes", 0, None)]) == [True, False]
    (cell,) = store.cells.read(["goes"])
    assert cell is not None and store.cells.swap([Swap("goes", cell.version, None)]) == [True]
    assert store._link.look(count) == [(2502,)]
    clock.advance("2m")
    for left in (1502, 502, 2, 2):
        store.exchange([], [])
        assert store._link.look(count) == [(left,)]
    clock.advance("2h")
    store.exchange([], [])
    assert store._link.look(count) == [(1,)]
    store.close()


def test_a_cell_that_appears_while_a_settlement_makes_it_makes_that_one_stale(schema: str) -> None:
    """It was not there to be locked."""
    store, other = PostgresStore(schema), PostgresStore(schema)
    store.put([Draft(task="t"), Draft(task="t")])
    first, second = store.exchange([], [ClaimRequest("default", 2, 60_000)]).deliveries
    sent: list[str] = []
    do = store._st.do

    def watched(c: psycopg.Connection, name: str, *args: object) -> object:
        if name == "make_cells" and name not in sent:
            assert other.cells.swap([Swap("a", 0, b"theirs")]) == [True]
        sent.append(name)
        return do(c, name, *args)

    store._st.do = watched  # type: ignore[assignment, method-assign]
    swaps = [(Swap("a", 0, b"ours"), Swap("c", 0, b"ours")), (Swap("b", 0, b"ours"),)]
    settlements = [Settlement(d.receipt, Ack(), swaps=one) for d, one in zip((first, second), swaps, strict=True)]
    assert store.exchange(settlements, []).settled == [Settled.STALE, Settled.OK]
    assert sent.count("lock_cells") == 2
    assert [cell and cell.value for cell in other.cells.read(["a", "b", "c"])] == [b"theirs", b"ours", None]
    assert store.counts().leased == 1
    for one in (store, other):
        one.close()


# -- changes of how groups are served


def in_groups(store: PostgresStore, groups: int, each: int) -> None:
    store.put([Draft(task="t", group=f"g{n:04}") for _ in range(each) for n in range(groups)])


def admitted(store: PostgresStore) -> int:
    return store.counts("default").ready + store.counts("default").leased


def test_a_change_of_width_keeps_nobody_from_groups_that_are_not_its_turn(schema: str) -> None:
    """It admits to some groups at a time, each time in a commit of its own."""
    store, other = PostgresStore(schema), PostgresStore(schema)
    in_groups(store, STEP + 20, 3)
    held = iter(other.exchange([], [ClaimRequest("default", 20, 600_000)]).deliveries)
    seen: list[int] = []

    def between(point: str) -> None:
        if point == "admitting":  # in the same thread: it would wait for itself for ever
            seen.append(admitted(other))
            other.exchange([Settlement(next(held).receipt, Ack())], [ClaimRequest("default", 1, 600_000)])

    store.failpoint = between
    store.configure("default", group_width=2)
    assert seen[0] == STEP + 20 and seen[-1] > 2 * STEP and len(seen) >= 4
    assert all(later - earlier <= STEP + 2 for earlier, later in pairwise(seen))
    assert store.check() == [] and admitted(store) == 2 * (STEP + 20)
    for one in (store, other):
        one.close()


def test_one_group_is_admitted_to_in_steps_as_well(schema: str) -> None:
    store = PostgresStore(schema)
    in_groups(store, 1, 2 * STEP + 10)
    in_groups(store, 3, 2)
    seen: list[int] = []
    store.failpoint = lambda point: seen.append(admitted(store)) if point == "admitting" else None
    store.configure("default", group_width=5000)
    assert max(later - earlier for earlier, later in pairwise(seen)) <= STEP
    assert store.check() == [] and admitted(store) == 2 * STEP + 10 + 6
    store.close()


@pytest.mark.parametrize("by", ["a sweep", "the next start", "another width"])
def test_what_a_change_of_width_left_that_was_cut_off_is_done_by_others(schema: str, by: str) -> None:
    clock = ManualClock()
    store, other = PostgresStore(schema, clock_ms=clock), PostgresStore(schema, clock_ms=clock)
    in_groups(store, STEP + 20, 3)
    points: list[str] = []

    def cut_off(point: str) -> None:
        points.append(point)
        if points.count("admitting") == 2:
            raise RuntimeError("cut off")

    store.failpoint = cut_off
    with pytest.raises(RuntimeError, match="cut off"):
        store.configure("default", group_width=2)
    assert len(other.check()) == 20 + STEP - STEP // 2
    if by == "a sweep":
        clock.advance("61s")
        for _ in range(6):
            other.exchange([], [])
    else:
        other.configure("default", group_width=2 if by == "the next start" else 3)
    assert other.check() == [] and admitted(other) == (3 if by == "another width" else 2) * (STEP + 20)
    assert other._look("queues_admitting") == []
    for one in (store, other):
        one.close()


def test_a_width_of_one_group_admits_to_that_group_alone(schema: str) -> None:
    store = PostgresStore(schema)
    in_groups(store, 3, 3)
    points: list[str] = []
    store.failpoint = points.append
    store.configure_group("default", "g0001", width=3)
    assert "admitting" not in points and store.check() == [] and admitted(store) == 5
    store.configure_group("default", None, width=2)
    assert "admitting" in points and store.check() == [] and admitted(store) == 7
    store.close()


# -- claims that take retries first


def retrying(store: PostgresStore, clock: ManualClock, *drafts: Draft) -> list[str]:
    """Messages that failed once and are due again, in the order in which they come due."""
    store.put(drafts)
    deliveries = store.exchange([], [ClaimRequest(drafts[0].queue, len(drafts), 600_000)]).deliveries
    later = [Settlement(d.receipt, RetryAt(clock() + 1 + at)) for at, d in enumerate(deliveries)]
    store.exchange(later, [])
    clock.advance((len(drafts) + 1) / 1000)
    return [d.message.id for d in deliveries]


def claimed(store: PostgresStore, limit: int, retries: int, skip: frozenset[str] = frozenset()) -> list[str]:
    ask = ClaimRequest("default", limit, 600_000, skip, retries=retries)
    return [d.message.id for d in store.exchange([], [ask]).deliveries]


def test_the_share_of_retries_is_of_the_whole_claim_and_each_priority_goes_on_with_what_is_left_of_it(
    schema: str,
) -> None:
    clock = ManualClock()
    store = PostgresStore(schema, clock_ms=clock)
    before_ms = clock() - 60_000
    retried = retrying(store, clock, *[Draft(task="t", priority=p) for p in (1, 1, 1, 3, 3, 3)])
    backlog = {
        p: [put.id for put in store.put([Draft(task="t", priority=p, due_ms=before_ms) for _ in range(4)])]
        for p in (1, 3)
    }
    first = claimed(store, 12, 4)
    assert first == [*retried[:3], *backlog[1], retried[3], *backlog[3]]
    assert claimed(store, 12, 4) == retried[4:]
    store.close()


def test_a_lease_that_ran_out_is_no_retry(schema: str) -> None:
    clock = ManualClock()
    store = PostgresStore(schema, clock_ms=clock)
    store.put([Draft(task="t")])
    (lapsed,) = [d.message.id for d in store.exchange([], [ClaimRequest("default", 1, 1000)]).deliveries]
    clock.advance("2s")
    (backlog,) = [put.id for put in store.put([Draft(task="t", due_ms=clock() - 60_000)])]
    assert claimed(store, 1, 1) == [backlog]
    assert claimed(store, 1, 1) == [lapsed]
    store.close()


def test_retries_are_found_behind_more_than_a_claim_that_skips_looks_at(schema: str) -> None:
    """Of retries it looks at as many as of all: so an outage of one dependency keeps nobody's retries back."""
    clock = ManualClock()
    store = PostgresStore(schema, clock_ms=clock)
    wanted = retrying(store, clock, *[Draft(task="t") for _ in range(3)])
    store.put([Draft(task="held", due_ms=clock() - 60_000) for _ in range(SKIP_LOOKED + 5)])
    ask = ClaimRequest("default", 3, 600_000, frozenset({"held"}), retries=2)
    found = store.exchange([], [ask])
    assert [d.message.id for d in found.deliveries] == wanted[:2] and found.clogged == {"default"}
    assert store.exchange([], [ask]).clogged == {"default"} and store.counts().leased == 3
    store.close()


def test_no_more_retries_are_looked_at_than_a_claim_that_skips_looks_at(schema: str) -> None:
    clock = ManualClock()
    store = PostgresStore(schema, clock_ms=clock)
    *held, beyond = retrying(store, clock, *[Draft(task="held") for _ in range(SKIP_LOOKED)], Draft(task="t"))
    found = store.exchange([], [ClaimRequest("default", 3, 600_000, frozenset({"held"}), retries=3)])
    assert (found.deliveries, found.clogged) == ([], {"default"})
    assert claimed(store, 1, 1) == held[:1]
    assert claimed(store, 3, 3, frozenset({"held"})) == [beyond]
    store.close()


def test_a_paused_queue_gives_no_retries_and_is_not_clogged(schema: str) -> None:
    clock = ManualClock()
    store = PostgresStore(schema, clock_ms=clock)
    wanted = retrying(store, clock, Draft(task="t"))
    store.put([Draft(task="held", due_ms=clock() - 60_000) for _ in range(SKIP_LOOKED + 5)])
    store.configure("default", paused=True)
    ask = ClaimRequest("default", 3, 600_000, frozenset({"held"}), retries=2)
    found = store.exchange([], [ask])
    assert (found.deliveries, found.clogged) == ([], frozenset())
    store.configure("default", paused=False)
    assert [d.message.id for d in store.exchange([], [ask]).deliveries] == wanted
    store.close()


def test_a_retry_of_a_group_goes_first_once_it_has_a_place(schema: str) -> None:
    clock = ManualClock()
    store = PostgresStore(schema, clock_ms=clock)
    (waits,) = retrying(store, clock, Draft(task="t", group="g"))
    backlog = [put.id for put in store.put([Draft(task="t", due_ms=clock() - 60_000) for _ in range(3)])]
    assert claimed(store, 2, 1) == [waits, backlog[0]]
    assert store.check() == []
    store.close()


def test_claims_that_share_give_each_message_once(schema: str) -> None:
    stores = [PostgresStore(schema) for _ in range(4)]
    stores[0].put([Draft(task="t") for _ in range(400)])
    half = stores[0].exchange([], [ClaimRequest("default", 200, 600_000)]).deliveries
    stores[0].exchange([Settlement(d.receipt, RetryAt(0)) for d in half], [])
    found: list[str] = []

    def drain(store: PostgresStore) -> None:
        while ids := claimed(store, 7, 2):
            found.extend(ids)

    threads = [threading.Thread(target=drain, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(set(found)) == 400
    for store in stores:
        store.close()
