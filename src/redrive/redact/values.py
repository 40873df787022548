"""Hide secrets in JSON values, by the names of fields and by the texts, also in JSON that is passed as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from json import loads
from typing import Any

import msgspec

from .formats import HIDDEN
from .names import counts, is_secret_value, telling
from .text import redact

_NAMED_BY = frozenset(("name", "key", "header", "field", "variable", "parameter"))  # the pair {"name": …, "value": …}
_VALUES = frozenset(("value", "values", "stringvalue"))


def redact_value(value: Any) -> Any:
    """Return the value with its secrets as `***`; JSON in its texts otherwise keeps its form.

    >>> redact_value({"user": "ann", "password": "a b", "tokens": 12, "note": "token=abc"})
    {'user': 'ann', 'password': '***', 'tokens': 12, 'note': 'token=***'}
    """
    return _Walk(redact, lambda secret: HIDDEN)(value)


def redact_json(json: bytes) -> bytes:
    """Return JSON without secrets: the same bytes if it has none, otherwise without space around its values.

    Digits and repeated names are kept. Bytes that are not JSON are redacted as text.

    >>> redact_json(b'{"n": 1.50, "token": "abc", "n": 2}'), redact_json(b'{ "n": 1.50 }')
    (b'{"n":1.50,"token":"***","n":2}', b'{ "n": 1.50 }')
    """
    try:
        msgspec.json.decode(json)
        read = loads(json, object_pairs_hook=_JsonObject, parse_float=_Number, parse_int=_Number)
        hidden = redact_value(read)
        return json if hidden == read else _write(hidden).encode()
    except (ValueError, RecursionError):  # nested too deep, or not Unicode
        return redact_bytes(json)


def redact_bytes(data: bytes) -> bytes:
    """Return bytes without secrets, redacted as UTF-8 text, or else as text with one byte per character."""
    for encoding in ("utf-8", "latin-1"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        hidden = redact(text)
        return data if hidden == text else hidden.encode(encoding)
    return data


class Redactor:
    """Hides secrets in JSON values, and numbers them: the same secret always gets the same number.

    >>> hide = Redactor()
    >>> hide({"token": "a b", "n": 1}), hide({"token": "c"}), hide({"api_key": "a b"})
    ({'token': '***', 'n': 1}, {'token': '***2'}, {'api_key': '***'})
    """

    def __init__(self) -> None:
        self._seen: list[Any] = []
        self._walk = _Walk(self.text, self._number)

    def __call__(self, value: Any) -> Any:
        return self._walk(value)

    def text(self, text: str) -> str:
        """Return the text as `redact` does; after each `***` is the number of this text."""
        hidden = redact(text)
        return hidden if hidden == text else hidden.replace(HIDDEN, self._number(text))

    def _number(self, secret: Any) -> str:
        if secret not in self._seen:
            self._seen.append(secret)
        number = self._seen.index(secret) + 1
        return HIDDEN if number == 1 else f"{HIDDEN}{number}"


class _Walk:
    """Redacts a value of any depth. `text` hides secrets in a text, `whole` returns what replaces a secret."""

    def __init__(self, text: Callable[[str], str], whole: Callable[[Any], str]) -> None:
        self._text, self._whole = text, whole

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            return value if isinstance(value, _Number) else self._text(value)
        if isinstance(value, Mapping):
            return dict(self._fields(value.items()))
        if isinstance(value, _JsonObject):
            return _JsonObject(self._fields(value))
        if isinstance(value, list | tuple):
            return self._items(value)
        return msgspec.Raw(redact_json(bytes(value))) if isinstance(value, msgspec.Raw) else value

    def _fields(self, fields: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        fields = list(fields)
        named = _is_named_secret(fields)
        return [
            (self._text(name), self._whole(value) if _hides(name, value, named) else self(value))
            if isinstance(name, str)
            else (name, self(value))
            for name, value in fields
        ]

    def _items(self, items: list[Any] | tuple[Any, ...]) -> Any:
        listed = isinstance(items, list)
        if len(items) == 2 and _is_pair(*items):
            items = (items[0], self._whole(items[1]))
        else:
            items = tuple(self(each) for each in items)
        return list(items) if listed else items


def _hides(name: str, value: Any, named: bool) -> bool:
    """True if the value of this field is a secret. `named`: another field, such as `name`, holds the name."""
    if value is None or isinstance(value, bool) or value == HIDDEN:
        return False
    if isinstance(value, int | float | _Number):
        return (telling(name) and not counts(name)) or is_secret_value(name, str(value))
    if not value:
        return False
    return (
        telling(name)
        or (isinstance(value, str) and is_secret_value(name, value))
        or (named and name.lower() in _VALUES)
    )


def _is_named_secret(fields: Iterable[tuple[Any, Any]]) -> bool:
    return any(
        isinstance(name, str) and name.lower() in _NAMED_BY and isinstance(value, str) and telling(value)
        for name, value in fields
    )


def _is_pair(name: Any, value: Any) -> bool:
    """True for a header as a pair, `["Authorization", "abc"]`; False for a list of names."""
    return isinstance(name, str) and isinstance(value, str) and telling(name) and not telling(value) and value != ""


class _JsonObject(list[tuple[str, Any]]):
    """A JSON object as pairs in the written order, with repeated names."""


class _Number(str):
    """A JSON number as it is written."""


def _write(value: Any) -> str:
    if isinstance(value, _JsonObject):
        return "{" + ",".join(f"{_write(name)}:{_write(each)}" for name, each in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_write, value)) + "]"
    return value if isinstance(value, _Number) else msgspec.json.encode(value).decode()
