"""Dependencies as records: breaker, limits, what waits for them."""

from __future__ import annotations

from typing import Any

from ..triage.controls import Control
from .formats import timestamp


def dependency_row(c: Control) -> dict[str, Any]:
    return {
        "dependency": c.name,
        "breaker": c.breaker,
        "until": timestamp(c.until_ms),
        "budget_left": None if c.budget_left is None else round(c.budget_left, 3),
        "rate_per_s": None if c.rate_per_s is None else round(c.rate_per_s, 6),
        "next_slot_at": timestamp(c.next_ms),
        "concurrency": c.concurrency,
        "cool_until": timestamp(c.cool_until_ms),
        "waiting": c.waiting,
        "deferred": dict(c.deferred),
    }


def dependency_record(c: Control) -> dict[str, Any]:
    return {
        **dependency_row(c),
        "key": c.key or None,
        "per": c.per,
        "parent": c.parent,
        "since": timestamp(c.since_ms),
        "opened_in_a_row": c.opened,
        "calls": c.calls,
        "failed": c.failed,
        "probes": c.probes,
        "ramp_per_s": None if c.ramp_per_s is None else round(c.ramp_per_s, 3),
        "workers": c.workers,
        "rates": list(c.rates),
        "mean_cost": None if c.mean_cost is None else round(c.mean_cost, 3),
        "transitions": [
            {
                "at": timestamp(t.at_ms),
                "before": t.before,
                "after": t.after,
                "why": t.why or None,
                "actor": t.actor or None,
                "reason": t.reason or None,
            }
            for t in c.transitions
        ],
    }
