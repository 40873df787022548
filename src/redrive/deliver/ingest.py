"""Enqueue each line once: a record in a cell changes in the same commit as the messages that it counts.

The record's key is the digest of the file and the URL. A kill between two commits leaves lines both stored and counted,
or neither; the same command, run again, continues after the last counted line.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ..errors import Conflict, RedriveError
from ..message import Draft, Swap, required
from ..registry import Registry
from ..store import Store
from .lines import Checked, FileLine, Stamp, stamp, walk

TASK = "redrive.deliver"
BATCH_LINES = 500
BATCH_BYTES = 4 * 1024 * 1024
LINE_HEADER = "line"  # header of the stored message, not of the request: the number of the line


class FileChanged(RedriveError):
    """The file was changed while its lines were enqueued. Enqueued lines stay."""


class FileRecord(msgspec.Struct, frozen=True):
    """The progress of the delivery of a file's lines to a URL. The store keeps it until the delivery is removed."""

    file: str
    to: str
    queue: str
    total: int  # number of valid lines
    bad: int  # number of invalid lines, which are not sent
    started_ms: int
    done: int = 0  # number of lines enqueued so far
    number: int = 0  # number of the last line that was enqueued, counting blank and bad lines
    offset: int = 0  # end of the last enqueued line in the file, in bytes
    resting: int | None = None  # number of messages dead at the end of the last run; None during a run
    removed: int = 0  # number of messages counted in `resting` that were removed by hand since
    cancelled: int = 0

    @property
    def complete(self) -> bool:
        return self.done >= self.total


_record = msgspec.json.Decoder(FileRecord).decode


def record_key(digest: str, url: str) -> str:
    """Return the cell of a file's record, by the file's content and its URL, not by its name."""
    return "deliver:" + hashlib.blake2b(f"{digest}\n{url}".encode(), digest_size=16).hexdigest()


def queue_name(key: str) -> str:
    return f"deliver-{key.removeprefix('deliver:')[:8]}"


class Ledger:
    """The record of one delivery in its cell, changed by compare-and-set."""

    record: FileRecord | None

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self.read()

    def read(self) -> None:
        """Read the record from the store."""
        cell = self._store.cells.read([self._key])[0]
        self._version = cell.version if cell is not None else 0
        self.record = required(self._key, cell, _record, None)

    def swap(self, record: FileRecord | None) -> Swap:
        """Return the swap that puts `record` in place of the one last read; call `read` once it is committed."""
        return Swap(self._key, self._version, None if record is None else msgspec.json.encode(record))

    def write(self, record: FileRecord | None) -> None:
        """Write only the record. Raises Conflict if another process changed the cell since the last `read`."""
        if not self._store.cells.swap([self.swap(record)])[0]:
            raise Conflict(f"cell {self._key!r} was changed by another process; nothing was written")
        self.read()


def first_record(name: str, url: str, key: str, checked: Checked, now_ms: int) -> FileRecord:
    return FileRecord(name, url, queue_name(key), checked.good, checked.bad, now_ms)


class LineIngest:
    """Enqueues the lines that the ledger's record does not count as done, in batches, as messages of `app`. Calls
    `on_put` with the size of each batch after its commit. `run` may run on a thread of its own."""

    app: Registry

    def __init__(
        self,
        app: Registry,
        ledger: Ledger,
        path: Path,
        stamp: Stamp,
        limit: int,
        on_put: Callable[[int], object] = bool,
    ) -> None:
        self.app, self._ledger, self._path, self._stamp = app, ledger, path, stamp
        self._limit, self._on_put = limit, on_put
        self._stop = threading.Event()

    def run(self) -> None:
        """Enqueue lines until the file ends or `stop` is called. Raises FileChanged, StoreError, Conflict."""
        with self._path.open("rb") as file:
            record = self._record
            for batch in _batches(walk(file, start=record.offset, number=record.number, limit=self._limit)):
                if self._stop.is_set():
                    return
                if stamp(file) != self._stamp:
                    raise FileChanged(f"{self._record.file} was changed while it was read, near line {batch[0].number}")
                self._put(batch)

    def stop(self) -> None:
        """Let `run` return after the current batch."""
        self._stop.set()

    @property
    def _record(self) -> FileRecord:
        assert self._ledger.record is not None
        return self._ledger.record

    def _put(self, batch: list[FileLine]) -> None:
        record = self._record
        last = batch[-1]
        after = replace(record, done=record.done + len(batch), number=last.number, offset=last.end)
        self.write(batch, self._ledger.swap(after))
        # A kill here loses nothing: the next run reads the record that was committed with these messages.
        self._ledger.read()
        self._on_put(len(batch))

    def write(self, batch: Sequence[FileLine], swap: Swap) -> None:
        """Write the messages of these lines and apply the swap, in one commit."""
        queue = self._record.queue
        drafts = [
            Draft(task=TASK, queue=queue, body=line.body, content="raw", headers={LINE_HEADER: str(line.number)})
            for line in batch
        ]
        self.app.put(drafts, swaps=[swap])


def _batches(lines: Iterator[FileLine]) -> Iterator[list[FileLine]]:
    batch: list[FileLine] = []
    size = 0
    for line in lines:
        if line.why is not None:
            continue
        batch.append(line)
        size += len(line.body)
        if len(batch) >= BATCH_LINES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
