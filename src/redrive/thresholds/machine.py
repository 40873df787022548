"""Decide when an alert on a threshold fires and ends: pure, so that every process decides alike."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from .rule import AlertRule


class AlertState(Struct, frozen=True, array_like=True):
    """One subject of a rule: since when it is above the threshold without a break (0: it is not), since when it has
    been below while it fires, when it fired (0: it does not), when the last alert was sent, and its last value."""

    above_ms: int = 0
    below_ms: int = 0
    fired_ms: int = 0
    sent_ms: int = 0
    value: float = 0.0


def step(
    rule: AlertRule, state: AlertState, value: float | None, now_ms: int, *, muted: bool = False
) -> tuple[AlertState | None, str | None]:
    """The next state, None once there is nothing to remember, and the alert to send: firing, resolved or None.

    `value`: None where the subject is gone, such as a queue that is empty: that is below. While it is `muted` no
    firing alert is sent: one that still fires afterwards is sent then. A resolved alert follows each firing one that
    was sent, also while it is muted, and no other.
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
