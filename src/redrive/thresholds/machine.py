"""Decide when a threshold alert fires and ends. Pure, so every process decides the same."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from .rule import AlertRule


class AlertState(Struct, frozen=True, array_like=True):
    """The state of a subject of a rule: since when it has been above the threshold (0: it is not) or, while it fires,
    below it; when it fired (0: it does not fire); when the last alert was sent; and the last value."""

    above_ms: int = 0
    below_ms: int = 0
    fired_ms: int = 0
    sent_ms: int = 0
    value: float = 0.0


def step(
    rule: AlertRule, state: AlertState, value: float | None, now_ms: int, *, muted: bool = False
) -> tuple[AlertState | None, str | None]:
    """Return the next state (None: nothing to store), and the alert to send: firing, resolved or None.

    A `value` of None means that the subject is gone, such as an empty queue, and counts as below the threshold. While
    `muted`, no firing alert is sent; if the subject still fires afterwards, the alert is sent then. A resolved alert
    follows each firing alert that was sent, even while muted, and no other.
    """
    if value is not None and value > rule.above:
        above_ms = state.above_ms or now_ms
        now = replace(state, above_ms=above_ms, below_ms=0, value=value)
        if state.fired_ms:
            if muted or (state.sent_ms and now_ms - state.sent_ms < rule.every_ms):
                return now, None
            return replace(now, sent_ms=now_ms), "firing"
        if now_ms - above_ms < rule.for_ms:
            return now, None
        if muted:
            return replace(now, fired_ms=now_ms, sent_ms=0), None
        return replace(now, fired_ms=now_ms, sent_ms=now_ms), "firing"
    if not state.fired_ms:
        return None, None
    below_ms = state.below_ms or now_ms
    if now_ms - below_ms < rule.for_ms:
        return replace(state, below_ms=below_ms, value=value or 0.0), None
    return None, "resolved" if state.sent_ms else None
