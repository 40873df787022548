"""Count messages by lane, and add up the counts of several queues."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..message import Counts, Lane, Message


def total(counts: Collection[Counts]) -> Counts:
    """Return the sum of the counts, with the largest age among them."""
    return Counts(
        ready=sum(c.ready for c in counts),
        scheduled=sum(c.scheduled for c in counts),
        leased=sum(c.leased for c in counts),
        dead=sum(c.dead for c in counts),
        quarantine=sum(c.quarantine for c in counts),
        done=sum(c.done for c in counts),
        oldest_age_s=max((c.oldest_age_s for c in counts), default=0.0),
        parked=sum(c.parked for c in counts),
    )


def counted(messages: Iterable[Message], now: int) -> Counts:
    """Count messages by lane at the time `now`, in ms; the age is that of the oldest message in ready."""
    numbers = dict.fromkeys(("ready", "scheduled", "parked", "leased", "dead", "quarantine", "done"), 0)
    oldest_ms = now
    for message in messages:
        lane = "done" if message.lane is Lane.DONE else message.state_at(now)
        numbers[lane] += 1
        if lane == "ready":
            oldest_ms = min(oldest_ms, message.due_ms or 0)
    return Counts(**numbers, oldest_age_s=(now - oldest_ms) / 1000)
