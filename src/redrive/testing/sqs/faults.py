"""Faults of a stand-in SQS: throttling, errors, broken connections, single entries of a batch."""

from __future__ import annotations

import threading
from typing import Any

from .messages import SqsError


class CallFault:
    """The fault of the next calls of an action. `before`: such a call does nothing; else it is carried out, and its
    answer is lost."""

    kind: str
    before: bool
    left: int

    def __init__(self, kind: str, before: bool, times: int) -> None:
        self.kind, self.before, self.left = kind, before, times

    def strike(self, given: dict[str, Any]) -> None:
        """Raise the error that the caller gets instead of an answer."""
        if self.kind == "throttled":
            raise SqsError("RequestThrottled", "Request is throttled.")
        if self.kind == "broken":
            raise ConnectionResetError
        raise SqsError("InternalError", "We encountered an internal error. Please try again.", status=500)


class Faults:
    """The faults of the next calls, by action. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: dict[str, list[CallFault]] = {}
        self._entries: dict[str, int] = {}

    def throttle(self, action: str, times: int = 1) -> None:
        """Refuse the next calls of the action as throttled."""
        self._add(action, CallFault("throttled", True, times))

    def fail(self, action: str, times: int = 1) -> None:
        """Let the next calls of the action fail with an internal error, without any effect."""
        self._add(action, CallFault("error", True, times))

    def lose_answer(self, action: str, times: int = 1) -> None:
        """Carry out the next calls of the action, but break the connection before the answer."""
        self._add(action, CallFault("broken", False, times))

    def lose_call(self, action: str, times: int = 1) -> None:
        """Break the connection of the next calls of the action before they have any effect."""
        self._add(action, CallFault("broken", True, times))

    def fail_entries(self, action: str, count: int) -> None:
        """Let the next entries in batches of the action fail, while the other entries succeed."""
        with self._lock:
            self._entries[action] = self._entries.get(action, 0) + count

    def clear(self) -> None:
        with self._lock:
            self._next.clear()
            self._entries.clear()

    def _add(self, action: str, fault: CallFault) -> None:
        with self._lock:
            self._next.setdefault(action, []).append(fault)

    def next(self, action: str) -> CallFault | None:
        """Return the fault of this call of the action, and count it off; None if the call does not fail."""
        with self._lock:
            waiting = self._next.get(action)
            if not waiting:
                return None
            fault = waiting[0]
            fault.left -= 1
            if not fault.left:
                waiting.pop(0)
            return fault

    def entry(self, action: str) -> bool:
        """Return True if this entry of a batch of the action fails, and count it off."""
        with self._lock:
            left = self._entries.get(action, 0)
            self._entries[action] = max(0, left - 1)
            return left > 0
