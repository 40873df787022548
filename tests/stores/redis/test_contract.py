"""The Redis store against the contract that any store must keep, on a real private server."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.support.attack.hosts import RedisHost
from tests.support.namespaces import redis_url
from tests.support.servers import RedisServer

from redrive.errors import EnqueueError, StoreUnavailable
from redrive.ids import new_id
from redrive.message import (
    DAMAGED,
    Ack,
    ClaimRequest,
    Counts,
    DeadLetter,
    Draft,
    Group,
    Keep,
    Lane,
    PutResult,
    RetryAt,
    Settled,
    Settlement,
    Swap,
)
from redrive.store import Store
from redrive.stores.redis.store import RedisStore
from redrive.testing import ManualClock, StoreContract


class TestRedis(StoreContract):
    @pytest.fixture(autouse=True)
    def server(self, redis_server: RedisServer) -> None:
        self.redis_server = redis_server

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return RedisStore(redis_url(place, self.redis_server), clock_ms=clock)


@pytest.fixture
def store(redis_server: RedisServer, tmp_path: Path) -> Iterator[RedisStore]:
    with closing(RedisStore(redis_url(tmp_path, redis_server))) as store:
        yield store


def ask(limit: int = 100, **parts: Any) -> ClaimRequest:
    return ClaimRequest("default", limit, 30_000, **parts)


def draft(**parts: Any) -> Draft:
    return Draft(task="t", **parts)


def test_a_delayed_message_takes_little_memory(redis_server: RedisServer, store: RedisStore) -> None:
    def used() -> int:
        lines = str(redis_server.command("INFO", "memory")).splitlines()
        return int(next(line for line in lines if line.startswith("used_memory:")).partition(":")[2])

    store.put([draft(delay_ms=1)])
    before = used()
    for n in range(20):
        store.put([draft(body=b'{"record_id": %d}' % (n * 1000 + i), delay_ms=3_600_000 + i) for i in range(1000)])
    assert (used() - before) / 20_000 < 330  # 282 measured; allocators differ


def test_cells_take_little_memory_and_none_once_their_time_is_over(redis_server: RedisServer, tmp_path: Path) -> None:
    def used() -> int:
        lines = str(redis_server.command("INFO", "memory")).splitlines()
        return int(next(line for line in lines if line.startswith("used_memory:")).partition(":")[2])

    clock = ManualClock()
    with closing(RedisStore(redis_url(tmp_path, redis_server), clock_ms=clock)) as store:

        def left() -> int:
            return int(redis_server.command("HLEN", f"{{{store._link.namespace}}}:c"))

        assert store.cells.swap([Swap("stays", 0, b"1")]) == [True]
        before, keys = used(), [f"idem/charge/{n:032x}" for n in range(20_000)]
        for first in range(0, len(keys), 1000):
            swaps = [Swap(key, 0, b"[1,2,3,4,5]" * 4, ttl_ms=3_600_000) for key in keys[first : first + 1000]]
            assert all(store.cells.swap(swaps))
        assert (used() - before) / len(keys) < 260  # 205 measured
        versions = [cell.version for cell in store.cells.read(keys[:10_000]) if cell is not None]
        longer = [
            Swap(key, version, b"2", ttl_ms=9_000_000) for key, version in zip(keys[:10_000], versions, strict=True)
        ]
        assert all(store.cells.swap(longer)) and left() == 20_001
        clock.advance("61m")
        store.exchange([], [])
        assert left() < 20_001
        for _ in range(30):
            store.exchange([], [])
        assert left() == 10_001
        clock.advance("2h")
        for _ in range(30):
            store.exchange([], [])
        assert left() == 1
        assert store.cells.swap([Swap(keys[0], 0, b"3")]) == [True]
        (cell,) = store.cells.read([keys[0]])
        assert cell is not None and cell.version > 30_000


def test_versions_above_a_counter_that_was_lost_are_not_used_again(
    redis_server: RedisServer, store: RedisStore
) -> None:
    def above(key: str, version: int, expires_ms: int) -> None:
        packed = struct.pack(">QQB", version, expires_ms, 1) + b"x"
        assert redis_server.command("HSET", f"{{{store._link.namespace}}}:c", key, packed.decode("latin-1")) == 1

    def at(key: str) -> int:
        (cell,) = store.cells.read([key])
        return 0 if cell is None else cell.version

    above("often", 70, 0)
    above("gone", 90, 1)
    assert at("often") == 70 and at("gone") == 0
    assert store.cells.swap([Swap("often", 70, b"2"), Swap("new", 0, b"1")]) == [True, True]
    assert at("often") > 70 and at("new") > 0
    store._swept_ms = 0
    store.exchange([], [])
    assert store.cells.swap([Swap("gone", 0, b"1")]) == [True]
    assert at("gone") > 90


def test_more_than_one_script_may_admit_are_admitted_by_the_exchanges_after_it(store: RedisStore) -> None:
    for _ in range(3):
        store.put([draft(group="g")] * 500)
    store.configure("default", group_width=1500)
    assert store.check() == []
    taken = [delivery for _ in range(3) for delivery in store.exchange([], [ask(1000)]).deliveries]
    assert len(taken) == 1500
    assert store.groups("default") == [Group("default", "g", 1500, 1500, 0)]


def test_a_claim_is_bounded_by_bytes_and_leaves_the_rest_due(store: RedisStore) -> None:
    for _ in range(4):
        store.put([draft(body=bytes(100_000))] * 100)
    first = store.exchange([], [ask(400)]).deliveries
    assert 0 < len(first) < 400
    rest = store.exchange([], [ask(400)]).deliveries
    assert len(first) + len(rest) == 400


def test_more_leases_than_one_script_looks_at_are_released(store: RedisStore) -> None:
    for _ in range(3):
        store.put([draft()] * 1000)
        store.exchange([], [ask(1000, worker="dead")])
    assert store.reclaim("dead", []) == (3000, 0)
    assert store.counts().ready == 3000


def test_a_backlog_is_swept_and_retired_a_thousand_at_a_time(redis_server: RedisServer, tmp_path: Path) -> None:
    clock = ManualClock()
    with closing(RedisStore(redis_url(tmp_path, redis_server), clock_ms=clock)) as store:
        for keep_ms in (1000, None):
            store.put([draft()] * 1000 + [draft()] * 500)
            deliveries = store.exchange([], [ask(1500)]).deliveries
            store.exchange([Settlement(d.receipt, Ack(keep_ms=keep_ms)) for d in deliveries], [])
        clock.advance("2m")
        for left in (2000, 1500, 1500):
            store.exchange([], [])
            assert store.counts().done == left
        assert [store.retain("default", done=Keep(count=100))[0] for _ in range(3)] == [1000, 400, 0]
        assert store.check() == []


def test_what_is_waiting_can_be_paged_through_beyond_what_one_script_gives(store: RedisStore) -> None:
    ids = [put.id for _ in range(6) for put in store.put([draft(delay_ms=1000)] * 800)]
    seen, cursor = list[str](), None
    while True:
        page = store.peek(Lane.READY, limit=1000, cursor=cursor)
        seen += [message.id for message in page.messages]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == ids


def test_the_keys_of_a_namespace_begin_with_its_tag_and_an_emptied_one_keeps_little(
    redis_server: RedisServer, store: RedisStore
) -> None:
    store.put([draft(key=f"k{n}", group=f"g{n % 7}") for n in range(50)])
    store.put([draft(delay_ms=1, priority=n % 4) for n in range(50)])
    done = 0
    while done < 100:
        deliveries = store.exchange([], [ask()]).deliveries
        words = store.exchange([Settlement(d.receipt, Ack()) for d in deliveries], []).settled
        assert set(words) <= {Settled.OK}
        done += len(words)
    tag = f"{{{store._link.namespace}}}:"
    left = {key.removeprefix(tag) for key in redis_server.command("KEYS", f"*{store._link.namespace}*")}
    assert left <= {"m", "s", "n", "qs", "pn"}  # and no key without the tag


@pytest.mark.parametrize("fails", [1, 2, 3], ids=["set_aside", "sweep", "find"])
def test_what_an_exchange_committed_is_returned_though_a_call_after_it_fails(
    redis_server: RedisServer, tmp_path: Path, fails: int
) -> None:
    clock, calls = ManualClock(), count()

    def fail(point: str) -> None:
        if point == "commit" and next(calls) == fails:
            raise StoreUnavailable("no answer")

    with closing(RedisHost(redis_server.url, tmp_path.name)) as host, closing(host.open(clock)) as store:
        assert isinstance(store, RedisStore)
        _, sound, torn = [put.id for put in store.put([draft()] * 3)]
        (running,) = store.exchange([], [ask(1)]).deliveries
        assert host.spoil(torn, "message tail", "garbage")
        store._swept_ms, store.failpoint = 0, fail
        done = store.exchange([Settlement(running.receipt, Ack())], [ask()])
        store.failpoint = lambda point: None
        assert next(calls) > fails
        assert (done.settled, [d.message.id for d in done.deliveries]) == ([Settled.OK], [sound])
        clock.advance("31s")  # leases run out
        again = store.exchange([], [ask()])
        assert [(d.message.id, d.message.crashes) for d in again.deliveries] == [(sound, 1)]
        (message,) = store.find([torn])
        assert message is not None and (message.lane, message.reason) == (Lane.QUARANTINE, DAMAGED)
        assert store.counts() == Counts(leased=1, quarantine=1)


def test_on_the_servers_clock_nothing_is_early(redis_server: RedisServer, tmp_path: Path) -> None:
    store = RedisStore(redis_url(tmp_path, redis_server))
    ask = ClaimRequest("default", 1, 1000)
    before_s = time.time()
    store.put([Draft(task="push", delay_ms=30)])
    while not store.exchange([], [ask]).deliveries:
        store.wait([ask], timeout_ms=60_000)
    assert time.time() - before_s >= 0.03
    store.close()


def test_a_put_that_broke_is_not_taken_for_done_by_an_id_that_was_there_before(
    redis_server: RedisServer, store: RedisStore
) -> None:
    used = store.put([draft()])[0].id
    free = [new_id(store.now_ms()) for _ in range(2)]
    for drafts in ([draft(id=used), draft()], [draft(id=used), draft(id=free[0])]):
        with pytest.raises(EnqueueError, match="already stored"):
            sent_and_lost(redis_server, lambda drafts=drafts: store.put(drafts))
    assert store.counts().ready == 1
    puts: list[PutResult] = sent_and_lost(redis_server, lambda: store.put([draft(id=id) for id in free]))
    assert [put.id for put in puts] == free
    assert store.counts().ready == 3


def sent_and_lost(server: RedisServer, call: Callable[[], Any]) -> Any:
    """What a call gives whose command reached the server, which was never carried out as its connection was cut."""
    with ThreadPoolExecutor() as threads:
        server.command("CLIENT", "PAUSE", 20_000, "WRITE")
        try:
            given = threads.submit(call)
            while not (held := re.findall(r"id=(\d+) .* flags=b ", str(server.command("CLIENT", "LIST")))):
                time.sleep(0.01)
            server.command("CLIENT", "KILL", "ID", held[0])
        finally:
            server.command("CLIENT", "UNPAUSE")
        return given.result()


def said(server: RedisServer, section: str, name: str) -> int:
    """A number that INFO tells."""
    found = re.search(rf"{name}[:=](\d+)", str(server.command("INFO", section)))
    return int(found[1]) if found else 0


def test_a_look_reads_long_bodies_a_few_at_a_time_and_finds_all(redis_server: RedisServer, store: RedisStore) -> None:
    ids = [put.id for _ in range(6) for put in store.put([draft(body=bytes(200_000))] * 10)]
    before = said(redis_server, "stats", "total_net_output_bytes")
    assert [message.id for message in store.peek(Lane.READY, limit=1).messages] == ids[:1]
    assert said(redis_server, "stats", "total_net_output_bytes") - before < 1_000_000
    found = [message for message in store.find(ids) if message is not None]
    assert [message.id for message in found] == ids
    assert {len(message.body) for message in found} == {200_000}
    page = store.peek(None, limit=60)
    assert ([message.id for message in page.messages], page.cursor) == (ids, None)


def test_a_release_costs_no_more_calls_than_there_are_leases(redis_server: RedisServer, store: RedisStore) -> None:
    store.put([draft(queue=f"q{n}") for n in range(300)])
    assert len(store.exchange([], [ClaimRequest("q7", 1, 30_000, worker="dead")]).deliveries) == 1
    before = said(redis_server, "commandstats", "cmdstat_evalsha:calls")
    assert store.reclaim("dead", []) == (1, 0)
    assert said(redis_server, "commandstats", "cmdstat_evalsha:calls") - before < 20


def test_a_page_of_what_rests_is_whole_over_many_queues(store: RedisStore) -> None:
    names, ids = [f"q{n}" for n in range(40)], list[str]()
    for name in names:
        store.put([draft(queue=name)] * 3)
        deliveries = store.exchange([], [ClaimRequest(name, 3, 30_000)]).deliveries
        store.exchange([Settlement(d.receipt, DeadLetter("permanent")) for d in deliveries], [])
        ids += [d.message.id for d in deliveries]
    seen, cursor = list[str](), None
    while True:
        page = store.peek(None, limit=1000 if cursor else 100, cursor=cursor)
        seen += [message.id for message in page.messages]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == ids


@pytest.mark.parametrize("skip", [frozenset[str](), frozenset({"other"})], ids=["", "skipping"])
def test_what_is_among_the_retries_and_not_due_is_neither_given_nor_kept(
    redis_server: RedisServer, store: RedisStore, skip: frozenset[str]
) -> None:
    store.put([draft() for _ in range(6)])
    held = store.exchange([], [ask()]).deliveries
    store.exchange([Settlement(d.receipt, RetryAt(n)) for n, d in enumerate(held)], [])
    retries, copy = (f"{{{store._link.namespace}}}:{name}" for name in ("a2:default", "copy"))
    redis_server.command("ZUNIONSTORE", copy, 1, retries)
    done, waiting = store.exchange([], [ask(2)]).deliveries
    later = store.now_ms() + 60_000
    store.exchange([Settlement(done.receipt, Ack()), Settlement(waiting.receipt, RetryAt(later))], [])
    redis_server.command("ZUNIONSTORE", retries, 1, copy)
    assert redis_server.command("DEL", copy) == 1
    store.put([draft(due_ms=0)])
    found = store.exchange([], [ask(3, skip=skip, retries=2)]).deliveries
    assert [d.message.id for d in found[:2]] == [d.message.id for d in held[2:4]]
    assert found[2].message.attempt == 1
    assert redis_server.command("ZCARD", retries) == 2
    assert store.check() == []
