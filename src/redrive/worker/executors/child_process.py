"""A child process from the worker's side: start it, exchange frames with it, end it, and find out how it died."""

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
from .ipc import READ_BYTES, FrameDecoder, ToWorker
from .memory import peak_of

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
_BOOT = (
    "import sys; sys.path[:] = sys.argv.pop().split(chr(10)); "
    "from redrive.worker.executors.child_main import main; main(*sys.argv[1:])"
)
_STDERR = 2
WHERE = signal.SIGQUIT  # asks a child to write its stack; no terminal sends it, as the child has its own process group


class Death(Struct, frozen=True):
    """The end of a process: by a signal, or with an exit code; neither is known if another process reaped it.
    `peak_bytes` is its largest resident memory."""

    signal: str = ""
    code: int | None = None
    peak_bytes: int | None = None


class Child:
    """A child: idle, or with executions; several only if they are suspects. Used by one thread, which must live as long
    as the child: on Linux the child ends with it."""

    over: bool
    asked_where: bool
    process: subprocess.Popen[bytes]
    most: int
    number: int
    retired: bool
    leave_at_s: float
    kill_at_s: float
    channel: socket.socket

    def __init__(self, memory: int | None, *, suspects: bool = False) -> None:
        self.memory = memory
        self.suspects = suspects  # True if the child was started for suspects, or runs some
        self.executions: dict[int, Execution] = {}  # by the number that `seat` returned
        self.sent: set[int] = set()  # numbers of those that it received, whose crash its death is
        self.met: set[int] = set()  # numbers of the executions that ran beside others
        self.most = ANY  # how many executions may run here, as far as all present ones allow
        self.overdue: frozenset[int] = frozenset()  # numbers of overdue executions, for which it was killed
        self.number = self.ran = 0
        self.ready = self.retired = self.used_up = False  # `used_up`: it gets no more work
        self.leave_at_s = float("inf")  # time.monotonic() until which the child is kept idle
        self.over = False  # True once the channel is closed
        self.dead = False
        self.tasks: frozenset[str] = frozenset()
        self.kill_at_s = float("inf")
        self.killed: str | None = None  # why the worker killed the child
        self.broken: str | None = None  # why the child could not begin
        self.peak_bytes: int | None = None  # the child's peak memory at the last check
        self.asked_where = False
        self._last_words = _scratch()  # the file to which the child writes its stack when it is killed
        self.channel, theirs = socket.socketpair()
        with theirs:
            # On Linux a new process begins as a copy of its parent, so the parent's memory counts as its own peak.
            self._floor_bytes = 0 if sys.platform == "darwin" else _own_peak_bytes()
            self.process = subprocess.Popen(
                _command(theirs.fileno(), self._last_words.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                pass_fds=[theirs.fileno(), self._last_words.fileno()],
                process_group=0,  # kills reach the processes that the child started; Ctrl-C does not reach it
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
        """How many more executions the present ones allow in this child; ANY if it has none."""
        return self.most - len(self.executions)

    @property
    def shared(self) -> bool:
        """True if the child's executions allow others beside them."""
        return self.most > 1

    def seat(self, execution: Execution) -> int:
        """Add an execution to this child; return the execution's number."""
        if self.executions:
            self.met.update(self.executions, (self.number + 1,))
        self.number += 1
        self.executions[self.number] = execution
        self.most = min(self.most, execution.seats)
        self.leave_at_s = float("inf")
        return self.number

    def leave(self, number: int) -> bool:
        """Remove an ended execution from this child; return True if it was the last one."""
        del self.executions[number]
        self.sent.discard(number)
        self.met.discard(number)
        if self.executions:
            return False
        self.most, self.kill_at_s = ANY, float("inf")
        if self.asked_where:  # the child was asked for its stack, but the execution ended after all
            self.forget_where()
        return True

    def until_s(self, overtime_s: float) -> float:
        """Return when to kill the child: when an execution exceeds its timeout by `overtime_s`, or its only one has
        lost its lease. With several, the lost lease of one does not end the others."""
        if not self.sent:
            return float("inf")
        executions = [self.executions[number] for number in self.sent]
        ends_s = (
            self.kill_at_s if self.asked_where else min(execution.deadline_s for execution in executions) + overtime_s
        )
        lease_s = executions[0].until_s if len(self.executions) == 1 else float("inf")
        return min(self.kill_at_s, ends_s, lease_s)

    def send(self, frame: bytes) -> None:
        """Send a packed frame to the child; `send_more` later sends what the socket does not accept at once."""
        self._unsent += frame
        self.send_more()

    def send_more(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._unsent:
                sent = self.channel.send(self._unsent)
                del self._unsent[:sent]

    def receive(self) -> Iterator[ToWorker]:
        """Yield the frames that have arrived from the child; set `over` at the end of the channel."""
        while not self.over:
            try:
                data = self.channel.recv(READ_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:  # the child died before it read all frames
                data = b""
            self.over = not data
            yield from self._inbox.feed(data)
            if 0 < len(data) < READ_BYTES:
                return

    def retire(self) -> None:
        """Let the child end by itself, by closing the channel to it."""
        self.retired, self.leave_at_s = True, float("inf")
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_WR)

    def ask_where(self) -> None:
        """Make the child write its stack to the file of its last words, even if it executes a C function."""
        self.asked_where = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, WHERE)

    def forget_where(self) -> None:
        """Empty the file of the stack; its offset, which the child shares, moves back to the start."""
        self.asked_where = False
        os.ftruncate(self._last_words.fileno(), 0)
        os.lseek(self._last_words.fileno(), 0, os.SEEK_SET)

    def stack(self) -> str:
        """Return the stack that the child wrote, as a traceback; empty if it could not write one."""
        return as_traceback(os.pread(self._last_words.fileno(), TRACEBACK_MAX, 0).decode(errors="replace"))

    def kill(self, why: str) -> None:
        """Kill the child and the processes of its group with SIGKILL, for the reason `why`."""
        if self.killed is None:
            self.killed = why
            self.sample()
        self._kill_group()

    def sample(self) -> None:
        """Update the child's peak memory."""
        self.peak_bytes = peak_of(self.process.pid) or self.peak_bytes

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def reap(self) -> Death | None:
        """Reap the child if it has ended, and return its Death; None while it lives."""
        try:
            with contextlib.suppress(AttributeError):  # kill the processes that a crashed child started
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
    """Convert `faulthandler` output to the order and form of Python's tracebacks, without the worker's own frames.

    >>> print(as_traceback('Stack:\\n  File "b.py", line 2 in g\\n  File "a.py", line 1 in f'))
    Traceback (most recent call last):
      File "a.py", line 1, in f
      File "b.py", line 2, in g
    """
    frames = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', dump, re.MULTILINE)
    own = [file.startswith(str(Path(__file__).parent)) for file, _, _ in frames]
    within = len(own) - own[::-1].index(True) if True in own else len(own)  # without the frames that called the handler
    shown = [
        f'  File "{file}", line {line}, in {name}'
        for (file, line, name), is_own in zip(frames[:within], own, strict=False)
        if not is_own and not file.startswith("<")
    ]
    return "\n".join(["Traceback (most recent call last):", *reversed(shown)]) if shown else ""


def _scratch() -> BinaryIO:
    """Open a file without a name: in memory if the system supports that, as the disk may be full."""
    make = getattr(os, "memfd_create", None)
    file = tempfile.TemporaryFile(buffering=0) if make is None else os.fdopen(make("redrive"), "w+b", 0)  # noqa: SIM115
    return cast(BinaryIO, file)


def _own_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


def _pid_fd(pid: int) -> int | None:
    """Return a file that becomes readable when the process dies, if the system has that. The end of the channel does
    not show the death, as processes started by the child may hold it open."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError):
        return os.pidfd_open(pid)
    return None


def _command(fd: int, last_words: int) -> list[str]:
    """Return the command of a child: an interpreter with this one's flags and import path."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", _BOOT, str(fd), str(last_words), str(os.getpid()), "\n".join(sys.path)]
