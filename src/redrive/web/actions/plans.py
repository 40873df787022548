"""Freeze a plan, and apply it."""

from __future__ import annotations

from ...errors import Misread
from ...flow.gates import Gates
from ...triage.redrive.pacing import CANARY, SLOW_START, STOP_IF
from ..ask import Done, PageRequest, Problem
from ..read.plans import handle_of
from ..read.selecting import chosen

CANARY_MAX = 1_000_000


def freeze(ask: PageRequest) -> Done:
    """Freeze which messages a selector names now, and how they would move. Moves nothing."""
    words = ask.needed("q", "the selector")
    canary = ask.number("canary", CANARY, most=CANARY_MAX)
    attempts = ask.number("attempts", 0, most=CANARY_MAX)
    stop = ask.form.get("stop_if", STOP_IF)
    gates = Gates(
        breaker=ask.text("breaker", "closed") != "ignored",
        approval=ask.text("approval") or None,
        window=ask.text("window") or None,
    )
    try:
        made = chosen(ask, words).plan(
            rate=ask.text("rate") or None,
            canary=canary,
            slow_start=ask.checked("slow_start") if "slow_start" in ask.form else SLOW_START,
            halve_on_failures=ask.checked("halve_on_failures"),
            stop_if=stop,
            attempts=attempts or None,
            to_queue=ask.text("to_queue") or None,
            delay=ask.duration_ms("delay", "0s") / 1000,
            spread=ask.duration_ms("spread", "0s") / 1000,
            keep_deadline=ask.checked("keep_deadline"),
            gates=None if gates == Gates() else gates,
            note=ask.text("note"),
        )
    except Misread as error:
        why = f"{error.why}\n{error.pointer}" if error.pointer else error.why
        raise Problem(error.what, why, "go back and correct it", 422) from error
    text = f"{made.total:,} messages are frozen in this plan. Nothing was moved."
    return Done(text, ("plans", made.id), {"id": made.id, "total": made.total})


def apply(ask: PageRequest) -> Done:
    """Start the run of a plan. Above a hundred messages, their number is typed."""
    made = handle_of(ask, ask.needed("id", "the plan"))
    reason = ask.reason
    ask.confirm(made.total)
    run = made.start(reason=reason, actor=ask.actor)
    text = f"The run of {made.total:,} messages is started: any worker of the app carries it."
    return Done(text, ("runs", run.id), {"id": run.id, "total": made.total})
