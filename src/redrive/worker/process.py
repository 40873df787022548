"""Run a worker in a process of its own: on its own event loop, ended by signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
from collections.abc import Iterator

from .supervisor import follow_parent, parent_fd
from .worker import UNWIND_S, Worker

YOUNG_OBJECTS_MAX = 20_000


def run(worker: Worker) -> None:
    """Run a worker on an event loop of its own until it is done. The first SIGTERM or SIGINT lets it drain; the second
    makes it release its messages at once.

    Under a supervisor, only that decides when to release: a service manager signals the whole group, and one signal
    must not count as two.
    """
    supervised = parent_fd()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        asked: list[int] = []

        def ask(number: int) -> None:
            asked.append(number)
            worker.drain() if len(asked) == 1 or supervised is not None else worker.release_now()

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, ask, number)
        worker.start()
        if supervised is not None:
            follow_parent(worker, supervised)
        await worker.wait()

    loop = _new_loop()
    try:
        asyncio.set_event_loop(loop)
        with _collecting_less():
            loop.run_until_complete(main())
    finally:
        try:
            _cut_off(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


@contextlib.contextmanager
def _collecting_less() -> Iterator[None]:
    """Collect garbage less often. A batch creates about eight thousand objects that live until it is settled. With
    Python's threshold, 700, the collector would search them a dozen times in vain: a tenth of a busy worker's time."""
    young, *older = before = gc.get_threshold()
    if 0 < young < YOUNG_OBJECTS_MAX:  # 0 means that the collector is turned off
        gc.set_threshold(YOUNG_OBJECTS_MAX, *older)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _cut_off(loop: asyncio.AbstractEventLoop) -> None:
    """Close the loop as `asyncio.run` does, but wait only UNWIND_S for coroutines that ignore their cancellation, and
    not for threads of the loop's executor."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=UNWIND_S))
    loop.run_until_complete(asyncio.wait([loop.create_task(loop.shutdown_asyncgens())], timeout=UNWIND_S))
