"""Wake idle waiters across processes of one machine: each has a datagram socket in a folder beside the database.

All of it is best effort: a lost wake-up costs latency, never work, as every waiter also polls slowly. So if the folder
belongs to another user, is not a folder, or cannot be created, waiters only poll, and puts wake those that they can.
Sockets are created and removed through the folder's descriptor, so that links are not followed. Without POSIX there are
no such sockets: waiters poll, and only threads of their own process wake them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import stat
import time
from pathlib import Path

from ...files import GROUP_FILE, Folder
from ...system import POSIX

_BIND_TRIES = 20
_PATH_MAX = 90  # longest path of a socket in bytes; the kernels allow 104 or 108
_DESCRIPTORS = "/proc/self/fd"  # Linux: paths through an open folder, short however long the folder's path is
_HAS_DESCRIPTORS = Path(_DESCRIPTORS).is_dir()


def wake_dir(database: Path) -> Path:
    """Return the folder of the wake-up sockets for this database."""
    return database.with_name(database.name + "-wake")


class SqliteWaiter:
    """One thread's wait: for nudges of this process, and for `wake_all` of others if it has a socket in the folder.
    `name` is the socket's name; it is empty if there is no socket, as when the folder is None."""

    name: str

    def __init__(self, folder: Path | None) -> None:
        self.name = ""
        self.nudges = 0  # number of the store's nudges that this waiter has seen
        pair = (socket.AF_UNIX, socket.SOCK_DGRAM) if POSIX else ()
        self._near, self._far = socket.socketpair(*pair)
        self._near.setblocking(False)
        self._far.setblocking(False)
        self._folder: Folder | None = None
        self._socket: socket.socket | None = None
        if folder is not None and POSIX:
            with contextlib.suppress(OSError):
                self._listen(folder)
        self._poll = select.poll() if POSIX else None
        if self._poll is not None:
            for heard in self._heard():
                self._poll.register(heard, select.POLLIN)

    def _listen(self, path: Path) -> None:
        for left in reversed(range(_BIND_TRIES)):
            try:
                folder = Folder(path, make=True)
            except FileNotFoundError:  # the last waiter removed the folder since
                if not left:
                    raise
                continue
            try:
                self.name, self._socket = _bound(folder)
                self._folder = folder
                return
            except FileNotFoundError:
                folder.close()
                if not left:
                    raise
            except BaseException:
                folder.close()
                raise

    def _heard(self) -> list[socket.socket]:
        return [self._near] if self._socket is None else [self._near, self._socket]

    def wait(self, timeout_s: float) -> bool:
        """Wait; True if the waiter was woken before the timeout. Takes all wake-ups that are pending."""
        poll = self._poll
        if not (
            poll.poll(timeout_s * 1000) if poll is not None else select.select(self._heard(), (), (), timeout_s)[0]
        ):
            return False
        for heard in self._heard():
            with contextlib.suppress(BlockingIOError):
                while True:
                    heard.recv(16)
        return True

    def nudge(self) -> None:
        """Wake this waiter from another thread of its process."""
        with contextlib.suppress(OSError):  # the socket's buffer is full, so the waiter wakes anyway
            self._far.send(b"!")

    def leave(self) -> None:
        """In a forked child: close only the child's copies, so that the parent keeps its socket."""
        for end in (*self._heard(), self._far):
            end.close()
        if self._folder is not None:
            self._folder.close()

    def close(self) -> None:
        if self._folder is not None:
            self._folder.remove_socket(self.name)
            if self._folder.is_there():
                with contextlib.suppress(OSError):  # there are sockets of other waiters in the folder
                    self._folder.path.rmdir()
        self.leave()


class Waker:
    """Wakes every waiter with a socket in a folder; keeps the folder's listing until it changes. Never raises."""

    def __init__(self, folder: Path) -> None:
        self._path = folder
        self._folder: Folder | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if POSIX else None
        if self._socket is not None:
            self._socket.setblocking(False)
        self._refused: tuple[int, ...] = ()  # identity and change time of a folder that was rejected
        self._seen_ns = -1
        self._names: list[str] = []

    def wake_all(self, but: str | None = None) -> None:
        """Wake the waiters of all processes, except the waiter with the name `but`."""
        if self._socket is None:
            return
        try:
            folder = self._look()
        except OSError:  # no other process waits, or the folder is unreadable
            return
        if folder is not None:
            for name in self._names:
                if name != but:
                    self._wake(self._socket, folder, name)

    def _look(self) -> Folder | None:
        """Return the folder if it is acceptable, else None. Reads the names of its sockets if they may have changed."""
        file = os.lstat(self._path)
        folder, inode = self._folder, (file.st_dev, file.st_ino)
        if folder is None or folder.inode != inode:
            looked = (*inode, file.st_ctime_ns)
            folder = None if looked == self._refused else self._open(looked)
        if folder is None:
            return None
        if file.st_mtime_ns != self._seen_ns:
            # A socket made in the same clock tick as the listing would be missed for ever, so a recent listing is read
            # again.
            self._names = folder.sockets()
            changed_ns = os.fstat(folder.fd).st_mtime_ns
            settled = changed_ns == file.st_mtime_ns and changed_ns < time.time_ns() - 50_000_000
            self._seen_ns = changed_ns if settled else -1
        return folder

    def _open(self, looked: tuple[int, ...]) -> Folder | None:
        self._forget()
        try:
            self._folder = Folder(self._path)
        except FileNotFoundError:
            pass
        except OSError:
            self._refused = looked
        return self._folder

    def _wake(self, sender: socket.socket, folder: Folder, name: str) -> None:
        try:
            sender.sendto(b"!", _address(folder, name))
        except ConnectionRefusedError:  # the socket of a killed process
            folder.remove_socket(name)
        except OSError:
            pass  # its buffer is full, or the socket is another user's or gone: its waiter polls

    def _forget(self) -> None:
        """Drop the folder, which is closed when no thread sends through it any more."""
        self._folder, self._seen_ns, self._names = None, -1, []

    def close(self) -> None:
        self._forget()
        if self._socket is not None:
            self._socket.close()


def _bound(folder: Folder) -> tuple[str, socket.socket]:
    """Create a socket in the folder; returns its name and the socket. Sets the mode before the socket has a name."""
    name = f"{os.getpid():x}-{secrets.token_hex(3)}"
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)
        with contextlib.suppress(OSError):  # not every system allows fchmod on a socket
            os.fchmod(made.fileno(), 0o600)
        made.bind(_address(folder, name))
        if folder.shared:
            _share(folder, name)
    except BaseException:
        made.close()
        raise
    return name, made


def _address(folder: Folder, name: str) -> str:
    """Return the address of a socket in the folder. Raises OSError if its path is too long without descriptors."""
    if _HAS_DESCRIPTORS:
        return f"{_DESCRIPTORS}/{folder.fd}/{name}"
    path = str(folder.path / name)
    if len(os.fsencode(path)) > _PATH_MAX:
        raise OSError(f"{path} is too long for a socket")
    return path


def _share(folder: Folder, name: str) -> None:
    """Let the group write to the socket, which the umask may forbid. By descriptor: a group member may replace the
    file."""
    path_only = getattr(os, "O_PATH", None)
    if path_only is None or not _HAS_DESCRIPTORS:
        return
    fd = os.open(name, path_only | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.fd)
    try:
        status = os.fstat(fd)
        if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid():
            Path(f"{_DESCRIPTORS}/{fd}").chmod(GROUP_FILE)
    finally:
        os.close(fd)
