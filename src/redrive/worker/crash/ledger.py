"""The crash ledger: the worker's identity and the messages it has started, in a file that survives kill -9.

An identity is a file, held by a lock that the kernel releases when its process dies. The file has a slot for each
claimed message, with a flag that is set before the handler is called. The next worker that gets the lock reads what the
dead one had started: those messages crashed, the other leased ones never ran and go back free.

Leases are taken back by the name that claimed them, so that name is unique among all that share a store: two machines
or containers may have the same host name, each with a folder of its own and a `worker-0` in it. The name is also in the
file: a container that comes back under another host name finds what it held under the old one.

The supervisor notes in the file how the holder died, before it starts the next one (`note_death`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import secrets
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...config import is_shared
from ...errors import Refused, StoreFull, StoreUnavailable
from ...fault import STARTED_MAX, Crash
from ...files import boot_id, make_folder, open_file
from ...message import Started

_MAGIC = b"redrive3"
# Magic, boot id, the process's beat, end of the last running timeout, event loop's beat, pid, holder's name.
_HEADER = struct.Struct("<8s40sdddI400s")
_HEADER_SIZE = 512
_BEAT = struct.Struct("<d")
_PULSE_AT, _BUSY_AT, _LOOP_AT, _STORE_AT = 48, 56, 64, 504
_DEATH, _DEATH_AT = struct.Struct("<IiQB"), 480  # pid, exit code or minus the signal, peak bytes, whether it hung
_SLOT = struct.Struct("<36sIB3x")  # id, fence, state
_CLAIMED, _STARTED, _ALONE = range(3)
_SLOT_SIZE, _STATE_AT = _SLOT.size, 40
_FIRST_STATE_AT = _HEADER_SIZE + _STATE_AT
_IDENTITIES_MAX = 1000
_TOKEN, _TOKEN_BYTES = "token", 16


class Beats(NamedTuple):
    """When a process last showed a sign of life, in seconds of the machine's monotonic clock: `pulse_s` the process
    itself, `loop_s` its event loop, `store_s` its store thread, which may wait for a store that does not answer."""

    pulse_s: float
    busy_until_s: float
    loop_s: float
    pid: int
    store_s: float


class WorkerDeath(NamedTuple):
    """How a worker process ended, as its supervisor learned it. `code` is its exit code, or minus the signal's number;
    `hung` says that the supervisor killed it for that."""

    code: int
    peak_bytes: int
    hung: bool = False


class _Left(NamedTuple):
    """What a holder left in its file. `last` and `started` are None for what cannot be read."""

    same_boot: bool = True
    last: str | None = None
    started: list[Started] | None = None
    alone: bool = False
    death: WorkerDeath | None = None


class CrashSlots:
    """An identity, its lock and its slots. `worker` is the name under which its holder claims.

    `started` is what the identity's last holder had started and not settled, None if unknown; it claimed under the
    name `last`. `same_boot` says whether it wrote that since the machine started, and so before anything
    could be lost.
    """

    def __init__(self, name: str, file: int, place: str) -> None:
        self.name, self._file = name, file
        self.worker = f"{place}/{name}"
        left = self._left = _read(file)
        self.same_boot, self.started = left.same_boot, left.started
        self.last = left.last or self.worker
        self._map: Any = None

    def crash(self) -> Crash:
        """The evidence of the last holder and its supervisor: how it died, and what it had started."""
        started, death = self.started or [], self._left.death
        fields: dict[str, Any] = {} if death is None else fields_of(death)
        return Crash(
            **fields,
            alone=self._left.alone and len(started) == 1,
            started=tuple(one.id for one in started[:STARTED_MAX]),
            started_count=len(started),
            worker=self.last,
            host=os.uname().nodename,
        )

    def open(self, count: int) -> None:
        """Forget the last holder and make room for `count` messages. Call it once its leases are taken back: a kill
        before that must not lose what it had started."""
        os.ftruncate(self._file, 0)
        _fill(self._file, _HEADER_SIZE + count * _SLOT.size)
        self._map = mmap.mmap(self._file, 0)
        now = time.monotonic()
        name = self.worker.encode(errors="replace")
        self._map[: _HEADER.size] = _HEADER.pack(_MAGIC, boot_id().encode(), now, 0.0, now, os.getpid(), name)
        self.beat_store(now, 0.0)
        self._free = list(range(count - 1, -1, -1))

    def take(self, id: str, fence: int) -> int:
        """A slot for a message that was claimed and is not started yet. `id` has the 36 characters every id has."""
        slot = self._free.pop()
        _SLOT.pack_into(self._map, _HEADER_SIZE + slot * _SLOT_SIZE, id.encode(), fence, _CLAIMED)
        return slot

    def start(self, slot: int, alone: bool = False) -> None:
        """Its handler is about to be called, `alone` in the process: one byte, so that a kill finds it either set or
        not."""
        if slot >= 0:
            self._map[_FIRST_STATE_AT + slot * _SLOT_SIZE] = _ALONE if alone else _STARTED

    def give(self, slot: int) -> None:
        """The message is settled."""
        self._map[_FIRST_STATE_AT + slot * _SLOT_SIZE] = _CLAIMED
        self._free.append(slot)

    def beat(self, now_s: float) -> None:
        """The process lives, whatever its event loop and its store thread wait for."""
        self._beat(_PULSE_AT, now_s)

    def beat_store(self, now_s: float, busy_until_s: float) -> None:
        """The store thread does not wait for the store; the timeouts of what runs end at `busy_until_s`."""
        self._beat(_STORE_AT, now_s)
        self._beat(_BUSY_AT, busy_until_s)

    def beat_loop(self, now_s: float) -> None:
        """The event loop lives."""
        self._beat(_LOOP_AT, now_s)

    def _beat(self, at: int, value_s: float) -> None:
        self._map[at : at + _BEAT.size] = _BEAT.pack(value_s)

    def settle(self) -> None:
        """Empty the file: nothing of this identity is leased any more."""
        if self._map is not None:
            self._map.close()  # first: who wrote to it once the file is cut would be killed by SIGBUS
        os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Release the identity. The slots stay in the file for its next holder."""
        if self._map is not None:
            self._map.close()
        os.close(self._file)


def hold(folder: Path, prefix: str) -> CrashSlots:
    """The first identity `prefix`-0, `prefix`-1, … that no living process holds.

    Raises Refused if a thousand hold one, OSError where the folder cannot be written or is somebody else's.
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
    """The other identities whose holders are dead and had not settled everything; each is held until the next is
    asked for."""
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
    """When the processes that hold identities here last showed signs of life. A container that shares the folder counts
    its pids for itself."""
    result: list[Beats] = []
    if not folder.is_dir():
        return result
    try:
        here = f"{place(folder)}/".encode()
    except OSError:  # it is somebody else's: then no worker of ours holds an identity here
        return result
    for path in folder.glob("*.slots"):
        with contextlib.suppress(OSError, struct.error), os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
            head = file.read(_HEADER_SIZE)
            magic, _, *beats, holder = _HEADER.unpack_from(head)
            if magic == _MAGIC and holder.startswith(here):
                result.append(Beats(*beats, *_BEAT.unpack_from(head, _STORE_AT)))
    return result


def note_death(folder: Path, pid: int, born_s: float, death: WorkerDeath) -> bool:
    """Leave in the file of that process's identity how it died, for the worker that takes back what it held.

    False where there is none: it never began to work, or it ended in order. A pid may have been another's before;
    `born_s` tells them apart.
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
    """The fields of a Crash that a death determines."""
    fields: dict[str, Any] = {"cause": "exit", "code": death.code}
    if death.code < 0:
        fields = {"cause": "hung" if death.hung else "signal", "signal": signal_name(-death.code)}
    return fields | ({"peak_bytes": death.peak_bytes} if death.peak_bytes else {})


def signal_name(number: int) -> str:
    """SIGKILL, …; that of a real-time signal is its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def place(folder: Path) -> str:
    """The prefix of the names of this folder's workers: the host's name and a word that no other machine or container
    has.

    The word comes from a token in the folder, and from the boot and the container, because images and disks are
    copied with their files.
    """
    with contextlib.ExitStack() as closing:
        file = _open(folder / _TOKEN, os.O_RDWR | os.O_CREAT)
        closing.callback(os.close, file)
        fcntl.flock(
            file, fcntl.LOCK_EX
        )  # a worker killed while writing it leaves it too short, and the next one writes it
        token = os.pread(file, _TOKEN_BYTES, 0)
        if len(token) < _TOKEN_BYTES:
            token = secrets.token_hex(_TOKEN_BYTES // 2).encode()
            os.pwrite(file, token, 0)
    word = hashlib.blake2b(b"\0".join([token, boot_id().encode(), _container()]), digest_size=5).hexdigest()
    return f"{os.uname().nodename}.{word}"


def _container() -> bytes:
    try:
        return b"%d" % Path("/proc/self/ns/mnt").stat().st_ino
    except OSError:
        return b""


def _fill(file: int, size: int) -> None:
    """Write the file, not only extend it: if the disk is full, writing to a mapped page kills the process."""
    try:
        written = os.pwrite(file, bytes(size), 0)
    except OSError as error:
        raise StoreUnavailable(f"cannot write the file of what this worker starts: {error}") from error
    if written < size:
        raise StoreFull(f"no room for the file of what this worker starts: {written} of {size} bytes were written")


def _lock(path: Path, flags: int = 0) -> int | None:
    """The locked file; None if another process holds it, or it is not ours."""
    try:
        file = _open(path, os.O_RDWR | flags)
    except PermissionError:
        if not os.path.lexists(path):  # none may be made here
            raise
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _open(path: Path, flags: int) -> int:
    """A file in the folder, if both are ours. Raises OSError."""
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
