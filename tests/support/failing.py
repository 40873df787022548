"""Faults of handlers that are run here, as a worker would tell them."""

from __future__ import annotations

from msgspec.structs import replace

from redrive.fault import Fault, classify
from redrive.message import Delivery
from redrive.task import TaskSpec


def failure_of(task: TaskSpec, delivery: Delivery, at_ms: int, worker: str) -> Fault | None:
    """Of a run of the message's handler at that time; None if it did not fail."""
    args, kwargs = task.codec.decode(delivery.message.body, 1)
    try:
        task.handler(*args, **kwargs)
    except Exception as error:
        frame = error.__traceback__
        fault = classify(error.with_traceback(frame and frame.tb_next))  # as it was in a worker
        return replace(fault, at_ms=at_ms, worker=worker)
    return None
