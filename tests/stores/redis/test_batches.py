"""Batches on Redis: what is not in the contract of stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.namespaces import redis_url
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

from redrive.errors import StoreError
from redrive.message import (
    Ack,
    BatchCounts,
    BatchMark,
    Cancel,
    ClaimRequest,
    DeadLetter,
    Discard,
    Draft,
    Filter,
    Handle,
    Keep,
    Lane,
    Redrive,
    Settled,
    Settlement,
)
from redrive.stores.redis import session
from redrive.stores.redis.store import RedisStore
from redrive.testing import ManualClock

ASK = ClaimRequest("default", 100, 30_000, worker="w")
FORMAT = "if call('EXISTS', root .. 'v') == 1 then"


@pytest.fixture
def store(redis_server: RedisServer, tmp_path: Path) -> Iterator[RedisStore]:
    with closing(RedisStore(redis_url(tmp_path, redis_server))) as store:
        yield store


@pytest.fixture
def earlier(redis_server: RedisServer, tmp_path: Path) -> Iterator[RedisStore]:
    """A store whose scripts know no format, as those from before batches."""
    with closing(RedisStore(redis_url(tmp_path, redis_server))) as store:
        for path in (Path(session.__file__).parent / "scripts").glob("[a-z]*.lua"):
            text = session.script_text(path.stem)
            assert FORMAT in text
            if path.stem != "begin_batches":  # there was none
                store._link.add(path.stem, text.replace(FORMAT, "if false then"))
        yield store


def draft(**parts: Any) -> Draft:
    return Draft(task="t", **parts)


def counts(store: RedisStore) -> BatchCounts:
    assert store.check() == []
    return store.batch_counts(["b"])[0]


def test_a_namespace_without_batches_stays_as_earlier_programs_know_it(store: RedisStore, earlier: RedisStore) -> None:
    store.put([draft()])
    (delivery,) = earlier.exchange([], [ASK]).deliveries
    assert store.exchange([Settlement(delivery.receipt, Ack())], []).settled == [Settled.OK]


def test_an_earlier_program_does_nothing_in_a_namespace_that_has_had_a_batch(
    redis_server: RedisServer, store: RedisStore, earlier: RedisStore
) -> None:
    (waiting, _), (member,) = earlier.put([draft(group="g"), draft(queue="held")]), store.put([draft(batch="b")])
    (held,) = store.exchange([], [ClaimRequest("held", 1, 30_000, worker="w")]).deliveries
    store.put([draft(queue="dead", batch="b")])
    (delivery,) = store.exchange([], [ClaimRequest("dead", 1, 30_000)]).deliveries
    store.exchange([Settlement(delivery.receipt, DeadLetter("permanent"))], [])
    dead = Handle(delivery.message.id, 0, Lane.DEAD)
    message = store.peek(Lane.DEAD).messages[0]
    for call in (
        lambda: earlier.exchange([], [ASK]),
        lambda: earlier.exchange([Settlement(held.receipt, Ack())], []),
        lambda: earlier.exchange([Settlement(held.receipt, DeadLetter("permanent"))], []),
        lambda: earlier.extend([held.receipt], lease_ms=1),
        lambda: earlier.reclaim("w", []),
        lambda: earlier.put([draft()]),
        lambda: earlier.cancel([member.id]),
        lambda: earlier.triage([dead], Discard("no")),
        lambda: earlier.triage([dead], Redrive()),
        lambda: earlier.retain("dead", dead=Keep(count=0)),
        lambda: earlier.restore([message]),
        lambda: earlier.find([waiting.id]),
        lambda: earlier.configure("default", group_width=2),
        lambda: earlier.configure_group("default", "g", width=2),
    ):
        with pytest.raises(StoreError, match="WRONGTYPE"):
            call()
    assert counts(store) == BatchCounts(open=1, dead=1, opened=2, died=1)
    assert "upgrade" in str(redis_server.command("GET", f"{{{store._link.namespace}}}:m"))
    assert store.exchange([Settlement(held.receipt, Ack())], []).settled == [Settled.OK]
    claimed = {delivery.message.id for delivery in store.exchange([], [ASK]).deliveries}
    assert claimed == {waiting.id, member.id}  # what was put before has its place still


def test_a_put_whose_answer_was_lost_counts_its_members_once(redis_server: RedisServer) -> None:
    with FaultProxy(redis_server) as proxy, closing(RedisStore(f"{proxy.url}?namespace=lost")) as store:
        store.put([draft(batch="b", key="k")])
        proxy.cut_after(0)
        store.put([draft(batch="b"), draft(batch="b", key="k")])
        assert counts(store) == BatchCounts(open=2, duplicate=1, opened=2)


@pytest.mark.parametrize("field", ["s2", "m2"])
def test_an_unreadable_member_is_quarantined_and_counted(
    redis_server: RedisServer, store: RedisStore, field: str
) -> None:
    ids = [put.id for put in store.put([draft(batch="b", body=b"x" * 90) for _ in range(2)])]
    key, raw = f"{{{store._link.namespace}}}:{field}", bytes.fromhex(ids[0].replace("-", ""))
    with redis.Redis.from_url(redis_server.url) as client:
        client.hset(key, raw, (client.hget(key, raw) or b"not a state")[:60])
    done = store.exchange([], [ASK])
    assert [message.id for message in done.damaged] == ids[:1] and done.batches == ("b",)
    assert store.batch_counts(["b"]) == [BatchCounts(open=1, quarantine=1, opened=2, died=1)]
    assert [message.id for message in store.peek(Lane.QUARANTINE, where=Filter(batch="b")).messages] == ids[:1]
    assert all("batch" not in problem for problem in store.check())
    assert len(store.repair(lambda message: None)) == 1
    assert all("batch" not in problem for problem in store.check())


def test_a_check_names_counts_that_are_wrong(redis_server: RedisServer, store: RedisStore) -> None:
    store.put([draft(batch="b")])
    redis_server.command("HSET", f"{{{store._link.namespace}}}:b", "b", "none")
    assert store.check() == ["batch b: open counts 0, but 1 members are stored"]
    assert store.batch_counts(["b"]) == [BatchCounts()]
    store.put([draft(batch="b")])
    assert store.batch_counts(["b"]) == [BatchCounts(open=1, opened=1)]


def test_a_batch_that_ended_leaves_nothing(redis_server: RedisServer, tmp_path: Path) -> None:
    clock = ManualClock()
    with closing(RedisStore(redis_url(tmp_path, redis_server), clock_ms=clock)) as store:
        first = store.put([draft(batch="b"), draft(batch="b"), draft(batch="b")])
        one, two, _ = store.exchange([], [ASK]).deliveries
        store.exchange([Settlement(one.receipt, Ack()), Settlement(two.receipt, DeadLetter("permanent"))], [])
        assert store.triage([Handle(two.message.id, 0, Lane.DEAD)], Discard("no")) == [True]
        assert store.cancel([first[2].id]) == [Cancel.REQUESTED]
        store.reclaim("w", [])
        assert store.cancel([first[2].id]) == [Cancel.CANCELLED]
        assert counts(store) == BatchCounts(done=1, cancelled=1, discarded=1, opened=3, died=1)
        store.mark_batches([BatchMark("b", counts(store), keep_ms=60_000)])
        for _ in range(2):
            clock.advance("25h")
            store.exchange([], [])
        tag = f"{{{store._link.namespace}}}:"
        left = {key.removeprefix(tag) for key in redis_server.command("KEYS", f"{tag}*")}
        assert left <= {"m", "s", "set", "ga", "v", "m2", "s2", "n", "qs"}
