"""Find the delivery of the earlier contents of a grown file, and continue it with the new lines.

A delivery is identified by the whole content of its file, so a grown file counts as another one. A cell, whose key has
the URL and the file's first line, lists the contents with that first line that were sent to the URL before.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ..message import Swap, decoded
from ..store import Store
from .ingest import FileRecord, Ledger, record_key
from .lines import Checked, walk
from .spool import CHUNK, new_digest

KEPT_MAX = 8  # most contents remembered for one URL and first line


class Content(msgspec.Struct, frozen=True):
    """The digest and the size in bytes of a file's content."""

    digest: str
    size: int


_decode = msgspec.json.Decoder(list[Content]).decode


class Growth:
    """The contents that were sent to a URL before, of files with the same first line as the file `path`."""

    def __init__(self, store: Store, path: Path, url: str, limit: int) -> None:
        self._store, self._path, self._url = store, path, url
        with path.open("rb") as file:
            first = next((line.body for line in walk(file, limit=limit) if line.why is None), b"")
        self._key = "deliver-first:" + hashlib.blake2b(first + b"\n" + url.encode(), digest_size=16).hexdigest()
        self._read()

    def _read(self) -> None:
        cell = self._store.cells.read([self._key])[0]
        self._version = 0 if cell is None else cell.version
        self._contents = decoded(cell, _decode, [])

    def remember(self, checked: Checked) -> None:
        """Store that this content is sent. If another process changes the cell meanwhile, only a later offer to append
        is lost."""
        content = Content(checked.digest, checked.size)
        if content not in self._contents:
            kept = [*self._contents, content][-KEPT_MAX:]
            self._store.cells.swap([Swap(self._key, self._version, msgspec.json.encode(kept))])

    def earlier(self, size: int) -> FileRecord | None:
        """Return the record of the longest earlier content that this file of `size` bytes begins with, or None."""
        for content in sorted(self._contents, key=lambda each: -each.size):
            if 0 < content.size < size and self._begins_with(content):
                self._ledger = Ledger(self._store, record_key(content.digest, self._url))
                if self._ledger.record is not None and self._ledger.record.done:
                    return self._ledger.record
        return None

    def replace(self, ledger: Ledger, start: FileRecord) -> None:
        """Write the record of the whole file, then remove the earlier one. A kill between the two writes leaves both,
        for one queue; the delivery continues from the record of the whole file."""
        ledger.write(start)
        self._ledger.write(None)

    def _begins_with(self, content: Content) -> bool:
        digest, left, last = new_digest(), content.size, b""
        with self._path.open("rb") as file:
            while left and (part := file.read(min(CHUNK, left))):
                digest.update(part)
                left, last = left - len(part), part[-1:]
            ends = last == b"\n" or file.read(1) in (b"\n", b"\r")  # if no line ends here, the last line has grown
        return ends and not left and digest.hexdigest() == content.digest


def grow(earlier: FileRecord, start: FileRecord) -> FileRecord:
    """Return the record of the grown file: it continues after the last line that the earlier record counted."""
    return replace(earlier, file=start.file, total=start.total, bad=start.bad)
