"""The interface of a storage for blobs, and the names of blobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from ..ids import is_id, new_id

_ID_CHARACTERS = 36
_KEY = re.compile(r"[0-9a-f-]{36}\.[0-9a-f-]{36}")


class Blobs(Protocol):
    """A place for the large bodies of one store. `new_key` returns the keys of its blobs; no key is used twice, so a
    blob never changes.

    Synchronous, and safe to call from many threads. Every method raises BlobsUnavailable while the place cannot be
    reached, read or written.
    """

    @property
    def stored(self) -> Blobs:
        """This place without decryption: itself, or the place that it encrypts for."""
        ...

    def make(self) -> None:
        """Create the place, at a store's first use of it; durable when it returns."""
        ...

    def put(self, blobs: Mapping[str, bytes]) -> None:
        """Write all of these blobs; durable when it returns. If it raises, some of them may have been written."""
        ...

    def get(self, key: str, bytes_max: int) -> bytes | None:
        """Return the first `bytes_max` bytes of the blob, or all of a shorter one; None if the blob does not exist."""
        ...

    def copy(self, key: str, to: str) -> bool:
        """Copy the blob `key` to a new blob `to`; durable when it returns. Returns False if `key` does not exist."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove these blobs, and what their interrupted puts left. A missing blob is not an error."""
        ...

    def listed(self) -> Iterator[str]:
        """Yield the key of every blob, in any order, including those of interrupted puts."""
        ...


def new_key(owner: str, now_ms: int) -> str:
    """Return a new key for a blob of the message `owner`: the message's id, and a new id with the time of the write."""
    return f"{owner}.{new_id(now_ms)}"


def is_key(text: str) -> bool:
    """True if `text` is two message ids with a dot between. No other text may become part of a path."""
    return _KEY.fullmatch(text) is not None and is_id(owner(text)) and is_id(text[_ID_CHARACTERS + 1 :])


def owner(key: str) -> str:
    """Return the id of the message that a blob with this key belongs to."""
    return key[:_ID_CHARACTERS]


def written_ms(key: str) -> int:
    """Return when the blob with this key was about to be written, by its store's clock."""
    stamp = key[_ID_CHARACTERS + 1 :]
    return int(stamp[:8] + stamp[9:13], 16)
