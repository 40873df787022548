"""Write messages in the SQLite store: insert, settle, retain. Each call is part of a transaction of the caller."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from ...errors import EnqueueError
from ...ids import new_id
from ...message import (
    DEGRADED,
    Ack,
    DeadLetter,
    Decision,
    Draft,
    Keep,
    Lane,
    PutResult,
    Quarantine,
    Receipt,
    RetryAt,
    Settled,
    Settlement,
)
from ..lifecycle import WAITING, later
from ..meta import meta_of, text
from .batches import Move, SqliteBatches
from .cells import Swaps
from .groups import SqliteGroups, Touched

Held = tuple[int, str | None]  # of a claim that holds its lease: 1 if a cancel was requested, and the batch
_read_held = msgspec.json.Decoder(list[tuple[int, int, int, str | None]]).decode
_read_counts = msgspec.json.Decoder(list[tuple[str | None, int]]).decode


class Writes:
    """Inserts, settles and removes messages on the connection of the caller. Each call is part of its commit."""

    def __init__(self, statements: Mapping[str, str], groups: SqliteGroups, batches: SqliteBatches) -> None:
        self._sql, self._groups, self._batches = statements, groups, batches

    def insert(self, c: sqlite3.Connection, drafts: Sequence[Draft], now: int) -> list[PutResult]:
        puts, groups = [], []
        rows: list[tuple[Any, ...]] = []
        members: list[Move] = []
        keyed: dict[tuple[str, str], PutResult] = {}  # of earlier drafts of this batch, whose rows are not written yet
        row_of: dict[str, int] = {}  # by id of such a draft
        for draft in drafts:
            id = draft.id or new_id(now)
            if draft.key is not None:
                held = keyed.get((draft.task, draft.key)) or self.holder(c, draft.task, draft.key, now)
                if held is not None and (draft.waiting or draft.replace):
                    held = self._taken_over(c, draft, held, now, rows, row_of.get(held.id))
                if held is not None:
                    puts.append(held)
                    if draft.batch is not None:
                        members.append((draft.batch, None, "duplicate"))
                    continue
                until = now + draft.key_for_ms if draft.key_for_ms else 0
                c.execute(self._sql["hold_key"], (draft.task, draft.key, id, until))
            due = draft.due_ms if draft.due_ms is not None else now + draft.delay_ms + (draft.delay_ms > 0)
            rows.append(insert_row(draft, id, due, now))
            puts.append(PutResult(id, False, "scheduled" if due > now else "ready"))
            if draft.key is not None:
                # a grouped message is parked until the end of this put
                keyed[draft.task, draft.key] = PutResult(
                    id, True, puts[-1].state if draft.group is None else "scheduled"
                )
                row_of[id] = len(rows) - 1
            groups.append(draft.group)
            if draft.batch is not None:
                members.append((draft.batch, None, "open"))
        try:
            if any(groups):
                self._groups.put(c, groups, rows, now)
            else:
                c.executemany(self._sql["put"], rows)
        except sqlite3.IntegrityError as error:
            raise EnqueueError(f"a message with one of these ids is already stored ({error})") from error
        if members:
            self._batches.count(c, Counter(members))
        return puts

    def _taken_over(
        self,
        c: sqlite3.Connection,
        draft: Draft,
        held: PutResult,
        now: int,
        rows: list[tuple[Any, ...]],
        at: int | None,
    ) -> PutResult | None:
        """Return the result of a put that takes its key over from a message that does not wait: None if it does.
        `at`: the holder is in `rows`, which are not written yet."""
        if held.state not in WAITING:
            return None
        if not draft.replace:
            return held
        due = later(now, draft.delay_ms) if draft.due_ms is None else draft.due_ms
        row = insert_row(draft, held.id, due, now)
        if at is None:
            if c.execute(self._sql["replace_waiting"], row).rowcount == 0:
                return None
        elif rows[at][_QUEUE] != draft.queue or rows[at][_GROUP] or rows[at][_BATCH]:
            return None
        else:
            rows[at] = row
        return PutResult(held.id, True, "scheduled" if due > now else "ready", True)

    def holder(self, c: sqlite3.Connection, task: str, key: str, now: int) -> PutResult | None:
        row = c.execute(self._sql["key_holder"], (task, key)).fetchone()
        if row is None:
            return None
        id, until, lane, due, reason = row
        state = (
            "scheduled"
            if lane == "ready" and (due is None or due > now)
            else "cancelled"
            if reason == "cancelled"
            else lane or "done"
        )
        free = lane is None or lane == "done"
        return None if free and until <= now else PutResult(id, True, state)

    def settle(
        self,
        c: sqlite3.Connection,
        settlements: Sequence[Settlement],
        plain: bool,
        grouped: bool,
        batched: bool,
        now: int,
    ) -> list[Settled]:
        fences = fences_of([s.receipt for s in settlements])
        touched = self._groups.touched(c, fences) if grouped else Touched()
        words = self._acked(c, settlements, fences, batched) if plain else None
        if words is not None:
            if touched:
                self._groups.admit(c, touched, now)
            return words
        words = self._settle_each(c, settlements, fences, now)
        if touched:
            moved = [s.receipt.handle for s, word in zip(settlements, words, strict=True) if word is not Settled.STALE]
            self._groups.settled(c, moved, touched, now)
        return words

    def _acked(
        self, c: sqlite3.Connection, settlements: Sequence[Settlement], fences: dict[int | str, int], batched: bool
    ) -> list[Settled] | None:
        """Ack all messages in one statement; returns the results. If a receipt is stale, write nothing, return None."""
        count = len(settlements)  # looked up first: a savepoint to undo a part would copy each page of the delete
        if len(fences) != count:
            return None
        (found,) = c.execute(self._sql["held_members" if batched else "held_count"], (text(fences),)).fetchone()
        held = dict(_read_counts(found)) if batched else {None: found}
        if sum(held.values()) != count:
            return None
        c.execute(self._sql["ack"], (text(list(fences)),))
        if batched and (acked := [(batch, n) for batch, n in held.items() if batch is not None]):
            self._batches.count(c, {(batch, "open", "done"): n for batch, n in acked})
        return [Settled.OK] * count

    def _settle_each(
        self, c: sqlite3.Connection, settlements: Sequence[Settlement], fences: dict[int | str, int], now: int
    ) -> list[Settled]:
        held = self.held(c, fences)
        swaps = [swap for s in settlements for swap in s.swaps]
        cells = Swaps(c, self._sql, swaps, now) if swaps else None
        words: list[Settled] = []
        acks: list[int | str] = []
        kept: list[tuple[Any, ...]] = []
        moves: list[list[Any]] = []
        retries: list[list[Any]] = []
        deferrals: list[list[Any]] = []
        drafts: list[Draft] = []
        members: list[Move] = []
        for s in settlements:
            found = held.pop((s.receipt.handle, s.receipt.fence), None)  # popped: a receipt's second use is stale
            if found is None or (cells is not None and not cells.try_all(s.swaps)):
                words.append(Settled.STALE)
                continue
            cancel, batch = found
            if batch is not None and (end := _end(s.decision, cancel)) is not None:
                members.append((batch, "open", end))
            if type(s.decision) is Ack:
                if s.decision.keep_ms == 0:
                    acks.append(s.receipt.handle)
                else:
                    kept.append(kept_row(s, s.decision, now))
            elif cancel:
                moves.append(move_row(s, now))
                words.append(Settled.CANCELLED)  # the message ended as cancelled, not as decided: no follow-ups
                continue
            elif (retry := retry_row(s)) is not None:
                retries.append(retry)
            elif (deferred := defer_row(s, now)) is not None:
                deferrals.append(deferred)
            else:
                moves.append(move_row(s, now))
            words.append(Settled.OK)
            drafts.extend(s.follow_ups)
        if cells is not None:
            cells.write()
        if acks:
            c.execute(self._sql["ack"], (text(acks),))
        if kept:
            c.executemany(self._sql["keep"], kept)
        if retries:
            c.execute(self._sql["retry"], (text(retries),))
        if deferrals:
            c.execute(self._sql["defer"], (text(deferrals),))
        if moves:
            c.execute(self._sql["settle"], (now, text(moves)))
        if members:
            self._batches.count(c, Counter(members))
        if drafts:
            self.insert(c, drafts, now)
        return words

    def held(self, c: sqlite3.Connection, fences: dict[int | str, int]) -> dict[tuple[int | str, int], Held]:
        """Which of these claims still hold their leases, by (seq, fence)."""
        rows = _read_held(c.execute(self._sql["held_now"], (text(fences),)).fetchone()[0])
        return {(seq, fence): (cancel, batch) for seq, fence, cancel, batch in rows}

    def retain(self, c: sqlite3.Connection, lane: Lane, queue: str, keep: Keep, now: int) -> int:
        ends: list[tuple[int, int]] = []  # positions in the order of rest before which messages are removed
        if keep.count is not None:
            newest = c.execute(self._sql["nth_newest"], (lane, queue, max(0, keep.count - 1))).fetchone()
            if newest is not None:
                ends.append((newest[0], newest[1] + (keep.count == 0)))
        if keep.age_ms is not None:
            ends.append((now - keep.age_ms, 0))
        if not ends:
            return 0
        going = self._groups.touched_by_rest(c, lane, queue, max(ends)) if lane is Lane.DEAD else Touched()
        if lane is Lane.DEAD:
            c.execute(self._sql["discard_members"], (lane, queue, *max(ends)))
        removed = c.execute(self._sql["retain"], (lane, queue, *max(ends))).rowcount
        self._groups.admit(c, going, now)
        return removed


def _end(decision: Decision, cancel: int) -> str | None:
    """Return the field of BatchCounts that counts a member settled like this; None: it stays open."""
    match decision:
        case Ack():
            return "done"
        case _ if cancel:
            return "cancelled"
        case DeadLetter():
            return "dead"
        case Quarantine():
            return "quarantine"
        case _:
            return None


def fences_of(receipts: Sequence[Receipt]) -> dict[int | str, int]:
    """Return the newest fence for each handle: a receipt with an older one is stale and must not hide it."""
    return dict(sorted(receipts, key=itemgetter(1)))


_QUEUE, _GROUP, _BATCH = 2, 10, 13  # columns of a row of `insert_row`


def insert_row(draft: Draft, id: str, due: int, now: int) -> tuple[Any, ...]:
    head = (id, draft.task, draft.queue, draft.priority, due, now, now, draft.deadline_ms)
    rare = draft.headers or draft.correlation_id or draft.causation_id or draft.traceparent or draft.keep_ms
    meta = meta_of(draft, id) if rare or draft.content != "json" else ""
    return (*head, draft.version, draft.key, draft.group or "", draft.producer, meta, draft.batch or "", draft.body)


def retry_row(s: Settlement) -> list[Any] | None:
    """Return a counted retry with its fault as arguments of the statement `retry`; None for any other settlement."""
    decision = s.decision
    if type(decision) is not RetryAt or not decision.counts or decision.held or s.fault is None:
        return None
    if decision.deferral is not None or decision.crashed:
        return None
    return [*s.receipt, decision.at_ms, text(s.fault)]


def defer_row(s: Settlement, now: int) -> list[Any] | None:
    """Return a deferral by flow control as arguments of the statement `defer`; None for any other settlement."""
    decision = s.decision
    if type(decision) is not RetryAt or decision.counts or decision.crashed or s.fault is not None:
        return None
    why = None if decision.deferral is None else text(decision.deferral)
    return [s.receipt.handle, decision.at_ms, max(0, decision.at_ms - now) if decision.held else 0, why]


def kept_row(s: Settlement, ack: Ack, now: int) -> tuple[Any, ...]:
    """Return an ack that keeps the message as arguments of the statement `keep`."""
    expires = None if ack.keep_ms is None else now + ack.keep_ms
    reason = None if ack.degraded is None else DEGRADED
    return (now, expires, reason, s.result, *s.receipt)


def move_row(s: Settlement, now: int) -> list[Any]:
    """Return a settlement other than an ack as arguments of the statement `settle`."""
    fault = text(s.fault) if s.fault is not None else None
    fingerprint, error = (s.fault.fingerprint, s.fault.error) if s.fault is not None else (None, None)
    match s.decision:
        case RetryAt(at_ms=at_ms, counts=counts, held=held, deferral=deferral, crashed=crashed, in_company=in_company):
            held_ms = max(0, at_ms - now) if held else 0
            why = None if deferral is None else text(deferral)
            counts, alone = counts and not crashed, crashed and not in_company
            return [*s.receipt, Lane.READY, at_ms, counts, held_ms, None, None, None, fault, why, crashed, alone]
        case DeadLetter(reason=reason, counts=counts):
            return [*s.receipt, Lane.DEAD, None, counts, 0, reason, fingerprint, error, fault, None, 0, 0]
        case Quarantine(reason=reason, counts=counts, crashed=crashed, in_company=in_company):
            counts, alone = counts and not crashed, crashed and not in_company
            rest = (reason, fingerprint, error, fault, None, crashed, alone)
            return [*s.receipt, Lane.QUARANTINE, None, counts, 0, *rest]
        case _:
            raise TypeError(f"{s.decision!r} moves no message: expected RetryAt, DeadLetter or Quarantine")
