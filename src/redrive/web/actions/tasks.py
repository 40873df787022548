"""Pause and resume tasks, and enqueue a message of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ...audit import Audit
from ...errors import EnqueueError, Unreadable
from ...ids import new_id
from ...message import Draft, PutResult
from ...present.tasks import task_record
from ..ask import Done, PageAnswer, PageRequest, Problem
from ..read.tasks import EnqueueForm, declared, task_page

if TYPE_CHECKING:
    from ...registry import Registry


def pause(ask: PageRequest) -> Done:
    """Pause a task, or all that match a pattern, for a time or until it is resumed."""
    name = ask.needed("task")
    ask.app.pause_task(name, reason=ask.reason, for_=ask.lasting("for"), actor=ask.actor)
    return _done(ask, name, "is paused")


def resume(ask: PageRequest) -> Done:
    """End the pause of a task or a pattern."""
    name = ask.needed("task")
    ask.app.resume_task(name, reason=ask.text("reason"), actor=ask.actor)
    return _done(ask, name, "goes on")


def enqueue(ask: PageRequest) -> Done | PageAnswer:
    """Enqueue one message of a task, with the arguments typed in the form, in one commit with the entry in the audit
    log. If they do not fit the task, return the form again, with what was typed."""
    name = ask.needed("task")
    registry, task = ask.registry, declared(ask, name)
    if registry is None or task is None:
        raise Problem(f"there is no task {name!r}", "no app named here declares it", "look at all tasks", 404)
    form = EnqueueForm(task, ask.form)
    if form.body is None:
        return task_page(ask, name, form)
    if not (reason := ask.text("reason")):
        return task_page(ask, name, form.refused("the reason is missing: the audit log has to say why"))
    delay_ms = ask.duration_ms("delay", "0s")
    try:
        draft: Draft = task.using(delay=delay_ms / 1000 or None).draft(**msgspec.json.decode(form.body))
        task.codec.decode(draft.body)
        put = _put(ask, registry, draft, reason)
    except (TypeError, Unreadable, EnqueueError) as error:
        return task_page(ask, name, form.refused(str(error).removeprefix(f"task {name!r}: ")))
    record = {"task": name, "id": put.id, "queue": draft.queue, "duplicate": put.duplicate}
    text = f"Message {put.id} is in queue {draft.queue}."
    return Done(f"Message {put.id} holds the key, so none was put." if put.duplicate else text, ("tasks", name), record)


def _put(ask: PageRequest, registry: Registry, draft: Draft, reason: str) -> PutResult:
    now_ms, audit = ask.store.now_ms(), Audit(ask.store)
    draft = msgspec.structs.replace(draft, id=draft.id or new_id(now_ms), producer=f"{ask.actor}, from the pages")
    entry = audit.by_hand("enqueue", f"task/{draft.task}", ask.actor, reason)
    entry = msgspec.structs.replace(entry, ids=(draft.id or "",), count=1)
    (put,) = audit.beside(entry, lambda swaps: registry.put([draft], swaps=swaps))
    if put.duplicate:  # an earlier message has the key, so nothing was enqueued
        audit.amend(entry)
    return put


def _done(ask: PageRequest, name: str, word: str) -> Done:
    state = ask.app.task_state(name)
    to = ("tasks",) if state.queue is None else ("tasks", name)  # a pattern has no page of its own
    return Done(f"Task {name} {word}.", to, task_record(state))
