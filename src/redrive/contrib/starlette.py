"""A worker inside a web process: `FastAPI(lifespan=lifespan(app))`.

The same line works for Starlette, and for any framework that takes an ASGI lifespan as an async context manager. In
routes use `await task.aenqueue(…)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from ..app import App

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(
    app: App, queues: Sequence[str] | Mapping[str, int] | None = None, *, inner: Lifespan | None = None, **options: Any
) -> Lifespan:
    """Return a lifespan with a worker for `queues` (default: those of all tasks) on the web application's event loop.

    When the server shuts down, the worker claims nothing more, lets running messages finish within its grace, and
    returns the rest uncounted; let the server wait at least that long before it kills. `options` are those of
    `app.worker`, such as `concurrency=` and `grace=`. `inner` is the application's own lifespan: it starts before the
    worker and ends after it, so that handlers may use what it opened. Each server process has a worker of its own.
    """

    @contextlib.asynccontextmanager
    async def run(web: Any) -> AsyncIterator[Any]:
        outer = inner(web) if inner is not None else contextlib.nullcontext()
        async with outer as state, app.worker(queues, **options):
            yield state

    return run
