"""Blobs as files in one directory."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..errors import BlobsUnavailable
from ..files import FOLDER, GROUP_FOLDER, create, read_regular
from ..system import BINARY, CLOEXEC, DIRECTORY, NOFOLLOW, NONBLOCK, POSIX
from .place import is_key

_PART = ".part"  # suffix of a file that is being written, which an interrupted put leaves behind
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)


class FileBlobs:
    """Blobs in `folder`, one file for each, named by its key. Many machines may share the disk; with `shared`, also the
    users of a group."""

    folder: Path

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        self.folder, self._shared = folder, shared

    @property
    def stored(self) -> FileBlobs:
        return self

    def make(self) -> None:
        with _translate(f"cannot make {self.folder}"):
            missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
            for path in reversed(missing):
                with contextlib.suppress(FileExistsError):
                    path.mkdir(FOLDER)
                    if self._shared:
                        path.chmod(GROUP_FOLDER)
                _sync(path.parent)
            self.folder.mkdir(exist_ok=True)  # raises if a file has this name

    def put(self, blobs: Mapping[str, bytes]) -> None:
        with _translate(f"cannot write a blob into {self.folder}"):
            for key, body in blobs.items():
                self._write(key, body)
            _sync(self.folder)  # makes the names durable; each file was synced before it got its name

    def _write(self, key: str, body: bytes) -> None:
        """Write a partial file, then rename it: a named blob is complete. `collect` removes what a crash leaves."""
        path = self._path(key)
        part = path.with_name(path.name + _PART)
        try:
            with os.fdopen(create(part, shared=self._shared), "wb", buffering=0) as file:
                left = memoryview(body)
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            part.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            raise

    def get(self, key: str, bytes_max: int) -> bytes | None:
        with _translate(f"cannot read blob {key} in {self.folder}"):
            try:
                file = os.open(self._path(key), os.O_RDONLY | BINARY | NOFOLLOW | NONBLOCK | CLOEXEC)
            except FileNotFoundError:
                self._require_folder()
                return None
            with os.fdopen(file, "rb") as opened:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.EINVAL, "it is not a regular file")
                return opened.read(min(bytes_max, status.st_size))

    def _require_folder(self) -> None:
        """Raise FileNotFoundError if the folder is missing: its disk may not be mounted, so no blob counts as lost."""
        if not self.folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the folder is not there; mount its disk, or make it again")

    def copy(self, key: str, to: str) -> bool:
        with _translate(f"cannot copy blob {key} in {self.folder}"):
            try:
                os.link(self._path(key), self._path(to), follow_symlinks=False)  # a file is deleted with its last name
            except FileNotFoundError:
                self._require_folder()
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                self._write(to, read_regular(self._path(key)))
            _sync(self.folder)
            return True

    def delete(self, keys: Iterable[str]) -> None:
        with _translate(f"cannot remove a blob from {self.folder}"):
            for key in keys:
                path = self._path(key)
                path.unlink(missing_ok=True)
                path.with_name(path.name + _PART).unlink(missing_ok=True)

    def listed(self) -> Iterator[str]:
        with _translate(f"cannot list {self.folder}"), os.scandir(self.folder) as entries:
            for entry in entries:
                key = entry.name.removesuffix(_PART)
                if is_key(key):  # other files in the folder are not blobs
                    yield key

    def _path(self, key: str) -> Path:
        if not is_key(key):  # callers check it too; this is the last check before a path is made
            raise ValueError(f"{key!r} is not a blob's key")
        return self.folder / key


@contextlib.contextmanager
def _translate(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BlobsUnavailable(f"{what}: {error.strerror or error}") from error


def _sync(folder: Path) -> None:
    if not POSIX:  # a folder cannot be opened there, and its entries are durable with the file
        return
    file = os.open(folder, os.O_RDONLY | DIRECTORY | CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
