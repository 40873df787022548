"""What else is out or in the way while the SQS store works: cells, the triage store, rights, queues that are gone."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from redrive.errors import EnqueueError, StoreError, StoreUnavailable
from redrive.message import Ack, Ask, Cell, DeadLetter, Draft, Message, RetryAt, Settled, Settlement, Swap
from redrive.stores._sqs_client import Sqs
from redrive.stores.memory import MemoryStore
from redrive.stores.sqs import SqsStore
from redrive.testing.clock import ManualClock

from .test_sqs_store import FAULT, World, claim, put, settle


class Cells:
    """Cells that may be out."""

    def __init__(self, clock: ManualClock) -> None:
        self._store, self.out = MemoryStore(clock), False

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        self._look()
        return self._store.cells.read(keys)

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        self._look()
        return self._store.cells.swap(swaps, durable=durable)

    def _look(self) -> None:
        if self.out:
            raise StoreUnavailable("cells are out")

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with world.server:
        yield world
        for store in world.stores:
            store.close()


def opened(world: World, options: str = "") -> tuple[SqsStore, Cells]:
    cells = Cells(world.clock)
    url = f"sqs://eu-central-1/shop?create=true&poll=0&endpoint={world.server.url}{options}"
    world.stores.append(SqsStore(url, clock_ms=world.clock, cells=cells))
    return world.stores[-1], cells


def test_what_is_settled_is_told_so_though_nothing_can_be_claimed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stores.sqs.PAUSES_EVERY_S", 0)
    store, cells = opened(world)
    put(store)
    [delivery] = claim(store)
    cells.out = True
    result = store.exchange([Settlement(delivery.receipt, Ack())], [Ask("default", 10, 30_000)])
    assert result.settled == [Settled.OK] and not result.deliveries
    assert world.lying("default") == 0


def test_what_was_claimed_of_one_queue_is_not_lost_by_the_error_of_another(world: World) -> None:
    store, cells = opened(world)
    put(store, queue="a")
    put(store, queue="b")
    [first] = claim(store, queue="b")
    settle(store, first, RetryAt(world.clock() + 1000), fault=FAULT)
    world.clock.advance(2)
    store.paused()
    cells.out = True
    asks = [Ask("a", 10, 30_000), Ask("b", 10, 30_000)]
    found = store.exchange([], asks).deliveries
    assert [delivery.message.queue for delivery in found] == ["a"]
    cells.out = False
    world.clock.advance(31)
    assert {d.message.queue for d in store.exchange([], asks).deliveries} >= {"b"}


@pytest.mark.parametrize("name", ["default", "orders.fifo"])
def test_what_could_not_be_looked_up_comes_again(world: World, name: str) -> None:
    store, cells = opened(world)
    put(store, queue=name, group="g")
    put(store, queue=name, group="g")
    [first, *_] = claim(store, queue=name)
    settle(store, first, RetryAt(world.clock() + 1000), fault=FAULT)
    world.clock.advance(2)
    store.paused()
    cells.out = True
    with pytest.raises(StoreUnavailable):
        claim(store, queue=name)
    cells.out = False
    world.clock.advance(31)
    again = claim(store, queue=name)
    assert first.message.id in {delivery.message.id for delivery in again}


def test_a_fifo_group_goes_on_after_a_hop_that_could_not_be_kept(world: World) -> None:
    store, cells = opened(world)
    id = put(store, queue="orders.fifo", group="g", delay_ms=5000)
    store.paused()
    cells.out = True
    assert not claim(store, queue="orders.fifo")
    cells.out = False
    world.clock.advance(31)
    assert [d.message.id for d in claim(store, queue="orders.fifo")] == [id]


def test_a_store_closes_though_its_cells_are_out(world: World) -> None:
    store, cells = opened(world, "&poll=20")
    for _ in range(3):
        put(store)
    store.wait([Ask("default", 1, 30_000)], timeout_ms=5000)
    cells.out = True
    store.close()


def test_a_follow_up_for_a_queue_that_is_not_there_is_refused_and_ends_no_worker(world: World) -> None:
    put(opened(world)[0])
    url = f"sqs://eu-central-1/shop?poll=0&endpoint={world.server.url}"
    store = SqsStore(url, clock_ms=world.clock)
    world.stores.append(store)
    [delivery] = claim(store)
    with pytest.raises(EnqueueError, match="shop-none"):
        settle(store, delivery, Ack(), follow_ups=(Draft(task="x", queue="none"),))
    assert settle(store, delivery, Ack()) is Settled.OK


class Out(MemoryStore):
    """A store where nothing can be laid."""

    def restore(self, messages: Sequence[Message]) -> list[bool]:
        raise StoreUnavailable("triage is out")


def test_a_death_waits_where_the_triage_store_is_out_and_there_is_no_dead_letter_queue(world: World) -> None:
    put(opened(world)[0])
    del world.server.account.queues["shop-default-dlq"]
    url = f"sqs://eu-central-1/shop?poll=0&endpoint={world.server.url}"
    store = SqsStore(url, clock_ms=world.clock, triage=Out(world.clock))
    world.stores.append(store)
    [delivery] = claim(store)
    with pytest.raises(StoreError):
        settle(store, delivery, DeadLetter("permanent", "no"), fault=FAULT)


def test_a_queue_whose_receive_failed_once_is_received_from_while_another_is_busy(world: World) -> None:
    store, _ = opened(world, "&poll=1")
    asks, told, got = [Ask("a", 10, 30_000), Ask("b", 10, 30_000)], list[str](), set[str]()
    store.listen(lambda name, text: told.append(text))
    place = store.places.of("a")
    put(store, queue="b")
    del world.server.account.queues["shop-a"]
    end_s = time.monotonic() + 20
    while got != {"a", "b"} and time.monotonic() < end_s:
        found = store.exchange([], asks).deliveries
        got |= {delivery.message.queue for delivery in found}
        for delivery in found:
            settle(store, delivery, Ack())
            put(store, queue="b")  # that one is never idle
        if told and "shop-a" not in world.server.account.queues:
            store.sqs.call("CreateQueue", QueueName="shop-a")
            put(store, queue="a")
    assert place.url == store.places.of("a").url and got == {"a", "b"}
    assert told[0].startswith("a: nothing can be received, tried again and again: SQS ReceiveMessage shop-a: it does")


def test_what_is_sent_while_the_store_closes_does_not_hang(world: World) -> None:
    store, _ = opened(world)
    messages = [store.put([Draft(task="push")])[0] for _ in range(1)]
    done = threading.Event()

    def call() -> None:
        with contextlib.suppress(Exception):
            store.put([Draft(task="push")] * 25)
        done.set()

    store.seam = lambda point: store.sqs.close() if point == "put" else None
    threading.Thread(target=call, daemon=True).start()
    assert messages and done.wait(10)


def test_a_call_that_fails_in_an_odd_way_is_not_taken_for_done(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = opened(world)
    put(store)
    call, times = Sqs.call, itertools.count()

    def odd(self: Sqs, action: str, **parameters: Any) -> dict[str, Any]:
        if action == "SendMessageBatch" and next(times) < 3:
            raise RuntimeError("odd")
        return call(self, action, **parameters)

    monkeypatch.setattr(Sqs, "call", odd)
    with pytest.raises(StoreUnavailable, match="odd"):
        store.put([Draft(task="push")] * 25)
    assert world.lying("default") == 1
