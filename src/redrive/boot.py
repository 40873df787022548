"""Which start of the machine this is."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
from pathlib import Path

UNKNOWN = "unknown-"


@functools.cache
def boot_id() -> str:
    """A word that changes when the machine starts again: what was written before that may not have reached the disk.
    Where it cannot be known it begins with UNKNOWN, and is never another process's: nothing is then taken for of the
    same start."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if platform.system() == "Darwin":
        found = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=False
        )
        if found.returncode == 0:
            return found.stdout.strip()
    return f"{UNKNOWN}{os.getpid()}"
