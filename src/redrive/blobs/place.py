"""The interface of a storage for blobs, and the names of blobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from ..ids import is_id, new_id

_ID_CHARACTERS = 36
_KEY = re.compile(r"[0-9a-f-]{36}\.[0-9a-f-]{36}")


class Blobs(Protocol):
    """A place for the large bodies of one store. `new_key` makes the keys, which are never reused, so a blob never
    changes.

    Synchronous, and safe to call from many threads. Every method raises BlobsUnavailable while the place cannot be
    reached, read or written.
    """

    @property
    def stored(self) -> Blobs:
        """The place without decryption: itself, or the wrapped one."""
        ...

    def make(self) -> None:
        """Create the place at a store's first use; durable when it returns."""
        ...

    def put(self, blobs: Mapping[str, bytes]) -> None:
        """Write all blobs; durable when it returns. If it raises, some blobs may have been written."""
        ...

    def get(self, key: str, bytes_max: int) -> bytes | None:
        """The first `bytes_max` bytes of the blob, or all of a shorter one; None if it does not exist."""
        ...

    def copy(self, key: str, to: str) -> bool:
        """Make `to` an independent blob with the same bytes; durable when it returns. False if there is no `key`."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove these blobs, and the remains of their interrupted puts. A missing one is not an error."""
        ...

    def listed(self) -> Iterator[str]:
        """The key of every blob, in any order, including those of interrupted puts."""
        ...


def new_key(owner: str, now_ms: int) -> str:
    """A new key for a blob of the message `owner`: its id, and an id with the time of the write."""
    return f"{owner}.{new_id(now_ms)}"


def is_key(text: str) -> bool:
    """True if `text` is two message ids with a dot between. Nothing else may become part of a path."""
    return _KEY.fullmatch(text) is not None and is_id(owner(text)) and is_id(text[_ID_CHARACTERS + 1 :])


def owner(key: str) -> str:
    """The id of the message that the blob belongs to."""
    return key[:_ID_CHARACTERS]


def written_ms(key: str) -> int:
    """The time just before the blob was written, by the clock of its store."""
    stamp = key[_ID_CHARACTERS + 1 :]
    return int(stamp[:8] + stamp[9:13], 16)
