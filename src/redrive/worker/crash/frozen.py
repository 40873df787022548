"""Detect a stopped process and the file locks that it holds, on Linux. Elsewhere the functions return False."""

from __future__ import annotations

from pathlib import Path


def stopped_with(pid: int, lock_file: Path) -> bool:
    """Return True if the process `pid` is stopped and holds an exclusive lock of `lock_file`."""
    return _is_stopped(pid) and _holds_lock(pid, lock_file)


def _is_stopped(pid: int) -> bool:
    """Return True if a signal stopped the process; a process that a debugger stopped does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def _holds_lock(pid: int, path: Path) -> bool:
    """Return True if the process holds an exclusive lock of the file at `path`, or of a part of that file."""
    try:
        inode, lines = path.stat().st_ino, Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    # a line of /proc/locks: `1: POSIX ADVISORY WRITE 2741 08:02:1311 120 120`
    held = [
        fields for line in lines if len(fields := line.split()) == 8 and fields[1:4] == ["POSIX", "ADVISORY", "WRITE"]
    ]
    return any(int(fields[4]) == pid and _inode(fields[5]) == inode for fields in held)


def _inode(place: str) -> int:
    return int(place.rpartition(":")[2])
