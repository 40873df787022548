"""Arguments from a body that no encoder of redrive's wrote, where it does not name them itself.

A handler with one parameter, called `body` or `event`, takes all of it. An event of S3 gives a handler what it asks for
by the names in `S3_NAMES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

WHOLE = ("body", "event")
S3_NAMES = ("bucket", "key", "size", "etag", "version_id", "event_name", "event_time", "region")


class _Bucket(msgspec.Struct):
    name: str


class _Object(msgspec.Struct):
    key: str
    size: int = 0
    eTag: str = ""
    versionId: str | None = None


class _Place(msgspec.Struct):
    bucket: _Bucket
    object: _Object


class _Record(msgspec.Struct):
    eventSource: Literal["aws:s3"]
    s3: _Place
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


def whole_name(parameters: Sequence[str]) -> str | None:
    """The name of the parameter that takes a whole body, if there is one."""
    return parameters[0] if len(parameters) == 1 and parameters[0] in WHOLE else None


def whole(body: bytes, name: str, kind: Any, load: Callable[[Any, Any], Any]) -> Any:
    """All of the body as one argument: text as it came for `str`, the bytes for `bytes`, the value that the JSON stands
    for in any other. Without an annotation what is no JSON is text, or else bytes.

    Raises ValueError for what does not fit, and for a body that has the argument by its name, and no other.
    """
    try:
        if _fields(body).keys() == {name}:
            raise ValueError(f"it names {name!r} itself")
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # no object
    if kind is bytes:
        return body
    if kind is str:
        return body.decode()
    return value_of(body) if kind is Any else msgspec.json.Decoder(kind, dec_hook=load).decode(body)


def value_of(body: bytes) -> Any:
    """JSON as its value, other text as text, anything else as bytes."""
    try:
        return _any(body)
    except (ValueError, RecursionError):
        try:
            return body.decode()
        except UnicodeDecodeError:
            return body


def is_s3_test(body: bytes) -> bool:
    """Whether S3 sent it to see whether its events would arrive, when they were set up: it is of no object."""
    try:
        return b"s3:TestEvent" in body and bool(_s3_test(body))
    except (ValueError, RecursionError):
        return False


def s3_arguments(body: bytes) -> Mapping[str, Any]:
    """What an event of S3 says, by name. Raises ValueError for what is none, or is of more than one object."""
    from urllib.parse import unquote_plus

    (record,) = _s3_event(body).Records
    place = record.s3
    values = (
        place.bucket.name,
        unquote_plus(place.object.key),  # it is written as in a form: a space is a plus sign
        place.object.size,
        place.object.eTag,
        place.object.versionId,
        record.eventName,
        record.eventTime,
        record.awsRegion,
    )
    return dict(zip(S3_NAMES, values, strict=True))
