"""Encrypted blobs. Each ciphertext is bound to the blob's key, which begins with the id of its message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..message import ENVELOPE as MAGIC
from .box import OVERHEAD, Box

_NAMES = "blob", ""


class SealedBlobs:
    """`Blobs` that encrypts what it writes to `inner`. Blobs written without encryption are read as they are."""

    inner: Any

    def __init__(self, blobs: Any, box: Box) -> None:
        self.inner, self._box = blobs, box

    @property
    def stored(self) -> Any:
        return self.inner.stored

    def make(self) -> None:
        self.inner.make()

    def put(self, blobs: Mapping[str, bytes]) -> None:
        self.inner.put({key: self._box.seal(body, *_NAMES, key, "") for key, body in blobs.items()})

    def get(self, key: str, bytes_max: int) -> bytes | None:
        """Like `Blobs.get`, but decrypts the blob. Also raises KeyMissing, Tampered."""
        blob: bytes | None = self.inner.get(key, bytes_max + OVERHEAD)
        if blob is None or not blob.startswith(MAGIC):
            return None if blob is None else blob[:bytes_max]
        return self._box.open(blob, *_NAMES, key, "")

    def copy(self, key: str, to: str) -> bool:
        """Like `Blobs.copy`: decrypts the blob and encrypts it for `to`, since a ciphertext is bound to its blob."""
        blob = self.get(key, 2**62)
        if blob is not None:
            self.put({to: blob})
        return blob is not None

    def delete(self, keys: Iterable[str]) -> None:
        self.inner.delete(keys)

    def listed(self) -> Iterator[str]:
        keys: Iterator[str] = self.inner.listed()
        return keys
