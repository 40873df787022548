"""The tasks and queues that a worker does not claim for now: it leaves them to others, or a person paused them."""

from __future__ import annotations

import math
import time
from collections import defaultdict

from msgspec import Struct

from ...chance import uniform

PAUSE_S = (0.1, 1.0)  # the first and the longest pause, in seconds, in which a known task is left to others
QUEUE_PAUSE_S = (1.0, 3.0)  # the same for all tasks of a queue together, where each received message costs requests
CLOGGED_S = 1.0  # seconds after a clogged claim for which its queue counts as clogged
EVERY_TASK = ""  # means all tasks of a queue, for a store that cannot skip some


class TaskPause(Struct):
    """A pause of a task's claims until `until_s` (`math.inf`: while a worker that knows it lives), and its length.
    `version` is that of the oldest message of an unknown task."""

    until_s: float
    pause_s: float = 0.0
    version: int = 1


class TaskPauses:
    """The tasks that one worker leaves to others, by queue, and those that people paused. Used by the store thread."""

    def __init__(self) -> None:
        self.by_queue: defaultdict[str, dict[str, TaskPause]] = defaultdict(dict)
        self._clogged_s: dict[str, float] = {}  # by queue: when a claim last met too many skipped messages
        self.stopped: frozenset[str] = frozenset()  # queues that hang in this worker
        self.paused: frozenset[str] = frozenset()  # tasks that people paused, of every queue
        self.just_paused: frozenset[str] = frozenset()  # those of them whose claimed messages were not given back yet

    def __bool__(self) -> bool:
        return bool(self.by_queue or self.stopped or self.paused)

    def pause(self, tasks: frozenset[str]) -> None:
        """Claim no messages of these tasks, and again those of earlier ones."""
        self.just_paused = (self.just_paused & tasks) | (tasks - self.paused)
        self.paused = tasks

    def leave(self, queue: str, task: str, version: int) -> None:
        """Claim no messages of this unknown task until `forget`."""
        self.by_queue[queue][task] = TaskPause(math.inf, version=version)

    def rest(self, queue: str, task: str, *, mostly: bool) -> None:
        """Claim no messages of this task for a moment; for longer if most of the last ones were newer (`mostly`)."""
        first_s, most_s = QUEUE_PAUSE_S if task == EVERY_TASK else PAUSE_S
        pause = self.by_queue[queue].setdefault(task, TaskPause(0.0, first_s / 2))
        pause.pause_s = min(most_s, 2 * pause.pause_s) if mostly else PAUSE_S[0]
        pause.until_s = time.monotonic() + uniform(0.5, 1.0) * pause.pause_s

    def forget(self, queue: str, task: str) -> None:
        """Let messages of this task be claimed again."""
        pauses = self.by_queue[queue]
        pauses.pop(task, None)
        if not pauses:
            del self.by_queue[queue]

    def skip(self, queue: str) -> frozenset[str] | None:
        """Return the tasks of the queue that are not to be claimed now; None for all of them."""
        if queue in self.stopped:
            return None
        pauses = self.by_queue.get(queue)
        if not pauses:
            return self.paused
        now_s = time.monotonic()
        names = frozenset(name for name, pause in pauses.items() if pause.until_s > now_s)
        return None if EVERY_TASK in names else names | self.paused

    def wake_ms(self) -> float:
        """Return the ms until the next pause of a task ends."""
        now_s = time.monotonic()
        ends = [p.until_s for pauses in self.by_queue.values() for p in pauses.values() if p.until_s > now_s]
        return (min(ends, default=math.inf) - now_s) * 1000

    def note(self, clogged: frozenset[str]) -> None:
        """Note queues whose claims met so many skipped messages that they found no others."""
        for queue in clogged & self.by_queue.keys():
            self._clogged_s[queue] = time.monotonic()

    def is_clogged(self, queue: str) -> bool:
        """Return True if a claim from the queue was clogged less than CLOGGED_S ago."""
        return time.monotonic() - self._clogged_s.get(queue, -math.inf) < CLOGGED_S
