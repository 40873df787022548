"""Workflows: steps that depend on each other. A workflow is a batch whose parts are its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

import msgspec
from msgspec.structs import replace

from .batch.advance import advance
from .batch.fill import new_state, raise_refused, tolerance
from .batch.follow import follow
from .batch.parts import PARTS_MAX, RESULT_KEPT_MS, Part
from .batch.read import need_counts, wholes
from .batch.ref import BatchRef
from .batch.state import BatchState, chunk_swap, swap_of
from .chain import Awaited
from .enqueue import Bound
from .errors import ConfigError, Conflict
from .ids import new_id, part_id
from .message import Draft, Swap
from .registry import Registry
from .run_context import current, refuse_loop

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")
CHUNK_MAX = 250  # members of a step that are stored in one cell, and put in one commit
CHUNK_BYTES = 200_000


class StepResult(Awaited):
    """An argument that is what a step of a workflow returns."""

    def __init__(self, step: Step[Any]) -> None:
        self.step = step

    def __repr__(self) -> str:
        return f"<the result of step {self.step.name!r}>"


class Step(Generic[R]):
    """A step of a workflow. `name` is unique in the workflow, and is the name of its task at first."""

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

    def map(self, task: Bound[[T], Any], items: Iterable[T], *, tolerate: int | str = 0) -> Step[Any]:
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
        connection or session of yours on the store's own database, it is written in its transaction. If there is a
        workflow with the same `key`, nothing is written, and the ref is to that one. Raises ConfigError for a workflow
        without steps or with a circle, EnqueueError, StoreError, Unsupported."""
        refuse_loop("workflow.enqueue()", "await workflow.aenqueue()")
        return self._enqueue(tx)

    async def aenqueue(self, *, tx: Any = None) -> BatchRef:
        """Do as `enqueue` does, without blocking the event loop. With `tx`, it is written on this thread."""
        return self._enqueue(tx) if tx is not None else await asyncio.to_thread(self._enqueue, None)

    def _enqueue(self, tx: Any) -> BatchRef:
        store, id = self._app.store, self._state.id
        need_counts(store, self._state)
        (found,) = wholes(store, [id])
        if found.state is not None:
            return BatchRef(id, store, True)
        chunks = {step.name: [*_chunks(step._drafts)] for step in self._steps}
        parts = self._parts(chunks)
        made = advance(
            replace(self._state, sealed=True, filled_ms=store.now_ms(), parts=parts), found.own, store.now_ms()
        )
        state, members = made.state, list[Draft]()
        first = next((part for part in state.parts if part.feeds), None)
        if first is not None:  # what is put now makes sure that a look follows, which puts the rest
            members = [replace(draft, batch=part_id(id, first.name)) for draft in chunks[first.name][0]]
            state = replace(state, parts=tuple(replace(p, put=1) if p is first else p for p in state.parts))
        for part in state.parts:
            for n in range(part.put, part.chunks):
                self._store(chunk_swap(store, id, part.name, n, chunks[part.name][n]), tx)
        drafts = [*made.steps, *made.callbacks, *members]
        if self._app.tracing is not None:
            drafts = [*self._app.tracing.stamp(drafts)]
        try:
            self._app.put(drafts, swaps=[swap_of(store, state, found.cell)], tx=tx)
        except Conflict:
            if tx is not None:
                raise
            return BatchRef(id, store, True)  # another producer with the same key was faster
        if first is not None and tx is None:
            follow(self._app, [id], raise_refused)
        return BatchRef(id, store)

    def _store(self, swap: Swap, tx: Any) -> None:
        (cell,) = self._app.store.cells.read([swap.key])  # there after a producer with the same key was killed
        self._app.put([], swaps=[replace(swap, version=0 if cell is None else cell.version)], tx=tx)

    def _parts(self, chunks: dict[str, list[list[Draft]]]) -> tuple[Part, ...]:
        """Return the steps as parts, each after those that it waits for."""
        if not 0 < len(self._steps) <= PARTS_MAX:
            raise ConfigError(f"workflow {self._state.name!r} has {len(self._steps)} steps: expected 1 to {PARTS_MAX}")
        try:
            order = [*TopologicalSorter({step: [*step._after] for step in self._steps}).static_order()]
        except CycleError as error:
            names = " → ".join(step.name for step in error.args[1])
            raise ConfigError(f"workflow {self._state.name!r} has steps that wait for each other: {names}") from None
        kept = {step for other in self._steps for step in other._awaits.values()}
        return tuple(
            Part(
                step.name,
                after=tuple(other.name for other in step._after),
                draft=None if step._draft is None else self._stored(step._draft, step, step in kept),
                awaits={argument: other.name for argument, other in step._awaits.items()},
                chunks=len(chunks[step.name]),
                tolerance=step._tolerance,
                keeps=step in kept,
            )
            for step in order
        )

    def _stored(self, draft: Draft, step: Step[Any], keeps: bool) -> Draft:
        draft = replace(draft, correlation_id=draft.correlation_id or self._state.id)
        if not keeps:
            return draft
        if draft.key is not None:
            raise ConfigError(
                f"step {step.name!r} has key=, and a duplicate has no result for later steps: leave it out"
            )
        keep_ms = max(draft.keep_ms, RESULT_KEPT_MS)
        return replace(draft, keep_ms=keep_ms, id=new_id(self._app.store.now_ms()))

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


def workflow(
    app: Registry,
    name: str,
    key: str | None,
    on_success: Draft | None,
    on_complete: Draft | None,
    on_death: Draft | None,
) -> Workflow:
    """See `App.workflow`."""
    return Workflow(app, new_state(app, name, key, on_success, on_complete, on_death))


def _chunks(drafts: Sequence[Draft]) -> Iterator[list[Draft]]:
    chunk, size = list[Draft](), 0
    for draft in drafts:
        bytes = len(msgspec.json.encode(draft))
        if chunk and (len(chunk) == CHUNK_MAX or size + bytes > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(draft)
        size += bytes
    if chunk:
        yield chunk
