"""The arguments of messages as a column of a list, and as terms of the search box; without secrets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from ...errors import Unsupported
from ...message import BLOB, SEALED, Filter, Lane, Message
from ...present.messages import dead_message_row
from ...redact import HIDDEN, redact_json
from ...triage.select.terms import ARGS, exactly
from ..ask import PageRequest, Record

SHOWN = 80  # the most characters of a row
BYTES_MAX = 16_384  # of a larger body, the size is shown
SAMPLE, VALUES = 50, 4  # dead messages that are read for terms, and values of each path
_read = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def rows_with_arguments(ask: PageRequest, messages: Sequence[Message], now_ms: int) -> list[Record]:
    """Return messages as rows of a list, with their arguments."""
    texts = arguments(ask, messages)
    return [dead_message_row(m, now_ms) | {"arguments": text} for m, text in zip(messages, texts, strict=True)]


def arguments(ask: PageRequest, messages: Sequence[Message]) -> list[str | None]:
    """Return the beginning of each message's arguments, first those that differ most between the messages of its task.
    None for a reader who may not see bodies, and where the body is not in the message's row or is no JSON."""
    if not ask.sees_bodies:
        return [None] * len(messages)
    bodies = [_body(message) for message in messages]
    values: dict[tuple[str, str], set[bytes]] = defaultdict(set)
    for message, body in zip(messages, bodies, strict=True):
        for name, value in (body or {}).items():
            values[message.task, name].add(bytes(value))
    return [_text(message, body, values) for message, body in zip(messages, bodies, strict=True)]


def _body(message: Message) -> Mapping[str, msgspec.Raw] | None:
    if message.damage is not None or message.content == BLOB or message.content.startswith(SEALED):
        return None
    if len(message.body) > BYTES_MAX:
        return None
    try:
        return _read(redact_json(message.body))
    except (ValueError, RecursionError):
        return None


def _text(
    message: Message, body: Mapping[str, msgspec.Raw] | None, values: Mapping[tuple[str, str], set[bytes]]
) -> str | None:
    if body is None:
        return f"{len(message.body):,} bytes" if len(message.body) > BYTES_MAX else None
    names = sorted(body, key=lambda name: -len(values[message.task, name]))  # stable: else as they were given
    text = " ".join(f"{name}={bytes(body[name]).decode(errors='replace')}" for name in names)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def terms(ask: PageRequest) -> Sequence[str]:
    """Return terms with the arguments and groups of some dead messages, for the search box."""
    if not ask.sees_bodies or not ask.store.traits.triages:
        return ()
    return ask.kept("argument-terms", lambda: _terms(ask)).value


def _terms(ask: PageRequest) -> list[str]:
    try:
        messages = ask.store.peek(Lane.DEAD, where=Filter(), limit=SAMPLE).messages
    except Unsupported:
        return []
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for message in messages:
        if message.group:
            found["group"][message.group] = None
        for name, value in (_body(message) or {}).items():
            word = msgspec.json.decode(value)
            if isinstance(word, str | int) and not isinstance(word, bool) and HIDDEN not in str(word):
                found[f"{ARGS}{name}"][str(word)] = None
    made = [str(exactly(field, word)) for field, words in found.items() for word in list(words)[:VALUES]]
    return [*made, *(f"{field}:" for field in found if field.startswith(ARGS))]
