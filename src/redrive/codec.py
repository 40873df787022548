"""Arguments to bytes and back, by the handler's annotations. JSON only; nothing in a body names code.

A body is a JSON object of arguments by name, so that it can be read, searched, edited and lifted to a later version.
Where JSON repeats a key, the last one wins.
"""

from __future__ import annotations

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
        parameters = list(inspect.signature(handler).parameters.values())[1 if skip_first else 0 :]
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
        """The body for a call with these arguments. Raises TypeError as the call itself would, EncodeError for what
        JSON cannot hold."""
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
        return body

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(self.signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"task {self.name!r}: {error}; it takes {self.signature}") from None

    def _refuse_nan(self, named: Mapping[str, Any]) -> None:
        """JSON has no NaN: the encoder writes null for it, and the handler would get something else than was sent."""
        todo: list[Any] = list(named.items())
        while todo:
            value = todo.pop()
            if isinstance(value, float) and not math.isfinite(value):
                raise EncodeError(
                    f"task {self.name!r}: an argument holds {value}, which JSON cannot write; send None or text instead"
                )
            if isinstance(value, Mapping):
                todo.extend(value.values())
            elif isinstance(value, list | tuple | set | frozenset):
                todo.extend(value)

    def decode(self, body: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to call the handler with. Raises Unreadable, whatever the bytes are."""
        try:
            fields = self._decode(body)
        except (ValueError, RecursionError, OverflowError, MemoryError) as error:
            text = str(error).encode(errors="replace").decode()[:300]
            raise Unreadable(f"body does not fit {self.name}{self.signature}: {text}") from None
        if self._all_required and len(self._positional) == len(self._fields):
            return msgspec.structs.astuple(fields), {}
        named = {name: value for name in self._fields if (value := getattr(fields, name)) is not msgspec.UNSET}
        return tuple(named.pop(name) for name in self._only_positional if name in named), named


def _struct(handler: Callable[..., Any], name: str, parameters: Sequence[inspect.Parameter]) -> type[msgspec.Struct]:
    hints = _hints(handler)
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


def _hints(handler: Callable[..., Any]) -> dict[str, Any]:
    function = handler if isinstance(handler, types.FunctionType | types.MethodType) else type(handler).__call__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:  # a name only known to type checkers: take those arguments as plain JSON
        return {}
