"""The parent process of `redrive worker`: start the worker processes, replace those that die or hang, and end with the
last one.

A pipe connects the parent with each child. The parent writes a byte for each request; when it dies, even by kill -9,
the child reads the end of the pipe and drains.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..redact import many_lines, redact
from .crash.frozen import stopped_with
from .crash.ledger import Beats, WorkerDeath, all_beats, note_death, signal_name

if TYPE_CHECKING:
    from .worker import Worker

PARENT_FD = "REDRIVE_PARENT_FD"
DRAIN, RELEASE = b"d", b"r"
HUNG_AFTER_S = 10.0  # seconds without a sign of life after which a child counts as hung; a lease if that is longer
END_AFTER_S = 5.0  # seconds in which a child has to end after its grace, or after a release
RESTART_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)  # pause before a restart, by how often in a row the child died young
YOUNG_S = 10.0
AT_WORK_MAX = 9  # restarts in a row without a pause after deaths at work: the tenth crash quarantines a message
LOOK_EVERY_S = 0.5
STOPPED_S = 1.0  # seconds for which a stopped process may lock all others out of the store
PAUSED_S = 4 * LOOK_EVERY_S  # if the supervisor did not check for so long, it was itself stopped
_USAGE, _REFUSED = 2, 4  # exit codes after which a restart would end in the same way
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class _Child:
    """A worker process and the supervisor's end of its pipe."""

    def __init__(self, argv: Sequence[str], died_young: int) -> None:
        theirs, ours = os.pipe()
        env = {**os.environ, PARENT_FD: str(theirs)}
        self.process = subprocess.Popen(argv, env=env, pass_fds=[theirs])
        os.close(theirs)
        self._pipe = ours
        self.born_s = time.monotonic()
        self.died_young = died_young
        self.hung = False
        self.waits = False  # True once it is reported that the child waits for its store

    def ask(self, what: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, what)

    def kill(self) -> None:
        """Kill the child's process without Popen, which would reap it and lose its status for `reap`."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)

    def reap(self) -> WorkerDeath | None:
        """Reap the child's process if it has ended, and return its exit code and peak memory; None while it lives."""
        pid, status, used = os.wait4(self.process.pid, os.WNOHANG)
        if not pid:
            return None
        code = self.process.returncode = os.waitstatus_to_exitcode(status)
        return WorkerDeath(code, used.ru_maxrss * _MAXRSS_UNIT, self.hung)

    def close(self) -> None:
        os.close(self._pipe)


class Supervisor:
    """Keeps `processes` children of `argv` running until they are done, or until a signal stops them."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        processes: int,
        state_dir: Path | None,
        lease_s: float,
        grace_s: float,
        hung_after_s: float = HUNG_AFTER_S,
        end_after_s: float = END_AFTER_S,
        lock_file: Path | None = None,
    ) -> None:
        self._argv, self._state_dir, self._lock_file = list(argv), state_dir, lock_file
        self._hung_after_s, self._grace_s, self._end_after_s = max(hung_after_s, lease_s), grace_s, end_after_s
        self._end_at_s = float("inf")  # time.monotonic() at which children that have not ended are killed
        self._children: list[_Child] = []
        # For each missing child: when to start it, and how often in a row it died young.
        self._starts: list[tuple[float, int]] = [(0.0, 0)] * processes
        self._asked = 0
        self._code = 0
        self._looked_s = self._awake_s = time.monotonic()

    def run(self) -> int:
        """Run the children until all have ended; return the exit code: 0 if all ended well, else the first bad one."""
        wake, wakened = os.pipe()
        for end in (wake, wakened):
            os.set_blocking(end, False)
        old = {number: signal.signal(number, self._ask) for number in (signal.SIGTERM, signal.SIGINT)}
        old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        old_fd = signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
        try:
            while self._children or self._starts:
                self._start_due()
                select.select([wake], [], [], self._pause_s())
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 512)
                self._bury()
                self._kill_hung()
                self._kill_late()
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in old.items():
                signal.signal(number, handler)
            os.close(wake)
            os.close(wakened)
        return self._code

    def _pause_s(self) -> float:
        next_s = min((at_s for at_s, _ in self._starts), default=float("inf"))
        return max(0.0, min(LOOK_EVERY_S, next_s - time.monotonic()))

    def _ask(self, *_: object) -> None:
        """Handle SIGTERM or SIGINT: ask the children to drain; the second time, to release at once."""
        self._asked += 1
        self._starts.clear()
        grace_s = self._grace_s if self._asked == 1 else 0.0
        self._end_at_s = min(self._end_at_s, time.monotonic() + grace_s + self._end_after_s)
        for child in self._children:
            child.ask(DRAIN if self._asked == 1 else RELEASE)

    def _start_due(self) -> None:
        now = time.monotonic()
        while due := [start for start in self._starts if start[0] <= now]:  # a signal may clear the list at any time
            with contextlib.suppress(ValueError):
                self._starts.remove(due[0])
            child = _Child(self._argv, due[0][1])
            self._children.append(child)
            if self._asked:  # a signal arrived meanwhile
                child.ask(DRAIN)

    def _bury(self) -> None:
        for child in [*self._children]:
            death = child.reap()
            if death is not None:
                self._children.remove(child)
                child.close()
                at_work = self._noted(child, death)  # recorded before the child's replacement recovers its messages
                self._replace(child, death.code, at_work)

    def _noted(self, child: _Child, death: WorkerDeath) -> bool:
        """Record how a child died, for the worker that recovers its messages; return True if the child died at work."""
        if self._state_dir is None:
            return False
        try:
            return note_death(self._state_dir, child.process.pid, child.born_s, death)
        except OSError as error:
            _say(f"how worker process {child.process.pid} died cannot be noted: {error}")
            return False

    def _replace(self, child: _Child, code: int, at_work: bool) -> None:
        """Schedule a new child, unless the ended one is done. A handler may end its process with any code, even 0, so a
        child is done only if it left no messages (`at_work`)."""
        if (code == 0 and not at_work) or self._asked:
            self._code = self._code or max(code, 0)
            return
        _say(f"worker process {child.process.pid} {_death(code)}")
        if code in (_USAGE, _REFUSED) and not at_work:
            self._code = code
            self._ask()
            return
        now = time.monotonic()
        young = child.died_young + 1 if now - child.born_s < YOUNG_S else 0
        at_once = young <= (AT_WORK_MAX if at_work else code == -signal.SIGKILL)
        self._starts.append((now + (0.0 if at_once else RESTART_S[min(young, len(RESTART_S) - 1)]), young))

    def _kill_hung(self) -> None:
        self._note_pause()
        if self._state_dir is None:
            return
        beats = {b.pid: b for b in all_beats(self._state_dir)}
        for child in self._children:
            beat = beats.get(child.process.pid)
            if beat is None or beat.pulse_s < child.born_s:  # the beat is of an earlier process with this pid
                continue
            if (why := self._hung(beat)) is not None:
                _say(f"worker process {child.process.pid} {why}; it is killed and replaced")
                child.hung = True
                child.kill()
            else:
                self._tell_waiting(child, self._silent_s(beat.store_s))

    def _note_pause(self) -> None:
        """Note a pause of this process: its children may have been paused, too, so their silence counts from now."""
        now = time.monotonic()
        if now - self._looked_s > PAUSED_S:
            self._awake_s = now
        self._looked_s = now

    def _silent_s(self, beat_s: float) -> float:
        return time.monotonic() - max(beat_s, self._awake_s)

    def _hung(self, beats: Beats) -> str | None:
        if (silent_s := self._silent_s(beats.pulse_s)) > self._hung_after_s:
            return f"has shown no sign of life for {silent_s:.0f} s"
        if self._lock_file is not None and silent_s > STOPPED_S and stopped_with(beats.pid, self._lock_file):
            return "is stopped, and holds the lock of the store that all others wait for"
        blocked_s = self._silent_s(beats.loop_s)
        if self._silent_s(beats.store_s) > self._hung_after_s:  # `busy_until_s` is older than the outage of its store
            return None
        if blocked_s > self._hung_after_s and time.monotonic() > beats.busy_until_s:
            return f"has had its event loop blocked for {blocked_s:.0f} s, past every running timeout"
        return None

    def _tell_waiting(self, child: _Child, waiting_s: float) -> None:
        """Report, once per wait, a living child that waits for its store; a restart would not help."""
        waits = waiting_s > self._hung_after_s
        if waits and not child.waits:
            _say(f"worker process {child.process.pid} lives, and has waited {waiting_s:.0f} s for its store")
        child.waits = waits

    def _kill_late(self) -> None:
        """Kill children that have not ended in time, perhaps because of a thread that a handler left running, whose
        message was released."""
        if time.monotonic() < self._end_at_s:
            return
        for child in self._children:
            _say(f"worker process {child.process.pid} has not ended in time; it is killed")
            child.kill()


def supervise(
    argv: Sequence[str],
    *,
    processes: int,
    state_dir: Path | None,
    lease_s: float,
    grace_s: float,
    hung_after_s: float = HUNG_AFTER_S,
    end_after_s: float = END_AFTER_S,
    lock_file: Path | None = None,
) -> int:
    """Run `argv` in `processes` processes until they are done, or until SIGTERM or SIGINT; return the exit code.

    A child without a sign of life for `hung_after_s`, or for a lease if that is longer, is killed and replaced. One
    that has not ended `end_after_s` after its grace, or after the second signal, is killed. One that a signal stopped
    while it has a lock of `lock_file` is killed at once.
    """
    return Supervisor(
        argv,
        processes=processes,
        state_dir=state_dir,
        lease_s=lease_s,
        grace_s=grace_s,
        hung_after_s=hung_after_s,
        end_after_s=end_after_s,
        lock_file=lock_file,
    ).run()


@functools.cache
def parent_fd() -> int | None:
    """Return the pipe to the supervisor of this process, if any, and remove it from the environment, as it is not meant
    for programs that a handler starts."""
    text = os.environ.pop(PARENT_FD, None)
    return None if text is None else int(text)


def follow_parent(worker: Worker, fd: int) -> None:
    """Follow the parent's requests in the pipe `fd`. When the parent is gone, drain, and end soon after the grace."""

    def follow() -> None:
        with contextlib.suppress(RuntimeError):  # the worker and its event loop have ended
            while asked := os.read(fd, 1):
                worker.drain() if asked == DRAIN else worker.release_now()
            worker.drain()
        time.sleep(worker.grace_s + END_AFTER_S)
        os._exit(1)

    threading.Thread(target=follow, name="redrive-parent", daemon=True).start()


def _death(code: int) -> str:
    if code < 0:
        return f"was killed by {signal_name(-code)}"
    return f"ended with exit code {code}"


def _say(text: str) -> None:
    print(many_lines(redact(f"redrive: {text}")), file=sys.stderr, flush=True)
