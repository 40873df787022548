"""The crash ledger: the worker's identity and the messages it has started, in a file that survives kill -9.

An identity is a file with a lock that the kernel releases when its process dies. The file has a slot for each claimed
message, with a flag that is set before the handler is called. The next worker that gets the lock reads which messages
the dead one had started: these count a crash; the others never ran and are released uncounted.

Leases are recovered by the name that claimed them, so that name is unique among all workers of a store: two machines or
containers may have the same host name, each with its own folder and a `worker-0` in it. The file has the name, too, so
that a container that restarts under another host name recovers the leases of the old one.

Before it starts the next worker, the supervisor records in the file how the holder died (`note_death`).
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...config import is_shared
from ...errors import Refused, StoreFull, StoreUnavailable
from ...fault import STARTED_MAX, Crash
from ...files import boot_id, make_folder, open_file
from ...message import Message, Started
from ...system import host

_MAGIC = b"redrive3"
# Magic, boot id, last beat of the process, end of the last running timeout, last beat of the event loop, pid, holder's
# name.
_HEADER = struct.Struct("<8s40sdddI400s")
_HEADER_SIZE = 512
_BEAT = struct.Struct("<d")
_PULSE_AT, _BUSY_AT, _LOOP_AT, _STORE_AT = 48, 56, 64, 504
_DEATH, _DEATH_AT = struct.Struct("<IiQB"), 480  # pid, exit code or negated signal, peak bytes, 1 if the process hung
_SLOT = struct.Struct("<36sIB3x")  # id, fence, state
_CLAIMED, _STARTED, _ALONE = range(3)
_SLOT_SIZE, _STATE_AT = _SLOT.size, 40
_IDENTITIES_MAX = 1000
_TOKEN, _TOKEN_BYTES = "token", 16


class Beats(NamedTuple):
    """The last signs of life of a process, in seconds of the monotonic clock: of the process (`pulse_s`), its event
    loop (`loop_s`) and its store thread (`store_s`). `busy_until_s`: the end of its last running timeout."""

    pulse_s: float
    busy_until_s: float
    loop_s: float
    pid: int
    store_s: float


class WorkerDeath(NamedTuple):
    """The end of a worker process, as its supervisor saw it. `code` is its exit code, or the negated signal number;
    `hung`: the supervisor killed it because it hung."""

    code: int
    peak_bytes: int
    hung: bool = False


class _Left(NamedTuple):
    """The content of a holder's ledger file. `last` and `started` are None if the file cannot be read."""

    same_boot: bool = True
    last: str | None = None
    started: list[Started] | None = None
    alone: bool = False
    death: WorkerDeath | None = None


class CrashSlots:
    """An identity, its lock and its slots. `worker` is the name under which its holder claims.

    `started` has the messages that the identity's last holder had started and not settled, None if unknown; `last` is
    the name under which it claimed. `same_boot`: the file was written since the machine booted, so nothing in it is
    lost.
    """

    name: str
    same_boot: bool
    started: list[Started] | None

    def __init__(self, name: str, file: int, place: str) -> None:
        self.name, self._file = name, file
        self.worker: str = f"{place}/{name}"
        left = self._left = _read(file)
        self.same_boot, self.started = left.same_boot, left.started
        self.last: str = left.last or self.worker
        self._map: Any = None

    def crash(self) -> Crash:
        """Return the evidence of the last holder's crash: its death, if a supervisor recorded it, and the messages it
        had started."""
        started, death = self.started or [], self._left.death
        fields: dict[str, Any] = {} if death is None else fields_of(death)
        return Crash(
            **fields,
            alone=self._left.alone and len(started) == 1,
            started=tuple(one.id for one in started[:STARTED_MAX]),
            started_count=len(started),
            worker=self.last,
            host=host(),
        )

    def open(self, count: int) -> None:
        """Discard the last holder's slots and make room for `count` messages. Call it only once that holder's leases
        are recovered: a kill before that would lose which messages it had started."""
        os.ftruncate(self._file, 0)
        _fill(self._file, _HEADER_SIZE + count * _SLOT.size)
        self._map = mmap.mmap(self._file, 0)
        now = time.monotonic()
        name = self.worker.encode(errors="replace")
        self._map[: _HEADER.size] = _HEADER.pack(_MAGIC, boot_id().encode(), now, 0.0, now, os.getpid(), name)
        self.beat_store(now, 0.0)
        self._free = [_HEADER_SIZE + slot * _SLOT_SIZE for slot in range(count - 1, -1, -1)]

    def take(self, messages: Sequence[Message]) -> list[int]:
        """Return a slot for each message, marked as claimed and not started: its place in the file, in bytes."""
        slots, pack, slot_map = [], _SLOT.pack_into, self._map
        for message in messages:
            slot = self._free.pop()
            pack(slot_map, slot, message.id.encode(), message.fence, _CLAIMED)
            slots.append(slot)
        return slots

    def start(self, slot: int, alone: bool = False) -> None:
        """Mark the message in this slot as started, just before its handler is called; `alone`: nothing else runs in
        the process. Writes one byte, so a kill cannot leave half of the mark."""
        if slot >= 0:
            self._map[slot + _STATE_AT] = _ALONE if alone else _STARTED

    def give(self, slots: Sequence[int]) -> None:
        """Free these slots, once their messages are settled."""
        for slot in slots:
            self._map[slot + _STATE_AT] = _CLAIMED
        self._free += slots

    def beat(self, now_s: float) -> None:
        """Record that the process lives, even if its event loop and its store thread are waiting."""
        self._beat(_PULSE_AT, now_s)

    def beat_store(self, now_s: float, busy_until_s: float) -> None:
        """Record that the store does not block the store thread, and that the last running timeout ends at
        `busy_until_s`."""
        self._beat(_STORE_AT, now_s)
        self._beat(_BUSY_AT, busy_until_s)

    def beat_loop(self, now_s: float) -> None:
        """Record that the event loop is not blocked."""
        self._beat(_LOOP_AT, now_s)

    def _beat(self, at: int, value_s: float) -> None:
        self._map[at : at + _BEAT.size] = _BEAT.pack(value_s)

    def settle(self) -> None:
        """Empty the ledger's file, once no message of this identity is leased any more."""
        if self._map is not None:
            self._map.close()  # first, as writing to the mapping of a truncated file would raise SIGBUS
        os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Unlock the identity. Its slots stay in the file for the next holder."""
        if self._map is not None:
            self._map.close()
        os.close(self._file)


def hold(folder: Path, prefix: str) -> CrashSlots:
    """Lock and return the first of the identities `prefix`-0, `prefix`-1, … in the folder that no living process holds.

    Raises Refused if all thousand are in use, OSError if the folder cannot be written or belongs to another user.
    """
    make_folder(folder, shared=is_shared())
    here = place(folder)
    for number in range(_IDENTITIES_MAX):
        file = _lock(folder / f"{prefix}-{number}.slots", os.O_CREAT)
        if file is not None:
            return CrashSlots(f"{prefix}-{number}", file, here)
    raise Refused(
        f"{_IDENTITIES_MAX} workers named {prefix!r} hold identities in {folder}; stop some or choose another name"
    )


def left_behind(folder: Path) -> Iterator[CrashSlots]:
    """Yield each identity of the folder whose holder died with unsettled messages, locked until the next one is
    requested."""
    if not folder.is_dir():
        return
    here = place(folder)
    for path in sorted(folder.glob("*.slots")):
        if path.lstat().st_size == 0 or (file := _lock(path)) is None:
            continue
        slots = CrashSlots(path.stem, file, here)
        yield slots
        slots.close()


def all_beats(folder: Path) -> list[Beats]:
    """Return the signs of life of all processes with an identity in this folder; not those of other containers that
    share it, whose pids mean nothing here."""
    result: list[Beats] = []
    if not folder.is_dir():
        return result
    try:
        here = f"{place(folder)}/".encode()
    except OSError:  # the folder belongs to another user, so no worker of ours has an identity in it
        return result
    for path in folder.glob("*.slots"):
        with contextlib.suppress(OSError, struct.error), os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
            head = file.read(_HEADER_SIZE)
            magic, _, *beats, holder = _HEADER.unpack_from(head)
            if magic == _MAGIC and holder.startswith(here):
                result.append(Beats(*beats, *_BEAT.unpack_from(head, _STORE_AT)))
    return result


def note_death(folder: Path, pid: int, born_s: float, death: WorkerDeath) -> bool:
    """Record how the process `pid` died in its identity, for the worker that recovers its messages.

    Returns False if it has no identity: it never began to work, or it ended in order. `born_s` distinguishes it from
    earlier processes with the same pid.
    """
    here, noted = f"{place(folder)}/".encode(), False
    for path in folder.glob("*.slots"):
        with contextlib.suppress(OSError, struct.error), os.fdopen(_open(path, os.O_RDWR), "r+b") as file:
            magic, _, pulse_s, _, _, holder_pid, holder = _HEADER.unpack(file.read(_HEADER.size))
            if (magic, holder_pid) == (_MAGIC, pid) and pulse_s >= born_s and holder.startswith(here):
                os.pwrite(file.fileno(), _DEATH.pack(pid, death.code, death.peak_bytes, death.hung), _DEATH_AT)
                noted = True
    return noted


def fields_of(death: WorkerDeath) -> dict[str, Any]:
    """Return the fields of a Crash that describe this death of a worker process."""
    fields: dict[str, Any] = {"cause": "exit", "code": death.code}
    if death.code < 0:
        fields = {"cause": "hung" if death.hung else "signal", "signal": signal_name(-death.code)}
    return fields | ({"peak_bytes": death.peak_bytes} if death.peak_bytes else {})


def signal_name(number: int) -> str:
    """Return the name of a signal number, such as SIGKILL, or `signal 40` for a real-time signal, which has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def place(folder: Path) -> str:
    """Return the prefix of the names of this folder's workers: the host's name and a word that is unique to the machine
    or container.

    The word depends on a token in the folder, on the boot and on the container, as images and disks are copied with
    their files.
    """
    import fcntl

    with contextlib.ExitStack() as closing:
        file = _open(folder / _TOKEN, os.O_RDWR | os.O_CREAT)
        closing.callback(os.close, file)
        fcntl.flock(
            file, fcntl.LOCK_EX
        )  # a worker that was killed in this write left a short token, which is written again here
        token = os.pread(file, _TOKEN_BYTES, 0)
        if len(token) < _TOKEN_BYTES:
            token = secrets.token_hex(_TOKEN_BYTES // 2).encode()
            os.pwrite(file, token, 0)
    word = hashlib.blake2b(b"\0".join([token, boot_id().encode(), _container()]), digest_size=5).hexdigest()
    return f"{host()}.{word}"


def _container() -> bytes:
    try:
        return b"%d" % Path("/proc/self/ns/mnt").stat().st_ino
    except OSError:
        return b""


def _fill(file: int, size: int) -> None:
    """Write `size` zeros, not a hole: on a full disk, a write to a mapped page of a hole would kill the process."""
    try:
        written = os.pwrite(file, bytes(size), 0)
    except OSError as error:
        raise StoreUnavailable(f"cannot write the file of what this worker starts: {error}") from error
    if written < size:
        raise StoreFull(f"no room for the file of what this worker starts: {written} of {size} bytes were written")


def _lock(path: Path, flags: int = 0) -> int | None:
    """Open and lock the file; return None if another process has the lock, or the file belongs to another user."""
    import fcntl

    try:
        file = _open(path, os.O_RDWR | flags)
    except PermissionError:
        if not os.path.lexists(path):  # the file is missing, and the folder does not allow to create it
            raise
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _open(path: Path, flags: int) -> int:
    """Open a file of the identities' folder if its owner is one that this process trusts. Raises OSError."""
    return open_file(path, flags, shared=is_shared())


def _read(file: int) -> _Left:
    data = os.pread(file, os.fstat(file).st_size, 0)
    if not data.startswith(_MAGIC) or len(data) < _HEADER_SIZE:
        return _Left()
    *_, pid, named = _HEADER.unpack_from(data)
    holder = named.rstrip(b"\0").decode(errors="replace")
    dead, code, peak_bytes, hung = _DEATH.unpack_from(data, _DEATH_AT)
    death = WorkerDeath(code, peak_bytes, bool(hung)) if dead == pid else None
    same_boot = data[8:48].rstrip(b"\0").decode(errors="replace") == boot_id()
    whole = len(data) - (len(data) - _HEADER_SIZE) % _SLOT.size
    slots = [slot for slot in _SLOT.iter_unpack(data[_HEADER_SIZE:whole]) if slot[2] in (_STARTED, _ALONE)]
    started = [Started(id.decode(errors="replace"), fence) for id, fence, _ in slots]
    return _Left(same_boot, holder, started, any(state == _ALONE for *_, state in slots), death)
