"""Counts of several queues together."""

from __future__ import annotations

from collections.abc import Collection

from ..message import Counts


def total(counts: Collection[Counts]) -> Counts:
    """Their sum; the age is that of the oldest."""
    return Counts(
        ready=sum(c.ready for c in counts),
        scheduled=sum(c.scheduled for c in counts),
        leased=sum(c.leased for c in counts),
        dead=sum(c.dead for c in counts),
        quarantine=sum(c.quarantine for c in counts),
        done=sum(c.done for c in counts),
        oldest_age_s=max((c.oldest_age_s for c in counts), default=0.0),
    )
