"""A child process as its worker sees it: start it, talk to it, end it, and find out how it died."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from msgspec import Struct

from ...fault import TRACEBACK_MAX
from ..crash.company import ANY
from ..execution import Execution
from .ipc import READ_BYTES, FrameDecoder, ToChild, ToWorker, pack
from .memory import peak_of

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
_BOOT = (
    "import sys; sys.path[:] = sys.argv.pop().split(chr(10)); "
    "from redrive.worker.executors.child_main import main; main(*sys.argv[1:])"
)
_STDERR = 2
WHERE = signal.SIGQUIT  # asks a child where it is; its group is its own, so no terminal sends it


class Death(Struct, frozen=True):
    """How a process ended: by a signal, or with an exit code; neither if another reaped it. `peak_bytes` is its largest
    resident memory."""

    signal: str = ""
    code: int | None = None
    peak_bytes: int | None = None


class Child:
    """One child: idle, or with the executions it runs, one unless they are suspects. Used by one thread, which must
    live as long as the child: on Linux the child ends with it."""

    def __init__(self, memory: int | None, *, suspects: bool = False) -> None:
        self.memory = memory
        self.suspects = suspects  # started for them, or running some
        self.executions: dict[int, Execution] = {}  # by number
        self.sent: set[int] = set()  # those that it has received: its death counts as their crash
        self.met: set[int] = set()  # those that ran beside others
        self.most = ANY  # how many each of its executions lets run in it
        self.overdue: frozenset[int] = frozenset()  # those for which its worker killed it
        self.number = self.ran = 0
        self.ready = self.retired = self.used_up = False  # used_up: it takes no more
        self.leave_at_s = float("inf")  # when it is no longer kept idle
        self.over = False  # its channel is closed
        self.dead = False
        self.tasks: frozenset[str] = frozenset()
        self.kill_at_s = float("inf")
        self.killed: str | None = None  # why its worker killed it
        self.broken: str | None = None  # why it could not begin
        self.peak_bytes: int | None = None  # when it was last looked at
        self.asked_where = False
        self._last_words = _scratch()  # where it is when it is killed
        self.channel, theirs = socket.socketpair()
        with theirs:
            # Linux starts a process out of its parent's memory, and counts that as its own peak.
            self._floor_bytes = 0 if sys.platform == "darwin" else _own_peak_bytes()
            self.process = subprocess.Popen(
                _command(theirs.fileno(), self._last_words.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                pass_fds=[theirs.fileno(), self._last_words.fileno()],
                process_group=0,  # so that what it started itself is killed with it, and a Ctrl-C is not meant for it
            )
        self.channel.setblocking(False)
        self.pid_fd = _pid_fd(self.process.pid)
        self._inbox: FrameDecoder[ToWorker] = FrameDecoder(ToWorker)
        self._unsent = bytearray()

    @property
    def waits_to_send(self) -> bool:
        return bool(self._unsent)

    @property
    def room(self) -> int:
        """How many more its executions let in; ANY where it runs nothing."""
        return self.most - len(self.executions)

    @property
    def shared(self) -> bool:
        """Whether others may join what it runs."""
        return self.most > 1

    def seat(self, execution: Execution) -> int:
        """Add this execution; returns its number."""
        if self.executions:
            self.met.update(self.executions, (self.number + 1,))
        self.number += 1
        self.executions[self.number] = execution
        self.most = min(self.most, execution.seats)
        self.leave_at_s = float("inf")
        return self.number

    def leave(self, number: int) -> bool:
        """That execution has ended. Returns whether it was the last one here."""
        del self.executions[number]
        self.sent.discard(number)
        self.met.discard(number)
        if self.executions:
            return False
        self.most, self.kill_at_s = ANY, float("inf")
        if self.asked_where:  # and then it ended after all
            self.forget_where()
        return True

    def until_s(self, overtime_s: float) -> float:
        """When to kill it: once an execution is past its timeout and overtime, or with the lease of the only one. With
        more than one, a lost lease ends no other."""
        if not self.sent:
            return float("inf")
        executions = [self.executions[number] for number in self.sent]
        ends_s = (
            self.kill_at_s if self.asked_where else min(execution.deadline_s for execution in executions) + overtime_s
        )
        lease_s = executions[0].until_s if len(self.executions) == 1 else float("inf")
        return min(self.kill_at_s, ends_s, lease_s)

    def send(self, frame: ToChild) -> None:
        """Send it; what the socket does not take at once goes with `send_more`."""
        self._unsent += pack(frame)
        self.send_more()

    def send_more(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._unsent:
                sent = self.channel.send(self._unsent)
                del self._unsent[:sent]

    def receive(self) -> Iterator[ToWorker]:
        """Read what has come; sets `over` at the end of the channel."""
        while not self.over:
            try:
                data = self.channel.recv(READ_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it died with something of ours unread
                data = b""
            self.over = not data
            yield from self._inbox.feed(data)
            if 0 < len(data) < READ_BYTES:
                return

    def retire(self) -> None:
        """Let it end by itself."""
        self.retired, self.leave_at_s = True, float("inf")
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_WR)

    def ask_where(self) -> None:
        """Have it write down its stack, which works within a C function too."""
        self.asked_where = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, WHERE)

    def forget_where(self) -> None:
        """Empty the file; its end is the child's too."""
        self.asked_where = False
        os.ftruncate(self._last_words.fileno(), 0)
        os.lseek(self._last_words.fileno(), 0, os.SEEK_SET)

    def stack(self) -> str:
        """Its stack as a traceback; empty if it could not write it."""
        return as_traceback(os.pread(self._last_words.fileno(), TRACEBACK_MAX, 0).decode(errors="replace"))

    def kill(self, why: str) -> None:
        """SIGKILL, to it and the processes it started in its group."""
        if self.killed is None:
            self.killed = why
            self.sample()
        self._kill_group()

    def sample(self) -> None:
        """Update how much memory it had so far."""
        self.peak_bytes = peak_of(self.process.pid) or self.peak_bytes

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def reap(self) -> Death | None:
        """How it ended; None while it lives."""
        try:
            with contextlib.suppress(AttributeError):  # what a crashed one started goes with it
                if not self.retired and os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    self._kill_group()
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
        except ChildProcessError:
            self.process.returncode = 0
            return Death(peak_bytes=self.peak_bytes)
        if pid == 0:
            return None
        code = self.process.returncode = os.waitstatus_to_exitcode(status)
        peak = usage.ru_maxrss * _MAXRSS_UNIT
        if peak <= self._floor_bytes:
            peak = self.peak_bytes or peak
        return Death(signal.Signals(-code).name, None, peak) if code < 0 else Death("", code, peak)

    def close(self) -> None:
        self.channel.close()
        self._last_words.close()
        if self.pid_fd is not None:
            os.close(self.pid_fd)
            self.pid_fd = None


def as_traceback(dump: str) -> str:
    """What `faulthandler` writes, in the order and form of Python's tracebacks, without the worker's own frames.

    >>> print(as_traceback('Stack:\\n  File "b.py", line 2 in g\\n  File "a.py", line 1 in f'))
    Traceback (most recent call last):
      File "a.py", line 1, in f
      File "b.py", line 2, in g
    """
    frames = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', dump, re.MULTILINE)
    own = [file.startswith(str(Path(__file__).parent)) for file, _, _ in frames]
    within = len(own) - own[::-1].index(True) if True in own else len(own)  # without what started the thread
    shown = [
        f'  File "{file}", line {line}, in {name}'
        for (file, line, name), is_own in zip(frames[:within], own, strict=False)
        if not is_own and not file.startswith("<")
    ]
    return "\n".join(["Traceback (most recent call last):", *reversed(shown)]) if shown else ""


def _scratch() -> BinaryIO:
    """A file without a name, in memory if the system can: there may be no disk to write to."""
    make = getattr(os, "memfd_create", None)
    file = tempfile.TemporaryFile(buffering=0) if make is None else os.fdopen(make("redrive"), "w+b", 0)  # noqa: SIM115
    return cast(BinaryIO, file)


def _own_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


def _pid_fd(pid: int) -> int | None:
    """A file that becomes readable when it dies, if the system has that: a process that it started may hold its channel
    open."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None


def _command(fd: int, last_words: int) -> list[str]:
    """The interpreter that runs here, with its own flags, and able to import what can be imported here."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", _BOOT, str(fd), str(last_words), str(os.getpid()), "\n".join(sys.path)]
