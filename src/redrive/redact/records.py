"""Hide secrets in redrive's own records. Only in a message's payload does the name of a field mark a secret.

Elsewhere a key is a field of redrive's, or the name of a task, queue or dependency: the value of `auth.refresh_token`
is a count of messages and not a token.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from .text import redact, shown_traceback
from .values import redact_bytes, redact_value

# Names of fields with foreign data: a payload, a row of a store, settings, an engine's description.
_THEIRS = frozenset(("body", "headers", "result", "progress", "row", "settings", "engine"))


def redact_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record without the secrets in its texts, and in payloads also without those by field name.

    >>> redact_record({"by_task": {"auth.refresh_token": 3}, "why": "token=abc", "body": {"token": 3}})
    {'by_task': {'auth.refresh_token': 3}, 'why': 'token=***', 'body': {'token': '***'}}
    """
    return {name: _payload(value) if name in _THEIRS else _ours(name, value) for name, value in record.items()}


def _ours(name: Any, value: Any) -> Any:
    match value:
        case str():
            return shown_traceback(value) if name == "traceback" else str(redact(value))
        case Mapping():
            return {redact(key) if isinstance(key, str) else key: _ours(key, each) for key, each in value.items()}
        case list() | tuple():
            return [_ours(None, each) for each in value]
        case _:
            return redact_value(value)


def _payload(value: Any) -> Any:
    """Return a payload without secrets: a JSON value, or `{"base64": …}` for other bytes."""
    match value:
        case {"base64": str(text)} if len(value) == 1:
            return {"base64": base64.b64encode(redact_bytes(base64.b64decode(text))).decode()}
        case _:
            return redact_value(value)
