"""Open private files and folders, and never follow a link that another user made.

A folder is opened once, and all paths in it are relative to its descriptor, so renaming or replacing it has no effect.
Owner and type are read from the open file, never by its name, and before anything is truncated, written or removed.

New files are 0600 and new folders 0700. If a group shares them, they are 0660 and 3770: members may write each other's
files but not remove them, and new files belong to the folder's group. Existing files keep their mode.

Without POSIX, as on Windows, a folder cannot be opened and has no mode: paths are used as they are, and only links and
the kind of a file are checked.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

from .errors import ConfigError
from .system import BINARY, CLOEXEC, DIRECTORY, NOFOLLOW, NONBLOCK, POSIX, user_id

FILE, FOLDER = 0o600, 0o700
PUBLIC = 0o666  # the mode of a public file before the umask is applied
GROUP_FILE, GROUP_FOLDER = 0o660, 0o3770
COMPANIONS = ("-wake", "-workers", "-spool")  # suffixes of folders beside a database, for all its users
UNKNOWN_BOOT = "unknown-"
_OPEN = NOFOLLOW | CLOEXEC | NONBLOCK  # NONBLOCK, as opening a pipe would block without it
_DIRECTORY = os.O_RDONLY | DIRECTORY | NOFOLLOW | CLOEXEC


class NotOurs(PermissionError):
    """A file or folder was not used or changed, as another user owns it or it is of an unexpected kind."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EPERM, why, str(path))


class Folder:
    """An open folder whose owner this process trusts. Raises OSError; NotOurs if another user owns the folder or may
    write in it.

    A folder is ours if this user or root owns it, and a companion of a database also if the database's owner does. It
    may be shared with a group: a companion if the group may write the database, any other folder if `shared` is True.
    With `make`, the folder and those above it are made.
    """

    fd: int
    path: Path

    def __init__(self, path: Path, *, make: bool = False, shared: bool = False) -> None:
        self.fd = -1
        self.path, database = path, _database(path)
        if database is not None:
            shared = bool(database.st_mode & stat.S_IWGRP)
        made = make and _make(path)
        self.fd = _open_folder(path)
        try:
            status = os.fstat(self.fd) if POSIX else path.lstat()
            if made and POSIX:
                status = self._hand_on(database, shared)
            self.shared: bool = bool(shared and status.st_mode & stat.S_IWGRP)
            self._owner, self._owners = status.st_uid, {0, user_id(), status.st_uid}
            self.inode: tuple[int, int] = status.st_dev, status.st_ino
            _vet_folder(path, status, database, self.shared)
        except BaseException:
            self.close()
            raise

    def _hand_on(self, database: os.stat_result | None, shared: bool) -> os.stat_result:
        """Give a folder beside a database to the database's users: to its group and, if root made the folder, to its
        owner. Returns the folder's new status."""
        if shared:
            os.fchmod(self.fd, GROUP_FOLDER)
        if database is not None and (shared or not user_id()):
            with contextlib.suppress(OSError):  # chown may be refused, and then the folder keeps its owner
                os.chown(self.fd, -1 if user_id() else database.st_uid, database.st_gid)
                os.fchmod(self.fd, GROUP_FOLDER if shared else FOLDER)  # as chown clears the set-group-id bit
        return os.fstat(self.fd)

    def open(self, name: str, flags: int) -> int:
        """Open a regular file of ours and return its descriptor; O_CREAT makes a missing one.

        O_TRUNC is not allowed: the file would be cut before its owner is checked.
        """
        assert not flags & os.O_TRUNC
        if flags & os.O_CREAT:
            try:
                return self._create(name, flags | os.O_EXCL)
            except FileExistsError:
                if flags & os.O_EXCL:
                    raise
        fd = _open(self.path / name, flags & ~os.O_CREAT, self.fd)
        try:
            self._vet(name, os.fstat(fd))
            if POSIX:
                os.set_blocking(fd, True)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _create(self, name: str, flags: int) -> int:
        if not POSIX:
            return os.open(self.path / name, flags | BINARY)
        fd = os.open(name, flags | _OPEN, FILE, dir_fd=self.fd)
        if not user_id():
            os.fchown(fd, self._owner, -1)
        if self.shared:
            os.fchmod(fd, GROUP_FILE)
        os.set_blocking(fd, True)
        return fd

    def _vet(self, name: str, status: os.stat_result) -> None:
        path = self.path / name
        if not stat.S_ISREG(status.st_mode):
            raise NotOurs(path, "it is not a regular file; remove it")
        if status.st_nlink > 1:
            raise NotOurs(path, "it has another name elsewhere, and may be another user's file; remove it")
        if status.st_uid not in self._owners and not self.shared:
            raise NotOurs(path, f"it belongs to {user(status.st_uid)}; remove it")

    def sockets(self) -> list[str]:
        """Return the names of the sockets in the folder."""
        return [name for name in os.listdir(self.fd) if stat.S_ISSOCK(self._mode(name))]  # noqa: PTH208  # by its descriptor

    def _mode(self, name: str) -> int:
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode
        except OSError:
            return 0

    def remove_socket(self, name: str) -> None:
        """Remove the socket of this name if this user owns it; any other file stays."""
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            if stat.S_ISSOCK(status.st_mode) and status.st_uid == user_id():
                os.unlink(name, dir_fd=self.fd)

    def is_there(self) -> bool:
        """Return True if the path still leads to this folder."""
        try:
            status = self.path.lstat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.inode

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close  # close the descriptor once no thread refers to the folder

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_file(path: Path, flags: int, *, shared: bool = False) -> int:
    """Open a regular file in an existing folder of ours, as `Folder.open` does. Raises OSError, NotOurs."""
    with Folder(path.parent, shared=shared) as folder:
        return folder.open(path.name, flags)


def make_folder(path: Path, *, shared: bool = False) -> None:
    """Make a folder of ours if it is missing, as `Folder` does. Raises OSError, NotOurs."""
    Folder(path, make=True, shared=shared).close()


def rewrite(path: Path, content: bytes, *, shared: bool = False) -> None:
    """Replace the content of a file of ours in a folder of ours. Raises OSError, NotOurs."""
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT, shared=shared), "wb", 0) as file:
        file.truncate(0)
        file.write(content)


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file of any owner. Raises OSError, also for a link; NotOurs for another kind."""
    fd = os.open(path, os.O_RDONLY | BINARY | _OPEN)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotOurs(path, "it is not a regular file")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


@contextlib.contextmanager
def output(path: Path, *, shared: bool = False, public: bool = False) -> Iterator[IO[bytes]]:
    """Yield a file that appears at `path` as a whole when the block ends without an error, as `written` does. Commands
    write all their files by this function."""
    with written(path, shared=shared, public=public) as fd, os.fdopen(os.dup(fd), "wb") as out:
        yield out


@contextlib.contextmanager
def written(path: Path, *, shared: bool = False, public: bool = False) -> Iterator[int]:
    """Yield the descriptor of a file that appears at `path` as a whole when the block ends without an error.

    It replaces a file or a link at `path`; a device or a pipe, such as /dev/stdout, is written to directly. Raises
    OSError.
    """
    if path.exists() and not path.is_file():
        fd = os.open(path, os.O_WRONLY | CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
        return
    part = path.with_name(f".{path.name[:100]}.{os.urandom(6).hex()}")
    fd = create(part, shared=shared, public=public)
    try:
        yield fd
        os.fsync(fd)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def create(path: Path, *, shared: bool = False, public: bool = False) -> int:
    """Create a file and return its descriptor. Its mode is 0600, or 0660 if `shared`, regardless of the umask. A
    `public` file, which must not hold data of the store, gets 0666 less the umask.

    Raises FileExistsError if the name exists, even if it is a link that leads nowhere.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY | NOFOLLOW | CLOEXEC, PUBLIC if public else FILE)
    if shared and POSIX:
        os.fchmod(fd, GROUP_FILE)
    return fd


def make_database(path: Path, *, shared: bool = False) -> None:
    """Create an empty database file if it is missing, with the mode of `create`, regardless of the umask.

    A link to a missing file is followed if this user or root made it. Raises OSError, ConfigError.
    """
    status = _status(path)
    if status is not None and stat.S_ISLNK(status.st_mode):
        target = _status(path.resolve())
        if status.st_uid not in {0, user_id(), -1 if target is None else target.st_uid}:
            raise ConfigError(
                f"{path} is a link that {user(status.st_uid)} made, to a file that is not theirs; name the file itself"
            )
        path = path.resolve()
    with contextlib.suppress(FileExistsError):
        os.close(create(path, shared=shared))


@functools.cache
def boot_id() -> str:
    """Return a word that changes at each boot of the machine; writes before the last boot may be lost.

    If the boot is unknown, the word starts with UNKNOWN_BOOT and differs for each process, so that no file counts as
    written since the boot.
    """
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    import platform
    import subprocess

    if platform.system() == "Darwin":
        process = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=False
        )
        if process.returncode == 0:
            return process.stdout.strip()
    return f"{UNKNOWN_BOOT}{os.getpid()}"


def user(uid: int) -> str:
    """Return a user's name and id as text for messages."""
    if not POSIX:
        return f"user {uid}"
    import pwd

    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _database(folder: Path) -> os.stat_result | None:
    """Return the status of the database to which the folder is a companion; None for other folders."""
    for suffix in COMPANIONS:
        if folder.name.endswith(suffix):
            with contextlib.suppress(OSError):
                status = folder.with_name(folder.name.removesuffix(suffix)).stat()
                return status if stat.S_ISREG(status.st_mode) else None
    return None


def _make(path: Path) -> bool:
    """Make a folder and its parents; return False if the folder existed."""
    try:
        path.mkdir(FOLDER)
    except FileExistsError:
        return False
    except FileNotFoundError:
        if path.parent == path:
            raise
        _make(path.parent)
        return _make(path)
    return True


def _open_folder(path: Path) -> int:
    if not POSIX:
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise NotOurs(path, "it is a link or a file and should be a folder; remove it")
        return -1
    try:
        return os.open(path, _DIRECTORY)
    except OSError as error:
        raise _explain(path, error, "a folder") from error


def _open(path: Path, flags: int, folder: int) -> int:
    try:
        if not POSIX:
            return os.open(path, flags | BINARY)
        return os.open(path.name, flags | _OPEN, dir_fd=folder)
    except OSError as error:
        raise _explain(path, error, "a file") from error


def _explain(path: Path, error: OSError, kind: str) -> OSError:
    """Return NotOurs in place of the error if `path` is a link (ELOOP on Linux, EMLINK on FreeBSD, or ENOTDIR); else
    the error."""
    status = _status(path)
    if status is not None and stat.S_ISLNK(status.st_mode):
        return NotOurs(path, f"it is a link and should be {kind}; remove it")
    return error


def _vet_folder(path: Path, status: os.stat_result, database: os.stat_result | None, shared: bool) -> None:
    if not POSIX:
        return
    owners = {0, user_id()} | ({database.st_uid} if database is not None else set())
    by_group = shared and status.st_mode & stat.S_IWGRP and (database is None or status.st_gid == database.st_gid)
    if status.st_uid not in owners and not by_group:
        raise NotOurs(path, f"it belongs to {user(status.st_uid)}; remove it, or choose another place")
    if status.st_mode & stat.S_IWOTH:
        raise NotOurs(path, "everybody may write in it; chmod 700 it")
