"""Turn a task that Celery sent into a message of the app's task of that name, and follow its links and chain.

A header of the message has its links and chain, with the bridge's proof. When the handler returns, the wrap `following`
enqueues the next tasks in the commit of the ack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from ...app import App
from ...enqueue import Bound
from ...errors import EnqueueError, Reject, near_miss
from ...message import NORMAL
from ...run_context import Context
from .envelope import CeleryTask, CeleryUnsupported, Next, Signature, signatures, when
from .proof import Proofs

ID, RETRIES, PARENT, NEXT = "celery-id", "celery-retries", "celery-parent", "celery-next"
COMPENSATES = "redrive-dead-id"  # the header of a compensation, which has the other headers of the dead message, too
LATER = 3  # the priority of messages that Celery serves after those of its default priority
# Options of a signature that have no effect here: results, the publishing itself, and Celery's own routing.
_IGNORED = frozenset((
    "task_id", "reply_to", "root_id", "parent_id", "group_id", "group_index", "queue", "routing_key", "exchange",
    "exchange_type", "priority", "retry", "retry_policy", "serializer", "compression", "ignore_result",
    "time_limit", "soft_time_limit", "delivery_mode", "shadow", "headers", "stamps", "stamped_headers",
    "add_to_parent", "producer", "connection",
))  # fmt: skip
# Errors that an option of a wrong type, or a time beyond the calendar, raises.
ODD = (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError)
_HEEDED = frozenset(("countdown", "eta", "expires", "link", "link_error"))


class TaskCall(NamedTuple):
    """A task with its options and arguments, from which a message is enqueued or a draft is made."""

    bound: Bound[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def call_of(app: App, sent: CeleryTask, proofs: Proofs, *, key_for: str | float, now: datetime) -> TaskCall:
    """Return the call of the app's task for a task that Celery sent. Raises CeleryUnsupported; StoreError if the proof
    of the next tasks cannot be made."""
    task = _task(app, sent.task)
    if sent.chord:
        raise CeleryUnsupported(f"task {sent.task!r} is part of a chord, whose end only Celery's result backend knows")
    _check_errbacks(task, sent.errbacks)
    _check_next(app, task, sent.next, now)
    headers = {**sent.headers, ID: sent.id}
    if sent.retries:
        headers[RETRIES] = str(sent.retries)
    if sent.parent_id:
        headers[PARENT] = sent.parent_id
    bound = task.using(
        at=sent.eta,
        deadline=sent.expires,
        key=sent.key,
        for_=key_for,
        priority=NORMAL if sent.priority <= 0 else LATER,
        headers=headers | _next_header(sent.next, proofs, task.name, sent.id),
        correlation_id=sent.root_id or sent.id,
    )
    return _fitting(task, TaskCall(bound, sent.args, sent.kwargs))


def following(app: App, proofs: Proofs) -> Callable[[Context], Iterator[None]]:
    """Return the wrap that enqueues the links and the next step of a chain when a handler returns. The wrap rejects a
    message whose header no bridge of this store wrote."""

    def follow_celery_next(ctx: Context) -> Iterator[None]:
        yield
        headers = ctx.message.headers
        if NEXT not in headers or COMPENSATES in headers:
            return
        try:
            written = proofs.open(headers[NEXT], task=ctx.message.task, id=headers.get(ID, ""))
            if written is None:
                raise CeleryUnsupported(f"no bridge of this store wrote its header {NEXT!r}, so nothing in it is run")
            then = msgspec.json.decode(written, type=Next)
            now = datetime.now(UTC)
            for signature in then.callbacks:
                _enqueue(app, ctx, proofs, signature, (), now)
            if then.chain:
                _enqueue(app, ctx, proofs, then.chain[-1], then.chain[:-1], now)
        except (CeleryUnsupported, EnqueueError, *ODD) as error:
            # A Reject, as the handler has had its effect, which a retry would repeat.
            raise Reject(f"it ran, and what Celery linked to it cannot be enqueued: {error}") from error

    return follow_celery_next


def _enqueue(
    app: App, ctx: Context, proofs: Proofs, signature: Signature, chain: Sequence[Signature], now: datetime
) -> None:
    task, options = _task(app, signature.task), signature.options
    countdown = options.get("countdown")
    then = Next(signatures(options.get("link")), chain)
    id = str(options.get("task_id") or ctx.message_id)
    headers = {ID: id, PARENT: ctx.message.headers.get(ID, ctx.message_id)}
    bound = task.using(
        at=when(countdown, now) if countdown is not None else when(options.get("eta")),
        deadline=when(options.get("expires"), now),
        headers=headers | _next_header(then, proofs, task.name, id),
    )
    args = signature.args if signature.immutable else (ctx.result, *signature.args)
    call = _fitting(task, TaskCall(bound, args, signature.kwargs))
    ctx.enqueue(call.bound, *call.args, **call.kwargs)


def _task(app: App, name: str) -> Any:
    task = app.tasks.get(name)
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


def _check_next(app: App, task: Any, then: Next, now: datetime) -> None:
    """Raise CeleryUnsupported if the tasks after this one could not be enqueued once it is done."""
    if not then:
        return
    if task.idempotency is not None:
        raise CeleryUnsupported(
            f"task {task.name!r} has a link or a chain, and idempotency=: a stored result runs no handler, so nothing "
            "would be enqueued after it"
        )
    if app.store.box is not None:
        raise CeleryUnsupported(f"task {task.name!r} has a link or a chain, whose arguments could not be encrypted")
    for signature in (*then.callbacks, *then.chain):
        _check_signature(app, signature, now)


def _check_signature(app: App, signature: Signature, now: datetime) -> None:
    options = signature.options
    if signature.subtask_type is not None or "chord" in options:
        kind = signature.subtask_type or "chord"
        raise CeleryUnsupported(f"a link or a chain leads to a {kind} ({signature.task!r}); only tasks can be next")
    if unknown := sorted(name for name, value in options.items() if value and name not in _IGNORED | _HEEDED):
        raise CeleryUnsupported(f"a link or a chain leads to {signature.task!r} with unknown options: {unknown}")
    task = _task(app, signature.task)
    try:
        for name in ("countdown", "eta", "expires"):
            when(options.get(name), now)
        links, errbacks = signatures(options.get("link")), signatures(options.get("link_error"))
    except ODD as error:
        raise CeleryUnsupported(f"a link or a chain leads to {signature.task!r} with odd options: {error}") from None
    _check_errbacks(task, errbacks)
    _check_next(app, task, Next(links), now)


def _fitting(task: Any, call: TaskCall) -> TaskCall:
    try:
        task.codec.encode(call.args, call.kwargs)
    except (TypeError, EnqueueError) as error:
        raise CeleryUnsupported(f"its arguments do not fit: {error}") from None
    return call


def _next_header(then: Next, proofs: Proofs, task: str, id: str) -> dict[str, str]:
    return {NEXT: proofs.prove(msgspec.json.encode(then).decode(), task=task, id=id)} if then else {}
