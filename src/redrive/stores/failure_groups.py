"""Group dead messages by failure in stores that have no index of failures."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ..fault import Fault
from ..message import BEFORE_MS, TREND_MS, FailureGroup, Message


def grouped(deaths: Iterable[tuple[Message, Fault | None]], trend_ms: int | None) -> list[FailureGroup]:
    """Group dead messages by task and by the fingerprint of the fault that each died of, the largest group first.

    `trend_ms`: the current time if the trend of each group is wanted, or None.
    """
    groups: dict[tuple[str, str], FailureGroup] = {}
    for message, fault in deaths:
        one = _alone(message, fault, trend_ms)
        name = one.fingerprint, one.task
        groups[name] = joined(groups[name], one) if name in groups else one
    return sorted(groups.values(), key=lambda group: (-group.count, group.fingerprint, group.task))


def _alone(message: Message, fault: Fault | None, trend_ms: int | None) -> FailureGroup:
    at_ms = message.rested_ms or 0
    fingerprint, error, text = ("", "", "") if fault is None else (fault.fingerprint, fault.error, fault.text)
    recent = trend_ms is not None and at_ms >= trend_ms - TREND_MS
    earlier = trend_ms is not None and not recent and at_ms >= trend_ms - TREND_MS - BEFORE_MS
    return FailureGroup(fingerprint, message.task, error, text, 1, at_ms, at_ms, message.id, int(recent), int(earlier))


def joined(a: FailureGroup, b: FailureGroup) -> FailureGroup:
    """Return the two groups as one, with the later of their sample ids."""
    return replace(
        a if a.sample_id > b.sample_id else b,
        count=a.count + b.count,
        first_ms=min(a.first_ms, b.first_ms),
        last_ms=max(a.last_ms, b.last_ms),
        recent=a.recent + b.recent,
        earlier=a.earlier + b.earlier,
    )
