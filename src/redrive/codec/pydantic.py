"""Encode and decode types that msgspec does not support: pydantic models (version 2) and paths.

Pydantic is never imported here; a model is recognized by its methods.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import typing
from pathlib import PurePath
from typing import Any

import msgspec

_encode = msgspec.json.Encoder(decimal_format="string").encode
_MASKED = b'"**********"'  # pydantic's output for a SecretStr


def is_model(kind: Any) -> bool:
    """Return True if a class is a pydantic model."""
    return callable(getattr(kind, "model_validate_json", None)) and callable(getattr(kind, "model_dump_json", None))


def by_name(kind: Any) -> bool:
    """True if fields with aliases can be read back by their own names: in pydantic from 2.11 on.

    Models of older versions are written and read by alias.
    """
    return "by_name" in (getattr(kind.model_validate_json, "__kwdefaults__", None) or ())


def dump(value: Any) -> Any:
    """Return a value that msgspec can encode in place of `value`.

    Raises TypeError for an unknown type, ValueError for a model that could not be read back.
    """
    kind = type(value)
    if is_model(kind):
        written = value.model_dump_json(by_alias=not by_name(kind), round_trip=True).encode()
        if _MASKED in written:
            _refuse_secrets(value)
        return msgspec.Raw(written)
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"Encoding objects of type {kind.__name__} is unsupported")


def load(kind: Any, value: Any) -> Any:
    """Return plain JSON as a value of type `kind`, for msgspec's decoder. Raises ValueError if it does not fit."""
    if is_model(kind):
        names = {"by_alias": True, "by_name": True} if by_name(kind) else {}
        try:  # as JSON, not as objects: otherwise a strict model does not take a date from text
            return kind.model_validate_json(_encode(value), **names)
        except Exception as error:
            raise ValueError(f"{kind.__name__}: {_errors(error)}") from None
    if isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    return value  # unchanged, so that the decoder rejects it


def unwrap(value: Any) -> Any:
    """Return the values inside a model as plain values; None for anything that is not a model."""
    return value.model_dump(round_trip=True) if is_model(type(value)) else None


def pydantic_dataclass(kind: Any) -> type | None:
    """Return a pydantic dataclass that this type is or contains; None without one.

    msgspec's decoder would treat it as a plain dataclass: without validation, and with field descriptions as defaults.
    """
    todo: list[Any] = [kind]
    seen: dict[int, Any] = {}  # keeps the types that were seen, so that their ids are not reused
    while todo and "pydantic" in sys.modules:
        kind = todo.pop()
        if id(kind) in seen:
            continue
        seen[id(kind)] = kind
        if isinstance(kind, type):
            if dataclasses.is_dataclass(kind) and hasattr(kind, "__pydantic_validator__"):
                return kind
            if not is_model(kind) and getattr(kind, "__annotations__", None):
                with contextlib.suppress(Exception):  # the decoder itself rejects names imported for type checkers only
                    todo.extend(typing.get_type_hints(kind).values())
        todo.extend(typing.get_args(kind))
    return None


def _refuse_secrets(model: Any) -> None:
    todo: list[Any] = [model.model_dump(round_trip=True)]
    while todo:
        value = todo.pop()
        if callable(getattr(value, "get_secret_value", None)):
            raise ValueError(
                f"{type(model).__name__} holds a {type(value).__name__}, which is written as asterisks; "
                "send a name under which the handler finds the secret"
            )
        if isinstance(value, dict):
            todo.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            todo.extend(value)


def _errors(error: Exception) -> str:
    """Return the messages of a ValidationError in one line, without rejected values and links."""
    try:
        listed = error.errors()  # type: ignore[attr-defined]
        return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'value'}: {one['msg']}" for one in listed)
    except Exception:
        return f"{type(error).__name__}: {error}"
