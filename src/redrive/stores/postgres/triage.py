"""What people do with resting messages in the PostgreSQL store: verdicts, imports, and what retention removes.

Whoever changes several locks groups first, then messages in the order of their ids, then keys, then cells.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ids import new_id
from ...message import (
    Discard,
    Draft,
    Handle,
    Isolate,
    Keep,
    Lane,
    Message,
    Readmit,
    Redrive,
    Replace,
    Return,
    Swap,
    Verdict,
)
from ..validation import judged_lanes, key_is_held
from . import writes as changes
from .groups import admit, lock
from .rows import (
    ids,
    ints,
    numbers,
    plain,
    restored_rows,
    texts,
)
from .writes import Connection, Statements


def judge(
    st: Statements,
    c: Connection,
    handles: Sequence[Handle],
    verdict: Verdict,
    swaps: Sequence[Swap],
    told: set[str],
    now: int | None,
) -> list[bool]:
    """Whether each verdict held. Adds to `told` the queues where something comes, or may be let in."""
    rows = st.rows(c, "lanes", ids([handle.id for handle in handles])) if handles else []
    queues = {queue for _, _, queue, _ in rows}
    names = {(queue, group) for _, _, queue, group in rows if group is not None}
    match verdict:
        case Redrive(to_queue=str(to)):
            names |= {(to, group) for _, group in names}
            queues.add(to)
        case Replace(draft):
            names |= changes.names_of([draft])
            queues.add(draft.queue)
        case _:
            pass
    told |= queues
    if names:
        lock(st, c, names, (), now)
    words = _words(st, c, handles, verdict, now)
    admit(st, c, names, now)
    if words != [False] or not isinstance(verdict, Replace):
        changes.swap_all(st, c, swaps, now)
    return words


def _words(st: Statements, c: Connection, handles: Sequence[Handle], verdict: Verdict, now: int | None) -> list[bool]:
    places = {handle: at for at, handle in reversed([*enumerate(handles)]) if handle.lane in judged_lanes(verdict)}
    if not isinstance(verdict, Discard | Replace) and any(handle.lane is Lane.QUARANTINE for handle in places):
        aside = {id for id, _ in st.rows(c, "kept_before", ids([handle.id for handle in places]))}
        places = {handle: at for handle, at in places.items() if handle.id not in aside}
    listed = sorted(places)
    if not listed:
        return [False] * len(handles)
    seen = (
        ids([handle.id for handle in listed]),
        ints([handle.redrives for handle in listed]),
        texts([handle.lane for handle in listed]),
    )
    match verdict:
        case Redrive():
            delays = [verdict.delay_of(places[handle]) for handle in listed]
            late = numbers([delay_ms + (delay_ms > 0) for delay_ms in delays])
            fresh = (verdict.to_queue, verdict.attempts, verdict.run, verdict.keep_deadline)
            rows = st.rows(c, "redrive", *seen, late, *fresh, now)
        case Discard():
            rows = st.rows(c, "discard", *seen)
        case Isolate(why):
            rows = st.rows(c, "isolate", *seen, plain(why), now)
        case Return(run):
            rows = st.rows(c, "return", *seen, run)
        case Readmit():
            rows = st.rows(c, "readmit", *seen)
        case Replace(draft):
            rows = st.rows(c, "discard", *seen)
            if rows:
                _put_instead(st, c, handles[0].id, draft, now)
    moved = {Handle(id, redrives, Lane(lane)) for id, redrives, lane in rows}
    return _in_turn(handles, verdict, moved)


def _in_turn(handles: Sequence[Handle], verdict: Verdict, moved: set[Handle]) -> list[bool]:
    """One after the other: what an earlier one left as a later one says can be judged again."""
    words = []
    for handle in handles:
        words.append(handle in moved)
        moved.discard(handle)
        if words[-1] and isinstance(verdict, Isolate):
            moved.add(handle._replace(lane=Lane.QUARANTINE))
    return words


def _put_instead(st: Statements, c: Connection, old: str, draft: Draft, now: int | None) -> None:
    """The key of the one that was discarded is the draft's, if it has the same, and held as long as it was to be."""
    name = draft.task, draft.key
    until = [] if draft.key is None else st.rows(c, "release_key", *name, old)
    (put,) = changes.insert_all(st, c, [draft], [draft.id or new_id(st.now_ms())], now)
    if put.duplicate:
        raise key_is_held(old, draft, put.id)
    if until and until[0][0] > 0:
        st.do(c, "prolong_key", *name, until[0][0])


# -- imports


def restore(st: Statements, c: Connection, messages: Sequence[Message], now: int | None) -> list[bool]:
    """Whether each was written; False for one whose id is stored, or whose key another message holds."""
    taken = {row[0] for row in st.rows(c, "stored", ids([message.id for message in messages]))}
    first: dict[str, int] = {}
    for at, message in enumerate(messages):
        if message.id not in taken:
            first.setdefault(message.id, at)
    held = _held(st, c, [messages[at] for at in first.values()], now)
    new = [messages[at] for id, at in first.items() if id not in held]
    written = {row[0] for row in st.rows(c, "restore", *restored_rows(new), now)} if new else set()
    return [message.id in written and first[message.id] == at for at, message in enumerate(messages)]


def _held(st: Statements, c: Connection, messages: Sequence[Message], now: int | None) -> set[str]:
    """Takes the keys of these messages; the ids of those whose key another one holds. One that a message held itself
    while it was stored is still its own."""
    keyed: dict[tuple[str, str], str] = {}
    held = set[str]()
    for message in messages:
        if message.key is not None and keyed.setdefault((message.task, message.key), message.id) != message.id:
            held.add(message.id)
    if not keyed:
        return held
    keys = texts([task for task, _ in keyed]), texts([key for _, key in keyed])
    whose = [*keyed.values()]
    ours = set(st.rows(c, "take_keys", *keys, ids(whose), numbers([0] * len(whose)), now))
    free: list[tuple[str, str]] = []
    for at, id, until, lane, _, _, server_ms in st.rows(c, "key_holders", *keys, now):
        name = [*keyed][at - 1]
        if name in ours or id == keyed[name]:
            continue
        if lane in (None, Lane.DONE) and until <= server_ms:
            free.append(name)
        else:
            held.add(keyed[name])
    if free:
        names = texts([task for task, _ in free]), texts([key for _, key in free])
        st.do(c, "hold_keys", *names, ids([keyed[name] for name in free]), numbers([0] * len(free)), now)
    return held


# -- retention


def retain(st: Statements, c: Connection, lane: Lane, queue: str, keep: Keep, now: int | None) -> int:
    """Remove what this lane of the queue holds beyond the bounds; how many."""
    rested, seq = None, None
    if keep.count is not None:
        newest = st.rows(c, "nth_newest", lane.value, queue, max(0, keep.count - 1))
        if newest:
            rested, seq = newest[0][0], newest[0][1] + (keep.count == 0)
    if rested is None and keep.age_ms is None:
        return 0
    rows = st.rows(c, "going", lane.value, queue, rested, seq, keep.age_ms, now)
    names = {(queue, group) for _, group, holds, _ in rows if holds}
    if names:
        lock(st, c, names, (), now)
    seen = ids([row[0] for row in rows]), numbers([row[3] for row in rows])
    removed = st.rows(c, "retain", *seen, lane.value)[0][0] if rows else 0
    if names:
        admit(st, c, names, now)
    return int(removed)
