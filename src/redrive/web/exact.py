"""Read and write JSON so that every digit, every repeated name and the order of fields stay as they were written."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec


class ExactNumber(NamedTuple):
    """A JSON number as it is written. No text is equal to it."""

    digits: str


class Pairs(list[tuple[str, Any]]):
    """A JSON object as it is written: in its order, and with names that come twice."""


def read(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError, RecursionError."""
    return json.loads(
        text, object_pairs_hook=Pairs, parse_int=ExactNumber, parse_float=ExactNumber, parse_constant=_refused
    )


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is none of JSON's numbers")


def write(value: Any) -> str:
    """JSON of a value, in one line."""
    if isinstance(value, ExactNumber):
        return value.digits
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{write(name)}:{write(part)}" for name, part in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write, value)) + "]"
    text = json.dumps(value, ensure_ascii=False)
    return text if _is_unicode(text) else json.dumps(value)


def pretty(value: Any) -> str:
    """JSON of a value, for people."""
    return msgspec.json.format(write(value).encode(), indent=2).decode()


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same as written: 1 is neither true nor "1" nor 1.0."""
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
    except UnicodeEncodeError:  # half of a character, which JSON can only escape
        return False
    return True
