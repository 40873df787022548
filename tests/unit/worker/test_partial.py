"""`ctx.partial`: done, though not with everything."""

from __future__ import annotations

import pytest
from tests.support.workers import SOON, Heard

from redrive import App, Context


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_partial_result_is_done_and_says_what_it_lacks(app: App, kind: str) -> None:
    heard = Heard(app)

    @app.task(ctx=True, name="async")
    async def search(ctx: Context, whole: bool) -> list[int]:
        return [1, 2] if whole else ctx.partial([1], "no prices")

    @app.task(ctx=True, name="sync")
    def search_sync(ctx: Context, whole: bool) -> list[int]:
        return [1, 2] if whole else ctx.partial([1], "no prices")

    app.enqueue_many([app.tasks[kind].draft(True), app.tasks[kind].draft(False)])
    app.run_worker(burst=True)
    assert [(fate.outcome, fate.degraded) for fate in heard.fates] == [("done", None), ("done", "no prices")]
    assert app.counts() == type(app.counts())()


def test_a_run_that_fails_after_all_is_not_degraded_but_failed(app: App) -> None:
    heard = Heard(app)

    @app.task(ctx=True, retry=SOON)
    async def search(ctx: Context) -> None:
        if ctx.attempt == 1:
            ctx.partial(None, "no prices")
            raise ConnectionError("and no names")

    search.enqueue()
    app.run_worker(drain=True)
    assert [(fate.outcome, fate.degraded) for fate in heard.fates] == [("retry", None), ("done", None)]


def test_a_partial_result_goes_with_its_follow_ups(app: App) -> None:
    heard = Heard(app)

    @app.task(queue="later")
    def rest() -> None: ...

    @app.task(ctx=True)
    def search(ctx: Context) -> None:
        ctx.enqueue(rest)
        ctx.partial(None, "x" * 5000)

    search.enqueue()
    app.run_worker(["default"], burst=True)
    assert [fate.degraded for fate in heard.fates] == ["x" * 500] and app.counts("later").ready == 1


def test_a_direct_call_returns_the_partial_result() -> None:
    app = App("memory://")

    @app.task(ctx=True)
    def search(ctx: Context) -> list[int]:
        return ctx.partial([1], "no prices")

    assert search() == [1]
