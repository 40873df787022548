"""Every script of the Redis store beside rows that it cannot read: it goes on, and every message is accounted for."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.attack.damage import claim, everything, settle
from tests.support.attack.hosts import RedisHost, garbage
from tests.support.servers import RedisServer

from redrive.message import (
    DAMAGED,
    Ack,
    Cancel,
    ClaimRequest,
    DeadLetter,
    Decision,
    Delivery,
    Discard,
    Draft,
    Filter,
    Keep,
    Lane,
    Message,
    RetryAt,
    Settled,
)
from redrive.stores.redis.store import SWEEP_EVERY_MS, RedisStore
from redrive.testing import ManualClock

FIELDS = (*RedisHost.fields(None), *RedisHost.parts(None))  # type: ignore[arg-type]
# Another word there is another message's, and no damage that anybody could see.
NAMES = ("cold g", "cold q", "rare k", "rare g")
KEEP_MS = 10_000


class Bench(NamedTuple):
    """A store, and messages of it of which every second one is damaged when `spoil` is called."""

    host: RedisHost
    store: RedisStore
    clock: ManualClock
    field: str
    spoilers: list[Any]

    @property
    def count(self) -> int:
        return 2 * len(self.spoilers)

    def put(self, **options: Any) -> list[str]:
        """Each of a group and with a key of its own, so that there is much to be damaged."""
        drafts = [
            Draft(**{"task": "work", "key": f"k{n}", "group": f"g{n}", "keep_ms": KEEP_MS, **options})
            for n in range(self.count)
        ]
        return [put.id for put in self.store.put(drafts)]

    def spoil(self, ids: list[str]) -> None:
        for id, spoiler in zip(ids[::2], self.spoilers, strict=True):
            self.host.spoil(id, self.field, spoiler)

    def claim(self) -> dict[str, Delivery]:
        return {d.message.id: d for d in claim(self.store)}

    def drain(self, decision: Decision | None = None) -> list[str]:
        """What runs until nothing is due, in that order."""
        order: list[str] = []
        while found := claim(self.store) or claim(self.store):  # a place that damage held is given on by the next one
            order += [d.message.id for d in found]
            settle(self.store, found, decision or Ack(), None)
        return order

    def account(self, ids: list[str], gone: set[str]) -> None:
        """Each of these is there, ended as it should, or is damaged in a way that leaves nothing of it; what stands
        is what is stored, and no group waits with a place free."""
        there = {m.id for m in everything(self.store)}
        if self.field not in ("message gone", "state gone"):
            assert set(ids) <= there | gone
            told = self.store.check()
            assert not [line for line in told if not line.startswith(("message ", "and ", "set "))]
            if any(line.startswith("set ") for line in told):  # where a spoilt state does not say any more
                self.store.repair(lambda message: None)
                assert not [line for line in self.store.check() if line.startswith("set ")]


@pytest.fixture(params=FIELDS)
def bench(request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path, seed: int) -> Iterator[Bench]:
    host, clock = RedisHost(redis_server.url, f"t{zlib.crc32(str(tmp_path).encode()):08x}"), ManualClock()
    spoilers = [*garbage(seed, request.param, 2), {}, {"n": 1}, [1], True]
    if request.param in NAMES:
        spoilers = [one for one in spoilers if not isinstance(one, str) or not one]
    if not request.param.startswith(("cold", "rare")):
        spoilers = spoilers[:-4]
    with closing(host), closing(host.open(clock)) as store:
        assert isinstance(store, RedisStore)
        yield Bench(host, store, clock, request.param, spoilers)
        host.clear()


def test_retain_removes_what_it_may(bench: Bench) -> None:
    dead = bench.put()
    settle(bench.store, claim(bench.store), DeadLetter("exhausted"))
    done = bench.put(task="other", group="one")
    assert len(bench.drain(Ack(keep_ms=KEEP_MS))) == len(done)
    bench.spoil(dead)
    bench.spoil(done)
    bench.store.retain("default", done=Keep(0), dead=Keep(0))
    bench.store.retain("default", done=Keep(0), dead=Keep(0))
    there = {m.id: m for m in everything(bench.store)}
    assert not there.keys() & {*dead[1::2], *done[1::2]}
    assert {m.reason for m in there.values()} <= {DAMAGED}
    bench.account([*dead, *done], {*dead, *done} - there.keys())


def test_sweep_forgets_what_is_over(bench: Bench) -> None:
    ids = bench.put(key_for_ms=KEEP_MS)
    settle(bench.store, claim(bench.store), Ack(keep_ms=KEEP_MS), None)
    bench.spoil(ids)
    bench.clock.advance(SWEEP_EVERY_MS / 1000 + 1)
    for _ in range(2):
        bench.store.exchange([], [])
        bench.clock.advance(SWEEP_EVERY_MS / 1000 + 1)
    there = {m.id: m for m in everything(bench.store)}
    assert not there.keys() & {*ids[1::2]}
    assert {m.lane for m in there.values()} <= {Lane.QUARANTINE}
    bench.account(ids, {*ids} - there.keys())
    puts = bench.store.put([Draft(task="work", key=f"k{n}") for n in range(1, bench.count, 2)])
    assert not any(put.duplicate for put in puts)


def test_cancel_ends_what_waits(bench: Bench) -> None:
    ids = bench.put()
    late = bench.put(key=None, delay_ms=1000)
    for some in (ids, late):
        bench.spoil(some)
        said = bench.store.cancel(some)
        assert set(said[1::2]) == {Cancel.CANCELLED}
        assert {m.reason if m else None for m in bench.store.find(some[1::2])} == {"cancelled"}
    bench.clock.advance("1m")
    ran = {*bench.drain()}
    assert not ran & {*ids[1::2], *late[1::2]}
    bench.account([*ids, *late], ran)


def test_cancel_asks_what_runs_to_stop(bench: Bench) -> None:
    ids = bench.put()
    held = bench.claim()
    bench.spoil(ids)
    assert set(bench.store.cancel(ids)[1::2]) == {Cancel.REQUESTED}
    words = settle(bench.store, [held[id] for id in ids], RetryAt(bench.clock()))
    assert set(words[1::2]) == {Settled.CANCELLED}
    bench.account(ids, set())


def test_checkpoint_is_kept(bench: Bench) -> None:
    ids = bench.put()
    held = bench.claim()
    bench.spoil(ids)
    kept = [bench.store.checkpoint(held[id].receipt, b"half") for id in ids]
    assert all(kept[1::2])
    assert {m.progress if m else None for m in bench.store.find(ids[1::2])} == {b"half"}
    words = settle(bench.store, [held[id] for id in ids], RetryAt(bench.clock()))
    assert set(words[1::2]) == {Settled.OK}
    bench.account(ids, set())


def test_restore_writes_what_is_not_there(bench: Bench) -> None:
    ids = bench.put()
    settle(bench.store, claim(bench.store), DeadLetter("exhausted"))
    kept: list[Message] = bench.store.peek(Lane.DEAD, limit=100).messages
    bench.store.triage([m.handle for m in kept if m.id in ids[1::2]], Discard("why"))
    bench.spoil(ids)
    back = dict(zip([m.id for m in kept], bench.store.restore(kept), strict=True))
    assert [back[id] for id in ids[1::2]] == [True] * (bench.count // 2)
    if bench.field != "message gone":
        assert [back[id] for id in ids[::2]] == [False] * (bench.count // 2)
    assert {m.lane if m else None for m in bench.store.find(ids[1::2])} == {Lane.DEAD}
    bench.account(ids, set())


Change = Callable[[RedisStore], None]
CONFIGURE: dict[str, Change] = {
    "block": lambda store: store.configure("default", group_order="strict", on_dead="block"),
    "turns": lambda store: store.configure("default", group_order="turns", on_dead="skip"),
    "wide": lambda store: store.configure("default", group_width=3),
}


def lines(bench: Bench) -> list[list[str]]:
    """Groups of five: in each a head, parked ones, and one that is not due yet. Damaged are, in turn, a head, a parked
    one, and the one that is not due yet."""
    groups: list[list[str]] = []
    drafts = [
        Draft(task="work", group=f"g{n}", priority=m % 4, delay_ms=1000 * (m == 4))
        for n in range(len(bench.spoilers))
        for m in range(5)
    ]
    ids = [put.id for put in bench.store.put(drafts)]
    for n in range(0, len(ids), 5):
        groups.append(ids[n : n + 5])
    return groups


def spoil_lines(bench: Bench, groups: list[list[str]]) -> set[str]:
    """The bystanders."""
    victims = [group[(0, 2, 4)[n % 3]] for n, group in enumerate(groups)]
    for id, spoiler in zip(victims, bench.spoilers, strict=True):
        bench.host.spoil(id, bench.field, spoiler)
    return {id for group in groups for id in group} - {*victims}


@pytest.mark.parametrize(("before", "after"), [("turns", "block"), ("block", "turns"), ("turns", "wide")])
def test_configure_loses_none_of_a_line(bench: Bench, before: str, after: str) -> None:
    CONFIGURE[before](bench.store)
    groups = lines(bench)
    bystanders = spoil_lines(bench, groups)
    CONFIGURE[after](bench.store)
    ran = bench.drain()
    bench.clock.advance("1m")
    ran += bench.drain()
    assert {id for id in bystanders if ran.count(id) == 1} == bystanders
    bench.account([id for group in groups for id in group], {*ran})


def test_configure_group_lets_the_blocked_go_on(bench: Bench) -> None:
    CONFIGURE["block"](bench.store)
    groups = lines(bench)
    settle(bench.store, claim(bench.store), DeadLetter("exhausted"))
    bystanders = spoil_lines(bench, groups) - {group[0] for group in groups}
    for group in bench.store.groups("default"):
        bench.store.configure_group("default", group.name, width=1, resume=True)
    ran = bench.drain()
    bench.clock.advance("1m")
    ran += bench.drain()
    assert {id for id in bystanders if ran.count(id) == 1} == bystanders
    order = [id for group in groups for id in group if id in ran]
    assert [[id for id in ran if id in group] for group in groups] == [
        [id for id in order if id in group] for group in groups
    ]
    bench.account([id for group in groups for id in group], {*ran})


def test_looks_show_all_the_others(bench: Bench) -> None:
    dead = bench.put(group=None)
    settle(bench.store, claim(bench.store), DeadLetter("exhausted"))
    leased = bench.put(group=None, key=None)
    bench.claim()
    groups = lines(bench)
    waiting = [id for group in groups for id in group]
    before = bench.store.counts()
    bench.spoil(dead)
    bench.spoil(leased)
    bystanders = spoil_lines(bench, groups)
    assert bench.store.counts() == before and bench.store.counts_by_queue() == {"default": before}
    assert bench.store.queues() == ["default"] and bench.store.paused() == frozenset()
    assert bystanders <= {m.id for m in bench.store.peek(Lane.READY, limit=1000).messages}
    assert {*leased[1::2]} <= {m.id for m in bench.store.peek(Lane.LEASED, limit=1000).messages}
    [died] = bench.store.failure_groups()
    assert died.count == len(dead)
    for where in (Filter(fingerprint=died.fingerprint), Filter(task="work"), Filter(reason="exhausted")):
        assert {*dead[1::2]} <= {m.id for m in bench.store.peek(Lane.DEAD, where=where, limit=100).messages}
    assert {(g.taken, g.parked) for g in bench.store.groups("default")} == {(1, 3)}
    for skip in (frozenset[str](), frozenset(["other"])):
        bench.store.wait([ClaimRequest("default", 1, 30_000, worker="w", skip=skip)], timeout_ms=60_000)  # some are due
    bench.store.reclaim("w", [])
    ran = {*bench.drain()}
    assert {*leased[1::2]} <= ran
    bench.account([*dead, *leased, *waiting], ran)


def test_put_holds_keys_of_what_is_damaged(bench: Bench) -> None:
    """The work is there still, or it is put."""
    ids = bench.put()
    bench.spoil(ids)
    again = [Draft(task="work", key=f"k{n}", keep_ms=KEEP_MS) for n in range(bench.count)]
    fresh = [Draft(task="work") for _ in ids]
    puts = bench.store.put([draft for pair in zip(again, fresh, strict=True) for draft in pair])
    assert [(put.duplicate, put.id) for put in puts[2::4]] == [(True, id) for id in ids[1::2]]
    there = {m.id for m in everything(bench.store)}
    assert {put.id for put in puts} <= there
    ran = bench.drain()
    assert {put.id for put in puts[1::2]} <= {*ran} and {*ids[1::2]} <= {*ran}
    assert len(ran) == len({*ran})
    bench.account([put.id for put in puts], {*ran})
    aside = bench.store.peek(Lane.QUARANTINE, limit=100).messages
    assert all(bench.store.triage([m.handle for m in aside], Discard("seen")))
    bench.clock.advance("1h")  # results go
    bench.store.exchange([], [])
    assert not any(put.duplicate for put in bench.store.put(again))
