"""Plans as records, and their options in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..triage.redrive.options import OPTIONS
from .formats import timestamp

if TYPE_CHECKING:
    from ..triage.redrive.records import Plan, RedriveSettings


def plan_record(plan: Plan) -> dict[str, Any]:
    """Return a plan as a record, as `-o json` and the plan's file have it."""
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
        "lasting": plan.lasting,
        "digest": plan.digest,
    }


def _settings(s: RedriveSettings) -> dict[str, Any]:
    from ..flow.gates import Gates

    gates = msgspec.structs.asdict(s.gates or Gates())
    return {
        **dict(option.record(s) for option in OPTIONS),
        "gates": gates,
        "note": s.note or None,
        "hurry": s.hurry,
        "edit": s.edit,
    }
