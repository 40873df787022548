"""Suspects run as if nothing had happened at first, then in groups with nothing beside them, in the end alone; the
others go on before and after, and none is held up for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from tests.support.workers import SOON, Crowd, Heard, store_in, until

import redrive
from redrive import App, Poison
from redrive.errors import ConfigError
from redrive.fault import Crash, crash_fault
from redrive.message import ClaimRequest, Exchange, Lane, LeaseStatus, Receipt, RetryAt, Settlement, Swap
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.worker.crash import suspects


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = store_in(tmp_path, request.param)
    yield made
    made.close()


def cut_off(store: Store, count: int, *, times: int = 1, together: int | None = None) -> None:
    """As if a worker had died so often that had started so many, or `together`."""
    died = crash_fault(Crash(cause="signal", signal="SIGKILL", started_count=together or count), store.now_ms())
    for _ in range(times):
        deliveries = store.exchange([], [ClaimRequest("default", count, 600_000, worker="dead")]).deliveries
        assert len(deliveries) == count
        store.reclaim("dead", None, fault=died)


class Seen:
    """Two tasks whose suspects wait until as many of them as expected have run at once: `crowds` has how many ran at
    the end of each, in all, and suspects among them."""

    def __init__(self, app: App, crowd: Crowd, expected: int) -> None:
        self.crowds: list[tuple[int, int]] = []
        self._suspects = Crowd()

        @app.task(name="on loop")
        async def on_loop() -> None:
            with crowd.inside(), self._noted():
                await until(lambda: self._suspects.most >= expected)
                await asyncio.sleep(0.01)
                self._note(crowd)

        @app.task(name="in thread")
        def in_thread() -> None:
            with crowd.inside(), self._noted():
                asyncio.run(until(lambda: self._suspects.most >= expected))
                time.sleep(0.01)
                self._note(crowd)

        self.tasks = (on_loop, in_thread)

    def _noted(self) -> AbstractContextManager[None]:
        return self._suspects.inside() if redrive.context().crashes else nullcontext()

    def _note(self, crowd: Crowd) -> None:
        if redrive.context().crashes:
            self.crowds.append((crowd.now, self._suspects.now))


def test_after_its_first_crash_a_suspect_runs_as_if_nothing_had_happened(store: Store) -> None:
    app, crowd = App(store=store), Crowd()
    seen = Seen(app, crowd, 4)
    app.enqueue_many([task.draft() for task in seen.tasks * 2])
    cut_off(store, 4)
    app.enqueue_many([task.draft() for task in seen.tasks * 8])
    app.run_worker({"default": 8}, burst=True)
    assert len(seen.crowds) == 4 and max(crowd for crowd, _ in seen.crowds) > 4, "others beside them"
    assert crowd.total == 20 and app.counts() == redrive.message.Counts()


@pytest.mark.parametrize(("times", "together", "most"), [(2, 8, 4), (2, 100, 8), (3, 8, 4), (3, 6, 3), (6, 8, 1)])
def test_after_more_crashes_suspects_run_in_smaller_groups_with_nothing_beside_them(
    store: Store, times: int, together: int, most: int
) -> None:
    app, crowd = App(store=store), Crowd()
    seen = Seen(app, crowd, most)
    app.enqueue_many([task.draft() for task in seen.tasks * 4])
    cut_off(store, 8, times=times, together=together)
    app.enqueue_many([task.draft() for task in seen.tasks * 8])
    app.run_worker({"default": 10}, burst=True)
    assert len(seen.crowds) == 8 and {crowd - suspects for crowd, suspects in seen.crowds} == {0}
    assert max(seen.crowds) == (most, most) and crowd.total == 24 and app.counts() == redrive.message.Counts()


def test_where_it_is_not_known_how_many_had_been_started_it_may_have_been_all_that_can(store: Store) -> None:
    app, crowd = App(store=store), Crowd()
    seen = Seen(app, crowd, 3)
    app.enqueue_many([task.draft() for task in seen.tasks * 4])
    for _ in range(2):
        store.exchange([], [ClaimRequest("default", 8, 600_000, worker="dead")])
        store.reclaim("dead", None)  # its record is lost, with all that it said
    app.run_worker({"default": 6}, burst=True)
    assert max(seen.crowds) == (3, 3)


def test_a_group_keeps_to_the_concurrency_of_its_queue(store: Store) -> None:
    app, crowd = App(store=store), Crowd()
    seen = Seen(app, crowd, 2)
    app.enqueue_many([task.draft() for task in seen.tasks * 4])
    cut_off(store, 8, times=2)
    app.run_worker({"default": 2, "other": 10}, burst=True)
    assert max(seen.crowds) == (2, 2) and len(seen.crowds) == 8


def test_one_that_crashed_alone_runs_alone_and_those_in_doubt_with_most_others_run_first(store: Store) -> None:
    app, order = App(store=store), list[tuple[str, int]]()
    crowd = Crowd()

    @app.task(name="t")
    async def t(name: str) -> None:
        with crowd.inside():
            await asyncio.sleep(0.05)
            order.append((name, crowd.now))

    app.enqueue_many([t.draft("guilty")])
    guilty = store.exchange([], [ClaimRequest("default", 1, 600_000, worker="dead")]).deliveries
    store.exchange([Settlement(guilty[0].receipt, RetryAt(0, crashed=True))], [])
    app.enqueue_many([t.draft("many") for _ in range(2)])
    cut_off(store, 3, times=2, together=4)
    app.run_worker({"default": 10}, burst=True)
    assert order == [("many", 2), ("many", 1), ("guilty", 1)]


def test_a_group_begins_once_what_ran_before_is_settled_so_that_a_death_counts_against_it_alone() -> None:
    class Slow(MemoryStore):
        def exchange(
            self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
        ) -> Exchange:
            if settlements:
                time.sleep(0.1)
            done = super().exchange(settlements, asks, swaps=swaps)
            settled.extend(settlement.receipt for settlement in settlements)
            return done

    settled, ended, unsettled = list[Receipt](), list[str](), list[int]()
    store = Slow()
    app = App(store=store)

    @app.task(name="t")
    async def t() -> None:
        if redrive.context().crashes:
            unsettled.append(len(ended) - len(settled))
        await asyncio.sleep(0.02)
        ended.append(redrive.context().message_id)

    app.enqueue_many([t.draft() for _ in range(4)])
    cut_off(store, 4, times=2, together=4)
    app.enqueue_many([t.draft() for _ in range(4)])
    app.run_worker({"default": 10}, burst=True)
    assert unsettled == [0] * 4 and len(ended) == len(settled) == 8


def test_a_suspect_waits_for_what_runs_and_holds_back_what_waits() -> None:
    store = MemoryStore()
    app, go, order = App(store=store), threading.Event(), list[str]()

    @app.task(name="long")
    def long() -> None:
        order.append("long")
        go.wait(20)
        order.append("long ends")

    @app.task(name="t")
    async def t(name: str) -> None:
        order.append(name)

    async def main() -> None:
        store.put([t.using(queue="aside").draft("suspect")])
        _cut_off_aside(store, 1)
        async with app.worker({"default": 4, "aside": 1}):
            await long.aenqueue()
            await until(lambda: order == ["long"])
            store.reclaim("dead", None)
            await until(lambda: store.counts("aside").leased and _claimed_again(store, 2))
            await t.aenqueue("after")
            await asyncio.sleep(0.2)
            go.set()
            await until(lambda: "after" in order)

    asyncio.run(main())
    assert order == ["long", "long ends", "suspect", "after"]


class Telling(MemoryStore):
    """Writes down which runs it was told go on alone."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Receipt] = []

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        self.told += receipts if alone else ()
        return super().extend(receipts, lease_ms=lease_ms, alone=alone)


def test_the_store_knows_that_a_suspect_runs_alone_before_it_begins() -> None:
    store = Telling()
    app, seen = App(store=store), list[int]()

    @app.task(name="t")
    def t() -> None:
        seen.append(len(store.told))

    t.enqueue()
    cut_off(store, 1, times=2)
    t.enqueue()
    app.run_worker(burst=True)
    assert seen == [1, 1] and len(store.told) == 1


def test_a_counted_run_ends_the_suspicion(store: Store) -> None:
    app, seen = App(store=store), list[tuple[bool, int]]()

    @app.task(name="t", retry=SOON)
    def t() -> None:
        message = redrive.context().message
        seen.append((message.suspect, message.crashes))
        if message.attempt < 3:
            raise ConnectionError

    t.enqueue()
    cut_off(store, 1)
    app.run_worker(drain=True)
    assert seen == [(True, 1), (False, 1), (False, 1)]


def test_one_whose_turn_does_not_come_is_put_off_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "HOLD_S", (0.05, 0.2))
    store = MemoryStore()
    app, go, ran = App(store=store), threading.Event(), list[str]()
    heard = Heard(app)

    @app.task(name="long")
    def long() -> None:
        ran.append("long")
        go.wait(20)

    @app.task(name="t")
    async def t(name: str) -> None:
        ran.append(name)

    async def held() -> None:
        store.put([t.using(queue="aside").draft("suspect")])
        _cut_off_aside(store, 1)
        async with app.worker({"default": 4, "aside": 1}):
            await long.aenqueue()
            await until(lambda: ran == ["long"])
            store.reclaim("dead", None)
            await until(lambda: "held" in heard.outcomes)
            assert "suspect" not in ran
            await t.aenqueue("another")
            await until(lambda: "another" in ran)
            go.set()
            await until(lambda: "suspect" in ran)

    asyncio.run(held())
    [first, *_] = [fate for fate in heard.fates if fate.outcome == "held"]
    assert first.attempt == 0 and first.crashes == 2


def test_suspects_that_wait_go_back_free_when_the_worker_drains() -> None:
    store = MemoryStore()
    app, go, ran = App(store=store), threading.Event(), list[str]()

    @app.task(name="long")
    def long() -> None:
        ran.append("long")
        go.wait(20)

    @app.task(name="t")
    async def t() -> None:
        ran.append("suspect")

    async def main() -> None:
        store.put([t.using(queue="aside").draft()] * 3)
        _cut_off_aside(store, 3, lease_ms=300)
        async with app.worker({"default": 4, "aside": 4}):
            await long.aenqueue()
            await until(lambda: store.counts("aside").leased == 3 and ran and _claimed_again(store, 2))
            asyncio.get_running_loop().call_later(0.2, go.set)

    asyncio.run(main())
    left = store.peek(None, limit=10).messages
    assert ran == ["long"] and len(left) == 3
    assert {(m.lane, m.attempt, m.crashes, m.suspect) for m in left} == {(Lane.READY, 0, 2, True)}


def _cut_off_aside(store: Store, count: int, lease_ms: int = 600_000) -> None:
    """As if two workers had died, the second with its leases still running."""
    assert len(store.exchange([], [ClaimRequest("aside", count, 600_000, worker="dead")]).deliveries) == count
    store.reclaim("dead", None)
    assert len(store.exchange([], [ClaimRequest("aside", count, lease_ms, worker="dead")]).deliveries) == count


def _claimed_again(store: Store, crashes: int) -> bool:
    return all(m.crashes == crashes for m in store.peek(Lane.LEASED, limit=10).messages if m.queue == "aside")


def test_a_thread_that_never_ends_is_convicted_by_its_lost_leases() -> None:
    store = MemoryStore()
    app, go, runs = App(store=store), threading.Event(), list[bool]()
    heard = Heard(app)

    @app.task(name="endless", timeout="100ms")
    def endless() -> None:
        runs.append(redrive.context().message.suspect)
        go.wait(60)

    @app.task(name="t")
    async def t() -> None: ...

    async def main() -> str:
        ref = await endless.aenqueue()
        async with app.worker({"default": 8}, lease=0.4, grace=0.1):
            await until(lambda: "quarantined" in heard.outcomes)
            await t.aenqueue()
            await until(lambda: "done" in heard.outcomes)
            go.set()
        return ref.id

    [message] = store.find([asyncio.run(main())])
    assert message is not None and (message.lane, message.reason) == (Lane.QUARANTINE, "crashed")
    assert (message.crashes, message.crashes_alone, runs) == (5, 3, [False, True, True, True, True])
    fault = message.faults[-1]
    assert fault.crash is not None and (fault.crash.cause, fault.crash.alone) == ("lease", True)
    assert len(message.faults) == 1, message.faults
    [fate] = [fate for fate in heard.fates if fate.outcome == "quarantined"]
    assert fate.reason == "crashed" and "lease ran out" in str(fate.text)


# -- the window


@pytest.mark.parametrize("within", ["69s", "1s"])
def test_a_window_that_could_never_be_met_is_refused_with_both_numbers(within: str) -> None:
    app = App(store=MemoryStore())

    @app.task(name="t", poison=Poison(3, within=within))
    def t() -> None: ...

    with pytest.raises(ConfigError, match=r"3 crashes within .*could take 1m10s.*within='1m10s' or more"):
        app.worker(lease="30s")


@pytest.mark.parametrize("poison", [Poison(3, within="70s"), Poison(1, within="1s"), Poison(3)])
def test_a_window_that_can_be_met_is_taken(poison: Poison) -> None:
    app = App(store=MemoryStore())
    app.task(name="t", poison=poison)(lambda: None)
    app.worker(lease="30s")


def test_what_poison_cannot_mean_is_refused() -> None:
    for bad in ({"crashes": 0}, {"crashes": 11}, {"crashes": True}, {"within": 0}, {"within": "-1s"}):
        with pytest.raises(ValueError, match=r"expected|must be"):
            Poison(**bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"expected a Poison, such as Poison\(crashes=3"):
        App(store=MemoryStore()).task(poison=3)  # type: ignore[call-overload]
    assert hash(Poison()) == hash(Poison(3))
