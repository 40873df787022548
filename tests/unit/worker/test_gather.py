"""Tasks with `gather=`: one call of the handler takes several messages, and each of them ends by itself."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from typing import Any

import pytest
from tests.support.workers import SOON, Heard, stored, until

import redrive
from redrive import App, Breaker, Budget, Context, Idempotency, Retry
from redrive.errors import ConfigError
from redrive.fault import Crash, crash_fault
from redrive.message import ClaimRequest, Draft, Lane, RetryAt, Settlement
from redrive.ref import Ref
from redrive.testing import Kit

LONG = "60s"  # to wait for others: what a test sees run before that did not wait


def on_a_loop(test: Callable[[App], Awaitable[None]]) -> Callable[[App], None]:
    @wraps(test)
    def run(app: App) -> None:
        asyncio.run(test(app))  # type: ignore[arg-type]

    return run


class Calls:
    """A task that gathers; `lists` has the items of each call, in order."""

    def __init__(self, app: App, *, sync: bool = False, name: str = "push", **options: Any) -> None:
        self.lists: list[list[int]] = []

        async def coroutine(items: list[int]) -> list[Any] | None:
            self.lists.append(items)
            return self.answer(items)

        def thread(items: list[int]) -> list[Any] | None:
            self.lists.append(items)
            return self.answer(items)

        options = {"gather": 4, "retry": SOON} | options
        self.answer: Callable[[list[int]], list[Any] | None] = lambda items: None
        declare: Any = app.task
        self.task: Any = declare(name=name, **options)(thread if sync else coroutine)

    def put(self, *items: int) -> list[str]:
        return [ref.id for ref in self.task.app.enqueue_many([self.task.draft(item) for item in items])]

    async def aput(self, *items: int) -> list[str]:
        return [ref.id for ref in await self.task.app.aenqueue_many([self.task.draft(item) for item in items])]


def dead(app: App) -> dict[str, str]:
    return {message.id: message.faults[-1].text for message in app.store.peek(Lane.DEAD, limit=100).messages}


# -- lists


@pytest.mark.parametrize("sync", [False, True], ids=["coroutine", "thread"])
def test_a_call_takes_messages_in_order_up_to_its_bound(app: App, sync: bool) -> None:
    calls, heard = Calls(app, sync=sync), Heard(app)
    calls.put(*range(10))
    app.run_worker(burst=True, concurrency=1)
    assert calls.lists == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] and heard.outcomes == ["done"] * 10
    assert all(fate.run_ms is not None for fate in heard.fates)


@on_a_loop
async def test_a_full_list_runs_at_once_and_the_rest_waits_for_more(app: App) -> None:
    calls = Calls(app, linger=LONG)
    await calls.aput(*range(6))
    async with app.worker():
        await until(lambda: len(calls.lists) == 1)
        await calls.aput(6, 7)
        await until(lambda: len(calls.lists) == 2)
    assert calls.lists == [[0, 1, 2, 3], [4, 5, 6, 7]]


@on_a_loop
async def test_what_lingered_runs_when_its_time_is_over(app: App) -> None:
    calls = Calls(app, linger="50ms")
    async with app.worker():
        await calls.aput(1)
        await until(lambda: calls.lists == [[1]])


@on_a_loop
async def test_a_drain_gives_back_what_lingers_and_counts_nothing(app: App) -> None:
    calls, heard = Calls(app, linger=LONG), Heard(app)
    ids = await calls.aput(1, 2)
    async with app.worker():
        await until(lambda: all(stored(app, id).lane is Lane.LEASED for id in ids))
    assert calls.lists == [] and heard.outcomes == ["released"] * 2
    assert [(m.lane, m.attempt, m.crashes) for m in (stored(app, id) for id in ids)] == [(Lane.READY, 0, 0)] * 2


@on_a_loop
async def test_a_call_that_waits_for_its_place_takes_more(app: App) -> None:
    gate = asyncio.Event()
    seen: list[list[int]] = []

    @app.task(gather=10)
    async def push(items: list[int]) -> None:
        seen.append(items)
        await gate.wait()

    async with app.worker(concurrency=1):
        await push.aenqueue(0)
        await until(lambda: seen == [[0]])
        for n in (1, 2, 3):
            id = (await push.aenqueue(n)).id
            await until(lambda id=id: stored(app, id).lane is Lane.LEASED)  # type: ignore[misc]
        gate.set()
        await until(lambda: len(seen) == 2)
    assert seen == [[0], [1, 2, 3]]


@on_a_loop
async def test_a_pause_gives_back_what_lingers(app: App) -> None:
    calls = Calls(app, linger=LONG)
    ids = await calls.aput(1, 2)
    async with app.worker():
        await until(lambda: all(stored(app, id).lane is Lane.LEASED for id in ids))
        app.pause_task("push", reason="a test")
        await until(lambda: all(stored(app, id).lane is Lane.READY for id in ids))
    assert calls.lists == [] and stored(app, ids[0]).attempt == 0


class Busy:
    """A worker with one place, which a call takes until `go` is set. `ids` are those of a call that waits for it."""

    def __init__(self, app: App) -> None:
        self.app, self.go, self.lists, self.ids = app, asyncio.Event(), list[list[int]](), list[str]()

        @app.task(name="push", gather=2)
        async def push(items: list[int]) -> None:
            self.lists.append(items)
            if items[0] == 0:
                await self.go.wait()

        self.push = push

    async def fill(self) -> None:
        await self.push.aenqueue(0)
        await until(lambda: self.lists == [[0]])
        self.ids = [ref.id for ref in await self.app.aenqueue_many([self.push.draft(n) for n in (1, 2)])]
        await until(lambda: all(stored(self.app, id).lane is Lane.LEASED for id in self.ids))

    def free(self) -> bool:
        some = [stored(self.app, id) for id in self.ids]
        return all((m.lane, m.attempt, m.crashes) == (Lane.READY, 0, 0) for m in some)


@on_a_loop
async def test_a_drain_gives_back_a_call_that_waits_for_its_place_and_lets_the_other_end(app: App) -> None:
    busy, heard = Busy(app), Heard(app)
    async with app.worker(concurrency=1) as worker:
        await busy.fill()
        worker.drain()
        await until(busy.free)
        busy.go.set()
    assert busy.lists == [[0]] and sorted(heard.outcomes) == ["done", "released", "released"]


@on_a_loop
async def test_a_pause_gives_back_a_call_that_waits_for_its_place(app: App) -> None:
    busy = Busy(app)
    async with app.worker(concurrency=1):
        await busy.fill()
        app.pause_task("push", reason="a test")
        await until(busy.free)
        busy.go.set()
    assert busy.lists == [[0]]


@on_a_loop
async def test_a_call_that_waits_for_its_place_runs_without_what_it_lost(app: App) -> None:
    busy = Busy(app)
    async with app.worker(concurrency=1, lease="300ms") as worker:
        await busy.fill()
        [receipt] = [e.delivery.receipt for e in worker._in_flight.all() if e.delivery.message.id == busy.ids[0]]
        later = RetryAt.released(app.store.now_ms() + 600_000, "interrupted")
        app.store.exchange([Settlement(receipt, later)], [])
        await until(lambda: len(worker._in_flight) == 2)
        busy.go.set()
        await until(lambda: len(busy.lists) == 2)
    assert busy.lists == [[0], [2]]


def test_tasks_that_gather_and_others_share_a_worker(app: App) -> None:
    calls, other, seen = Calls(app), Calls(app, name="other", gather=3), Counter[str]()

    @app.task(name="plain")
    async def plain(n: int) -> None:
        seen["plain"] += n

    app.enqueue_many([t.draft(n) for n in range(6) for t in (calls.task, other.task, plain)])
    app.run_worker(burst=True)
    assert sorted(chain(*calls.lists)) == sorted(chain(*other.lists)) == [*range(6)] and seen["plain"] == 15
    assert max(map(len, calls.lists)) <= 4 and max(map(len, other.lists)) <= 3


# -- answers


@pytest.mark.parametrize("sync", [False, True], ids=["coroutine", "thread"])
def test_an_exception_in_the_list_fails_its_message_alone(app: App, sync: bool) -> None:
    calls, heard = Calls(app, sync=sync, keep_result="1h"), Heard(app)
    ids = calls.put(0, 1, 2, 3)
    calls.answer = lambda items: [ValueError(f"bad {n}") if n == 2 else n * 10 for n in items]
    app.run_worker(drain=True)
    assert dead(app) == {ids[2]: "bad 2"} and stored(app, ids[2]).attempt == 3
    assert [Ref(id, "push", "default", False, app).wait(1) for id in (ids[0], ids[1], ids[3])] == [0, 10, 30]
    assert Counter(heard.outcomes) == {"done": 3, "retry": 2, "dead": 1}


@pytest.mark.parametrize("error, text", [(ValueError, ""), (UnicodeDecodeError, "takes exactly 5 arguments")])
def test_the_class_of_an_exception_is_one_as_in_raise(app: App, error: type[Exception], text: str) -> None:
    calls = Calls(app, retry=Retry(max_attempts=1))
    ids = calls.put(0, 1, 2)
    calls.answer = lambda items: [error if n == 1 else None for n in items]
    app.run_worker(drain=True)
    found = dead(app)
    assert [*found] == [ids[1]] and text in found[ids[1]]


def test_what_steers_does_so_for_each_message(app: App) -> None:
    calls, heard = Calls(app), Heard(app)
    calls.put(0, 1, 2, 3)
    said: dict[int, Any] = {1: redrive.Reject("no"), 2: redrive.Quarantine("odd"), 3: redrive.Snooze("10ms")}
    calls.answer = lambda items: [said.pop(n, None) for n in items]
    app.run_worker(drain=True)
    assert Counter(heard.outcomes) == {"done": 2, "dead": 1, "quarantined": 1, "snoozed": 1}
    assert calls.lists == [[0, 1, 2, 3], [3]]


@pytest.mark.parametrize("sync", [False, True], ids=["coroutine", "thread"])
def test_what_it_raises_fails_all_and_the_last_attempt_is_each_ones_own(app: App, sync: bool) -> None:
    calls = Calls(app, sync=sync)
    ids = calls.put(0, 1, 2)

    def fails(items: list[int]) -> None:
        if 1 in items:
            raise ConnectionError(f"with {items}")

    calls.answer = fails
    app.run_worker(drain=True)
    assert calls.lists[:2] == [[0, 1, 2], [0, 1, 2]] and sorted(calls.lists[2:]) == [[0], [1], [2]]
    assert dead(app) == {ids[1]: "with [1]"} and stored(app, ids[1]).attempt == 3
    faults = stored(app, ids[1]).faults
    assert len({fault.fingerprint for fault in faults}) == 1 and "gathered.py" not in faults[0].traceback


def test_without_retries_a_call_gathers_all_the_same(app: App) -> None:
    calls = Calls(app, retry=Retry(max_attempts=1))
    calls.put(0, 1)
    app.run_worker(burst=True)
    assert calls.lists == [[0, 1]]


@pytest.mark.parametrize("answer, what", [([1], "a list of 1"), ("done", "'done'"), ({0: None}, "{0: None}"), (7, "7")])
def test_an_answer_that_fits_no_list_is_a_clear_error_of_all(app: App, answer: Any, what: str) -> None:
    calls = Calls(app, retry=Retry(max_attempts=1))
    ids = calls.put(0, 1)
    calls.answer = lambda items: answer
    app.run_worker(burst=True)
    text = f"task 'push': its handler got 2 messages and returned {what}; expected None, or a list of 2: "
    assert dead(app) == dict.fromkeys(ids, text + "for each message its result, or the exception with which it failed")


def test_a_body_that_cannot_be_read_kills_its_message_alone(app: App) -> None:
    calls = Calls(app)
    calls.put(0, 1)
    [bad] = app.enqueue_many([Draft(task="push", body=b'{"items": "x"}')])
    app.run_worker(burst=True)
    assert calls.lists == [[0, 1]]
    assert [*dead(app)] == [bad.id] and stored(app, bad.id).reason == "unreadable"


# -- contexts


def test_each_message_has_its_context(app: App) -> None:
    seen: list[Any] = []

    @app.task(queue="later")
    def follow(n: int) -> None: ...

    @app.task(gather=4, ctx=True, retry=SOON)
    async def push(ctx: Context, items: list[int]) -> list[Exception | None]:
        assert redrive.context() is ctx and ctx.message_id == ctx.runs[0].message_id and not ctx.cancelled
        seen.append([(n, run.message_id, run.attempt) for n, run in zip(items, ctx.runs, strict=True)])
        for n, run in zip(items, ctx.runs, strict=True):
            run.enqueue(follow, n)
            run.partial(None, f"half of {n}")
            await run.acheckpoint(n)
        return [
            ConnectionError() if n == 1 and run.attempt == 1 else None for n, run in zip(items, ctx.runs, strict=True)
        ]

    heard = Heard(app)
    ids = [push.enqueue(n).id for n in range(3)]
    app.run_worker(["default"], drain=True)
    assert seen == [[(0, ids[0], 1), (1, ids[1], 1), (2, ids[2], 1)], [(1, ids[1], 2)]]
    assert Counter(fate.degraded for fate in heard.fates) == {None: 1, "half of 0": 1, "half of 1": 1, "half of 2": 1}
    waiting = app.store.peek(Lane.READY, limit=10).messages
    assert sorted(m.causation_id or "" for m in waiting) == sorted(ids), (
        "a message that failed enqueues in its last run only"
    )


def test_a_checkpoint_of_a_message_is_found_by_its_next_attempt(app: App) -> None:
    found: list[Any] = []

    @app.task(gather=4, ctx=True, retry=SOON)
    def push(ctx: Context, items: list[int]) -> None:
        found.extend(run.progress for run in ctx.runs)
        for n, run in zip(items, ctx.runs, strict=True):
            run.checkpoint(n)
        if ctx.runs[0].attempt == 1:
            raise ConnectionError

    app.enqueue_many([push.draft(n) for n in (7, 8)])
    app.run_worker(drain=True)
    assert found == [None, None, 7, 8]


@pytest.mark.parametrize("count", [1, 2])
def test_what_belongs_to_one_message_is_refused_for_the_call(app: App, count: int) -> None:
    refused: dict[str, str] = {}

    @app.task()
    def follow() -> None: ...

    @app.task(gather=4, ctx=True)
    def push(ctx: Context, items: list[int]) -> None:
        uses: dict[str, Callable[[], object]] = {
            "idempotency_key": lambda: ctx.idempotency_key,
            "progress": lambda: ctx.progress,
            "batch": lambda: ctx.batch,
            "enqueue(…)": lambda: ctx.enqueue(follow),
            "partial(…)": lambda: ctx.partial(None, "why"),
            "spend(…)": lambda: ctx.spend(3),
            "complete(…)": lambda: ctx.complete(None, tx=None),
            "checkpoint(…)": lambda: ctx.checkpoint(1),
        }
        for what, use in uses.items():
            with pytest.raises(ConfigError, match=r"ctx\.runs") as raised:
                use()
            refused[what] = str(raised.value)

    app.enqueue_many([push.draft(n) for n in range(count)])
    app.run_worker(burst=True)
    assert len(refused) == 8 and all(f"use {what} of one" in text for what, text in refused.items())


def test_a_wrap_runs_once_around_a_call(app: App) -> None:
    seen: list[Any] = []

    @app.wrap
    def session(ctx: Context) -> Iterator[None]:
        seen.append([run.message.headers.get("tenant") for run in ctx.runs])
        seen.append(ctx.message.headers)
        yield
        seen.append(ctx.result)

    calls = Calls(app)
    calls.answer = lambda items: [n + 1 for n in items]
    app.enqueue_many([calls.task.using(headers={"tenant": t}).draft(n) for n, t in enumerate("ab")])
    app.run_worker(burst=True)
    assert seen == [["a", "b"], {}, [1, 2]], "the call of several tenants is of none"


# -- time, leases and trouble


@pytest.mark.parametrize("sync", [False, True], ids=["coroutine", "thread"])
def test_a_call_has_one_timeout_which_is_a_failed_attempt_of_each(app: App, sync: bool) -> None:
    declare: Any = app.task
    declare(name="t", gather=4, timeout="50ms", ctx=True, retry=Retry(max_attempts=1))(_waits if sync else _awaits)
    ids = [app.tasks["t"].enqueue(n).id for n in (1, 2)]
    app.run_worker(burst=True)
    assert [stored(app, id).faults[-1].kind.value for id in ids] == ["timeout"] * 2
    assert set(dead(app)) == set(ids)


async def _awaits(ctx: Context, items: list[int]) -> None:
    await asyncio.sleep(60)


def _waits(ctx: Context, items: list[int]) -> None:
    while True:
        ctx.check()
        time.sleep(0.002)


@pytest.mark.parametrize("sync", [False, True], ids=["coroutine", "thread"])
def test_a_lost_lease_ends_one_message_of_a_call_and_harms_no_other(app: App, sync: bool) -> None:
    heard, held = Heard(app), dict[str, bool]()

    def note(ctx: Context) -> None:
        assert not ctx.cancelled
        held.update({run.message_id: not run.cancelled for run in ctx.runs})

    async def coroutine(ctx: Context, items: list[int]) -> None:
        await until(lambda: ctx.runs[0].cancelled)
        note(ctx)

    def thread(ctx: Context, items: list[int]) -> None:
        asyncio.run(until(lambda: ctx.runs[0].cancelled))
        note(ctx)

    task: Any = app.task(name="push", gather=4, ctx=True)(thread if sync else coroutine)
    ids = [ref.id for ref in app.enqueue_many([task.draft(n) for n in range(3)])]

    async def main() -> None:
        async with app.worker(lease="300ms") as worker:
            await until(lambda: worker._presence.sample().running == 3)
            [receipt] = [e.delivery.receipt for e in worker._in_flight.all() if e.delivery.message.id == ids[0]]
            later = RetryAt.released(app.store.now_ms() + 600_000, "interrupted")
            app.store.exchange([Settlement(receipt, later)], [])  # as another worker would, with this claim lapsed
            await until(lambda: len(held) == 3)

    asyncio.run(main())
    assert held == {ids[0]: False, ids[1]: True, ids[2]: True}
    assert sorted((ids.index(fate.id), fate.outcome) for fate in heard.fates) == [(0, "lost"), (1, "done"), (2, "done")]


@on_a_loop
async def test_the_end_of_the_grace_interrupts_a_call_uncounted(app: App) -> None:
    started = asyncio.Event()

    @app.task(gather=4)
    async def push(items: list[int]) -> None:
        started.set()
        await asyncio.sleep(60)

    ids = [ref.id for ref in await app.aenqueue_many([push.draft(n) for n in range(2)])]
    async with app.worker(grace="50ms"):
        await started.wait()
    assert [(m.lane, m.attempt) for m in (stored(app, id) for id in ids)] == [(Lane.READY, 0)] * 2


def test_a_suspect_runs_in_a_call_of_its_own(app: App) -> None:
    calls = Calls(app)
    ids = calls.put(0, 1)
    died = crash_fault(Crash(cause="signal", signal="SIGKILL", started_count=2), app.store.now_ms())
    assert len(app.store.exchange([], [ClaimRequest("default", 2, 600_000, worker="dead")]).deliveries) == 2
    app.store.reclaim("dead", None, fault=died)
    calls.put(2, 3)
    app.run_worker(burst=True)
    assert sorted(calls.lists) == [[0], [1], [2, 3]] and stored_or_done(app, ids)


def stored_or_done(app: App, ids: list[str]) -> bool:
    return all(message is None for message in app.store.find(ids))


@on_a_loop
async def test_a_group_of_suspects_waits_for_no_call_that_has_not_begun(app: App) -> None:
    calls, lonely = Calls(app, linger=LONG), list[int]()

    @app.task(name="lonely")
    async def alone(n: int) -> None:
        lonely.append(n)

    await alone.aenqueue(1)
    died = crash_fault(Crash(cause="signal", signal="SIGKILL", started_count=1), app.store.now_ms())
    for _ in range(6):
        assert len(app.store.exchange([], [ClaimRequest("default", 1, 600_000, worker="dead")]).deliveries) == 1
        app.store.reclaim("dead", None, fault=died)
    await calls.aput(0, 1, 2)
    async with app.worker():
        await until(lambda: lonely == [1])
    assert calls.lists == []


# -- flow control, keys and groups


@dataclass
class Item:
    n: int
    tenant: str


def test_a_call_never_mixes_the_keys_of_a_dependency(app: App) -> None:
    seen: list[list[str]] = []

    @app.task(gather=10, dependency="shop")
    async def push(items: list[Item]) -> None:
        seen.append([item.tenant for item in items])

    app.dependency("shop", per="args.items.tenant")
    app.enqueue_many([push.draft(Item(n, t)) for n in range(6) for t in "ab"])
    app.run_worker(burst=True)
    assert sorted(seen) == [["a"] * 6, ["b"] * 6]


def test_a_call_counts_as_one_call_for_the_breaker(app: App) -> None:
    heard = Heard(app)
    calls = Calls(app, dependency="shop", gather=50, retry=Retry(max_attempts=1))
    app.dependency("shop", breaker=Breaker(min_calls=3, window="1m", open_for="1h", max_open="1h"), budget=None)

    def fails(items: list[int]) -> None:
        raise ConnectionError("refused")

    calls.answer = fails
    calls.put(*range(40))
    app.run_worker(burst=True)
    assert len(calls.lists[0]) == 40 and "breaker_opened" not in heard.notices
    for n in range(2):
        calls.put(n)
        app.run_worker(burst=True)
    assert "breaker_opened" in heard.notices


def test_each_message_pays_its_retry_from_the_budget(app: App) -> None:
    calls, heard = Calls(app, dependency="shop"), Heard(app)
    app.dependency("shop", breaker=None, budget=Budget(ratio=0, life="100ms", floor=10))
    calls.answer = lambda items: [ConnectionError() for _ in items] if len(calls.lists) == 1 else None
    calls.put(0, 1, 2, 3)
    app.run_worker(drain=True)
    assert Counter(heard.outcomes) == {"retry": 4, "held": 3, "done": 4}


def test_keys_hold_for_each_message(app: App) -> None:
    seen: list[int] = []

    @app.task(gather=10, idempotency=Idempotency(key=lambda n: f"k{n}"), keep_result="1h", retry=SOON)
    async def push(items: list[int]) -> list[int | Exception]:
        seen.extend(items)
        assert [run.idempotency_key for run in redrive.context().runs] == [f"k{n}" for n in items]
        return [ConnectionError() if seen.count(n) == 1 and n == 3 else n * 2 for n in items]

    first = [push.enqueue(n) for n in (1, 2, 3, 1)]
    app.run_worker(drain=True)
    assert Counter(seen) == {1: 1, 2: 1, 3: 2} and [ref.wait(1) for ref in first] == [2, 4, 6, 2]
    assert asyncio.run(push(2)) == 4 and Counter(seen)[2] == 1, "a direct call gets the stored result, too"


@pytest.mark.parametrize("order, width", [("turns", 1), ("turns", 2), ("strict", 1)])
def test_a_call_has_no_more_messages_of_a_group_than_its_width_and_keeps_their_order(
    app: App, order: Any, width: int
) -> None:
    app.queue("default", group_order=order, group_width=width)
    calls = Calls(app, gather=10)
    app.enqueue_many([calls.task.using(group=g).draft(10 * n + k) for n in range(4) for k, g in enumerate("ab")])
    app.run_worker(burst=True)
    for k in (0, 1):
        each = [[item for item in some if item % 10 == k] for some in calls.lists]
        assert max(map(len, each)) <= width and [*chain(*each)] == [k, 10 + k, 20 + k, 30 + k]


def test_members_of_a_batch_are_counted_one_by_one(app: App) -> None:
    calls, over = Calls(app), list[Any]()

    @app.task(ctx=True, name="over")
    def after(ctx: Context) -> None:
        assert ctx.batch is not None
        over.append((ctx.batch.counts.done, ctx.batch.counts.dead))

    calls.answer = lambda items: [redrive.Reject("no") if n == 1 else None for n in items]
    app.batch([calls.task.draft(n) for n in range(3)], name="some", on_complete=after.draft()).enqueue()
    app.run_worker(drain=True)
    assert over == [(2, 1)] and calls.lists == [[0, 1, 2]]


def test_steps_of_chains_pass_on_what_each_message_returned(app: App) -> None:
    got: list[int] = []

    @app.task()
    def show(n: int) -> None:
        got.append(n)

    @app.task(gather=10)
    async def double(items: list[int]) -> list[int]:
        return [2 * n for n in items]

    for n in (1, 2, 3):
        app.chain(double.draft(n), show.draft(redrive.previous)).enqueue()
    app.run_worker(drain=True)
    assert sorted(got) == [2, 4, 6]


# -- the worker's own record, direct calls, options


@on_a_loop
async def test_held_and_running_count_messages(app: App) -> None:
    go, full = asyncio.Event(), list[int]()

    @app.task(gather=3, linger=LONG)
    async def push(items: list[int]) -> None:
        full.append(len(items))
        await go.wait()

    await app.aenqueue_many([push.draft(n) for n in range(5)])
    async with app.worker() as worker:
        await until(lambda: full == [3] and worker._presence.sample().held == 5)
        info = worker._presence.sample()
        assert (info.held, info.running) == (5, 3) and info.queues[0].concurrency == 10 * 3
        assert sorted(m.since_ms is not None for m in info.messages) == [False] * 2 + [True] * 3
        go.set()


def test_a_direct_call_is_a_call_of_one(app: App) -> None:
    @app.task(gather=5)
    def push(items: list[int]) -> list[int | Exception]:
        return [ValueError(f"no {n}") if n < 0 else n + len(items) for n in items]

    @app.task(gather=5, ctx=True)
    async def apush(ctx: Context, items: list[int]) -> list[str]:
        return [run.message.task for run in ctx.runs]

    assert push(1) == 2 and push.handler([1, 2]) == [3, 4]
    with pytest.raises(ValueError, match="no -1"):
        push(-1)
    with pytest.raises(TypeError, match="missing a required argument"):
        push()  # type: ignore[call-arg]
    assert asyncio.run(apush(1)).endswith("apush")


def test_the_kit_runs_a_call_of_one(rd: Kit) -> None:
    app = App("memory://")
    calls = Calls(app)
    calls.answer = lambda items: [n * 2 for n in items]
    rd.use(app)
    calls.put(1, 2)
    rd.fail_next(calls.task, ConnectionError("refused"))
    assert rd.drain().done == 2 and sorted(calls.lists) == [[1], [2]]
    assert sorted(ran.result for ran in rd.done()) == [2, 4]


@pytest.mark.parametrize(
    "options, text",
    [
        ({"gather": 1}, "from 2 to 1000"),
        ({"gather": True}, "from 2 to 1000"),
        ({"gather": 1001}, "from 2 to 1000"),
        ({"gather": "5"}, "from 2 to 1000"),
        ({"linger": "1s"}, "give gather="),
        ({"gather": 5, "linger": "2m"}, "expected at most 1m"),
        ({"gather": 5, "isolation": "process"}, "one message at a time"),
    ],
)
def test_options_that_make_no_sense_are_refused(app: App, options: dict[str, Any], text: str) -> None:
    declare: Any = app.task
    with pytest.raises(ConfigError, match=text):
        declare(name="t", **options)(_awaits)


def test_a_handler_that_takes_no_list_is_refused(app: App) -> None:
    def none() -> None: ...
    def one(item: int) -> None: ...
    def two(items: list[int], more: list[int]) -> None: ...
    def named(*, items: list[int]) -> None: ...
    def default(items: Sequence[int] = ()) -> None: ...
    def other(items: dict[str, int]) -> None: ...

    for handler in (none, one, two, named, default, other):
        with pytest.raises(ConfigError, match=r"takes one list with an item for each message"):
            app.task(gather=5)(handler)  # type: ignore[arg-type]


def test_the_signature_of_a_message_is_that_of_an_item(app: App) -> None:
    @app.task(gather=5, keep_result="1h")
    def push(items: list[Item]) -> list[Item | Exception] | None:
        return [Item(item.n + 1, item.tenant) for item in items]

    @app.task(gather=5)
    def bare(items) -> None: ...  # type: ignore[no-untyped-def]

    assert push.codec.decode(push.draft(Item(1, "a")).body) == ((Item(1, "a"),), {})
    with pytest.raises(TypeError, match="Expected `object`, got `array`"):
        push.enqueue([Item(1, "a")])  # type: ignore[call-overload]
    ref = push.enqueue(Item(1, "a"))
    app.run_worker(burst=True)
    assert ref.wait(1) == Item(2, "a") and bare.codec.decode(b'{"items": [1]}') == (([1],), {})
