"""Find what failing messages share: fields of bodies whose value is more frequent among failing messages than among
others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from ...crypto import key_of
from ...message import ABSENT, BLOB, SEALED, Message
from ...redact import redact_value
from ..ask import Record

DEPTH_MAX, FIELDS_MAX, VALUES_MAX = 4, 100, 2000  # levels read of each body; fields and values of all bodies together
SHOWN = 12
VALUE_MAX = 100  # the most characters of a value that is compared
TELLING = 0.2  # the least difference between a value's shares among failing and other messages
COMMON = 0.5  # the least share of a value among failing messages, if there are no other ones


def counted(words: Iterable[str | None], most: int = 10) -> list[Record]:
    """Count these words, leaving out empty ones, and return the `most` frequent with their shares."""
    counts = Counter(word for word in words if word)
    total = sum(counts.values())
    return [{"text": word, "count": count, "share": count / total} for word, count in counts.most_common(most)]


def in_common(failing: Sequence[Message], others: Sequence[Message]) -> list[Record]:
    """Return the fields whose value is more frequent among failing bodies than among others, largest difference first.

    Without `others`, returns those that at least half of the failing messages share. Bodies in blobs and encrypted ones
    are not read.
    """
    (bad, bad_total), (good, good_total) = _values(failing), _values(others)
    rows: list[Record] = []
    for (field, value), count in bad.items():
        share = count / bad_total
        other = good[field, value] / good_total if good_total else None
        if count > 1 and (share >= COMMON if other is None else share - other >= TELLING):
            rows.append({"field": field, "text": value, "count": count, "share": share, "other": other})
    return sorted(rows, key=lambda row: (-(row["share"] - (row["other"] or 0.0)), row["field"]))[:SHOWN]


def _values(messages: Sequence[Message]) -> tuple[Counter[tuple[str, str]], int]:
    """Return in how many bodies each value of each field occurs, and how many bodies were read."""
    counts: Counter[tuple[str, str]] = Counter()
    bodies = [message.body for message in messages if _is_read(message)]
    for body in bodies:
        for pair in set(_of_body(body)):
            if pair in counts or len(counts) < VALUES_MAX:
                counts[pair] += 1
    return counts, len(bodies)


def _is_read(message: Message) -> bool:
    closed = message.content == BLOB or message.content.startswith(SEALED) or key_of(message.body) is not None
    return message.content != ABSENT and message.damage is None and not closed


def _of_body(body: bytes) -> Iterator[tuple[str, str]]:
    try:
        decoded = redact_value(msgspec.json.decode(body))
    except (ValueError, RecursionError):
        return iter(())
    return islice(_leaves(decoded, "", DEPTH_MAX), FIELDS_MAX)


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and depth:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name, depth - 1)
    elif isinstance(value, dict | list):
        yield path, f"{len(value)} in it"
    else:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        yield path, text[:VALUE_MAX] + ("…" if len(text) > VALUE_MAX else "")
