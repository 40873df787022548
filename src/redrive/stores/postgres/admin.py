"""Triage, settings, retention and repair of the PostgreSQL store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from ...ids import new_id
from ...message import (
    DAMAGED,
    BatchMark,
    Cancel,
    Damage,
    Discard,
    Draft,
    Edit,
    GroupOrder,
    Handle,
    Hasten,
    Isolate,
    Keep,
    Lane,
    Message,
    OnDead,
    Postpone,
    Readmit,
    Redrive,
    Replace,
    Return,
    Swap,
    Verdict,
    WaitFields,
)
from .. import validation
from ..batches import miscounted
from ..groups import setting_line
from ..validation import judged_lanes, key_is_held
from . import batches, cells, groups
from . import writes as changes
from .damage import stand_in
from .database import PostgresDatabase
from .doctor import doctor
from .groups import admit, lock
from .notifications import Wakes
from .rows import ids, ints, numbers, plain, restored_rows, texts
from .statements import AnyConnection, Statements

REPORTED_MAX = 100


_CANCEL = {None: Cancel.UNKNOWN, "done": Cancel.CANCELLED, "leased": Cancel.REQUESTED, "rests": Cancel.TOO_LATE}


class PostgresAdmin(PostgresDatabase):
    """Administration of the PostgreSQL store. Each call is one transaction."""

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        handles = validation.admit_verdict(handles, verdict, self.traits)
        wakes = Wakes()

        def work(c: AnyConnection) -> list[bool]:
            words = judge(self._st, c, handles, verdict, swaps, wakes, self._st.now())
            if self._st.by_server:  # a selection made next must contain the moved messages
                sent_s = time.monotonic()
                ((server_ms,),) = self._st.rows(c, "time")
                self._link.saw_clock(server_ms, sent_s)
            if isinstance(verdict, Edit | Postpone):  # a due time that is past may lie below the floor of its queue
                now_ms = self.now_ms()
                if isinstance(verdict, Postpone):
                    to: Sequence[int | None] = verdict.dues_ms
                else:
                    to = [verdict.to_of(at).due_ms for at in range(len(handles))]
                moved = [(handle, due_ms) for handle, due_ms, done in zip(handles, to, words, strict=True) if done]
                dues = {handle.due_ms if due_ms is None else due_ms for handle, due_ms in moved}
                for queue in [*wakes] if dues else ():
                    for due_ms in dues:
                        wakes.due(queue, due_ms, now_ms)
            self.failpoint("triaged")
            return words

        # A repetition after a lost reply would meet its own swaps and drafts, and could not report the result.
        once = bool(swaps) or isinstance(verdict, Replace)
        return self._link.run(work, wake=wakes, again=not once) if handles or swaps else []

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        messages = validation.admit_restored(messages, self.traits)

        def work(c: AnyConnection) -> list[bool]:
            now = self._st.now()
            words = restore(self._st, c, messages, now) if messages else []
            cells.swap_all(self._st, c, swaps, now)
            return words

        return self._link.run(work, again=not swaps) if messages or swaps else []

    def cancel(self, ids_: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        wakes: set[str] = set()

        def work(c: AnyConnection) -> list[Cancel]:
            now, listed = self._st.now(), ids(sorted(set(ids_)))
            names: groups.GroupNames = set()
            while True:
                rows = self._st.rows(c, "lanes", listed)
                freed = {(queue, group) for _, _, queue, group in rows if group is not None}
                if freed <= names:
                    break  # all groups are locked: no message of the batch was redriven to another queue since
                names |= freed
                groups.lock(self._st, c, names, now)
            ended = dict(self._st.rows(c, "cancel", listed, now))
            groups.admit(self._st, c, names, now)
            wakes.update(queue for queue, _ in names)
            known = {id for id, _, _, _ in rows}
            cells.swap_all(self._st, c, swaps, now)
            return [_CANCEL[ended.get(id, "rests" if id in known else None)] for id in ids_]

        return self._link.run(work, wake=wakes, again=not swaps) if ids_ or swaps else []

    def mark_batches(self, marks: Sequence[BatchMark]) -> None:
        if marks:
            batches.mark(self._link, self._st, marks)

    def configure(
        self,
        queue: str,
        *,
        paused: bool | None = None,
        group_width: int | None = None,
        group_order: GroupOrder | str | None = None,
        on_dead: OnDead | str | None = None,
        swaps: Sequence[Swap] = (),
    ) -> None:
        order, dead = validation.admit_settings(queue, group_width, group_order, on_dead)
        said = (paused, group_width, order and order.value, dead and dead.value)
        set_now = self._look("settings", queue)

        def work(c: AnyConnection) -> None:
            groups.configure(self._st, c, queue, *said, self._st.now())
            cells.swap_all(self._st, c, swaps, self._st.now())

        same = bool(set_now) and all(new is None or new == now for new, now in zip(said, set_now[0][:4], strict=True))
        if not same or swaps:
            self._link.run(work, wake=[queue], again=not swaps)
        elif set_now[0][4] is None:
            return  # nothing changed, as usual when an app starts
        self._admit_all(queue)

    def configure_group(
        self,
        queue: str,
        group: str | None,
        *,
        width: int | None = None,
        resume: bool = False,
        swaps: Sequence[Swap] = (),
    ) -> None:
        validation.admit_width(width, 0)
        validation.admit_names(queue, group)

        def work(c: AnyConnection) -> None:
            groups.configure_group(self._st, c, queue, group, width, resume, self._st.now())
            cells.swap_all(self._st, c, swaps, self._st.now())

        self._link.run(work, wake=[queue], again=not swaps)
        if group is None:
            self._admit_all(queue)

    def _admit_all(self, queue: str) -> None:
        """Admit messages by the queue's new settings, in several commits. After a crash, any process's sweep
        continues."""
        while self._admit_step(queue):
            pass

    def _admit_step(self, queue: str) -> bool:
        self.failpoint("admitting")
        return self._link.run(lambda c: groups.admit_step(self._st, c, queue, self._st.now()), wake=[queue])

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        def work(c: AnyConnection) -> tuple[int, int]:
            kept = (Lane.DONE, done), (Lane.DEAD, dead)
            removed = [retain(self._st, c, lane, queue, keep, self._st.now()) for lane, keep in kept]
            return removed[0], removed[1]

        return self._link.run(work, wake=[queue])

    def check(self) -> list[str]:
        problems = [f"message {id} in lane {lane} stands where it should not" for id, lane in self._look("misplaced")]
        stuck = self._look("stuck_groups")
        why = "a message is parked though a place is free"
        problems += [f"queue {queue!r}, group {name!r}: {why}" for queue, name in stuck]
        problems += [setting_line(*row) for row in self._look("odd_settings")]
        problems += [miscounted(*row) for row in self._look("miscounted")]
        damaged = self._damaged()
        problems += [f"message {m.id}: {m.damage.why if m.damage else ''}" for m in damaged[:REPORTED_MAX]]
        return problems + (
            [f"and {len(damaged) - REPORTED_MAX:,} more messages"] if len(damaged) > REPORTED_MAX else []
        )

    def _damaged(self) -> list[Message]:
        """Return the messages whose rows are damaged, whether quarantined already or not."""
        page = self.peek(None, limit=1000)
        damaged = [m for m in page.messages if m.damage is not None]
        while page.cursor is not None:
            page = self.peek(None, limit=1000, cursor=page.cursor)
            damaged += [m for m in page.messages if m.damage is not None]
        return damaged

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        report, now = [], self._st.now()
        for message in self._damaged():
            keep(message)
            (row,) = self._look("find", ids([message.id]))
            wrong = texts([*stand_in(row)[1]])
            self._link.run(lambda c, id=message.id, wrong=wrong: self._st.do(c, "repair", id, wrong, now))  # type: ignore[misc]
            report.append(f"message {message.id} is dead, as {DAMAGED}, without what could not be read of it")
        for id, _ in self._look("misplaced"):
            (stored,) = self.find([id])
            if stored is None or stored.lane not in (Lane.READY, Lane.LEASED):
                continue
            keep(replace(stored, damage=Damage("it stands in no lane")))
            queue = {stored.queue}
            if self._link.run(lambda c, id=id: self._st.rows(c, "put_back", id, now), wake=queue):  # type: ignore[misc]
                report.append(f"message {id} is back in queue {stored.queue!r}")
        stuck = {(queue, name) for queue, name in self._look("stuck_groups")}

        def admit_stuck(c: AnyConnection) -> None:
            groups.lock(self._st, c, stuck, self._st.now())
            groups.admit(self._st, c, stuck, self._st.now())

        if stuck:
            self._link.run(admit_stuck, wake={queue for queue, _ in stuck})
        return report

    def doctor(self) -> list[str]:
        return doctor(self._link)

    def info(self) -> dict[str, str | int]:
        ((version, schema, size_bytes),) = self._look("about")
        where = f"{self._link.where}, schema {self._link.schema}"
        return {"engine": f"PostgreSQL {version}", "schema": schema, "path": where, "size_bytes": size_bytes}


def judge(
    st: Statements,
    c: AnyConnection,
    handles: Sequence[Handle],
    verdict: Verdict,
    swaps: Sequence[Swap],
    wakes: set[str],
    now: int | None,
) -> list[bool]:
    """Apply the verdict; returns True for each message to which it applied. Adds to `wakes` the queues in which
    messages become due or may get a place."""
    rows = st.rows(c, "lanes", ids([handle.id for handle in handles])) if handles else []
    queues = {queue for _, _, queue, _ in rows}
    names = {(queue, group) for _, _, queue, group in rows if group is not None}
    match verdict:
        case Redrive(to_queue=str(to)):
            names |= {(to, group) for _, group in names}
            queues.add(to)
        case Replace(draft):
            names |= cells.names_of([draft])
            queues.add(draft.queue)
        case Edit(to=to_all):
            queues |= {to.queue for to in to_all if to.queue is not None}
        case _:
            pass
    wakes |= queues
    if names:
        lock(st, c, names, now)
    words = _words(st, c, handles, verdict, now)
    admit(st, c, names, now)
    if words != [False] or not isinstance(verdict, Replace):
        cells.swap_all(st, c, swaps, now)
    return words


def _words(
    st: Statements, c: AnyConnection, handles: Sequence[Handle], verdict: Verdict, now: int | None
) -> list[bool]:
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
            rows = st.rows(c, "redrive", *seen, late, *fresh, now, ints([places[handle] for handle in listed]))
        case Discard(waive=waive):
            rows = st.rows(c, "discard", *seen, "done" if waive else "discarded")
        case Isolate(why):
            rows = st.rows(c, "isolate", *seen, plain(why), now)
        case Return(run=run):
            rows = st.rows(c, "return", *seen, run)
        case Hasten(run=None):
            rows = st.rows(c, "hasten", *seen, now)
        case Hasten(run=run):
            rows = st.rows(c, "postpone", *seen, *_as_seen(listed), numbers([None] * len(listed)), run, False, now)
        case Postpone(run=run, dues_ms=dues_ms, back=back):
            dues = numbers([dues_ms[places[handle]] for handle in listed])
            rows = st.rows(c, "postpone", *seen, *_as_seen(listed), dues, run, back, now)
        case Edit(run=run, cancel=cancel, back=back):
            was = [handle.wait or WaitFields() for handle in listed]
            to = [verdict.to_of(places[handle]) for handle in listed]
            rows = st.rows(c, "edit", *seen, *_as_seen(listed), *_fields(was)[:3], *_fields(to), run, back, cancel, now)
        case Readmit():
            rows = st.rows(c, "readmit", *seen)
        case Replace(draft):
            rows = st.rows(c, "discard", *seen, None)
            if rows:
                _put_instead(st, c, handles[0].id, draft, now)
    moved = {*rows}
    return _in_turn(handles, verdict, {handle for handle in listed if handle[:3] in moved})


def _in_turn(handles: Sequence[Handle], verdict: Verdict, moved: set[Handle]) -> list[bool]:
    """Return for each handle, in order, True if the verdict applied. `moved` has the handles of the messages that it
    moved; a handle given twice counts twice only if the message still fits it."""
    words = []
    for handle in handles:
        words.append(handle in moved)
        moved.discard(handle)
        if words[-1] and isinstance(verdict, Isolate):
            moved.add(handle._replace(lane=Lane.QUARANTINE))
        elif words[-1] and verdict == Hasten():
            moved.add(handle)
    return words


def _as_seen(handles: Sequence[Handle]) -> tuple[Any, Any]:
    """Return the fences and due times of the handles as arguments of a statement."""
    return numbers([handle.fence for handle in handles]), numbers([handle.due_ms for handle in handles])


def _fields(waits: Sequence[WaitFields]) -> tuple[Any, Any, Any, Any]:
    """Return the queues, priorities, deadlines and due times as arguments of a statement."""
    return (
        texts([wait.queue for wait in waits]),
        numbers([wait.priority for wait in waits]),
        numbers([wait.deadline_ms for wait in waits]),
        numbers([wait.due_ms for wait in waits]),
    )


def _put_instead(st: Statements, c: AnyConnection, old: str, draft: Draft, now: int | None) -> None:
    """Put the draft in place of the discarded message `old`. A draft with the same key takes over the key's expiry."""
    name = draft.task, draft.key
    until = [] if draft.key is None else st.rows(c, "release_key", *name, old)
    (put,) = changes.insert_all(st, c, [draft], [draft.id or new_id(st.now_ms())], now)
    if put.duplicate:
        raise key_is_held(old, draft, put.id)
    if until and until[0][0] > 0:
        st.do(c, "prolong_key", *name, until[0][0])


# -- imports


def restore(st: Statements, c: AnyConnection, messages: Sequence[Message], now: int | None) -> list[bool]:
    """Write messages at rest; returns False for one whose id is stored, or whose key another message holds."""
    taken = {row[0] for row in st.rows(c, "stored", ids([message.id for message in messages]))}
    first: dict[str, int] = {}
    for at, message in enumerate(messages):
        if message.id not in taken:
            first.setdefault(message.id, at)
    held = _held(st, c, [messages[at] for at in first.values()], now)
    new = [messages[at] for id, at in first.items() if id not in held]
    written = {row[0] for row in st.rows(c, "restore", *restored_rows(new, now))} if new else set()
    members = [(m.batch, m.lane.value) for m in new if m.batch is not None and m.id in written]
    if members:
        batches.count(st, c, Counter(members))
    return [message.id in written and first[message.id] == at for at, message in enumerate(messages)]


def _held(st: Statements, c: AnyConnection, messages: Sequence[Message], now: int | None) -> set[str]:
    """Take the keys of these messages; returns the ids of those whose key another message holds. A message that held
    its key before it was removed holds it again."""
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


def retain(st: Statements, c: AnyConnection, lane: Lane, queue: str, keep: Keep, now: int | None) -> int:
    """Remove messages of the queue in this lane beyond the bounds of `keep`; returns the number removed."""
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
        lock(st, c, names, now)
    seen = ids([row[0] for row in rows]), numbers([row[3] for row in rows])
    removed = st.rows(c, "retain", *seen, lane.value)[0][0] if rows else 0
    if names:
        admit(st, c, names, now)
    return int(removed)
