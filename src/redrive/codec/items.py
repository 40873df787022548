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
from .annotations import argument_types, resolve_type

_EMPTY = inspect.Parameter.empty
_LISTS = (list, Sequence)


def item_handler(handler: Callable[..., Any], name: str, *, skip_first: bool) -> Callable[..., Any]:
    """Return the handler with the signature of one message: its parameter `items: list[T]` takes a T, and what it
    returns, `list[R | Exception]`, is an R. Raises ConfigError unless it has exactly one such parameter."""
    signature = inspect.signature(handler)
    first = list(signature.parameters.values())[: int(skip_first)]
    rest = list(signature.parameters.values())[int(skip_first) :]
    kind: Any = None
    if len(rest) == 1 and rest[0].default is _EMPTY and rest[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        kind = argument_types(name, handler, rest)[rest[0].name]
    if kind not in (Any, *_LISTS) and typing.get_origin(kind) not in _LISTS:
        raise ConfigError(
            f"task {name!r}: with gather= its handler takes one list with an item for each message, such as "
            f"`def push(items: list[Item])`; it has {signature}"
        )

    @functools.wraps(handler)
    def one(*args: Any, **kwargs: Any) -> Any:
        raise TypeError("this function has a signature, and is not called")

    item = rest[0].replace(annotation=next(iter(typing.get_args(kind)), Any))
    result = _result(handler, signature.return_annotation)
    one.__signature__ = signature.replace(parameters=[*first, item], return_annotation=result)  # type: ignore[attr-defined]
    return one


def _result(handler: Callable[..., Any], annotation: Any) -> Any:
    """Return the type of one message's result, without that of errors."""
    try:
        kinds = _members(resolve_type(handler, "return", annotation))
    except Exception:  # a missing annotation, or one that cannot be resolved: results are read as plain JSON
        return _EMPTY
    items = [
        each for kind in kinds for each in _members(*typing.get_args(kind)[:1]) if typing.get_origin(kind) in _LISTS
    ]
    results = [each for each in items if not (isinstance(each, type) and issubclass(each, BaseException))]
    return functools.reduce(operator.or_, results) if results else None if kinds == (type(None),) else _EMPTY


def _members(kind: Any = Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
