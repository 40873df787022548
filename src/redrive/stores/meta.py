"""Encode rarely set fields of a message as a JSON text, which both SQL stores keep in a column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..message import Deferral, Draft, Message


class Meta(msgspec.Struct, omit_defaults=True, gc=False):
    """The rarely set fields of a message. Stored as JSON, so fields may be added but not renamed."""

    content: str = "json"
    headers: dict[str, str] = {}
    correlation_id: str | None = None
    causation_id: str | None = None
    traceparent: str | None = None
    keep_ms: int = 0


NO_META = Meta()
read_meta: Callable[[bytes | str], Meta] = msgspec.json.Decoder(Meta).decode
read_deferral: Callable[[bytes | str], Deferral] = msgspec.json.Decoder(Deferral).decode
encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


def text(value: Any) -> str:
    """Return the value as JSON text."""
    encoded: bytes = encode(value)
    return encoded.decode()


def meta_of(draft: Draft | Message, id: str) -> str | None:
    """The rarely set fields of a draft put under this id, as JSON text; None if all have their defaults."""
    correlation = draft.correlation_id if draft.correlation_id != id else None
    rare = draft.headers or correlation or draft.causation_id or draft.traceparent or draft.keep_ms
    if not rare and draft.content == "json":
        return None
    headers = dict(draft.headers or {})
    return text(Meta(draft.content, headers, correlation, draft.causation_id, draft.traceparent, draft.keep_ms))
