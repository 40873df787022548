"""Waking idle waiters across processes on one machine: a datagram socket per waiter in a folder beside the database.

A message lost here costs latency, never work: every waiter also looks by itself, slowly.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import select
import socket
import time
from pathlib import Path

_BIND_TRIES = 20
_PATH_MAX = 90  # bytes; the kernels' limits for a socket's path are 104 and 108


def wake_dir(database: Path) -> Path:
    """Where the sockets for this database lie: beside it, or in /tmp when that path is too long (not in $TMPDIR: it may
    be longer still, and every process must find the same folder).
    """
    beside = database.with_name(database.name + "-wake")
    if len(os.fsencode(beside)) + 20 <= _PATH_MAX:
        return beside
    digest = hashlib.blake2b(os.fsencode(database), digest_size=8).hexdigest()
    return Path("/tmp") / f"redrive-{os.getuid()}-{digest}"


class Waiter:
    """One socket that `wake_all` reaches."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / f"{os.getpid():x}-{secrets.token_hex(3)}")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._bind(folder)
        self.nudges = 0  # how many of the store's nudges it has seen

    def _bind(self, folder: Path) -> None:
        for left in reversed(range(_BIND_TRIES)):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                return self._socket.bind(self.path)
            except (FileExistsError, FileNotFoundError):  # the last waiter to go removed the folder meanwhile
                if not left:
                    self._socket.close()
                    raise

    def wait(self, timeout_s: float) -> bool:
        """True if somebody woke this waiter; takes all wake-ups that are there."""
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return False
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(16)
        return True

    def leave(self) -> None:
        """In a forked child: the socket stays its parent's."""
        self._socket.close()

    def close(self) -> None:
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            Path(self.path).unlink()
        with contextlib.suppress(OSError):  # others wait there
            Path(self.path).parent.rmdir()


class Waker:
    """Sends to every waiter of a folder; keeps the folder's listing as long as the folder does not change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._seen_ns = -1
        self._paths: list[str] = []

    def wake(self, path: str) -> None:
        try:
            self._socket.sendto(b"!", path)
        except BlockingIOError:
            pass  # its buffer is full of wake-ups already
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):  # left behind by a process that was killed
                Path(path).unlink()
        except OSError:
            pass  # gone meanwhile; waiters look by themselves

    def wake_all(self, but: str | None = None) -> None:
        """Wake every waiter of every process, but for the one at that path."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if changed_ns != self._seen_ns:
            # A file made in the same clock tick as the listing would be missed for good: a young listing is read again.
            self._paths = [str(path) for path in self._folder.iterdir()]
            self._seen_ns = changed_ns if self._folder.stat().st_mtime_ns < time.time_ns() - 50_000_000 else -1
        for path in self._paths:
            if path != but:
                self.wake(path)

    def close(self) -> None:
        self._socket.close()
