"""The SQS store by itself, on the stand-in, whose clock the tests move: waits, hops, counts, and what is left of calls
that fail half-way. What it has in common with other stores is held by the contract."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.aws.places import lay
from tests.support.aws.sqs_world import FAULT, World, claim, put, settle
from tests.support.turns import in_turn

from redrive import App
from redrive.awsapi import client as aws
from redrive.awsapi.client import client
from redrive.errors import ConfigError, StoreUnavailable, Unsupported
from redrive.message import (
    Ack,
    ClaimRequest,
    DeadLetter,
    Delivery,
    Draft,
    Lane,
    LeaseStatus,
    Quarantine,
    RetryAt,
    Settled,
    Settlement,
    Swap,
)
from redrive.stores import open_cells, open_store
from redrive.stores.sqs.store import SqsStore

SWAP = Swap("done", 0, b"1")
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with world.server:
        lay(world.server, "shop-default")
        yield world
        for store in world.stores:
            store.close()


MODES = {
    "visibility with cells": ("", True),
    "visibility without": ("", False),
    "requeue": ("&mode=requeue", False),
    "requeue with cells": ("&mode=requeue", True),
}


# Waits of days are hundreds of looks.
TURNS = {mode: in_turn(n, of=len(MODES)) for n, mode in enumerate(MODES)}
mode_in_turn = pytest.mark.parametrize("mode", [pytest.param(mode, marks=turn) for mode, turn in TURNS.items()])


def opened(world: World, mode: str, **parts: Any) -> SqsStore:
    options, cells = MODES[mode]
    return world.open(options, cells=cells, **parts)


def run_until_done(world: World, store: SqsStore, step_s: float, most: int) -> Delivery:
    """Move the clock until a message is delivered to be run."""
    for _ in range(most):
        found = claim(store)
        if found:
            return found[0]
        world.clock.advance(step_s)
    raise AssertionError("it was not delivered")


# -- waits of any length


@pytest.mark.parametrize(
    ("mode", "wait_s"),
    [
        pytest.param(mode, wait_s, marks=TURNS[mode] if wait_s > 24 * 3600 else [])
        for mode in MODES
        for wait_s in (901, 3600, 13 * 3600, 3 * 24 * 3600)
    ],
)
def test_a_retry_of_any_length_is_never_early_and_costs_one_attempt(world: World, mode: str, wait_s: int) -> None:
    store = opened(world, mode)
    id = put(store)
    first = claim(store)[0]
    due_ms = world.clock() + wait_s * 1000
    assert settle(store, first, RetryAt(due_ms), fault=FAULT) is Settled.OK
    again = run_until_done(world, store, 890, 300)
    assert world.clock() >= due_ms
    assert (again.message.id, again.message.attempt, again.message.crashes) == (id, 2, 0)
    assert settle(store, again, Ack()) is Settled.OK
    assert world.lying("default") == 0


@mode_in_turn
def test_a_delay_of_days_is_kept_from_the_start(world: World, mode: str) -> None:
    store = opened(world, mode)
    due_ms = world.clock() + 2 * DAY_MS
    put(store, delay_ms=2 * DAY_MS)
    found = run_until_done(world, store, 890, 300)
    assert world.clock() >= due_ms and found.message.attempt == 1 and found.message.crashes == 0


@mode_in_turn
def test_a_wait_longer_than_the_retention_does_not_lose_the_message(world: World, mode: str) -> None:
    store = opened(world, mode)
    put(store)
    world.queue("default").set({"MessageRetentionPeriod": "86400"}, world.clock())
    due_ms = world.clock() + 2 * DAY_MS
    settle(store, claim(store)[0], RetryAt(due_ms))
    found = run_until_done(world, store, 899, 300)
    assert world.clock() >= due_ms and found.message.attempt == 2


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "visibility without"])
def test_a_wait_that_counts_nothing_gives_the_attempt_back(world: World, mode: str) -> None:
    store = opened(world, mode)
    put(store)
    for _ in range(5):
        delivery = run_until_done(world, store, 10, 10)
        assert delivery.message.attempt == 1
        settle(store, delivery, RetryAt(world.clock() + 5000, counts=False, held=True))
    assert run_until_done(world, store, 10, 10).message.held_ms == 25_000


def test_without_cells_what_visibility_cannot_say_travels_in_a_copy(world: World) -> None:
    store = world.open(cells=False)
    put(store)
    settle(store, claim(store)[0], RetryAt(world.clock() + 5000, counts=False, held=True))
    assert world.server.requests["SendMessageBatch"] == 2
    delivery = run_until_done(world, store, 5, 3)
    assert (delivery.message.attempt, delivery.message.held_ms) == (1, 5000)


# -- counts


def test_with_cells_a_lease_that_ran_out_counts_as_a_crash(world: World) -> None:
    store = world.open()
    put(store)
    settle(store, claim(store)[0], RetryAt(world.clock()), fault=FAULT)
    claim(store)
    world.clock.advance("31s")
    message = claim(store)[0].message
    assert (message.attempt, message.crashes, message.suspect) == (2, 1, True)
    assert [fault.error for fault in message.faults] == ["ConnectionError"]


def test_without_cells_visibility_mode_counts_each_delivery(world: World) -> None:
    store = world.open(cells=False)
    put(store)
    claim(store)
    world.clock.advance("31s")
    message = claim(store)[0].message
    assert (message.attempt, message.crashes) == (2, 0) and not store.traits.counts_crashes


def test_requeue_mode_counts_the_crashes_of_each_copy(world: World) -> None:
    store = world.open("&mode=requeue", cells=False)
    put(store)
    for attempt in (1, 2):
        claim(store)
        world.clock.advance("31s")
        delivery = claim(store)[0]
        assert (delivery.message.attempt, delivery.message.crashes) == (attempt, attempt)
        settle(store, delivery, RetryAt(world.clock()), fault=FAULT)


def test_a_run_that_was_marked_alone_counts_as_a_crash_alone(world: World) -> None:
    store = world.open()
    put(store)
    assert store.extend([claim(store)[0].receipt], lease_ms=30_000, alone=True) == [LeaseStatus.HELD]
    world.clock.advance("31s")
    assert claim(store)[0].message.crashes_alone == 1


def test_fifty_attempts_on_a_queue_that_delivers_three_times(world: World) -> None:
    store = world.open("&mode=requeue&max_receives=3", cells=False)
    put(store)
    for attempt in range(1, 51):
        delivery = run_until_done(world, store, 1, 5)
        assert delivery.message.attempt == attempt
        if attempt < 50:
            settle(store, delivery, RetryAt(world.clock()), fault=FAULT)
    settle(store, delivery, Ack())
    assert world.lying("default") == world.lying("default-dlq") == 0


def test_crashes_never_let_sqs_take_a_message_away_unseen(world: World) -> None:
    store = world.open("&mode=requeue&max_receives=3", cells=False)
    put(store)
    crashes = []
    for _ in range(12):
        crashes += [delivery.message.crashes for delivery in claim(store)]
        world.clock.advance("31s")
    assert world.lying("default-dlq") == 0 and world.lying("default") == 1
    assert crashes[-1] >= 5 and crashes == sorted(crashes)


def test_deferrals_never_let_sqs_take_a_message_away(world: World) -> None:
    store = world.open("&max_receives=4")
    put(store)
    for _ in range(30):
        delivery = run_until_done(world, store, 2, 5)
        assert delivery.message.attempt == 1
        settle(store, delivery, RetryAt(world.clock() + 1000, counts=False, held=True))
    assert world.lying("default-dlq") == 0


# -- dead letters


def test_a_dead_letter_lies_in_the_triage_store_before_it_is_deleted(world: World) -> None:
    store = world.open(triage=True)
    id = put(store)
    delivery = claim(store)[0]
    steps: list[tuple[str, bool]] = []
    store.failpoint = lambda point: steps.append((point, store.triage_store.find([id])[0] is not None))  # type: ignore[union-attr]
    settle(store, delivery, DeadLetter("permanent", "no such customer"), fault=FAULT)
    assert ("end", True) in steps and ("bury", False) in steps
    (page,) = store.peek(Lane.DEAD).messages
    assert (page.id, page.reason, page.faults[0].text) == (id, "permanent", "refused")
    assert world.lying("default") == 0


def test_without_a_triage_store_the_dead_go_to_their_own_queues(world: World) -> None:
    store = world.open()
    for decision in (DeadLetter("exhausted"), Quarantine()):
        put(store)
        settle(store, claim(store)[0], decision, fault=FAULT)
    assert (world.lying("default"), world.lying("default-dlq"), world.lying("default-poison")) == (0, 1, 1)
    with pytest.raises(Unsupported, match="triage="):
        store.peek(Lane.DEAD)


def test_a_triage_store_that_is_out_leaves_the_dead_to_their_queue(world: World) -> None:
    store = world.open(triage=True)
    put(store)
    delivery = claim(store)[0]

    def out(_: Any) -> list[bool]:
        raise StoreUnavailable("the database is gone")

    store.triage_store.restore = out  # type: ignore[method-assign, union-attr]
    assert settle(store, delivery, DeadLetter("exhausted"), fault=FAULT) is Settled.OK
    assert (world.lying("default"), world.lying("default-dlq")) == (0, 1)


# -- calls that fail


@pytest.mark.parametrize("fault", ["throttle", "fail", "lose_call"])
def test_a_settlement_whose_send_failed_is_done_by_the_next_call(world: World, fault: str) -> None:
    store = world.open("&mode=requeue", cells=False)
    put(store)
    delivery = claim(store)[0]
    getattr(world.server.faults, fault)("SendMessageBatch", 100)
    with pytest.raises(StoreUnavailable, match="SendMessageBatch"):
        settle(store, delivery, RetryAt(world.clock()))
    assert world.lying("default") == 1
    world.server.faults.clear()
    assert settle(store, delivery, RetryAt(world.clock())) is Settled.OK
    assert world.lying("default") == 1 and claim(store)[0].message.attempt == 2


def test_what_was_sent_is_not_sent_again_by_the_call_that_repeats(world: World) -> None:
    store = world.open("&mode=requeue")
    put(store)
    again = Settlement(claim(store)[0].receipt, RetryAt(world.clock()), FAULT, (Draft(task="then"),), swaps=(SWAP,))
    inner, failures = store.cells.swap, [StoreUnavailable("the cells are gone")] * 2

    def swap(*given: Any, **parts: Any) -> list[bool]:
        if failures:
            raise failures.pop()
        return inner(*given, **parts)

    store.cells.swap = swap  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="the cells are gone"):
            store.exchange([again], [])
    assert store.exchange([again], []).settled == [Settled.OK]
    assert sorted(delivery.message.task for delivery in claim(store)) == ["push", "then"]
    assert store.cells.read(["done"])[0] is not None


def test_a_swap_that_does_not_apply_leaves_the_message_to_whoever_holds_its_key(world: World) -> None:
    store = world.open()
    id = put(store)
    store.cells.swap([SWAP])
    assert settle(store, claim(store)[0], Ack(), swaps=(SWAP,)) is Settled.STALE
    world.clock.advance("31s")
    assert claim(store)[0].message.id == id


def test_a_put_that_fails_says_how_many_were_sent(world: World) -> None:
    store = world.open()
    put(store)
    world.server.faults.fail_entries("SendMessageBatch", 4 * 12)
    with pytest.raises(StoreUnavailable, match="of 12 messages were sent"):
        store.put([Draft(task="push") for _ in range(12)])


def test_a_single_entry_that_fails_is_tried_again(world: World) -> None:
    store = world.open()
    world.server.faults.fail_entries("SendMessageBatch", 3)
    assert len(store.put([Draft(task="push") for _ in range(10)])) == 10
    assert world.lying("default") == 10


def test_a_receive_that_fails_is_told_and_tried_when_asked_again(world: World) -> None:
    store = world.open()
    put(store)
    world.server.faults.throttle("ReceiveMessage", 100)
    with pytest.raises(StoreUnavailable, match="ReceiveMessage"):
        claim(store)
    seen = world.server.requests["ReceiveMessage"]
    world.server.faults.clear()
    assert seen <= 4 and len(claim(store)) == 1


# -- in tens


def test_deletes_wait_for_one_another_and_go_in_tens(world: World) -> None:
    store = world.open("&poll=1")  # with short polls nothing waits
    store.put([Draft(task="push") for _ in range(20)])
    deliveries = claim(store, 20)
    while len(deliveries) < 20:
        deliveries += claim(store, 20 - len(deliveries))
    for begin in range(0, 20, 4):
        store.exchange([Settlement(d.receipt, Ack()) for d in deliveries[begin : begin + 4]], [])
    requests = world.server.requests
    assert (requests["SendMessageBatch"], requests["DeleteMessageBatch"]) == (2, 2)
    assert world.lying("default") == 0


def test_what_is_left_over_is_flushed_at_close(world: World) -> None:
    store = world.open()
    store.put([Draft(task="push") for _ in range(3)])
    first, *_ = claim(store, 3)
    settle(store, first, Ack())
    store.close()
    assert world.lying("default") == 2


def test_what_was_received_and_not_claimed_is_given_back_free(world: World) -> None:
    store = world.open()
    store.put([Draft(task="push") for _ in range(10)])
    claim(store, 10)
    world.clock.advance("31s")
    store._receivers.ask([(ClaimRequest("default", 10, 30_000), store.sqs_queues.of("default"))], patient=True)
    assert [d.message.crashes for d in claim(world.open(), 10)] == []


# -- order and groups


def test_a_fifo_queue_keeps_the_order_of_a_group_through_retries(world: World) -> None:
    store = world.open()
    ids = [put(store, queue="orders.fifo", group="g") for _ in range(4)]
    other = put(store, queue="orders.fifo", group="h")
    ran: list[str] = []
    for _ in range(8):
        for delivery in claim(store, 10, "orders.fifo"):
            ran.append(delivery.message.id)
            again = delivery.message.id == ids[1] and delivery.message.attempt < 3
            settle(store, delivery, RetryAt(world.clock() + 5000) if again else Ack())
            assert (delivery.message.crashes, delivery.message.suspect) == (0, False)
        world.clock.advance("6s")
    assert [id for id in ran if id != other] == [ids[0], ids[1], ids[1], ids[1], ids[2], ids[3]]
    assert world.lying("orders.fifo") == 0


def test_what_is_put_to_a_fifo_queue_arrives_in_its_order(world: World) -> None:
    store = world.open()
    ids = [done.id for done in store.put([Draft(task="push", queue="orders.fifo", group="g") for _ in range(95)])]
    sent = [json.loads(message.body)["id"] for message in world.queue("orders.fifo").messages.values()]
    assert sent == ids


def test_behind_what_could_not_be_sent_to_a_fifo_queue_nothing_is(world: World) -> None:
    store = world.open()
    put(store, queue="orders.fifo", group="g")
    world.server.faults.fail("SendMessageBatch", 3)
    with pytest.raises(StoreUnavailable, match="0 of 35 messages were sent"):
        store.put([Draft(task="push", queue="orders.fifo", group="g") for _ in range(35)])
    assert world.lying("orders.fifo") == 1


def test_one_message_of_a_group_runs_at_a_time_and_a_long_run_keeps_those_behind_it(world: World) -> None:
    store = world.open()
    ids = [put(store, queue="orders.fifo", group="g") for _ in range(3)]
    (first,) = claim(store, 10, "orders.fifo")
    for _ in range(4):
        world.clock.advance("20s")
        assert store.extend([first.receipt], lease_ms=30_000) == [LeaseStatus.HELD]
        assert claim(store, 10, "orders.fifo") == []
    settle(store, first, Ack())
    (second,) = claim(store, 10, "orders.fifo")
    assert (first.message.id, second.message.id, second.message.crashes) == (ids[0], ids[1], 0)


def test_requeue_mode_refuses_nothing_on_standard_queues_and_keeps_groups_fair(world: World) -> None:
    store = world.open("&mode=requeue", cells=False)
    put(store, group="tenant-1")
    delivery = claim(store)[0]
    assert delivery.message.group == "tenant-1"
    settle(store, delivery, RetryAt(world.clock()))
    assert claim(store)[0].message.group == "tenant-1"


# -- what cannot be


def test_a_queue_that_is_missing_is_named_with_the_fix(world: World) -> None:
    store = SqsStore(f"sqs://eu-central-1/shop?endpoint={world.server.url}", clock_ms=world.clock)
    world.stores.append(store)
    del world.server.account.queues["shop-default"]
    with pytest.raises(ConfigError, match=r"no queue shop-default .* create=true"):
        store.put([Draft(task="push")])


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("sqs://eu-central-1", "expected sqs://REGION/PREFIX"),
        ("sqs://eu-central-1/a/b", "expected sqs://REGION/PREFIX"),
        ("sqs://eu-central-1/shop?mode=fast", "expected visibility or requeue"),
        ("sqs://eu-central-1/shop?poll=21", "a whole number from 0 to 20"),
        ("sqs://eu-central-1/shop?visibility=1", "unknown option 'visibility'"),
        ("sqs://eu-central-1/shop?create=yes", "expected true or false"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        SqsStore(url)


def test_cells_are_asked_for_only_where_something_was_received_before(world: World) -> None:
    store = world.open()
    read: list[Callable[..., Any]] = []
    inner = store.cells.read
    store.cells.read = lambda keys: read.append(keys) or inner(keys)  # type: ignore[method-assign, func-returns-value, assignment]
    put(store)
    settle(store, claim(store)[0], Ack())
    assert [keys for keys in read if keys != ["sqs/paused"]] == []


def test_what_waits_for_its_retry_is_scheduled_and_not_leased(world: World) -> None:
    store = world.open()
    put(store), put(store)
    first, _ = claim(store, 2)
    settle(store, first, RetryAt(world.clock() + 3_600_000))
    store._deletes.flush()
    counts = store.counts("default")
    assert (counts.ready, counts.scheduled, counts.leased) == (0, 1, 1)


# -- at the cap


def test_a_queue_that_answers_at_once_with_nothing_is_not_asked_again_at_once(world: World) -> None:
    store = world.open("&poll=20")
    told: list[str] = []
    store.on_notice(lambda name, text: told.append(text))
    place = store.sqs_queues.of("default")
    line = store._receivers._inbox(place)
    for _ in range(3):  # as SQS does at its cap of messages in flight
        store._receivers._came_early(line)
    assert line.not_before_s - time.monotonic() > 0.5 and "answers at once" in told[0]
    store._receivers.ask([(ClaimRequest("default", 10, 30_000), place)], patient=False)
    assert line.flying == 0


def test_near_the_cap_a_retry_goes_as_a_copy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.stores.sqs.search.IN_FLIGHT_MAX", 5)
    monkeypatch.setattr("redrive.stores.sqs.search.LOOK_AFTER", 0)
    store = world.open()
    store.put([Draft(task="push") for _ in range(6)])
    deliveries = claim(store, 6)
    sent = world.server.requests["SendMessageBatch"]
    store.exchange([Settlement(d.receipt, RetryAt(world.clock() + 10_000), FAULT) for d in deliveries], [])
    assert world.server.requests["SendMessageBatch"] == sent + 1
    assert store.sqs_queues.counts(store.sqs_queues.of("default").url) == (0, 0, 6)
    world.clock.advance("11s")
    assert [d.message.attempt for d in claim(store, 6)] == [2] * 6


def test_a_table_of_cells_is_in_the_region_of_the_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    here = "endpoint=http://127.0.0.1:9"
    store = open_store(f"sqs://eu-central-1/shop?{here}&cells=dynamodb://shop-cells")
    assert store.traits.cells
    store.close()


def test_an_endpoint_on_this_machine_asks_no_cloud_for_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_EC2_METADATA_DISABLED", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    asked: list[object] = []
    fetch = "botocore.utils.InstanceMetadataFetcher.retrieve_iam_role_credentials"
    monkeypatch.setattr(fetch, lambda self: asked.append(self) or {})
    client("sqs", region="eu-central-1", endpoint="http://127.0.0.1:1").close()
    assert asked == []


def test_half_of_the_credentials_are_refused_with_a_name(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"AWS sqs.*AWS_SECRET_ACCESS_KEY"):
        SqsStore(f"sqs://eu-central-1/shop?endpoint={world.server.url}")


def test_what_stands_behind_a_waiting_head_of_its_group_waits_too(world: World) -> None:
    store = world.open()
    for _ in range(2):
        put(store, queue="orders.fifo", group="g")
    settle(store, claim(store, queue="orders.fifo")[0], RetryAt(world.clock() + 3_600_000))
    assert claim(store, queue="orders.fifo") == []
    counts = store.counts("orders.fifo")
    assert (counts.ready, counts.scheduled, counts.leased) == (0, 2, 0)
    put(store, queue="orders.fifo", group="h")
    assert len(claim(store, queue="orders.fifo")) == 1
    assert store.counts("orders.fifo").leased == 1


@pytest.mark.parametrize("name", ["orders", "orders.fifo"])
def test_a_fifo_queue_is_listed_once_by_the_name_it_was_asked_for(world: World, name: str) -> None:
    del world.server.account.queues["shop-default"]
    put(world.open(), queue="orders.fifo")
    store = world.open()
    assert store.counts(name).ready == 1
    assert {queue: counts.ready for queue, counts in store.counts_by_queue().items()} == {name: 1}


@pytest.mark.parametrize("triage, way", [(False, "where the URL has triage="), (True, "--state dead")])
def test_a_look_at_what_waits_says_what_can_be_looked_at(world: World, triage: bool, way: str) -> None:
    with pytest.raises(Unsupported, match=way):
        world.open(triage=triage).peek(None)


def test_a_table_without_a_region_is_told_where_to_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(ConfigError, match=r"no region is named; .*AWS_DEFAULT_REGION"):
        open_cells("dynamodb://shop-cells")


@pytest.mark.parametrize("how", ["argument", "AWS_ENDPOINT_URL"])
def test_a_server_on_this_machine_needs_no_credentials_however_it_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    nobody(monkeypatch)
    if how == "argument":
        aws.client("sqs", region="eu-central-1", endpoint=world.server.url).list_queues()
    else:
        monkeypatch.setenv("AWS_ENDPOINT_URL", world.server.url)
        aws.client("sqs", region="eu-central-1").list_queues()


def test_who_has_no_credentials_is_told_where_they_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody(monkeypatch)
    store = SqsStore("sqs://eu-central-1/shop?endpoint=http://192.0.2.1:9")
    with pytest.raises(ConfigError, match="there are no credentials; boto3 looks in"):
        store.put([Draft(task="t")])
    store.close()


def test_an_endpoint_that_is_no_url_is_told_with_what_one_is() -> None:
    with pytest.raises(ConfigError, match=r"127.0.0.1:1; expected .* http://127.0.0.1:8000"):
        SqsStore("sqs://eu-central-1/shop?endpoint=127.0.0.1:1")


def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials anywhere."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.parametrize("part", ["triage=postgresql://127.0.0.1:1/x", "cells=redis://127.0.0.1:1/0"])
def test_who_only_enqueues_needs_no_store_of_dead_letters_and_no_cells(world: World, part: str) -> None:
    app = App(f"sqs://eu-central-1/shop?create=true&poll=0&endpoint={world.server.url}&{part}")

    @app.task(name="t")
    def task() -> None: ...

    task.enqueue()
    assert world.lying("default") == 1
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
        app.run_worker(burst=True)
    app.store.close()
