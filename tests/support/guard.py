"""Keeps a server of the tests, and ends it when the tests are gone: run as `python -I -S guard.py` by servers.py.

The guard is the servers' parent and does not die with the tests: when its standard input ends, or its own parent is
another than at its start, it kills what it started with all descendants and removes the folders. So nothing is left
behind by a test process that ends in any way, SIGKILL too. Standard library only: it runs without redrive.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

GONE_WITHIN_S = 20.0
LOOK_EVERY_S = 0.5  # at its parent, should its standard input be held open by a process that the tests forked
PR_SET_CHILD_SUBREAPER = 36
PROC = Path("/proc")
LINUX = (PROC / "self/stat").exists()


# -- process trees


def tree(pid: int) -> list[int]:
    """This process and its descendants, parents first. Those of a stopped parent cannot change meanwhile."""
    children: dict[int, list[int]] = defaultdict(list)
    for child, parent in _parents():
        children[parent].append(child)
    found = [pid]
    for each in found:
        found += children[each]
    return found


def _parents() -> Iterable[tuple[int, int]]:
    if not LINUX:
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        yield from ((int(pid), int(parent)) for pid, parent in map(str.split, listing.splitlines()))
        return
    for path in PROC.iterdir():
        if path.name.isdigit() and (fields := _stat(int(path.name))):
            yield int(path.name), int(fields[1])


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty when it is gone."""
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def alive(pid: int) -> bool:
    """Whether it runs still. One that is dead and not yet reaped does not, once its last thread has ended: until then
    its sockets are open."""
    if LINUX:
        fields = _stat(pid)
        return bool(fields) and (fields[0] not in "ZX" or int(fields[17]) > 1)
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return True
    return False


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_tree(pid: int) -> list[int]:
    """SIGKILL to it and its descendants; those that were there. Stopped first, so that none is born meanwhile."""
    send([pid], signal.SIGSTOP)
    pids = tree(pid)
    send(pids, signal.SIGKILL)
    return pids


def wait_gone(pids: Iterable[int], timeout_s: float = GONE_WITHIN_S) -> bool:
    end_s, left = time.monotonic() + timeout_s, list(pids)
    while left := [pid for pid in left if alive(pid)]:
        if time.monotonic() > end_s:
            return False
        time.sleep(0.002)
    return True


# -- the guard


def main() -> None:
    """Reads lines of JSON: {"argv", "log", "user"?, "group"?} starts a program and answers {"pid"} or {"error"};
    {"folder"} is removed at the end."""
    parent = os.getppid()
    started: list[int] = []
    folders: list[str] = []
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that a killed server's children are reaped
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with its parent, and after it
    text = b""
    while os.getppid() == parent:
        ready = select.select([0, reading], [], [], LOOK_EVERY_S)[0]
        if reading in ready:
            os.read(reading, 4096)
        reap()
        if 0 not in ready:
            continue
        data = os.read(0, 65536)
        if not data:
            break
        *lines, text = (text + data).split(b"\n")
        for line in map(json.loads, lines):
            if "folder" in line:
                folders.append(line["folder"])
            else:
                answer = start(line)
                started += [answer["pid"]] if "pid" in answer else []
                os.write(1, json.dumps(answer).encode() + b"\n")
    ended = [pid for child in started if alive(child) and parent_of(child) == os.getpid() for pid in kill_tree(child)]
    while ended := [pid for pid in ended if alive(pid)]:
        reap()
        time.sleep(0.002)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def parent_of(pid: int) -> int:
    """Whose child it is: a number that was used again is not ours to kill."""
    return next((parent for child, parent in _parents() if child == pid), 0)


def start(line: dict[str, Any]) -> dict[str, Any]:
    who = {k: line[k] for k in ("user", "group") if k in line}
    try:
        with Path(line["log"]).open("ab") as log:
            process = subprocess.Popen(
                line["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                extra_groups=[] if who else None,
                cwd=line["cwd"],
                **who,
            )
    except OSError as error:
        return {"error": str(error)}
    process.returncode = 0  # it is reaped below, and not by its object
    return {"pid": process.pid}


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()
