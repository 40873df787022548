"""The newest messages of a selection first. Stores list the oldest first, so a page is found by the time of death."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...message import Message
from ...triage.select.terms import And, Node, PointInTime, Term
from ...triage.selection import Selection
from ..ask import PageRequest, Problem

SPAN_MS, WIDER = 60_000, 8  # the first span that is looked at, and the factor by which the next one is longer
LOOKS_MAX = 24  # spans that are looked at for one page
READ_MAX = 500  # messages of a span that are read: of a longer one, a part is looked at


class _NewestPlace(msgspec.Struct, array_like=True, frozen=True):
    """Where a page begins: at the messages that died at `at_ms`, without the first `skip` of them."""

    at_ms: int
    skip: int


def newest(
    ask: PageRequest, node: Node, at_ms: int, after: str, limit: int, *, small: bool
) -> tuple[Sequence[Message], str | None] | None:
    """Return a page of the messages dead at `at_ms`, the last one first, and the cursor of the next page. `small`: at
    most READ_MAX match. None if more messages died in one ms than a page can order."""
    place = _place(after) if after else _NewestPlace(at_ms, 0)
    wanted, least_ms, most_ms = limit + place.skip + 1, 0, 0
    span_ms = place.at_ms + 1 if small else SPAN_MS
    found: Sequence[Message] = ()
    whole = False
    for _ in range(LOOKS_MAX):
        since_ms = max(0, place.at_ms + 1 - span_ms)
        bound = And((node, Term("failed", (PointInTime(">=", since_ms),)))) if since_ms else node
        page = Selection(ask.store, bound, place.at_ms, app=ask.registry).page(READ_MAX)
        whole = page.cursor is None
        if whole:
            found = page.messages
            if len(found) >= wanted or since_ms == 0:
                break
            least_ms = span_ms
            span_ms = (span_ms + most_ms) // 2 if most_ms else span_ms * WIDER
        else:
            most_ms = span_ms
            span_ms = (span_ms + least_ms) // 2
        if most_ms and span_ms in (least_ms, most_ms):
            break
    if not found:
        return ([], None) if whole else None
    first_first = sorted(found, key=lambda message: (message.rested_ms or 0, message.id), reverse=True)
    shown = first_first[place.skip : place.skip + limit]
    if not shown:
        return None
    is_last = whole and since_ms == 0 and place.skip + len(shown) >= len(first_first)
    last_ms = shown[-1].rested_ms or 0
    same = sum(message.rested_ms == last_ms for message in first_first[: place.skip + len(shown)])
    return shown, None if is_last else msgspec.json.encode(_NewestPlace(last_ms, same)).decode()


def _place(after: str) -> _NewestPlace:
    try:
        return msgspec.json.decode(after, type=_NewestPlace)
    except (msgspec.DecodeError, ValueError):
        raise Problem("the list cannot go on", "the cursor 'after' is not one of its own", "begin anew", 422) from None
