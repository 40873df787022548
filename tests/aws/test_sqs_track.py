"""SQS with `track=true`: whoever is killed between its steps blocks no key for long and loses nothing; and the cost."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.support.aws.places import REGION, Stand

from redrive.errors import ConfigError, StoreError, StoreUnavailable
from redrive.message import (
    ABSENT,
    Ack,
    Cancel,
    Cell,
    ClaimRequest,
    DeadLetter,
    Delivery,
    Draft,
    Lane,
    PutResult,
    Redrive,
    RetryAt,
    Settled,
    Settlement,
    Swap,
)
from redrive.present.messages import message_record
from redrive.stores.cells import CellsOfStore
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqs import keys as sqs_keys
from redrive.stores.sqs.store import SqsStore

LEASE_MS = 30_000
COUNT = 20


class Killed(BaseException):
    """No step further."""


class Counting(CellsOfStore):
    """Cells that outlive the handles on them and count what is asked of them."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.calls = Counter[str]()

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        self.calls["read"] += 1
        return super().read(keys)

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        self.calls["swap"] += 1
        return super().swap(swaps, durable=durable)

    def close(self) -> None:
        pass


class Resting(MemoryStore):
    def close(self) -> None:
        pass


class Shop:
    """A queue of its own, and handles on it that share cells and a triage store."""

    def __init__(self, stand: Stand, name: str) -> None:
        self.stand, self.name = stand, name
        self.cells, self.triage = Counting(MemoryStore(stand.clock)), Resting(stand.clock)
        self.opened: list[SqsStore] = []

    def open(self, *, track: bool = True) -> SqsStore:
        url = f"sqs://{REGION}/{self.name}?poll=0&create=true&endpoint={self.stand.url}&track={str(track).lower()}"
        self.opened.append(SqsStore(url, clock_ms=self.stand.clock, cells=self.cells, triage=self.triage))
        return self.opened[-1]


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with Stand() as stand:
        yield stand


@pytest.fixture
def shop(stand: Stand, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(sqs_keys, "PATIENCE_S", 0.0)
    shop = Shop(stand, f"t{abs(hash(request.node.name)):x}"[:20])
    yield shop
    for store in shop.opened:
        store.close()
    stand.server.faults.clear()


def dying(store: SqsStore, at: str) -> SqsStore:
    """It is killed there."""

    def failpoint(point: str) -> None:
        if point == at:
            raise Killed(point)

    store.failpoint = failpoint
    return store


def keyed(**parts: Any) -> Draft:
    return Draft(task="pay", key="order-1", **parts)


def claim(store: SqsStore) -> list[Delivery]:
    return store.exchange([], [ClaimRequest("default", 100, LEASE_MS)]).deliveries


def settle(store: SqsStore, delivery: Delivery, decision: Ack | RetryAt | DeadLetter) -> Settled:
    return store.exchange([Settlement(delivery.receipt, decision)], []).settled[0]


def test_records_need_a_place(stand: Stand) -> None:
    with pytest.raises(ConfigError, match="cells="):
        SqsStore(f"sqs://{REGION}/none?track=true&endpoint={stand.url}")
    with pytest.raises(ConfigError, match="track='yes'"):
        SqsStore(f"sqs://{REGION}/none?track=yes&endpoint={stand.url}")


# -- keys


def test_who_is_killed_before_it_took_a_key_blocks_nobody(shop: Shop) -> None:
    with pytest.raises(Killed):
        dying(shop.open(), "track").put([keyed()])
    assert not shop.open().put([keyed()])[0].duplicate


def test_a_key_whose_message_was_never_sent_is_free_after_a_minute_and_nobody_is_told_that_it_was(shop: Shop) -> None:
    with pytest.raises(Killed):
        dying(shop.open(), "tracked").put([keyed(key_for_ms=3_600_000)])
    store = shop.open()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="try again"):
            store.put([keyed()])
        shop.stand.passes(29)
    shop.stand.passes(3)
    (put,) = store.put([keyed()])
    assert not put.duplicate
    assert [d.message.id for d in claim(store)] == [put.id]


def test_what_was_sent_and_not_marked_holds_its_key_once_it_ran(shop: Shop) -> None:
    with pytest.raises(Killed):
        dying(shop.open(), "mark").put([keyed()])
    store = shop.open()
    (delivery,) = claim(store)
    settle(store, delivery, RetryAt(store.now_ms() + 3_600_000))
    shop.stand.passes(61)
    assert store.put([keyed()]) == [PutResult(delivery.message.id, True, "scheduled")]


def test_what_was_sent_not_marked_and_not_run_for_a_minute_loses_its_key(shop: Shop) -> None:
    """The one way, but for messages that outlive their end, to two under one key."""
    with pytest.raises(Killed):
        dying(shop.open(), "mark").put([keyed()])
    shop.stand.passes(61)
    store = shop.open()
    (put,) = store.put([keyed()])
    assert not put.duplicate
    first, second = sorted(claim(store), key=lambda delivery: delivery.message.id == put.id)
    assert settle(store, first, Ack()) is Settled.OK
    assert store.put([keyed()]) == [PutResult(put.id, True, "leased")]  # the end of the other does not give it back
    assert settle(store, second, Ack()) is Settled.OK
    assert not store.put([keyed()])[0].duplicate


def test_a_put_that_failed_holds_no_key(shop: Shop) -> None:
    store = shop.open()
    shop.stand.server.faults.fail("SendMessageBatch", 100)
    with pytest.raises(StoreUnavailable):
        store.put([keyed(), Draft(task="pay")])
    shop.stand.server.faults.clear()
    assert not store.put([keyed()])[0].duplicate


@pytest.mark.parametrize("rival", [False, True])
def test_of_putters_that_race_for_a_key_one_sends(shop: Shop, monkeypatch: pytest.MonkeyPatch, rival: bool) -> None:
    """Of several processes; with `rival`, one that was killed as it put had held it before."""
    monkeypatch.setattr(sqs_keys, "PATIENCE_S", 30.0)
    if rival:
        with pytest.raises(Killed):
            dying(shop.open(), "tracked").put([keyed()])
        shop.stand.passes(61)
    stores, puts = [shop.open() for _ in range(4)], list[PutResult]()
    stores[0].counts("default")
    together = threading.Barrier(len(stores))

    def race(store: SqsStore) -> None:
        together.wait(30)
        puts.extend(store.put([keyed()]))

    threads = [threading.Thread(target=race, args=(store,), daemon=True) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(put.duplicate for put in puts) == [False, True, True, True]
    assert len({put.id for put in puts}) == 1
    assert [d.message.id for d in claim(stores[0])] == [puts[0].id]


# -- settling


@pytest.mark.parametrize("point", ["keep", "kept", "end"])
def test_who_is_killed_as_it_settles_leaves_its_message_and_no_key_for_ever(shop: Shop, point: str) -> None:
    dead, store = shop.open(), shop.open()
    (put,) = dead.put([keyed()])
    (delivery,) = claim(dead)
    with pytest.raises(Killed):
        settle(dying(dead, point), delivery, Ack())
    (other,) = store.put([keyed()])
    assert other.duplicate == (point == "keep")  # the record said it was over, but it was not deleted
    shop.stand.passes(LEASE_MS / 1000 + 1)
    again = {d.message.id: d for d in claim(store)}
    assert again.keys() == {put.id, other.id}
    settle(store, again[put.id], Ack())
    assert store.put([keyed()])[0].duplicate == (point != "keep")
    assert store.find([put.id]) == [None]


@pytest.mark.parametrize("point", ["kept", "end"])
def test_what_was_cancelled_is_not_delivered_though_its_consumer_was_killed(shop: Shop, point: str) -> None:
    dead, store = shop.open(), shop.open()
    (put,) = dead.put([Draft(task="pay")])
    assert store.cancel([put.id]) == [Cancel.REQUESTED]
    with pytest.raises(Killed):
        claim(dying(dead, point))
    shop.stand.passes(LEASE_MS / 1000 + 31)
    assert claim(store) == []
    found = store.find([put.id])[0]
    assert found is not None and found.state_at(store.now_ms()) == "cancelled"
    shop.stand.passes(61)
    assert store.counts("default").leased == store.counts("default").ready == 0


@pytest.mark.parametrize("queue", ["default", "paid.fifo"])
def test_what_somebody_else_sent_is_cancelled_by_the_id_it_was_given(shop: Shop, queue: str) -> None:
    store = shop.open()
    place = store.sqs_queues.of(queue)
    event = json.dumps({"specversion": "1.0", "id": "e1", "source": "/shop", "type": "paid", "data": {}})
    order = {"MessageGroupId": "g", "MessageDeduplicationId": "e1"} if place.fifo else {}
    store.sqs.call("SendMessageBatch", QueueUrl=place.url, Entries=[{"Id": "0", "MessageBody": event, **order}])
    asks = [ClaimRequest(queue, 1, LEASE_MS)]
    [delivery] = store.exchange([], asks).deliveries
    store.exchange([Settlement(delivery.receipt, RetryAt(store.now_ms() + 10_000))], [])
    assert store.cancel([delivery.message.id]) == [Cancel.CANCELLED]
    shop.stand.clock.advance(11)
    assert store.exchange([], asks).deliveries == []


def test_a_cancel_of_what_goes_back_to_its_queue_reaches_it(shop: Shop) -> None:
    store = shop.open()
    (put,) = store.put([keyed()])
    settle(store, claim(store)[0], DeadLetter("permanent"))
    assert store.cancel([put.id]) == [Cancel.TOO_LATE]
    (row,) = store.find([put.id])
    assert row is not None and row.key == "order-1"
    store.triage([row.handle], Redrive(delay_ms=60_000))
    assert store.cancel([put.id]) == [Cancel.CANCELLED]  # it had not left
    assert not store.put([keyed()])[0].duplicate


# -- what is seen, and what it costs


def test_a_record_shows_what_it_knows_and_says_that_it_knows_no_more(shop: Shop) -> None:
    store = shop.open()
    (put,) = store.put([Draft(task="pay", body=b"[1]", headers={"a": "b"}, priority=0)])
    (found,) = shop.open().find([put.id])
    assert found is not None and (found.content, found.lane) == (ABSENT, Lane.READY)
    shown = message_record(found, store.now_ms())
    assert shown["body"] is None and "may run" in shown["known"]
    assert not {"headers", "priority", "bytes", "deadline_at"} & shown.keys()


def spent(shop: Shop, store: SqsStore) -> dict[str, Counter[str]]:
    found = {}
    for name, work in {
        "put": lambda: store.put([Draft(task="pay") for _ in range(COUNT)]),
        "claim": lambda: claim(store),
        "ack": lambda: store.exchange([Settlement(receipt, Ack()) for receipt in store._in_flight.held], []),
    }.items():
        store.paused()
        shop.cells.calls.clear()
        work()
        found[name] = +shop.cells.calls
    return found


def test_without_the_option_a_first_run_touches_no_cell(shop: Shop) -> None:
    store = shop.open(track=False)
    store._pauses.seen = (float("inf"), frozenset())  # which are paused is looked at once a second
    assert spent(shop, store) == {"put": {}, "claim": {}, "ack": {}}
    assert store._track is None and not store.traits.cancels


def test_with_it_a_batch_costs_two_reads_and_writes_to_put_a_read_to_claim_and_one_of_each_to_settle(
    shop: Shop,
) -> None:
    store = shop.open()
    store._pauses.seen = (float("inf"), frozenset())
    both = {"read": 1, "swap": 1}
    assert spent(shop, store) == {"put": {"read": 2, "swap": 2}, "claim": {"read": 1}, "ack": both}


def test_cells_that_are_out_of_reach_refuse_a_put_before_anything_is_sent(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shop.open()

    def out(*_: object, **__: object) -> list[bool]:
        raise StoreUnavailable("out of reach")

    with monkeypatch.context() as patched:
        patched.setattr(shop.cells, "swap", out)
        with pytest.raises(StoreError):
            store.put([keyed()])
    assert claim(store) == []
