"""The encrypted parts of drafts, messages, faults and cells. Pure, except for the keys.

Encrypted are bodies, results, checkpoints, the text and traceback of faults, the header with the error for an
`on_dead` task, and that with the later steps of a chain. Everything else stays readable for flow control, triage and
operators.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from ..chain import NEXT_HEADER
from ..errors import KeyMissing, Tampered
from ..fault import Fault
from ..ids import new_id
from ..message import ENVELOPE as MAGIC
from ..message import SEALED, Draft, Message
from .box import Box, key_of

TEXT = "sealed:"  # prefix of an encrypted text, before an envelope in base64
_OWN_ERRORS = {f"{error.__module__}.{error.__qualname__}" for error in (KeyMissing, Tampered)}
ERROR_HEADER = "redrive-dead-error"
_HEADERS = (ERROR_HEADER, NEXT_HEADER)  # the headers that are encrypted


def sealed_draft(box: Box, draft: Draft, now_ms: Callable[[], int]) -> Draft:
    """Encrypt a draft for the store; one without an id gets one. A body that is already encrypted is kept."""
    id = draft.id or new_id(now_ms())
    headers = _header_sealed(box, draft.headers, id, draft.task)
    if draft.content.startswith(SEALED):
        return draft if headers is draft.headers else replace(draft, headers=headers)
    body = box.seal(draft.body, "body", draft.content, id, draft.task)
    return replace(draft, id=id, body=body, content=SEALED + draft.content, headers=headers)


def _header_sealed(box: Box, headers: Mapping[str, str] | None, id: str, task: str) -> Mapping[str, str] | None:
    if not headers:
        return headers
    plain = [name for name in _HEADERS if name in headers and not headers[name].startswith(TEXT)]
    return {**headers, **{name: _text(box, headers[name], "header", id, task) for name in plain}} if plain else headers


def sealed_message(box: Box, message: Message) -> Message:
    """Encrypt a message for `restore`. Parts that are already encrypted are kept."""
    content, body = message.content, message.body
    if not content.startswith(SEALED):
        body, content = box.seal(body, "body", content, message.id, message.task), SEALED + content
    progress = message.progress
    if progress is not None and not progress.startswith(MAGIC):
        progress = box.seal(progress, "checkpoint", "", message.id, message.task)
    faults = tuple(
        [f if f.text.startswith(TEXT) else sealed_fault(box, f, message.id, message.task) for f in message.faults]
    )
    headers = _header_sealed(box, message.headers, message.id, message.task) or {}
    return replace(message, body=body, content=content, progress=progress, faults=faults, headers=headers)


def sealed_fault(box: Box, fault: Fault, id: str, task: str) -> Fault:
    """Encrypt the text and traceback of a fault of this message. The text of a crash, and a fault that reports a failed
    decryption, contain no data of the message and are kept."""
    if fault.error in _OWN_ERRORS:
        return fault
    text, traceback = "" if fault.crash is not None else fault.text, fault.traceback
    return replace(
        fault,
        text=_text(box, text, "text", id, task) if text else fault.text,
        traceback=_text(box, traceback, "traceback", id, task) if traceback else traceback,
    )


def _text(box: Box, text: str, purpose: str, id: str, task: str) -> str:
    return TEXT + base64.b64encode(box.seal(text.encode(), purpose, "", id, task)).decode()


def open_message(box: Box, message: Message) -> Message:
    """Return the message decrypted. Parts that cannot be decrypted stay encrypted."""
    id, task, content, body = message.id, message.task, message.content, message.body
    if content.startswith(SEALED):
        inner = content.removeprefix(SEALED)
        with contextlib.suppress(KeyMissing, Tampered):
            body, content = box.open(body, "body", inner, id, task), inner
    result = _opened_bytes(box, message.result, "result", id, task)
    progress = _opened_bytes(box, message.progress, "checkpoint", id, task)
    faults = message.faults
    if faults:
        faults = tuple([opened_fault(box, fault, id, task) for fault in faults])
    headers = message.headers
    for name in _HEADERS if headers else ():
        if headers.get(name, "").startswith(TEXT):
            headers = {**headers, name: opened_text(box, headers[name], "header", id, task)}
    return replace(
        message, body=body, content=content, result=result, progress=progress, faults=faults, headers=headers
    )


def _opened_bytes(box: Box, stored: bytes | None, purpose: str, id: str, task: str) -> bytes | None:
    if stored is None or not stored.startswith(MAGIC):
        return stored
    try:
        return box.open(stored, purpose, "", id, task)
    except (KeyMissing, Tampered):
        return stored


def opened_fault(box: Box, fault: Fault, id: str, task: str) -> Fault:
    text = opened_text(box, fault.text, "text", id, task)
    traceback = opened_text(box, fault.traceback, "traceback", id, task)
    if text is fault.text and traceback is fault.traceback:
        return fault
    return replace(fault, text=text, traceback=traceback)


def opened_text(box: Box, text: str, purpose: str, id: str, task: str) -> str:
    if not text.startswith(TEXT):
        return text
    try:
        return box.open(_envelope(text), purpose, "", id, task).decode()
    except (KeyMissing, Tampered, ValueError):
        return text


def open_or_raise(box: Box, message: Message) -> None:
    """Raise KeyMissing or Tampered if the message's body or checkpoint cannot be decrypted."""
    if message.content.startswith(SEALED):
        box.open(message.body, "body", message.content.removeprefix(SEALED), message.id, message.task)
    if message.progress is not None and message.progress.startswith(MAGIC):
        box.open(message.progress, "checkpoint", "", message.id, message.task)


def keys_in(message: Message) -> Iterator[tuple[str, str]]:
    """Yield (kind of part, id of the key) for each encrypted part of a stored message."""
    if message.content.startswith(SEALED) and (key := key_of(message.body)) is not None:
        yield "bodies", key
    for what, field in (("results", message.result), ("checkpoints", message.progress)):
        if field is not None and (key := key_of(field)) is not None:
            yield what, key
    texts = [text for fault in message.faults for text in (fault.text, fault.traceback)]
    for text in (*texts, *(message.headers.get(name, "") for name in _HEADERS)):
        if (key := key_of_text(text)) is not None:
            yield "texts", key


def key_of_text(text: str) -> str | None:
    """Return the id of the key that a text is encrypted with; None for a plain text."""
    try:
        return key_of(_envelope(text)) if text.startswith(TEXT) else None
    except ValueError:
        return None


def shown_text(text: str) -> str:
    """Return a text for display: unchanged, or for an encrypted one a note with its key."""
    key = key_of_text(text)
    return text if key is None else f"[encrypted with key {key}]"


def _envelope(text: str) -> bytes:
    try:
        return base64.b64decode(text.removeprefix(TEXT), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
