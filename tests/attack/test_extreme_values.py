"""Legal values that no version of redrive writes: counters at their end, members that are none, flags turned back by
hand. They harm the message that has them at most, and `store check` names them."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.support.attack.damage import FAULT, claim, host, settle, store
from tests.support.attack.hosts import Host, PostgresHost, RedisHost
from tests.support.servers import RedisServer

from redrive import App, Context
from redrive.message import (
    DAMAGED,
    Ack,
    ClaimRequest,
    DeadLetter,
    Delivery,
    Draft,
    Lane,
    Message,
    Receipt,
    RetryAt,
    Settled,
    Settlement,
    Swap,
)
from redrive.program.main import run as redrive
from redrive.store import Store
from redrive.worker.delivery_events import CAUSES_MAX, fate
from redrive.worker.settlement import Outcome

__all__ = ["host", "store"]  # fixtures
END = 2**31 - 1


def put(store: Store, count: int, **options: Any) -> list[str]:
    return [put.id for put in store.put([Draft(**{"task": "work", **options}) for _ in range(count)])]


def work(host: Host) -> Counter[str]:
    ran: Counter[str] = Counter()
    app = App(host.url)

    @app.task(name="work", ctx=True)
    def handler(ctx: Context) -> None:
        ran[ctx.message_id] += 1

    with closing(app.store):
        app.run_worker(burst=True)
    return ran


# -- counters


def test_causes_of_any_number_of_crashes_are_bounded() -> None:
    message = Message("id", "work", "default", b"{}", "id", crashes=END, faults=(FAULT,), life_ms=0)
    delivery = Delivery(message, Receipt(1, 1), 0)
    settlement = Settlement(delivery.receipt, DeadLetter("exhausted"), FAULT)
    told = fate(Outcome(settlement, delivery), Settled.OK, 0, "w")
    assert len(told.causes) == CAUSES_MAX and told.crashes == END


@pytest.mark.turns(3)
@pytest.mark.parametrize("field", ["attempt", "fence", "crashes", "held_ms", "enqueued_ms"])
@pytest.mark.parametrize("host", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("value", [END, 2**63 - 1, -1, -(2**63)], ids=["31 bits", "63 bits", "below", "lowest"])
def test_a_number_at_the_end_of_its_range_stops_nobody(host: Host, store: Store, field: str, value: int) -> None:
    ids = put(store, 4)
    host.spoil(ids[0], field, value)
    ran = work(host)
    assert [ran[id] for id in ids[1:]] == [1] * 3
    (left,) = store.find(ids[:1])
    assert ran[ids[0]] + (left is not None) == 1, "it ran, or it was set aside"
    if left is not None:
        assert left.lane is Lane.QUARANTINE and left.reason in (DAMAGED, "crashed")
        assert left.reason == "crashed" or any(ids[0] in line for line in store.check())


@pytest.mark.parametrize("host", ["postgres"], indirect=True)
def test_a_settlement_of_a_number_at_its_end_does_not_fail_the_others(host: Host, store: Store) -> None:
    ids = put(store, 3)
    held = claim(store)
    host.spoil(ids[0], "held_ms", 2**63 - 1)
    words = settle(store, held, RetryAt(store.now_ms() + 60_000, held=True), None)
    assert words[1:] == ["ok", "ok"]
    assert [message.reason for message in store.peek(Lane.QUARANTINE).messages] == [DAMAGED]


@pytest.mark.parametrize("host", ["postgres"], indirect=True)
def test_what_was_set_aside_for_its_numbers_runs_once_it_is_mended_and_redriven(host: Host, store: Store) -> None:
    [id, *_] = put(store, 2)
    host.spoil(id, "attempt", END)
    work(host)
    store.repair(lambda message: None)
    app = App(store=store)
    assert len(app.dlq.retry([id])) == 1
    assert work(host)[id] == 1 and store.check() == []


# -- PostgreSQL


@pytest.fixture
def postgres(request: pytest.FixtureRequest, store: Store, host: Host) -> PostgresHost:
    assert isinstance(host, PostgresHost)
    return host


@pytest.mark.parametrize("host", ["postgres"], indirect=True)
@pytest.mark.parametrize(("field", "value"), [("cancel", "false"), ("seq", -1)])
@pytest.mark.parametrize("group", [None, "g"])
def test_a_flag_turned_back_by_hand_and_a_negative_number_run_once(
    postgres: PostgresHost, store: Store, field: str, value: Any, group: str | None
) -> None:
    ids = put(store, 3, group=group)
    assert postgres.spoil(ids[0], field, value)
    assert field != "seq" or store.check() != []
    ran = work(postgres)
    assert ran == dict.fromkeys(ids, 1) and store.counts().leased == store.counts().ready == 0


@pytest.mark.parametrize("host", ["postgres"], indirect=True)
def test_widths_and_words_of_a_queue_that_are_none_are_named(postgres: PostgresHost, store: Store) -> None:
    store.configure("default", group_width=2)
    store.configure_group("default", "g", width=3)
    with psycopg.connect(postgres._server, autocommit=True) as c:
        c.execute(f"update {postgres._schema}.line set width = -1 where name = 'g'")  # type: ignore[arg-type]
        c.execute(f"update {postgres._schema}.queue set on_dead = 'x', group_width = 0")  # type: ignore[arg-type]
    names = sorted(line.partition(": ")[0] for line in store.check())
    assert names == ["queue 'default'", "queue 'default'", "queue 'default', group 'g'"]


@pytest.mark.parametrize("host", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("field", ["grp", "queue"])
def test_those_behind_a_head_that_was_moved_are_named_and_let_in(
    host: Host, store: Store, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = put(store, 3, group="g")
    host.spoil(ids[0], field, "elsewhere")
    ran = work(host)
    assert not {*ids[1:]} & ran.keys()
    assert redrive(["store", "check", "--url", host.url]) == 1
    assert "group 'g': a message is parked though a place is free" in capsys.readouterr().out
    assert redrive(["store", "check", "--repair", "--url", host.url]) == 0
    assert {*ids[1:]} <= work(host).keys()


# -- Redis

SETS = [
    "d2:default",
    "l2:default",
    "a2:default",
    "w:default",
    "rD:default",
    "rK:default",
    "p:default\0g",
    "t:default\0g",
]
MEMBERS = [b"", b"x", b"12345", b"123456", b"1234567", b"x" * 21, b"x" * 22, b"x" * 23, b"\xff" * 60]


@pytest.fixture
def redis(redis_server: RedisServer, host: Host) -> RedisHost:
    assert isinstance(host, RedisHost)
    return host


def add(redis: RedisHost, key: str, member: bytes) -> None:
    name = redis._root + key.encode()
    kind = bytes(redis._redis.type(name))
    if kind == b"set" or key.startswith("t:"):
        redis._redis.sadd(name, member)
    else:
        redis._redis.zadd(name, {member: 1})


@pytest.mark.parametrize("host", ["redis"], indirect=True)
@pytest.mark.parametrize("key", SETS)
def test_members_that_are_no_members_are_left_out_and_named(
    redis: RedisHost, store: Store, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = put(store, 2)
    settle(store, claim(store), Ack(keep_ms=60_000))
    grouped, plain = put(store, 3, group="g"), put(store, 3)
    for member in MEMBERS:
        add(redis, key, member)
    assert {m.id for m in store.peek(None, limit=2).messages} <= {*dead, *grouped, *plain}
    listed, page = [], store.peek(None, limit=3)
    while True:
        listed += [message.id for message in page.messages]
        if page.cursor is None:
            break
        page = store.peek(None, limit=3, cursor=page.cursor)
    assert sorted(listed) == sorted([*dead, *grouped, *plain])
    for words in (["status"], ["job", "list"], ["dlq", "list"], ["queue", "list"]):
        assert redrive([*words, "--url", redis.url]) in (0, 1), words
    told = store.check()
    assert sum(line.startswith(f"set {key!r}") for line in told) == len(MEMBERS)
    capsys.readouterr()
    if key.startswith("t:"):  # what holds places keeps others out until somebody mends it
        assert redrive(["store", "check", "--repair", "--url", redis.url]) == 0
    ran = work(redis)
    assert ran == dict.fromkeys([*grouped, *plain], 1)
    redrive(["store", "check", "--repair", "--url", redis.url])
    assert store.check() == []


@pytest.mark.turns(3)
@pytest.mark.parametrize("host", ["redis"], indirect=True)
@pytest.mark.parametrize("value", [b"", b"x", b"1.5", b"-7", b"1e400", b"9" * 30, b"9223372036854775807"])
@pytest.mark.parametrize("counter", ["pn", "n", "cn"])
def test_a_counter_that_is_no_number_stops_nothing(
    redis: RedisHost, store: Store, counter: str, value: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = put(store, 3, group="g")
    store.cells.swap([Swap("a", 0, b"1")])
    (before,) = store.cells.read(["a"])
    name = redis._root + counter.encode()
    if counter == "pn":
        redis._redis.hset(name, "default", value)
    else:
        redis._redis.set(name, value)
    assert any("cannot be" in line for line in store.check())
    for words in (["status"], ["upcoming"], ["queue", "list"]):
        assert redrive([*words, "--url", redis.url]) in (0, 1), (words, capsys.readouterr())
    ids += put(store, 2, group="g") + put(store, 2)
    assert before is not None and store.cells.swap([Swap("a", before.version, b"2"), Swap("b", 0, b"1")]) == [
        True,
        True,
    ]
    (after,) = store.cells.read(["a"])
    assert after is not None and after.version > before.version
    assert work(redis) == dict.fromkeys(ids, 1)
    store.repair(lambda message: None)
    assert store.check() == [] and store.counts().scheduled == 0


@pytest.mark.parametrize("host", ["redis"], indirect=True)
def test_settings_of_a_queue_that_cannot_be_read_pause_it_until_it_is_resumed(redis: RedisHost, store: Store) -> None:
    ids, other = put(store, 2), put(store, 1, queue="other")
    redis._redis.hset(redis._root + b"set", "default", b"\xc1")
    assert store.paused() == {"default"} and any("its settings" in line for line in store.check())
    asks = [ClaimRequest(queue, 10, 30_000, worker="w") for queue in ("default", "other")]
    assert [d.message.id for d in store.exchange([], asks).deliveries] == other
    assert redrive(["queue", "resume", "default", "--reason", "mended", "--url", redis.url]) == 0
    assert {d.message.id for d in store.exchange([], asks).deliveries} == {*ids} and store.check() == []


@pytest.mark.parametrize("host", ["redis"], indirect=True)
def test_a_time_with_a_fraction_lets_every_list_end(redis: RedisHost, store: Store) -> None:
    ids = put(store, 3)
    settle(store, claim(store), Ack(keep_ms=60_000))
    (member, at), *_ = redis._redis.zrange(redis._root + b"rK:default", 0, -1, withscores=True)  # type: ignore[misc]
    redis._redis.zadd(redis._root + b"rK:default", {member: at + 0.5})

    def listed() -> set[str]:
        page, found = store.peek(Lane.DONE, limit=1), set[str]()
        for _ in ids:
            found |= {message.id for message in page.messages}
            if page.cursor is None:
                break
            page = store.peek(Lane.DONE, limit=1, cursor=page.cursor)
        assert page.cursor is None
        return found

    assert listed() and len(store.check()) == 1
    store.repair(lambda message: None)
    assert listed() == {*ids} and store.check() == []
