"""Middleware: around every handler, and without a say in what becomes of the message."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from tests.support.workers import SOON, Heard, store_in, stored

import redrive
from redrive import App, Context, Reject, Retry
from redrive.errors import ConfigError
from redrive.message import Lane


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    made = App(store=store_in(tmp_path, "memory"))
    yield made
    made.store.close()


def declare(app: App, kind: str, body: Callable[[], Any], **options: Any) -> Any:
    """A task of that kind whose handler calls `body`."""
    if kind == "sync":

        @app.task(name="t", **options)
        def handler() -> Any:
            return body()

        return handler

    @app.task(name="t", **options)
    async def ahandler() -> Any:
        await asyncio.sleep(0)
        return body()

    return ahandler


def log_wrap(log: list[str], name: str, kind: str) -> Any:
    """A wrap that writes down what it sees."""

    def sync(ctx: Context) -> Iterator[None]:
        log.append(f"{name} in {ctx.message.task}")
        try:
            yield
        except BaseException as error:
            log.append(f"{name} saw {type(error).__name__}")
            raise
        log.append(f"{name} out")

    async def coroutine(ctx: Context) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        log.append(f"{name} in {ctx.message.task}")
        try:
            yield
        except BaseException as error:
            await asyncio.sleep(0)
            log.append(f"{name} saw {type(error).__name__}")
            raise
        await asyncio.sleep(0)
        log.append(f"{name} out")

    return sync if kind == "sync" else coroutine


KINDS = [("sync", "sync"), ("async", "sync"), ("async", "async")]  # of the handler, of the wrap


@pytest.mark.parametrize("kind, wrap_kind", KINDS)
def test_wraps_run_around_the_handler_the_first_one_outermost(app: App, kind: str, wrap_kind: str) -> None:
    log: list[str] = []
    app.wrap(log_wrap(log, "a", wrap_kind))
    task = declare(app, kind, lambda: log.append("handler"))
    app.wrap(log_wrap(log, "b", wrap_kind))  # also after the task was declared
    task.enqueue()
    app.run_worker(burst=True)
    assert log == ["a in t", "b in t", "handler", "b out", "a out"] and app.counts() == type(app.counts())()


@pytest.mark.parametrize("kind, wrap_kind", KINDS)
def test_a_wrap_sees_the_failure_and_the_failure_stands(app: App, kind: str, wrap_kind: str) -> None:
    log: list[str] = []

    def fails() -> None:
        raise Reject("no")

    app.wrap(log_wrap(log, "a", wrap_kind))
    ref = declare(app, kind, fails).enqueue()
    app.run_worker(burst=True)
    assert log == ["a in t", "a saw Reject"] and stored(app, ref.id).reason == "rejected"


def swallows(ctx: Context) -> Iterator[None]:
    with suppress(BaseException):
        yield


async def aswallows(ctx: Context) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        await asyncio.sleep(0)


def replaces(ctx: Context) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        raise Reject("another") from error


async def areplaces(ctx: Context) -> AsyncIterator[None]:
    try:
        yield
    except BaseException as error:
        raise Reject("another") from error


def yields_again(ctx: Context) -> Iterator[None]:
    try:
        yield
    except BaseException:
        yield


async def ayields_again(ctx: Context) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        yield


@pytest.mark.parametrize(
    "kind, wrap",
    [(kind, wrap) for kind in ("sync", "async") for wrap in (swallows, replaces, yields_again)]
    + [("async", wrap) for wrap in (aswallows, areplaces, ayields_again)],
)
def test_no_wrap_can_hide_or_change_a_failure(app: App, kind: str, wrap: Any) -> None:
    def fails() -> None:
        raise ConnectionError("down")

    plain, wrapped = App(store=app.store), app
    refs = []
    for one in (plain, wrapped):
        if one is wrapped:
            one.wrap(wrap)
        refs.append(declare(one, kind, fails, retry=Retry(max_attempts=1)).enqueue())
        one.run_worker(burst=True)
    [before], [after] = (stored(app, ref.id).faults for ref in refs)
    assert (after.kind, after.error, after.text) == ("transient", "ConnectionError", "down")
    assert (after.fingerprint, after.traceback) == (before.fingerprint, before.traceback)


@pytest.mark.parametrize("wrap", [swallows, aswallows])
def test_no_wrap_can_hide_a_timeout(app: App, wrap: Any) -> None:
    app.wrap(wrap)

    @app.task(timeout="50ms", retry=Retry(max_attempts=1))
    async def hangs() -> None:
        await asyncio.sleep(60)

    ref = hangs.enqueue()
    app.run_worker(burst=True)
    assert [fault.kind for fault in stored(app, ref.id).faults] == ["timeout"]


def breaks_before(ctx: Context) -> Iterator[None]:
    raise ConnectionError("no session")
    yield


async def abreaks_before(ctx: Context) -> AsyncIterator[None]:
    raise ConnectionError("no session")
    yield


def breaks_after(ctx: Context) -> Iterator[None]:
    yield
    raise ConnectionError("no commit")


async def abreaks_after(ctx: Context) -> AsyncIterator[None]:
    yield
    raise ConnectionError("no commit")


@pytest.mark.parametrize(
    "kind, wrap, runs, text",
    [
        ("sync", breaks_before, 0, "no session"),
        ("async", breaks_before, 0, "no session"),
        ("async", abreaks_before, 0, "no session"),
        ("sync", breaks_after, 2, "no commit"),
        ("async", breaks_after, 2, "no commit"),
        ("async", abreaks_after, 2, "no commit"),
    ],
)
def test_a_wraps_own_error_is_the_runs_failure_and_is_retried(
    app: App, kind: str, wrap: Any, runs: int, text: str
) -> None:
    heard, ran = Heard(app), []
    log: list[str] = []
    app.wrap(log_wrap(log, "outer", "sync"))
    app.wrap(wrap)
    retry = Retry(max_attempts=2, backoff=redrive.Backoff.fixed("1ms"))
    ref = declare(app, kind, lambda: ran.append(1), retry=retry).enqueue()
    app.run_worker(drain=True)
    assert len(ran) == runs and heard.outcomes == ["retry", "dead"]
    assert [(fault.kind, fault.text) for fault in stored(app, ref.id).faults] == [("transient", text)] * 2
    assert log == ["outer in t", "outer saw ConnectionError"] * 2


def yields_never(ctx: Context) -> Iterator[None]:
    if ctx.attempt < 0:
        yield


async def ayields_never(ctx: Context) -> AsyncIterator[None]:
    if ctx.attempt < 0:
        yield


def yields_twice(ctx: Context) -> Iterator[None]:
    yield
    yield


async def ayields_twice(ctx: Context) -> AsyncIterator[None]:
    yield
    yield


@pytest.mark.parametrize(
    "kind, wrap, ran, text",
    [
        ("sync", yields_never, 0, "wrap yields_never did not yield, so the handler was not run"),
        ("async", yields_never, 0, "wrap yields_never did not yield, so the handler was not run"),
        ("async", ayields_never, 0, "wrap ayields_never did not yield, so the handler was not run"),
        ("sync", yields_twice, 1, "wrap yields_twice yielded a second time, after the handler had run"),
        ("async", yields_twice, 1, "wrap yields_twice yielded a second time, after the handler had run"),
        ("async", ayields_twice, 1, "wrap ayields_twice yielded a second time, after the handler had run"),
    ],
)
def test_a_wrap_that_does_not_yield_once_fails_the_run_and_says_so(
    app: App, kind: str, wrap: Any, ran: int, text: str
) -> None:
    log: list[int] = []
    app.wrap(wrap)
    ref = declare(app, kind, lambda: log.append(1), retry=Retry(max_attempts=1)).enqueue()
    app.run_worker(burst=True)
    assert len(log) == ran and stored(app, ref.id).faults[0].text == f"{text}; expected it to yield once"


def test_a_wrap_and_the_handler_share_their_context_and_thread(app: App) -> None:
    tenant: ContextVar[str] = ContextVar("tenant")
    seen: list[Any] = []

    @app.wrap
    def tenants(ctx: Context) -> Iterator[None]:
        token = tenant.set(ctx.message.headers["tenant"])
        seen.append(threading.get_ident())
        yield
        tenant.reset(token)

    task = declare(app, "sync", lambda: seen.append((tenant.get(), threading.get_ident())))
    task.using(headers={"tenant": "x"}).enqueue()
    app.run_worker(burst=True)
    assert seen[1] == ("x", seen[0])

    @app.wrap
    @contextmanager
    def spans(ctx: Context) -> Generator[None]:
        with contextmanager(tenants)(ctx):
            yield
        seen.append("left")

    task.using(headers={"tenant": "y"}).enqueue()
    app.run_worker(burst=True)
    assert seen[-2:] == [("y", seen[-2][1]), "left"]


def test_contextlibs_decorators_may_stand_on_it(app: App) -> None:
    log: list[str] = []

    @app.wrap
    @asynccontextmanager
    async def aspan(ctx: Context) -> AsyncGenerator[None]:
        log.append("in")
        yield
        log.append("out")

    declare(app, "async", lambda: log.append("handler")).enqueue()
    app.run_worker(burst=True)
    assert log == ["in", "handler", "out"]


def test_a_sync_handler_takes_no_async_wrap(app: App) -> None:
    declare(app, "sync", lambda: None)
    with pytest.raises(ConfigError, match=r"wrap aswallows is async, .* the sync handler of task 't'"):
        app.wrap(aswallows)
    declare_other = App("memory://")
    declare_other.wrap(aswallows)
    with pytest.raises(ConfigError, match="wrap aswallows is async"):
        declare(declare_other, "sync", lambda: None)
    assert app._wraps == [] and app.tasks["t"].entry is app.tasks["t"].handler and not declare_other.tasks


@pytest.mark.parametrize("wrap", [lambda ctx: None, declare, 42, Context, functools.wraps(swallows)(lambda ctx: None)])
def test_what_is_no_generator_function_is_refused(app: App, wrap: Any) -> None:
    with pytest.raises(ConfigError, match="expected a generator function"):
        app.wrap(wrap)


def _takes_nothing() -> Iterator[None]:
    yield


def _takes_two(ctx: Context, session: object) -> Iterator[None]:
    yield


@pytest.mark.parametrize("wrap", [_takes_nothing, _takes_two])
def test_what_cannot_be_called_with_the_context_is_refused(app: App, wrap: Any) -> None:
    with pytest.raises(ConfigError, match=r"wrap _takes_.*: it is called with the Context alone"):
        app.wrap(wrap)
    assert app._wraps == []


def test_a_direct_call_runs_no_wraps(app: App) -> None:
    app.wrap(breaks_before)
    assert declare(app, "sync", lambda: 5)() == 5


def test_a_sync_handler_that_returns_a_coroutine_fails_before_the_wraps_commit(app: App) -> None:
    log: list[str] = []
    app.wrap(log_wrap(log, "a", "sync"))

    async def coroutine() -> None: ...

    ref = declare(app, "sync", coroutine, retry=Retry(max_attempts=1)).enqueue()
    app.run_worker(burst=True)
    assert log == ["a in t", "a saw TypeError"] and stored(app, ref.id).lane is Lane.DEAD


def test_the_result_and_the_steering_of_a_handler_pass_through(app: App) -> None:
    heard = Heard(app)
    app.wrap(swallows)
    steps: list[Exception | None] = [redrive.Snooze("1ms"), redrive.RetryAfter("1ms"), None]

    def steers() -> None:
        step = steps.pop(0)
        if step is not None:
            raise step

    declare(app, "async", steers, retry=SOON).enqueue()
    app.run_worker(drain=True)
    assert heard.outcomes == ["snoozed", "retry", "done"]
