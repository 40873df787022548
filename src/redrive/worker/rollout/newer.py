"""Leave messages of a newer release to the workers that know them.

A message whose task, version or arguments are unknown here is released at once if a living worker of its queue knows
them (`presence.knowledge`). From then on this worker claims no messages of an unknown task, and for a moment none of a
task that it knows in an older version. While no worker knows the message, it is parked, as `decide` decides.

Before the first such message this costs nothing: claims stay the same, and nothing is read.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from ...chance import uniform
from ...decide import PARK_LOOK_FIRST_MS, PARK_LOOK_MS, Signals
from ...message import RetryAt
from ...presence import Knowledge
from ...store import Store
from ...task import TaskSpec
from ..execution import Execution, judge
from ..services import Service
from .pauses import EVERY_TASK, PAUSE_S, TaskPauses

FRESH_S = 1.0  # seconds for which knowledge about other workers may be used before it is read again
READ_S = 2.0  # seconds between two reads of that knowledge while a task is left to other workers
UNSEEN_MS = 4_000  # ms between two claims of a message if a newer worker cannot wake it when it starts
ROUND = 8  # receives of a message, each by another worker, before it waits: as a mean
AGAIN_S = (1.0, 3.0)  # seconds until a released message is due, if this worker cannot leave it in its place


class Newer(Service):
    """Leaves messages of newer releases to other workers. Used by the store thread.

    `held` returns all executions of the worker. A `burst` leaves no message due, as it would wait for that.
    """

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, TaskSpec],
        held: Callable[[], Sequence[Execution]],
        pauses: TaskPauses,
        *,
        burst: bool,
    ) -> None:
        self._store, self._tasks, self._held, self._pauses, self._burst = store, tasks, held, pauses, burst
        self._knowledge = Knowledge(store) if store.traits.cells else None
        self._read_s = -math.inf

    def decide(self, executions: Sequence[Execution]) -> None:
        """Decide again about executions that may be of a newer release, by what other workers know. Raises
        StoreError."""
        unknown = [execution for execution in executions if execution.unroutable is not None]
        if unknown and self._knowledge is None:
            self._guess(unknown)
        elif unknown and self._knowledge is not None:
            self._decide(unknown, self._knowledge)

    def _decide(self, unknown: Sequence[Execution], knowledge: Knowledge) -> None:
        self._refresh(knowledge, FRESH_S)
        now_ms, parked = self._store.now_ms(), defaultdict[str, set[str]](set)
        left: list[Execution] = []
        for execution in unknown:
            message, signals = execution.delivery.message, execution.unroutable
            assert signals is not None
            known_ms = self._known_ms(knowledge, execution, signals)
            again_ms = self._again_ms(execution, now_ms) if knowledge.is_alive(known_ms) else None
            execution.decision = execution.fault = None
            judge(execution, replace(signals, known_ms=known_ms or 0, again_ms=again_ms), now_ms)
            if again_ms is None:
                parked[message.queue].add(message.task)
                if not self._store.traits.finds:
                    _look_again(execution, now_ms + UNSEEN_MS, at_most=True)
            else:
                left.append(execution)
        for queue, tasks in parked.items():
            knowledge.waits(queue, sorted(tasks))
        if left and not self._burst:
            self._leave(left)

    def _guess(self, unknown: Sequence[Execution]) -> None:
        """Release unknown messages to other workers first, as these do not report what they know: SQS without cells. A
        message goes from worker to worker at once, as each pauses the queue after it. After about ROUND of them it
        waits, longer each time."""
        now_ms = self._store.now_ms()
        for execution in unknown:
            fence = execution.delivery.message.fence
            if self._burst:
                wait_ms = PARK_LOOK_FIRST_MS * fence
            else:  # by chance, as a quiesced receiver counts in `fence` too, and could hide each last one of a round
                wait_ms = PARK_LOOK_FIRST_MS * -(-fence // ROUND) if uniform(0.0, 1.0) < 1 / ROUND else 0
            _look_again(execution, now_ms + min(PARK_LOOK_MS, wait_ms))
        if not self._burst and not self._store.traits.skips:
            self._leave([execution for execution in unknown if isinstance(execution.decision, RetryAt)])

    def _known_ms(self, knowledge: Knowledge, execution: Execution, signals: Signals) -> int | None:
        message, task = execution.delivery.message, self._tasks.get(execution.delivery.message.task)
        above = task.version if task is not None and signals.unknown else None
        return knowledge.known_ms(message.queue, message.task, message.version, signals.unknown, above)

    def _again_ms(self, execution: Execution, now_ms: int) -> int:
        """Return when the message is due again: at its old time, to keep its place, if this worker can skip it."""
        if self._burst or self._pauses.is_clogged(execution.delivery.message.queue):
            return now_ms + round(uniform(*AGAIN_S) * 1000)
        return min(now_ms, execution.delivery.due_ms or now_ms)

    def _leave(self, executions: Sequence[Execution]) -> None:
        """Stop claiming messages of these executions' tasks, while a worker knows the task or for a moment."""
        held, skips = self._held(), self._store.traits.skips
        if not skips:
            self._store.quiesce({execution.delivery.message.queue for execution in executions})
        groups: defaultdict[tuple[str, str], list[Execution]] = defaultdict(list)
        for execution in executions:
            groups[execution.delivery.message.queue, execution.delivery.message.task if skips else EVERY_TASK].append(
                execution
            )
        for (queue, name), some in groups.items():
            if name != EVERY_TASK and name not in self._tasks:
                self._pauses.leave(queue, name, min(execution.delivery.message.version for execution in some))
                continue
            like = [
                execution
                for execution in held
                if execution.queue is some[0].queue and name in (EVERY_TASK, execution.delivery.message.task)
            ]
            self._pauses.rest(queue, name, mostly=2 * len(some) >= len(like))

    def look(self, *, now: bool = False) -> None:
        """Resume claims of tasks that no living worker knows any more."""
        knowledge = self._knowledge
        if not self._pauses or knowledge is None or time.monotonic() - self._read_s < READ_S:
            return
        self._refresh(knowledge, READ_S)
        old_s = time.monotonic() - 2 * PAUSE_S[1]  # pauses before this are forgotten
        for queue, pauses in [*self._pauses.by_queue.items()]:
            for name, pause in [*pauses.items()]:
                if math.isinf(pause.until_s):
                    over = not knowledge.is_alive(knowledge.known_ms(queue, name, pause.version))
                else:
                    over = pause.until_s < old_s
                if over:
                    self._pauses.forget(queue, name)

    def _refresh(self, knowledge: Knowledge, fresh_s: float) -> None:
        if time.monotonic() - self._read_s >= fresh_s:
            knowledge.read()
            self._read_s = time.monotonic()


def _look_again(execution: Execution, at_ms: int, *, at_most: bool = False) -> None:
    """Let a parked execution be due at `at_ms`; with `at_most`, at its own due time if that is earlier."""
    decision = execution.decision
    if isinstance(decision, RetryAt) and decision.why == "parked":
        execution.decision = replace(decision, at_ms=min(at_ms, decision.at_ms) if at_most else at_ms)
