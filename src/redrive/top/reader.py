"""Call the store on threads, so that a slow answer never stops the screen."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click

CLOSE_S = 1.0  # how long to wait for a call that is under way; a daemon thread does not hold up the end


class ReadAnswer(NamedTuple):
    """What a call returned, and the processor time that this thread took for it."""

    value: Any
    cpu_s: float


class ReadThread:
    """A thread that makes one call after the other."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._context = click.get_current_context(silent=True)  # commands that lead on name the program and its flags
        self._thread = threading.Thread(target=self._run, name=f"redrive-top-{name}", daemon=True)
        self._thread.start()

    async def call(self, fn: Callable[[], Any]) -> ReadAnswer:
        """The answer of `fn`, called on the thread. Raises what it raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ReadAnswer] = loop.create_future()

        def settle(answer: ReadAnswer | None, error: BaseException | None) -> None:
            if future.done():  # its screen was left
                return
            if error is not None:
                future.set_exception(error)
            elif answer is not None:
                future.set_result(answer)

        def run() -> None:
            answer, failed = None, None
            from_s = time.thread_time()
            try:
                answer = ReadAnswer(fn(), time.thread_time() - from_s)
            except Exception as error:
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: the program ends
                loop.call_soon_threadsafe(settle, answer, failed)

        self._calls.put(run)
        return await future

    def close(self) -> None:
        """End after the call that is under way, without waiting long for it."""
        self._calls.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        with self._context.scope(cleanup=False) if self._context is not None else contextlib.nullcontext():
            while (call := self._calls.get()) is not None:
                call()
