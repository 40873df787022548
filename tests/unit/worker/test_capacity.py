"""A worker claims as much as it has room for beside the messages that it holds."""

from __future__ import annotations

import math

from redrive.message import Delivery, Message, Receipt
from redrive.registry import Queue
from redrive.worker.capacity import Capacity, QueueLimit, WorkerLimit
from redrive.worker.execution import Execution, InFlightExecutions, WorkerQueue


def executions(queue: str, count: int) -> list[Execution]:
    rules = WorkerQueue(QueueLimit(10, WorkerLimit(10)))
    some = [Message(f"{queue}{n}", "task", queue, b"", "") for n in range(count)]
    return [Execution(Delivery(each, Receipt(each.id, 1), 0), rules, math.inf) for each in some]


def test_the_room_for_a_claim_is_what_the_executions_in_flight_leave() -> None:
    held = InFlightExecutions(("a", "b"), None, None)
    capacity = Capacity([Queue("a", concurrency=3), Queue("b", concurrency=2)], 5, 0, 1000)

    def room() -> dict[str, int]:
        return {ask.queue: ask.limit for ask in capacity.asks(held.counts, [], 60_000, "w")}

    assert room() == {"a": 3, "b": 2}
    of_a, of_b = executions("a", 2), executions("b", 2)
    held.add(of_a)
    held.add(of_b)
    assert (len(held), held.counts) == (4, {"a": 2, "b": 2})
    assert room() == {"a": 1}
    held.remove([of_a[0].delivery, of_b[0].delivery])
    held.remove([of_a[0].delivery])  # counted once, though its lease was lost and it was settled
    assert (len(held), held.counts) == (2, {"a": 1, "b": 1})
    assert room() == {"a": 2, "b": 1}
    held.add(executions("a", 3)[2:])
    held.add(executions("b", 3)[2:])
    held.add(executions("a", 4)[3:])
    assert capacity.asks_to_wait(held.counts, 60_000, "w") == ([], math.inf)  # full
