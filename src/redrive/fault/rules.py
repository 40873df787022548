"""A task's own rules: which of its exceptions mean what. Applied before all else."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from .foreign import call
from .looks import Seen
from .values import Kind

Matcher: TypeAlias = type[BaseException] | Callable[[BaseException], object] | re.Pattern[str] | str
Rule: TypeAlias = tuple[Matcher, Kind | str]


def ruled(seen: Seen, rules: Sequence[Rule]) -> Kind | None:
    """The kind of the first rule that matches. One that is malformed or raises does not match."""
    for rule in rules:
        kind: Kind | None = call(_apply, rule, seen)
        if kind is not None:
            return kind
    return None


def _apply(rule: Rule, seen: Seen) -> Kind | None:
    matcher, kind = rule
    if isinstance(matcher, type):
        matches: object = issubclass(type(seen.exception), matcher)
    elif isinstance(matcher, str):
        matches = matcher.lower() in seen.text.lower()
    elif isinstance(matcher, re.Pattern):
        matches = matcher.search(seen.text) is not None
    else:
        matches = matcher(seen.exception)
    return Kind(kind) if matches else None
