"""The registry of rules: each is a small generator function that looks at one subject of an app."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import cleandoc
from typing import Any, Literal, NamedTuple

from .finding import Hit, Unclear

Subject = Literal["app", "task", "queue", "dependency", "schedule", "celery app", "celery task"]
RuleAnswers = Iterator[Hit | Unclear]
RULES: dict[str, PolicyRule] = {}


class PolicyRule(NamedTuple):
    """A rule by its name. `look(case, subject)` yields its answers about one subject of the kind `of`."""

    name: str
    of: Subject
    look: Callable[[Any, Any], RuleAnswers]

    @property
    def text(self) -> str:
        """What the rule is about, in a few sentences; the first one says what goes wrong."""
        return cleandoc(self.look.__doc__ or "")


def rule(of: Subject) -> Callable[[Callable[[Any, Any], RuleAnswers]], Callable[[Any, Any], RuleAnswers]]:
    """Return a decorator that adds a function to the rules, under its own name with hyphens."""

    def add(look: Callable[[Any, Any], RuleAnswers]) -> Callable[[Any, Any], RuleAnswers]:
        name = look.__name__.replace("_", "-")
        RULES[name] = PolicyRule(name, of, look)
        return look

    return add
