"""The checks of `SqliteStore.doctor`: the file's disk, and its log."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from ...config import is_shared

FREE_LEAST = 512 * 2**20
WAL_MOST = 64 * 2**20  # the log is checkpointed from 4 MB on
MOUNTS = Path("/proc/self/mounts")
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "virtiofs", "fuse")
_LOST = {
    "tmpfs": "in memory, and is gone when the machine stops",
    "ramfs": "in memory, and is gone when the machine stops",
    "overlay": "in the container itself, and is gone when that is removed",
}


def findings(path: Path, synchronous: str, waiting_bytes: int) -> Iterator[str]:
    """Yield a line for each unsafe or slow setting. `waiting_bytes`: how much of the log is not yet in the file."""
    if synchronous == "normal":
        yield (
            "synchronous=normal: a power cut may take back the last commits, acknowledged or not; take it out of the "
            "URL unless that is meant"
        )
    yield from _of_file_system(path)
    yield from _of_modes(path)
    free = shutil.disk_usage(path.parent).free
    if free < FREE_LEAST:
        yield f"{_size(free)} are free on the disk of {path}: where none are, nothing can be put; make room"
    if waiting_bytes > WAL_MOST:
        yield (
            f"{path}-wal holds {_size(waiting_bytes)} that cannot be carried over to the file while an old "
            "transaction reads it (a shell, a backup): it grows, and slows every look; end that transaction"
        )


def _of_file_system(path: Path) -> Iterator[str]:
    kind = file_system(path)
    if kind.partition(".")[0] in _NETWORK:
        yield (
            f"{path} lies on a network or shared file system ({kind}), where locks and shared memory cannot be "
            "trusted: the file may be damaged; move it to a local disk, or use PostgreSQL or Redis"
        )
    if kind in _LOST:
        yield f"{path} lies {_LOST[kind]} ({kind}); move it to a disk or a volume that stays"


def _of_modes(path: Path) -> Iterator[str]:
    mode, folder = path.stat().st_mode, path.resolve().parent
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        may = "change" if mode & stat.S_IWOTH else "read"
        yield (
            f"every user of this machine may {may} {path} (mode {stat.S_IMODE(mode):o}), and with it what messages "
            "hold; `chmod o-rwx` it, and its -wal and -shm: redrive makes new files 600, and leaves the modes of others"
        )
    if is_shared() and mode & stat.S_IWGRP and not folder.stat().st_mode & stat.S_ISGID:
        yield (
            f"{path} is shared with a group, but the log beside it will belong to the own group of its maker: "
            f"`chmod g+s {folder}`"
        )


def file_system(path: Path) -> str:
    """Return the type of the file system on which `path` is; empty if unknown."""
    try:
        mounts = [line.split(" ") for line in MOUNTS.read_text(errors="replace").splitlines()]
    except OSError:
        return ""
    places = {_plain(place): kind for _, place, kind, *_ in mounts}  # the later of two mounts counts
    whole = path.resolve()
    return next((places[str(above)] for above in (whole, *whole.parents) if str(above) in places), "")


def _size(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def _plain(place: str) -> str:
    """Decode the path of a mount point, in which blanks and backslashes are octal escapes."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\134", "\\")):
        place = place.replace(octal, character)
    return place
