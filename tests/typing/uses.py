"""What type checkers accept and what they refuse. Read by mypy and pyright, never run.

Each `type: ignore` marks a line that must be an error: both checkers report one that is not needed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import redrive
from redrive import (
    App,
    AutoRedrive,
    Backoff,
    Context,
    Draft,
    Gates,
    Idempotency,
    Quarantine,
    Reject,
    Retention,
    Retry,
    RetryAfter,
    Snooze,
    Wrap,
    presets,
)
from redrive.batch import BatchRef
from redrive.enqueue import Bound, Ref, Task
from redrive.errors import Cancelled, NotDone, RedriveError, StoreUnavailable
from redrive.events import DeliveryEvent, Event, Notice
from redrive.fault import Fault, classify, parse_retry_after
from redrive.message import Counts, DeadLetter, Decision, Job, Message, PutResult, RetryAt
from redrive.store import Store
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.workflow import Step

app = App("sqlite:///work.db")
assert_type(App.from_env(), App)
App(store=MemoryStore())
App(store=object())  # type: ignore[arg-type]
App("memory://", park_for="10m")

# -- declaring


@app.task(name="crm.push", queue="crm", timeout="30s", retry=Retry(max_attempts=8))
async def push(record_id: int, *, dry: bool = False) -> str:
    return str(record_id)


@app.task(timeout=timedelta(minutes=1), retry="payments", rules=[(ValueError, "permanent"), ("busy", "transient")])
def pull(name: str, count: int = 1) -> float:
    return float(count)


@app.task(ctx=True, retry=presets["standard_api"])
async def with_context(ctx: Context, record_id: int) -> bytes | None:
    assert_type(ctx.message_id, str)
    assert_type(ctx.attempt, int)
    assert_type(ctx.remaining, float)
    assert_type(ctx.cancelled, bool)
    assert_type(ctx.idempotency_key, str)
    assert_type(ctx.progress, Any)
    return None


def key_of(record_id: int) -> str:
    return f"record-{record_id}"


@app.task(idempotency=Idempotency(key=key_of, keep=timedelta(days=7)), ctx=True)
def once(ctx: Context, record_id: int) -> str:
    assert_type(ctx.complete("done", tx=object()), str)
    return ctx.complete("done", tx=object())


assert_type(once(1), str)
once("1")  # type: ignore[arg-type]
app.task(idempotency=lambda: "key")  # type: ignore[call-overload]
Idempotency(key="order")  # type: ignore[call-overload]


@app.task(ctx=True)
def sync_with_context(ctx: Context, *, name: str) -> None:
    ctx.check()


@app.task(on_dead=push)
def undone_by_a_task(record_id: int, dry: bool) -> None: ...


@app.task(ctx=True, on_dead="crm.push")
def undone_by_a_name(ctx: Context, record_id: int) -> None: ...


@app.task(on_dead=42)  # type: ignore[call-overload, untyped-decorator]
def undone_by_no_task(record_id: int) -> None: ...


@app.task(isolation="process", memory="1GiB")
def scaled(path: str) -> int:
    return len(path)


@app.task(isolation="thread")  # type: ignore[call-overload, untyped-decorator]
def unknown_isolation() -> None: ...


@app.task(gather=50, linger="200ms")
async def many(items: list[int]) -> list[str | Exception]:
    return [str(item) for item in items]


@app.task(gather=50, ctx=True)
def many_with_context(ctx: Context, items: list[str]) -> None:
    assert_type(ctx.runs, tuple[Context, ...])


many.enqueue(1)
many_with_context.enqueue("one")
many.enqueue([1])  # type: ignore[call-overload]


@app.task(gather=50)  # type: ignore[arg-type]
def no_list(item: int) -> None: ...


@app.task(keep_result="1h")
async def with_a_result(record_id: int) -> int:
    return record_id


@app.task(version=3)
def third_version(record_id: int) -> None: ...


@third_version.upcast(1)
def second_version(old: dict[str, Any]) -> dict[str, Any]:
    return {"id": old["key"]}


@third_version.upcast(2)  # type: ignore[type-var]
def no_upcast(old: int) -> int:
    return old


assert_type(second_version({}), dict[str, Any])


@app.task(ctx=False)
def plainly_without(record_id: int) -> None: ...


@app.task(ctx=True)  # type: ignore[arg-type]
def misses_its_context(record_id: int) -> None: ...


@app.task  # type: ignore[call-overload]
def misses_its_parentheses() -> None: ...


@app.task(timeout=None)  # type: ignore[call-overload, untyped-decorator]
def has_no_timeout() -> None: ...


@app.task(retry=Backoff())  # type: ignore[call-overload, untyped-decorator]
def has_a_backoff_for_a_retry() -> None: ...


@app.task(retry="paymnets")  # type: ignore[call-overload, untyped-decorator]
def has_an_unknown_preset() -> None: ...


@app.task(attempts=3)  # type: ignore[call-overload, untyped-decorator]
def has_an_unknown_option() -> None: ...


@app.periodic("30 2 * * *", tz="Europe/Zurich", missed="all", kwargs={"name": "x"})
@app.task(name="nightly")
def nightly(name: str, tick: datetime) -> int:
    return 0


@app.periodic(every=timedelta(seconds=30), name="beat", queue="quick", retry="payments")
async def beat(tick: datetime) -> None: ...


assert_type(nightly(name="x", tick=datetime.now(UTC)), int)
assert_type(beat.enqueue(datetime.now(UTC)), Ref[None])
beat.enqueue()  # type: ignore[call-overload]
app.periodic(7)  # type: ignore[arg-type]
app.periodic("@daily", tz=None)  # type: ignore[arg-type]
app.periodic("@daily")(3)  # type: ignore[arg-type]


# -- enqueueing: the handler's own arguments, without the context


def sync_code() -> None:
    ref = push.enqueue(42)
    assert_type(ref, Ref[str])
    assert_type((ref.id, ref.state, ref.duplicate), tuple[str, str, bool])
    push.enqueue(record_id=42, dry=True)
    assert_type(ref.wait(), str)
    assert_type(pull.enqueue("x").wait(timeout="5s"), float)
    assert_type(with_context.enqueue(1).wait(), bytes | None)
    assert_type(pull.using(delay=1).enqueue("x"), Ref[float])
    assert_type(push.using(delay=1).enqueue(1), Ref[str])
    kept: Ref[object] = ref
    wrong: Ref[int] = ref  # type: ignore[assignment]
    del kept, wrong
    ref.wait(timeout=datetime.now(UTC))  # type: ignore[arg-type]
    pull.enqueue("x", 3)
    with_context.enqueue(1)
    sync_with_context.enqueue(name="x")
    plainly_without.enqueue(1)

    push.enqueue("42")  # type: ignore[call-overload]
    push.enqueue()  # type: ignore[call-overload]
    push.enqueue(1, True)  # type: ignore[call-overload]
    push.enqueue(1, dry="yes")  # type: ignore[call-overload]
    push.enqueue(1, wet=True)  # type: ignore[call-overload]
    pull.enqueue(1)  # type: ignore[arg-type]
    with_context.enqueue("x")  # type: ignore[call-overload]
    sync_with_context.enqueue("x")  # type: ignore[call-arg]


async def async_code() -> None:
    assert_type(await app.ajob("id"), Job | None)
    assert_type(await push.aenqueue(42, dry=True), Ref[str])
    assert_type(await sync_with_context.aenqueue(name="x"), Ref[None])
    await push.aenqueue("42")  # type: ignore[call-overload]
    await with_context.aenqueue()  # type: ignore[call-overload]
    await push.enqueue(42)  # type: ignore[misc]


def workflows() -> None:
    w = app.workflow(name="order", key="7", on_success=push.draft(1))
    pushed = w.step(push, 1)
    assert_type(pushed, Step[str])
    assert_type(pushed.result, str)
    pulled = w.step(pull.using(queue="slow"), pushed.result, count=2).after(pushed)
    assert_type(pulled, Step[float])
    w.step(pull, pulled.result)  # type: ignore[call-overload]
    w.step(push, "42")  # type: ignore[call-overload]
    w.step(push)  # type: ignore[call-overload]
    w.map(push, [1, 2], tolerate="5%").after(pulled).named("all")
    w.map(push, ["a"])  # type: ignore[arg-type]
    assert_type(w.enqueue(), BatchRef)
    app.batch([push.draft(1), app.batch([pull.draft("x")], name="inner")], name="outer").enqueue()


def drafts() -> None:
    assert_type(push.draft(1), Draft)
    push.draft("1")  # type: ignore[arg-type]
    refs = app.enqueue_many([push.draft(1), pull.using(group="tenant-7").draft("x"), Draft(task="t", body=b"")])
    assert_type(refs, list[Ref[Any]])
    app.enqueue_many(push.draft(n) for n in range(3))
    app.enqueue_many([push.draft(1)], tx=object())
    app.enqueue_many([1])  # type: ignore[list-item]
    app.enqueue_many(push.draft(1))  # type: ignore[arg-type]


async def adrafts() -> None:
    assert_type(await app.aenqueue_many([push.draft(1)]), list[Ref[Any]])
    assert_type(await (await push.aenqueue(1)).await_("5s"), str)


def using() -> None:
    bound = push.using(
        delay="5m",
        key="order-42",
        for_=timedelta(minutes=10),
        group="tenant-7",
        queue="bulk",
        priority=1,
        deadline=datetime.now(UTC),
        headers={"a": "b"},
        labels={"customer": "7"},
        correlation_id="c",
        keep_result="1h",
        tx=object(),
    )
    bound.enqueue(42, dry=True)
    push.using(at=datetime.now(UTC)).enqueue(42)
    push.using(delay=1.5).draft(42)

    bound.enqueue("42")  # type: ignore[call-overload]
    bound.enqueue(42, wet=True)  # type: ignore[call-overload]
    push.using(delay=datetime.now(UTC))  # type: ignore[arg-type]
    push.using(at="tomorrow")  # type: ignore[arg-type]
    push.using(key=42)  # type: ignore[arg-type]
    push.using(headers={"a": 1})  # type: ignore[dict-item]
    push.using(labels={"customer": 7})  # type: ignore[dict-item]
    push.using("5m")  # type: ignore[call-arg]
    push.using(retries=3)  # type: ignore[call-arg]


async def using_in_async_code() -> None:
    assert_type(await push.using(delay=5).aenqueue(42), Ref[str])
    await push.using(delay=5).aenqueue("42")  # type: ignore[call-overload]


# -- a plain call stays a plain call


async def direct() -> None:
    assert_type(await push(42), str)
    assert_type(pull("x"), float)
    assert_type(await with_context(1), bytes | None)
    sync_with_context(name="x")

    number: int = await push(42)  # type: ignore[assignment]
    await push("42")  # type: ignore[arg-type]
    await pull("x")  # type: ignore[misc]
    await with_context(redrive.context(), 1)  # type: ignore[call-arg, arg-type]
    del number


# -- inside a handler


@app.task(ctx=True)
async def follow_ups(ctx: Context) -> None:
    assert_type(ctx.enqueue(push, 42, dry=True), Ref[str])
    assert_type(ctx.enqueue(pull.using(delay="5m"), "x"), Ref[float])
    ctx.enqueue(with_context, 1)
    assert_type(ctx.follow_ups, tuple[Draft, ...])

    ctx.enqueue(push, "42")  # type: ignore[arg-type]
    ctx.enqueue(push.using(delay="5m"), wet=True)  # type: ignore[call-arg]
    ctx.enqueue(print, "42")  # type: ignore[arg-type]


@app.task(ctx=True)
def degrades(ctx: Context, name: str) -> float:
    if not name:
        ctx.partial(0.0)  # type: ignore[call-arg]
        return ctx.partial("0", "no name")  # type: ignore[return-value]
    return assert_type(ctx.partial(float(name), "no prices"), float)


@app.task(ctx=True)
async def checkpoints(ctx: Context) -> None:
    assert_type(await ctx.acheckpoint({"page": 3}), None)
    ctx.checkpoint([1, "two"])
    page: int = ctx.progress["page"]
    assert_type(push.enqueue(page).progress, Any)
    ctx.checkpoint()  # type: ignore[call-arg]


# -- around handlers


@app.wrap
def session(ctx: Context) -> Iterator[None]:
    yield


@app.wrap
async def tracing(ctx: Context) -> AsyncIterator[None]:
    yield


@app.wrap
@contextmanager
def managed(ctx: Context) -> Generator[None]:
    yield


@app.wrap
@asynccontextmanager
async def amanaged(ctx: Context) -> AsyncGenerator[None]:
    yield


as_it_was: Callable[[Context], Iterator[None]] = session
a_wrap: Wrap = managed


@app.wrap  # type: ignore[type-var]
def no_generator(ctx: Context) -> int:
    return 1


@app.wrap  # type: ignore[type-var]
def takes_no_context() -> Iterator[None]:
    yield


def kept_as_values(
    a: Task[[int], None], b: Task[[], Coroutine[Any, Any, int]], c: Bound[[str], float]
) -> Task[[str, int], float]:
    a.enqueue(1)
    b.enqueue()
    c.enqueue("x")
    a.enqueue("x")  # type: ignore[arg-type]
    b.enqueue(1)  # type: ignore[call-overload]
    c.enqueue(1)  # type: ignore[arg-type]
    c = plainly_without  # type: ignore[assignment]
    a = plainly_without
    return push  # type: ignore[return-value]


def a_task_is_a_bound() -> Bound[[int], None]:
    return plainly_without


# -- policies


def policies() -> None:
    backoff = Backoff(base="2s", factor=3, cap=timedelta(minutes=1), jitter="equal", share=0.2)
    assert_type(backoff.seconds(3, 0.5), float)
    assert_type(backoff.seconds(3, 0.5, previous=1.0), float)
    assert_type(Backoff.fixed("60s"), Backoff)
    assert_type(Backoff.linear("5s", step="5s"), Backoff)
    assert_type(Backoff.custom(lambda n, fault: 2.0 * n), Backoff)
    Retry(
        max_attempts=8,
        max_elapsed="24h",
        backoff=backoff,
        on={"throttled": Backoff.fixed(60), ConnectionError: Retry(max_attempts=3), "httpx.ReadTimeout": backoff},
        never=(ValueError, "permanent"),
        only=[ConnectionError],
        override=rarely,
    )
    Retry(max_elapsed=None)
    assert_type(presets["standard_api"], Retry)

    Backoff(base=None)  # type: ignore[arg-type]
    Backoff(jitter="some")  # type: ignore[arg-type]
    Backoff.custom(lambda: 1.0)  # type: ignore[arg-type, misc]
    Retry(max_attempts="8")  # type: ignore[arg-type]
    Retry(backoff="2s")  # type: ignore[arg-type]
    Retry(on={"throttled": "60s"})  # type: ignore[dict-item]
    Retry(override=never)  # type: ignore[arg-type]
    backoff.base = 3.0  # type: ignore[misc]


def rarely(message: Message, fault: Fault, delay_s: float) -> Decision | None:
    if message.attempt > 3:
        return DeadLetter("permanent", fault.text)
    return RetryAt(message.life_ms + int(delay_s * 1000)) if fault.retry_after_s else None


def never(message: Message) -> bool:
    return False


def faults() -> None:
    fault = classify(ValueError("x"), [(ValueError, "permanent")])
    assert_type(fault.errors, tuple[str, ...])
    assert_type(fault.retry_after_s, float | None)
    assert_type(parse_retry_after("120", datetime.now(UTC)), float | None)


def steering(how: str) -> None:
    if how == "later":
        raise RetryAfter("30s")
    if how == "snooze":
        raise Snooze(timedelta(seconds=30), "why")
    if how == "reject":
        raise Reject("why")
    raise Quarantine()


def steering_wrongly() -> None:
    raise RetryAfter()  # type: ignore[call-arg]


# -- looking, working and watching


def looking() -> None:
    assert_type(app.counts("crm"), Counts)
    assert_type(app.job("id"), Job | None)
    if (job := app.job("id")) is not None:
        message: Message = job
        assert_type((job.state, message.state_at(0)), tuple[str, str])
        job.state()  # type: ignore[operator]
    assert_type(app.cancel("id"), str)
    assert_type(app.run_now("id", "other", reason="r")[0].result, str)
    assert_type(redrive.context(), Context)
    [put] = app.store.put([Draft(task="t", queue="q", body=b"\x00", content="raw")])
    assert_type(put, PutResult)
    Draft("t")  # type: ignore[call-arg]
    app.store.put(["t"])  # type: ignore[list-item]


def stores() -> list[Store]:
    return [MemoryStore(), SqliteStore("work.db"), app.store]


def working() -> None:
    app.queue("crm", concurrency=20, weight=2)
    app.queue("crm", group_width=5, group_order="turns", on_dead="skip", retention=Retention.emails)
    app.queue(
        "crm", retention=Retention(keep_done=100, keep_done_for="7d", keep_dead=500, keep_dead_for=timedelta(days=90))
    )
    app.queue("crm", group_order="fifo")  # type: ignore[arg-type]
    app.queue("crm", on_dead="hold")  # type: ignore[arg-type]
    app.queue("crm", retention=100)  # type: ignore[arg-type]
    Retention(100)  # type: ignore[call-arg]
    app.run_worker(queues=["crm"], burst=True)
    app.run_worker({"crm": 5, "bulk": 1}, drain=True)
    app.worker(["crm"], lease="30s", grace=5, prefetch=0, concurrency=8, name="w")
    app.worker(lease=None)
    app.worker(leese="30s")  # type: ignore[call-arg]


def redriving() -> None:
    assert_type([message.id for message in app.dlq.all(lane="quarantine")], list[str])
    assert_type(app.dlq.list(lane="dead").cursor, str | None)
    app.store.configure("crm", group_order="strict", on_dead="block")
    app.dlq.list(lane=7)  # type: ignore[arg-type]
    selection = app.dlq.select("queue:crm failed:<6h")
    plan = selection.plan(
        rate="20/s", canary=5, slow_start=True, halve_on_failures=True, stop_if="failed>20%", attempts=3
    )
    assert_type((plan.total, plan.eta_s), tuple[int, float])
    run = plan.start(reason="the CRM is up again", actor="ann")
    assert_type(run.counts, dict[str, int])
    assert_type(run.wait(timeout=60), str)
    assert_type(app.dlq.plan(run.id).plan.digest, str)
    plan.start()  # type: ignore[call-arg]
    selection.plan(rate="20/s", canari=5)  # type: ignore[call-arg]
    selection.plan(gates=Gates(health="https://crm.example.com/health", approval="ann", window="22:00-06:00"))


def redriving_by_itself() -> None:
    auto = AutoRedrive(base="60s", factor=2, cap=None, max_redrives=5, batch=10, concurrency=5, gates=Gates())
    assert_type(AutoRedrive(rate="10/s", jitter=0.1).rate + AutoRedrive(rate=0.5).jitter, float)
    AutoRedrive(jitter="20%")  # type: ignore[arg-type]
    app.queue("crm", auto_redrive=auto)
    app.queue("crm", auto_redrive="60s")  # type: ignore[arg-type]
    app.dlq.health("crm-up", lambda: True)
    assert_type((auto.base, auto.delay_s(3), auto.at_once), tuple[float, float, int])
    assert_type([machine.isolated for machine in app.dlq.auto()], list[int])
    assert_type(app.dlq.pause_auto("crm", reason="not now").phase == "paused", bool)
    app.dlq.pause_auto("crm")  # type: ignore[call-arg]


def mending() -> None:
    edited = app.dlq.edit("id", args={"record_id": 7}, headers={"by": None}, reason="a typo", actor="ann")
    assert_type((edited.id, edited.replaces, edited.diff), tuple[str, str, str])
    assert_type(app.dlq.discard(["id"], reason="noise").ids, tuple[str, ...])
    assert_type(len(app.dlq.readmit(select="lane:quarantine", reason="mended")), int)
    assert_type(app.dlq.import_("dead.jsonl", reason="to find out why").held, tuple[str, ...])
    assert_type(app.dlq.rule("a1097e748bbaf6be", "hold", reason="not now").note, str)
    assert_type([entry.actor for entry in app.dlq.audit()], list[str])
    app.dlq.edit("id", args={"record_id": 7})  # type: ignore[call-arg]


async def embedding() -> None:
    async with app.worker(queues=["crm"]) as worker:
        worker.drain()
        await worker.wait()


def watching() -> None:
    end = app.subscribe(observe)
    end()
    app.subscribe(lambda events: print(len(events)))
    app.subscribe(never)  # type: ignore[arg-type]


def observe(events: Sequence[Event]) -> None:
    for event in events:
        match event:
            case DeliveryEvent():
                assert_type(event.outcome, str)
                assert_type(event.run_ms, float | None)
            case Notice():
                assert_type(event.text, str)


def errors() -> None:
    try:
        push.enqueue(1)
    except StoreUnavailable as error:
        raise SystemExit(str(error)) from error
    except NotDone as error:
        assert_type((error.state, error.reason), tuple[str, str | None])
    except (Cancelled, RedriveError):
        raise


async def batches(app: App) -> None:
    batch = app.batch(
        [push.draft(42)],
        name="sync",
        key="k",
        results="30d",
        labels={"customer": "7"},
        stop_if="dead>20%",
        expect=timedelta(hours=1),
        width=10,
    )
    app.batch(name="sync", labels={"customer": 7})  # type: ignore[dict-item]
    app.batch(name="sync", stop_if=0.2)  # type: ignore[arg-type]
    app.batch(name="sync", width="10")  # type: ignore[arg-type]
    ref = await batch.aenqueue()
    for message, value in ref.results():
        assert_type(message.labels, Mapping[str, str])
        assert_type(value, Any)
    info = ref.info()
    assert_type((info.per_s, info.eta_s, info.stopped), tuple[float | None, float | None, bool])
    assert_type(info.expected_ms, int | None)
