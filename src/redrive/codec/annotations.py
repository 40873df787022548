"""Resolve a handler's annotations, and report which import an unresolved one needs."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import ConfigError


def argument_types(name: str, handler: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> dict[str, Any]:
    """Return the type of each argument; Any without annotation. Raises ConfigError for an unresolvable annotation."""
    types: dict[str, Any] = {}
    for each in parameters:
        try:
            bare = each.annotation is inspect.Parameter.empty
            types[each.name] = Any if bare else resolve_type(handler, each.name, each.annotation)
        except (NameError, AttributeError) as error:
            module = sys.modules.get(getattr(_function(handler), "__module__", ""))
            raise ConfigError(
                f"task {name!r}: the annotation {each.annotation!r} of argument {each.name} {_why(error, module)}"
            ) from None
    return types


def first_type(handler: Callable[..., Any]) -> tuple[str, Any]:
    """Return the first parameter's name and type; Any without an annotation, or with an unresolvable one."""
    first = next(iter(inspect.signature(handler).parameters.values()))
    if first.annotation is inspect.Parameter.empty:
        return first.name, Any
    try:
        type_ = resolve_type(handler, first.name, first.annotation)
    except Exception:  # for instance, the name is imported for type checkers only
        return first.name, Any
    return first.name, typing.get_origin(type_) or type_


def resolve_type(handler: Callable[..., Any], name: str, annotation: Any) -> Any:
    """Return the type that a parameter's annotation means, resolved in the module of the handler."""
    scope: dict[str, Any] = getattr(_function(handler), "__globals__", {})
    one = types.SimpleNamespace(__annotations__={name: annotation})
    return typing.get_type_hints(one, scope, include_extras=True)[name]


def why_unresolved(fields: Sequence[tuple[Any, ...]], error: NameError) -> str:
    """Return which field's type has an annotation that cannot be resolved, and which import is missing."""
    for name, kind, *_ in fields:
        for each in _parts(kind):
            try:
                typing.get_type_hints(each)
            except NameError as unknown:
                return (
                    f"{each.__qualname__}, the type of argument {name}, {_why(unknown, sys.modules[each.__module__])}"
                )
            except Exception:  # this part of the field's type has no annotations
                continue
    return f"the type of an argument {_why(error, None)}"


def _parts(kind: Any) -> Iterator[type]:
    if isinstance(kind, type):
        yield kind
    for each in typing.get_args(kind):
        yield from _parts(each)


def _why(error: NameError | AttributeError, module: types.ModuleType | None) -> str:
    known = error.name or "of it" if isinstance(error, NameError) else None
    if known is None:
        return f"cannot be resolved: {error}"
    line = _import_of(known, module)
    if line:
        return f"names {known}, which only type checkers import; write `{line}` outside `if TYPE_CHECKING:`"
    return f"names {known}, which is not known where the task is registered; import it or define it above the task"


def _import_of(name: str, module: types.ModuleType | None) -> str | None:
    """Return the statement in the module that imports the name, also under TYPE_CHECKING; None without one."""
    try:
        tree = ast.parse("".join(linecache.getlines(getattr(module, "__file__", None) or "")))
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for each in node.names:
                if (each.asname or each.name.partition(".")[0]) == name:
                    node.names = [each]
                    return ast.unparse(node)
    return None


def _function(handler: Any) -> Any:
    """Return the function whose module resolves the annotations of a handler, without wrappers and partials."""
    while isinstance(inspect.unwrap(handler), functools.partial):
        handler = inspect.unwrap(handler).func
    handler = inspect.unwrap(handler)
    return handler if hasattr(handler, "__globals__") else type(handler).__call__
