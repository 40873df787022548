"""Explain why a message waits for its due time, or is due and not claimed."""

from __future__ import annotations

from ..decide import LOCKED, parked_since_ms
from ..message import Counts, Message
from .flow import deferral_hold
from .hold import Hold, words

IDLE_MS = 10_000  # ms: if a message is due for so long, and none of its queue is leased, no worker runs
STUCK_S = 60.0  # seconds for which a message is due in the outbox before a person should check that
_SCHEDULE = "redrive-schedule"


def time_hold(message: Message) -> Hold:
    """Return the hold of a message whose due time is in the future. Pure."""
    if parked_since_ms(message) is not None:
        text = f"a message of {message.task} waits for a newer worker: {message.faults[-1].text}"
        return _hold(message, "no_task", message.task, text, True)
    last = message.faults[-1] if message.faults else None
    if last is not None and last.error == LOCKED and last.at_ms >= message.life_ms:
        return _hold(message, "no_key", message.task, f"no worker has its key: {last.text}", True)
    deferral = deferral_hold(message)
    if deferral is not None:
        return deferral
    if last is not None and last.at_ms >= message.life_ms:
        text = f"attempt {last.attempt} failed with {last.error}" if last.attempt else f"it failed with {last.error}"
        return _hold(message, "retry", message.queue, text)
    if (run := message.run_id) is not None:
        text = f"redrive run {run} delays and spreads what it moves"
        return _hold(message, "spread", f"run {run}", text, next=words("run", "show", run))
    if (schedule := message.headers.get(_SCHEDULE)) is not None:
        return _hold(message, "spread", f"schedule {schedule}", f"schedule {schedule} spreads its messages (jitter)")
    return _hold(message, "delay", message.queue, "redriven for later" if message.redrives else "enqueued for later")


def due_hold(message: Message, *, leased: int, waiting: int, worked: bool | None, now_ms: int) -> Hold:
    """Return the hold of a due message that is not claimed. `leased` messages of its queue are running, `waiting` ones
    are due. `worked`: True if a living worker claims from the queue, None if unknown. Pure."""
    overdue_ms = now_ms - (message.due_ms or message.enqueued_ms)
    if not leased and not worked and overdue_ms >= IDLE_MS:
        return no_worker(message.queue, known=worked is not None, count=1)
    text = f"it is due; {leased:,} of queue {message.queue} are running and {waiting:,} are due"
    return Hold(kind="turn", by=message.queue, text=text, next=words("queue", "list"), queue=message.queue, count=1)


def no_worker(queue: str, *, known: bool, count: int) -> Hold:
    """Return the hold of `count` due messages of a queue without a worker. `known`: True if workers report."""
    text = f"no worker seems to run queue {queue}: nothing in it runs, and a message is due"
    if known:
        text = f"no worker that is alive runs queue {queue}" + (", and a message is due" if count else "")
    next = words("worker", "-q", queue)
    return Hold(kind="no_worker", by=queue, text=text, next=next, needs_person=True, queue=queue, count=count)


def outbox_hold(queue: str, counts: Counts) -> Hold:
    """Return the hold of redriven messages that have not been sent back to SQS yet."""
    count = counts.waiting + counts.leased
    stuck = counts.oldest_age_s >= STUCK_S
    text = f"redriven messages of queue {queue} wait in the outbox to be sent back"
    text += "; the queue takes nothing, or no worker runs" if stuck else ""
    return Hold(
        kind="outbox", by=queue, text=text, next=words("doctor"), needs_person=stuck, queue=queue, count=count,
    )  # fmt: skip


def _hold(message: Message, kind: str, by: str, text: str, needs_person: bool = False, next: str | None = None) -> Hold:
    return Hold(
        kind=kind,
        by=by,
        text=text,
        until_ms=message.due_ms,
        next=words("job", "show", message.id) if next is None else next,
        needs_person=needs_person,
        queue=message.queue,
        count=1,
    )
