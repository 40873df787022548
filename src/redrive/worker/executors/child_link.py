"""A child's end of the channel to its worker, and the Context of a handler that runs there."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ... import errors
from ...errors import StoreError
from ...message import Receipt
from ...run_context import Context
from ...store import Traits
from .ipc import READ_BYTES, Checkpoint, CheckpointAnswer, ChildWork, FrameDecoder, Hello, Stop, ToChild, ToWorker, pack


class ChildLink:
    """A child's channel to the worker. Any thread may send and wait for an answer; one thread at a time reads."""

    over: bool

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        channel.setblocking(False)  # required by an event loop that reads the channel
        self._incoming, self._outgoing = select.poll(), select.poll()
        self._incoming.register(channel, select.POLLIN)
        self._outgoing.register(channel, select.POLLOUT)
        self._inbox: FrameDecoder[ToChild] = FrameDecoder(ToChild)
        self._reading, self._sending = threading.Lock(), threading.Lock()
        self._answers: dict[int, CheckpointAnswer] = {}
        self._asked = 0
        self.came: deque[Hello | ChildWork] = deque()
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

    def next(self) -> Hello | ChildWork | None:
        """Wait for the next frame of work and return it; None once the worker ends this process."""
        while not self.came and not self.over:
            with self._reading:  # a thread that a handler left running may have read the frame meanwhile
                if not self.came and not self.over:
                    self._incoming.poll()
                    self._read()
        return self.came.popleft() if self.came else None

    def look(self) -> None:
        """Read the frames that have arrived, without waiting for more."""
        if self._reading.acquire(blocking=False):  # if this fails, another thread is reading already
            try:
                self._read()
            finally:
                self._reading.release()

    def keep(self, state: bytes, run: int) -> CheckpointAnswer:
        """Send the checkpoint `state` of the message with the number `run`, and wait for the worker's answer."""
        with self._sending:
            self._asked += 1
            number = self._asked
            self._send(Checkpoint(number, state, run))
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
            elif isinstance(frame, CheckpointAnswer):
                self._answers[frame.number] = frame
            else:
                self.came.append(frame)
        if self.came or self.over:
            self.arrived()


class ChildContext(Context, eq=False):
    """The context of a handler in a child process, which sends checkpoints to the worker through the link."""

    _link: Any = None
    _number: int = 0
    _store_traits: Any = None
    _store_ms: int = 0
    _at_s: float = 0.0

    @property
    def cancelled(self) -> bool:
        self._link.look()
        return self._stop is not None or time.monotonic() >= self._deadline_s

    def check(self) -> None:
        self._link.look()
        Context.check(self)

    def _write_checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        kept: CheckpointAnswer = self._link.keep(state, self._number)
        if kept.error:
            raise getattr(errors, kept.error, StoreError)(kept.text)
        return kept.held

    def _traits(self) -> Traits:
        traits: Traits = self._store_traits
        return traits

    def _now_ms(self) -> int:
        return self._store_ms + int((time.monotonic() - self._at_s) * 1000)
