"""Turn a task that Celery sent into a message of the app's task of that name, and follow its links and chain.

A header of the message has its links and chain, with the bridge's proof. When the handler returns, a wrap enqueues the
next tasks in the commit of the ack. If the next one is a chord, that is a message of the task `celery.canvas`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ...app import App
from ...enqueue import Bound
from ...errors import EnqueueError, Reject, near_miss
from ...message import BATCH_HEADER, NORMAL, Draft
from ...run_context import Context
from .canvas import (
    TIMES,
    CanvasStep,
    body_of,
    header_of,
    leaf,
    linked,
    results,
    results_at_once,
    steps_of,
    tasks_of,
)
from .chords import AT, Arrival, Chords, batch_of
from .envelope import CeleryTask, CeleryUnsupported, ChordEnd, Next, Signature, end_of, signatures, when
from .proof import Proofs

PARKED = "celery.message"  # the task of the messages that cannot be translated
CANVAS = "celery.canvas"  # the task of the messages that run chords
RESULTS_FOR = "7d"  # how long a result is kept for the other tasks of its chord to end
ID, RETRIES, PARENT, NEXT = "celery-id", "celery-retries", "celery-parent", "celery-next"
GROUP = "celery-group"  # the header with the id of Celery's group
COMPENSATES = "redrive-dead-id"  # the header of a compensation, which has the other headers of the dead message, too
LATER = 3  # the priority of messages that Celery serves after those of its default priority
# Options of a signature that have no effect here: results, the publishing itself, and Celery's own routing.
_IGNORED = frozenset((
    "task_id", "reply_to", "root_id", "parent_id", "group_id", "group_index", "queue", "routing_key", "exchange",
    "exchange_type", "priority", "retry", "retry_policy", "serializer", "compression", "ignore_result",
    "time_limit", "soft_time_limit", "delivery_mode", "shadow", "headers", "stamps", "stamped_headers",
    "add_to_parent", "producer", "connection", "chord", "replaced_task_nesting", "interval", "max_retries",
))  # fmt: skip
# Errors that an option of a wrong type, or a time beyond the calendar, raises.
ODD = (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError)
_HEEDED = frozenset(("countdown", "eta", "expires", "link", "link_error", "chain"))


class TaskCall(NamedTuple):
    """A task with its options and arguments, from which a message is enqueued or a draft is made; and the chord that
    waits for its result, or for that of its chain."""

    bound: Bound[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    end: ChordEnd | None = None


class Canvas:
    """Makes messages of Celery's tasks, chains, groups and chords. Registers the task that runs chords."""

    app: App
    proofs: Proofs
    chords: Chords

    def __init__(self, app: App, proofs: Proofs, chords: Chords, queue: str) -> None:
        self.app, self.proofs, self.chords = app, proofs, chords
        app.task(name=CANVAS, queue=queue, ctx=True)(self._run)
        app.wrap(self._follow)

    def call_of(self, sent: CeleryTask, *, key_for: str | float, now: datetime) -> TaskCall:
        """Return the call of the app's task for a task that Celery sent. Raises CeleryUnsupported; StoreError if the
        proof of the next tasks cannot be made."""
        task, end = _task(self.app, sent.task), sent.next.end
        if end is not None:
            self._check_chord(task, end, now)
        _check_errbacks(task, sent.errbacks)
        _check_next(self.app, task, sent.next, now)
        headers = {**sent.headers, ID: sent.id}
        if sent.retries:
            headers[RETRIES] = str(sent.retries)
        if sent.parent_id:
            headers[PARENT] = sent.parent_id
        if sent.group:
            headers[GROUP] = sent.group
        bound = task.using(
            at=sent.eta,
            deadline=sent.expires,
            key=sent.key if end is None else None,  # the members of a chord are told apart by its ledger
            for_=key_for if end is None else None,
            priority=NORMAL if sent.priority <= 0 else LATER,
            headers=headers | self._headers(task.name, sent.id, sent.next),
            correlation_id=sent.root_id or sent.id,
            keep_result=_keep(sent.next),
        )
        return _fitting(task, TaskCall(bound, sent.args, sent.kwargs, end))

    def arrive(self, calls: Sequence[tuple[CeleryTask, TaskCall]]) -> list[str]:
        """Put tasks of the header of one chord as members of its batch. Returns and raises as `Chords.arrive`."""
        sent, call = calls[0]
        assert call.end is not None and call.end.body is not None
        arrivals = [
            Arrival(
                sent.id, sent.key, results_at_once(Signature(sent.task), sent.next.chain),
                call.bound.draft(*call.args, **call.kwargs),
            )
            for sent, call in calls
        ]  # fmt: skip
        said = self._arrive(call.end, arrivals, sent.root_id or sent.id)
        outer = end_of(call.end.body)
        while outer is not None and outer.body is not None:  # its size may be known only now
            self._arrive(outer, (), sent.root_id or sent.id)
            outer = end_of(outer.body)
        return said

    def _arrive(self, end: ChordEnd, arrivals: Sequence[Arrival], correlation_id: str) -> list[str]:
        body = end.body
        made = () if body is None else self._callbacks(body, (), end_of(body), correlation_id)
        return self.chords.arrive(end, arrivals, made)

    def _callbacks(
        self, body: Signature, chain: Sequence[Signature], end: ChordEnd | None, correlation_id: str
    ) -> tuple[Draft, Draft]:
        """Return the callbacks of a chord's batch, on_success and on_complete. The first is a member of the batch of
        the chord around this one, so that the one cannot end before the body of the other is put."""
        join = self._step(CanvasStep("join", body, (), chain, end), correlation_id)
        return join, replace(self._step(CanvasStep("save", body), correlation_id), batch=None)

    def _step(self, step: CanvasStep, correlation_id: str) -> Draft:
        assert step.signature is not None
        first = self.app.tasks.get(leaf(step.signature))
        queue = self.app.tasks[CANVAS].queue if first is None else first.queue
        made: Draft = self.app.tasks[CANVAS].using(queue=queue, priority=0, correlation_id=correlation_id).draft(step)
        return made if step.end is None else replace(made, batch=batch_of(step.end))

    def _headers(self, task: str, id: str, then: Next) -> dict[str, str]:
        headers = {AT: then.end.at} if then.end is not None and not then.chain else {}
        if then:
            end = then.end and replace(then.end, body=None)  # its batch has the body
            written = msgspec.json.encode(replace(then, end=end)).decode()
            headers[NEXT] = self.proofs.prove(written, task=task, id=id)
        return headers

    # -- in workers

    def _follow(self, ctx: Context) -> Iterator[None]:
        """Enqueue the links and the next step of a chain when a handler returns. Rejects a message whose header no
        bridge of this store wrote."""
        yield
        headers = ctx.message.headers
        if NEXT not in headers or COMPENSATES in headers:
            return
        try:
            written = self.proofs.open(headers[NEXT], task=ctx.message.task, id=headers.get(ID, ""))
            if written is None:
                raise CeleryUnsupported(f"no bridge of this store wrote its header {NEXT!r}, so nothing in it is run")
            then = msgspec.json.decode(written, type=Next)
            for signature in then.callbacks:
                ctx._follow(*self._next(ctx, signature, (ctx.result,)))
            if then.chain:
                ctx._follow(*self._next(ctx, then.chain[-1], (ctx.result,), then.chain[:-1], then.end))
        except (CeleryUnsupported, EnqueueError, *ODD) as error:
            # A Reject, as the handler has had its effect, which a retry would repeat.
            raise Reject(f"it ran, and what Celery linked to it cannot be enqueued: {error}") from error

    def _run(self, ctx: Context, step: CanvasStep) -> None:
        """Run a message of `celery.canvas`. What it enqueues is written with its ack; what it writes before that is
        written once, however often it runs."""
        id = ctx.message.headers.get(BATCH_HEADER, "")
        if step.act == "save":
            self.chords.save(id)
            return
        assert step.signature is not None
        try:
            if step.act == "run":
                ctx._follow(*self._header(ctx, step.signature, step))
                return
            ctx._follow(*self._body(ctx, step.signature, self.chords.results(id), step))
        except (CeleryUnsupported, EnqueueError, *ODD) as error:
            raise Reject(f"Celery's chord cannot go on: {error}") from error

    def _body(self, ctx: Context, body: Signature, ready: list[Any], step: CanvasStep) -> Iterator[Draft]:
        """Yield the first messages of a chord's body, which count from now on in the batch of the chord around it."""
        if step.end is not None:
            arrival = Arrival(ctx.message_id, "", results_at_once(body, step.chain))
            self._arrive(step.end, [arrival], ctx.correlation_id)
        yield from self._next(ctx, body, (ready,), step.chain, step.end)

    def _header(self, ctx: Context, chord: Signature, step: CanvasStep) -> Iterator[Draft]:
        """Create the batch of a chord, and yield the first messages of its header."""
        tasks, body = header_of(chord), body_of(chord)
        if not tasks:  # Celery runs the body at once
            yield from self._body(ctx, body, [], step)
            return
        group = ctx.message_id
        callbacks = self._callbacks(body, step.chain, step.end, ctx.correlation_id)
        size, at_once = sum(map(results, tasks)), sum(map(results_at_once, tasks))
        self.chords.begin(ChordEnd(group, ""), size, at_once, f"chord {leaf(body)}", callbacks)
        for n, task in enumerate(tasks):
            yield from self._next(ctx, task, step.args, (), ChordEnd(group, str(n)))

    def _next(
        self,
        ctx: Context,
        signature: Signature,
        args: Sequence[Any],
        chain: Sequence[Signature] = (),
        end: ChordEnd | None = None,
    ) -> Iterator[Draft]:
        """Yield the first messages of a signature that gets `args`, the results of what ran before, as its first
        arguments; `chain` has the steps after it, the next one last."""
        options = signature.options
        chain = chain or signatures(options.get("chain"))
        args = () if signature.immutable else args
        match signature.subtask_type:
            case "chain":
                steps = [*chain, *reversed(steps_of(signature))]
                if steps:
                    yield from self._next(ctx, steps[-1], args, steps[:-1], end)
            case "group":
                tasks = tasks_of(signature)
                if chain and (end is not None or not tasks):
                    raise CeleryUnsupported("a group in a chord has steps after it, which Celery runs for each task")
                for n, task in enumerate(tasks):
                    yield from self._next(ctx, task, args, chain, end and replace(end, at=f"{end.at}.{n}"))
            case "chord":
                yield self._step(CanvasStep("run", signature, args, chain, end), ctx.correlation_id)
            case _:
                yield self._draft(ctx, signature, args, chain, end)

    def _draft(
        self, ctx: Context, signature: Signature, args: Sequence[Any], chain: Sequence[Signature], end: ChordEnd | None
    ) -> Draft:
        task, options, now = _task(self.app, signature.task), signature.options, datetime.now(UTC)
        countdown, then = options.get("countdown"), Next(signatures(options.get("link")), chain, end)
        id = str(options.get("task_id") or ctx.message_id)
        headers = {ID: id, PARENT: ctx.message.headers.get(ID, ctx.message_id)}
        bound = task.using(
            at=when(countdown, now) if countdown is not None else when(options.get("eta")),
            deadline=when(options.get("expires"), now),
            headers=headers | self._headers(task.name, id, then),
            keep_result=_keep(then),
        )
        call = _fitting(task, TaskCall(bound, (*args, *signature.args), signature.kwargs))
        draft: Draft = call.bound._follow_up(ctx, call.args, call.kwargs)[0]
        return draft if end is None else replace(draft, batch=batch_of(end))

    # -- checks

    def _check_chord(self, task: Any, end: ChordEnd, now: datetime) -> None:
        """Raise CeleryUnsupported if the chord that waits for this task, or one around it, could not go on."""
        if self.app.store.box is not None:
            raise CeleryUnsupported(f"task {task.name!r} is part of a chord, whose arguments could not be encrypted")
        outer: ChordEnd | None = end
        while outer is not None and outer.body is not None:
            if outer.size is None and self.chords.sizes is None:
                raise CeleryUnsupported(
                    f"task {task.name!r} is part of a chord, and only Celery's result backend knows of how many tasks; "
                    "expected CeleryBridge(…, results='redis://HOST:PORT/DB')"
                )
            _check_signature(self.app, outer.body, now)
            outer = end_of(outer.body)


def _keep(then: Next) -> str | None:
    return RESULTS_FOR if then.end is not None and not then.chain else None


def _task(app: App, name: str) -> Any:
    task = None if name in (CANVAS, PARKED) else app.tasks.get(name)
    if task is None:
        near = near_miss(name, app.tasks)
        meant = f"did you mean {near!r}?" if near else f"known: {', '.join(sorted(app.tasks))}"
        raise CeleryUnsupported(f"no task {name!r} is registered here; {meant}")
    return task


def _check_errbacks(task: Any, errbacks: Sequence[Signature]) -> None:
    for errback in errbacks:
        if errback.task != task.on_dead:
            raise CeleryUnsupported(
                f"task {task.name!r} has link_error={errback.task!r}; expected @app.task(on_dead={errback.task!r}) "
                f"here, and it has on_dead={task.on_dead!r}"
            )


def _check_next(app: App, task: Any, then: Next, now: datetime, *, followed: bool = False) -> None:
    """Raise CeleryUnsupported if the tasks after this one could not be enqueued once it is done. `followed`: tasks that
    are not in `then` run after it, too."""
    if not then and not followed:
        return
    if task.idempotency is not None:
        raise CeleryUnsupported(
            f"task {task.name!r} has a link or a chain, and idempotency=: a stored result runs no handler, so nothing "
            "would be enqueued after it"
        )
    if task.gather is not None:
        raise CeleryUnsupported(
            f"task {task.name!r} has a link or a chain, and gather=: one call runs for many messages, so nothing would "
            "be enqueued after each"
        )
    if app.store.box is not None:
        raise CeleryUnsupported(f"task {task.name!r} has a link or a chain, whose arguments could not be encrypted")
    _check_all(app, then, now)


def _check_all(app: App, then: Next, now: datetime) -> None:
    for signature in then.callbacks:
        _check_signature(app, signature, now)
    for n, signature in enumerate(then.chain):  # its last step is the first here
        _check_signature(app, signature, now, followed=n > 0)


def _check_signature(app: App, signature: Signature, now: datetime, *, followed: bool = False) -> None:
    """Raise CeleryUnsupported if this task, chain, group or chord could not be enqueued, or not what runs after it if
    it is `followed` by the next step of a chain."""
    name, options = signature.task, signature.options
    if unknown := sorted(name for name, value in options.items() if value and name not in _IGNORED | _HEEDED):
        raise CeleryUnsupported(f"a link, a chain or a chord leads to {name!r} with unknown options: {unknown}")
    try:
        for time in TIMES:
            when(options.get(time), now)
        links, errbacks = signatures(options.get("link")), signatures(options.get("link_error"))
        then, inner = Next(links, signatures(options.get("chain"))), list[tuple[Signature, bool]]()
        goes_on = followed or bool(then.chain)
        match signature.subtask_type:
            case None:
                task = _task(app, name)
                _check_errbacks(task, errbacks)
                return _check_next(app, task, then, now, followed=followed)
            case "chain":
                steps = steps_of(signature)
                inner = [*((step, True) for step in steps[:-1]), *((step, goes_on) for step in steps[-1:])]
            case "group":
                inner = [(task, goes_on) for task in tasks_of(signature)]
            case "chord" if not signature.kwargs.get("kwargs"):
                inner = [*((task, False) for task in header_of(signature)), (body_of(signature), goes_on)]
            case _:
                raise CeleryUnsupported(f"a link, a chain or a chord leads to a {signature.subtask_type} ({name!r})")
        errors = {"link_error": options.get("link_error")}
        for one, more in inner:
            one = linked(one, errors) if signature.subtask_type != "chord" else one
            _check_signature(app, one, now, followed=more)
        _check_all(app, then, now)
    except ODD as error:
        raise CeleryUnsupported(f"a link, a chain or a chord leads to {name!r} with odd options: {error}") from None


def _fitting(task: Any, call: TaskCall) -> TaskCall:
    try:
        task.codec.encode(call.args, call.kwargs)
    except (TypeError, EnqueueError) as error:
        raise CeleryUnsupported(f"its arguments do not fit: {error}") from None
    return call
