"""What a process costs, read from outside."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import time
from pathlib import Path

LINUX = platform.system() == "Linux"


def cpu_s(pid: int, *, children: bool = False) -> float:
    """Processor time a process has used, all threads; with those it started, the ended ones included (Linux)."""
    if not LINUX:
        return _shown_s(pid)
    used_s = _exact_s(pid)
    if children:
        used_s += _ended_s(pid) + sum(cpu_s(child, children=True) for child in started_by(pid))
    return used_s


def descendants(pid: int) -> list[int]:
    """The processes it started that live, and those that these started."""
    return [found for child in started_by(pid) for found in (child, *descendants(child))] if LINUX else []


def _exact_s(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) returns: exact to the nanosecond
    except OSError:  # it has ended
        return 0.0


def started_by(pid: int) -> list[int]:
    """The processes it started that live. (Each thread has its own.)"""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (thread / "children").read_text().split())
    return found


def _ended_s(pid: int) -> float:
    """Of its children that have ended and that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _shown_s(pid: int) -> float:
    shown = subprocess.run(["ps", "-o", "cputime=", "-p", str(pid)], capture_output=True, text=True, check=True)
    parts = [float(part) for part in re.split("[-:]", shown.stdout.strip())]
    return sum(part * scale for part, scale in zip(reversed(parts), (1, 60, 3600, 86400), strict=False))


def rss_mib(pid: int) -> float:
    """Memory it holds now."""
    if LINUX:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(shown.stdout) / 1024
