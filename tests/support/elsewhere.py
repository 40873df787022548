"""Run a program as on a system without POSIX: `python -m tests.support.elsewhere FILE|-m MODULE [ARGUMENT]...`

What Windows lacks is taken from redrive, and left to the standard library, which has other ways there: modules such as
`fcntl` cannot be imported, `os.fork`, user ids, modes by descriptor and paths relative to one, sockets with a path,
`select.poll` and the signals of POSIX are missing, and a folder cannot be opened.
"""

from __future__ import annotations

import asyncio
import builtins
import ctypes
import getpass
import logging.handlers
import multiprocessing.util
import os
import platform
import runpy
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from types import ModuleType
from typing import Any

LOADED = (asyncio, ctypes, getpass, logging.handlers, multiprocessing.util, platform, sqlite3, subprocess, tempfile)
MODULES = frozenset(
    {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty", "uvloop"}
)
MISSING: dict[ModuleType, tuple[str, ...]] = {
    os: (
        "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_PATH", "chown", "fchmod", "fchown", "fork",
        "forkpty", "geteuid", "getegid", "getgid", "getloadavg", "getpgid", "getuid", "killpg", "mkfifo", "nice",
        "pidfd_open", "posix_spawn", "pread", "pwrite", "register_at_fork", "sched_getaffinity",
        "set_blocking", "setsid", "statvfs", "sysconf", "uname", "wait3", "wait4", "waitid",
    ),
    select: ("epoll", "poll"),
    signal: ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "pthread_sigmask", "sigwait"),
    socket: ("AF_UNIX", "SO_REUSEPORT"),
    time: ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "CLOCK_REALTIME", "clock_gettime", "tzset"),
}  # fmt: skip


class Hidden(ModuleType):
    """A module without what Windows has not; the real one stays as it is for the standard library."""

    def __init__(self, real: ModuleType, missing: tuple[str, ...], **changed: Any) -> None:
        super().__init__(real.__name__)
        kept = {name: value for name, value in vars(real).items() if name not in missing}
        vars(self).update(kept | changed)


def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    if dir_fd is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if os.path.isdir(path):  # noqa: PTH112  # as the system says it
        raise PermissionError(13, "Permission denied", os.fspath(path))
    return os.open(path, flags, mode)


def elsewhere() -> None:
    """Hide from modules of redrive what Windows lacks; call it before the first import of redrive."""
    hidden = {real.__name__: Hidden(real, missing) for real, missing in MISSING.items()}
    vars(hidden["os"])["open"] = _open
    usual = builtins.__import__

    def imported(name: str, where: Any = None, *rest: Any, **more: Any) -> Any:
        ours = where is not None and str(where.get("__name__", "")).startswith("redrive")
        if ours and name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return hidden[name] if ours and name in hidden else usual(name, where, *rest, **more)

    builtins.__import__ = imported


if __name__ == "__main__":
    elsewhere()
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
