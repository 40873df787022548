"""Declare and check a task's own rules: the kinds of its exceptions. `classify` applies them first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, TypeAlias

from ..errors import ConfigError, near_miss
from .inspection import printable
from .model import Kind

Matcher: TypeAlias = type[BaseException] | Callable[[BaseException], object] | re.Pattern[str] | str
Rule: TypeAlias = tuple[Matcher, Kind | str]

_WORKER_S = (Kind.CRASHED, Kind.INTERRUPTED, Kind.UNREADABLE, Kind.UNROUTABLE)
_KINDS = tuple(kind.value for kind in Kind if kind not in _WORKER_S)
_MATCHERS = "an exception class, a function of the exception, a compiled pattern or a text"


def check_rules(rules: Iterable[Rule], what: str = "rules") -> tuple[Rule, ...]:
    """Return the rules for `classify`, each with its Kind. Raises ConfigError for the first invalid rule.

    `classify` silently skips an invalid rule, so rules are checked at their declaration. `what` names them in the
    error. Refused are: anything but a pair; a class that is not an exception's; a blank text (every text contains it);
    a pattern for bytes; a function that cannot be called with the exception alone, or whose answer would have to be
    awaited or iterated; an unknown kind; and the kinds that only the worker assigns.

    >>> check_rules([(LookupError, "permanent"), ("card declined", "quota")])[1]
    ('card declined', <Kind.QUOTA: 'quota'>)
    """
    given: Any = rules
    if isinstance(given, str | bytes | Mapping | Set) or not isinstance(given, Iterable):
        raise ConfigError(
            f"{what} {printable(given)}: expected a list of pairs [(matcher, kind), …], tried in their order"
        )
    return tuple(_check(rule, f"{what}: rule {number} {printable(rule)}") for number, rule in enumerate(given, 1))


def _check(rule: Any, which: str) -> Rule:
    if not isinstance(rule, tuple | list) or len(rule) != 2:
        raise ConfigError(f"{which}: expected a pair in a list, such as [(ValueError, 'permanent')]")
    matcher, kind = rule
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ConfigError(f"{which}: {_why_no_kind(kind)}; expected (matcher, kind) with one of {', '.join(_KINDS)}")
    if why := _why_no_matcher(matcher):
        raise ConfigError(f"{which}: {why}; expected {_MATCHERS}")
    return matcher, Kind(kind)


def _why_no_kind(kind: object) -> str:
    if not isinstance(kind, str):
        return f"{printable(kind)} is no kind"
    if kind in _WORKER_S:
        return f"only the worker gives the kind {str(kind)!r}"
    near = near_miss(kind.lower(), _KINDS)
    return f"{printable(kind)} is no kind" + (f", did you mean {near!r}?" if near else "")


def _why_no_matcher(matcher: object) -> str:
    """Return why the matcher is invalid; an empty text if it is valid."""
    if isinstance(matcher, type):
        why = f"{matcher.__name__} is no exception class, for a mixin give lambda e: isinstance(e, {matcher.__name__})"
        return "" if issubclass(matcher, BaseException) else why
    if isinstance(matcher, str):
        return "" if matcher.strip() else "a blank text is found in any failure"
    if isinstance(matcher, re.Pattern):
        return "" if isinstance(matcher.pattern, str) else "the pattern is for bytes, texts are searched"
    return _why_no_predicate(matcher) if callable(matcher) else f"{printable(matcher)} cannot match"


def _why_no_predicate(function: Callable[..., object]) -> str:
    import inspect  # imported late: it costs milliseconds, and most rules are classes

    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    if any(is_kind(each) for is_kind in kinds for each in (function, type(function).__call__)):
        return "it answers with a coroutine or a generator, which is always true"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some C functions have no signature
        return ""
    try:
        signature.bind(Exception())
    except TypeError as error:
        return f"it cannot be called with the exception alone ({error})"
    return ""
