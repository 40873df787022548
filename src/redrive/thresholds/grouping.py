"""Group alerts with one cause: tasks and queues that an outage of a dependency pushes above a threshold.

While the breaker of a dependency is open, its tasks and queues do not fire one by one: they form one subject, the
dependency. They stay in it until their figures are below the threshold, even after the breaker closes; otherwise each
would fire then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from ..observe.muting import Mutes, dependencies_of, dependency_of, read_mutes
from ..registry import Registry
from ..store import Store
from ..triage.controls import Controls
from .machine import AlertState
from .measure import FigureSubject
from .rule import AlertRule

GROUPED = ("depth", "dead", "age", "error_rate", "p95", "slo_burn")  # figures that an outage of a dependency raises
OPEN = ("open", "half_open", "forced_open")


class Surroundings:
    """Reads mutes and failing dependencies, each at most once per check of all rules."""

    def __init__(self, store: Store, app: Registry) -> None:
        self._store, self._app = store, app

    def muted(self, subject: FigureSubject) -> bool:
        """True if a person muted alerts about the subject. Raises StoreError."""
        if subject.task or subject.queue:
            return self._mutes.cover(queue=subject.queue, task=subject.task)
        schedule = self._app.schedules.get(subject.about)
        if schedule is not None:
            return self._mutes.cover(queue=schedule.queue)
        return self._mutes.cover(dependency=subject.about)

    def cause(self, subject: FigureSubject) -> str | None:
        """Return the dependency whose outage explains the subject: the only one that the task, or the tasks of the
        queue, call, if its breaker is not closed and alerts about the subject are not muted. Raises StoreError."""
        called = [dependency_of(self._app, subject.task)] if subject.task else dependencies_of(self._app, subject.queue)
        if len(called) != 1 or called[0] not in self._failing or self.muted(subject):
            return None
        return called[0]

    @cached_property
    def _mutes(self) -> Mutes:
        return read_mutes(self._store, self._app)

    @cached_property
    def _failing(self) -> frozenset[str]:
        """The dependencies whose breakers are not closed. With `per=` that is the breaker over all keys (`parent=`);
        the breakers of single keys do not count."""
        controls = Controls(self._store, self._app).list(waiting=False)
        split = {c.parent: c.name for c in controls if c.parent is not None}
        return frozenset(split.get(c.name, c.name) for c in controls if c.breaker in OPEN)


def group_values(
    rule: AlertRule,
    states: Mapping[str, AlertState],
    joined: Mapping[str, str],
    figures: Mapping[FigureSubject, float],
    cause: Callable[[FigureSubject], str | None],
) -> tuple[dict[str, float], dict[str, str]]:
    """Return all values, and the dependency of each grouped subject, by key. One that fires alone is not grouped."""
    values: dict[str, float] = {}
    groups = dict(joined)
    for subject, value in figures.items():
        key = key_of(subject)
        if value > rule.above and key not in groups and not states.get(key, AlertState()).fired_ms:
            name = cause(subject)
            if name is not None:
                groups[key] = name
        if key in groups:
            key = key_of(FigureSubject(about=groups[key]))
        values[key] = max(value, values.get(key, value))
    return values, groups


def members(groups: Mapping[str, str], dependency: str) -> Sequence[FigureSubject]:
    """Return the subjects in a dependency's group, in the order of their keys."""
    return [subject_of(key) for key, name in sorted(groups.items()) if name == dependency]


def key_of(subject: FigureSubject) -> str:
    return "\0".join(subject)


def subject_of(key: str) -> FigureSubject:
    return FigureSubject(*key.split("\0"))
