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

CLOSE_S = 1.0  # seconds to wait at the end for a running call, beyond which its daemon thread is abandoned


class ReadAnswer(NamedTuple):
    """The result of a call, and the processor time of its thread."""

    value: Any
    cpu_s: float


class ReadThread:
    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._context = click.get_current_context(silent=True)  # has the program's name and flags, for next commands
        self._thread = threading.Thread(target=self._run, name=f"redrive-top-{name}", daemon=True)
        self._thread.start()

    async def call(self, fn: Callable[[], Any]) -> ReadAnswer:
        """Call `fn` on the thread and return its answer. Raises the error that `fn` raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ReadAnswer] = loop.create_future()

        def settle(answer: ReadAnswer | None, error: BaseException | None) -> None:
            if future.done():  # the screen was left meanwhile
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
            with contextlib.suppress(RuntimeError):  # raised if the loop is closed, as the program ends
                loop.call_soon_threadsafe(settle, answer, failed)

        self._calls.put(run)
        return await future

    def close(self) -> None:
        """End the thread after its current call, but wait for that only CLOSE_S."""
        self._calls.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        with self._context.scope(cleanup=False) if self._context is not None else contextlib.nullcontext():
            while (call := self._calls.get()) is not None:
                call()
