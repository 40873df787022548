"""TODO."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ..duration import show as show_duration
from ..triage.redrive.pacing import MAX_PER_S
from .formats import timestamp

if TYPE_CHECKING:
    from ..flow.gates import Gates
    from ..triage.redrive.records import Plan, RedriveSettings


def plan_record(plan: Plan) -> dict[str, Any]:
    """A plan as `-o json` and its file show it."""
    return {
        "id": plan.id,
        "selector": plan.selector,
        "made_at": timestamp(plan.made_ms),
        "total": plan.total,
        "by_queue": dict(plan.by_queue),
        "by_task": dict(plan.by_task),
        "by_age": dict(plan.by_age),
        "excluded": dict(plan.excluded),
        "eta_s": plan.eta_s,
        "settings": _settings(plan.settings),
        "dependencies": dict(plan.dependencies),
        "digest": plan.digest,
    }


def _settings(s: RedriveSettings) -> dict[str, Any]:
    from ..flow.gates import Gates

    return {
        "rate_per_s": s.rate,
        "canary": s.canary,
        "slow_start": s.slow_start,
        "halve_on_failures": s.halve_on_failures,
        "stop_if": s.stop_if or None,
        "attempts": s.attempts,
        "to_queue": s.to_queue,
        "delay_s": s.delay_ms / 1000,
        "spread_s": s.spread_ms / 1000,
        "keep_deadline": s.keep_deadline,
        "gates": msgspec.structs.asdict(s.gates or Gates()),
        "note": s.note or None,
    }


def settings_words(s: RedriveSettings) -> Iterator[str]:
    if s.canary:
        yield f"canary of {s.canary:,}"
    per_s = s.rate or MAX_PER_S
    yield f"{'slow start to ' if s.slow_start and per_s > 1 else ''}{per_s:.6g}/s"
    if s.halve_on_failures:
        yield "half as fast on failures"
    if s.stop_if:
        yield f"stops if {s.stop_if}"
    if s.attempts is None:
        yield "attempts as the policy says"
    else:
        yield "one attempt each" if s.attempts == 1 else f"{s.attempts} attempts each"
    if s.to_queue:
        yield f"to queue {s.to_queue}"
    if s.delay_ms or s.spread_ms:
        spread = f" to {show_duration((s.delay_ms + s.spread_ms) / 1000)}" if s.spread_ms else ""
        yield f"after {show_duration(s.delay_ms / 1000)}{spread}"
    if s.keep_deadline:
        yield "deadlines kept"
    if s.gates is not None:
        yield from _waits(s.gates)


def _waits(gates: Gates) -> Iterator[str]:
    if not gates.breaker:
        yield "whatever breakers say"
    if gates.health:
        yield f"while {gates.health} is well"
    if gates.approval:
        yield f"once approved by {gates.approval}"
    if gates.window:
        yield f"at {gates.window}"
