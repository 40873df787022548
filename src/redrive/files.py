"""Files and folders of our own: private, and never reached through a link that somebody else put there.

A folder is held by its descriptor, and what is done in it is done relative to that: renamed or replaced meanwhile, it
leads nowhere else. Owner and type are asked of what was opened, never of its name. Nothing is truncated, written or
removed before that.

New files are 0600 and new folders 0700. Where a group shares them they are 0660 and 3770: members may write each
other's files and not remove them, and what is made there belongs to the folder's group. What is there already keeps
its mode.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from .errors import ConfigError

FILE, FOLDER = 0o600, 0o700
GROUP_FILE, GROUP_FOLDER = 0o660, 0o3770
COMPANIONS = ("-wake", "-workers", "-spool")  # folders beside a database: who may write it may use them
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not hold us up
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotOurs(PermissionError):
    """What lies there belongs to somebody else, or is not the kind of file it should be. Nothing was done to it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EPERM, why, str(path))


class Folder:
    """A folder of ours, open. Raises OSError; NotOurs where somebody else owns it or may write in it.

    Ours is what this user or root owns; a companion of a database also what the database's owner does. It may be
    shared with a group: a companion where the group may write the database, any other if `shared` says so. `make`
    makes it, and the folders above it.
    """

    def __init__(self, path: Path, *, make: bool = False, shared: bool = False) -> None:
        self.fd = -1
        self.path, database = path, _database(path)
        if database is not None:
            shared = bool(database.st_mode & stat.S_IWGRP)
        made = make and _make(path)
        self.fd = _open_folder(path)
        try:
            found = os.fstat(self.fd)
            if made:
                found = self._hand_on(database, shared)
            self.shared = bool(shared and found.st_mode & stat.S_IWGRP)
            self._owner, self._owners = found.st_uid, {0, os.geteuid(), found.st_uid}
            self.inode = found.st_dev, found.st_ino
            _vet_folder(path, found, database, self.shared)
        except BaseException:
            self.close()
            raise

    def _hand_on(self, database: os.stat_result | None, shared: bool) -> os.stat_result:
        """What is made beside a database is for whom that is for: for its group, and, made by root, for its owner."""
        if shared:
            os.fchmod(self.fd, GROUP_FOLDER)
        if database is not None and (shared or not os.geteuid()):
            with contextlib.suppress(OSError):  # it stays with ours
                os.chown(self.fd, -1 if os.geteuid() else database.st_uid, database.st_gid)
                os.fchmod(self.fd, GROUP_FOLDER if shared else FOLDER)  # a new group takes the set-group-id bit away
        return os.fstat(self.fd)

    def open(self, name: str, flags: int) -> int:
        """A regular file of ours, by its descriptor. With O_CREAT it is made if it is missing. Not with O_TRUNC: it
        would be cut before anybody looked whose it is."""
        assert not flags & os.O_TRUNC
        if flags & os.O_CREAT:
            try:
                return self._create(name, flags | os.O_EXCL)
            except FileExistsError:
                if flags & os.O_EXCL:
                    raise
        fd = _opened(self.path / name, flags & ~os.O_CREAT, self.fd)
        try:
            self._vet(name, os.fstat(fd))
            os.set_blocking(fd, True)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _create(self, name: str, flags: int) -> int:
        fd = os.open(name, flags | _OPEN, FILE, dir_fd=self.fd)
        if not os.geteuid():
            os.fchown(fd, self._owner, -1)
        if self.shared:
            os.fchmod(fd, GROUP_FILE)
        os.set_blocking(fd, True)
        return fd

    def _vet(self, name: str, found: os.stat_result) -> None:
        path = self.path / name
        if not stat.S_ISREG(found.st_mode):
            raise NotOurs(path, "it is not a regular file; remove it")
        if found.st_nlink > 1:
            raise NotOurs(path, "it has another name elsewhere, and may be somebody's file; remove it")
        if found.st_uid not in self._owners and not self.shared:
            raise NotOurs(path, f"it belongs to {user(found.st_uid)}; remove it")

    def sockets(self) -> list[str]:
        """The names of the sockets in it."""
        return [name for name in os.listdir(self.fd) if stat.S_ISSOCK(self._mode(name))]  # noqa: PTH208  # by its descriptor

    def _mode(self, name: str) -> int:
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode
        except OSError:
            return 0

    def remove_socket(self, name: str) -> None:
        """Remove a socket, if it is one and this user's; nothing else is ever removed."""
        with contextlib.suppress(OSError):
            found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid():
                os.unlink(name, dir_fd=self.fd)

    def is_there(self) -> bool:
        """Whether its path still leads to it."""
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self.inode

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close  # not before the last thread that works in it has let go

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_file(path: Path, flags: int, *, shared: bool = False) -> int:
    """A regular file in a folder of ours that is there, as `Folder.open`. Raises OSError, NotOurs."""
    with Folder(path.parent, shared=shared) as folder:
        return folder.open(path.name, flags)


def make_folder(path: Path, *, shared: bool = False) -> None:
    """Make a folder of ours if it is missing, as `Folder`. Raises OSError, NotOurs."""
    Folder(path, make=True, shared=shared).close()


def rewrite(path: Path, content: bytes, *, shared: bool = False) -> None:
    """Put `content` into a file of ours in a folder of ours, in the place of what it held. Raises OSError, NotOurs."""
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT, shared=shared), "wb", 0) as file:
        file.truncate(0)
        file.write(content)


def read_regular(path: Path) -> bytes:
    """What a file holds that is regular and no link, no matter who owns it. Raises OSError, NotOurs."""
    fd = os.open(path, os.O_RDONLY | _OPEN)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotOurs(path, "it is not a regular file")
        return file.read()


@contextlib.contextmanager
def written(path: Path, *, shared: bool = False) -> Iterator[int]:
    """The descriptor of a file that appears at `path`, whole, when the block ends without an error. Raises OSError.

    It takes the place of a file or a link there. What is a device or a pipe, such as /dev/stdout, is written to.
    """
    if path.exists() and not path.is_file():
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)
        return
    part = path.with_name(f".{path.name[:100]}.{os.urandom(6).hex()}")
    fd = create(part, shared=shared)
    try:
        yield fd
        os.fsync(fd)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def create(path: Path, *, shared: bool = False) -> int:
    """A new file, by its descriptor: 0600, or 0660 where a group shares it, whatever the umask. Raises
    FileExistsError where there is anything of that name, a link that leads nowhere too."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE)
    if shared:
        os.fchmod(fd, GROUP_FILE)
    return fd


def make_database(path: Path, *, shared: bool = False) -> None:
    """Make an empty database file, if there is none, with our mode and not with that of the umask. A link that leads
    to where nothing is yet is followed if this user or root made it. Raises OSError, ConfigError."""
    found = _status(path)
    if found is not None and stat.S_ISLNK(found.st_mode):
        target = _status(path.resolve())
        if found.st_uid not in {0, os.geteuid(), -1 if target is None else target.st_uid}:
            raise ConfigError(
                f"{path} is a link that {user(found.st_uid)} made, to a file that is not theirs; name the file itself"
            )
        path = path.resolve()
    with contextlib.suppress(FileExistsError):
        os.close(create(path, shared=shared))


def user(uid: int) -> str:
    """A user to name in a message."""
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
    """The database whose companion a folder is."""
    for suffix in COMPANIONS:
        if folder.name.endswith(suffix):
            with contextlib.suppress(OSError):
                found = folder.with_name(folder.name.removesuffix(suffix)).stat()
                return found if stat.S_ISREG(found.st_mode) else None
    return None


def _make(path: Path) -> bool:
    """Whether it was missing, and is made."""
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
    try:
        return os.open(path, _DIRECTORY)
    except OSError as error:
        raise _told(path, error, "a folder") from error


def _opened(path: Path, flags: int, folder: int) -> int:
    try:
        return os.open(path.name, flags | _OPEN, dir_fd=folder)
    except OSError as error:
        raise _told(path, error, "a file") from error


def _told(path: Path, error: OSError, kind: str) -> OSError:
    """A link comes as ELOOP (Linux), as EMLINK (FreeBSD), or, where a folder was meant, as ENOTDIR."""
    found = _status(path)
    if found is not None and stat.S_ISLNK(found.st_mode):
        return NotOurs(path, f"it is a link and should be {kind}; remove it")
    return error


def _vet_folder(path: Path, found: os.stat_result, database: os.stat_result | None, shared: bool) -> None:
    owners = {0, os.geteuid()} | ({database.st_uid} if database is not None else set())
    by_group = shared and found.st_mode & stat.S_IWGRP and (database is None or found.st_gid == database.st_gid)
    if found.st_uid not in owners and not by_group:
        raise NotOurs(path, f"it belongs to {user(found.st_uid)}; remove it, or choose another place")
    if found.st_mode & stat.S_IWOTH:
        raise NotOurs(path, "everybody may write in it; chmod 700 it")
