"""Messages of one lane or of all lanes, waiting ones included, fifty at a time.

An index finds the waiting messages of one queue; finding those of all queues may read the whole store. So a list goes
queue by queue, and its cursor has the current queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ...message import Counts, Filter, Lane, Message
from ...triage.select.terms import Node
from ...triage.selection import Selection
from ..ask import PageRequest, Problem
from ..sums import KeptValue

STATES = ("ready", "scheduled", "parked", "leased", "cancelled", "any")
READ_MAX, PEEKS_MAX = 500, 40  # messages that are read for one page at most, and calls of the store for that


class _Part(NamedTuple):
    """A part of a list: one lane of one queue or, if `queue` is None, of all queues."""

    lane: Lane
    queue: str | None


class _ListPlace(NamedTuple):
    """The place in a list at which a page begins: a part, and the store's cursor in that part."""

    lane: Lane
    queue: str | None
    inner: str | None


class Listed(NamedTuple):
    """One page of a list, and the cursor of the next page."""

    messages: list[Message]
    cursor: str | None


def listed(ask: PageRequest, state: str, where: Filter, node: Node, after: str, limit: int) -> Listed:
    """Return the page after the cursor `after`: the matching messages in this state. It ends early at READ_MAX and
    PEEKS_MAX. Raises Problem or Unsupported."""
    selection, messages = Selection(ask.store, node, app=ask.registry, every=True), list[Message]()
    parts = _parts(ask, state, where)
    at, inner = _place(parts, after)
    looked = peeks = 0
    while at < len(parts) and len(messages) < limit and looked < READ_MAX and peeks < PEEKS_MAX:
        part = parts[at]
        rests = part.lane not in (Lane.READY, Lane.LEASED)
        asked = Filter(queue=part.queue, task=where.task if rests else None)  # no index finds waiting messages by task
        read = ask.store.peek(part.lane, where=asked, limit=limit - len(messages), cursor=inner)
        looked, peeks = looked + len(read.messages), peeks + 1
        messages += [
            message
            for message in selection.matching(read.messages)
            if state in ("any", message.state_at(selection.now_ms)) and where.task in (None, message.task)
        ]
        inner = read.cursor
        at += inner is None
    if at >= len(parts):
        return Listed(messages, None)
    return Listed(messages, msgspec.json.encode(_ListPlace(*parts[at], inner)).decode())


def counts_by_queue(ask: PageRequest) -> KeptValue[Mapping[str, Counts]]:
    """Return the counts of each queue from the cache of sums."""
    return ask.kept("counts-by-queue", ask.store.counts_by_queue)


def _parts(ask: PageRequest, state: str, where: Filter) -> list[_Part]:
    queue = where.queue if isinstance(where.queue, str) else None
    if state == "cancelled":
        return [_Part(Lane.DONE, queue)]
    counts = {name: count for name, count in counts_by_queue(ask).value.items() if queue in (None, name)}
    if state == "leased":
        return [_Part(Lane.LEASED, name) for name, count in sorted(counts.items()) if count.leased]
    if state in ("ready", "scheduled", "parked"):
        return [_Part(Lane.READY, name) for name, count in sorted(counts.items()) if getattr(count, state)]
    ready = [_Part(Lane.READY, name) for name, count in sorted(counts.items()) if count.waiting]
    leased = [_Part(Lane.LEASED, name) for name, count in sorted(counts.items()) if count.leased]
    rests = [_Part(lane, queue) for lane in (Lane.DEAD, Lane.QUARANTINE, Lane.DONE)]
    return [*leased, *ready, *rests]


def _place(parts: list[_Part], after: str) -> tuple[int, str | None]:
    """Return the index of the part at which the cursor continues, or of the next one if its queue is empty, and the
    store's cursor in it."""
    if not after:
        return 0, None
    try:
        place = msgspec.json.decode(after, type=_ListPlace)
    except (msgspec.DecodeError, ValueError):
        raise Problem("the list cannot go on", "the cursor 'after' is not one of its own", "begin anew", 422) from None
    for at, part in enumerate(parts):
        if part == (place.lane, place.queue):
            return at, place.inner
        if part.lane is place.lane and (part.queue or "") > (place.queue or ""):
            return at, None
    return next((at for at, part in enumerate(parts) if _order(part) > _order(place)), len(parts)), None


def _order(part: _Part | _ListPlace) -> int:
    return (Lane.LEASED, Lane.READY, Lane.DEAD, Lane.QUARANTINE, Lane.DONE).index(part.lane)
