"""Find what failing messages share: fields of bodies whose value is more frequent among failing messages than among
others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from ...crypto import key_of
from ...message import ABSENT, BLOB, SEALED, Message
from ...redact import HIDDEN, redact_value
from ...triage.select.terms import exactly
from ..ask import Record

DEPTH_MAX, FIELDS_MAX, VALUES_MAX = 4, 100, 2000  # levels read of each body; fields and values of all bodies together
SHOWN = 12
VALUE_MAX = 100  # the most characters of a value that is compared
TELLING = 0.2  # the least difference between a value's shares among failing and other messages
BODIES, HEADERS = "args.", "header."  # the parts of messages that are compared, as selectors name them
COMMON = 0.5  # the least share of a value among failing messages, if there are no other ones

_FIELD = re.compile(r"[\w-]+(?:\.[\w-]+)*")  # what a selector can name
_SHORTENED = re.compile(r"…$|^\d+ in it$")  # the text is not the value


def counted(words: Iterable[str | None], group: str = "", field: str = "", most: int = 10) -> list[Record]:
    """Count these words, leaving out empty ones, and return the `most` frequent with their shares. `q` of each is the
    selector of the group's messages with this word in the `field`; None without one."""
    counts = Counter(word for word in words if word)
    total = sum(counts.values())
    return [
        {"text": word, "count": count, "share": count / total, "q": narrowed(group, field, word)}
        for word, count in counts.most_common(most)
    ]


def narrowed(group: str, field: str, value: str) -> str | None:
    """Return the selector of the group's messages with this value in this field; None if no selector can say that.

    >>> narrowed("a1097e748bbaf6be", "args.city", "Graz"), narrowed("a1097e748bbaf6be", "args.two words", "Graz")
    ('fingerprint:a1097e748bbaf6be args.city:Graz', None)
    """
    tells = group and _FIELD.fullmatch(field) and HIDDEN not in value and not _SHORTENED.search(value)
    return f"{exactly('fingerprint', group)} {exactly(field, value)}" if tells else None


def in_common(
    failing: Sequence[Message], others: Sequence[Message], group: str = "", part: str = BODIES
) -> list[Record]:
    """Return the fields of bodies, or the headers, whose value is more frequent among failing messages than among
    others, largest difference first. `q` of each is the selector of the group's messages with it.

    Without `others`, returns those that at least half of the failing messages share. Bodies in blobs and encrypted ones
    are not read.
    """
    (bad, bad_total), (good, good_total) = _values(failing, part), _values(others, part)
    rows: list[Record] = []
    for (field, value), count in bad.items():
        share = count / bad_total
        other = good[field, value] / good_total if good_total else None
        if count > 1 and (share >= COMMON if other is None else share - other >= TELLING):
            rows.append({"field": field, "text": value, "count": count, "share": share, "other": other})
            rows[-1]["q"] = narrowed(group, f"{part}{field}", value)
    return sorted(rows, key=lambda row: (-(row["share"] - (row["other"] or 0.0)), row["field"]))[:SHOWN]


def _values(messages: Sequence[Message], part: str) -> tuple[Counter[tuple[str, str]], int]:
    """Return in how many bodies each value of each field occurs, or of each header, and how many were read."""
    counts: Counter[tuple[str, str]] = Counter()
    read = [message for message in messages if part == HEADERS or _is_read(message)]
    for message in read:
        for pair in set(_of_headers(message) if part == HEADERS else _of_body(message.body)):
            if pair in counts or len(counts) < VALUES_MAX:
                counts[pair] += 1
    return counts, len(read)


def _of_headers(message: Message) -> Iterator[tuple[str, str]]:
    return islice(_leaves(redact_value(dict(message.headers)), "", 1), FIELDS_MAX)


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
