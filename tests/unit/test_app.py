"""Declaring, enqueueing and looking: what a program does with an App beside working its queues."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import math
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import App, Backoff, Context, Draft, Reject, Retry
from redrive.enqueue import Ref
from redrive.errors import ConfigError, EncodeError, EnqueueError, StoreUnavailable, Unsupported
from redrive.message import ClaimRequest, DeadLetter, Delivery, Job, Lane, Message, PutResult, RetryAt, Settlement, Swap
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.worker.process import YOUNG_OBJECTS_MAX

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    made = App("memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'work.db'}")
    yield made
    made.store.close()


class Watched(MemoryStore):
    """Counts its puts, holds them up until `go` is set, and refuses them while `failing`."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[int] = []
        self.began, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.failing = False

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = ()) -> list[PutResult]:
        self.puts.append(len(drafts))
        self.began.set()
        assert self.go.wait(20)
        if self.failing:
            raise StoreUnavailable("it is out")
        return super().put(drafts, swaps=swaps)


def task_of(app: App, **options: Any) -> redrive.enqueue.Task[[int], None]:
    @app.task(name="crm.push", **options)
    def push(n: int) -> None: ...

    return push


def stored(app: App, ref: Ref) -> Message:
    message = app.job(ref.id)
    assert message is not None
    return message


def claim(app: App, queue: str = "default", limit: int = 1) -> list[Delivery]:
    return app.store.exchange([], [ClaimRequest(queue, limit, 30_000, worker="test")]).deliveries


# -- enqueueing


def test_enqueue_gives_a_ref_to_what_is_stored(app: App) -> None:
    ref = task_of(app, queue="crm").enqueue(42)
    assert UUID7.fullmatch(ref.id) and (ref.task, ref.queue, ref.duplicate, ref.state) == (
        "crm.push",
        "crm",
        False,
        "ready",
    )
    message = stored(app, ref)
    assert (message.id, message.task, message.queue, message.body) == (ref.id, "crm.push", "crm", b'{"n":42}')
    assert (message.attempt, message.crashes, message.redrives, message.correlation_id) == (0, 0, 0, ref.id)
    assert message.producer is not None and message.producer.endswith(f":{os.getpid()}")


def test_aenqueue_gives_the_same(app: App) -> None:
    push = task_of(app, queue="crm")
    ref = asyncio.run(push.aenqueue(42))
    assert ref.state == "ready" and stored(app, ref).body == b'{"n":42}'


def test_a_wrong_call_puts_nothing(app: App) -> None:
    push = task_of(app)
    for call in (push.enqueue, push.draft, push.using(priority=0).enqueue):
        with pytest.raises(TypeError, match=r"crm.push.*\(n: "):
            call("x", m=1)  # type: ignore[call-arg, arg-type]  # pyright: ignore
    with pytest.raises(TypeError, match=r"crm\.push"):
        asyncio.run(push.aenqueue())  # type: ignore[call-arg]  # pyright: ignore
    assert app.counts().ready == 0


def test_mixed_drafts_go_in_one_put_and_their_refs_come_in_order() -> None:
    store = Watched()
    app = App(store=store)
    push = task_of(app, queue="crm")

    @app.task(name="mail")
    async def mail(to: str, *, dry: bool = False) -> None: ...

    refs = app.enqueue_many([push.draft(1), mail.using(delay="1h", queue="bulk").draft("a", dry=True), push.draft(2)])
    assert [(r.task, r.queue, r.state) for r in refs] == [
        ("crm.push", "crm", "ready"),
        ("mail", "bulk", "scheduled"),
        ("crm.push", "crm", "ready"),
    ]
    assert store.puts == [3]
    assert stored(app, refs[1]).body == b'{"to":"a","dry":true}'


def test_no_drafts_give_no_refs(app: App) -> None:
    assert app.enqueue_many(iter([])) == []
    assert asyncio.run(app.aenqueue_many([])) == []


def test_drafts_may_come_from_a_generator(app: App) -> None:
    push = task_of(app)
    assert len(app.enqueue_many(push.draft(n) for n in range(5))) == 5
    assert len(asyncio.run(app.aenqueue_many(push.draft(n) for n in range(5)))) == 5
    assert app.counts().ready == 10


def test_enqueue_inside_a_running_loop_raises_and_names_aenqueue(app: App) -> None:
    push = task_of(app)

    async def main() -> None:
        for call in (
            lambda: push.enqueue(1),
            lambda: push.using(delay=1).enqueue(1),
            lambda: app.enqueue_many([push.draft(1)]),
        ):
            with pytest.raises(RuntimeError, match="aenqueue"):
                call()
        await asyncio.to_thread(push.enqueue, 2)  # a thread has no running loop

    asyncio.run(main())
    assert app.counts().ready == 1


def test_run_worker_inside_a_running_loop_raises_and_names_the_way_to_embed_one(app: App) -> None:
    task_of(app)

    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"async with app\.worker"):
            app.run_worker(burst=True)

    asyncio.run(main())


@pytest.mark.parametrize("set_before, seen", [(700, YOUNG_OBJECTS_MAX), (50_000, 50_000), (0, 0)])
def test_run_worker_looks_for_garbage_less_often_and_leaves_what_somebody_set(
    app: App, set_before: int, seen: int
) -> None:
    during = []

    @app.task()
    async def look() -> None:
        during.append(gc.get_threshold()[0])

    look.enqueue()
    before = gc.get_threshold()
    try:
        gc.set_threshold(set_before, *before[1:])
        app.run_worker(burst=True)
        assert during == [seen] and gc.get_threshold()[0] == set_before
    finally:
        gc.set_threshold(*before)


# -- aenqueue shares commits


def test_concurrent_aenqueues_share_commits_and_each_gets_its_own_ref() -> None:
    store = Watched()
    app = App(store=store)
    push = task_of(app)

    async def main() -> list[Ref]:
        store.go.clear()
        first = asyncio.create_task(push.aenqueue(0))
        await asyncio.to_thread(store.began.wait, 20)
        rest = [asyncio.create_task(push.using(key=f"k{n}").aenqueue(n)) for n in range(1, 50)]
        await asyncio.sleep(0)
        store.go.set()
        return await asyncio.gather(first, *rest)

    refs = asyncio.run(main())
    assert store.puts == [1, 49]
    assert [stored(app, ref).body for ref in refs] == [b'{"n":%d}' % n for n in range(50)]
    assert [stored(app, ref).key for ref in refs[1:]] == [f"k{n}" for n in range(1, 50)]


def test_concurrent_aenqueues_share_a_sync_of_the_file(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'work.db'}")
    push = task_of(app)
    commits = []
    app.store.failpoint = lambda point: commits.append(point) if point == "committed" else None  # type: ignore[attr-defined]

    async def main() -> None:
        await asyncio.gather(*(push.aenqueue(n) for n in range(100)))

    asyncio.run(main())
    assert app.counts().ready == 100 and len(commits) <= 3
    app.store.close()


@pytest.mark.parametrize(
    "bad",
    [
        Draft(task="t", priority=9),
        Draft(task="t", headers={"n": 1}),  # type: ignore[dict-item]
        Draft(task="t", delay_ms=-1),
        Draft(task="", body=b"{}"),
    ],
    ids=["priority", "headers", "delay", "no task"],
)
def test_one_bad_draft_does_not_fail_the_calls_that_share_its_commit(app: App, bad: Draft) -> None:
    push = task_of(app)

    async def main() -> list[Any]:
        calls = [app.aenqueue_many([push.draft(0), bad]), push.aenqueue(1), push.aenqueue(2)]
        return await asyncio.gather(*calls, return_exceptions=True)

    refused, one, two = asyncio.run(main())
    assert isinstance(refused, Exception)
    assert (stored(app, one).body, stored(app, two).body) == (b'{"n":1}', b'{"n":2}')
    assert app.counts().ready == 2  # nothing of the refused call


def test_a_draft_that_the_store_does_not_support_fails_no_call_that_shares_its_commit() -> None:
    app = App("memory://", encrypt=redrive.Keys({"k": bytes(32)}))  # encrypted, so it replaces nothing
    push = task_of(app)

    async def main() -> list[Any]:
        calls = [push.using(key="k", replace=True).aenqueue(0), *(push.aenqueue(n) for n in (1, 2, 3))]
        return await asyncio.gather(*calls, return_exceptions=True)

    refused, *refs = asyncio.run(main())
    assert isinstance(refused, Unsupported)
    assert [type(ref) for ref in refs] == [Ref] * 3
    assert app.counts().ready == 3


def test_a_failing_store_fails_all_that_share_the_commit_and_the_next_call_works() -> None:
    store = Watched()
    app = App(store=store)
    push = task_of(app)

    async def main() -> None:
        store.failing = True
        found = await asyncio.gather(*(push.aenqueue(n) for n in range(3)), return_exceptions=True)
        assert [type(error) for error in found] == [StoreUnavailable] * 3
        assert len(store.puts) < 3  # not once more for each
        store.failing = False
        assert (await push.aenqueue(4)).state == "ready"

    asyncio.run(main())


def test_a_caller_that_gives_up_does_not_take_its_neighbours_along() -> None:
    store = Watched()
    app = App(store=store)
    push = task_of(app)

    async def main() -> Ref:
        store.go.clear()
        quitter = asyncio.create_task(push.aenqueue(0))
        stayer = asyncio.create_task(push.aenqueue(1))
        await asyncio.to_thread(store.began.wait, 20)
        quitter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await quitter
        store.go.set()
        return await stayer

    assert stored(app, asyncio.run(main())).body == b'{"n":1}'


def test_aenqueue_works_in_one_loop_after_another_also_when_one_was_cut_off(app: App) -> None:
    push = task_of(app)

    async def cut_off() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.create_task(push.aenqueue(0))  # noqa: RUF006  # pyright: ignore
            await asyncio.sleep(0)  # its flusher is made, and never starts

    async def whole() -> Ref:
        return await asyncio.wait_for(push.aenqueue(1), 20)

    for _ in range(20):  # often, as the next loop must get the id of the last
        asyncio.run(cut_off())
        assert asyncio.run(whole()).state == "ready"
    assert len(app._batches) <= 1


# -- using


def test_using_sets_what_it_says(app: App) -> None:
    push = task_of(app)
    deadline = datetime.now(UTC) + timedelta(days=1)
    bound = push.using(
        key="order-42", for_="10m", group="tenant-7", queue="bulk", priority=1, deadline=deadline, headers={"a": "b"},
        correlation_id="c-1", traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    )  # fmt: skip
    m = stored(app, bound.enqueue(1))
    assert (m.key, m.group, m.queue, m.priority, dict(m.headers), m.correlation_id) == (
        "order-42", "tenant-7", "bulk", 1, {"a": "b"}, "c-1",
    )  # fmt: skip
    assert m.deadline_ms == math.ceil(deadline.timestamp() * 1000)
    assert m.traceparent == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    plain = stored(app, push.enqueue(1))
    assert (plain.key, plain.group, plain.queue, plain.priority, plain.deadline_ms) == (None, None, "default", 2, None)


@pytest.mark.parametrize("delay", ["2h", 7200, 7200.0, timedelta(hours=2)], ids=repr)
def test_a_delay_is_text_seconds_or_a_timedelta(app: App, delay: Any) -> None:
    before = app.store.now_ms()
    ref = task_of(app).using(delay=delay).enqueue(1)
    due = stored(app, ref).due_ms or 0
    assert ref.state == "scheduled" and before + 7_200_000 <= due <= app.store.now_ms() + 7_200_001
    assert app.counts().scheduled == 1


def test_at_means_that_instant_in_any_time_zone(app: App) -> None:
    from zoneinfo import ZoneInfo

    push = task_of(app)
    when = datetime(2040, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    ref = push.using(at=when).enqueue(1)
    assert stored(app, ref).due_ms == 2_224_749_600_000 and ref.state == "scheduled"
    assert push.using(at=datetime(2020, 1, 1, tzinfo=UTC)).enqueue(1).state == "ready"


@pytest.mark.parametrize(
    "options, names",
    [
        ({"delay": "1m", "at": datetime(2040, 1, 1, tzinfo=UTC)}, "delay.*at"),
        ({"delay": "-1m"}, "delay"),
        ({"delay": -5}, "delay"),
        ({"delay": "5"}, "unit"),
        ({"delay": float("nan")}, "delay"),
        ({"delay": True}, "delay"),
        ({"at": datetime(2040, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"deadline": datetime(2040, 1, 1)}, "deadline.*time zone"),  # noqa: DTZ001
        ({"for_": "1m"}, "key"),
        ({"key": "k", "for_": "soon"}, "for_"),
        ({"key": ""}, "key"),
        ({"key": 42}, "key"),
        ({"group": 7}, "group"),
        ({"queue": ""}, "queue"),
        ({"correlation_id": 1}, "correlation_id"),
        ({"traceparent": "4bf92f"}, "traceparent='4bf92f': expected version, trace, parent and flags"),
        ({"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"}, "no id of zeros"),
        ({"traceparent": f"ff-{'1' * 32}-00f067aa0ba902b7-01"}, "traceparent"),
        ({"traceparent": f"00-{'A' * 32}-00f067aa0ba902b7-01"}, "lower case"),
        ({"traceparent": b"00"}, "traceparent"),
        ({"priority": 4}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": "1"}, "priority"),
        ({"headers": {"a": 1}}, "headers"),
        ({"headers": "a"}, "headers='a'"),
        ({"at": "tomorrow"}, "at='tomorrow': expected a datetime"),
        ({"deadline": 60}, "deadline=60: expected a datetime"),
    ],
    ids=str,
)
def test_using_refuses_what_cannot_be_meant(options: dict[str, Any], names: str) -> None:
    push = task_of(App("memory://"))
    with pytest.raises((ValueError, TypeError), match=names):
        push.using(**options)


def test_what_only_the_store_can_refuse_is_refused_there_and_nothing_is_written(app: App) -> None:
    push = task_of(app)
    with pytest.raises(EnqueueError, match="NUL"):
        app.enqueue_many([push.draft(1), push.using(key="a\0b").draft(2)])
    assert app.counts().ready == 0


# -- unique keys


def test_a_held_key_gives_the_first_ref_with_its_state(app: App) -> None:
    push = task_of(app)
    first = push.using(key="k", delay="1h").enqueue(1)
    again = push.using(key="k").enqueue(2)
    assert (again.id, again.duplicate, again.state) == (first.id, True, "scheduled") and not first.duplicate
    assert stored(app, again).body == b'{"n":1}'
    assert app.counts().scheduled == 1


def test_a_key_is_unique_per_task_within_one_batch_too(app: App) -> None:
    push = task_of(app)

    @app.task(name="other")
    def other(n: int) -> None: ...

    refs = app.enqueue_many([push.using(key="k").draft(1), push.using(key="k").draft(2), other.using(key="k").draft(3)])
    assert [ref.duplicate for ref in refs] == [False, True, False]
    assert refs[1].id == refs[0].id and app.counts().ready == 2


def test_the_key_is_free_once_its_message_is_done(app: App) -> None:
    push = task_of(app)
    first = push.using(key="k").enqueue(1)
    app.run_worker(burst=True)
    second = push.using(key="k").enqueue(2)
    assert not second.duplicate and second.id != first.id


def test_for_holds_the_key_of_a_done_message(app: App) -> None:
    push = task_of(app)
    first = push.using(key="k", for_="10m").enqueue(1)
    app.run_worker(burst=True)
    again = push.using(key="k").enqueue(2)
    assert (again.id, again.duplicate, again.state) == (first.id, True, "done")


def test_concurrent_aenqueues_of_one_key_make_one_message(app: App) -> None:
    push = task_of(app)

    async def main() -> list[Ref]:
        return await asyncio.gather(*(push.using(key="k").aenqueue(n) for n in range(20)))

    refs = asyncio.run(main())
    assert len({ref.id for ref in refs}) == 1 and [ref.duplicate for ref in refs].count(False) == 1
    assert app.counts().ready == 1


# -- looking and cancelling


def test_a_refs_state_follows_its_message(app: App) -> None:
    push = task_of(app)
    ref = push.enqueue(1)
    [delivery] = claim(app)
    assert ref.state == "leased"
    app.store.exchange([Settlement(delivery.receipt, RetryAt(app.store.now_ms() + 3_600_000))], [])
    assert ref.state == "scheduled"
    assert app.cancel(ref.id) == "cancelled" and ref.state == "cancelled"

    ref = push.enqueue(2)
    [delivery] = claim(app)
    app.store.exchange([Settlement(delivery.receipt, DeadLetter("permanent"))], [])
    assert ref.state == "dead"

    ref = push.enqueue(3)
    app.run_worker(burst=True)
    assert ref.state == "done"


def test_cancel_says_what_it_found(app: App) -> None:
    push = task_of(app)
    running = push.enqueue(0)
    claim(app)
    ready, later, dead = push.enqueue(1), push.using(delay="1h").enqueue(2), push.using(queue="q").enqueue(3)
    [delivery] = claim(app, "q")
    app.store.exchange([Settlement(delivery.receipt, DeadLetter("permanent"))], [])
    words = [app.cancel(ref.id) for ref in (running, ready, later, dead, ready)]
    assert words == ["requested", "cancelled", "cancelled", "too_late", "too_late"]
    assert app.cancel("019a0000-0000-7000-8000-000000000000") == "unknown" == app.cancel("nonsense")


def test_counts_are_per_lane_and_queue(app: App) -> None:
    push = task_of(app)
    for n in range(3):
        push.enqueue(n)
    push.using(delay="1h").enqueue(4)
    push.using(queue="other").enqueue(5)
    claim(app)
    counts = app.counts("default")
    assert (counts.ready, counts.scheduled, counts.leased, counts.dead) == (2, 1, 1, 0)
    assert app.counts().ready == 3 and app.counts("none").ready == 0 and counts.oldest_age_s >= 0


def test_an_unknown_job_is_none(app: App) -> None:
    assert app.job("019a0000-0000-7000-8000-000000000000") is None


def test_a_job_has_the_state_that_its_ref_has() -> None:
    clock = ManualClock()
    app = App(store=MemoryStore(clock_ms=clock))
    ref = task_of(app).using(delay="5m").enqueue(1)
    first = app.job(ref.id)
    clock.advance("6m")
    later = app.job(ref.id)
    assert first is not None and later is not None and isinstance(later, Message)
    assert (first.state, later.state, later.attempt, ref.state) == ("scheduled", "ready", 0, "ready")


def test_a_job_is_looked_up_in_a_loop_only_by_the_async_twin(app: App) -> None:
    ref = task_of(app).enqueue(1)

    async def look() -> Job | None:
        with pytest.raises(RuntimeError, match=r"running event loop.*`await app\.ajob\(…\)`"):
            app.job(ref.id)
        assert await app.ajob("019a0000-0000-7000-8000-000000000000") is None
        return await app.ajob(ref.id)

    found = asyncio.run(look())
    assert found is not None and (found.id, found.state) == (ref.id, "ready")


# -- a plain call


def test_a_plain_call_is_direct_and_queues_nothing(app: App) -> None:
    seen: list[Context] = []

    @app.task(timeout="1m")
    def double(n: int) -> int:
        seen.append(redrive.context())
        return 2 * n

    @app.task()
    async def treble(n: int) -> int:
        await asyncio.sleep(0)
        seen.append(redrive.context())
        return 3 * n

    assert double(21) == 42 and asyncio.run(treble(5)) == 15
    assert app.counts() == redrive.message.Counts()
    for context, task in zip(seen, (double, treble), strict=True):
        assert context.message.task == task.name and UUID7.fullmatch(context.message_id)
        assert (context.attempt, context.crashes, context.cancelled, context.progress) == (1, 0, False, None)
        assert context.idempotency_key == context.message_id == context.correlation_id
        context.check()
    assert 55 < seen[0].remaining <= 60


def test_a_plain_call_passes_a_context_first_where_the_task_wants_one(app: App) -> None:
    @app.task(ctx=True)
    def sync(ctx: Context, n: int, *, dry: bool = False) -> tuple[Context, int, bool]:
        assert redrive.context() is ctx
        return ctx, n, dry

    @app.task(ctx=True)
    async def asynchronous(ctx: Context, n: int) -> Context:
        assert redrive.context() is ctx
        return ctx

    assert sync(1, dry=True)[1:] == (1, True)
    assert asyncio.run(asynchronous(n=2)).message.task == asynchronous.name
    ref = sync.enqueue(1, dry=True)
    assert stored(app, ref).body == b'{"n":1,"dry":true}'


def test_a_handler_that_takes_no_context_first_is_refused_where_its_task_asks_for_one(app: App) -> None:
    def number(x: int) -> None: ...
    def mapping(x: dict[str, int]) -> None: ...
    def bare(x) -> None: ...  # type: ignore[no-untyped-def]
    def anything(x: Any) -> None: ...
    def unknown(x: Somewhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for name, handler in (("int", number), ("dict", mapping)):
        with pytest.raises(ConfigError, match=f"takes the Context, and x is of type {name}; put `ctx: Context` before"):
            app.task(name=name, ctx=True)(handler)  # type: ignore[type-var]
    for handler in (bare, anything, unknown):
        app.task(name=handler.__name__, ctx=True)(handler)


def test_a_plain_call_raises_what_the_handler_raises(app: App) -> None:
    @app.task(retry=Retry(max_attempts=3))
    def fails() -> None:
        raise Reject("no")

    with pytest.raises(Reject):
        fails()
    with pytest.raises(RuntimeError, match="no redrive message"):
        redrive.context()


def test_there_is_no_context_outside_of_a_handler() -> None:
    with pytest.raises(RuntimeError, match="no redrive message"):
        redrive.context()


def test_the_context_reaches_threads_and_tasks_that_a_handler_starts(app: App) -> None:
    @app.task()
    async def handler() -> list[str]:
        mine = redrive.context().message_id

        async def inner() -> str:
            return redrive.context().message_id

        return [mine, await asyncio.create_task(inner()), await asyncio.to_thread(lambda: redrive.context().message_id)]

    assert len(set(asyncio.run(handler()))) == 1


# -- chains


def test_what_a_handler_enqueues_carries_correlation_and_cause(app: App) -> None:
    @app.task()
    def leaf() -> None:
        seen["leaf"] = redrive.context().message

    @app.task()
    def sync_parent() -> None:
        seen["sync"] = redrive.context().message
        leaf.using(queue="later").enqueue()

    @app.task()
    async def async_parent() -> None:
        seen["async"] = redrive.context().message
        await sync_parent.aenqueue()

    seen: dict[str, Message] = {}
    root = async_parent.using(correlation_id="order-7").enqueue()
    app.run_worker(burst=True)
    app.run_worker(["later"], burst=True)
    assert {m.correlation_id for m in seen.values()} == {"order-7"}
    assert seen["async"].id == root.id and seen["async"].causation_id is None
    assert seen["sync"].causation_id == root.id and seen["leaf"].causation_id == seen["sync"].id


def test_a_handler_may_start_a_chain_of_its_own(app: App) -> None:
    refs: list[Ref] = []

    @app.task()
    def child() -> None: ...

    @app.task()
    def parent() -> None:
        refs.append(child.using(correlation_id="fresh", delay="1h").enqueue())
        refs.append(child.using(delay="1h").enqueue())

    root = parent.enqueue()
    app.run_worker(burst=True)
    assert [stored(app, ref).correlation_id for ref in refs] == ["fresh", root.id]
    assert [stored(app, ref).causation_id for ref in refs] == [root.id, root.id]


# -- declaring


def test_declaring_tasks_and_drafting_touch_no_file(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'sub' / 'work.db'}")
    assert task_of(app).draft(1).body == b'{"n":1}'
    assert not list(tmp_path.iterdir())


def test_threads_that_use_the_store_first_open_it_once(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'work.db'}")
    stores: list[Any] = []
    barrier = threading.Barrier(8)

    def use() -> None:
        barrier.wait()
        stores.append(app.store)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores) == 8 and len({id(store) for store in stores}) == 1
    app.store.close()


def test_a_task_keeps_its_handlers_name_and_words() -> None:
    app = App("memory://")

    @app.task()
    def push(n: int) -> None:
        """Push it."""

    assert push.name == f"{__name__}.{test_a_task_keeps_its_handlers_name_and_words.__qualname__}.<locals>.push"
    assert (push.__name__, push.__doc__, push.queue) == ("push", "Push it.", "default")
    assert app.tasks == {push.name: push} and "push" in repr(push) and "default" in repr(push)


def test_a_task_name_is_taken_once() -> None:
    app = App("memory://")
    task_of(app)
    with pytest.raises(ConfigError, match=r"'crm.push' is registered twice"):
        task_of(app)
    task_of(App("memory://"))  # another app is another matter


def test_the_decorator_needs_its_parentheses() -> None:
    app = App("memory://")
    with pytest.raises(ConfigError, match="parentheses"):

        @app.task  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore
        def push(n: int) -> None: ...

    assert app.tasks == {}


def _generator(n: int) -> Iterator[int]:
    yield n


async def _async_generator(n: int) -> AsyncIterator[int]:
    yield n


@pytest.mark.parametrize(
    "options, handler, names",
    [
        ({"retry": "nonsense"}, lambda: None, "nonsense.*standard_api"),
        ({"retry": Backoff()}, lambda: None, "retry=.*expected a Retry"),
        ({"retry": 5}, lambda: None, "retry=5"),
        ({"timeout": "soon"}, lambda: None, "timeout"),
        ({"timeout": -1}, lambda: None, "timeout"),
        ({"timeout": "0s"}, lambda: None, "timeout='0s': expected more than 0"),
        ({"queue": ""}, lambda: None, "task queue=''"),
        ({"version": "2"}, lambda: None, "version='2'; expected a whole number"),
        ({"on_dead": len}, lambda: None, "on_dead=<built-in function len>: expected a task"),
        ({"ctx": True}, lambda: None, "Context"),
        ({"ctx": True}, lambda *, ctx: None, "Context"),
        ({"rules": [(ValueError, "nonsense")]}, lambda: None, "rule.*permanent"),
        ({"rules": [ValueError]}, lambda: None, "rule"),
        ({"rules": [(5, "permanent")]}, lambda: None, "rule"),
        ({}, lambda *args: None, "args"),
        ({}, _generator, "yield"),
        ({}, _async_generator, "yield"),
    ],
    ids=lambda v: getattr(v, "__name__", "options" if isinstance(v, dict) else str(v)),
)
def test_a_declaration_that_cannot_work_is_refused(options: Any, handler: Callable[..., Any], names: str) -> None:
    app = App("memory://")
    with pytest.raises((ConfigError, ValueError), match=names):
        app.task(name="t", **options)(handler)
    assert app.tasks == {}


@pytest.mark.parametrize("name", ["", 5])
def test_a_task_name_is_text(name: Any) -> None:
    with pytest.raises(ConfigError, match=f"task name={name!r}: expected text"):
        App("memory://").task(name=name)


@pytest.mark.parametrize("url", [5, Path("work.db")])
def test_a_url_that_is_no_text_is_refused_at_once(url: Any) -> None:
    with pytest.raises(ConfigError, match="expected the store's URL as text"):
        App(url)


def test_presets_are_found_by_name() -> None:
    app = App("memory://")
    assert task_of(app, retry="payments").policy.retry == redrive.presets["payments"]


class _AsyncHandler:
    async def __call__(self, n: int) -> int:
        return n


async def _two(a: int, b: int) -> int:
    return a + b


def test_async_handlers_are_known_in_every_form() -> None:
    app = App("memory://")
    assert app.task(name="function")(_two).is_async
    assert app.task(name="object")(_AsyncHandler()).is_async
    assert app.task(name="method")(_AsyncHandler().__call__).is_async
    assert app.task(name="partial")(functools.partial(_two, b=1)).is_async
    assert not app.task(name="sync")(lambda n: n).is_async


@pytest.mark.parametrize(
    "options",
    [
        {"queues": "crm"},
        {"queues": {"crm": 0}},
        {"queues": {"crm": -1}},
        {"concurrency": 0},
        {"prefetch": -1},
        {"lease": 0},
        {"lease": "soon"},
        {"grace": -1},
    ],
    ids=str,
)
def test_a_worker_refuses_settings_that_cannot_be_meant(options: dict[str, Any]) -> None:
    app = App("memory://")
    task_of(app)
    with pytest.raises(ValueError):
        app.worker(**options)


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"weight": 0}, {"concurrency": -5}], ids=str)
def test_a_queue_refuses_settings_that_cannot_be_meant(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="'crm'"):
        App("memory://").queue("crm", **options)


@pytest.mark.parametrize("url", ["nonsense://x", "work.db", "sqlite://", "memory://x", "sqlite:///a.db?sync=1"])
def test_an_unknown_url_is_refused_when_the_store_is_needed(url: str) -> None:
    app = App(url)
    push = task_of(app)
    with pytest.raises(ConfigError):
        push.enqueue(1)


def test_from_env_takes_the_url_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDRIVE_URL", f"sqlite:///{tmp_path / 'env.db'}")
    app = App.from_env()
    task_of(app).enqueue(1)
    app.store.close()
    assert (tmp_path / "env.db").exists()


def test_from_env_takes_the_url_from_the_file_where_the_environment_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_URL", raising=False)
    (tmp_path / "redrive.toml").write_text('url = "memory://"\n')
    assert App.from_env().url == "memory://" == App().url
    (tmp_path / "redrive.toml").write_text('url = "memory"\n')
    with pytest.raises(ConfigError, match="url"):
        App.from_env()


# -- raw bodies and observers


def test_put_takes_a_body_that_no_encoder_wrote(app: App) -> None:
    [put] = app.store.put([Draft(task="crm.push", body=b"\xff\x00 not json", content="raw")])
    [message] = app.store.find([put.id])
    assert message is not None and (message.body, message.content) == (b"\xff\x00 not json", "raw")


def test_an_argument_that_json_cannot_hold_puts_nothing(app: App) -> None:
    @app.task()
    def push(what: Any) -> None: ...

    with pytest.raises(EncodeError):
        push.enqueue(float("nan"))
    assert app.counts().ready == 0


def test_an_observer_hears_until_it_ends_its_subscription(app: App) -> None:
    push = task_of(app)
    heard: list[str] = []
    end = app.subscribe(lambda events: heard.extend(type(event).__name__ for event in events))
    push.enqueue(1)
    app.run_worker(burst=True)
    assert heard.count("DeliveryEvent") == 1
    end()
    push.enqueue(2)
    app.run_worker(burst=True)
    assert heard.count("DeliveryEvent") == 1


def test_dead_messages_can_be_peeked(app: App) -> None:
    @app.task(retry=Retry(max_attempts=1))
    def fails() -> None:
        raise ValueError("no")

    ref = fails.enqueue()
    app.run_worker(burst=True)
    assert [m.id for m in app.store.peek(Lane.DEAD).messages] == [ref.id]
    assert ref.state == "dead"
