"""Hold breakers open or closed, and end cool-downs, ramps and spent budgets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...errors import ConfigError
from ...triage.controls import Control
from ..ask import Done, PageRequest, Problem
from ..read.flow import WORDS, controls


def open_breaker(ask: PageRequest) -> Done:
    """Hold a breaker open, for a time or until it is released."""
    return _breaker(ask, partial(controls(ask).open, for_=ask.lasting("for")))


def close_breaker(ask: PageRequest) -> Done:
    """Hold a breaker closed, for a time or until it is released."""
    return _breaker(ask, partial(controls(ask).close, for_=ask.lasting("for")))


def auto_breaker(ask: PageRequest) -> Done:
    """Release a breaker."""
    return _breaker(ask, controls(ask).auto)


def end_cooldown(ask: PageRequest) -> Done:
    """End the cool-down that a dependency asked for."""
    return _done(_changed(ask, controls(ask).end_cooldown), "Its cool-down is over.")


def reset_budget(ask: PageRequest) -> Done:
    """Reset a retry budget."""
    return _done(_changed(ask, controls(ask).reset_budget), "Its retry budget is full again.")


def end_ramp(ask: PageRequest) -> Done:
    """End a ramp, so that waiting messages run at once."""
    return _done(_changed(ask, controls(ask).end_ramp), "Its ramp is over: what waits may go at once.")


def _breaker(ask: PageRequest, act: Callable[..., Control]) -> Done:
    control = _changed(ask, act)
    return _done(control, f"Its breaker is {WORDS[control.breaker]}.")


def _changed(ask: PageRequest, act: Callable[..., Control]) -> Control:
    name, key = ask.needed("dependency"), ask.text("key")
    if name not in controls(ask).names():
        raise Problem(f"there is no dependency {name!r}", "no task names it, and none was ever called", "", 404)
    try:
        return act(name, key=key, reason=ask.reason, actor=ask.actor)
    except (ConfigError, ValueError) as error:
        raise Problem(str(error), status=422) from error


def _done(control: Control, text: str) -> Done:
    record = {"dependency": control.name, "key": control.key or None, "breaker": control.breaker}
    return Done(f"{control.about}: {text}", ("flow", control.name), record, {"key": control.key} if control.key else {})
