"""Messages of any lane, by a selector, fifty at a time."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import SelectorError, Unsupported
from ...message import Filter, Message
from ...present.names import NAMES_MAX
from ..ask import PageAnswer, PageRequest, Problem, Record
from ..sums import KeptValue
from . import selecting
from .arguments import rows_with_arguments
from .newest import READ_MAX, newest
from .waiting import STATES, counts_by_queue, listed

ROWS = 50
SORTS = ("newest", "oldest")  # by the time at which messages came to rest


def messages(ask: PageRequest) -> Record:
    """Return messages by selector, by lane, or by the beginning of their id, with the number of all matches."""
    text = ask.text("q").lstrip("…")  # as lists show the end of an id
    ids = selecting.ids_that_begin(ask, text)
    begun = [message.id for message in ask.store.find(ids) if message is not None] if ids else []
    if len(begun) == 1:
        return PageAnswer(_bare(ask, found=begun), to=("messages", begun[0]))
    if begun or selecting.is_whole_id(text):
        return PageAnswer(_bare(ask, found=begun), status=200 if begun else 404)
    try:
        return _waiting(ask, text) if ask.text("lane") else _at_rest(ask, text)
    except SelectorError as error:
        return PageAnswer(_bare(ask, mistake=selecting.mistake(error)), status=422, typed={"q": text})
    except Unsupported as error:
        return _bare(ask, missing=str(error))


def _bare(ask: PageRequest, **known: object) -> Record:
    """Return the record of a page without messages, with the fields `known`."""
    lane = ask.text("lane")
    words = ("job", "list", *(("--state", lane) if lane not in ("", "any") else ())) if lane else ("dlq", "list")
    return {
        "q": ask.text("q"),
        "lane": lane,
        "queue": ask.text("queue"),
        "task": ask.text("task"),
        "at": ask.store.now_ms(),
        "sort": _sort(ask),
        "sorts": list(SORTS),
        "mistake": None,
        "missing": None,
        "found": [],
        "rows": [],
        "next": None,
        "count": None,
        "count_age_s": 0.0,
        "lanes": list(STATES),
        "completions": selecting.completions(ask),
        "queues": selecting.queue_names(ask)[:NAMES_MAX],
        "command": ask.command(*words, *([ask.text("q")] if ask.text("q") else [])),
        **known,
    }


def _sort(ask: PageRequest) -> str:
    sort = ask.text("sort", SORTS[0])
    if sort not in SORTS:
        raise Problem(f"there is no order {sort!r}", f"expected {' or '.join(SORTS)}", status=422)
    return sort


def _at_rest(ask: PageRequest, text: str) -> Record:
    """Return messages at rest, the last that died first: the dead lane, or the lane that the selector names. Where no
    index has the selection, and it fills more than a page, the first that died come first."""
    at, sort = ask.number("at", 0, most=2**53), _sort(ask)
    selection = selecting.chosen(ask, text, at or None)
    counted = selecting.counted(ask, selection)
    small = counted is not None and counted.value <= READ_MAX
    after, found = ask.text("after"), None
    if sort == "newest" and selection.indexed:
        found = newest(ask, selection.node, selection.now_ms, after, ROWS, small=small)
    if found is None:
        page = selection.page(ROWS, after or None)
        found = page.messages, page.cursor
        if sort == "newest" and page.cursor is None and not after:
            found = sorted(page.messages, key=lambda message: (message.rested_ms or 0, message.id), reverse=True), None
        else:
            sort = "oldest"
    return _listed(ask, selection.now_ms, *found, counted, sort)


def _listed(
    ask: PageRequest, at: int, messages: Sequence[Message], next: str | None, whole: KeptValue[int] | None, sort: str
) -> Record:
    count, age_s = (None, 0.0) if whole is None else (whole.value, whole.age_s)
    rows = rows_with_arguments(ask, messages, at)
    return _bare(ask, at=at, rows=rows, next=next, count=count, count_age_s=age_s, sort=sort)


def _waiting(ask: PageRequest, text: str) -> Record:
    """Return messages in one lane or in all lanes, waiting ones included, as `redrive job list` does."""
    state = ask.text("lane")
    if state not in STATES:
        raise Problem(f"there is no lane {state!r}", f"expected {', '.join(STATES)}", status=422)
    now_ms = ask.store.now_ms()
    node = selecting.understood(ask, text)
    where = Filter(queue=ask.text("queue") or None, task=ask.text("task") or None)
    read = listed(ask, state, where, node, ask.text("after"), ROWS)
    return _listed(ask, now_ms, read.messages, read.cursor, _count(ask, state, where), "oldest")


def _count(ask: PageRequest, state: str, where: Filter) -> KeptValue[int] | None:
    """Return the number of all messages in the listed state; None if the list has a filter other than the queue."""
    if ask.text("q") or where.task is not None or state in ("any", "cancelled"):
        return None
    counts = counts_by_queue(ask)
    named = [getattr(found, state) for name, found in counts.value.items() if where.queue in (None, name)]
    return KeptValue(sum(named), counts.age_s)
