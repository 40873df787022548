"""Large bodies beside the store: `App(url, blobs="file:///srv/blobs")` keeps bodies over a threshold in files,
`blobs="s3://bucket/prefix"` in a bucket of S3.

Begin with `claims`, the store wrapper that moves them; `files` and `s3` are the two backends, `cleaner` deletes old
blobs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..config import is_shared, settings
from ..errors import BlobsUnavailable, ConfigError, near_miss
from ..message import BLOB, RAW, SEALED, Message
from ..store import Store
from ..urls import shown
from .claims import ClaimCheck, Reference, read_reference
from .cleaner import Cleaner
from .files import FileBlobs
from .place import Blobs

__all__ = [
    "Blobs",
    "ClaimCheck",
    "Cleaner",
    "FileBlobs",
    "Reference",
    "collect",
    "is_raw",
    "open_blobs",
    "read_reference",
    "whole_body",
    "with_blobs",
]

_KNOWN = ("file", "s3")
_EXPECTED = "file:///DIRECTORY, s3://BUCKET/PREFIX"


def open_blobs(url: str, place: str) -> Blobs:
    """Return the storage at `url`, restricted to the part named `place`. Does no I/O.

    `file:///srv/blobs` is a directory, by its absolute path; `s3://bucket/prefix?region=eu-central-1` a part of a
    bucket. Raises ConfigError for an unknown URL, or a driver that is not installed.
    """
    from urllib.parse import unquote, urlsplit

    try:
        parts = urlsplit(url)
    except ValueError:  # the text of the error may quote a password
        raise ConfigError(f"blobs URL {shown(url)!r} cannot be read; known: {_EXPECTED}") from None
    if parts.scheme not in _KNOWN:
        near = near_miss(parts.scheme, _KNOWN)
        meant = f"did you mean {near!r}? " if near else ""
        what = f"unknown scheme {parts.scheme!r}" if parts.scheme else "it has no scheme"
        raise ConfigError(f"blobs URL {shown(url)!r}: {what}; {meant}known: {_EXPECTED}")
    if parts.scheme == "s3":
        from .s3 import from_url

        return from_url(url, parts, place)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or parts.query or parts.fragment or "\0" in path:
        raise ConfigError(f"blobs URL {shown(url)!r}: expected file:///DIRECTORY, with three slashes, and nothing more")
    return FileBlobs(Path(path) / place, shared=is_shared())


def with_blobs(store: Store, url: str | None = None) -> Store:
    """Return the store, wrapped in a claim check if `url` or the settings name a blob storage.

    Raises ConfigError for an unknown URL.
    """
    chosen = settings()
    where = url or chosen.blobs
    if where is None or store.large_bodies is not None:
        return store
    open_blobs(where, "")  # raise now for an invalid URL, not with the first large body
    if chosen.blob_max < chosen.blob_threshold:
        raise ConfigError(
            f"blob_max is {chosen.blob_max} bytes, and blob_threshold {chosen.blob_threshold}; expected no less than it"
        )
    return ClaimCheck(
        store,
        lambda place: _place(where, place, store.box),
        threshold=chosen.blob_threshold,
        blob_max=chosen.blob_max,
    )


def _place(url: str, place: str, box: Any) -> Blobs:
    """Return the storage at `url`, with encryption if the store has a box."""
    blobs = open_blobs(url, place)
    if box is None:
        return blobs
    from ..crypto import SealedBlobs

    return SealedBlobs(blobs, box)


def collect(store: Store, older_than_ms: int) -> int:
    """Like `App.collect_blobs`."""
    if store.large_bodies is None:
        raise ConfigError(
            'no blob storage is named, so nothing can be swept; set blobs="file:///DIRECTORY" (REDRIVE_BLOBS)'
        )
    return store.large_bodies.collect(older_than_ms)


def is_raw(message: Message) -> bool:
    """True if redrive did not encode the message's body. Raises Unreadable for an invalid reference."""
    content = message.content
    return (read_reference(message.body).content if content == BLOB else content) == RAW


def whole_body(store: Store, message: Message) -> bytes:
    """Return the message's body, from its blob if it has one. Raises BlobsUnavailable, Unreadable, KeyMissing,
    Tampered."""
    if message.content.startswith(SEALED):
        from ..crypto import why_closed

        raise why_closed(store, message)
    if store.large_bodies is not None:
        return store.large_bodies.body(message)
    if message.content == BLOB:
        raise BlobsUnavailable(
            f"the body of message {message.id} lies in blob storage, and none is named here: set blobs (REDRIVE_BLOBS)"
        )
    return message.body
