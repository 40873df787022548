"""TODO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..duration import show

if TYPE_CHECKING:
    from ..history import Burn, SloStatus


def objective_record(found: SloStatus) -> dict[str, Any]:
    """An objective as a row."""
    firing = {burn.severity for burn in found.firing}
    burns = {f"burn_{show(burn.long_ms / 1000)}": burn for burn in found.burns}
    return {
        "state": "page" if "page" in firing else "ticket" if firing else "ok" if found.all else "no messages",
        "kind": found.kind,
        "name": found.name,
        "objective": str(found.slo),
        "share": found.share,
        "good": found.good,
        "all": found.all,
        "budget_left": found.budget_left,
        **{name: burn.long for name, burn in burns.items()},
        "burns": [_burn(burn) for burn in found.burns],
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
