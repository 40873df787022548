"""Call the handler of a task with `gather=` with the items of several messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

from msgspec.structs import replace

from .errors import ConfigError
from .message import Draft
from .run_context import Context, Tracing, context, enter, leave
from .task import TaskSpec


class CallMessages:
    """The messages of one call, as a worker passes them to the task's entry in place of an argument."""

    def begin(self) -> tuple[Sequence[Context], list[Any]]:
        """Mark the messages as started; return their contexts and their items. Those that are not held any more are
        left out."""
        raise NotImplementedError

    def end(self, answers: Sequence[Any]) -> Any:
        """Take the answer for each context that `begin` returned: a result, or an exception with which it failed."""
        raise NotImplementedError


class _OneMessage(CallMessages):
    """The message that runs here: of a direct call, in a child process, or one that runs in a call of its own."""

    def __init__(self, item: Any) -> None:
        self._item = item

    def begin(self) -> tuple[Sequence[Context], list[Any]]:
        return (context(),), [self._item]

    def end(self, answers: Sequence[Any]) -> Any:
        (answer,) = answers
        if isinstance(answer, BaseException):
            raise answer
        return answer


class CallContext(Context, eq=False):
    """The context of a call that gathers messages, with a context for each in `runs`. What describes a message is the
    first one's, without its headers; what belongs to one message is refused here."""

    _runs: tuple[Context, ...] = ()

    @property
    def runs(self) -> tuple[Context, ...]:
        return self._runs

    @property
    def cancelled(self) -> bool:
        """True once no message of the call should go on."""
        return all(run.cancelled for run in self._runs)

    def check(self) -> None:
        if self.cancelled:
            self._runs[0].check()

    @property
    def idempotency_key(self) -> str:
        self._refuse("idempotency_key")

    @property
    def progress(self) -> Any:
        self._refuse("progress")

    @property
    def batch(self) -> Any:
        self._refuse("batch")

    def partial(self, result: Any, why: str) -> Any:
        self._refuse("partial(…)")

    def complete(self, result: Any, *, tx: Any) -> Any:
        self._refuse("complete(…)")

    def _state(self, state: Any) -> bytes:
        self._refuse("checkpoint(…)")

    def _follow(self, *drafts: Draft) -> None:
        self._refuse("enqueue(…)")

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigError(
            f"task {self._task.name!r} gathers messages, and each has a context of its own in ctx.runs, in the order "
            f"of the handler's list: use {what} of one of these"
        )


def gathered(inner: Callable[..., Any], task: TaskSpec) -> Callable[..., Any]:
    """Return a function that calls `inner` with a list: of one item for an argument, of all items for a CallMessages.
    `inner` returns None, or a list with a result or an exception for each item."""

    def run(*args: Any, **kwargs: Any) -> Any:
        call, of_call, given = _begin(task, args, kwargs)
        if of_call is None:
            return None
        token = enter(of_call)
        try:
            return call.end(_answers(task.name, inner(*given), len(of_call.runs)))
        finally:
            leave(token)
            _ended(task, of_call)

    async def arun(*args: Any, **kwargs: Any) -> Any:
        call, of_call, given = _begin(task, args, kwargs)
        if of_call is None:
            return None
        token = enter(of_call)
        try:
            return call.end(_answers(task.name, await inner(*given), len(of_call.runs)))
        finally:
            leave(token)
            _ended(task, of_call)

    return arun if task.is_async else run


def _begin(
    task: TaskSpec, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[CallMessages, CallContext | None, Sequence[Any]]:
    """Begin a call; return its messages, its context (None if no message is held any more), and the arguments."""
    (given,) = task.codec.signature.bind(*args[int(task.takes_context) :], **kwargs).args
    call = given if isinstance(given, CallMessages) else _OneMessage(given)
    runs, items = call.begin()
    if not runs:
        return call, None, ()
    first, tracing = context(), _tracing(task)
    if tracing is not None:
        for run in runs:
            if run.message is not first.message:  # that of `first` has the span of the whole call
                tracing.begin(run, first)
    described = replace(runs[0].message, headers={})  # a tenant in a header is not that of all messages
    of_call = CallContext(described, runs[0]._deadline_s, task, _runs=tuple(runs))
    return call, of_call, (of_call, items) if task.takes_context else (items,)


def _ended(task: TaskSpec, of_call: CallContext) -> None:
    tracing = _tracing(task)
    if tracing is not None:
        for run in of_call.runs[1:]:
            tracing.leave(run)


def _tracing(task: TaskSpec) -> Tracing | None:
    app: Any = task.app
    return cast("Tracing | None", app.tracing)


def _answers(name: str, result: Any, count: int) -> Sequence[Any]:
    """Return what the handler answered for each of `count` messages. Raises TypeError for anything else."""
    if result is None:
        return [None] * count
    if isinstance(result, list | tuple) and len(result) == count:
        return result
    what = f"a {type(result).__name__} of {len(result)}" if isinstance(result, list | tuple) else repr(result)[:100]
    raise TypeError(
        f"task {name!r}: its handler got {count} messages and returned {what}; expected None, or a list of {count}: "
        "for each message its result, or the exception with which it failed"
    )
