"""Call the handler of a task with `gather=` with the items of several messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from msgspec.structs import replace

from .errors import ConfigError
from .run_context import Context, context, enter, leave
from .task import TaskSpec


class CallMessages:
    """What the messages of one call are to a handler: here the one that runs in this context, such as that of a direct
    call. A worker passes several to the task's entry, in place of an argument."""

    def __init__(self, item: Any) -> None:
        self._item = item

    def begin(self) -> tuple[Sequence[Context], list[Any]]:
        """Mark the messages as started; return their contexts and items. Those that are not held any more are left
        out."""
        return (context(),), [self._item]

    def end(self, answers: Sequence[Any]) -> Any:
        """Take the answer for each context that `begin` returned: a result, or an exception with which it failed."""
        (answer,) = answers
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _refused(what: str) -> Any:
    def refuse(ctx: CallContext, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(
            f"task {ctx._task.name!r} gathers messages, and each has a context of its own in ctx.runs, in the order of "
            f"the handler's list: use {what} of one of these"
        )

    return refuse if "(" in what else property(refuse)


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

    idempotency_key, progress, batch = _refused("idempotency_key"), _refused("progress"), _refused("batch")
    partial, complete, _state = _refused("partial(…)"), _refused("complete(…)"), _refused("checkpoint(…)")
    _follow, spend = _refused("enqueue(…)"), _refused("spend(…)")


def gathered(inner: Callable[..., Any], task: TaskSpec) -> Callable[..., Any]:
    """Return a function that calls `inner` with a list: of one item for an argument, of all items for a CallMessages.
    `inner` returns None, or a list with a result or an exception for each item."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with _call(task, args, kwargs) as (given, end):
            return end(inner(*given)) if given else None

    async def arun(*args: Any, **kwargs: Any) -> Any:
        with _call(task, args, kwargs) as (given, end):
            return end(await inner(*given)) if given else None

    return arun if task.is_async else run


@contextmanager
def _call(
    task: TaskSpec, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Sequence[Any], Callable[[Any], Any]]]:
    """Begin a call; yield the arguments of the handler, none if no message is held any more, and what takes its
    answer."""
    (given,) = task.codec.signature.bind(*args[int(task.takes_context) :], **kwargs).args
    call = given if isinstance(given, CallMessages) else CallMessages(given)
    runs, items = call.begin()
    if not runs:
        yield (), call.end
        return
    app: Any = task.app
    first = context()
    others = () if app.tracing is None else [run for run in runs if run.message is not first.message]
    for run in others:  # `first` has the span of the whole call
        app.tracing.begin(run, first)
    described = replace(runs[0].message, headers={})  # a tenant in a header is not that of all messages
    of_call = CallContext(described, runs[0]._deadline_s, task, _runs=tuple(runs))
    token = enter(of_call)
    try:
        yield (
            (of_call, items) if task.takes_context else (items,),
            lambda result: call.end(_answers(task.name, result, len(runs))),
        )
    finally:
        leave(token)
        for run in others:
            app.tracing.leave(run)


def _raised(kind: type[BaseException]) -> BaseException:
    """Return the exception that `raise kind` raises."""
    try:
        return kind()
    except Exception as error:
        return error


def _answers(name: str, result: Any, count: int) -> Sequence[Any]:
    """Return what the handler answered for each of `count` messages. Raises TypeError for anything else."""
    if result is None:
        return [None] * count
    if isinstance(result, list | tuple) and len(result) == count:
        return [_raised(one) if isinstance(one, type) and issubclass(one, BaseException) else one for one in result]
    what = f"a {type(result).__name__} of {len(result)}" if isinstance(result, list | tuple) else repr(result)[:100]
    raise TypeError(
        f"task {name!r}: its handler got {count} messages and returned {what}; expected None, or a list of {count}: "
        "for each message its result, or the exception with which it failed"
    )
