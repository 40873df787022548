"""A child process of a worker: imports the app, and runs one message after another, or suspects beside each other.

Nothing here reads the channel while a sync handler runs, unless that asks: `ctx.cancelled` looks at what has come, and
`ctx.checkpoint` waits for its answer. So a message costs no switch of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ... import errors
from ...blobs import is_raw
from ...errors import StoreError, UnknownArguments, Unreadable, Unsupported
from ...message import Delivery, Receipt
from ...registry import Registry
from ...run_context import Context, enter, leave
from ...store import Traits
from ..execution import Run
from ..middleware import refuse_coroutine
from ..settlement import fault_of
from .app_import import Origin, become_child, imported
from .child_process import WHERE
from .ipc import (
    READ_BYTES,
    Ended,
    Hello,
    Inbox,
    Keep,
    Kept,
    Ready,
    Stop,
    ToChild,
    ToWorker,
    Work,
    pack,
)
from .ipc import Broken as Refusal
from .memory import peak_of

ROOM_BYTES = 32 * 1024 * 1024  # of address space that a memory limit must leave beyond what the app takes itself
ORPHAN_LOOK_S = 1.0
THREADS_MAX = 10_000  # more than a worker lets run at once
_PR_SET_PDEATHSIG, _M_ARENA_MAX = 1, -8


class Link:
    """The channel to the worker. Any thread may send and ask; one at a time reads, for all of them."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        channel.setblocking(False)  # an event loop would make it so
        self._incoming, self._outgoing = select.poll(), select.poll()
        self._incoming.register(channel, select.POLLIN)
        self._outgoing.register(channel, select.POLLOUT)
        self._inbox: Inbox[ToChild] = Inbox(ToChild)
        self._reading, self._sending = threading.Lock(), threading.Lock()
        self._answers: dict[int, Kept] = {}
        self._asked = 0
        self.came: deque[Hello | Work] = deque()
        self.stopped: Callable[[Stop], None] = lambda _: None
        self.arrived: Callable[[], None] = lambda: None
        self.over = False

    def send(self, frame: ToWorker) -> None:
        with self._sending:
            self._send(frame)

    def _send(self, frame: ToWorker) -> None:
        left = memoryview(pack(frame))
        while left:
            try:
                left = left[self._channel.send(left) :]
            except BlockingIOError:
                self._outgoing.poll()

    def next(self) -> Hello | Work | None:
        """The next thing to do; None when the worker wants no more of this process."""
        while not self.came and not self.over:
            with self._reading:  # a thread that a handler left behind may have read it meanwhile
                if not self.came and not self.over:
                    self._incoming.poll()
                    self._read()
        return self.came.popleft() if self.came else None

    def look(self) -> None:
        """Take in what has come, without waiting."""
        if self._reading.acquire(blocking=False):  # else another thread does just that
            try:
                self._read()
            finally:
                self._reading.release()

    def keep(self, state: bytes, run: int) -> Kept:
        """What became of a checkpoint of the message that runs as this number."""
        with self._sending:
            self._asked += 1
            number = self._asked
            self._send(Keep(number, state, run))
        while True:
            with self._reading:
                if number in self._answers:
                    return self._answers.pop(number)
                self._incoming.poll()
                self._read()
            if self.over:
                os._exit(1)

    def fileno(self) -> int:
        return self._channel.fileno()

    def _read(self) -> None:
        try:
            data = self._channel.recv(READ_BYTES)
        except BlockingIOError:
            return
        self.over = not data
        for frame in self._inbox.feed(data):
            if isinstance(frame, Stop):
                self.stopped(frame)
            elif isinstance(frame, Kept):
                self._answers[frame.number] = frame
            else:
                self.came.append(frame)
        if self.came or self.over:
            self.arrived()


class ChildContext(Context, eq=False):
    """The context of a run in a child: what it needs of the store and of the worker goes by the link."""

    _link: Any = None
    _number: int = 0
    _store_traits: Any = None
    _store_ms: int = 0
    _at_s: float = 0.0

    @property
    def cancelled(self) -> bool:
        """As of the base class."""
        self._link.look()
        return self._stop is not None or time.monotonic() >= self._deadline_s

    def check(self) -> None:
        """As of the base class."""
        self._link.look()
        Context.check(self)

    def _written(self, receipt: Receipt, state: bytes) -> bool:
        kept: Kept = self._link.keep(state, self._number)
        if kept.error:
            raise getattr(errors, kept.error, StoreError)(kept.text)
        return kept.held

    def _traits(self) -> Traits:
        traits: Traits = self._store_traits
        return traits

    def _now_ms(self) -> int:
        return self._store_ms + int((time.monotonic() - self._at_s) * 1000)


class Child:
    """Runs what comes by the link."""

    def __init__(self, app: Registry, link: Link, hello: Hello) -> None:
        self._app, self._link, self._traits, self._tells_peak = app, link, hello.traits, hello.tells_peak
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: ThreadPoolExecutor | None = None  # for sync handlers that run together
        self._tasks: set[asyncio.Task[None]] = set()
        self._runs: dict[int, Run] = {}  # by number
        self._pid = os.getpid()
        self._came: asyncio.Future[None] | None = None
        link.stopped = self._stopped

    def serve(self) -> None:
        """Until the worker wants no more of this process."""
        work = self._link.next()
        while isinstance(work, Work):
            if work.together:
                work = self._opened().run_until_complete(self._serve_together(work))
                continue
            if self._is_async(work):
                work = self._opened().run_until_complete(self._serve_async(work))
                continue
            self._run_sync(work, self._begin(work))
            del work  # what it referred to is not kept while this waits
            work = self._link.next() if self._loop is None else self._loop.run_until_complete(self._next())

    # -- one message

    def _begin(self, work: Work) -> Run:
        message, now_s = work.message, time.monotonic()
        task: Any = self._app.tasks[message.task]
        run = Run(Delivery(message, Receipt(0, message.fence), 0), None, float("inf"), task=task, claim=work.claim)  # type: ignore[arg-type]
        run.started_s = now_s
        run.context = ChildContext(
            message, work.deadline_s, task, run.delivery.receipt,
            _claim=work.claim, _link=self._link, _number=work.number, _store_traits=self._traits,
            _store_ms=work.now_ms, _at_s=now_s,
        )  # fmt: skip
        self._runs[work.number] = run
        return run

    def _is_async(self, work: Work) -> bool:
        is_async: bool = self._app.tasks[work.message.task].is_async
        return is_async

    def _unreadable(self, run: Run, work: Work) -> Unreadable | None:
        """Give the run its arguments, or say why its body has none."""
        message, task = work.message, run.task
        try:
            body = message.body if work.body is None else work.body
            args, run.kwargs = task.codec.decode(body, message.version, raw=is_raw(message))
        except Unreadable as error:
            return error
        run.args = (run.context, *args) if task.takes_context else args
        return None

    def _run_sync(self, work: Work, run: Run) -> None:
        unreadable, memory = None, False
        token = enter(run.context)
        try:
            unreadable = self._unreadable(run, work)
            if unreadable is None:
                result = refuse_coroutine(run.task.entry(*run.args, **run.kwargs))
                if run.keeps:
                    run.keep(result)
        except BaseException as error:  # as in a thread: a handler must not end its process by an exception
            if self._is_fork:
                raise
            memory = self._failed(run, error)
        leave(token)
        self._end(work.number, run, unreadable, memory)

    async def _run_async(self, work: Work, run: Run) -> None:
        unreadable, memory = None, False
        run.handle = asyncio.current_task()
        enter(run.context)
        try:
            unreadable = self._unreadable(run, work)
            if unreadable is None:
                result = await run.task.entry(*run.args, **run.kwargs)
                if run.keeps:
                    run.keep(result)
        except BaseException as error:
            if self._is_fork:
                raise
            memory = self._failed(run, error)
        run.handle = None
        self._end(work.number, run, unreadable, memory)

    def _failed(self, run: Run, error: BaseException) -> bool:
        """Set the run's fault; whether it was that there is no memory left."""
        memory = isinstance(error, MemoryError)
        if memory:
            _limit(None)  # to say it takes some
        self._link.look()
        if run.cause is None and run.context is not None and time.monotonic() >= run.context._deadline_s:
            run.cause = "timeout"
        run.fault = fault_of(run, error)
        return memory

    @property
    def _is_fork(self) -> bool:
        """Whether this is a process that the handler forked, which has no say on the channel and is not to stay."""
        return os.getpid() != self._pid

    def _end(self, number: int, run: Run, unreadable: Unreadable | None, memory: bool) -> None:
        if self._is_fork:
            os._exit(0)
        extras = run.context.end() if run.context is not None else None
        del self._runs[number]
        peak = peak_of("self") if self._tells_peak or memory else None
        ended = Ended(number, run.fault, run.result, run.complaint, memory=memory, peak_bytes=peak)
        if unreadable is not None:
            unknown = isinstance(unreadable, UnknownArguments)
            ended = replace(ended, unreadable=str(unreadable), unknown=unknown)
        if extras is not None:
            follow_ups = tuple(extras.follow_ups)
            ended = replace(ended, degraded=extras.degraded, follow_ups=follow_ups, completed=extras.completed)
        self._link.send(ended)

    def _stopped(self, stop: Stop) -> None:
        """The worker wants the run to end. On whatever thread read it."""
        run = self._runs.get(stop.number)
        if run is None or run.context is None:
            return
        run.context.stop(stop.why)
        if stop.why == "cancel":
            return
        run.cause = run.cause or stop.why
        handle = run.handle
        if handle is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(handle.cancel)

    # -- the event loop, once there is an async handler

    def _opened(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = _new_loop()
            asyncio.set_event_loop(self._loop)
            self._loop.add_reader(self._link.fileno(), self._link.look)
            self._link.arrived = self._arrived
        return self._loop

    async def _serve_async(self, work: Work) -> Work | None:
        """Run it, and those after it, up to one whose handler must not have a running loop."""
        following: Work | None = work
        while following is not None and self._is_async(following) and not following.together:
            running = self._run_async(following, self._begin(following))
            await asyncio.create_task(running)  # a task of its own, with a context of its own
            following = await self._next()
        return following

    async def _serve_together(self, work: Work) -> Work | None:
        """Run it and those after it beside each other, up to one that is to have the process for itself: that comes
        once all of them have ended."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS_MAX, "redrive-together")
        following: Work | None = work
        while following is not None and following.together:
            run = self._begin(following)
            if self._is_async(following):
                task = asyncio.create_task(self._run_beside(following, run))
                self._tasks.add(task)  # the loop alone would let it be collected
                task.add_done_callback(self._tasks.discard)
            else:
                self._threads.submit(self._run_in_thread, following, run)
            following = await self._next()
        return following

    async def _run_beside(self, work: Work, run: Run) -> None:
        try:
            await self._run_async(work, run)
        except BaseException as error:
            self._leave_fork(error)
            raise

    def _run_in_thread(self, work: Work, run: Run) -> None:
        try:
            self._run_sync(work, run)
        except BaseException as error:
            self._leave_fork(error)
            raise

    def _leave_fork(self, error: BaseException) -> None:
        """End a process that a handler forked, which would go on here with this one's loop and threads."""
        if self._is_fork:
            sys.stdout.flush()
            sys.stderr.flush()
            code = error.code if isinstance(error, SystemExit) else 1
            os._exit(code if isinstance(code, int) else int(code is not None))

    async def _next(self) -> Work | None:
        while not self._link.came and not self._link.over:
            self._came = asyncio.get_running_loop().create_future()
            await self._came
        work = self._link.next()
        return work if isinstance(work, Work) else None

    def _arrived(self) -> None:
        """On whatever thread read it."""
        if self._link.over and self._runs:
            os._exit(1)  # the worker is gone, and this message is another's
        if threading.current_thread() is threading.main_thread():
            self._wake()
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._came is not None and not self._came.done():
            self._came.set_result(None)


class Elsewhere:
    """Stands for a store that lies in the memory of the worker's own process."""

    def __init__(self, traits: Traits) -> None:
        self.traits = traits

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(
            f"store.{name}: the store {self.traits.name} lies in the memory of the worker, and this is a child "
            "process; use ctx.enqueue(…) here, or a store that processes can share"
        )

    def close(self) -> None:
        """There is nothing to close."""


def main(fd: str, last_words: str, parent: str) -> None:
    """Serve on the inherited socket `fd` until it ends, or the process `parent` does. Where this process is when
    something kills it goes to the file `last_words`."""
    become_child()
    _end_with(int(parent))
    channel = socket.socket(fileno=int(fd))
    channel.set_inheritable(False)
    os.set_inheritable(int(last_words), False)
    faulthandler.enable(int(last_words), all_threads=False)
    faulthandler.register(WHERE, int(last_words), all_threads=False)
    for number in (signal.SIGINT, signal.SIGTERM):  # a service manager tells every process; only the worker decides
        signal.signal(number, lambda *_: None)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # it is the worker's stderr, and may end in mid-run
    link = Link(channel)
    hello = link.next()
    if not isinstance(hello, Hello):
        return
    try:
        app = _app_of(hello)
        _bound(hello.memory)
    except BaseException as error:
        link.send(Refusal(f"{type(error).__name__}: {error}"))
        traceback.print_exc()
        sys.exit(1)
    gc.collect()
    gc.freeze()  # what the imports made stays, and need not be looked through
    link.send(Ready(tuple(app.tasks)))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the worker is gone
        Child(app, link, hello).serve()


def _app_of(hello: Hello) -> Registry:
    sys.path[:], sys.argv[:] = hello.path, hello.argv
    app = imported(Origin(hello.spec, hello.modules, hello.main, hello.main_module))
    if not hello.traits.shared:
        app._store = Elsewhere(hello.traits)
        app._unapplied.clear()
    elif hello.url is not None and app.url is not None and app._store is None:
        app.url = hello.url
    return app


def _bound(memory: int | None) -> None:
    if memory is None:
        return
    size = _address_space()
    if size is not None and size + ROOM_BYTES > memory:
        raise MemoryError(
            f"memory={memory} bytes is less than the {size} that the child takes once the app is imported, and "
            f"{ROOM_BYTES} to work with; give it more"
        )
    _one_arena()
    _limit(memory)


def _limit(memory: int | None) -> None:
    """Bound the address space. macOS takes the call and does not hold to it."""
    most = resource.RLIM_INFINITY if memory is None else memory
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _address_space() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return None


def _one_arena() -> None:
    """The C library reserves 64 MiB of address space for each thread that allocates, unless told not to."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _end_with(parent: int) -> None:
    """Die when the worker does, even in the middle of a C function. Where the system has no word for that, a thread
    looks, and has to wait for one that does not let go of the interpreter."""
    with contextlib.suppress(OSError, AttributeError):
        import ctypes

        if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0:
            if os.getppid() != parent:
                os._exit(1)
            return
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(ORPHAN_LOOK_S)
    os._exit(1)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
