"""What the operating system has: POSIX, where workers run, or another such as Windows, where producers do.

On the latter there are no owners and modes to check: files are the user's as the system keeps them.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from functools import partial

from .errors import ConfigError

POSIX = hasattr(os, "geteuid")
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
BINARY: int = getattr(os, "O_BINARY", 0)  # else Windows writes two bytes for a line feed
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)


def host() -> str:
    """Return the name of this machine."""
    return platform.node()


def need_posix(what: str) -> None:
    """Raise ConfigError where this system cannot run `what`."""
    if not POSIX:
        raise ConfigError(f"{what} needs Linux or macOS; from here you can enqueue, read and redrive")


def user_id() -> int:
    """Return the id of the user of this process, as files have it: 0 for all files where there are no such ids."""
    return os.geteuid() if POSIX else 0


def at_fork(**calls: Callable[[], object]) -> None:
    """Call these around each fork of this process, as `os.register_at_fork` does; nothing where no process forks."""
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(**calls)


def steady_clock() -> Callable[[], float]:
    """Return the machine's steady clock in seconds, which runs during sleep where the system has such a clock."""
    read = getattr(time, "clock_gettime", None)
    if read is None:
        return time.monotonic
    clock = getattr(time, "CLOCK_BOOTTIME", None)  # macOS's CLOCK_MONOTONIC runs during sleep, too
    return partial(read, time.CLOCK_MONOTONIC if clock is None else clock)
