"""Measure the memory of processes, and the available memory. Only on Linux; elsewhere the results are None."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")


class _Files(NamedTuple):
    """The names of the files that show a group's memory limit, for one version of control groups."""

    controller: str
    place: str
    limit: str
    used: str
    cached: str


_VERSIONS = (
    _Files("memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    _Files("", "", "memory.max", "memory.current", "inactive_file"),
)


def peak_of(pid: int | str) -> int | None:
    """Return the largest resident memory that the living process `pid` has had so far, in bytes; None if unknown."""
    return _field(Path(f"/proc/{pid}/status"), "VmHWM:")


def resident_of(pid: int | str) -> int | None:
    """Return the present resident memory of the living process `pid`, in bytes; None if unknown."""
    return _field(Path(f"/proc/{pid}/status"), "VmRSS:")


def available_bytes(root: Path = _ROOT) -> int | None:
    """Return how many bytes new processes may use before the machine or the container runs out; None if unknown."""
    amounts = [_field(root / "proc/meminfo", "MemAvailable:"), *_left_in_groups(root)]
    return min((left for left in amounts if left is not None), default=None)


def fits(count: int, each_bytes: int, left_bytes: int | None) -> bool:
    """Return True if `count` more processes of `each_bytes` would leave half of the available memory, or it
    is unknown."""
    return left_bytes is None or 2 * count * each_bytes <= left_bytes


def processors() -> int:
    """Return how many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return (len(affinity(0)) if affinity is not None else os.cpu_count()) or 1


def _field(path: Path, name: str, unit: int = 1024) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        words = path.read_text().split()
        return int(words[words.index(name) + 1]) * unit
    return None


def _left_in_groups(root: Path) -> Iterator[int]:
    """Yield how many bytes the limits of this process's control groups and of their parents leave."""
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            for files in _VERSIONS:
                if files.controller in controllers.split(","):
                    place = root / "sys/fs/cgroup" / files.place
                    group = place / name.lstrip("/")
                    around = [folder for folder in group.parents if folder.is_relative_to(place)]
                    yield from (left for folder in (group, *around) for left in _left_in(folder, files))


def _left_in(folder: Path, files: _Files) -> Iterator[int]:
    """Yield how many bytes the limit of the group in `folder` leaves, if any. Cached files do not count as used."""
    with contextlib.suppress(OSError, ValueError):  # no limit, or the group does not exist within a container
        limit, used = (int((folder / name).read_text()) for name in (files.limit, files.used))
        yield limit - used + (_field(folder / "memory.stat", files.cached, 1) or 0)
