"""What the Redis store asks of its server: settings that lose nothing, rights enough, and room."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.servers import RedisServer

from redrive.errors import ConfigError, Refused, StoreFull, StoreUnavailable
from redrive.message import (
    Ack,
    Cancel,
    ClaimRequest,
    Counts,
    DeadLetter,
    Draft,
    LeaseStatus,
    RetryAt,
    Settled,
    Settlement,
    Swap,
)
from redrive.stores import open_store
from redrive.stores.redis import preflight
from redrive.stores.redis.store import RedisStore


@pytest.fixture(scope="module")
def fragile() -> Iterator[RedisServer]:
    """A server whose settings tests of this module change; each puts them back."""
    with RedisServer(appendonly=True) as server:
        yield server


@pytest.fixture
def store(fragile: RedisServer, tmp_path: Path) -> Iterator[RedisStore]:
    store = RedisStore(f"{fragile.url}?namespace={tmp_path.name}")
    yield store
    store.close()


# -- preflight and doctor


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_refused_with_the_fix(fragile: RedisServer, store: RedisStore, policy: str) -> None:
    fragile.command("CONFIG", "SET", "maxmemory-policy", policy)
    try:
        with pytest.raises(Refused, match=f"maxmemory-policy is {policy}.*CONFIG SET maxmemory-policy noeviction"):
            RedisStore(fragile.url)
        assert [policy in line for line in store.doctor()] == [True]
    finally:
        fragile.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert store.doctor() == []


def test_the_policy_is_known_where_config_is_forbidden(fragile: RedisServer) -> None:
    fragile.command("ACL", "SETUSER", "eve", "on", "nopass", "~*", "&*", "+@all", "-config")
    fragile.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    url = fragile.url.replace("//", "//eve:x@")
    try:
        with pytest.raises(Refused, match="noeviction"):
            RedisStore(url)
    finally:
        fragile.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    store = RedisStore(url)
    assert store.doctor() == []
    store.close()


def test_a_server_without_an_append_only_file_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_warned", set())
    with RedisServer() as server, caplog.at_level(logging.WARNING):
        for _ in range(2):
            store = RedisStore(server.url)
            assert any("CONFIG SET appendonly yes" in line for line in store.doctor())
            store.close()
    assert [record.message for record in caplog.records if "append-only" in record.message] == [
        f"{server.url}: {preflight.NO_AOF}"
    ]


def test_a_doctor_says_what_makes_a_server_lose_messages_or_refuse_them(
    fragile: RedisServer, store: RedisStore
) -> None:
    for name, value, before, word in [
        ("appendfsync", "no", "everysec", "appendfsync everysec"),
        ("maxmemory", "1mb", "0", "raise maxmemory"),
    ]:
        fragile.command("CONFIG", "SET", name, value)
        said = store.doctor()
        fragile.command("CONFIG", "SET", name, before)
        assert len(said) == 1 and word in said[0], said
    about = store.info()
    assert str(about["engine"]).startswith(("Redis ", "Valkey ")) and int(about["memory_bytes"]) > 0


def test_a_replica_is_refused_with_its_master(fragile: RedisServer, redis_server: RedisServer) -> None:
    fragile.command("REPLICAOF", "127.0.0.1", redis_server.port)
    try:
        with pytest.raises(StoreUnavailable, match=f"replica of 127.0.0.1:{redis_server.port}.*URL of the master"):
            RedisStore(fragile.url)
    finally:
        fragile.command("REPLICAOF", "NO", "ONE")


def test_a_user_with_the_least_rights_can_do_everything(fragile: RedisServer) -> None:
    """The rule is the one that the module's docstring gives to users."""
    text = (preflight.__doc__ or "").partition("ACL SETUSER redrive")[2].partition("\n\n")[0]
    fragile.command("ACL", "SETUSER", "redrive", *text.replace("PASSWORD", "pw").split())
    url = fragile.url.replace("//", "//redrive:pw@")
    store = RedisStore(url)
    drafts = [Draft(task="t", group="g", key="k"), Draft(task="t", delay_ms=1), Draft(task="t"), Draft(task="t")]
    ids = [put.id for put in store.put(drafts)]
    store.wait([ClaimRequest("default", 10, 1000)], timeout_ms=100)
    deliveries = store.exchange([], [ClaimRequest("default", 10, 60_000)]).deliveries
    decisions = [Ack(keep_ms=None), Ack(), RetryAt(0), DeadLetter("permanent")]
    settled = [Settlement(d.receipt, one) for d, one in zip(deliveries, decisions, strict=False)]
    assert set(store.exchange(settled, []).settled) == {Settled.OK}
    store.configure("default", paused=True)
    store.reclaim("", None)
    store.cancel(ids)
    assert store.queues() == ["default"] and store.check() == [] and store.doctor() == []
    with pytest.raises(ConfigError, match="lacks a right"):
        RedisStore(f"{url}?namespace=other")
    store.close()
    fragile.command("ACL", "DELUSER", "redrive")


def test_a_user_who_may_not_publish_is_refused_before_anything_is_written(fragile: RedisServer) -> None:
    fragile.command("ACL", "SETUSER", "mute", "on", "nopass", "~*", "resetchannels", "+@all")
    with pytest.raises(ConfigError, match="lacks a right"):
        RedisStore(fragile.url.replace("//", "//mute:x@"))
    fragile.command("ACL", "DELUSER", "mute")


# -- a full server


def test_at_maxmemory_a_put_is_refused_whole_and_all_that_frees_goes_on(
    fragile: RedisServer, store: RedisStore
) -> None:
    ask = ClaimRequest("default", 100, 60_000)
    store.put(_drafts(20))
    held = store.exchange([], [ClaimRequest("default", 10, 60_000)]).deliveries
    fragile.command("CONFIG", "SET", "maxmemory", 1)
    try:
        before = store.counts()
        for drafts in (_drafts(1), _drafts(50), [Draft(task="t", key="k", group="g")]):
            with pytest.raises(StoreFull, match=r"nothing was written.*maxmemory"):
                store.put(drafts)
            assert store.counts().ready == before.ready == 10 and store.check() == []
        receipts = [delivery.receipt for delivery in held]
        assert store.extend(receipts, lease_ms=60_000) == [LeaseStatus.HELD] * 10
        decisions = [Ack(), Ack(keep_ms=None), RetryAt(0), RetryAt(store.now_ms() + 3_600_000), DeadLetter("permanent")]
        settlements = [Settlement(d.receipt, one) for d, one in zip(held, decisions * 2, strict=True)]
        assert store.exchange(settlements, []).settled == [Settled.OK] * 10
        claimed = store.exchange([], [ask]).deliveries
        assert len(claimed) == 12  # ten that waited, two that are tried again
        assert store.exchange([Settlement(d.receipt, Ack()) for d in claimed], []).settled == [Settled.OK] * 12
        assert store.counts() == Counts(scheduled=2, dead=2, done=2)
        store.configure("default", paused=True)
        assert store.check() == []
        with pytest.raises(StoreFull):
            store.put(_drafts(1))
        store.configure("default", paused=False)
    finally:
        fragile.command("CONFIG", "SET", "maxmemory", 0)
    assert len(store.put(_drafts(3))) == 3
    assert len(store.exchange([], [ask]).deliveries) == 3


def test_at_maxmemory_leases_that_ran_out_are_claimed_and_groups_go_on(fragile: RedisServer, store: RedisStore) -> None:
    store.put([Draft(task="t", group="g") for _ in range(5)])
    store.put(_drafts(3))
    store.exchange([], [ClaimRequest("default", 10, 1, worker="dead")])
    fragile.command("CONFIG", "SET", "maxmemory", 1)
    try:
        assert store.reclaim("nobody", None) == (0, 0)
        ran = list[str]()
        while store.counts().leased:
            deliveries = store.exchange([], [ClaimRequest("default", 1, 60_000)]).deliveries
            ran += [delivery.message.id for delivery in deliveries]
            store.exchange([Settlement(delivery.receipt, Ack()) for delivery in deliveries], [])
        while deliveries := store.exchange([], [ClaimRequest("default", 1, 60_000, worker="w")]).deliveries:
            assert store.reclaim("w", ()) == (1, 0)
            (again,) = store.exchange([], [ClaimRequest("default", 1, 60_000)]).deliveries
            assert store.cancel([again.message.id]) == [Cancel.REQUESTED]
            ran.append(again.message.id)
            store.exchange([Settlement(again.receipt, Ack())], [])
        assert len(ran) == len({*ran}) == 8
        assert store.counts() == Counts() and store.check() == []
    finally:
        fragile.command("CONFIG", "SET", "maxmemory", 0)


def test_at_maxmemory_a_sweep_goes_on_beside_the_claim_that_it_follows(fragile: RedisServer, store: RedisStore) -> None:
    store.put(_drafts(2))
    cells = [Swap(f"cell {n}", 0, b"x" * 100) for n in range(3000)]  # more than one sweep looks at
    assert all(store.cells.swap(cells))
    place = f"{{{store._link.namespace}}}:cs"
    assert fragile.command("EXISTS", place) == 0
    fragile.command("CONFIG", "SET", "maxmemory", 1)
    try:
        store._swept_ms = 0
        assert len(store.exchange([], [ClaimRequest("default", 10, 60_000)]).deliveries) == 2
        assert fragile.command("EXISTS", place) == 1  # from there the next sweep goes on
    finally:
        fragile.command("CONFIG", "SET", "maxmemory", 0)


def _drafts(count: int) -> list[Draft]:
    return [Draft(task="t", body=b"x" * 1000) for _ in range(count)]


# -- by URL


def test_a_store_is_opened_by_its_url(redis_server: RedisServer) -> None:
    for url in (redis_server.url, redis_server.url.replace("redis:", "valkey:")):
        store = open_store(url)
        assert store.traits.name == "redis" and store.doctor() == []
        store.close()
    with pytest.raises(ConfigError, match="unknown option 'nam'; known: namespace"):
        open_store(f"{redis_server.url}?nam=x")
