"""What a check reads: an app, what is assumed about its load, and what its store knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from msgspec import Struct

from ..flow.dependency import Dependency
from ..registry import Queue, Registry
from ..schedule import Schedule
from ..stores.sqs.preflight import QueueFacts
from ..task import TaskSpec
from ..worker.flow.local_state import controls, is_rate
from .rules import RULES, PolicyRule

RATE_NEEDED = "how many messages come: --rate, or --url with history"
RUN_NEEDED = "how long a run takes: --run, or --url with history"
FAILING_NEEDED = "how many first attempts fail: --failing, or --url with history"


class Assumptions(Struct, frozen=True, kw_only=True):
    """What is assumed where nothing is measured: durations in seconds, rates in messages a second. None: unknown.

    `rates_per_s` is by task; the empty name stands for every other task. `calls_max` bounds the calls that one message
    may make, `group_wait_s` what a group may wait for its head.
    """

    outage_s: float | None = None
    rates_per_s: Mapping[str, float] = {}
    run_s: float | None = None
    failing: float | None = None
    retry_after_s: float | None = None
    deadline_s: float | None = None
    function_s: float | None = None
    blobs_s: float | None = None
    connections: int | None = None
    lease_s: float = 30.0
    processes: int = 1
    calls_max: int = 200
    group_wait_s: float = 3600.0


class Measured(Struct, frozen=True, kw_only=True):
    """What the history of a store says of a task: messages a second in the hours with any, the duration of runs that 95
    of 100 do not exceed, the share of first attempts that failed, and the longest Retry-After among its messages."""

    rate_per_s: float | None = None
    run_s: float | None = None
    failing: float | None = None
    retry_after_s: float | None = None


class StoreFacts(Struct, frozen=True, kw_only=True):
    """What a check reads from a store: its engine, figures by task, the facts of queues on SQS, and objections."""

    engine: str = ""
    measured: Mapping[str, Measured] = {}
    queues: Mapping[str, QueueFacts] = {}


class Called(NamedTuple):
    """A dependency with the tasks that call it."""

    declared: Dependency
    tasks: tuple[TaskSpec, ...]

    @property
    def name(self) -> str:
        return self.declared.name


class Case:
    """An app under check, with everything that rules ask about it."""

    app: Registry
    assume: Assumptions
    facts: StoreFacts

    def __init__(
        self, app: Registry, assume: Assumptions | None = None, facts: StoreFacts | None = None, engine: str = ""
    ) -> None:
        self.app, self.assume, self.facts = app, assume or Assumptions(), facts or StoreFacts()
        self.opens_s: dict[str, float] = {}  # by dependency: when its breaker opens in an outage; played once
        self.engine: str = self.facts.engine or engine

    @property
    def rules(self) -> list[PolicyRule]:
        """The rules that apply."""
        return [one for one in RULES.values() if not one.of.startswith("celery")]

    def celery_subjects(self, of: str) -> Iterator[tuple[Any, str, tuple[TaskSpec, ...]]]:
        """Yield the subjects that only an app of Celery has, each with its name and its tasks."""
        yield from ()

    def _measured(self, task: TaskSpec) -> Measured:
        return self.facts.measured.get(task.name, Measured())

    def rate_of(self, task: TaskSpec) -> float | None:
        """Return how many messages of the task come in a second; None if unknown."""
        rates = self.assume.rates_per_s
        return rates.get(task.name, rates.get("", self._measured(task).rate_per_s))

    def rate_of_all(self, tasks: tuple[TaskSpec, ...]) -> float | None:
        """Return how many messages of all these tasks come in a second; None if that is unknown of one."""
        rates = [self.rate_of(task) for task in tasks]
        return None if None in rates else sum(rate for rate in rates if rate is not None)

    def run_s(self, task: TaskSpec) -> float | None:
        """Return how long a run of the task takes; None if unknown."""
        return self.assume.run_s if self.assume.run_s is not None else self._measured(task).run_s

    def failing(self, task: TaskSpec) -> float | None:
        """Return the share of first attempts that fail in ordinary times; None if unknown."""
        return self.assume.failing if self.assume.failing is not None else self._measured(task).failing

    def retry_after_s(self, task: TaskSpec) -> float | None:
        """Return the longest wait that what the task calls asks for; None if unknown."""
        given = self.assume.retry_after_s
        return given if given is not None else self._measured(task).retry_after_s

    def queue(self, name: str) -> Queue:
        """Return the declaration of a queue, or the defaults."""
        return self.app.queues.get(name) or Queue(name)

    def slots(self, queue: str) -> int:
        """Return how many messages of a queue the whole fleet runs at once."""
        return self.queue(queue).concurrency * self.assume.processes

    def on(self, queue: str) -> tuple[TaskSpec, ...]:
        """Return the tasks on a queue, those included that schedules put there."""
        here = [task for task in self.tasks.values() if task.queue == queue]
        return tuple(dict.fromkeys([*here, *(s.task for s in self.schedules.values() if s.queue == queue)]))

    @property
    def tasks(self) -> Mapping[str, TaskSpec]:
        return self.app.tasks

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        return self.app.schedules

    def controls_of(self, task: TaskSpec) -> tuple[Dependency, ...]:
        """Return the rates and the dependency of a task, as a worker applies them."""
        return controls(self.app, task.name, task.queue)

    def dependency_of(self, task: TaskSpec) -> Dependency | None:
        """Return the dependency that a task calls, declared or with the defaults."""
        return next((d for d in reversed(self.controls_of(task)) if not is_rate(d.name)), None)

    @cached_property
    def dependencies(self) -> dict[str, Called]:
        """The dependencies that tasks call, by name."""
        by_name: dict[str, Called] = {}
        for task in self.tasks.values():
            if (d := self.dependency_of(task)) is not None:
                others = by_name[d.name].tasks if d.name in by_name else ()
                by_name[d.name] = Called(d, (*others, task))
        return by_name
