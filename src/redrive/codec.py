"""Arguments to bytes and back, by the handler's annotations. JSON only; nothing in a body names code.

A body is a JSON object of arguments by name, so that it can be read, searched, edited and lifted to a later version.
Where JSON repeats a key, the last one wins.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from .errors import ConfigError, EncodeError, Unreadable

_to_json = msgspec.json.Encoder(decimal_format="string").encode
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Codec:
    """Encodes and decodes the arguments of one handler. `skip_first` leaves out a leading Context parameter."""

    def __init__(self, handler: Callable[..., Any], name: str, *, skip_first: bool = False) -> None:
        self.name = name
        parameters = list(inspect.signature(handler).parameters.values())
        if skip_first and not (parameters and parameters.pop(0).kind in _POSITIONAL):
            raise ConfigError(f"task {name!r}: with ctx=True its first parameter takes the Context; it has none")
        for p in parameters:
            if p.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                raise ConfigError(
                    f"task {name!r}: parameter *{p.name} has no name in the stored body; declare each argument by name"
                )
        self.signature = inspect.Signature(parameters)
        self._positional = tuple(p.name for p in parameters if p.kind in _POSITIONAL)
        self._only_positional = tuple(p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY)
        self._names = frozenset(p.name for p in parameters)
        self._required = frozenset(p.name for p in parameters if p.default is inspect.Parameter.empty)
        self.struct = _struct(handler, name, parameters)
        self._decode = msgspec.json.Decoder(self.struct).decode
        self._fields = self.struct.__struct_fields__
        self._all_required = len(self._required) == len(parameters)

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """The body for a call with these arguments. Raises TypeError for those that do not fit the handler, by name or
        by annotation, EncodeError for what JSON cannot hold."""
        if len(args) <= len(self._positional):
            named = dict(zip(self._positional, args, strict=False))
            named.update(kwargs)
            fits = (
                len(named) == len(args) + len(kwargs) and named.keys() <= self._names and named.keys() >= self._required
            )
        if len(args) > len(self._positional) or not fits or self._only_positional:
            named = self._bind(args, kwargs)
        try:
            body = _to_json(named)
        except (TypeError, ValueError, OverflowError, RecursionError, UnicodeEncodeError) as error:
            raise EncodeError(f"task {self.name!r}: an argument cannot be written as JSON: {error}") from error
        if b"null" in body:
            self._refuse_nan(named)
        try:
            self._decode(body)
        except Exception as error:  # said here, to who wrote the call, and not hours later by the dead lane
            raise TypeError(f"task {self.name!r}: {_printable(error)}; it takes {self.signature}") from None
        return body

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(self.signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"task {self.name!r}: {error}; it takes {self.signature}") from None

    def _refuse_nan(self, named: Mapping[str, Any]) -> None:
        """JSON has no NaN: the encoder writes null for it, and the handler would get something else than was sent."""
        todo: list[Any] = [msgspec.to_builtins(named)]  # opens dataclasses, Structs and enums: it may hide in any
        while todo:
            value = todo.pop()
            if isinstance(value, float) and not math.isfinite(value):
                raise EncodeError(
                    f"task {self.name!r}: an argument holds {value}, which JSON cannot write; send None or text instead"
                )
            if isinstance(value, Mapping):
                todo.extend(value.values())
            elif isinstance(value, list | tuple):
                todo.extend(value)

    def decode(self, body: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call the handler with. Raises Unreadable, whatever the bytes are."""
        try:
            fields = self._decode(body)
        except Exception as error:  # the bytes may also make a dataclass's own code fail, in any way
            raise Unreadable(f"body does not fit {self.name}{self.signature}: {_printable(error)}") from None
        if self._all_required and len(self._positional) == len(self._fields):
            return msgspec.structs.astuple(fields), {}
        named = {name: value for name in self._fields if (value := getattr(fields, name)) is not msgspec.UNSET}
        return self._leading(named), named

    def _leading(self, named: dict[str, Any]) -> tuple[Any, ...]:
        """Take the positional-only arguments out. One that is missing before another needs its default: it cannot be
        skipped."""
        count = max((at for at, name in enumerate(self._only_positional, 1) if name in named), default=0)
        return tuple(named.pop(name, self.signature.parameters[name].default) for name in self._only_positional[:count])


def _printable(error: Exception) -> str:
    return str(error).encode(errors="replace").decode()[:300]


def _struct(handler: Callable[..., Any], name: str, parameters: Sequence[inspect.Parameter]) -> type[msgspec.Struct]:
    hints = _hints(handler, parameters)
    fields: list[Any] = []
    for p in parameters:
        kind = hints.get(p.name, Any)
        if p.default is inspect.Parameter.empty:
            fields.append((p.name, kind))
        else:  # the handler's own default applies at the call, so it need not be a JSON value
            fields.append((p.name, Any if kind is Any else kind | msgspec.UnsetType, msgspec.UNSET))
    try:
        struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, gc=False)
        msgspec.json.Decoder(struct)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"task {name!r}: its annotations cannot be read from JSON: {error}") from error
    return struct


def _hints(handler: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> dict[str, Any]:
    scope = _scope(handler)
    hints: dict[str, Any] = {}
    for p in parameters:
        if p.annotation is inspect.Parameter.empty:
            continue
        # One by one: a name only known to type checkers makes its own argument plain JSON, and no other.
        with contextlib.suppress(NameError, AttributeError):
            one = types.SimpleNamespace(__annotations__={p.name: p.annotation})
            hints |= typing.get_type_hints(one, scope, include_extras=True)
    return hints


def _scope(handler: Any) -> dict[str, Any]:
    """Where the names in the handler's annotations are looked up: the module that it was written in."""
    while isinstance(inspect.unwrap(handler), functools.partial):
        handler = inspect.unwrap(handler).func
    handler = inspect.unwrap(handler)
    function = handler if hasattr(handler, "__globals__") else type(handler).__call__
    scope: dict[str, Any] = getattr(function, "__globals__", {})
    return scope
