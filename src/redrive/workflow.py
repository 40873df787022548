"""Workflows: steps that depend on each other. A workflow is a batch whose parts are its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from .batch import BatchRef, BatchState, PlannedStep, enqueue_steps, tolerance
from .chain import Awaited
from .enqueue import Bound
from .errors import ConfigError
from .message import Draft
from .registry import Registry
from .run_context import current, refuse_loop

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")


class StepResult(Awaited):
    """An argument that is what a step of a workflow returns."""

    def __init__(self, step: Step[Any]) -> None:
        self.step = step

    def __repr__(self) -> str:
        return f"<the result of step {self.step.name!r}>"


class Step(Generic[R]):
    """A step of a workflow. `name` is unique in the workflow, and is the name of its task at first."""

    name: str

    def __init__(self, workflow: Workflow, name: str, draft: Draft | None, drafts: Sequence[Draft] = ()) -> None:
        self._workflow, self.name, self._draft, self._drafts = workflow, name, draft, drafts
        self._after: dict[Step[Any], None] = {}
        self._awaits: dict[str, Step[Any]] = {}
        self._tolerance = tolerance(0)

    @property
    def result(self) -> R:
        """What the step returns, as an argument of later steps, which so begin after it. Raises ConfigError for a step
        of several messages, which has several results."""
        if self._draft is None:
            raise ConfigError(f"step {self.name!r} has several messages, and no one result")
        return StepResult(self)  # type: ignore[return-value]

    def after(self, *steps: Step[Any]) -> Self:
        """Begin once these steps are done, too."""
        for step in steps:
            self._workflow._need_own(step)
        self._after |= dict.fromkeys(steps)
        return self

    def named(self, name: str) -> Self:
        """Give the step this name. Raises ConfigError if another step has it."""
        if name != self.name:
            self.name = self._workflow._free(name, "")
        return self


class Workflow:
    """Steps with dependencies that are enqueued together. Made by `app.workflow(…)`."""

    def __init__(self, app: Registry, state: BatchState) -> None:
        self._app, self._state = app, state
        self._steps: list[Step[Any]] = []

    @overload
    def step(self, task: Bound[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> Step[T]: ...

    @overload
    def step(self, task: Bound[P, R], *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...

    def step(self, task: Bound[P, Any], *args: Any, **kwargs: Any) -> Step[Any]:
        """Add a step: one message of this task, or of `task.using(…)`. It begins at once, or after the steps whose
        `result` is an argument. Raises TypeError, EncodeError for arguments that the task does not take."""
        awaits = dict[str, Step[Any]]()
        if any(isinstance(value, Awaited) for value in (*args, *kwargs.values())):
            body, awaited = task._task.codec.encode_step(args, kwargs)
            for argument, value in awaited.items():
                if not isinstance(value, StepResult):
                    raise ConfigError(f"argument {argument!r}: {value!r} is for app.chain; give the result of a step")
                awaits[argument] = self._need_own(value.step)
            draft = task._draft(current(), body=body)
        else:
            draft = task.draft(*args, **kwargs)
        made = self._add(draft.task, draft)
        made._awaits = awaits
        return made.after(*awaits.values())

    def map(self, task: Bound[Concatenate[T, ...], Any], items: Iterable[T], *, tolerate: int | str = 0) -> Step[Any]:
        """Add a step of many messages: one of this task for each item. It is done once all are, but for the failures
        that it tolerates ("5%", or a number). Items of a step that waits for others are stored until it begins."""
        return self.all((task.draft(item) for item in items), name=task._task.name, tolerate=tolerate)

    def all(self, drafts: Iterable[Draft], *, name: str, tolerate: int | str = 0) -> Step[Any]:
        """Add a step of many messages, whatever their tasks. See `map`."""
        made = self._add(name, None, list(drafts))
        made._tolerance = tolerance(tolerate)
        return made

    def enqueue(self, *, tx: Any = None) -> BatchRef:
        """Put the workflow and the messages of its first steps; durable when it returns its ref. With `tx`, a
        connection or session of yours on the store's own database, it is written in its transaction; the steps of many
        messages that begin at once then have at most 10,000. If there is a workflow with the same `key`, nothing is
        written, and the ref is to that one. Raises ConfigError for a workflow without steps or with a circle,
        EnqueueError, StoreError, Unsupported."""
        refuse_loop("workflow.enqueue()", "await workflow.aenqueue()")
        return self._enqueue(tx)

    async def aenqueue(self, *, tx: Any = None) -> BatchRef:
        """Do as `enqueue` does, without blocking the event loop. With `tx`, it is written on this thread."""
        return self._enqueue(tx) if tx is not None else await asyncio.to_thread(self._enqueue, None)

    def _enqueue(self, tx: Any) -> BatchRef:
        kept = {step for other in self._steps for step in other._awaits.values()}
        return enqueue_steps(
            self._app,
            self._state,
            [
                PlannedStep(
                    step.name,
                    step._draft,
                    step._drafts,
                    tuple(other.name for other in step._after),
                    {argument: other.name for argument, other in step._awaits.items()},
                    step._tolerance,
                    step in kept,
                )
                for step in self._steps
            ],
            tx,
        )

    def _add(self, name: str, draft: Draft | None, drafts: Sequence[Draft] = ()) -> Step[Any]:
        made = Step[Any](self, self._free(name.replace("/", "."), "-"), draft, drafts)
        self._steps.append(made)
        return made

    def _free(self, name: str, joint: str) -> str:
        """Return the name, followed by a number if another step has it and there is a joint for that."""
        known = {step.name for step in self._steps}
        if not name or "/" in name or (name in known and not joint):
            raise ConfigError(f"step name {name!r}: expected a text without '/' that no other step has")
        return (
            name if name not in known else next(n for i in range(2, 10**9) if (n := f"{name}{joint}{i}") not in known)
        )

    def _need_own(self, step: Step[Any]) -> Step[Any]:
        if step._workflow is not self:
            raise ConfigError(f"step {step.name!r} is of another workflow: a step waits for steps of its own workflow")
        return step
