"""Read a message that another program wrote: the names of its headers, and the arguments in a body that does not name
them.

A handler with one parameter, called `body` or `event`, takes the whole body. From an event of S3 a handler takes the
values in `S3_NAMES` that it has parameters for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

WHOLE = ("body", "event")
SENDER = "sender:"  # prefix for headers of other programs whose names redrive could mistake for its own
RESERVED = ("aws-", "redrive-", "celery-", SENDER)
S3_NAMES = ("bucket", "key", "size", "etag", "version_id", "event_name", "event_time", "region")


class _Bucket(msgspec.Struct):
    name: str


class _S3Object(msgspec.Struct):
    key: str
    size: int = 0
    eTag: str = ""
    versionId: str | None = None


class _S3Location(msgspec.Struct):
    bucket: _Bucket
    object: _S3Object


class _Record(msgspec.Struct):
    eventSource: Literal["aws:s3"]
    s3: _S3Location
    eventName: str = ""
    eventTime: str = ""
    awsRegion: str = ""


class _S3Event(msgspec.Struct):
    Records: list[_Record]


class _S3Test(msgspec.Struct):
    Service: Literal["Amazon S3"]
    Event: Literal["s3:TestEvent"]


_s3_test = msgspec.json.Decoder(_S3Test).decode
_s3_event = msgspec.json.Decoder(_S3Event).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_any = msgspec.json.Decoder().decode


def header_name(name: str) -> str:
    """Return the name under which a sender's header is stored: with the prefix SENDER if it begins like one of
    RESERVED, in any case, since redrive trusts its own headers."""
    return SENDER + name if name.lower().startswith(RESERVED) else name


def sent_name(header: str) -> str:
    """Return the name that the sender gave a stored header: the reverse of `header_name`."""
    return header.removeprefix(SENDER)


def storable(text: str) -> str:
    """Return the text with lone surrogates and NULs, which no store accepts, replaced by question marks."""
    return text.encode(errors="replace").decode().replace("\0", "?")


def whole_name(parameters: Sequence[str]) -> str | None:
    """Return the name of a handler's only parameter if it takes the whole body; None if it does not."""
    return parameters[0] if len(parameters) == 1 and parameters[0] in WHOLE else None


def whole(body: bytes, name: str, kind: Any, load: Callable[[Any, Any], Any]) -> Any:
    """Return the whole body as the argument `name`: as text for `str`, as bytes for `bytes`, otherwise as decoded JSON.

    Without an annotation, a body that is not JSON becomes text, or else bytes. Raises ValueError for a body that does
    not fit, and for an object whose only field has this name.
    """
    try:
        if _fields(body).keys() == {name}:
            raise ValueError(f"it names {name!r} itself")
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # the body is not a JSON object
    if kind is bytes:
        return body
    if kind is str:
        return body.decode()
    return value_of(body) if kind is Any else msgspec.json.Decoder(kind, dec_hook=load).decode(body)


def value_of(body: bytes) -> Any:
    """Return the value of a body: decoded if it is JSON, else text if it is UTF-8, else bytes."""
    try:
        return _any(body)
    except (ValueError, RecursionError):
        try:
            return body.decode()
        except UnicodeDecodeError:
            return body


def is_s3_test(body: bytes) -> bool:
    """True if the body is the event without an object that S3 sends when notifications are set up."""
    try:
        return b"s3:TestEvent" in body and bool(_s3_test(body))
    except (ValueError, RecursionError):
        return False


def s3_arguments(body: bytes) -> Mapping[str, Any]:
    """Return the values of an S3 event by name (S3_NAMES). Raises ValueError unless it is an event of one object."""
    from urllib.parse import unquote_plus

    (record,) = _s3_event(body).Records
    place = record.s3
    values = (
        place.bucket.name,
        unquote_plus(place.object.key),  # encoded as in a form: a space is a plus sign
        place.object.size,
        place.object.eTag,
        place.object.versionId,
        record.eventName,
        record.eventTime,
        record.awsRegion,
    )
    return dict(zip(S3_NAMES, values, strict=True))
