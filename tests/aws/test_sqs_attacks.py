"""What else is out or in the way while the SQS store works: cells, the triage store, rights, queues that are gone."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace
from tests.support.aws.places import lay
from tests.support.aws.sqs_world import FAULT, World, claim, put, settle

from redrive.blobs import ClaimCheck, FileBlobs
from redrive.errors import Conflict, EnqueueError, StoreError, StoreUnavailable
from redrive.message import (
    Ack,
    Cell,
    ClaimRequest,
    Counts,
    DeadLetter,
    Draft,
    Lane,
    Message,
    Redrive,
    RetryAt,
    Settled,
    Settlement,
    Swap,
)
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqs.client import Sqs
from redrive.stores.sqs.store import SqsStore
from redrive.testing.clock import ManualClock
from redrive.testing.sqs import server


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
    world, of_other_tests = World(), threading.enumerate()
    with world.server:
        lay(world.server, "shop-default")
        yield world
        for store in world.stores:
            store.close()
        end_s = time.monotonic() + 20
        while polls(of_other_tests) and time.monotonic() < end_s:  # before the server ends
            time.sleep(0.01)


def polls(besides: Container[threading.Thread] = ()) -> int:
    """Threads that receive."""
    return sum(thread.name == "redrive-sqs-receive" and thread not in besides for thread in threading.enumerate())


def opened(world: World, options: str = "") -> tuple[SqsStore, Cells]:
    cells = Cells(world.clock)
    url = f"sqs://eu-central-1/shop?create=true&poll=0&endpoint={world.server.url}{options}"
    world.stores.append(SqsStore(url, clock_ms=world.clock, cells=cells))
    return world.stores[-1], cells


def test_what_is_settled_is_told_so_though_nothing_can_be_claimed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.stores.sqs.cells.PAUSES_EVERY_S", 0)
    store, cells = opened(world)
    put(store)
    [delivery] = claim(store)
    cells.out = True
    result = store.exchange([Settlement(delivery.receipt, Ack())], [ClaimRequest("default", 10, 30_000)])
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
    asks = [ClaimRequest("a", 10, 30_000), ClaimRequest("b", 10, 30_000)]
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
    store, cells = opened(world, "&poll=1")
    for _ in range(3):
        put(store)
    store.wait([ClaimRequest("default", 1, 30_000)], timeout_ms=5000)
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
    asks, told, got = [ClaimRequest("a", 10, 30_000), ClaimRequest("b", 10, 30_000)], list[str](), set[str]()
    store.on_notice(lambda name, text: told.append(text))
    place = store.sqs_queues.of("a")
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
    assert place.url == store.sqs_queues.of("a").url and got == {"a", "b"}
    assert told[0].startswith("a: nothing can be received, tried again and again: SQS ReceiveMessage shop-a: it does")


def test_what_is_sent_while_the_store_closes_does_not_hang(world: World) -> None:
    store, _ = opened(world)
    messages = [store.put([Draft(task="push")])[0] for _ in range(1)]
    done = threading.Event()

    def call() -> None:
        with contextlib.suppress(Exception):
            store.put([Draft(task="push")] * 25)
        done.set()

    store.failpoint = lambda point: store.sqs.close() if point == "put" else None
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


@pytest.mark.parametrize("mode", ["&mode=requeue", ""])
@pytest.mark.parametrize("end", ["retry", "dead"])
@pytest.mark.parametrize("size", [1_040_000, 1024 * 1024 - 20])
def test_a_large_message_of_somebody_else_comes_to_its_end(world: World, mode: str, end: str, size: int) -> None:
    store = world.open(mode, cells=False)
    url = store.sqs_queues.of("default").url
    red = {"colour": {"DataType": "String", "StringValue": "red"}}
    entry = {"Id": "a", "MessageBody": "x" * size, "MessageAttributes": red}
    store.sqs.call("SendMessageBatch", QueueUrl=url, Entries=[entry])
    [delivery] = claim(store)
    decision = RetryAt(world.clock() + 1000) if end == "retry" else DeadLetter("permanent", "no")
    assert settle(store, delivery, decision, fault=FAULT) is Settled.OK
    world.clock.advance(3)
    if end == "dead":
        assert world.lying("default") == 0 and world.lying("default-dlq") == 1
    else:
        [again] = claim(store)
        assert again.message.id == delivery.message.id and again.message.body == delivery.message.body
        assert again.message.headers["colour"] == "red"
        assert again.message.attempt + again.message.crashes == 2


def test_a_follow_up_that_a_queue_is_too_small_for_holds_up_no_other_work(world: World) -> None:
    store, _ = opened(world)
    put(store)
    put(store)
    put(store, queue="small")
    world.queue("small").set({"MaximumMessageSize": "2000"}, world.clock())
    one, two = claim(store)
    follow = (Draft(task="x", queue="small", body=b'"' + b"x" * 3000 + b'"'),)
    both = [Settlement(one.receipt, Ack(), follow_ups=follow), Settlement(two.receipt, RetryAt(world.clock() + 1000))]
    with pytest.raises(EnqueueError, match="Message must be shorter than 2000 bytes"):
        store.exchange(both, [])
    assert settle(store, two, RetryAt(world.clock() + 1000)) is Settled.OK
    assert settle(store, one, DeadLetter("permanent", "no"), fault=FAULT) is Settled.OK
    assert (world.lying("default"), world.lying("default-dlq"), world.lying("small")) == (1, 1, 1)


@pytest.mark.parametrize("options", ["", "&track=true"])
def test_a_follow_up_that_is_refused_in_a_repeated_call_lets_its_message_be_settled_otherwise(
    world: World, options: str
) -> None:
    store, _ = opened(world, options)
    put(store)
    put(store, queue="small")
    world.queue("small").set({"MaximumMessageSize": "2000"}, world.clock())
    [delivery] = claim(store)
    follow = (Draft(task="x", queue="small", body=b'"' + b"x" * 3000 + b'"'),)
    world.server.faults.fail_entries("SendMessageBatch", 100)
    with pytest.raises(StoreUnavailable):
        settle(store, delivery, Ack(), follow_ups=follow)
    world.server.faults.clear()
    with pytest.raises(EnqueueError, match="Message must be shorter than 2000 bytes"):
        settle(store, delivery, Ack(), follow_ups=follow)
    assert settle(store, delivery, DeadLetter("permanent", "no"), fault=FAULT) is Settled.OK
    assert (world.lying("default"), world.lying("default-dlq"), world.lying("small")) == (0, 1, 1)


def test_a_message_that_was_sent_before_a_cell_changed_keeps_its_large_body(world: World, tmp_path: Path) -> None:
    inner, cells = opened(world)
    store = ClaimCheck(inner, lambda place: FileBlobs(tmp_path / place), threshold=1000, blob_max=10**9)

    def changes(point: str) -> None:
        if point == "acknowledge":
            cells.swap([Swap("batch/x", 0, b"a death")])

    inner.failpoint = changes
    body = b'"' + b"x" * 5000 + b'"'
    with pytest.raises(Conflict, match="what was sent stays sent"):
        store.put([Draft(task="push", body=body)], swaps=[Swap("batch/x", 0, b"mine")])
    [delivery] = claim(inner)
    assert store.body(delivery.message) == body


def test_a_triage_store_that_is_out_is_told_once_and_let_alone(world: World) -> None:
    put(opened(world)[0])
    triage, tried, told = MemoryStore(world.clock), list[int](), list[str]()
    lays = triage.restore

    def out(messages: Sequence[Message]) -> list[bool]:
        tried.append(len(messages))
        raise StoreUnavailable("triage is out")

    triage.restore = out  # type: ignore[method-assign]
    store = SqsStore(f"sqs://eu-central-1/shop?poll=0&endpoint={world.server.url}", clock_ms=world.clock, triage=triage)
    world.stores.append(store)
    store.on_notice(lambda name, text: told.append(text))
    for _ in range(3):
        put(store)
    *three, last = claim(store)
    for delivery in three:
        assert settle(store, delivery, DeadLetter("permanent", "no"), fault=FAULT) is Settled.OK
    assert tried == [1] and len(told) == 1 and "triage is out" in told[0] and world.lying("default-dlq") == 3
    store._settlements.settling.triage_from_s = 0.0
    triage.restore = lays  # type: ignore[method-assign]
    assert settle(store, last, DeadLetter("permanent", "no"), fault=FAULT) is Settled.OK
    assert len(told) == 2 and triage.counts().dead == 1


def test_a_strangers_message_with_bytes_in_an_attribute_dies_and_comes_back_with_them(world: World) -> None:
    store = world.open(triage=True)
    url = store.sqs_queues.of("default").url
    attributes = {
        "raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
        "n": {"DataType": "Number", "StringValue": "7"},
    }
    store.sqs.call(
        "SendMessageBatch", QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "{}", "MessageAttributes": attributes}]
    )
    [delivery] = claim(store)
    before = dict(delivery.message.headers)
    settle(store, delivery, DeadLetter("permanent", "no"), fault=FAULT)
    [dead] = store.peek(Lane.DEAD).messages
    store.triage([dead.handle], Redrive())
    [again] = claim(store)
    assert again.message.id == delivery.message.id
    assert {k: again.message.headers[k] for k in ("raw", "n")} == {k: before[k] for k in ("raw", "n")}


def test_what_a_poll_brings_while_a_worker_drains_is_given_back(world: World) -> None:
    store, _ = opened(world, "&poll=1")
    other = SqsStore(f"sqs://eu-central-1/shop?poll=0&endpoint={world.server.url}", clock_ms=world.clock)
    world.stores.append(other)
    store.sqs_queues.of("default")
    store.exchange([], [ClaimRequest("default", 10, 30_000)])  # a poll is under way now
    store.quiesce()
    id = put(other)
    end_s = time.monotonic() + 20
    while not (found := claim(other)) and time.monotonic() < end_s:
        time.sleep(0.01)
    assert [delivery.message.id for delivery in found] == [id]


def test_only_the_queues_that_a_worker_leaves_are_given_back(world: World) -> None:
    store, _ = opened(world, "&poll=1")
    other = SqsStore(f"sqs://eu-central-1/shop?poll=0&endpoint={world.server.url}", clock_ms=world.clock)
    world.stores.append(other)
    asks = [ClaimRequest(queue, 10, 30_000) for queue in ("default", "left")]
    for ask in asks:
        store.sqs_queues.of(ask.queue)
    store.exchange([], asks)  # polls of both are under way now
    store.quiesce({"left"})
    kept, left = (put(other, queue=ask.queue) for ask in asks)
    found = dict[str, str]()
    end_s = time.monotonic() + 20
    while len(found) < 2 and time.monotonic() < end_s:
        found |= {d.message.id: "other" for d in other.exchange([], asks[1:]).deliveries}
        found |= {d.message.id: "store" for d in store.exchange([], asks[:1]).deliveries}
        time.sleep(0.01)
    assert found == {kept: "store", left: "other"}


def test_a_wait_for_a_queue_that_a_worker_left_keeps_what_it_receives(world: World) -> None:
    """Given back and received again and again, a message would reach its dead-letter queue in a tenth of a second."""
    store, _ = opened(world)
    assert not claim(store)
    store.quiesce({"default"})
    id = put(store)
    store.wait([ClaimRequest("default", 1, 30_000)], timeout_ms=2_000)
    [delivery] = claim(store)
    assert (delivery.message.id, delivery.message.fence) == (id, 1)


def buffered(world: World, *, cells: Cells | None, name: str = "default") -> tuple[SqsStore, SqsStore]:
    """Two stores, and a message that the first has received and not claimed: its poll was open when it came."""
    url = f"sqs://eu-central-1/shop?create=true&endpoint={world.server.url}"
    store, other = (SqsStore(f"{url}&poll={s}", clock_ms=world.clock, cells=cells) for s in (5, 0))
    world.stores += [store, other]
    store.sqs_queues.of(name)
    with patch.object(server, "POLL_CAP_S", 60.0):  # the poll must not end before the message comes
        assert not claim(store, 1, queue=name)
        while not polling(store):
            time.sleep(0.001)
        put(other, queue=name, group="g")
        polled(store)
    return store, other


def polling(store: SqsStore) -> bool:
    return any(inbox.flying for inbox in store._receivers._inboxes.values())


def polled(store: SqsStore) -> None:
    """Wait until no poll is open."""
    end_s = time.monotonic() + 20
    while polling(store) and time.monotonic() < end_s:
        time.sleep(0.01)


@pytest.mark.parametrize("tends", ["extend", "wait"])
@pytest.mark.parametrize("name", ["default", "orders.fifo"])
@pytest.mark.parametrize("with_cells", [True, False])
def test_what_a_worker_received_and_has_no_room_for_spends_no_attempt(
    world: World, with_cells: bool, name: str, tends: str
) -> None:
    store, other = buffered(world, cells=Cells(world.clock) if with_cells else None, name=name)
    for _ in range(8):  # beyond its lease of 30 s, and twice that
        world.clock.advance(10)
        if tends == "extend":
            store.extend([], lease_ms=30_000)
        else:
            store.wait([], timeout_ms=0)
    goes_back = with_cells and name == "default"
    found = claim(other, queue=name)  # by a worker that has room
    assert len(found) == goes_back
    [delivery] = found or claim(store, 1, queue=name)
    assert (delivery.message.attempt, delivery.message.crashes) == (1, 0)
    assert delivery.until_ms <= world.clock() + 30_000
    assert settle(store if not found else other, delivery, Ack()) is Settled.OK


@pytest.mark.parametrize("name", ["default", "orders.fifo"])
def test_a_worker_that_has_no_room_for_long_gives_back_what_it_received(world: World, name: str) -> None:
    store, other = buffered(world, cells=None, name=name)
    for _ in range(20):  # its leases are renewed four times
        world.clock.advance(10)
        store.extend([], lease_ms=30_000)
    assert len(claim(other, queue=name)) == 1


def test_what_a_worker_received_and_has_no_room_for_is_kept_while_sqs_fails(world: World) -> None:
    store, _ = buffered(world, cells=None)
    world.clock.advance(20)
    world.server.faults.fail_entries("ChangeMessageVisibilityBatch", 4)
    store.extend([], lease_ms=30_000)
    store.extend([], lease_ms=30_000)
    world.clock.advance(20)
    [delivery] = claim(store, 1)
    assert (delivery.message.attempt, delivery.message.crashes) == (1, 0)


@pytest.mark.parametrize("first", ["the message", "the pause"])
def test_a_queue_that_is_paused_gives_back_what_is_received_of_it(world: World, first: str) -> None:
    if first == "the message":
        store, _ = buffered(world, cells=Cells(world.clock))
        store.configure("default", paused=True)
        assert not claim(store, 1)
    else:
        store, _ = opened(world, "&poll=1")
        store.sqs_queues.of("default")
        assert not claim(store, 1)
        store.configure("default", paused=True)
        assert not claim(store, 1)
        put(store)
        polled(store)
    world.clock.advance(31)
    store.configure("default", paused=False)
    end_s = time.monotonic() + 20
    while not (found := claim(store, 1)) and time.monotonic() < end_s:
        time.sleep(0.01)
    [delivery] = found
    assert (delivery.message.attempt, delivery.message.crashes) == (1, 0)


def test_more_queues_than_threads_are_all_polled(world: World) -> None:
    of_other_tests = threading.enumerate()  # a poll of a store that is closed goes on to its end
    store, _ = opened(world, "&poll=1")
    asks = [ClaimRequest(f"q{n}", 1, 30_000) for n in range(45)]
    for ask in asks:
        store.sqs_queues.of(ask.queue)
    store.exchange([], asks)
    assert polls(of_other_tests) == len(asks)


def test_what_a_settlement_of_its_group_sets_free_is_ready_though_nothing_was_received_last(world: World) -> None:
    store, _ = opened(world)
    for group in "ab":
        put(store, queue="paid.fifo", group=group)
    held = {delivery.message.group: delivery for delivery in claim(store, queue="paid.fifo")}
    put(store, queue="paid.fifo", group="b")
    settle(store, held["a"], RetryAt(world.clock() + 3_600_000), fault=FAULT)
    assert not claim(store, queue="paid.fifo")
    assert store.counts("paid.fifo") == Counts(scheduled=2, leased=1)
    settle(store, held["b"], Ack())
    assert store.counts("paid.fifo") == Counts(scheduled=1, ready=1)


def test_the_record_of_a_message_with_the_largest_checkpoint_and_a_long_history_fits_an_item_of_dynamodb(
    world: World,
) -> None:
    store, cells = opened(world)
    sizes, swap = list[int](), cells.swap

    def measured(swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        sizes.extend(len(swap.value or b"") for swap in swaps)
        return swap(swaps, durable=durable)

    cells.swap = measured  # type: ignore[method-assign]
    put(store)
    [delivery] = claim(store)
    assert store.checkpoint(delivery.receipt, b"x" * store.traits.state_bytes_max)
    for n in range(30):
        fault = replace(FAULT, text="x" * 1000, traceback=f"{n}" * 4000)
        assert settle(store, delivery, RetryAt(world.clock() + 1000), fault=fault) is Settled.OK
        world.clock.advance(2)
        [delivery] = claim(store)
    assert len(delivery.message.faults) > 5 and len(delivery.message.progress or b"") == store.traits.state_bytes_max
    assert max(sizes) < 400 * 1024 - 2048
