"""Read bodies from blob storage only when an execution starts, so that the worker has the bodies of running messages in
memory, not of all claimed ones, and a body that kills its reader counts as a crash."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ..blobs import is_raw, whole_body
from ..decide import NO_SIGNALS, Signals
from ..errors import BlobsUnavailable, LeaseLost, Unreadable
from ..events import Notice
from ..message import BLOB, RAW, Message
from .execution import Execution, has_nothing, judge, unread

if TYPE_CHECKING:
    from ..task import TaskSpec

READERS = 8  # number of blobs that one worker reads concurrently for async handlers
LATE_S = 30.0  # seconds for which a message waits for a read before its run; it is then put off
READ_MAX = 8  # bodies read before their runs that may wait in memory for the store thread


class Fetched(Struct, frozen=True):
    """The decoded arguments of a message's body, or the signals that say why the body could not be read."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    signals: Signals = NO_SIGNALS


TIMED_OUT = Fetched(signals=Signals(unfetched="its body was not read from blob storage within the task's timeout"))


def fetch(execution: Execution, task: TaskSpec) -> Fetched:
    """Read and decode the body of the execution's message, which blocks. The execution is not changed, as it may end
    meanwhile."""
    message, store = execution.delivery.message, task.app.store
    try:
        args, kwargs = task.codec.decode(whole_body(store, message), message.version, raw=is_raw(message))
    except Unreadable as error:
        return Fetched(signals=unread(error, execution))
    except BlobsUnavailable as error:
        _report(message, task, str(error))
        return Fetched(signals=Signals(unfetched=str(error)))
    return Fetched(args, kwargs)


def arguments(execution: Execution, task: TaskSpec, now_ms: int) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Set the execution's task and return the handler's arguments before the run, for what flow control and
    idempotency compute from them. None if the body has none, or cannot be read; the execution is then mostly over."""
    message = execution.delivery.message
    execution.task = task
    if has_nothing(execution, task):
        execution.over = True
        return None
    if message.content == BLOB:
        fetched: Fetched = execution.fetched or fetch(execution, task)
        if fetched.signals is not NO_SIGNALS:
            execution.over = not judge(execution, fetched.signals, now_ms)
            return None
        return fetched.args, fetched.kwargs
    try:
        raw = message.content == RAW
        execution.args, execution.kwargs = task.codec.decode(message.body, message.version, raw=raw)
    except Unreadable as error:
        execution.over = not judge(execution, unread(error, execution), now_ms)
        return None
    return execution.args, execution.kwargs


def take(execution: Execution, fetched: Fetched) -> bool:
    """Set the execution's arguments from `fetched` and return True, or set its decision and return False if the handler
    cannot be called. Raises LeaseLost if the worker ended the execution during the read."""
    if execution.cause == "timeout":
        fetched = TIMED_OUT
    elif execution.cause is not None:
        raise LeaseLost(f"message {execution.delivery.message.id} was not held until its body was read")
    context = (execution.context,) if execution.task.takes_context else ()
    execution.args, execution.kwargs = (*context, *fetched.args), fetched.kwargs
    return judge(execution, fetched.signals, execution.task.app.store.now_ms())


class BlobReads:
    """Reads bodies that keys and flow control need before a run, on a thread of its own: storage that does not answer
    would keep the store thread from renewing leases. If the storage is unavailable, the messages that wait for their
    bodies are put off without a read. Used by the store thread.

    `needs` says for which messages that is; `nudge` wakes the store thread once a body is read.
    """

    def __init__(
        self, needs: Callable[[Message], bool], tasks: Mapping[str, TaskSpec], nudge: Callable[[], None]
    ) -> None:
        self._needs, self._tasks, self._nudge = needs, tasks, nudge
        self._waiting: SimpleQueue[Execution | None] = SimpleQueue()
        self._reading: dict[Execution, float] = {}  # and when, by time.monotonic(), they began to wait
        self._read: deque[Execution] = deque()  # those whose bodies were read, until `taken`
        self._lock = threading.Lock()  # so that a failure finds all messages of a batch waiting
        self._room = threading.Semaphore(READ_MAX)
        self._thread: threading.Thread | None = None
        self._closed = False

    def split(self, executions: Sequence[Execution]) -> Sequence[Execution]:
        """Begin to read the bodies that are needed before a run; return the other executions."""
        messages = [(execution, execution.delivery.message) for execution in executions]
        reading = [execution for execution, message in messages if message.content == BLOB and self._needs(message)]
        if not reading or not self._has_thread():
            return executions
        self._reading.update(dict.fromkeys(reading, time.monotonic()))
        with self._lock:
            for execution in reading:
                self._waiting.put(execution)
        return [execution for execution in executions if execution not in self._reading]

    def taken(self) -> list[Execution]:
        """Return the executions whose bodies were read since the last call, and those that have waited for LATE_S,
        which are put off: a read that hangs may never end. Those that were withdrawn are left out."""
        read = [self._read.popleft() for _ in range(len(self._read))]
        for _ in read:
            self._room.release()
        taken = [execution for execution in read if self._reading.pop(execution, None) is not None]
        until_s = time.monotonic() - LATE_S
        for execution in [each for each, began_s in self._reading.items() if began_s <= until_s]:
            del self._reading[execution]
            message = execution.delivery.message
            execution.fetched = Fetched(signals=Signals(unfetched=f"its body was not read within {LATE_S:g} s"))
            _report(message, self._tasks[message.task], f"the body of {message.id} was not read within {LATE_S:g} s")
            taken.append(execution)
        return taken

    def withdraw(self) -> Sequence[Execution]:
        """Forget the executions whose bodies are not taken yet, and return them for the worker to release them."""
        reading, self._reading = self._reading, {}
        return [*reading]

    def close(self) -> None:
        """Let the thread end, after the read that it is at."""
        self._closed = True
        self._waiting.put(None)
        self._room.release()

    def _has_thread(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="redrive-bodies", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there are too many threads: the store thread reads the bodies
                return False
            self._thread = thread
        return True

    def _work(self) -> None:
        left, down = 0, Fetched()  # `left`: how many messages waited when the storage was found to be unavailable
        while (execution := self._waiting.get()) is not None:
            self._room.acquire()
            if self._closed:
                return
            if left:
                left, execution.fetched = left - 1, down
            else:
                try:
                    fetched = execution.fetched = fetch(execution, self._tasks[execution.delivery.message.task])
                except Exception:  # the store thread reads the body again, and raises the error
                    fetched = Fetched()
                if fetched.signals.unfetched is not None:
                    with self._lock:
                        left, down = self._waiting.qsize(), fetched
            self._read.append(execution)
            if not self._closed:
                self._nudge()


def _report(message: Message, task: TaskSpec, text: str) -> None:
    events, store, worker = task.app.events, task.app.store, message.worker or ""
    if events and (store.large_bodies is None or store.large_bodies.complains()):
        events.emit([Notice(name="blobs_unavailable", worker=worker, at_ms=store.now_ms(), text=text)])
