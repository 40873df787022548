"""What a running handler can know about its message, and be told: `redrive.context()`, or the first argument with
`ctx=True`."""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar

from .errors import Cancelled, LeaseLost
from .message import Message


class Context:
    """The run of one message. Made by the worker; a direct call of a task gets a local one."""

    __slots__ = ("_deadline_s", "_stop", "message")

    def __init__(self, message: Message, deadline_s: float = float("inf")) -> None:
        self.message = message
        self._deadline_s = deadline_s  # time.monotonic() when its timeout ends
        self._stop: str | None = None  # "cancel" | "lease" | "drain"

    @property
    def message_id(self) -> str:
        return self.message.id

    @property
    def attempt(self) -> int:
        """The counted run this is, from 1."""
        return self.message.attempt

    @property
    def crashes(self) -> int:
        """How often a worker died, or lost its lease, while holding this message."""
        return self.message.crashes

    @property
    def fence(self) -> int:
        """Rises with every claim: hand it to systems that can refuse an older one."""
        return self.message.fence

    @property
    def correlation_id(self) -> str:
        return self.message.correlation_id

    @property
    def idempotency_key(self) -> str:
        """The same through every retry and redrive of this message: hand it to the service you call."""
        return self.message.id

    @property
    def progress(self) -> bytes | None:
        """What an earlier attempt kept, or None."""
        return self.message.progress

    @property
    def remaining(self) -> float:
        """Seconds until this run's timeout, never below 0. A direct call has the timeout too, but nothing ends it."""
        return max(0.0, self._deadline_s - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """True once this run should end: a cancel was asked for, its timeout is over, its lease is lost or the worker
        stops."""
        return self._stop is not None or time.monotonic() >= self._deadline_s

    def check(self) -> None:
        """Raise if this run should end (see `cancelled`): TimeoutError, LeaseLost or Cancelled."""
        if self._stop == "lease":
            raise LeaseLost(f"message {self.message.id} is no longer leased to this worker")
        if time.monotonic() >= self._deadline_s:
            raise TimeoutError("the run's timeout is over")
        if self._stop is not None:
            raise Cancelled(f"message {self.message.id}: {self._stop} was asked for")

    def stop(self, why: str) -> None:
        """Tell the handler to end: the worker's call."""
        self._stop = why


_current: ContextVar[Context | None] = ContextVar("redrive_context", default=None)
current = _current.get
enter = _current.set
leave = _current.reset


def context() -> Context:
    """The context of the message being handled here. Raises RuntimeError outside of a handler."""
    found = _current.get()
    if found is None:
        raise RuntimeError(
            f"no redrive message is being handled in this task or thread ({threading.current_thread().name})"
        )
    return found
