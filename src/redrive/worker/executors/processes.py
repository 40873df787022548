"""Run handlers in warm child processes, so that one that crashes, exhausts its memory or never returns ends its own run
and no other.

An isolated task has its own child, one message at a time; suspects share a child (pool.py). One thread serves all
children, so they continue while the event loop is blocked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ...blobs import whole_body
from ...decide import Signals
from ...errors import BlobsUnavailable, LeaseLost, UnknownArguments, Unreadable
from ...fault import Fault
from ...message import BLOB, RetryAt
from ...registry import Registry
from ...run_context import Context, Extras
from ..bodies import READERS, Fetched, take
from ..crash.deaths import crash, faults_of
from ..crash.suspects import patience_s, put_off
from ..execution import Execution, judge, unread
from ..settlement import fault_of
from .app_import import Origin
from .child_process import Child, Death
from .children import END_S, PAUSE_S, UNWIND_S, Children, how
from .event_thread import EventThread
from .ipc import Broken, Checkpoint, CheckpointAnswer, ChildWork, Ended, Hello, Ready, Stop, ToWorker, pack
from .memory import processors
from .pool import ChildPool, Waiting

if TYPE_CHECKING:
    from ..crash.ledger import CrashSlots

SUSPECTS_EACH = 2  # children for suspects, per processor


def suspects_max() -> int:
    """Return the default number of children that may run suspects."""
    return SUSPECTS_EACH * processors()


class Recycling(Struct, frozen=True):
    """When a child is replaced: `after` so many messages, or once it had `memory` bytes of resident memory."""

    after: int | None = None
    memory: int | None = None

    def is_due(self, child: Child) -> bool:
        """Return True if this child is to be replaced."""
        if self.after is not None and child.ran >= self.after:
            return True
        return self.memory is not None and (child.peak_bytes or 0) >= self.memory


class _ChildContext(Context, eq=False):
    """The worker's copy of the Context of a handler in a child, which passes requests to stop on to the child."""

    _send_stop: Any = None

    def stop(self, why: str) -> None:
        Context.stop(self, why)
        self._send_stop(why)


class ProcessExecutor:
    """Runs executions in at most `limit` children for each memory limit of tasks, and suspects in at most
    `suspect_processes` children, fewer if memory is short.

    `finish` and `start_other` as for TaskExecutor, called on this executor's own thread; `notice(name, text)` reports
    events of the executor.
    """

    def __init__(
        self,
        app: Registry,
        origin: Origin,
        limit: int,
        finish: Callable[[Sequence[Execution]], None],
        start_other: Callable[[Execution], None],
        slots: CrashSlots | None,
        *,
        worker: str,
        grace_s: float,
        recycling: Recycling,
        notice: Callable[[str, str], None],
        suspect_processes: int | None = None,
    ) -> None:
        self._app, self._origin, self._slots, self._store = app, origin, slots, app.store
        self._finish, self._start_other, self._notice = finish, start_other, notice
        self._worker, self._recycling = worker, recycling
        # The memory limits of isolated tasks: children of these pools are kept warm, children for suspects are not.
        self._kept_warm = {task.memory_bytes for task in app.tasks.values() if task.place == "process"}
        self._missing: set[str] = set()  # tasks of the app that a child did not have after importing it
        self._finished: list[Execution] = []
        self._thread = EventThread("redrive-processes", self._round)
        self._children = Children(
            self._thread,
            self._hello,
            limit=limit,
            suspects_max=suspect_processes or suspects_max(),
            overtime_s=min(UNWIND_S, grace_s),
            on_frame=self._received,
            on_death=self._died,
            put_off=self._put_off_all,
            notice=notice,
        )
        self._helpers: ThreadPoolExecutor | None = None

    def start(self, execution: Execution) -> None:
        """Run an execution in a child as soon as one is free. Thread-safe."""
        starting = [execution]
        while starting:
            each = starting.pop()
            try:
                self._thread.call(partial(self._place, each))
            except RuntimeError:  # there are too many threads in the process or the container
                each.decision = RetryAt.deferred(self._store.now_ms() + int(PAUSE_S[0] * 1000), "no thread")
                each.finished_s = time.monotonic()
                self._finish((each,))
                for following in each.queue.limit.leave():
                    starting.append(following) if following.executor == "process" else self._start_other(following)

    def takes(self, task: str) -> bool:
        """Return True if suspects of that task can run in a child: children have the task, and one can be started."""
        return task not in self._missing and self._children.can_begin()

    def close(self) -> None:
        """Retire idle children, kill the others, and wait until all have ended."""
        self._thread.close(self._end_all)
        if self._helpers is not None:
            self._helpers.shutdown(wait=False, cancel_futures=True)

    def _round(self) -> float | None:
        self._seat_all()
        pause_s = self._children.look(time.monotonic())
        if self._finished:
            finished, self._finished = self._finished, []
            self._finish(finished)
        return pause_s

    def _end_all(self) -> None:
        self._finished += self._children.end_all()

    def _hello(self, memory: int | None) -> Hello:
        o, app = self._origin, self._app
        return Hello(
            o.spec, o.modules, o.main, o.main_module, tuple(sys.path), tuple(sys.argv), app.url, self._store.traits,
            memory, self._recycling.memory is not None,
        )  # fmt: skip

    def _place(self, execution: Execution) -> None:
        """Assign an execution to an idle child, or queue it until a child is free."""
        pool = self._children.pool_of(execution.task.memory_bytes)
        now = time.monotonic()
        if execution.apart and (now >= pool.not_before_s or pool.shares()):
            pool.suspects.append(
                Waiting(execution, now, now + patience_s(execution.delivery.message))
            )  # `_seat_all` is called next
        elif pool.idle:
            self._assign(pool.idle.pop(), execution)  # the child used last, as its caches are warm
        elif now < pool.not_before_s:
            self._put_off(execution, pool)
        else:
            pool.isolated.append(execution)
            self._children.grow(pool)

    def _seat_all(self) -> None:
        """Assign waiting suspects to children, the largest company first, and start more children if needed."""
        for pool in self._children.pools():
            if pool.suspects:
                self._seat(pool, any_size=False)
                self._children.grow_shared(pool)
                if not pool.starting:
                    self._seat(pool, any_size=True)
                    self._put_off_late(pool, time.monotonic())

    def _seat(self, pool: ChildPool, *, any_size: bool) -> None:
        waiting, pool.suspects = sorted(pool.suspects, key=lambda one: -one.execution.seats), []
        for one in waiting:
            child = pool.shared_child(one.execution, any_size=any_size)
            if child is None:
                pool.suspects.append(one)
            else:
                self._assign(child, one.execution)

    def _put_off_late(self, pool: ChildPool, now: float) -> None:
        """Defer the suspects of a pool that have waited for a child for too long, uncounted."""
        late = [one for one in pool.suspects if now >= one.until_s]
        pool.suspects = [one for one in pool.suspects if now < one.until_s]
        for one in late:
            one.execution.decision = put_off(self._store.now_ms(), now - one.since_s)
            self._done(one.execution)
        for one in pool.suspects:
            self._children.look_by(one.until_s)

    def _assign(self, child: Child, execution: Execution) -> None:
        number = child.seat(execution)
        try:
            execution.begin(self._slots, partial(_ChildContext, _send_stop=partial(self._send_stop, child, number)))
        except LeaseLost as error:
            execution.fault = fault_of(execution, error)
            self._done(execution)
            self._vacate(child, number)
            return
        if execution.delivery.message.content == BLOB:
            self._help(self._fetch, child, number, execution)
        else:
            self._send(child, number, None)

    def _send(self, child: Child, number: int, body: bytes | None) -> None:
        execution = child.executions[number]
        message = execution.delivery.message
        if message.task not in child.tasks:
            self._missing.add(message.task)
            self._notice("child_failed", f"the app that a child process imported has no task {message.task!r}")
            self._put_off(execution, self._children.pool_of(child.memory))
            self._vacate(child, number)
            return
        now_ms, together = self._store.now_ms(), execution.seats > 1
        claim = None if execution.claim is None else replace(execution.claim, box=None)  # a Box cannot be sent
        tracing, trace = self._app.tracing, None
        if tracing is not None and execution.context is not None:
            trace = tracing.begin(execution.context)
        try:
            work = pack(
                ChildWork(number, message, execution.deadline_s, now_ms, body, claim, together=together, trace=trace)
            )
        except Exception as error:  # counts as a failed run: unsent, the child would be killed at the timeout
            execution.fault = fault_of(execution, error)
            self._done(execution)
            self._vacate(child, number)
            return
        child.sent.add(number)
        self._children.sent(execution)
        self._children.send(child, work)
        if execution.context is not None and execution.context._stop is not None:  # requested before the child had it
            self._stop(child, number, execution.context._stop)

    def _send_stop(self, child: Child, number: int, why: str) -> None:
        """Ask the child to stop the handler of the execution with this number. Thread-safe."""
        self._thread.call(partial(self._stop, child, number, why))

    def _stop(self, child: Child, number: int, why: str) -> None:
        if number not in child.sent:
            return
        self._children.send(child, pack(Stop(number, "cancel" if why == "kill" else why)))
        if why in ("drain", "kill") or all(
            execution.cause == "lease" for execution in child.executions.values()
        ):  # the lost lease of one suspect does not end the others in its child
            self._children.end_by(child, min(child.kill_at_s, time.monotonic() + UNWIND_S))

    def _received(self, child: Child, frame: ToWorker) -> None:
        if isinstance(frame, Ended):
            if frame.number in child.executions:
                self._ended(child, child.executions[frame.number], frame)
        elif isinstance(frame, Checkpoint):
            execution = child.executions.get(frame.run or min(child.executions, default=0))
            if execution is not None:
                self._help(self._keep, child, execution, frame)
        elif isinstance(frame, Ready):
            self._children.begun(child, frame.tasks)
            self._free(child)
            self._children.grow(self._children.pool_of(child.memory))
        elif isinstance(frame, Broken):
            child.broken = frame.text
            self._children.end_by(child, time.monotonic() + END_S)  # a thread of the app may delay the child's end

    def _ended(self, child: Child, execution: Execution, frame: Ended) -> None:
        child.peak_bytes = frame.peak_bytes or child.peak_bytes
        out_of_memory = frame.memory and execution.seats == 1
        if out_of_memory:
            stack = "" if frame.fault is None else frame.fault.traceback
            execution.fault = crash(execution, Death(peak_bytes=child.peak_bytes), "memory", self._worker, stack=stack)
        else:
            execution.fault, execution.result, execution.complaint = frame.fault, frame.result, frame.complaint
        if execution.context is not None and (
            frame.follow_ups or frame.degraded is not None or frame.completed or frame.spent
        ):
            extras = Extras(
                list(frame.follow_ups), degraded=frame.degraded, completed=frame.completed, spent=frame.spent
            )
            execution.context._extras = extras
        if execution.claim is not None:
            execution.claim.committed = frame.completed
        if frame.unreadable is not None:
            text = frame.unreadable
            error = UnknownArguments(text, frame.unknown) if frame.unknown else Unreadable(text)
            judge(execution, unread(error, execution), self._store.now_ms())
        child.ran += 1
        child.used_up = child.used_up or out_of_memory or self._recycling.is_due(child)
        self._done(execution)
        self._vacate(child, frame.number)

    def _died(self, child: Child, death: Death, stack: str) -> None:
        ended = [*faults_of(child, death, stack, self._worker)]
        for execution, fault in ended:
            execution.fault = fault
            self._done(execution)
        in_doubt = sum(fault.crash is not None for _, fault in ended)
        if in_doubt > 1:
            self._notice("child_died", f"{how(death)} with {in_doubt} suspects; fewer of them will run together")

    def _done(self, execution: Execution) -> None:
        """Finish an execution, and start those that its end lets start."""
        execution.finished_s = time.monotonic()
        self._finished.append(execution)
        for following in execution.queue.limit.leave():
            self.start(following) if following.executor == "process" else self._start_other(following)

    def _put_off(self, execution: Execution, pool: ChildPool) -> None:
        """Defer an execution, uncounted, until the pool may start a child, as none can run it now."""
        wait_ms = int(max(PAUSE_S[0], pool.not_before_s - time.monotonic()) * 1000)
        execution.decision = RetryAt.deferred(self._store.now_ms() + wait_ms, "no process")
        self._done(execution)

    def _put_off_all(self, executions: Iterable[Execution], pool: ChildPool) -> None:
        for execution in executions:
            self._put_off(execution, pool)

    def _vacate(self, child: Child, number: int) -> None:
        """Remove an ended execution from its child, and free the child if it was the last one."""
        if child.leave(number):
            self._free(child)

    def _free(self, child: Child) -> None:
        """Give a child without executions the next waiting one, keep the child idle, or let it end."""
        pool = self._children.pool_of(child.memory)
        child.suspects = False
        if child.dead:
            return
        if self._thread.closing or child.retired or child.used_up:
            self._children.retire(child)
            self._children.grow(pool)
        elif pool.isolated:
            self._assign(child, pool.isolated.popleft())
        else:
            self._children.keep_idle(child, warm=child.memory in self._kept_warm)

    def _help(self, what: Callable[..., None], *args: Any) -> None:
        if self._helpers is None:
            self._helpers = ThreadPoolExecutor(READERS, "redrive-helper")
        self._helpers.submit(what, *args)

    def _fetch(self, child: Child, number: int, execution: Execution) -> None:
        """Read the body of an execution's message from blob storage, and pass it to the thread of the children."""
        body, fetched, failed = None, Fetched(), None
        try:
            body = whole_body(self._store, execution.delivery.message)
        except Unreadable as error:
            fetched = Fetched(signals=Signals(unreadable=str(error)))
        except BlobsUnavailable as error:
            fetched = Fetched(signals=Signals(unfetched=str(error)))
        except Exception as error:  # counts as a failed run, as in a thread
            failed = fault_of(execution, error)
        self._thread.call(partial(self._fetched, child, number, body, fetched, failed))

    def _fetched(self, child: Child, number: int, body: bytes | None, fetched: Fetched, failed: Fault | None) -> None:
        execution = child.executions.get(number)
        if execution is None:
            return
        try:
            if failed is None and take(execution, fetched):
                self._send(child, number, body)
                return
            execution.fault = failed or execution.fault
        except LeaseLost as error:
            execution.fault = fault_of(execution, error)
        self._done(execution)
        self._vacate(child, number)

    def _keep(self, child: Child, execution: Execution, frame: Checkpoint) -> None:
        """Store the checkpoint of an execution that its child sent, and send the answer to the child."""
        try:
            kept = CheckpointAnswer(frame.number, self._store.checkpoint(execution.delivery.receipt, frame.state))
        except Exception as error:  # every error is answered, as the handler waits
            kept = CheckpointAnswer(frame.number, False, type(error).__name__, str(error))
        self._thread.call(partial(self._children.send, child, pack(kept)))
