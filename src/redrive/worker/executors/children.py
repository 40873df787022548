"""The child processes of a worker: start them, receive their frames, kill those past their time, and report the dead
ones."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial

from ..execution import Execution
from .child_process import Child, Death
from .event_thread import EventThread
from .ipc import Hello, ToWorker, pack
from .memory import available_bytes, fits, resident_of
from .pool import ChildPool

UNWIND_S = 0.4  # seconds in which a handler has to stop before its process is killed
END_S = 2.0  # seconds in which an idle child has to end before it is killed
WHERE_S = 0.05  # seconds in which a child has to write its stack before it is killed
LOOK_S = 0.5  # the most seconds between two checks of a busy child
REAP_S = 0.01  # seconds between two checks of a dying child, if the system does not report its death
BEGIN_S = 60.0  # seconds in which a child has to import the app before it is killed
PAUSE_S = (0.5, 30.0)  # the first and the longest pause, in seconds, after a child that could not start
FAILURES_MAX = 3  # children in a row that could not start, after which suspects run in the worker
IDLE_S = 5.0  # seconds for which a child stays idle after the suspects for which it was started
_NEVER_S = float("inf")


class Children:
    """The children of one worker, in a pool for each memory limit. Used by the event thread only, except `can_begin`.

    `on_frame(child, frame)` handles a frame of a child, `on_death(child, death, stack)` its death. `put_off` releases
    executions for which no child can start. `overtime_s` is how long one may exceed its timeout.
    """

    def __init__(
        self,
        thread: EventThread,
        hello: Callable[[int | None], Hello],
        *,
        limit: int,
        suspects_max: int,
        overtime_s: float,
        on_frame: Callable[[Child, ToWorker], None],
        on_death: Callable[[Child, Death, str], None],
        put_off: Callable[[Iterable[Execution], ChildPool], None],
        notice: Callable[[str, str], None],
    ) -> None:
        self._thread, self._hello, self._limit, self._suspects_max = thread, hello, limit, suspects_max
        self._overtime_s, self._notice = overtime_s, notice
        self._on_frame, self._on_death, self._put_off = on_frame, on_death, put_off
        self._child_bytes = resident_of("self") or 0  # the most memory that one child has used, in bytes
        self._room = 0.0, True  # when it was checked, and True if a child had room
        self._starting_max = max(2, os.cpu_count() or 1)
        self._pools: dict[int | None, ChildPool] = {}
        self._look_at_s = _NEVER_S

    def pools(self) -> Iterable[ChildPool]:
        return self._pools.values()

    def pool_of(self, memory: int | None) -> ChildPool:
        """Return the pool of the children with that memory limit."""
        pool = self._pools.get(memory)
        if pool is None:
            pool = self._pools[memory] = ChildPool(memory, self._limit, self._suspects_max)
        return pool

    def can_begin(self) -> bool:
        """Return True if a child for suspects exists or can be started. Thread-safe."""
        pool = self._pools.get(None)
        if pool is not None and pool.failures >= FAILURES_MAX:
            return False
        return (pool is not None and bool(pool.children)) or self._has_room_for_one()

    def _has_room_for_one(self) -> bool:
        """Return True if there is memory for one more child; checked at most twice a second."""
        looked_s, answer = self._room
        now = time.monotonic()
        if now - looked_s > LOOK_S:
            left = available_bytes()
            answer = left is None or self._child_bytes <= left
            self._room = now, answer
        return answer

    def grow(self, pool: ChildPool) -> None:
        """Start a child for each waiting isolated execution, at most as many at once as there are processors."""
        while pool.wants_isolated() and pool.starting < self._starting_max and not self._thread.closing:
            if not self._begin(pool, suspects=False):
                return

    def grow_shared(self, pool: ChildPool) -> None:
        """Start the children that suspects need, if there is memory, since a lack of it may have killed the worker. The
        first child is started in any case."""
        while pool.wants_shared() and pool.starting < self._starting_max and not self._thread.closing:
            if time.monotonic() < pool.not_before_s or (pool.shares() and not self._has_memory(pool)):
                return
            if not self._begin(pool, suspects=True):
                return

    def _has_memory(self, pool: ChildPool) -> bool:
        """Return True if there is enough memory for one more child and for those of the pool that are starting."""
        return fits(pool.starting + 1, self._child_bytes, available_bytes())

    def _begin(self, pool: ChildPool, *, suspects: bool) -> bool:
        try:
            child = Child(pool.memory, suspects=suspects)
        except OSError as error:
            self._failed(pool, f"a child process cannot be started: {error}")
            return False
        self.end_by(child, time.monotonic() + BEGIN_S)
        pool.children.append(child)
        if child.pid_fd is not None:
            self._thread.watch(child.pid_fd, partial(self._bury, child))
        self.send(child, pack(self._hello(pool.memory)))
        return True

    def begun(self, child: Child, tasks: Iterable[str]) -> None:
        """Note that a child has imported the app, which has these tasks there."""
        child.ready, child.tasks, child.kill_at_s = True, frozenset(tasks), _NEVER_S
        child.sample()
        self._child_bytes = max(self._child_bytes, resident_of(child.process.pid) or 0)
        pool = self._pools[child.memory]
        pool.failures, pool.not_before_s = 0, 0.0

    def _failed(self, pool: ChildPool, text: str) -> None:
        """Report that a child could not start, and delay the pool's next start; if none is starting, release what waits
        for it."""
        pause_s = min(PAUSE_S[0] * 2**pool.failures, PAUSE_S[1])
        pool.failures += 1
        pool.not_before_s = time.monotonic() + pause_s
        self._notice("child_failed", f"{text}; the next is started in {pause_s:g} s")
        if pool.starting == 0:
            self._put_off(pool.all_waiting(), pool)

    def send(self, child: Child, frame: bytes) -> None:
        """Send a packed frame to the child, now or when the socket accepts it."""
        if not child.dead:
            child.send(frame)
            self._watch(child)

    def sent(self, execution: Execution) -> None:
        """Schedule the first check of an execution that a child has received."""
        self.look_by(min(execution.started_s + LOOK_S, execution.deadline_s + self._overtime_s))

    def _watch(self, child: Child) -> None:
        if not child.over:
            self._thread.watch(child.channel, partial(self._receive, child), write=child.waits_to_send)

    def _receive(self, child: Child) -> None:
        if child.dead:  # the child was reaped in the same round
            return
        if child.waits_to_send:
            child.send_more()
            self._watch(child)
        for frame in child.receive():
            self._on_frame(child, frame)
        if child.over:
            self._thread.unwatch(child.channel)
            self.end_by(child, min(child.kill_at_s, time.monotonic() + LOOK_S))  # useless without its channel
            self._bury(child)

    def retire(self, child: Child) -> None:
        """Let a child end by itself."""
        child.retire()
        self.end_by(child, time.monotonic() + END_S)

    def keep_idle(self, child: Child, *, warm: bool) -> None:
        """Keep a child idle for the next execution: for IDLE_S, or without an end if it is `warm`."""
        self._pools[child.memory].idle.append(child)
        if not warm:
            child.leave_at_s = time.monotonic() + IDLE_S
            self.look_by(child.leave_at_s)

    def end_all(self) -> list[Execution]:
        """Retire idle children, and kill the others. Returns the executions that still wait for a child."""
        waiting: list[Execution] = []
        for pool in self._pools.values():
            pool.idle.clear()
            waiting += pool.all_waiting()
            for child in pool.children:
                if not child.executions and child.ready:
                    self.retire(child)
                else:
                    child.kill("drain")
                    self._look_at_s = 0.0
        return waiting

    def end_by(self, child: Child, at_s: float) -> None:
        """Kill the child at `at_s`, by time.monotonic(), unless it has ended or become idle before."""
        child.kill_at_s = at_s
        self.look_by(at_s)

    def _bury(self, child: Child) -> None:
        """If the child is dead, report its executions, and start another for executions that wait in its pool."""
        death = None if child.dead else child.reap()
        if death is None:
            return
        child.dead = True
        for frame in child.receive():  # frames that the child sent before it died
            self._on_frame(child, frame)
        pool, stack = self._pools[child.memory], child.stack() if child.executions else ""
        pool.forget(child)
        self._thread.unwatch(child.channel)
        self._thread.unwatch(child.pid_fd)
        child.close()
        if not child.ready and not self._thread.closing:
            self._failed(pool, _why_not(child, death))
        self._on_death(child, death, stack)
        child.executions = {}
        self.grow(pool)

    def look_by(self, at_s: float) -> None:
        """Let `look` check the children at `at_s`, by time.monotonic(), at the latest."""
        self._look_at_s = min(self._look_at_s, at_s)

    def look(self, now: float) -> float | None:
        """Kill children past their time. Returns the seconds for which the thread may sleep; None if it closes and all
        have ended."""
        if self._thread.closing and not any(pool.children for pool in self._pools.values()):
            return None
        if now >= self._look_at_s:
            self._look_at_s = _NEVER_S
            looked = [self._look_at(child, now) for pool in self._pools.values() for child in [*pool.children]]
            waits = [one.until_s for p in self._pools.values() if not p.starting for one in p.suspects]
            self._look_at_s = min([self._look_at_s, *looked, *waits])
        return max(0.0, self._look_at_s - now)

    def _look_at(self, child: Child, now: float) -> float:
        """Check one child: bury, retire or kill it if due. Returns when to check it again."""
        if child.over or child.pid_fd is None:
            self._bury(child)
        if child.dead:
            return _NEVER_S
        if now >= child.leave_at_s and child in self._pools[child.memory].idle:
            self._pools[child.memory].idle.remove(child)
            self.retire(child)
        at_s = child.kill_at_s
        if child.executions:
            child.sample()
            self._child_bytes = max(self._child_bytes, child.peak_bytes or 0)
            at_s = child.until_s(self._overtime_s)
        if now >= at_s:
            overdue = frozenset(n for n in child.sent if now >= child.executions[n].deadline_s)
            why = _why(child, overdue)
            if why == "timeout" and not child.asked_where and child.ready and not child.shared:
                child.ask_where()
                self.end_by(child, now + WHERE_S)
                return child.kill_at_s
            child.overdue = overdue if why == "timeout" else frozenset()
            child.kill(why)
            self.end_by(child, _NEVER_S)
        if child.killed is not None or child.over:
            return now + REAP_S
        return min(at_s, now + LOOK_S) if child.executions or child.pid_fd is None else min(at_s, child.leave_at_s)


def _why(child: Child, overdue: frozenset[int]) -> str:
    """Return why a child past its time is killed, given the numbers of its overdue executions."""
    causes = {execution.cause for execution in child.executions.values()}
    if not causes or "drain" in causes:
        return "drain"
    if causes == {"lease"}:
        return "lease"
    if "cancel" in causes:
        return "cancel"
    if overdue:
        return "timeout"
    return "channel" if child.over else "lease"


def _why_not(child: Child, death: Death) -> str:
    if child.broken is not None:
        return f"a child process cannot begin: {child.broken}"
    if child.killed is not None:
        return f"a child process had not imported the app after {BEGIN_S:g} s"
    return f"{how(death)} while it imported the app"


def how(death: Death) -> str:
    """Return a clause that says how a child ended, for the beginning of a sentence."""
    if death.signal:
        return f"a child process was killed by {death.signal}"
    return f"a child process ended with exit code {death.code}"
