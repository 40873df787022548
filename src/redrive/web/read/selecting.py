"""The reader's search: a selector, or the beginning of an id."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import Misread, Unsupported
from ...ids import first_and_last, is_id
from ...message import Counts, FailureGroup
from ...present.names import selector_terms
from ...present.permissions import Permission
from ...triage.lanes import of_waiting
from ...triage.lookup import BEGIN_MIN, message_ids
from ...triage.select.parser import parse
from ...triage.select.terms import ARGS, HEADER, WORD, Node, fields_of
from ...triage.selection import Selection
from ..ask import PageRequest, Record
from ..sums import KeptValue
from .arguments import terms as argument_terms
from .waiting import counts_by_queue

COUNTED_MAX = 5_000  # the most messages that a page reads to count matches without an index


def understood(ask: PageRequest, text: str) -> Node:
    """Parse a selector. Raises SelectorError, and Denied for terms on bodies, bare words among them, if the user may
    not view bodies."""
    node = parse(text)
    if any(field.startswith((ARGS, HEADER)) or field == WORD for field in fields_of(node)):
        ask.user.need(Permission.VIEW_BODIES)
    return node


def chosen(ask: PageRequest, text: str, now_ms: int | None = None) -> Selection:
    """Return the selection of messages at rest that a selector describes, as of `now_ms`. Raises as
    `understood` does."""
    understood(ask, text)
    return ask.dlq.select(text, now_ms=now_ms)


def plannable(ask: PageRequest, text: str) -> Selection:
    """Return the selection for a plan: of messages at rest, or of those that wait. Raises as `understood` does."""
    return ask.app.select(text) if of_waiting(understood(ask, text)) else chosen(ask, text)


def mistake(error: Misread) -> Record:
    """Return a mistake in a selector as a record, with two lines that point at it."""
    return {"what": error.what, "why": error.why, "pointer": error.pointer}


def ids_that_begin(ask: PageRequest, text: str) -> Sequence[str]:
    """Return the ids of messages that begin with this text; none if the text cannot be the beginning of an id."""
    if first_and_last(text) is None or len(text.replace("-", "")) < BEGIN_MIN:
        return ()
    try:
        return message_ids(ask.store, text.lower()).found
    except Unsupported:
        return ()


def counted(ask: PageRequest, selection: Selection) -> KeptValue[int] | None:
    """Return the number of matches if reading few messages suffices; None if not, or while a thread still counts."""
    key = f"count/{selection}"
    if at_rest(ask) <= COUNTED_MAX:
        return ask.kept(key, selection.count)
    if selection.indexed:
        return ask.kept_soon(key, selection.count)
    return None if selection.only_queues is None else dead_in(ask, selection.only_queues)


def dead_in(ask: PageRequest, queue: str | tuple[str, ...] | None) -> KeptValue[int]:
    """Return the number of dead messages in these queues, in all queues for None, with its age."""
    counts = counts_by_queue(ask)
    names = counts.value if queue is None else [queue] if isinstance(queue, str) else queue
    return KeptValue(sum(counts.value[name].dead for name in names if name in counts.value), counts.age_s)


def at_rest(ask: PageRequest) -> int:
    """Return the number of messages at rest in all lanes, from the cache of sums."""
    return ask.kept("at-rest", lambda: _at_rest(ask.store.counts())).value


def _at_rest(counts: Counts) -> int:
    return counts.dead + counts.quarantine + counts.done


def queue_names(ask: PageRequest) -> list[str]:
    return ask.kept("queue-names", lambda: sorted(ask.store.queues())).value


def completions(ask: PageRequest) -> Sequence[str]:
    """Return terms of selectors with the names of queues, tasks and errors, for the search box."""
    groups = failure_groups(ask)
    tasks = {group.task for group in groups} | set(ask.registry.tasks if ask.registry is not None else ())
    named = selector_terms(queue_names(ask), sorted(tasks), sorted({group.error for group in groups}))
    return [*named, *argument_terms(ask)]


def failure_groups(ask: PageRequest) -> Sequence[FailureGroup]:
    """Return all failure groups from the cache of sums; none if the store has no access to dead messages."""
    try:
        return ask.kept("groups", lambda: ask.app.dlq.groups(trend=True)).value
    except Unsupported:
        return ()


def is_whole_id(text: str) -> bool:
    """Return True if the text has the form of a whole id."""
    return is_id(text.lower())
