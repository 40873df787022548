"""How much a worker takes at once, from which queue, and when it has enough."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.workers import Crowd, Heard, Watched, store_in, until

import redrive
from redrive import App, Backoff, Reject, Retry
from redrive.enqueue import Task
from redrive.message import ClaimRequest


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    store = Watched(tmp_path)
    yield store
    store.close()


def two_kinds(app: App, crowds: dict[str, Crowd], all_of_them: Crowd) -> tuple[Task[[str], None], Task[[str], None]]:
    """An async and a sync task whose argument names the crowd they join."""

    @app.task(name="coroutine")
    async def coroutine(crowd: str) -> None:
        with crowds[crowd].inside(), all_of_them.inside():
            await asyncio.sleep(0.002)

    @app.task(name="thread")
    def thread(crowd: str) -> None:
        with crowds[crowd].inside(), all_of_them.inside():
            time.sleep(0.002)

    return coroutine, thread


# -- concurrency


def test_concurrency_per_queue_is_reached_and_never_exceeded(app: App) -> None:
    crowds = {"a": Crowd(), "b": Crowd()}
    coroutine, thread = two_kinds(app, crowds, Crowd())
    app.queue("a", concurrency=3)
    app.enqueue_many([t.using(queue=q).draft(q) for _ in range(40) for t in (coroutine, thread) for q in crowds])
    app.run_worker(["a", "b"], burst=True)
    assert [crowd.total for crowd in crowds.values()] == [80, 80]
    assert crowds["a"].most == 3 and crowds["b"].most == 10


def test_a_mapping_gives_queues_their_concurrency_for_one_worker(app: App) -> None:
    crowds = {"a": Crowd(), "b": Crowd()}
    coroutine, thread = two_kinds(app, crowds, Crowd())
    app.queue("a", concurrency=7)
    app.enqueue_many([t.using(queue=q).draft(q) for _ in range(20) for t in (coroutine, thread) for q in crowds])
    app.run_worker({"a": 1, "b": 2}, burst=True)
    assert [crowd.most for crowd in crowds.values()] == [1, 2]


@pytest.mark.parametrize("prefetch", [None, 0, 5])
def test_total_concurrency_holds_over_all_queues(app: App, prefetch: int | None) -> None:
    crowds, everybody = {"a": Crowd(), "b": Crowd(), "c": Crowd()}, Crowd()
    coroutine, thread = two_kinds(app, crowds, everybody)
    app.enqueue_many([t.using(queue=q).draft(q) for _ in range(20) for t in (coroutine, thread) for q in crowds])
    app.run_worker(["a", "b", "c"], concurrency=4, prefetch=prefetch, burst=True)
    assert everybody.most == 4 and everybody.total == 120


def test_one_message_at_a_time_means_one(app: App) -> None:
    everybody = Crowd()
    coroutine, thread = two_kinds(app, {"a": Crowd()}, everybody)
    app.enqueue_many([t.draft("a") for _ in range(15) for t in (coroutine, thread)])
    app.run_worker(concurrency=1, burst=True)
    assert (everybody.most, everybody.total) == (1, 30)


# -- prefetch


@pytest.mark.parametrize(
    "options, most",
    [
        ({}, 20),
        ({"prefetch": 0}, 10),
        ({"prefetch": 3}, 13),
        ({"concurrency": 2}, 4),
        ({"concurrency": 2, "prefetch": 0}, 2),
        ({"concurrency": 2, "prefetch": 1}, 3),
        ({"queues": {"a": 2, "b": 3}, "prefetch": 0}, 5),
        ({"queues": {"a": 2, "b": 3}}, 10),
        ({"queues": {"a": 10, "b": 10, "c": 10}, "concurrency": 2}, 4),
        ({"queues": {"a": 10, "b": 10, "c": 10}, "concurrency": 2, "prefetch": 1}, 3),
    ],
    ids=str,
)
def test_a_worker_never_holds_more_than_concurrency_and_prefetch(
    watched: Watched, options: dict[str, object], most: int
) -> None:
    app = App(store=watched)
    queues = list(options.get("queues", ["default"]))  # type: ignore[call-overload]

    @app.task()
    async def task() -> None:
        await asyncio.sleep(0.001)

    app.enqueue_many([task.using(queue=queue).draft() for _ in range(60) for queue in queues])
    app.run_worker(**options, burst=True)  # type: ignore[arg-type]
    assert watched.most_held == most and watched.held == set()


def test_weights_do_not_widen_what_a_worker_holds(watched: Watched) -> None:
    app = App(store=watched)
    for name, weight in (("a", 5), ("b", 3), ("c", 1)):
        app.queue(name, weight=weight)

    @app.task()
    async def task() -> None:
        await asyncio.sleep(0.001)

    app.enqueue_many([task.using(queue=queue).draft() for _ in range(40) for queue in "abc"])
    app.run_worker(["a", "b", "c"], concurrency=5, burst=True)
    assert watched.most_held == 10


def test_what_is_claimed_and_waits_is_seen_as_leased_and_not_as_run(app: App) -> None:
    gate, running = threading.Event(), Crowd()

    @app.task()
    async def task() -> None:
        with running.inside():
            await until(gate.is_set)

    async def main() -> None:
        await app.aenqueue_many([task.draft() for _ in range(9)])
        async with app.worker({"default": 2}, prefetch=3):
            await until(lambda: app.counts().leased == 5)
            await until(lambda: running.now == 2)
            assert app.counts().ready == 4
            gate.set()
            await until(lambda: running.total == 9)

    asyncio.run(main())
    assert running.most == 2


# -- order and weights


def test_queues_are_served_in_the_order_given(app: App) -> None:
    order: list[str] = []

    @app.task()
    async def task(queue: str) -> None:
        order.append(queue)

    for preferred in (["a", "b"], ["b", "a"]):
        order.clear()
        app.enqueue_many([task.using(queue=q).draft(q) for _ in range(10) for q in "ab"])
        app.run_worker(preferred, concurrency=1, prefetch=0, burst=True)
        assert order == [preferred[0]] * 10 + [preferred[1]] * 10


def test_a_preferred_queue_is_heard_while_another_has_plenty(app: App) -> None:
    order: list[str] = []

    @app.task()
    async def task(queue: str) -> None:
        order.append(queue)
        if len(order) == 20:
            await task.using(queue="urgent").aenqueue("urgent")

    app.enqueue_many([task.using(queue="bulk").draft("bulk") for _ in range(300)])
    app.run_worker(["urgent", "bulk"], concurrency=2, burst=True)
    assert len(order) == 301 and order.index("urgent") < 100


def test_an_empty_preferred_queue_leaves_all_places_to_the_next(app: App) -> None:
    everybody = Crowd()
    coroutine, _ = two_kinds(app, {"bulk": Crowd()}, everybody)
    app.enqueue_many([coroutine.using(queue="bulk").draft("bulk") for _ in range(60)])
    app.run_worker(["urgent", "bulk"], concurrency=6, prefetch=0, burst=True)
    assert everybody.most == 6


def test_weights_share_the_places_among_queues_that_all_have_work(app: App) -> None:
    order: list[str] = []
    app.queue("heavy", weight=3)
    app.queue("light", weight=1)

    @app.task()
    async def task(queue: str) -> None:
        order.append(queue)
        await asyncio.sleep(0.003)

    app.enqueue_many([task.using(queue=q).draft(q) for q in ("heavy", "light") for _ in range(120)])
    app.run_worker(["heavy", "light"], concurrency=4, burst=True)
    share = Counter(order[8:120])["light"] / 112  # the first places go before there is a choice
    assert 0.15 <= share <= 0.35


def test_a_weighted_queue_alone_with_work_has_all_places(app: App) -> None:
    everybody = Crowd()
    coroutine, _ = two_kinds(app, {"light": Crowd()}, everybody)
    app.queue("heavy", weight=9)
    app.queue("light", weight=1)
    app.enqueue_many([coroutine.using(queue="light").draft("light") for _ in range(60)])
    app.run_worker(["heavy", "light"], concurrency=6, prefetch=0, burst=True)
    assert everybody.most == 6


def test_priorities_are_strict_within_a_queue(app: App) -> None:
    order: list[int] = []

    @app.task()
    async def task(priority: int) -> None:
        order.append(priority)

    app.enqueue_many([task.using(priority=p).draft(p) for p in (3, 1, 2, 0) * 5])
    app.run_worker(concurrency=1, prefetch=0, burst=True)
    assert order == sorted(order) and len(order) == 20


def test_only_the_named_queues_are_worked(app: App) -> None:
    done: list[str] = []

    @app.task()
    async def task(queue: str) -> None:
        done.append(queue)

    app.enqueue_many([task.using(queue=q).draft(q) for q in ("crm", "bulk", "crm")])
    app.run_worker(queues=["crm"], burst=True)
    assert done == ["crm", "crm"] and app.counts("bulk").ready == 1


def test_without_names_all_queues_that_tasks_or_the_app_name_are_worked(app: App) -> None:
    done: list[str] = []

    @app.task(queue="of-task")
    async def task(queue: str) -> None:
        done.append(queue)

    app.queue("of-app", concurrency=1)
    app.enqueue_many([task.draft("of-task"), task.using(queue="of-app").draft("of-app")])
    app.run_worker(burst=True)
    assert sorted(done) == ["of-app", "of-task"]


# -- burst, drain, paused


def test_a_burst_leaves_what_is_scheduled_and_a_drain_waits_for_it(app: App) -> None:
    done: list[int] = []

    @app.task()
    async def task(n: int) -> None:
        done.append(n)

    app.enqueue_many([task.draft(1), task.using(delay="400ms").draft(2)])
    app.run_worker(burst=True)
    assert done == [1] and app.counts().scheduled == 1
    app.run_worker(drain=True)
    assert done == [1, 2]


def test_a_burst_on_nothing_ends_at_once(app: App) -> None:
    app.run_worker(["default"], burst=True)
    app.run_worker(["default"], drain=True)


def test_a_burst_runs_what_handlers_enqueue(app: App) -> None:
    done: list[int] = []

    @app.task()
    async def chain(n: int) -> None:
        done.append(n)
        if n:
            await chain.aenqueue(n - 1)

    chain.enqueue(5)
    app.run_worker(burst=True)
    assert done == [5, 4, 3, 2, 1, 0]


def test_a_burst_waits_for_what_others_have_leased(app: App) -> None:
    done: list[int] = []

    @app.task()
    async def task() -> None:
        done.append(redrive.context().crashes)

    task.enqueue()
    app.store.exchange([], [ClaimRequest("default", 1, 300, worker="other")])
    app.run_worker(burst=True)
    assert done == [1]


def test_a_paused_queue_is_not_claimed_from_until_it_resumes(app: App) -> None:
    done: list[str] = []

    @app.task()
    async def task(queue: str) -> None:
        done.append(queue)

    app.enqueue_many([task.using(queue=q).draft(q) for q in ("a", "b")])
    app.store.configure("a", paused=True)
    app.run_worker(["a", "b"], burst=True)
    assert done == ["b"] and app.counts("a").ready == 1

    async def main() -> None:
        async with app.worker(["a", "b"]):
            await until(lambda: app.store.paused() == {"a"})
            app.store.configure("a", paused=False)
            await until(lambda: done == ["b", "a"])

    asyncio.run(main())


def test_a_drain_ends_though_a_dead_head_holds_its_group(app: App) -> None:
    app.queue("q", group_order="strict", on_dead="block")
    ran: list[int] = []

    @app.task(name="push", queue="q")
    async def push(n: int) -> None:
        ran.append(n)
        if n == 1:
            raise Reject("never")

    app.enqueue_many([push.using(group=name).draft(n) for name, n in (("a", 1), ("a", 2), ("b", 3))])
    app.run_worker(["q"], drain=True)
    assert sorted(ran) == [1, 3]
    assert app.counts("q").parked == 1


def test_a_drain_ends_though_a_paused_queue_has_scheduled_ones(app: App) -> None:
    @app.task()
    async def fails() -> None: ...

    fails.using(delay="1h").enqueue()
    app.store.configure("default", paused=True)
    app.run_worker(drain=True)
    assert app.counts().scheduled == 1


# -- waking, and several workers


def test_an_idle_worker_wakes_for_what_is_put_and_for_what_comes_due(app: App) -> None:
    done: list[int] = []

    @app.task()
    async def task(n: int) -> None:
        done.append(n)

    async def main() -> None:
        async with app.worker():
            await task.aenqueue(1)
            await until(lambda: done == [1])
            await asyncio.to_thread(task.enqueue, 2)
            await until(lambda: done == [1, 2])
            await task.using(delay="50ms").aenqueue(3)
            await until(lambda: done == [1, 2, 3])

    asyncio.run(main())


def test_two_workers_share_the_work_and_run_each_message_once(app: App) -> None:
    seen: Counter[int] = Counter()
    heard, at_work = Heard(app), set[str | None]()

    @app.task(retry=Retry(max_attempts=2, backoff=Backoff.fixed(0)))
    async def task(n: int) -> None:
        seen[n] += 1
        at_work.add(redrive.context().message.worker)
        await until(lambda: len(at_work) == 2)  # or the first could be done before the second begins

    async def main() -> None:
        await app.aenqueue_many([task.draft(n) for n in range(100)])
        first, second = app.worker(prefetch=0, name="one"), app.worker(prefetch=0, name="two")
        assert first.name != second.name
        async with first, second:
            await until(lambda: len(heard.fates) == 100)

    asyncio.run(main())
    assert seen == dict.fromkeys(range(100), 1)
    assert len({fate.worker for fate in heard.fates}) == 2


def test_workers_of_one_name_in_one_process_hold_identities_of_their_own(tmp_path: Path) -> None:
    store = store_in(tmp_path, "sqlite")
    app = App(store=store)

    async def main() -> list[str]:
        first, second = app.worker(name="w"), app.worker(name="w")
        async with first, second:
            third = app.worker(name="w")
            async with third:
                return [first.name, second.name, third.name]

    names = asyncio.run(main())
    assert len(set(names)) == 3 and [name.rpartition("/")[2] for name in names] == ["w-0", "w-1", "w-2"]
    assert asyncio.run(main()) == names  # given back at the end
    store.close()
