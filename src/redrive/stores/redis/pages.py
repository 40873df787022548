"""Read pages of messages from the Redis store, and group dead messages by failure.

A page of messages at rest is read in two steps: their places in the order of rest, then the messages themselves, which
are filtered here. Messages that wait or run are ordered by due time, so a page of these examines all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import nsmallest
from itertools import chain, repeat
from typing import Any

from msgspec.structs import replace

from ...errors import StoreError
from ...fault import Fault
from ...ids import is_id
from ...message import BEFORE_MS, DAMAGED, TREND_MS, Damage, FailureGroup, Filter, Lane, Message, Narrowing, Page
from .. import lifecycle, validation
from ..failure_groups import grouped
from .rows import LETTERS, RedisMessage, fatal_of, id_text, member_number, names_of, readable

RunScript = Callable[..., Any]  # call(script, arguments, *blobs)
RestPlace = tuple[int, bytes]  # of a message: the time of rest in ms (0: not at rest), and its member in the sorted set
WithFault = tuple[Message, Fault | None]
PAGE, FIND_AT_ONCE = 500, 1000
RESTING_AT_ONCE = 10_000  # most places of messages at rest that one script call examines, over all of its queues
LOOKED = 20_000  # most messages that one script call examines for a filter
QUEUES_AT_ONCE = 200
GROUPS_MOST = 200  # most failure groups whose messages are read in parallel
_RESTING = (Lane.DEAD, Lane.QUARANTINE, Lane.DONE)
_LAST_MS = 2**53


def with_faults(call: RunScript, ids: Sequence[bytes]) -> list[WithFault | None]:
    """Return the messages with these ids, each with the fault that it died of; None for one that is not stored."""
    return [None if pair is None else pair[1] for pair in _with_places(call, ids)]


def _with_places(call: RunScript, ids: Sequence[bytes]) -> list[tuple[RestPlace, WithFault] | None]:
    """Like `with_faults`, with the place of each message besides."""
    entries: list[tuple[RestPlace, WithFault] | None] = []
    while True:  # each call returns as many messages as fit into one reply
        some = ids[len(entries) : len(entries) + FIND_AT_ONCE]
        _, messages, states, *beside = call("find", None, b"".join(some))
        if some and not messages:
            raise StoreError(f"the server answered nothing for {len(some):,} messages")
        for id, message, state, *rest in zip(some, messages, states, *beside, strict=False):
            if message is None:
                entries.append(None)
                continue
            whole = readable(id_text(id.hex()), RedisMessage(message, state, *rest))
            entries.append(((whole.rested_ms or 0, message[4:10] + id), (whole, fatal_of(whole, state))))
        if len(entries) >= len(ids):  # after the first call, since a closed store must raise even for an empty list
            _add_damage(call, ids, entries)
            return entries


def _add_damage(call: RunScript, ids: Sequence[bytes], entries: list[tuple[RestPlace, WithFault] | None]) -> None:
    """Add the damage, with reason and original state, to messages that were quarantined as damaged."""
    aside = [n for n, one in enumerate(entries) if one is not None and one[1][0].reason == DAMAGED]
    if not aside:
        return
    for n, why, kept in zip(aside, *call("damage", None, b"".join(ids[n] for n in aside)), strict=True):
        one = entries[n]
        if one is None or why is None:
            continue
        place, (message, fault) = one
        raw = {} if message.damage is None else message.damage.raw
        damage = Damage(why.decode(errors="backslashreplace"), {**raw, "state": (kept or b"")[22:].hex()})
        entries[n] = place, (replace(message, damage=damage), fault)


class RedisSearch:
    """Finds messages. `call` runs a script; `queues` returns every queue that may have messages."""

    def __init__(self, call: RunScript, queues: Callable[[], list[str]]) -> None:
        self._call, self._queues = call, queues

    def peek(self, lane: Lane | None, where: Filter, limit: int, cursor: str | None) -> Page:
        since, after = validation.read_cursor(cursor)
        messages: list[Message] = []
        page = max(limit, PAGE) if _chooses(lane, where) else limit + 1
        for place, (message, fault) in self._candidates(lane, where, (since, _member(after)), page):
            if message.damage is None and (
                lane not in (None, message.lane) or not lifecycle.matches(message, fault, where)
            ):
                continue
            if len(messages) == limit:
                return Page(messages, cursor)
            messages.append(message)
            cursor = f"{place[0]}.{member_number(place[1])}"
        return Page(messages)

    def failure_groups(self, where: Filter, now_ms: int | None) -> list[FailureGroup]:
        """Dead messages by failure group, the largest first. `now_ms`: the time if the trend is wanted, or None."""
        plain = where == Filter(task=where.task, fingerprint=where.fingerprint)
        groups = self._indexed(where, now_ms is not None) if plain else self._looked_through(where, now_ms)
        return sorted(groups, key=lambda group: (-group.count, group.fingerprint, group.task))

    def _candidates(
        self, lane: Lane | None, where: Filter, after: RestPlace, page: int
    ) -> Iterator[tuple[RestPlace, WithFault]]:
        if where.ids is not None:
            ids = [bytes.fromhex(id.replace("-", "")) for id in dict.fromkeys(where.ids) if is_id(id)]
            yield from sorted(self._by_id(ids, after), key=lambda entry: entry[0])
            return
        named = where.queue
        queues = self._queues() if named is None else [named] if isinstance(named, str) else [*dict.fromkeys(named)]
        if lane not in _RESTING and after[0] <= 0:
            live = [one for one in (Lane.READY, Lane.LEASED) if lane in (None, one)]
            yield from self._pages(lambda at: (self._live(live, queues, at, page, where.narrowing), None), after)
        resting = [one for one in _RESTING if lane in (None, one)]
        if resting:
            batches = _map(where.batch)
            by_batch = () if batches is None else (Lane.DEAD, Lane.QUARANTINE)
            keys = [(LETTERS[lane], queue) for lane in resting if lane not in by_batch for queue in queues]
            keys += [("b" + LETTERS[lane], batch) for lane in resting if lane in by_batch for batch in batches or ()]
            by_failure = resting == [Lane.DEAD] and where.queue is None and batches is None
            if by_failure and (where.task or where.fingerprint) is not None:
                names = self._failures(where)
                keys = keys if names is None else [("", name) for name in names]
            looked = chain((2000, 4000, 8000), repeat(LOOKED))  # the first pages, which fill up early, search less far
            yield from self._pages(lambda at: self._at_rest(keys, where, at, page, next(looked)), after)

    def _pages(
        self, next_places: Callable[[RestPlace], tuple[list[RestPlace], RestPlace | None]], after: RestPlace
    ) -> Iterator[tuple[RestPlace, WithFault]]:
        """Yield messages after `after` with their places. `next_places` returns further places and where it stopped."""
        while True:
            places, looked = next_places(after)
            for place, stored in zip(
                places, with_faults(self._call, [member[6:] for _, member in places]), strict=True
            ):
                if stored is not None and (stored[0].damage is not None or (stored[0].rested_ms or 0) == place[0]):
                    yield place, stored  # otherwise the message has moved since its place was read
            if not places and looked is None:
                return
            before, after = after, looked or places[-1]
            if after <= before:
                raise StoreError(
                    f"what follows {before[1].hex()} in its set comes before it: `redrive store check` says more"
                )

    def _by_id(self, ids: Sequence[bytes], after: RestPlace) -> Iterator[tuple[RestPlace, WithFault]]:
        yield from (entry for entry in _with_places(self._call, ids) if entry is not None and entry[0] > after)

    def _live(
        self,
        lanes: Sequence[Lane],
        queues: Sequence[str],
        after: RestPlace,
        limit: int,
        narrowing: Narrowing | None,
    ) -> list[RestPlace]:
        """Return the first `limit` places after `after` of messages in these lanes, in the order of puts."""
        first = list[bytes]()
        few = None
        if narrowing is not None:
            few = [narrowing.parked, narrowing.group, *(narrowing.due_ms or (None, None))]
        for lane in lanes:
            for at in range(0, len(queues), QUEUES_AT_ONCE):
                members, large = self._call("live", (queues[at : at + QUEUES_AT_ONCE], LETTERS[lane], few), after[1])
                first = nsmallest(limit, {*first, *(member for member in members if member > after[1])})
                for key in large:
                    first = self._with_large(first, key.decode(), after[1], limit)
        return [(0, member) for member in first]

    def _with_large(self, first: list[bytes], key: str, after: bytes, limit: int) -> list[bytes]:
        """Return the first `limit` of these members and of a large set, which the server reads in pages from its end:
        what becomes due earlier meanwhile is still met, and what workers claim meanwhile does not move the place."""
        score = last = b""
        while True:
            before = first[-1] if len(first) == limit else b""
            score, last, members = self._call("scan", (key, score.decode()), after, before, last)
            first = nsmallest(limit, {*first, *members})  # removes duplicates: a member may be met twice
            if not last:
                return first

    def _failures(self, where: Filter) -> list[str] | None:
        """The names of the failure groups that fit the filter's fingerprints and tasks; None if there are too many."""
        names = self.failure_names(where, GROUPS_MOST + 1)
        return names if len(names) <= GROUPS_MOST else None

    def failure_names(self, where: Filter = Filter(), most: int | None = None) -> list[str]:
        """The names of the failure groups that fit the filter; the search ends when it has `most` or a few more."""
        names = dict[str, None]()
        cursor = "0"
        while True:
            next_cursor, page = self._call("failures", (cursor, _map(where.fingerprint), _map(where.task)))
            names |= dict.fromkeys(names_of(page))
            cursor = next_cursor.decode()
            if cursor == "0" or (most is not None and len(names) >= most):
                return list(names)

    def _at_rest(
        self, keys: Sequence[tuple[str, str]], where: Filter, after: RestPlace, limit: int, look: int
    ) -> tuple[list[RestPlace], RestPlace | None]:
        """The places after `after` of messages at rest, the oldest first; and where to continue, None at the end."""
        since = max(after[0], where.since_ms or 0)
        until = _LAST_MS if where.until_ms is None else where.until_ms - 1
        member = after[1] if since == after[0] else b""
        wanted = [_map(where.reason), _map(where.fingerprint), _map(where.task), where.redrives, where.run]
        asked = (since, until, limit, look, wanted if wanted != [None] * 5 else None)
        places: list[RestPlace] = []
        ends: list[RestPlace] = []
        many = max(1, min(QUEUES_AT_ONCE, RESTING_AT_ONCE // limit))
        for first in range(0, len(keys), many):
            rows, *looked = self._call("resting", (keys[first : first + many], *asked), member)
            places += zip(rows[::2], rows[1::2], strict=True)
            ends += [(looked[0], looked[1])] if looked else []
        end = min(ends, default=None)
        places = nsmallest(limit, [place for place in places if end is None or place <= end])
        return places, places[-1] if len(places) == limit else end

    # -- dead messages by failure

    def _indexed(self, where: Filter, trend: bool) -> list[FailureGroup]:
        rows: dict[bytes, list[Any]] = {}
        cursor = "0"
        while True:
            next_cursor, page = self._call("failure_groups", (cursor, TREND_MS, BEFORE_MS))
            for n in range(0, len(page), 7):
                rows[page[n]] = page[n + 1 : n + 7]
            cursor = next_cursor.decode()
            if cursor == "0":
                break
        named = [(*name.split("\0", 1), *rows[name.encode()]) for name in names_of(rows) if "\0" in name]
        fits = lifecycle.fits
        named = [row for row in named if fits(where.task, row[1]) and fits(where.fingerprint, row[0])]
        groups: list[FailureGroup] = []
        for first in range(0, len(named), PAGE):
            some = named[first : first + PAGE]
            samples = with_faults(self._call, [row[5][6:] for row in some])
            for (fingerprint, task, count, first_ms, last_ms, member, *came), sample in zip(some, samples, strict=True):
                fault = sample[1] if sample is not None else None
                error_text = (fault.error, fault.text) if fault is not None else ("", "")
                id = id_text(member[6:].hex())
                lately = came if trend else ()
                groups.append(FailureGroup(fingerprint, task, *error_text, count, first_ms, last_ms, id, *lately))
        return groups

    def _looked_through(self, where: Filter, now_ms: int | None) -> list[FailureGroup]:
        deaths = (death for _, death in self._candidates(Lane.DEAD, where, (-1, b""), PAGE))
        dead = (
            (message, fault)
            for message, fault in deaths
            if message.lane is Lane.DEAD and lifecycle.matches(message, fault, where)
        )
        return grouped(dead, now_ms)


def _map(wanted: str | tuple[str, ...] | None) -> dict[str, int] | None:
    """Return a filter's values for one field as a map for scripts; None if the filter does not restrict it."""
    return None if wanted is None else dict.fromkeys([wanted] if isinstance(wanted, str) else wanted, 1)


def _chooses(lane: Lane | None, where: Filter) -> bool:
    """True if the messages that are read for this filter may include some that do not match it."""
    sifted = Filter(queue=where.queue, ids=where.ids, narrowing=where.narrowing)
    if lane is Lane.DEAD:  # the script compares all fields but the error
        sifted = replace(where, error=None)
    return where != sifted


def _member(number: int) -> bytes:
    """Return a key that sorts after every member with this number, and before those with the next number."""
    return b"" if number < 0 else number.to_bytes(8, "big")[2:] + b"\xff" * 17
