"""The crash ledger: who this worker is, and what it has started, in a file that survives kill -9.

An identity is a file, held by a lock that the kernel gives back when its process dies. The file has a slot per claimed message, with a flag
that is set before the handler is called. Whoever gets the lock next reads what the dead one had started: those messages crashed, the
other leased ones never ran and go back free.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import mmap
import os
import platform
import socket
import struct
import subprocess
import time
from pathlib import Path

from ..errors import Refused

_MAGIC = b"redrive1"
_HEADER = struct.Struct("<8s40sdddI")  # magic, boot id, store thread's beat, event loop's beat, end of the last running timeout, pid
_HEADER_SIZE = 128
_BEATS = struct.Struct("<ddd")
_BEATS_AT = 48
_SLOT_SIZE = 40  # 36 characters of id, one byte of state
_STATE_AT = 36
_IDENTITIES_MAX = 1000


class Beats:
    """When a process last showed signs of life, in seconds of the machine's monotonic clock."""

    def __init__(self, pid: int, store_s: float, loop_s: float, busy_until_s: float) -> None:
        self.pid, self.store_s, self.loop_s, self.busy_until_s = pid, store_s, loop_s, busy_until_s


class Slots:
    """An identity, its lock and its slots. `started` is what the identity's last holder had started and not settled, None where that
    is not known; `same_boot` says whether it wrote that since the machine started, and so before anything could be lost."""

    def __init__(self, folder: Path, name: str | None) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.name, self._file = _lock(folder, name)
        self.worker = f"{socket.gethostname()}/{self.name}"
        self.same_boot, self.started = _read(self._file)

    def open(self, count: int) -> None:
        """Forget the last holder and make room for `count` messages. Only once its leases are taken back: a kill before must not lose
        what it had started."""
        os.ftruncate(self._file, 0)
        os.ftruncate(self._file, _HEADER_SIZE + count * _SLOT_SIZE)
        self._map = mmap.mmap(self._file, 0)
        now = time.monotonic()
        self._map[: _HEADER.size] = _HEADER.pack(_MAGIC, boot_id().encode(), now, now, 0.0, os.getpid())
        self._free = list(range(count - 1, -1, -1))

    def take(self, id: str) -> int:
        """A slot for a message that was claimed and is not started yet."""
        slot = self._free.pop()
        at = _HEADER_SIZE + slot * _SLOT_SIZE
        self._map[at : at + _STATE_AT] = id.encode()[:_STATE_AT].ljust(_STATE_AT)
        return slot

    def start(self, slot: int) -> None:
        """Its handler is about to be called: one byte, so that a kill finds it either set or not."""
        if slot >= 0:
            self._map[_HEADER_SIZE + slot * _SLOT_SIZE + _STATE_AT] = 1

    def give(self, slot: int) -> None:
        """The message is settled."""
        self._map[_HEADER_SIZE + slot * _SLOT_SIZE + _STATE_AT] = 0
        self._free.append(slot)

    def beat(self, store_s: float, loop_s: float, busy_until_s: float) -> None:
        self._map[_BEATS_AT : _BEATS_AT + _BEATS.size] = _BEATS.pack(store_s, loop_s, busy_until_s)

    def close(self) -> None:
        """Give the identity back. What is still in the slots stays readable for its next holder."""
        self._map.close()
        os.close(self._file)


def read_beats(path: Path) -> Beats | None:
    """The beats of the process that holds the identity at `path`; None if there is none yet."""
    try:
        with path.open("rb") as file:
            magic, _, store_s, loop_s, busy_until_s, pid = _HEADER.unpack(file.read(_HEADER.size))
    except (OSError, struct.error):
        return None
    return Beats(pid, store_s, loop_s, busy_until_s) if magic == _MAGIC else None


def identity_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.slots"


def _lock(folder: Path, name: str | None) -> tuple[str, int]:
    for candidate in [name] if name is not None else map(str, range(_IDENTITIES_MAX)):
        file = os.open(identity_path(folder, candidate), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return candidate, file
        os.close(file)
    raise Refused(f"worker identity {name or '0…'!r} in {folder} is held by a running process; stop that one or choose another --name")


def _read(file: int) -> tuple[bool, list[str] | None]:
    data = os.pread(file, os.fstat(file).st_size, 0)
    if len(data) < _HEADER_SIZE or data[:8] != _MAGIC:
        return True, None
    same_boot = data[8:48].rstrip(b"\0").decode(errors="replace") == boot_id()
    slots = (data[at : at + _SLOT_SIZE] for at in range(_HEADER_SIZE, len(data), _SLOT_SIZE))
    return same_boot, [slot[:_STATE_AT].decode(errors="replace") for slot in slots if slot[_STATE_AT:][:1] == b"\x01"]


@functools.cache
def boot_id() -> str:
    """A word that changes when the machine starts anew: what was written before that may not have reached the disk."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if platform.system() == "Darwin":
        found = subprocess.run(["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return found.stdout.strip()
    return f"unknown-{os.getpid()}"  # never equal to another process's: leases are then never taken back early
