"""Stores on servers under real concurrency: threads and processes that claim, settle, put and cancel on one store at
once."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.namespaces import redis_url
from tests.support.schemas import schema  # noqa: F401
from tests.support.servers import PostgresServer

from redrive.errors import Conflict
from redrive.fault import Fault, Kind
from redrive.message import (
    Ack,
    Cancel,
    ClaimRequest,
    DeadLetter,
    Decision,
    Delivery,
    Draft,
    GroupOrder,
    Handle,
    Hasten,
    Isolate,
    Keep,
    Lane,
    OnDead,
    Readmit,
    Redrive,
    RetryAt,
    Return,
    Settled,
    Settlement,
    Swap,
    Verdict,
)
from redrive.store import Store
from redrive.stores import open_store
from redrive.testing.contract.base import in_threads

ROOT = Path(__file__).parents[2]
PATIENCE_S = 40.0  # less than what a wait lasts that nothing ends
THREADS = 6
FAULT = Fault(Kind.DEFAULT, "ValueError", "boom", "f" * 16)

pytestmark = [pytest.mark.slow, pytest.mark.turns(2)]


ENGINES = ("postgres", "redis")


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a place of the test's own."""
    if request.param == "redis":
        yield redis_url(tmp_path, request.getfixturevalue("redis_server"))
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    before = len(server.log)
    yield request.getfixturevalue("schema")
    # No race may end in a deadlock: those would be repeated, but the order of locks is meant to rule them out.
    assert _deadlocks(server.log[before:]) == []


@pytest.fixture
def stores(url: str) -> Iterator[list[Store]]:
    """Two handles, each with connections of its own."""
    opened = [open_store(url), open_store(url)]
    yield opened
    for store in opened:
        assert store.check() == []
        store.close()


def _deadlocks(log: str) -> list[str]:
    """What a server says of each: the statements that waited for each other. (Its count of them comes late, and may be
    that of an earlier test.)"""
    return [told[:2000] for told in log.split("deadlock detected")[1:]]


def draft(**parts: Any) -> Draft:
    return Draft(task="t", **parts)


def test_of_racing_putters_one_gets_each_key(stores: list[Store]) -> None:
    keys = [f"k{n}" for n in range(40)]
    puts: dict[str, list[tuple[str, bool]]] = defaultdict(list)

    def put(seed: int) -> None:
        rng, store = random.Random(seed), stores[seed % 2]
        for _ in range(3):
            mine = rng.sample(keys, len(keys))
            for at in range(0, len(mine), 8):
                batch = mine[at : at + 8]
                for key, one in zip(batch, store.put([draft(key=key) for key in batch]), strict=True):
                    puts[key].append((one.id, one.duplicate))

    in_threads(*[lambda n=n: put(n) for n in range(8)])
    for key in keys:
        assert sum(not duplicate for _, duplicate in puts[key]) == 1
        assert len({id for id, _ in puts[key]}) == 1
    assert stores[0].counts().ready == len(keys)


def test_a_key_whose_holder_is_acked_meanwhile_is_held_once(stores: list[Store]) -> None:
    """Whoever puts while the holder goes gets the old one or a new one; never are there two at once."""
    ended = threading.Event()
    alive: dict[str, int] = {}
    lock = threading.Lock()

    def put(seed: int) -> None:
        for _ in range(60):
            stores[seed % 2].put([draft(key="a"), draft(key="b")])

    def work() -> None:
        while not ended.is_set():
            done = stores[0].exchange([], [ClaimRequest("default", 10, 30_000)])
            with lock:
                for delivery in done.deliveries:
                    assert delivery.message.key not in alive
                    alive[str(delivery.message.key)] = 1
            with lock:
                for delivery in done.deliveries:
                    del alive[str(delivery.message.key)]
            words = stores[1].exchange([Settlement(d.receipt, Ack()) for d in done.deliveries], []).settled
            assert set(words) <= {Settled.OK}

    def put_all() -> None:
        try:
            in_threads(*[lambda n=n: put(n) for n in range(4)])
        finally:
            ended.set()

    in_threads(put_all, work, work)


def test_nothing_is_claimed_twice_under_one_fence(stores: list[Store]) -> None:
    ids = [one.id for _ in range(4) for one in stores[0].put([draft()] * 200)]
    seen: list[tuple[str, int]] = []

    def claim(n: int) -> None:
        empty = 0
        while empty < 3:
            found = stores[n % 2].exchange([], [ClaimRequest("default", 7, 60_000, worker=f"w{n}")]).deliveries
            seen.extend((d.message.id, d.message.fence) for d in found)
            empty = 0 if found else empty + 1

    in_threads(*[lambda n=n: claim(n) for n in range(THREADS)])
    assert len(seen) == len(set(seen)) == len(ids)
    assert {id for id, _ in seen} == set(ids)


def test_lost_leases_are_taken_over_once_each(stores: list[Store]) -> None:
    stores[0].put([draft()] * 100)
    seen: list[tuple[str, int]] = []

    def work(n: int) -> None:
        end_s = time.monotonic() + 3
        while time.monotonic() < end_s:
            found = stores[n % 2].exchange([], [ClaimRequest("default", 20, 30, worker=f"w{n}")]).deliveries
            seen.extend((d.message.id, d.message.fence) for d in found)

    in_threads(*[lambda n=n: work(n) for n in range(4)])
    assert len(seen) == len(set(seen)) > 200
    for message in stores[0].find([id for id, _ in seen[:100]]):
        assert message is not None and message.crashes == message.fence - 1 and message.attempt == 1


def test_swaps_in_opposite_orders_neither_lose_nor_wait_for_each_other(stores: list[Store]) -> None:
    won: list[int] = []

    def add(n: int) -> None:
        store, keys = stores[n % 2], ("a", "b", "c") if n % 2 else ("c", "b", "a")
        for _ in range(20):
            cells = store.cells.read(keys)
            swaps = [
                Swap(key, cell.version if cell else 0, b"%d" % (int(cell.value) + 1 if cell else 1))
                for key, cell in zip(keys, cells, strict=True)
            ]
            won.append(sum(store.cells.swap(swaps)))

    in_threads(*[lambda n=n: add(n) for n in range(THREADS)])
    assert sum(int(cell.value) for cell in stores[0].cells.read(["a", "b", "c"]) if cell) == sum(won) > 0


class Floor:
    """Who runs now, by group."""

    def __init__(self, width: int) -> None:
        self._lock, self._width = threading.Lock(), width
        self._running: dict[str, int] = defaultdict(int)
        self.done: dict[str, list[str]] = defaultdict(list)

    def enter(self, deliveries: list[Delivery]) -> None:
        with self._lock:
            for delivery in deliveries:
                group = str(delivery.message.group)
                self._running[group] += 1
                assert self._running[group] <= self._width, f"{self._running[group]} of group {group} at once"

    def leave(self, deliveries: list[Delivery]) -> None:
        with self._lock:
            for delivery in deliveries:
                self._running[str(delivery.message.group)] -= 1

    def end(self, delivery: Delivery) -> None:
        with self._lock:
            self.done[str(delivery.message.group)].append(delivery.message.id)


def run_groups(stores: list[Store], floor: Floor, expected: int, wait_ms: int) -> None:
    """Work until so many were acked; a tenth fails and is tried again."""
    count, lock = [0], threading.Lock()

    def work(seed: int) -> None:
        rng, store = random.Random(seed), stores[seed % 2]
        deliveries: list[Delivery] = []
        end_s = time.monotonic() + PATIENCE_S
        while count[0] < expected:
            assert time.monotonic() < end_s, f"{count[0]} of {expected} done: the rest is stuck"
            settlements, acked = [], []
            for delivery in deliveries:
                if rng.random() < 0.1:
                    later = store.now_ms() + rng.choice((0, wait_ms))
                    settlements.append(Settlement(delivery.receipt, RetryAt(later), FAULT))
                else:
                    settlements.append(Settlement(delivery.receipt, Ack()))
                    acked.append(delivery)
            floor.leave(deliveries)
            for delivery in acked:  # before it is settled: after it, the next of its group may be done before
                floor.end(delivery)
            done = store.exchange(
                settlements, [ClaimRequest("default", rng.randrange(1, 12), 60_000, worker=f"w{seed}")]
            )
            assert set(done.settled) <= {Settled.OK}
            with lock:
                count[0] += len(acked)
            deliveries = done.deliveries
            floor.enter(deliveries)
            if not deliveries:
                time.sleep(0.002)

    in_threads(*[lambda n=n: work(n) for n in range(THREADS)])


@pytest.mark.parametrize("width", [1, 3])
def test_groups_never_exceed_their_width(stores: list[Store], width: int) -> None:
    stores[0].configure("default", group_width=width)
    rng = random.Random(width)

    def put() -> None:
        for _ in range(15):
            stores[1].put([draft(group=f"g{rng.randrange(12)}") for _ in range(20)])

    floor = Floor(width)
    in_threads(put, lambda: run_groups(stores, floor, 300, wait_ms=20))
    assert sum(len(done) for done in floor.done.values()) == 300
    assert stores[0].groups("default") == []


def test_strict_groups_keep_their_order(stores: list[Store]) -> None:
    stores[0].configure("default", group_width=1, group_order=GroupOrder.STRICT)
    put: dict[str, list[str]] = defaultdict(list)

    def putter(n: int) -> None:
        """The only one that puts to its groups, so that it knows their order."""
        rng = random.Random(n)
        for _ in range(10):
            names = [f"g{n}.{rng.randrange(4)}" for _ in range(10)]
            delays = [rng.choice((0, 0, 0, 10)) for _ in names]
            drafts = [draft(group=g, delay_ms=delay) for g, delay in zip(names, delays, strict=True)]
            for name, one in zip(names, stores[n % 2].put(drafts), strict=True):
                put[name].append(one.id)

    floor = Floor(1)
    in_threads(*[lambda n=n: putter(n) for n in range(3)], lambda: run_groups(stores, floor, 300, wait_ms=10))
    assert dict(floor.done) == dict(put)


def test_settings_may_change_under_load(stores: list[Store]) -> None:
    """Widths and orders change while messages come, go and are cancelled: none is stuck in the end."""
    ended = threading.Event()
    ids: list[str] = []

    def put(n: int) -> None:
        rng = random.Random(n)
        for _ in range(25):
            drafts = [draft(group=f"g{rng.randrange(6)}", delay_ms=rng.choice((0, 0, 5))) for _ in range(8)]
            ids.extend(one.id for one in stores[n % 2].put(drafts))
            stores[n % 2].cancel(rng.sample(ids, min(3, len(ids))))

    def change() -> None:
        rng = random.Random(1)
        while not ended.is_set():
            if rng.random() < 0.5:
                stores[1].configure("default", group_width=1, group_order=GroupOrder.STRICT)
            else:
                width = rng.randrange(1, 4)
                stores[1].configure("default", group_width=width, group_order=GroupOrder.TURNS)
            time.sleep(0.01)

    def work(n: int) -> None:
        store, deliveries, empty = stores[n % 2], list[Delivery](), 0
        while empty < 100:
            settlements = [Settlement(d.receipt, Ack()) for d in deliveries]
            deliveries = store.exchange(settlements, [ClaimRequest("default", 5, 60_000)]).deliveries
            empty = 0 if deliveries or not ended.is_set() else empty + 1
            time.sleep(0.001)

    def put_all() -> None:
        try:
            in_threads(lambda: put(1), lambda: put(2))
        finally:
            ended.set()

    in_threads(put_all, change, lambda: work(1), lambda: work(2))
    counts = stores[0].counts()
    assert (counts.ready, counts.scheduled, counts.leased) == (0, 0, 0)


@pytest.mark.parametrize("strict", [False, True])
def test_processes_keep_the_rules_of_groups(url: str, stores: list[Store], strict: bool) -> None:
    groups, each = 12, 15
    order = GroupOrder.STRICT if strict else GroupOrder.TURNS
    stores[0].configure("default", group_width=1 if strict else 2, group_order=order)
    for n in range(each):
        stores[0].put([draft(group=f"g{g}", headers={"n": str(n)}) for g in range(groups)])
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.racers", url, str(seed)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(3)
    ]
    lines = [line.split() for worker in workers for line in worker.communicate(timeout=2 * PATIENCE_S)[0].splitlines()]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert {line[6] for line in lines} == {"ok"}
    runs = [(group, int(n), int(fence), int(begun), int(ended), how) for group, n, fence, begun, ended, how, _ in lines]
    assert len({run[:3] for run in runs}) == len(runs), "something was claimed twice under one fence"
    assert sum(how in ("Ack", "DeadLetter") for *_, how in runs) == groups * each
    for group in {run[0] for run in runs}:
        mine = sorted((run for run in runs if run[0] == group), key=lambda run: run[3])
        steps = sorted([(begun, 1) for *_, begun, _, _ in mine] + [(ended, -1) for *_, ended, _ in mine])
        most = at_once = 0
        for _, step in steps:
            at_once += step
            most = max(most, at_once)
        assert most <= (1 if strict else 2)
        if strict:
            assert [n for _, n, _, _, _, how in mine if how in ("Ack", "DeadLetter")] == list(range(each))


# -- waking


def test_what_a_settlement_lets_in_wakes_who_has_room_though_the_settler_claims_elsewhere(stores: list[Store]) -> None:
    here, there = stores
    here.put([Draft(task="t", queue="grouped", group="g")] * 2 + [Draft(task="t")] * 3)
    grouped = ClaimRequest("grouped", 1, 30_000, worker="w")
    (delivery,) = here.exchange([], [grouped]).deliveries
    woken = threading.Event()

    def wait() -> None:
        there.wait([grouped], timeout_ms=60_000)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)  # it listens by then
    done = here.exchange([Settlement(delivery.receipt, Ack())], [ClaimRequest("default", 9, 30_000, worker="w")])
    assert len(done.deliveries) == 3
    assert woken.wait(PATIENCE_S)
    thread.join()


def test_verdicts_race_with_workers_and_with_each_other(stores: list[Store]) -> None:
    """Each message is in one place, as often redriven as verdicts say, and no verdict waits for another that waits for
    it: they name their messages in no order, some of groups, some of blocked lines, and commit with cells that others
    want as well."""
    stores[0].configure("lines", group_width=1, group_order=GroupOrder.STRICT, on_dead=OnDead.BLOCK)
    drafts = [draft(queue=q, group=f"g{n % 3}" if n % 4 else None) for n in range(60) for q in ("lines", "plain")]
    stores[0].put(drafts)
    ended, driven, lock = threading.Event(), Counter[str](), threading.Lock()
    removed = [0]

    def judge(rng: random.Random, store: Store, lane: Lane, verdict: Verdict, of_each: int) -> None:
        seen = [Handle(m.id, m.redrives, m.lane) for m in store.peek(lane, limit=100).messages]
        handles = rng.sample(seen, min(len(seen), 30))
        cells = rng.sample(["a", "b", "c"], 2)
        now = store.cells.read(cells)
        swaps = [Swap(key, 0 if cell is None else cell.version, b"1") for key, cell in zip(cells, now, strict=True)]
        try:
            words = store.triage(handles, verdict, swaps=swaps)
        except Conflict:
            return
        with lock:
            for handle, moved in zip(handles, words, strict=True):
                driven[handle.id] += of_each * moved

    def triage(seed: int) -> None:
        rng, store = random.Random(seed), stores[seed % 2]
        for n in range(25):
            to = rng.choice((None, None, "plain"))
            redrive = Redrive(to, run="r", delay_ms=rng.choice((0, 0, 5)))
            lane, verdict, of_each = rng.choice(
                [(Lane.DEAD, redrive, 1), (Lane.QUARANTINE, redrive, 1), (Lane.READY, Return("r"), -1)] * 2
                + [(Lane.DEAD, Isolate("x"), 0), (Lane.QUARANTINE, Readmit("y"), 0), (Lane.DONE, redrive, 1)]
            )
            judge(rng, store, lane, verdict, of_each)
            if n % 8 == 0:
                gone = store.retain("plain", dead=Keep(count=40), done=Keep(count=40))
                removed[0] += sum(gone)

    def work(seed: int) -> None:
        rng, store = random.Random(seed), stores[seed % 2]
        ends: list[Decision] = [DeadLetter("permanent"), Ack(keep_ms=None), RetryAt(0, counts=False), RetryAt(0)]
        while not ended.is_set():
            asks = [ClaimRequest(queue, 7, 60_000, worker=f"w{seed}") for queue in ("plain", "lines")]
            found = store.exchange([], asks).deliveries
            settlements = []
            for d in found:
                (cell,) = store.cells.read([f"v/{d.message.id}"])
                swap = Swap(f"v/{d.message.id}", 0 if cell is None else cell.version, b"1")
                end = rng.choice(ends)
                settlements.append(Settlement(d.receipt, end, None if isinstance(end, Ack) else FAULT, swaps=(swap,)))
            assert set(store.exchange(settlements, []).settled) <= {Settled.OK}

    def triage_all() -> None:
        try:
            in_threads(*[lambda n=n: triage(n) for n in range(4)])
        finally:
            ended.set()

    in_threads(triage_all, lambda: work(5), lambda: work(6))
    left = stores[0].peek(None, limit=1000).messages
    assert len({m.id for m in left}) == len(left) == len(drafts) - removed[0]
    assert {m.id: m.redrives for m in left} == {m.id: driven[m.id] for m in left}


def test_what_is_hastened_beside_claims_cancels_and_pauses_runs_once_a_claim(stores: list[Store]) -> None:
    """A message far in the future is claimed only after a hasten, each time under a fence of its own; it ends once, and
    what is cancelled is not claimed again."""
    stores[0].configure("lines", group_order=GroupOrder.STRICT)
    far_ms = 3_600_000
    drafts = [
        draft(queue=q, group=f"g{n % 5}" if n % 2 else None, delay_ms=far_ms)
        for n in range(80)
        for q in ("lines", "plain")
    ]
    ids = [one.id for one in stores[0].put(drafts)]
    ended, lock = threading.Event(), threading.Lock()
    fences, over, hastened = Counter[tuple[str, int]](), Counter[str](), Counter[str]()

    def hasten(seed: int) -> None:
        rng, store = random.Random(seed), stores[seed % 2]
        while not ended.is_set():
            seen = [m for m in store.find(rng.sample(ids, 40)) if m is not None and m.lane is Lane.READY]
            for message, word in zip(seen, store.triage([m.handle for m in seen], Hasten()), strict=True):
                with lock:
                    hastened[message.id] += word

    def work(seed: int) -> None:
        rng, store = random.Random(seed), stores[seed % 2]
        while not ended.is_set():
            found = store.exchange([], [ClaimRequest(q, 7, 60_000, worker=f"w{seed}") for q in ("plain", "lines")])
            ends = [rng.choice((Ack(), RetryAt(store.now_ms() + far_ms))) for _ in found.deliveries]
            with lock:
                fences.update((d.message.id, d.message.fence) for d in found.deliveries)
                assert not any(over[d.message.id] for d in found.deliveries)
            pairs = zip(found.deliveries, ends, strict=True)
            words = store.exchange([Settlement(d.receipt, end) for d, end in pairs], []).settled
            with lock:
                for delivery, end, word in zip(found.deliveries, ends, words, strict=True):
                    assert word is not Settled.STALE
                    over[delivery.message.id] += isinstance(end, Ack) or word is Settled.CANCELLED
            if sum(over.values()) == len(ids):
                ended.set()

    def steer() -> None:
        rng, store = random.Random(9), stores[1]
        while not ended.is_set():
            queue, id = rng.choice(("lines", "plain")), rng.choice(ids)
            store.configure(queue, paused=True)
            store.configure(queue, paused=False)
            with lock:  # else it could be claimed between the cancel and the note of it
                word = store.cancel([id])[0] if rng.random() < 0.1 else None
                over[id] += word is Cancel.CANCELLED

    in_threads(lambda: hasten(1), lambda: hasten(2), lambda: work(3), lambda: work(4), steer)
    assert set(fences.values()) == {1}
    assert all(count == 1 for id, count in over.items() if id in ids) and len(over) == len(ids)
    assert all(hastened[id] for id, _ in fences)
