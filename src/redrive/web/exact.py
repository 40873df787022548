"""Read and write JSON without loss: digits, repeated names and the order of fields stay as they were written."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec


class ExactNumber(NamedTuple):
    """A JSON number with the digits as written. It equals no text."""

    digits: str


class Pairs(list[tuple[str, Any]]):
    """A JSON object as written: its fields in order, repeated names included."""


def read(text: str | bytes) -> Any:
    """Decode a JSON text without loss. Raises ValueError or RecursionError."""
    return json.loads(
        text, object_pairs_hook=Pairs, parse_int=ExactNumber, parse_float=ExactNumber, parse_constant=_refused
    )


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is none of JSON's numbers")


def write(value: Any) -> str:
    """Encode a value that `read` returned as JSON in one line."""
    if isinstance(value, ExactNumber):
        return value.digits
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{write(name)}:{write(part)}" for name, part in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write, value)) + "]"
    text = json.dumps(value, ensure_ascii=False)
    return text if _is_unicode(text) else json.dumps(value)


def pretty(value: Any) -> str:
    """Encode a value that `read` returned as indented JSON."""
    return msgspec.json.format(write(value).encode(), indent=2).decode()


def same(a: Any, b: Any) -> bool:
    """Return True if two values are written the same: 1 differs from true, "1" and 1.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Pairs):
        return len(a) == len(b) and all(m == n and same(x, y) for (m, x), (n, y) in zip(a, b, strict=True))
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # the text has one half of a surrogate pair
        return False
    return True
