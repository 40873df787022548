"""A thread with an event loop over sockets and pipes, for the child processes of a worker."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Protocol


class _File(Protocol):
    def fileno(self) -> int: ...


class EventThread:
    """Calls `round` until it returns None, and then ends. Between two rounds it runs the functions given to `call`, and
    sleeps for as long as `round` returned, or until a watched file is ready.

    The thread starts with the first call.
    """

    closing: bool

    def __init__(self, name: str, round: Callable[[], float | None]) -> None:
        self._name, self._round = name, round
        self._calls: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake, self._waken = socket.socketpair()
        self._wake.setblocking(False)
        self._waken.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, self._wakened)
        self._asleep = False
        self.closing = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, call: Callable[[], None]) -> None:
        """Run the function `call` on the thread. Thread-safe. Raises RuntimeError if the thread cannot start."""
        if self._thread is None:
            self._begin()
        self._calls.append(call)
        if self._asleep:
            with contextlib.suppress(BlockingIOError, OSError):
                self._waken.send(b"\0")

    def watch(self, file: _File | int, ready: Callable[[], None], *, write: bool = False) -> None:
        """Call `ready` when the file can be read or, with `write`, also when it can be written."""
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        try:
            if self._selector.get_key(file).events != mask:
                self._selector.modify(file, mask, ready)
        except KeyError:
            self._selector.register(file, mask, ready)

    def unwatch(self, file: _File | int | None) -> None:
        """Stop watching a file; do nothing if it is not watched."""
        with contextlib.suppress(KeyError, ValueError):
            if file is not None:
                self._selector.unregister(file)

    def close(self, last: Callable[[], None]) -> None:
        """Run `last` on the thread, let the thread end, and wait for that."""
        with self._lock:
            thread, self.closing = self._thread, True
        if thread is not None:
            self.call(last)
            thread.join()
        self._selector.close()
        self._wake.close()
        self._waken.close()

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and not self.closing:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()
                self._thread = thread

    def _work(self) -> None:
        over = False
        while not over:
            try:
                over = self._turn()
            except Exception:  # a bug then delays only the message that triggers it
                traceback.print_exc()

    def _turn(self) -> bool:
        while self._calls:
            self._calls.popleft()()
        pause_s = self._round()
        if pause_s is None:
            return True
        self._asleep = True
        events = self._selector.select(0.0 if self._calls else None if pause_s == float("inf") else pause_s)
        self._asleep = False
        for key, _ in events:
            key.data()
        return False

    def _wakened(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)
