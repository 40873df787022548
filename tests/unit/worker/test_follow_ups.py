"""Follow-ups: written with the ack of the run that made them, or not at all."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.support.picky import Picky
from tests.support.workers import SOON, Heard, stored, until

import redrive
from redrive import App, Backoff, Context, Reject, Retry
from redrive.enqueue import Ref
from redrive.errors import ConfigError, EncodeError, EnqueueError, TooLarge
from redrive.ids import is_id
from redrive.message import Lane
from redrive.store import Traits
from redrive.stores.memory.store import MemoryStore


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_follow_up_is_stored_with_the_ack_and_carries_the_ids_on(app: App, kind: str) -> None:
    refs: list[Ref] = []

    @app.task(queue="later")
    def second(n: int) -> None: ...

    def enqueue() -> None:
        refs.append(redrive.context().enqueue(second.using(delay="1h"), 7))
        assert app.store.find([refs[0].id]) == [None], "it is there before the ack"

    if kind == "async":

        @app.task(queue="first")
        async def first() -> None:
            enqueue()

        ref = first.using(correlation_id="order-1").enqueue()
    else:

        @app.task(queue="first")
        def first_sync() -> None:
            enqueue()

        ref = first_sync.using(correlation_id="order-1").enqueue()
    app.run_worker(["first"], burst=True)
    assert app.job(ref.id) is None and is_id(refs[0].id) and refs[0].state == "scheduled"
    found = stored(app, refs[0].id)
    assert (found.task, found.queue, found.body) == (second.name, "later", b'{"n":7}')
    assert (found.correlation_id, found.causation_id, found.producer) == ("order-1", ref.id, app.producer)


def test_follow_ups_run_in_their_turn(app: App) -> None:
    seen: list[int] = []

    @app.task(ctx=True)
    async def count(ctx: Context, n: int) -> None:
        seen.append(n)
        if n:
            ctx.enqueue(count, n - 1)

    count.enqueue(3)
    app.run_worker(drain=True)
    assert seen == [3, 2, 1, 0] and app.counts() == type(app.counts())()


def test_a_run_that_fails_drops_its_follow_ups(app: App) -> None:
    heard = Heard(app)
    refs: list[Ref] = []

    @app.task(queue="later")
    async def second() -> None: ...

    @app.task(ctx=True, queue="first", retry=SOON)
    async def first(ctx: Context, *, fails: int) -> None:
        refs.append(ctx.enqueue(second))
        if ctx.attempt <= fails:
            raise ConnectionError("not yet")

    first.enqueue(fails=2)
    first.enqueue(fails=99)
    app.run_worker(["first"], drain=True)
    assert sorted(heard.outcomes) == ["dead", "done", "retry", "retry", "retry", "retry"]
    assert len(refs) == 6 and app.counts("later").ready == 1
    assert [app.job(ref.id) is None for ref in refs].count(False) == 1


def test_a_run_that_rejects_itself_drops_its_follow_ups(app: App) -> None:
    @app.task(ctx=True)
    def first(ctx: Context) -> None:
        ctx.enqueue(first)
        raise Reject("no")

    first.enqueue()
    app.run_worker(burst=True)
    assert (app.counts().dead, app.counts().ready) == (1, 0)


def test_every_thread_of_a_handler_may_enqueue(app: App) -> None:
    @app.task(queue="later")
    def second(n: int) -> None: ...

    @app.task(ctx=True, queue="first")
    def first(ctx: Context) -> None:
        def enqueue(part: int) -> None:
            for n in range(100):
                ctx.enqueue(second, 100 * part + n)

        threads = [threading.Thread(target=enqueue, args=(part,)) for part in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    first.enqueue()
    app.run_worker(["first"], burst=True)
    bodies = {message.body for message in app.store.peek(Lane.READY, limit=1000).messages}
    assert len(bodies) == app.counts("later").ready == 800


def test_a_direct_call_collects_and_queues_nothing(app: App) -> None:
    contexts: list[Context] = []

    @app.task()
    async def second(n: int) -> None: ...

    @app.task(ctx=True)
    async def first(ctx: Context) -> str:
        contexts.append(ctx)
        return ctx.enqueue(second.using(key="k"), 5).id

    id = asyncio.run(first())
    [draft] = contexts[0].follow_ups
    assert (draft.id, draft.task, draft.body, draft.key) == (id, second.name, b'{"n":5}', "k")
    assert draft.causation_id == contexts[0].message_id and app.counts().ready == 0


def test_a_direct_call_opens_no_store(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/work.db")

    @app.task(ctx=True)
    def first(ctx: Context) -> None:
        ctx.enqueue(first)

    first()
    assert not [*tmp_path.iterdir()]


class Narrow(MemoryStore):
    traits = Traits(name="narrow", durable=False, shared=False, body_bytes_max=50)


def test_what_the_store_would_refuse_is_refused_at_the_call() -> None:
    app = App(store=Narrow())

    @app.task(queue="later")
    def second(text: str, more: object = None) -> None: ...

    @app.task(ctx=True, queue="first")
    async def first(ctx: Context) -> None:
        with pytest.raises(TooLarge, match="takes 50"):
            ctx.enqueue(second, "x" * 60)
        with pytest.raises(EnqueueError, match="NUL"):
            ctx.enqueue(second.using(key="a\0b"), "x")
        with pytest.raises(EncodeError):
            ctx.enqueue(second, "x", object())
        with pytest.raises(TypeError, match="missing a required argument"):
            ctx.enqueue(second)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="expected a task"):
            ctx.enqueue(print, "x")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="another app"):
            ctx.enqueue(App("memory://").task(name="foreign")(print_nothing))
        assert ctx.follow_ups == ()
        ctx.enqueue(second, "fits")

    ref = first.enqueue()
    app.run_worker(["first"], burst=True)
    assert app.job(ref.id) is None and app.counts("later").ready == 1


def print_nothing() -> None: ...


def test_a_run_bounds_its_follow_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.run_context.FOLLOW_UPS_MAX", 3)
    app = App(store=MemoryStore())

    @app.task(ctx=True)
    def first(ctx: Context) -> None:
        for _ in range(4):
            ctx.enqueue(first)

    with pytest.raises(EnqueueError, match="3 follow-ups"):
        first()


def test_a_follow_up_that_is_refused_after_all_fails_its_own_run_and_no_other() -> None:
    app = App(store=Picky())
    heard = Heard(app)
    release = threading.Event()

    @app.task(queue="later")
    def second() -> None: ...

    @app.task(ctx=True, queue="first", retry=Retry(max_attempts=2, backoff=Backoff.fixed("10ms")))
    def first(ctx: Context, key: str | None) -> None:
        release.wait(10)
        if key is not None:
            ctx.enqueue(second.using(key=key), *())

    async def work() -> None:
        async with app.worker(["first"]):
            release.set()
            await until(lambda: len(heard.fates) >= 6)

    [bad, *_] = app.enqueue_many([first.draft(key) for key in ("bad", "a", None, "b", None)])
    asyncio.run(work())
    assert sorted(heard.outcomes) == ["dead", "done", "done", "done", "done", "retry"]
    message = stored(app, bad.id)
    assert (message.lane, message.attempt, message.reason) == (Lane.DEAD, 2, "exhausted")
    assert [fault.text for fault in message.faults] == ["it is bad"] * 2
    assert app.counts("later").ready == 2


def test_a_follow_up_whose_key_is_held_is_dropped(app: App) -> None:
    @app.task(queue="later")
    def second() -> None: ...

    @app.task(ctx=True, queue="first")
    def first(ctx: Context) -> None:
        ctx.enqueue(second.using(key="one"))

    held = second.using(key="one").enqueue()
    first.enqueue()
    app.run_worker(["first"], burst=True)
    assert [message.id for message in app.store.peek(Lane.READY).messages] == [held.id]


def test_what_comes_after_the_end_of_the_run_is_refused(app: App) -> None:
    contexts: list[Context] = []

    @app.task(ctx=True)
    def first(ctx: Context) -> None:
        contexts.append(ctx)

    first.enqueue()
    app.run_worker(burst=True)
    with pytest.raises(RuntimeError, match="is over"):
        contexts[0].enqueue(first)
