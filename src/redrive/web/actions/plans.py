"""Freeze a plan, and apply it."""

from __future__ import annotations

from typing import Any

from ...errors import Misread
from ...flow.gates import Gates
from ...simulate import foretell
from ...triage.redrive.options import OPTIONS, OptionKind, PlanOption
from ..ask import Done, PageRequest, Problem
from ..read.plans import handle_of
from ..read.selecting import plannable

COUNT_MAX = 1_000_000  # the most messages of a canary, and the most attempts


def freeze(ask: PageRequest) -> Done:
    """Freeze a plan of the messages that match a selector now. Moves nothing."""
    words = ask.needed("q", "the selector")
    gates = Gates(
        breaker=ask.text("breaker", "closed") != "ignored",
        approval=ask.text("approval") or None,
        window=ask.text("window") or None,
    )
    try:
        made = plannable(ask, words).plan(
            **{option.name: _given(ask, option) for option in OPTIONS},
            gates=None if gates == Gates() else gates,
            note=ask.text("note"),
        )
    except Misread as error:
        why = f"{error.why}\n{error.pointer}" if error.pointer else error.why
        raise Problem(error.what, why, "go back and correct it", 422) from error
    foretell(ask.store, ask.registry, made)
    text = f"{made.total:,} messages are frozen in this plan. Nothing was moved."
    return Done(text, ("plans", made.id), {"id": made.id, "total": made.total})


def _given(ask: PageRequest, option: PlanOption) -> Any:
    """Return the value that the form has for an option of the plan, or the option's default if the form lacks it."""
    match option.kind:
        case OptionKind.FLAG | OptionKind.SWITCH:
            return ask.checked(option.name) if option.name in ask.form else option.default
        case OptionKind.COUNT | OptionKind.DURATION if option.default is None and not ask.text(option.name):
            return None
        case OptionKind.COUNT:
            return ask.number(option.name, option.default or 0, least=option.least, most=min(COUNT_MAX, option.most))
        case OptionKind.DURATION:
            return ask.duration_ms(option.name, "0s") / 1000
        case OptionKind.RULE:  # an empty value means no rule
            return ask.form.get(option.name, option.default)
        case OptionKind.RATE | OptionKind.TEXT:
            return ask.text(option.name) or None


def apply(ask: PageRequest) -> Done:
    """Start the run of a plan. For more than a hundred messages, the user types how many."""
    made = handle_of(ask, ask.needed("id", "the plan"))
    reason = ask.reason
    ask.confirm(made.total)
    run = made.start(reason=reason, actor=ask.actor)
    text = f"The run of {made.total:,} messages is started: any worker of the app carries it."
    return Done(text, ("runs", run.id), {"id": run.id, "total": made.total})
