"""The main program of a child process: import the app, and run one message after another, or suspects concurrently.

While a sync handler runs, the channel is read only when the handler uses its context: `ctx.cancelled` reads arrived
frames, and `ctx.checkpoint` waits for its answer. So a message needs no switch of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from ...blobs import is_raw
from ...errors import UnknownArguments, Unreadable
from ...message import Delivery, Receipt
from ...registry import Registry
from ...run_context import enter, leave
from ...task import TaskSpec
from ..capacity import QueueLimit, WorkerLimit
from ..execution import Execution, WorkerQueue
from ..middleware import refuse_coroutine
from ..settlement import fault_of
from .app_import import become_child
from .child_link import ChildContext, ChildLink
from .child_process import WHERE
from .child_setup import app_of, bound_memory, end_with, limit_memory
from .ipc import Broken, ChildWork, Ended, Hello, Ready, Stop
from .memory import peak_of

THREADS_MAX = 10_000  # more threads than a worker runs executions at once


class ChildServer:
    """Runs the messages that the worker sends to this child."""

    def __init__(self, app: Registry, link: ChildLink, hello: Hello) -> None:
        self._app, self._link, self._traits, self._tells_peak = app, link, hello.traits, hello.tells_peak
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: ThreadPoolExecutor | None = None  # for sync handlers that run concurrently
        self._tasks: set[asyncio.Task[None]] = set()
        self._executions: dict[int, Execution] = {}  # by the number of the ChildWork
        self._queue = WorkerQueue(QueueLimit(1, WorkerLimit(1)))  # never reached: the worker limits the executions
        self._pid = os.getpid()
        self._came: asyncio.Future[None] | None = None
        link.stopped = self._stopped

    def serve(self) -> None:
        """Run messages one after another until the worker ends this process."""
        work = self._link.next()
        while isinstance(work, ChildWork):
            if work.together:
                work = self._opened().run_until_complete(self._serve_together(work))
                continue
            if self._is_async(work):
                work = self._opened().run_until_complete(self._serve_async(work))
                continue
            self._run_sync(work, self._begin(work))
            del work  # do not keep its objects alive during the wait
            work = self._link.next() if self._loop is None else self._loop.run_until_complete(self._next())

    def _begin(self, work: ChildWork) -> Execution:
        message, now_s = work.message, time.monotonic()
        task: TaskSpec = self._app.tasks[message.task]
        delivery = Delivery(message, Receipt(0, message.fence), 0)
        execution = Execution(delivery, self._queue, float("inf"), task=task, claim=work.claim)
        execution.started_s = now_s
        execution.context = ChildContext(
            message, work.deadline_s, task, execution.delivery.receipt,
            _claim=work.claim, _trace=work.trace, _link=self._link, _number=work.number, _store_traits=self._traits,
            _store_ms=work.now_ms, _at_s=now_s,
        )  # fmt: skip
        self._executions[work.number] = execution
        return execution

    def _is_async(self, work: ChildWork) -> bool:
        is_async: bool = self._app.tasks[work.message.task].is_async
        return is_async

    def _unreadable(self, execution: Execution, work: ChildWork) -> Unreadable | None:
        """Set the execution's arguments and return None, or return why the body cannot be decoded."""
        message, task = work.message, execution.task
        try:
            body = message.body if work.body is None else work.body
            args, execution.kwargs = task.codec.decode(body, message.version, raw=is_raw(message))
        except Unreadable as error:
            return error
        execution.args = (execution.context, *args) if task.takes_context else args
        return None

    def _run_sync(self, work: ChildWork, execution: Execution) -> None:
        unreadable, memory = None, False
        token = enter(execution.context)
        try:
            unreadable = self._unreadable(execution, work)
            if unreadable is None:
                result = refuse_coroutine(execution.task.entry(*execution.args, **execution.kwargs))
                if execution.keeps:
                    execution.keep(result)
        except BaseException as error:  # also SystemExit: a handler must not end the process, as in a thread
            if self._is_fork:
                raise
            memory = self._failed(execution, error)
        leave(token)
        self._end(work.number, execution, unreadable, memory)

    async def _run_async(self, work: ChildWork, execution: Execution) -> None:
        unreadable, memory = None, False
        execution.handle = asyncio.current_task()
        enter(execution.context)
        try:
            unreadable = self._unreadable(execution, work)
            if unreadable is None:
                result = await execution.task.entry(*execution.args, **execution.kwargs)
                if execution.keeps:
                    execution.keep(result)
        except BaseException as error:
            if self._is_fork:
                raise
            memory = self._failed(execution, error)
        execution.handle = None
        self._end(work.number, execution, unreadable, memory)

    def _failed(self, execution: Execution, error: BaseException) -> bool:
        """Set the execution's fault from `error`; return True if the error is a lack of memory."""
        memory = isinstance(error, MemoryError)
        if memory:
            limit_memory(None)  # the report of the failure needs some memory
        self._link.look()
        if (
            execution.cause is None
            and execution.context is not None
            and time.monotonic() >= execution.context._deadline_s
        ):
            execution.cause = "timeout"
        execution.fault = fault_of(execution, error)
        return memory

    @property
    def _is_fork(self) -> bool:
        """True if a handler forked this process, which then must not use the channel, and has to end."""
        return os.getpid() != self._pid

    def _end(self, number: int, execution: Execution, unreadable: Unreadable | None, memory: bool) -> None:
        if self._is_fork:
            os._exit(0)
        extras = None if execution.context is None else execution.context.end()
        del self._executions[number]
        peak = peak_of("self") if self._tells_peak or memory else None
        ended = Ended(number, execution.fault, execution.result, execution.complaint, memory=memory, peak_bytes=peak)
        if unreadable is not None:
            unknown = unreadable.names if isinstance(unreadable, UnknownArguments) else ()
            ended = replace(ended, unreadable=str(unreadable), unknown=unknown)
        if extras is not None:
            follow_ups = tuple(extras.follow_ups)
            ended = replace(
                ended,
                degraded=extras.degraded,
                follow_ups=follow_ups,
                completed=extras.completed,
                spent=extras.spent,
            )
        self._link.send(ended)

    def _stopped(self, stop: Stop) -> None:
        """Stop a handler at the worker's request. Runs on the thread that read the request."""
        execution = self._executions.get(stop.number)
        if execution is None or execution.context is None:
            return
        execution.context.stop(stop.why)
        if stop.why == "cancel":
            return
        execution.cause = execution.cause or stop.why
        handle = execution.handle
        if handle is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(handle.cancel)

    def _opened(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = _new_loop()
            asyncio.set_event_loop(self._loop)
            self._loop.add_reader(self._link.fileno(), self._link.look)
            self._link.arrived = self._arrived
        return self._loop

    async def _serve_async(self, work: ChildWork) -> ChildWork | None:
        """Run this message and the following async ones; return the first one that must not run on a loop, if any."""
        following: ChildWork | None = work
        while following is not None and self._is_async(following) and not following.together:
            running = self._run_async(following, self._begin(following))
            await asyncio.create_task(running)  # an asyncio task, for a contextvars context of its own
            following = await self._next()
        return following

    async def _serve_together(self, work: ChildWork) -> ChildWork | None:
        """Run this message and the following ones concurrently; return the first one that needs the process for itself,
        which the worker sends when all others have ended."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS_MAX, "redrive-together")
        following: ChildWork | None = work
        while following is not None and following.together:
            execution = self._begin(following)
            if self._is_async(following):
                task = asyncio.create_task(self._run_beside(following, execution))
                self._tasks.add(task)  # the event loop has only weak references to tasks
                task.add_done_callback(self._tasks.discard)
            else:
                self._threads.submit(self._run_in_thread, following, execution)
            following = await self._next()
        return following

    async def _run_beside(self, work: ChildWork, execution: Execution) -> None:
        try:
            await self._run_async(work, execution)
        except BaseException as error:
            self._leave_fork(error)
            raise

    def _run_in_thread(self, work: ChildWork, execution: Execution) -> None:
        try:
            self._run_sync(work, execution)
        except BaseException as error:
            self._leave_fork(error)
            raise

    def _leave_fork(self, error: BaseException) -> None:
        """End this process if it is a fork that a handler made: it would go on with its parent's loop and threads."""
        if self._is_fork:
            sys.stdout.flush()
            sys.stderr.flush()
            code = error.code if isinstance(error, SystemExit) else 1
            os._exit(code if isinstance(code, int) else int(code is not None))

    async def _next(self) -> ChildWork | None:
        while not self._link.came and not self._link.over:
            self._came = asyncio.get_running_loop().create_future()
            await self._came
        work = self._link.next()
        return work if isinstance(work, ChildWork) else None

    def _arrived(self) -> None:
        """Wake `_next` after work has arrived or the channel has closed. Runs on the thread that read the channel. If
        the channel closed while handlers run, end the process at once."""
        if self._link.over and self._executions:
            os._exit(1)  # the worker is gone, and another worker will claim this message
        if threading.current_thread() is threading.main_thread():
            self._wake()
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._came is not None and not self._came.done():
            self._came.set_result(None)


def main(fd: str, last_words: str, parent: str) -> None:
    """Serve on the inherited socket `fd` until the socket closes or the process `parent` ends. If this process is
    killed, its stack is written to the file descriptor `last_words`."""
    become_child()
    end_with(int(parent))
    channel = socket.socket(fileno=int(fd))
    channel.set_inheritable(False)
    os.set_inheritable(int(last_words), False)
    faulthandler.enable(int(last_words), all_threads=False)
    faulthandler.register(WHERE, int(last_words), all_threads=False)
    for number in (signal.SIGINT, signal.SIGTERM):  # a child ignores these, as only the worker decides when it ends
        signal.signal(number, lambda *_: None)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # stdout is the worker's stderr, and this process may be killed
    link = ChildLink(channel)
    hello = link.next()
    if not isinstance(hello, Hello):
        return
    try:
        app = app_of(hello)
        bound_memory(hello.memory)
    except BaseException as error:
        link.send(Broken(f"{type(error).__name__}: {error}"))
        traceback.print_exc()
        sys.exit(1)
    gc.collect()
    gc.freeze()  # the objects of the imports are kept for ever, so collections can skip them
    link.send(Ready(tuple(app.tasks)))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the worker is gone
        ChildServer(app, link, hello).serve()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
