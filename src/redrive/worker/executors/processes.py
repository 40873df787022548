"""Runs handlers in warm child processes, one message each at a time, so that one that kills its process, fills its
memory or never returns ends its own run and nothing else. Suspects share a child (pool.py).

One thread has all the children: it starts them, hands out runs, takes what comes back in batches, and kills what is
past its time, also while the event loop is blocked.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ...blobs import whole_body
from ...decide import Signals
from ...errors import BlobsUnavailable, LeaseLost, UnknownArguments, Unreadable
from ...fault import Fault
from ...message import BLOB, RetryAt
from ...registry import Registry
from ...run_context import Context, Extras
from ..admission import judge, unread
from ..bodies import READERS, Fetched, take
from ..crash.deaths import crash, faults_of
from ..crash.suspects import patience_s, put_off
from ..execution import Run
from ..settlement import fault_of
from .app_import import Origin
from .child_process import Death, Offspring
from .ipc import (
    Broken,
    Ended,
    Hello,
    Keep,
    Kept,
    Ready,
    Stop,
    ToWorker,
    Work,
)
from .memory import available_bytes, fits, processors, resident_of
from .pool import Pool, Waiting

if TYPE_CHECKING:
    from ..crash.ledger import Slots

UNWIND_S = 0.4  # what a handler that was told to end may take before its process is killed
END_S = 2.0  # what an idle child may take to end
WHERE_S = 0.05  # what one that is to be killed has to write down where it is
LOOK_S = 0.5  # how often a busy child is looked at, at least
REAP_S = 0.01  # and one that is dying, where the system does not say that it is dead
BEGIN_S = 60.0  # what a child may take to import the app
PAUSE_S = (0.5, 30.0)  # after a child that could not begin: the first and the longest
FAILURES_MAX = 3  # of children in a row that could not begin; then suspects run in the worker after all
SUSPECTS_EACH = 2  # children with suspects for each processor
IDLE_S = 5.0  # how long a child outlives the suspects that it was started for
_NEVER_S = float("inf")


def suspects_max() -> int:
    """How many children have suspects at most, unless another bound is set."""
    return SUSPECTS_EACH * processors()


class Recycling(Struct, frozen=True):
    """When a child is replaced: after so many messages, or once it had that much resident memory."""

    after: int | None = None
    memory: int | None = None


class _Told(Context, eq=False):
    """The worker's end of the Context of a run in a child: what the run is told goes there too."""

    _tell: Any = None

    def stop(self, why: str) -> None:
        """As of the base class."""
        Context.stop(self, why)
        self._tell(why)


class ProcessExecutor:
    """At most `limit` children for each memory limit that tasks name, `limit` being how many runs there are at once;
    and `suspect_processes` that have suspects, fewer where there is no memory for them.
    `finish` and `start_other` as for TaskExecutor, from this executor's own thread;
    `notice(name, text)` says what is not about one message."""

    def __init__(
        self,
        app: Registry,
        origin: Origin,
        limit: int,
        finish: Callable[[Sequence[Run]], None],
        start_other: Callable[[Run], None],
        slots: Slots | None,
        *,
        worker: str,
        grace_s: float,
        recycling: Recycling,
        notice: Callable[[str, str], None],
        suspect_processes: int | None = None,
    ) -> None:
        self._app, self._origin, self._limit, self._slots = app, origin, limit, slots
        self._suspects_max = suspect_processes or suspects_max()
        self._child_bytes = resident_of("self") or 0  # the most that one had
        self._fits = 0.0, True  # when that was looked up, and the answer
        self._finish, self._start_other, self._notice = finish, start_other, notice
        self._worker, self._overtime_s, self._recycling = worker, min(UNWIND_S, grace_s), recycling
        self._starting_max = max(2, os.cpu_count() or 1)
        # The memory limits of isolated tasks, whose children stay; those of suspects do not.
        self._kept_warm = {task.memory_bytes for task in app.tasks.values() if task.place == "process"}
        self._missing: set[str] = set()  # tasks that the app has here, and not where a child imported it
        self._pools: dict[int | None, Pool] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._finished: list[Run] = []
        self._selector = selectors.DefaultSelector()
        self._wake, self._waken = socket.socketpair()
        self._wake.setblocking(False)
        self._waken.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, self._wakened)
        self._asleep = self._closing = False
        self._look_at_s = _NEVER_S
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._helpers: ThreadPoolExecutor | None = None

    # -- from any thread

    def start(self, run: Run) -> None:
        """Run it in a child, as soon as there is one."""
        self._call(partial(self._place, run))

    def takes(self, task: str) -> bool:
        """Whether suspects of that task can run in a child: none was found to lack the task, and one can begin."""
        pool = self._pools.get(None)
        if task in self._missing or (pool is not None and pool.failures >= FAILURES_MAX):
            return False
        return (pool is not None and bool(pool.children)) or self._fits_one()

    def _fits_one(self) -> bool:
        """Whether there is memory for a child at all. Not looked up for each of many suspects."""
        looked_s, answer = self._fits
        now = time.monotonic()
        if now - looked_s > LOOK_S:
            left = available_bytes()
            answer = left is None or self._child_bytes <= left
            self._fits = now, answer
        return answer

    def close(self) -> None:
        """End every child: the idle ones by themselves, the others at once. Returns when they are gone."""
        with self._lock:
            thread, self._closing = self._thread, True
        if thread is not None:
            self._call(self._end_all)
            thread.join()
        if self._helpers is not None:
            self._helpers.shutdown(wait=False, cancel_futures=True)
        self._selector.close()
        self._wake.close()
        self._waken.close()

    def _call(self, call: Callable[[], None]) -> None:
        """Let the thread do that."""
        self._calls.append(call)
        if self._thread is None:
            self._begin()
        if self._asleep:
            with contextlib.suppress(BlockingIOError, OSError):
                self._waken.send(b"\0")

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._work, name="redrive-processes", daemon=True)
                self._thread.start()

    # -- the thread

    def _work(self) -> None:
        while not self._closing or any(pool.children for pool in self._pools.values()):
            try:
                self._round()
            except Exception:  # a bug here shall cost the run it met its time, and no other
                traceback.print_exc()

    def _round(self) -> None:
        self._do_calls()
        self._seat_all()
        pause_s = self._look_after(time.monotonic())
        self._hand_over()
        self._asleep = True
        events = self._selector.select(0.0 if self._calls else pause_s)
        self._asleep = False
        for key, _ in events:
            key.data()

    def _wakened(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)

    def _do_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _hand_over(self) -> None:
        """What ended since the last time, together."""
        if self._finished:
            finished, self._finished = self._finished, []
            self._finish(finished)

    # -- runs

    def _place(self, run: Run) -> None:
        """Give it to an idle child, or let it wait for one."""
        pool = self._pool_of(run.task.memory_bytes)
        now = time.monotonic()
        if run.apart and (now >= pool.not_before_s or pool.shares()):
            pool.suspects.append(Waiting(run, now, now + patience_s(run.delivery.message)))  # `_seat_all` comes next
        elif pool.idle:
            self._assign(pool.idle.pop(), run)  # the one used last: it is the warmest
        elif now < pool.not_before_s:
            self._put_off(run, pool)
        else:
            pool.isolated.append(run)
            self._grow(pool)

    def _pool_of(self, memory: int | None) -> Pool:
        pool = self._pools.get(memory)
        if pool is None:
            pool = self._pools[memory] = Pool(memory, self._limit, self._suspects_max)
        return pool

    def _seat_all(self) -> None:
        """Give children to suspects that wait: first to those that may run with most others."""
        for pool in self._pools.values():
            if pool.suspects:
                self._seat(pool, any_size=False)
                self._grow_shared(pool)
                if not pool.starting:
                    self._seat(pool, any_size=True)
                    self._tire(pool, time.monotonic())

    def _seat(self, pool: Pool, *, any_size: bool) -> None:
        waiting, pool.suspects = sorted(pool.suspects, key=lambda one: -one.run.seats), []
        for one in waiting:
            child = pool.table_for(one.run, any_size=any_size)
            if child is None:
                pool.suspects.append(one)
            else:
                self._assign(child, one.run)

    def _tire(self, pool: Pool, now: float) -> None:
        """Put off those that have kept others from their places in the worker for so long, free of charge."""
        late = [one for one in pool.suspects if now >= one.until_s]
        pool.suspects = [one for one in pool.suspects if now < one.until_s]
        for one in late:
            one.run.verdict = put_off(self._app.store.now_ms(), now - one.since_s)
            self._done(one.run)
        self._look_at_s = min([self._look_at_s, *(one.until_s for one in pool.suspects)])

    def _assign(self, child: Offspring, run: Run) -> None:
        number = child.seat(run)
        try:
            make = partial(_Told, _tell=partial(self._told, child, number))
            run.begin(self._slots, make)
        except LeaseLost as error:
            run.fault = fault_of(run, error)
            self._done(run)
            self._vacate(child, number)
            return
        if run.delivery.message.content == BLOB:
            self._help(self._fetch, child, number, run)
        else:
            self._send(child, number, None)

    def _send(self, child: Offspring, number: int, body: bytes | None) -> None:
        run = child.runs[number]
        message = run.delivery.message
        if message.task not in child.tasks:
            self._missing.add(message.task)
            text = f"the app that a child process imported has no task {message.task!r}"
            self._put_off(run, self._pools[child.memory], text)
            self._vacate(child, number)
            return
        child.sent.add(number)
        self._look_at_s = min(self._look_at_s, run.started_s + LOOK_S, self._ends_s(run))
        now_ms = self._app.store.now_ms()
        child.send(Work(number, message, run.deadline_s, now_ms, body, run.claim, together=run.seats > 1))
        self._watch_sending(child)
        if run.context is not None and run.context._stop is not None:  # told between its beginning and now
            self._stop(child, number, run.context._stop)

    def _ends_s(self, run: Run) -> float:
        """When its child is killed, should it not have ended."""
        return run.deadline_s + self._overtime_s

    def _watch_sending(self, child: Offspring) -> None:
        """Also go on writing, while there is more than the socket took."""
        if child.over:
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.waits_to_send else 0)
        if self._selector.get_key(child.channel).events != mask:
            self._selector.modify(child.channel, mask, partial(self._on_channel, child))

    def _told(self, child: Offspring, number: int, why: str) -> None:
        """The run is to end. From any thread."""
        self._call(partial(self._stop, child, number, why))

    def _stop(self, child: Offspring, number: int, why: str) -> None:
        if number not in child.sent:
            return
        child.send(Stop(number, why))
        self._watch_sending(child)
        if why == "drain" or all(run.cause == "lease" for run in child.runs.values()):  # not one of many
            self._end_by(child, min(child.kill_at_s, time.monotonic() + UNWIND_S))

    def _done(self, run: Run) -> None:
        """It has ended; the next one in its place."""
        run.finished_s = time.monotonic()
        self._finished.append(run)
        following = run.gate.leave()
        if following is None:
            return
        if following.place == "process":
            self._calls.append(partial(self._place, following))
        else:
            self._start_other(following)

    def _put_off(self, run: Run, pool: Pool, text: str = "") -> None:
        """There is no child to run it in: back to its queue for a while, which costs it nothing."""
        wait_ms = int(max(PAUSE_S[0], pool.not_before_s - time.monotonic()) * 1000)
        run.verdict = RetryAt(self._app.store.now_ms() + wait_ms, "no process", counts=False, held=True)
        if text:
            self._notice("child_failed", text)
        self._done(run)

    # -- what comes from children

    def _on_channel(self, child: Offspring) -> None:
        if child.dead:  # its death was seen in the same round
            return
        if child.waits_to_send:
            child.send_more()
            self._watch_sending(child)
        for frame in child.receive():
            self._take(child, frame)
        if child.over:
            self._selector.unregister(child.channel)
            self._end_by(child, min(child.kill_at_s, time.monotonic() + LOOK_S))  # without its channel it is of no use
            self._bury(child)

    def _take(self, child: Offspring, frame: ToWorker) -> None:
        if isinstance(frame, Ended):
            if frame.number in child.runs:
                self._ended(child, child.runs[frame.number], frame)
        elif isinstance(frame, Keep):
            run = child.runs.get(frame.run or min(child.runs, default=0))
            if run is not None:
                self._help(self._keep, child, run, frame)
        elif isinstance(frame, Ready):
            child.ready, child.tasks, child.kill_at_s = True, frozenset(frame.tasks), _NEVER_S
            child.sample()
            self._child_bytes = max(self._child_bytes, resident_of(child.process.pid) or 0)
            pool = self._pools[child.memory]
            pool.failures, pool.not_before_s = 0, 0.0
            self._free(child)
            self._grow(pool)
        elif isinstance(frame, Broken):
            child.broken = frame.text
            self._end_by(child, time.monotonic() + END_S)  # a thread of the app may keep it from ending by itself

    def _ended(self, child: Offspring, run: Run, frame: Ended) -> None:
        child.peak_bytes = frame.peak_bytes or child.peak_bytes
        alone = run.seats == 1
        if frame.memory and alone:
            stack = "" if frame.fault is None else frame.fault.traceback
            run.fault = crash(run, Death(peak_bytes=child.peak_bytes), "memory", self._worker, stack=stack)
        else:
            run.fault, run.result, run.complaint = frame.fault, frame.result, frame.complaint
        if run.context is not None and (frame.follow_ups or frame.degraded is not None or frame.completed):
            extras = Extras(list(frame.follow_ups), degraded=frame.degraded, completed=frame.completed)
            run.context._extras = extras
        if run.claim is not None:
            run.claim.committed = frame.completed
        if frame.unreadable is not None:
            error = (UnknownArguments if frame.unknown else Unreadable)(frame.unreadable)
            judge(run, unread(error, run), self._app.store.now_ms())
        child.ran += 1
        child.used_up = child.used_up or (frame.memory and alone) or self._has_done_its_part(child)
        self._done(run)
        self._vacate(child, frame.number)

    def _has_done_its_part(self, child: Offspring) -> bool:
        after, memory = self._recycling.after, self._recycling.memory
        return (after is not None and child.ran >= after) or (memory is not None and (child.peak_bytes or 0) >= memory)

    def _vacate(self, child: Offspring, number: int) -> None:
        """That run of it is over."""
        child.leave(number)
        if not child.runs:
            child.kill_at_s = _NEVER_S
            if child.asked_where:  # and then it ended after all
                child.forget_where()
            self._free(child)

    def _free(self, child: Offspring) -> None:
        """It runs nothing."""
        pool = self._pools[child.memory]
        child.suspects = False
        if child.dead:
            return
        if self._closing or child.retired or child.used_up:
            self._retire(child)
            self._grow(pool)
        elif pool.isolated:
            self._assign(child, pool.isolated.popleft())
        else:
            pool.idle.append(child)
            if child.memory not in self._kept_warm:
                child.leave_at_s = time.monotonic() + IDLE_S
                self._look_at_s = min(self._look_at_s, child.leave_at_s)

    # -- children begin and end

    def _grow(self, pool: Pool) -> None:
        """Start as many children as isolated runs wait for one, though no more at once than there are processors."""
        while pool.wants_isolated() and pool.starting < self._starting_max and not self._closing:
            if not self._begin_child(pool, suspects=False):
                return

    def _grow_shared(self, pool: Pool) -> None:
        """Start the children that suspects want, as far as there is memory: what killed the worker may have been that
        there was none. One they have in any case."""
        while pool.wants_shared() and pool.starting < self._starting_max and not self._closing:
            if time.monotonic() < pool.not_before_s or (pool.shares() and not self._has_memory(pool)):
                return
            if not self._begin_child(pool, suspects=True):
                return

    def _has_memory(self, pool: Pool) -> bool:
        """Whether one more child, and those that are starting, would leave enough."""
        return fits(pool.starting + 1, self._child_bytes, available_bytes())

    def _begin_child(self, pool: Pool, *, suspects: bool) -> bool:
        try:
            child = Offspring(pool.memory, suspects=suspects)
        except OSError as error:
            self._failed(pool, f"a child process cannot be started: {error}")
            return False
        self._end_by(child, time.monotonic() + BEGIN_S)
        pool.children.append(child)
        self._selector.register(child.channel, selectors.EVENT_READ, partial(self._on_channel, child))
        if child.pid_fd is not None:
            self._selector.register(child.pid_fd, selectors.EVENT_READ, partial(self._bury, child))
        child.send(self._hello(pool.memory))
        self._watch_sending(child)
        return True

    def _hello(self, memory: int | None) -> Hello:
        o, app = self._origin, self._app
        tells_peak = self._recycling.memory is not None
        return Hello(
            o.spec, o.modules, o.main, o.main_module, tuple(sys.path), tuple(sys.argv), app.url, app.store.traits,
            memory, tells_peak,
        )  # fmt: skip

    def _retire(self, child: Offspring) -> None:
        child.retire()
        self._end_by(child, time.monotonic() + END_S)

    def _bury(self, child: Offspring) -> None:
        """If it is dead: what that means for its runs, and for those that wait for one like it."""
        death = None if child.dead else child.reap()
        if death is None:
            return
        child.dead = True
        for frame in child.receive():  # what it said before
            self._take(child, frame)
        pool, stack = self._pools[child.memory], child.stack() if child.runs else ""
        self._forget(child)
        if not child.ready and not self._closing:
            self._failed(pool, _why_not(child, death))
        ended = [*faults_of(child, death, stack, self._worker)]
        for run, fault in ended:
            run.fault = fault
            self._done(run)
        in_doubt = sum(fault.crash is not None for _, fault in ended)
        if in_doubt > 1:
            self._notice("child_died", f"{_how(death)} with {in_doubt} suspects; fewer of them will run together")
        child.runs = {}
        self._grow(pool)

    def _forget(self, child: Offspring) -> None:
        self._pools[child.memory].forget(child)
        for file in (child.channel, child.pid_fd):
            with contextlib.suppress(KeyError, ValueError):
                if file is not None:
                    self._selector.unregister(file)
        child.close()

    def _failed(self, pool: Pool, text: str) -> None:
        """A child could not begin: what waits for one goes back, and the next is tried later each time."""
        pause_s = min(PAUSE_S[0] * 2**pool.failures, PAUSE_S[1])
        pool.failures += 1
        pool.not_before_s = time.monotonic() + pause_s
        self._notice("child_failed", f"{text}; the next is started in {pause_s:g} s")
        if pool.starting == 0:
            for run in pool.all_waiting():
                self._put_off(run, pool)

    def _end_all(self) -> None:
        for pool in self._pools.values():
            pool.idle.clear()
            self._finished += pool.all_waiting()
            for child in pool.children:
                if not child.runs and child.ready:
                    self._retire(child)
                else:
                    child.kill("drain")
                    self._look_at_s = 0.0

    # -- time

    def _end_by(self, child: Offspring, at_s: float) -> None:
        """Kill it then, unless it has what it was to do behind it."""
        child.kill_at_s = at_s
        self._look_at_s = min(self._look_at_s, at_s)

    def _look_after(self, now: float) -> float | None:
        """Kill what is past its time; how long until the next look."""
        if now >= self._look_at_s:
            self._look_at_s = _NEVER_S
            looked = [self._look_at(child, now) for pool in self._pools.values() for child in [*pool.children]]
            waits = [one.until_s for p in self._pools.values() if not p.starting for one in p.suspects]
            self._look_at_s = min([self._look_at_s, *looked, *waits])
        return None if self._look_at_s == _NEVER_S else max(0.0, self._look_at_s - now)

    def _look_at(self, child: Offspring, now: float) -> float:
        """When to look at this one again."""
        if child.over or child.pid_fd is None:
            self._bury(child)
        if child.dead:
            return _NEVER_S
        if now >= child.leave_at_s and child in self._pools[child.memory].idle:
            self._pools[child.memory].idle.remove(child)
            self._retire(child)
        at_s = child.kill_at_s
        if child.runs:
            child.sample()
            self._child_bytes = max(self._child_bytes, child.peak_bytes or 0)
            at_s = self._until_s(child)
        if now >= at_s:
            overdue = frozenset(n for n in child.sent if now >= child.runs[n].deadline_s)
            why = _why(child, overdue)
            if why == "timeout" and not child.asked_where and child.ready and not child.shared:
                child.ask_where()
                self._end_by(child, now + WHERE_S)
                return child.kill_at_s
            child.overdue = overdue if why == "timeout" else frozenset()
            child.kill(why)
            self._end_by(child, _NEVER_S)
        if child.killed is not None or child.over:
            return now + REAP_S
        return min(at_s, now + LOOK_S) if child.runs or child.pid_fd is None else min(at_s, child.leave_at_s)

    def _until_s(self, child: Offspring) -> float:
        """When a child that runs something is killed: once one of its runs is past its time, or with the lease of the
        only one. Where there are more, a lease that is lost ends no other's run."""
        if not child.sent:
            return _NEVER_S
        runs = [child.runs[number] for number in child.sent]
        ends_s = child.kill_at_s if child.asked_where else min(map(self._ends_s, runs))
        lease_s = runs[0].until_s if len(child.runs) == 1 else _NEVER_S
        return min(child.kill_at_s, ends_s, lease_s)

    # -- what would hold the thread up

    def _help(self, what: Callable[..., None], *args: Any) -> None:
        if self._helpers is None:
            self._helpers = ThreadPoolExecutor(READERS, "redrive-helper")
        self._helpers.submit(what, *args)

    def _fetch(self, child: Offspring, number: int, run: Run) -> None:
        """Read its body from blob storage."""
        body, fetched, failed = None, Fetched(), None
        try:
            body = whole_body(self._app.store, run.delivery.message)
        except Unreadable as error:
            fetched = Fetched(signals=Signals(unreadable=str(error)))
        except BlobsUnavailable as error:
            fetched = Fetched(signals=Signals(unfetched=str(error)))
        except Exception as error:  # a failure of the run, as in a thread
            failed = fault_of(run, error)
        self._call(partial(self._fetched, child, number, body, fetched, failed))

    def _fetched(
        self, child: Offspring, number: int, body: bytes | None, fetched: Fetched, failed: Fault | None
    ) -> None:
        run = child.runs.get(number)
        if run is None:
            return
        try:
            if failed is None and take(run, fetched):
                self._send(child, number, body)
                return
            run.fault = failed or run.fault
        except LeaseLost as error:
            run.fault = fault_of(run, error)
        self._done(run)
        self._vacate(child, number)

    def _keep(self, child: Offspring, run: Run, frame: Keep) -> None:
        """Write its checkpoint."""
        try:
            kept = Kept(frame.number, self._app.store.checkpoint(run.delivery.receipt, frame.state))
        except Exception as error:  # the handler waits for its answer, whatever it is
            kept = Kept(frame.number, False, type(error).__name__, str(error))
        self._call(partial(self._answer, child, kept))

    def _answer(self, child: Offspring, kept: Kept) -> None:
        if not child.dead:
            child.send(kept)
            self._watch_sending(child)


def _why(child: Offspring, overdue: frozenset[int]) -> str:
    """Why a child whose time is over is killed."""
    causes = {run.cause for run in child.runs.values()}
    if not causes or "drain" in causes:
        return "drain"
    if causes == {"lease"}:
        return "lease"
    if overdue:
        return "timeout"
    return "channel" if child.over else "lease"


def _why_not(child: Offspring, death: Death) -> str:
    if child.broken is not None:
        return f"a child process cannot begin: {child.broken}"
    if child.killed is not None:
        return f"a child process had not imported the app after {BEGIN_S:g} s"
    return f"{_how(death)} while it imported the app"


def _how(death: Death) -> str:
    if death.signal:
        return f"a child process was killed by {death.signal}"
    return f"a child process ended with exit code {death.code}"
