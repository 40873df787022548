"""The Redis store on a Redis Cluster: the whole contract, and what happens when slots and masters move."""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.servers import RedisCluster, RedisServer
from tests.support.turns import in_turn

from redrive.errors import ConfigError, StoreUnavailable
from redrive.message import Ack, ClaimRequest, Counts, Draft, Settled, Settlement
from redrive.store import Store
from redrive.stores.redis.store import RedisStore
from redrive.testing import ManualClock, StoreContract

AS_NODE = {"cluster-enabled": "yes", "cluster-node-timeout": 500, "repl-diskless-sync-delay": 0}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster(appendonly=True) as cluster:
        yield cluster


@in_turn(1, of=2)  # the other is PostgreSQL with floors
class TestRedisCluster(StoreContract):
    @pytest.fixture(autouse=True)
    def server(self, cluster: RedisCluster) -> None:
        self.url = cluster.url

    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return RedisStore(f"{self.url}?namespace={zlib.crc32(str(place).encode()):08x}", clock_ms=clock)


@pytest.fixture
def store(cluster: RedisCluster, tmp_path: Path) -> Iterator[RedisStore]:
    store = RedisStore(f"{cluster.url}?namespace={tmp_path.name}")
    yield store
    store.close()


class Load:
    """Threads that put and that claim and settle, until it is left; then the rest is worked off."""

    def __init__(self, url: str) -> None:
        self.acknowledged, self.done = set[str](), list[str]()
        self.errors: list[BaseException] = []
        self.settled_at_s = 0.0
        self._store = RedisStore(url)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,)) for work in (self._put, self._put, self._work)
        ]

    def _run(self, work: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                work()
            except StoreUnavailable:
                time.sleep(0.02)
            except BaseException as error:
                self.errors.append(error)
                return

    def _put(self) -> None:
        (put,) = self._store.put([Draft(task="t", body=b"x" * 100)])
        self.acknowledged.add(put.id)

    def _work(self) -> None:
        ask = ClaimRequest("default", 50, 5_000)
        deliveries = self._store.exchange([], [ask]).deliveries
        words = self._store.exchange([Settlement(d.receipt, Ack()) for d in deliveries], []).settled
        # A settlement whose answer was lost is repeated, and then stale; a lease that ran out is another's.
        self.done += [d.message.id for d, word in zip(deliveries, words, strict=True) if word is Settled.OK]
        self.settled_at_s = time.monotonic()

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def goes_on(self) -> None:
        """Return once something was settled after this was called."""
        since_s = time.monotonic()
        while self.settled_at_s <= since_s:
            assert not self.errors and time.monotonic() < since_s + 20, self.errors
            time.sleep(0.005)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        assert not self.errors
        while self._store.counts() != Counts():
            self._work()
        assert self._store.check() == []
        self._store.close()


def owner(cluster: RedisCluster, slot: int) -> RedisServer:
    """The node that serves the slot."""
    served = (row for row in cluster.nodes[0].command("CLUSTER", "SLOTS") if row[0] <= slot <= row[1])
    port = next(served)[2][1]
    return next(node for node in cluster.nodes if node.port == port)


def name_of(node: RedisServer) -> str:
    return str(node.command("CLUSTER", "MYID"))


def move_keys(source: RedisServer, target: RedisServer, slot: int, most: int) -> None:
    """Move keys of a slot that is moving until at most so many are left."""
    while source.command("CLUSTER", "COUNTKEYSINSLOT", slot) > most:
        keys = source.command("CLUSTER", "GETKEYSINSLOT", slot, 2)
        source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)


def test_a_slot_that_moves_under_load_loses_and_doubles_nothing(cluster: RedisCluster, tmp_path: Path) -> None:
    slot = cluster.nodes[0].command("CLUSTER", "KEYSLOT", f"{{{tmp_path.name}}}:")
    with Load(f"{cluster.url}?namespace={tmp_path.name}") as load:
        for _ in range(2):
            load.goes_on()
            source = owner(cluster, slot)
            target = next(node for node in cluster.nodes if node is not source)
            target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", name_of(source))
            source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", name_of(target))
            move_keys(source, target, slot, most=3)
            time.sleep(0.1)  # half here and half there, and calls keep coming
            move_keys(source, target, slot, most=0)
            for node in (target, source, *cluster.nodes):
                node.command("CLUSTER", "SETSLOT", slot, "NODE", name_of(target))
        load.goes_on()
    assert load.acknowledged <= {*load.done}
    assert len(load.done) == len({*load.done})


def test_while_a_slot_moves_nothing_is_read_or_written(cluster: RedisCluster, store: RedisStore) -> None:
    (put,) = store.put([Draft(task="t")])
    slot = cluster.nodes[0].command("CLUSTER", "KEYSLOT", f"{{{store._link.namespace}}}:")
    source = owner(cluster, slot)
    target = next(node for node in cluster.nodes if node is not source)
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", name_of(source))
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", name_of(target))
    try:
        for key in source.command("CLUSTER", "GETKEYSINSLOT", slot, 1):
            source.command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        before = [node.command("CLUSTER", "COUNTKEYSINSLOT", slot) for node in (source, target)]
        assert min(before) > 0
        with pytest.raises(StoreUnavailable, match="moving to another node"):
            store.find([put.id])
        with pytest.raises(StoreUnavailable, match="moving to another node"):
            store.put([Draft(task="t")])
        assert [node.command("CLUSTER", "COUNTKEYSINSLOT", slot) for node in (source, target)] == before
    finally:
        move_keys(source, target, slot, most=0)
        for node in (target, source, *cluster.nodes):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", name_of(target))
    assert store.find([put.id]) != [None]


def test_a_wait_hears_of_puts_after_its_slot_has_moved(cluster: RedisCluster, store: RedisStore) -> None:
    slot = cluster.nodes[0].command("CLUSTER", "KEYSLOT", f"{{{store._link.namespace}}}:")
    source = owner(cluster, slot)
    target = next(node for node in cluster.nodes if node is not source)
    heard, stop = threading.Event(), threading.Event()

    def wait() -> None:
        while not stop.is_set():
            store.wait([ClaimRequest("default", 1, 1000)], timeout_ms=60_000)
            if store.exchange([], [ClaimRequest("default", 1, 60_000)]).deliveries:
                heard.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", name_of(source))
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", name_of(target))
    move_keys(source, target, slot, most=0)
    for node in (target, source, *cluster.nodes):
        node.command("CLUSTER", "SETSLOT", slot, "NODE", name_of(target))
    time.sleep(0.1)
    with contextlib.closing(RedisStore(f"{cluster.url}?namespace={store._link.namespace}")) as other:
        other.put([Draft(task="t")])
    assert heard.wait(10)
    stop.set()
    store.nudge()
    waiting.join(10)


def test_a_replica_that_takes_over_is_found_without_help(tmp_path: Path) -> None:
    with RedisCluster(options=AS_NODE) as cluster, RedisServer(options=AS_NODE) as replica:
        slot = cluster.nodes[0].command("CLUSTER", "KEYSLOT", f"{{{tmp_path.name}}}:")
        master = owner(cluster, slot)
        replica.command("CLUSTER", "MEET", "127.0.0.1", master.port)
        until(lambda: name_of(master) in replica.command("CLUSTER", "NODES"))
        replica.command("CLUSTER", "REPLICATE", name_of(master))
        until(lambda: "master_link_status:up" in replica.command("INFO", "replication"))
        with Load(f"{cluster.url}?namespace={tmp_path.name}") as load:
            load.goes_on()
            give_over(replica)
            load.goes_on()
            until(lambda: "master_link_status:up" in master.command("INFO", "replication"))
            before = {*load.done}
            replica.kill()
            until(lambda: "role:master" in master.command("INFO", "replication"))
            load.goes_on()
        assert len(load.done) > len(before)


def test_an_address_and_a_scheme_that_do_not_fit_are_refused(cluster: RedisCluster, redis_server: RedisServer) -> None:
    for node in cluster.nodes:  # whichever has the slot
        with pytest.raises(ConfigError, match=r"write redis\+cluster://"):
            RedisStore(node.url)
    with pytest.raises(ConfigError, match="not a cluster; write redis://"):
        RedisStore(redis_server.url.replace("redis:", "redis+cluster:"))
    first, *_, last = cluster.nodes
    RedisStore(f"redis+cluster://127.0.0.1:1,127.0.0.1:{last.port}").close()  # the first one known need not be there
    RedisStore(f"valkey+cluster://127.0.0.1:{first.port}").close()


def give_over(replica: RedisServer) -> None:
    """Let it change places with its master; no write is lost. That may not come about, and is asked for again."""
    end_s = time.monotonic() + 40
    while "role:master" not in replica.command("INFO", "replication"):
        assert time.monotonic() < end_s
        with contextlib.suppress(RuntimeError):  # it is being done
            replica.command("CLUSTER", "FAILOVER")
        time.sleep(0.5)


def until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.01)
