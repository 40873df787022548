"""What a place for blobs must do, and the names that blobs have there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from ..ids import is_id, new_id

_ID_CHARACTERS = 36
_KEY = re.compile(r"[0-9a-f-]{36}\.[0-9a-f-]{36}")


class Blobs(Protocol):
    """A place for the large bodies of one store. Keys are `new_key`'s and never reused, so a blob never changes.

    Synchronous, and safe to call from many threads. Every method raises BlobsUnavailable where the place cannot be
    reached, read or written just now.
    """

    @property
    def stored(self) -> Blobs:
        """The place with its bytes as they are stored: itself, or the one below an encryption."""
        ...

    def make(self) -> None:
        """Prepare the place at a store's first use of it; durable when it returns."""
        ...

    def put(self, blobs: Mapping[str, bytes]) -> None:
        """Write all of them; durable when it returns. Where it raises, some may have been written."""
        ...

    def get(self, key: str, bytes_max: int) -> bytes | None:
        """The first `bytes_max` bytes of the blob, or all of a shorter one; None if it is not in its place."""
        ...

    def copy(self, key: str, to: str) -> bool:
        """Make `to` a blob of its own with the same bytes; durable when it returns. False if there is no `key`."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove these, and the remains of their interrupted puts. A missing one is not an error."""
        ...

    def listed(self) -> Iterator[str]:
        """The key of every blob, also of those whose put was interrupted, in any order."""
        ...


def new_key(owner: str, now_ms: int) -> str:
    """A fresh key for a blob of the message `owner`: that id, and one that has the time of the write."""
    return f"{owner}.{new_id(now_ms)}"


def is_key(text: str) -> bool:
    """Whether `text` is two message ids with a dot between: nothing else becomes part of a path."""
    return _KEY.fullmatch(text) is not None and is_id(owner(text)) and is_id(text[_ID_CHARACTERS + 1 :])


def owner(key: str) -> str:
    """The id of the message whose body it is."""
    return key[:_ID_CHARACTERS]


def written_ms(key: str) -> int:
    """When the blob was about to be written, by the clock of its store."""
    stamp = key[_ID_CHARACTERS + 1 :]
    return int(stamp[:8] + stamp[9:13], 16)
