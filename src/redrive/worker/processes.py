"""Runs handlers in warm child processes, one message each at a time, so that one that kills its process, fills its
memory or never returns ends its own run and nothing else.

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
from msgspec.structs import replace

from .._context import Context, Extras
from ..blobs import whole_body
from ..decide import Signals
from ..errors import BlobsUnavailable, LeaseLost, UnknownArguments, Unreadable
from ..fault import Crash, Fault, Kind, crash_fault
from ..message import BLOB, RetryAt
from .admission import judge, unread
from .bodies import READERS, Fetched, take
from .frames import Broken, Ended, Hello, Keep, Kept, Ready, Stop, ToWorker, Work
from .offspring import Death, Offspring
from .origin import Origin
from .outcomes import fault_of
from .run import Run

if TYPE_CHECKING:
    from ..app import App
    from .crashes import Slots

UNWIND_S = 0.4  # what a handler that was told to end may take before its process is killed
END_S = 2.0  # what an idle child may take to end
WHERE_S = 0.05  # what one that is to be killed has to write down where it is
LOOK_S = 0.5  # how often a busy child is looked at, at least
REAP_S = 0.01  # and one that is dying, where the system does not say that it is dead
BEGIN_S = 60.0  # what a child may take to import the app
PAUSE_S = (0.5, 30.0)  # after a child that could not begin: the first and the longest
_NEVER_S = float("inf")


class Recycling(Struct, frozen=True):
    """When a child is replaced: after so many messages, or once it had that much resident memory."""

    after: int | None = None
    memory: int | None = None


class _Pool(Struct):
    """The children of one memory limit."""

    idle: list[Offspring] = []
    waiting: deque[Run] = deque()
    starting: int = 0
    failures: int = 0  # in a row, of children that could not begin
    not_before_s: float = 0.0


class _Told(Context, eq=False):
    """The worker's end of the Context of a run in a child: what the run is told goes there too."""

    _tell: Any = None

    def stop(self, why: str) -> None:
        """As of the base class."""
        Context.stop(self, why)
        self._tell(why)


class ProcessExecutor:
    """At most `limit` children for each memory limit that tasks name, `limit` being how many runs there are at once.
    `finish` and `start_other` as for TaskExecutor, from this executor's own thread;
    `notice(name, text)` says what is not about one message."""

    def __init__(
        self,
        app: App,
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
    ) -> None:
        self._app, self._origin, self._limit, self._slots = app, origin, limit, slots
        self._finish, self._start_other, self._notice = finish, start_other, notice
        self._worker, self._overtime_s, self._recycling = worker, min(UNWIND_S, grace_s), recycling
        self._starting_max = max(2, os.cpu_count() or 1)
        self.missing: set[str] = set()  # tasks that the app has here, and not where a child imported it
        self._pools: dict[int | None, _Pool] = {}
        self._children: list[Offspring] = []
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
        while not self._closing or self._children:
            try:
                self._round()
            except Exception:  # a bug here shall cost the run it met its time, and no other
                traceback.print_exc()

    def _round(self) -> None:
        self._do_calls()
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
        pool = self._pools.setdefault(run.task.memory_bytes, _Pool([], deque()))
        if pool.idle:
            child = pool.idle.pop()  # the one used last: it is the warmest
            self._assign(child, run)
        elif time.monotonic() < pool.not_before_s:
            self._put_off(run, pool)
        else:
            pool.waiting.append(run)
            self._grow(run.task.memory_bytes, pool)

    def _assign(self, child: Offspring, run: Run) -> None:
        try:
            make = partial(_Told, _tell=partial(self._told, child, run))
            run.begin(self._slots, make)
        except LeaseLost as error:
            run.fault = fault_of(run, error)
            self._done(run)
            self._free(child)
            return
        child.run, child.sent = run, False
        child.number += 1
        if run.delivery.message.content == BLOB:
            self._help(self._fetch, child, run)
        else:
            self._send(child, run, None)

    def _send(self, child: Offspring, run: Run, body: bytes | None) -> None:
        message = run.delivery.message
        if message.task not in child.tasks:
            self.missing.add(message.task)
            text = f"the app that a child process imported has no task {message.task!r}"
            self._put_off(run, self._pools[child.memory], text)
            self._vacate(child)
            return
        child.sent = True
        self._end_by(child, run.deadline_s + self._overtime_s)
        self._look_at_s = min(self._look_at_s, run.started_s + LOOK_S)
        child.send(Work(child.number, message, run.deadline_s, self._app.store.now_ms(), body, run.claim))
        self._watch_sending(child)
        if run.context is not None and run.context._stop is not None:  # told between its beginning and now
            self._stop(child, run, run.context._stop)

    def _watch_sending(self, child: Offspring) -> None:
        """Also go on writing, while there is more than the socket took."""
        if child.over:
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.waits_to_send else 0)
        if self._selector.get_key(child.channel).events != mask:
            self._selector.modify(child.channel, mask, partial(self._on_channel, child))

    def _told(self, child: Offspring, run: Run, why: str) -> None:
        """The run is to end. From any thread."""
        self._call(partial(self._stop, child, run, why))

    def _stop(self, child: Offspring, run: Run, why: str) -> None:
        if child.run is not run or not child.sent:
            return
        child.send(Stop(child.number, why))
        self._watch_sending(child)
        if why in ("lease", "drain"):
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

    def _put_off(self, run: Run, pool: _Pool, text: str = "") -> None:
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
            if child.run is not None and frame.number == child.number:
                self._ended(child, child.run, frame)
        elif isinstance(frame, Keep):
            if child.run is not None:
                self._help(self._keep, child, child.run, frame)
        elif isinstance(frame, Ready):
            child.ready, child.tasks, child.kill_at_s = True, frozenset(frame.tasks), _NEVER_S
            child.sample()
            pool = self._pools[child.memory]
            pool.starting -= 1
            pool.failures, pool.not_before_s = 0, 0.0
            self._free(child)
            self._grow(child.memory, pool)
        elif isinstance(frame, Broken):
            child.broken = frame.text
            self._end_by(child, time.monotonic() + END_S)  # a thread of the app may keep it from ending by itself

    def _ended(self, child: Offspring, run: Run, frame: Ended) -> None:
        child.peak_bytes = frame.peak_bytes or child.peak_bytes
        if frame.memory:
            stack = "" if frame.fault is None else frame.fault.traceback
            run.fault = self._crash(run, Death(peak_bytes=child.peak_bytes), "memory", stack)
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
        self._done(run)
        if frame.memory or self._is_used_up(child):
            child.run = None
            self._retire(child)
            self._grow(child.memory, self._pools[child.memory])
        else:
            self._vacate(child)

    def _is_used_up(self, child: Offspring) -> bool:
        after, memory = self._recycling.after, self._recycling.memory
        return (after is not None and child.ran >= after) or (memory is not None and (child.peak_bytes or 0) >= memory)

    def _vacate(self, child: Offspring) -> None:
        child.run, child.kill_at_s = None, _NEVER_S
        if child.asked_where:  # and then it ended after all
            child.forget_where()
        self._free(child)

    def _free(self, child: Offspring) -> None:
        """It can take a run."""
        pool = self._pools[child.memory]
        if child.dead:
            return
        if self._closing or child.retired:
            self._retire(child)
        elif pool.waiting:
            self._assign(child, pool.waiting.popleft())
        else:
            pool.idle.append(child)

    # -- children begin and end

    def _grow(self, memory: int | None, pool: _Pool) -> None:
        """Start as many children as wait for one, though no more at once than there are processors."""
        while pool.starting < min(len(pool.waiting), self._starting_max) and not self._closing:
            if sum(child.memory == memory and not child.retired for child in self._children) >= self._limit:
                return
            try:
                child = Offspring(memory)
            except OSError as error:
                self._failed(pool, f"a child process cannot be started: {error}")
                return
            pool.starting += 1
            self._end_by(child, time.monotonic() + BEGIN_S)
            self._children.append(child)
            self._selector.register(child.channel, selectors.EVENT_READ, partial(self._on_channel, child))
            if child.pid_fd is not None:
                self._selector.register(child.pid_fd, selectors.EVENT_READ, partial(self._bury, child))
            child.send(self._hello(memory))
            self._watch_sending(child)

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
        """If it is dead: what that means for its run, and for those that wait for one like it."""
        death = None if child.dead else child.reap()
        if death is None:
            return
        child.dead = True
        for frame in child.receive():  # what it said before
            self._take(child, frame)
        stack = "" if child.run is None else child.stack()
        self._forget(child)
        pool = self._pools[child.memory]
        run, child.run = child.run, None
        if not child.ready:
            pool.starting -= 1
            if not self._closing:
                self._failed(pool, _why_not(child, death))
        elif run is not None:
            run.fault = self._fault_of_dead(child, run, death, stack)
            self._done(run)
        if child in pool.idle:
            pool.idle.remove(child)
        self._grow(child.memory, pool)

    def _forget(self, child: Offspring) -> None:
        self._children.remove(child)
        for file in (child.channel, child.pid_fd):
            with contextlib.suppress(KeyError, ValueError):
                if file is not None:
                    self._selector.unregister(file)
        child.close()

    def _fault_of_dead(self, child: Offspring, run: Run, death: Death, stack: str) -> Fault:
        if child.killed in ("lease", "drain"):
            return Fault(Kind.INTERRUPTED, "ProcessDied", f"the worker ended it: {child.killed}")
        if not child.sent:
            return Fault(Kind.INTERRUPTED, "ProcessDied", "its process died before it had the message")
        if child.killed == "timeout":
            run.cause = run.cause or "timeout"
            return self._crash(run, death, "timeout", stack)
        cause = "signal" if death.signal else "exit" if death.code is not None else ""
        return self._crash(run, death, cause, stack)

    def _crash(self, run: Run, death: Death, cause: str, stack: str) -> Fault:
        """The evidence; `stack` is where it was, as far as that is known."""
        id = run.delivery.message.id
        crash = Crash(
            cause=cause, signal=death.signal, code=death.code, peak_bytes=death.peak_bytes,
            run_s=time.monotonic() - run.started_s, alone=True, started=(id,), started_count=1,
            worker=self._worker, host=os.uname().nodename,
        )  # fmt: skip
        return replace(crash_fault(crash), traceback=stack)

    def _failed(self, pool: _Pool, text: str) -> None:
        """A child could not begin: what waits for one goes back, and the next is tried later each time."""
        pause_s = min(PAUSE_S[0] * 2**pool.failures, PAUSE_S[1])
        pool.failures += 1
        pool.not_before_s = time.monotonic() + pause_s
        self._notice("child_failed", f"{text}; the next is started in {pause_s:g} s")
        if pool.starting == 0:
            while pool.waiting:
                self._put_off(pool.waiting.popleft(), pool)

    def _end_all(self) -> None:
        for pool in self._pools.values():
            pool.idle.clear()
            while pool.waiting:
                self._finished.append(pool.waiting.popleft())
        for child in self._children:
            if child.run is None and child.ready:
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
            self._look_at_s = min((self._look_at(child, now) for child in list(self._children)), default=_NEVER_S)
        return None if self._look_at_s == _NEVER_S else max(0.0, self._look_at_s - now)

    def _look_at(self, child: Offspring, now: float) -> float:
        """When to look at this one again."""
        if child.over or child.pid_fd is None:
            self._bury(child)
        if child.dead:
            return _NEVER_S
        at_s = child.kill_at_s
        if child.run is not None:
            child.sample()
            at_s = min(at_s, child.run.until_s) if child.sent else _NEVER_S
        if now >= at_s:
            why = _why(child, now)
            if why == "timeout" and not child.asked_where and child.ready:
                child.ask_where()
                self._end_by(child, now + WHERE_S)
                return child.kill_at_s
            child.kill(why)
            self._end_by(child, _NEVER_S)
        if child.killed is not None or child.over:
            return now + REAP_S
        return min(at_s, now + LOOK_S) if child.run is not None or child.pid_fd is None else at_s

    # -- what would hold the thread up

    def _help(self, what: Callable[..., None], *args: Any) -> None:
        if self._helpers is None:
            self._helpers = ThreadPoolExecutor(READERS, "redrive-helper")
        self._helpers.submit(what, *args)

    def _fetch(self, child: Offspring, run: Run) -> None:
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
        self._call(partial(self._fetched, child, run, body, fetched, failed))

    def _fetched(self, child: Offspring, run: Run, body: bytes | None, fetched: Fetched, failed: Fault | None) -> None:
        if child.run is not run:
            return
        try:
            if failed is None and take(run, fetched):
                self._send(child, run, body)
                return
            run.fault = failed or run.fault
        except LeaseLost as error:
            run.fault = fault_of(run, error)
        self._done(run)
        self._vacate(child)

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


def _why(child: Offspring, now: float) -> str:
    """Why a child whose time is over is killed."""
    run = child.run
    if run is None:
        return "drain"
    if run.cause in ("lease", "drain"):
        return run.cause
    if now >= run.deadline_s:
        return "timeout"
    return "channel" if child.over else "lease"


def _why_not(child: Offspring, death: Death) -> str:
    if child.broken is not None:
        return f"a child process cannot begin: {child.broken}"
    if child.killed is not None:
        return f"a child process had not imported the app after {BEGIN_S:g} s"
    how = f"was killed by {death.signal}" if death.signal else f"ended with exit code {death.code}"
    return f"a child process {how} while it imported the app"
