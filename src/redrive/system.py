"""What the operating system has: POSIX, where workers run, or another such as Windows, where producers do.

On the latter there are no owners and modes to check: files are the user's as the system keeps them.
"""

from __future__ import annotations

import os
import platform

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
