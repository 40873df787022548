"""Pause, resume and purge queues; set the width of groups."""

from __future__ import annotations

from ...errors import near_miss
from ...present.names import queue_names
from ...triage import pauses
from ...triage.purge import purge as purge_queue
from ..ask import Done, PageRequest, Problem


def pause(ask: PageRequest) -> Done:
    """Pause a queue. Raises Problem for an unknown name, as a pause would create the queue."""
    name = ask.needed("queue")
    known = queue_names(ask.store, ask.registry)
    if name not in known:
        near = near_miss(name, known)
        why = f"did you mean {near!r}?" if near else "nothing was ever enqueued in it, and no task names it"
        raise Problem(f"there is no queue {name!r}", why, "open the page of queues", 404)
    pauses.pause(ask.store, name, reason=ask.reason, for_=ask.lasting("for"), actor=ask.actor)
    return Done(f"Queue {name} is paused.", ("queues", name), {"queue": name, "paused": True})


def resume(ask: PageRequest) -> Done:
    """Resume claims from a queue."""
    name = ask.needed("queue")
    pauses.resume(ask.store, name, actor=ask.actor, reason=ask.text("reason"))
    return Done(f"Queue {name} is worked again.", ("queues", name), {"queue": name, "paused": False})


def purge(ask: PageRequest) -> Done:
    """Cancel all waiting messages of a queue. For more than a hundred, the user types how many."""
    name = ask.needed("queue")
    counts = ask.store.counts(name)
    ask.confirm(counts.waiting)
    done = purge_queue(ask.store, name, actor=ask.actor, reason=ask.reason)
    text = f"{done.cancelled:,} messages of queue {name} are cancelled"
    text += f", {done.asked_to_stop:,} are asked to stop." if done.asked_to_stop else "."
    return Done(text, ("queues", name), {"cancelled": done.cancelled, "asked_to_stop": done.asked_to_stop})


def set_width(ask: PageRequest) -> Done:
    """Set how many messages of a group, or of each group of a queue, run at once. 0 restores the app's width."""
    name, group, width = ask.needed("queue"), ask.text("group") or None, ask.number("width", 0, most=100_000)
    pauses.set_width(ask.store, name, group, width, actor=ask.actor, reason=ask.text("reason"))
    about = f"group {group}" if group else "each group"
    text = f"The width of {about} of queue {name} is {width or 'as declared'}."
    return Done(text, ("queues", name), {"queue": name, "group": group, "width": width})


def resume_group(ask: PageRequest) -> Done:
    """Unblock a group that a dead message blocks."""
    name, group = ask.needed("queue"), ask.needed("group")
    pauses.resume_group(ask.store, name, group, actor=ask.actor, reason=ask.text("reason"))
    return Done(f"Group {group} of queue {name} goes on.", ("queues", name), {"queue": name, "group": group})
