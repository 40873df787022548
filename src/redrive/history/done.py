"""Which messages were done within the last hour: when, where and for how long.

A worker notes the id and the duration of each message that it acked. The flusher writes them every ten seconds, in
chunks that no one changes, and names each chunk in an index cell of the minute. So an ack costs two appends, and a
message about twenty bytes. The records are a help and no proof: a worker that is killed loses those it has not written,
and a minute takes MINUTE_BYTES, beyond which they are dropped.
"""

from __future__ import annotations

import secrets
import struct
import threading
import zlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ..chance import randrange
from ..ids import is_id
from ..message import Cell, Swap, decoded, version_of
from ..store import Store
from .chunk import HOUR_MS, MINUTE_MS, MINUTES
from .names import read_names
from .read import read_slots
from .tally import OUTCOME

KNOWN_MAX_MS = 24 * HOUR_MS  # the longest time for which done messages may be known
CHUNK = 2048  # messages from which on a chunk is full
FULL_MAX = 50  # chunks that a worker keeps while the store does not answer
SHARDS = 4  # index cells of a minute, so that few processes change one at a time
MINUTE_BYTES = 1024 * 1024  # of chunks that were written in a minute; an hour has 60 MiB at most
_TRIES = 8
_READ = 24  # chunks that are read together, which is about a megabyte
_SPAN = 10  # minutes whose index is read together
_UNPACKED_MAX = 16 * CHUNK  # bytes of a chunk's durations
_MS_MAX = 2**32 - 1


class DoneRecord(Struct, frozen=True):
    """A done message as a worker noted it: when it was acked, and how long its handler ran."""

    id: str
    task: str
    queue: str
    at_ms: int
    ran_ms: int
    worker: str


class _Chunk(Struct, array_like=True):
    """Messages of one worker. `runs`: of those that follow each other with one queue, task and time: how many, the time
    since `at_ms`, and the index of the name."""

    worker: str
    at_ms: int
    names: list[tuple[str, str]]
    runs: list[tuple[int, int, int]]
    ids: bytes
    ran: bytes  # of each message its four bytes of milliseconds, compressed


_encode = msgspec.msgpack.encode
_read_chunk = msgspec.msgpack.Decoder(_Chunk).decode
_read_index = msgspec.msgpack.Decoder(dict[str, int]).decode  # bytes of chunks, by token


class DoneLog:
    """What one worker has noted and not written yet; `full` are closed chunks. Hold the recorder's lock to use it."""

    worker: str
    closed: bool

    def __init__(self, worker: str) -> None:
        self.worker, self.closed = worker, False
        self.full: list[bytes] = []
        self._clear()

    def _clear(self) -> None:
        self.ids: list[str] = []
        self.ran: list[float] = []  # ms
        #: Where messages of a queue and task begin that were acked together: index, time, queue and task.
        self.begun: list[tuple[int, int, tuple[str, str]]] = []

    def close(self) -> None:
        """Close the chunk under way. Call it once it has CHUNK messages."""
        names = list(dict.fromkeys(name for _, _, name in self.begun))
        base_ms, ends = self.begun[0][1], [at for at, _, _ in self.begun[1:]] + [len(self.ids)]
        runs = [
            (end - at, at_ms - base_ms, names.index(name))
            for (at, at_ms, name), end in zip(self.begun, ends, strict=True)
        ]
        ids = bytes.fromhex("".join(self.ids).replace("-", ""))
        self.full.append(_encode(_Chunk(self.worker, base_ms, names, runs, ids, zlib.compress(_packed(self.ran), 1))))
        del self.full[:-FULL_MAX]
        self._clear()

    def take(self) -> list[bytes]:
        """Return all that was noted, as values of cells, and forget it."""
        if self.ids:
            self.close()
        full, self.full = self.full, []
        return full


class DoneWriter:
    """Writes the logs of a process to its store, each record for `kept_ms`. One thread at a time writes."""

    def __init__(self, store: Store, lock: threading.Lock, kept_ms: int) -> None:
        self._store, self._lock, self._kept_ms = store, lock, kept_ms
        self.logs: list[DoneLog] = []

    def log(self, worker: str) -> DoneLog:
        """Return a new log, whose messages are written from now on."""
        log = DoneLog(worker)
        with self._lock:
            self.logs.append(log)
        return log

    def write(self) -> None:
        """Write all that was noted. Raises StoreError; what was not written then is lost."""
        with self._lock:
            chunks = [chunk for log in self.logs for chunk in log.take()]
            self.logs = [log for log in self.logs if not log.closed]
        for chunk in chunks:
            self._put(chunk)

    def _put(self, chunk: bytes) -> None:
        """Write a chunk and name it in an index of this minute; drop it if none has room."""
        cells, ttl_ms, token = self._store.cells, self._kept_ms + MINUTE_MS, secrets.token_hex(6)
        minute, shard = self._store.now_ms() // MINUTE_MS, randrange(SHARDS)
        for tried in range(_TRIES):
            key = _key(minute, (shard + tried) % SHARDS)
            cell = cells.read([key])[0]
            index = _index_of(cell)
            if sum(index.values()) + len(chunk) > MINUTE_BYTES // SHARDS:
                continue
            index[token] = len(chunk)
            named = Swap(key, version_of(cell), _encode(index), ttl_ms)
            if cells.swap([named, Swap(_key(minute, token), 0, chunk, ttl_ms)], durable=False)[0]:
                return


def read_done(store: Store, ids: Sequence[str]) -> dict[str, DoneRecord]:
    """Return what is known of these ids as done messages. A missing one may be done all the same. Raises StoreError.

    It reads from the minute in which the oldest of the ids was made: some megabytes, and 60 for an hour at most.
    """
    wanted = {bytes.fromhex(id.replace("-", "")): id for id in ids if is_id(id)}
    if not wanted or not store.traits.cells:
        return {}
    now_ms = store.now_ms()
    made_ms = min(int.from_bytes(raw[:6]) for raw in wanted)
    first, last = max(made_ms, now_ms - KNOWN_MAX_MS - MINUTE_MS) // MINUTE_MS, now_ms // MINUTE_MS
    found: dict[str, DoneRecord] = {}
    for begin in range(first, last + 1, _SPAN):
        places = [(m, n) for m in range(begin, min(begin + _SPAN, last + 1)) for n in range(SHARDS)]
        cells = store.cells.read([_key(m, n) for m, n in places])
        keys = [_key(m, t) for (m, _), cell in zip(places, cells, strict=True) for t in _index_of(cell)]
        for at in range(0, len(keys), _READ):
            for cell in store.cells.read(keys[at : at + _READ]):
                chunk = None if cell is None else decoded(cell, _read_chunk, None)
                if chunk is not None:
                    found |= _found(chunk, wanted)
            if len(found) == len(wanted):
                return found
    return found


def done_by_queue(store: Store) -> dict[str, int]:
    """Return how many messages of each queue were done within the last hour, by the counts of the history. Raises
    StoreError."""
    done: dict[str, int] = {}
    if store.traits.cells:
        now_ms = store.now_ms()
        names = read_names(store)
        for queue in {queue for queue, _ in names}:
            slots = read_slots(store, [n for n in names if n[0] == queue], MINUTES, now_ms - HOUR_MS, now_ms + 1)
            done[queue] = sum(count for _, key, count in slots if key[0] == OUTCOME and key[2:] == "done")
    return done


def _packed(ran: Sequence[float]) -> bytes:
    try:
        return struct.pack(f"<{len(ran)}I", *map(int, ran))
    except struct.error:  # one is out of range, as a clock went back or a run took 49 days
        return struct.pack(f"<{len(ran)}I", *[min(max(0, int(ms)), _MS_MAX) for ms in ran])


def _found(chunk: _Chunk, wanted: dict[bytes, str]) -> dict[str, DoneRecord]:
    found: dict[str, DoneRecord] = {}
    for raw, id in wanted.items():
        at = chunk.ids.find(raw)
        while at >= 0 and at % 16:  # across two ids
            at = chunk.ids.find(raw, at + 1)
        if at < 0:
            continue
        number = at // 16
        try:
            ran = zlib.decompressobj().decompress(chunk.ran, _UNPACKED_MAX)
            (ran_ms,) = struct.unpack_from("<I", ran, 4 * number)
        except (zlib.error, struct.error):  # damaged
            continue
        for count, since_ms, name in chunk.runs:
            if number < count:
                if not 0 <= name < len(chunk.names):  # damaged
                    break
                queue, task = chunk.names[name]
                found[id] = DoneRecord(id, task, queue, chunk.at_ms + since_ms, ran_ms, chunk.worker)
                break
            number -= count
    return found


def _key(minute: int, part: int | str) -> str:
    """Return the key of an index of a minute, or of a chunk, by its token."""
    return f"history/done/{minute}/{part}"


def _index_of(cell: Cell | None) -> dict[str, int]:
    return decoded(cell, _read_index, {})
