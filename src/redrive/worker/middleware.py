"""Middleware: the user's generator functions that run around every handler. They cannot turn its failure into success.

The code is in the package `worker`, whose frames are left out of faults, so that faults are equal with and without
middleware.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from ..errors import ConfigError
from ..run_context import Tracing, context

Handler = Callable[..., Any]


class Opener:
    """A checked wrap of `app.wrap`: its generator function, and `is_async` if that is async."""

    def __init__(self, wrap: Any) -> None:
        self.name: Any | str = getattr(wrap, "__qualname__", None) or repr(wrap)
        made_by_contextlib = getattr(wrap, "__globals__", None) is vars(contextlib)
        self.open: Any = inspect.unwrap(wrap) if made_by_contextlib else wrap
        self.is_async: bool = _is_any(inspect.isasyncgenfunction, self.open)
        if not self.is_async and not _is_any(inspect.isgeneratorfunction, self.open):
            raise ConfigError(
                f"wrap {self.name}: expected a generator function that takes the Context and yields once, where the "
                "handler runs; such as `def session(ctx): with Session(): yield`"
            )
        try:
            inspect.signature(self.open).bind(None)
        except TypeError as error:
            raise ConfigError(
                f"wrap {self.name}{inspect.signature(self.open)}: it is called with the Context alone, and that does "
                f"not fit: {error}"
            ) from None

    def refuse(self, task: str) -> None:
        """Raise ConfigError if this wrap is async, as an async wrap cannot run around the sync handler of `task`."""
        if self.is_async:
            raise ConfigError(
                f"wrap {self.name} is async, and cannot run around the sync handler of task {task!r}, which has a "
                "thread and no event loop; make the wrap a plain generator, or the handler async"
            )


def around(handler: Handler, is_async: bool, openers: Sequence[Opener]) -> Handler:
    """Return the handler with these wraps around it, the first one outermost."""
    for opener in reversed(openers):
        around_one = (_async_in_async if opener.is_async else _sync_in_async) if is_async else _sync_in_sync
        handler = around_one(opener, handler)
    return handler


def traced(handler: Handler, is_async: bool, tracing: Tracing) -> Handler:
    """Return the handler within the span of its run. Call this last, as the span includes the wraps."""

    def run(*args: Any, **kwargs: Any) -> Any:
        made = context()
        token = tracing.enter(made)
        try:
            return handler(*args, **kwargs)
        finally:
            tracing.leave(made, token)

    async def arun(*args: Any, **kwargs: Any) -> Any:
        made = context()
        tracing.enter(made)  # without `leave`'s token: the context ends with this asyncio task
        try:
            return await handler(*args, **kwargs)
        finally:
            tracing.leave(made)

    return arun if is_async else run


def _sync_in_sync(opener: Opener, inner: Handler) -> Handler:
    def run(*args: Any, **kwargs: Any) -> Any:
        steps = _begin(opener)
        try:
            result = refuse_coroutine(inner(*args, **kwargs))
        except BaseException as error:
            _fail(steps, error)
            raise
        _finish(opener, steps, result)
        return result

    return run


def _sync_in_async(opener: Opener, inner: Handler) -> Handler:
    async def run(*args: Any, **kwargs: Any) -> Any:
        steps = _begin(opener)
        try:
            result = await inner(*args, **kwargs)
        except BaseException as error:
            _fail(steps, error)
            raise
        _finish(opener, steps, result)
        return result

    return run


def _async_in_async(opener: Opener, inner: Handler) -> Handler:
    async def run(*args: Any, **kwargs: Any) -> Any:
        steps = await _abegin(opener)
        try:
            result = await inner(*args, **kwargs)
        except GeneratorExit:  # the loop is closed, so nothing can be awaited
            raise
        except BaseException as error:
            await _afail(steps, error)
            raise
        await _afinish(opener, steps, result)
        return result

    return run


def refuse_coroutine(result: Any) -> Any:
    """Return the result of a sync handler. Raises TypeError if the result is a coroutine, which has not run."""
    if inspect.iscoroutine(result):  # from a plain function around an async one
        result.close()
        raise TypeError("the handler returned a coroutine instead of running it; declare it with async def")
    return result


def _begin(opener: Opener) -> Iterator[None]:
    steps: Iterator[None] = opener.open(context())
    for _ in steps:
        return steps
    raise _unmet(opener, "did not yield, so the handler was not run")


def _finish(opener: Opener, steps: Iterator[None], result: Any) -> None:
    context()._own_extras().result = result
    for _ in steps:
        _close(steps)
        raise _unmet(opener, "yielded a second time, after the handler had run")


def _fail(steps: Any, error: BaseException) -> None:
    """Raise the handler's failure in the wrap, and ignore all that the wrap raises."""
    traceback = error.__traceback__
    with contextlib.suppress(BaseException):
        steps.throw(error)
        steps.close()  # the wrap caught the failure and yielded again
    error.__traceback__ = traceback


async def _abegin(opener: Opener) -> AsyncIterator[None]:
    steps: AsyncIterator[None] = opener.open(context())
    async for _ in steps:
        return steps
    raise _unmet(opener, "did not yield, so the handler was not run")


async def _afinish(opener: Opener, steps: AsyncIterator[None], result: Any) -> None:
    context()._own_extras().result = result
    async for _ in steps:
        await _aclose(steps)
        raise _unmet(opener, "yielded a second time, after the handler had run")


async def _afail(steps: Any, error: BaseException) -> None:
    traceback = error.__traceback__
    with contextlib.suppress(BaseException):
        await steps.athrow(error)
        await steps.aclose()
    error.__traceback__ = traceback


def _close(steps: Any) -> None:
    with contextlib.suppress(BaseException):
        steps.close()


async def _aclose(steps: Any) -> None:
    with contextlib.suppress(BaseException):
        await steps.aclose()


def _unmet(opener: Opener, what: str) -> RuntimeError:
    return RuntimeError(f"wrap {opener.name} {what}; expected it to yield once")


def _is_any(kind: Callable[[Any], bool], wrap: Any) -> bool:
    return kind(wrap) or kind(type(wrap).__call__)
