"""Read the signature of a handler that takes several messages in one call as that of one message."""

from __future__ import annotations

import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ConfigError
from .annotations import resolve_type

_EMPTY = inspect.Parameter.empty
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_LISTS = (list, Sequence)


def item_handler(handler: Callable[..., Any], name: str, *, skip_first: bool) -> Callable[..., Any]:
    """Return the handler with the signature of one message: its parameter `items: list[T]` takes a T, and what it
    returns, `list[R | Exception]`, is an R. Raises ConfigError unless it has exactly one such parameter."""
    signature = inspect.signature(handler)
    first, taken = list(signature.parameters.values())[: int(skip_first)], None
    rest = list(signature.parameters.values())[int(skip_first) :]
    if len(rest) == 1 and rest[0].kind in _POSITIONAL and rest[0].default is _EMPTY:
        taken = _item(_resolved(handler, rest[0].name, rest[0].annotation), what=rest[0].annotation)
    if taken is None:
        raise ConfigError(
            f"task {name!r}: with gather= its handler takes one list with an item for each message, such as "
            f"`def push(items: list[Item])`; it has {signature}"
        )

    @functools.wraps(handler)
    def one(*args: Any, **kwargs: Any) -> Any:
        raise TypeError("this function has a signature, and is not called")

    returned = _resolved(handler, "return", signature.return_annotation)
    one.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*first, rest[0].replace(annotation=taken[0])], return_annotation=_result(returned)
    )
    return one


def _resolved(handler: Callable[..., Any], name: str, annotation: Any) -> Any:
    """Return the type; the annotation as it is if it cannot be resolved."""
    try:
        return annotation if annotation is _EMPTY else resolve_type(handler, name, annotation)
    except Exception:
        return annotation


def _item(kind: Any, *, what: Any) -> tuple[Any] | None:
    """Return the type of the items in a tuple; None if the type is no list."""
    if kind is _EMPTY or kind in _LISTS:
        return (_EMPTY,)
    if typing.get_origin(kind) in _LISTS:
        return (typing.get_args(kind)[0],)
    return (what,) if isinstance(kind, str) else None  # the codec reports what cannot be resolved


def _result(kind: Any) -> Any:
    """Return the type of one message's result: of the list's items without None for the list, and without errors."""
    lists = [each for each in _members(kind) if each is not type(None)]
    if not lists:
        return None
    if len(lists) != 1 or typing.get_origin(lists[0]) not in (*_LISTS, tuple):
        return _EMPTY
    results = [each for each in _members(typing.get_args(lists[0])[0]) if not _is_error(each)]
    return functools.reduce(operator.or_, results) if results else None


def _members(kind: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (type(None) if kind is None else kind,)


def _is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)
