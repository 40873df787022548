"""Objectives, their error budgets and burn rates as records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..duration import show

if TYPE_CHECKING:
    from ..history import Burn, SloStatus


def objective_record(status: SloStatus) -> dict[str, Any]:
    firing = {burn.severity for burn in status.firing}
    burns = {f"burn_{show(burn.long_ms / 1000)}": burn for burn in status.burns}
    return {
        "state": "page" if "page" in firing else "ticket" if firing else "ok" if status.all else "no messages",
        "kind": status.kind,
        "name": status.name,
        "objective": str(status.slo),
        "share": status.share,
        "good": status.good,
        "all": status.all,
        "budget_left": status.budget_left,
        **{name: burn.long for name, burn in burns.items()},
        "burns": [_burn(burn) for burn in status.burns],
    }


def _burn(burn: Burn) -> dict[str, Any]:
    return {
        "severity": burn.severity,
        "threshold": burn.threshold,
        "long_s": burn.long_ms // 1000,
        "short_s": burn.short_ms // 1000,
        "long": burn.long,
        "short": burn.short,
        "firing": burn.firing,
    }
