"""What changes messages and cells in the SQLite store, inside the writer's transaction: insert, settle, swap."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...errors import EnqueueError
from ...ids import new_id
from ...message import (
    Ack,
    Draft,
    Keep,
    Lane,
    Put,
    Settled,
    Settlement,
)
from ..meta import text
from .cells import Swaps
from .groups import Groups, Touched
from .rows import (
    defer_row,
    fences_of,
    insert_row,
    kept_row,
    move_row,
    retry_row,
)


class Changes:
    """Works on the connection it is given. Each call is a part of a commit of the caller's."""

    def __init__(self, statements: Mapping[str, str], groups: Groups) -> None:
        self._sql, self._groups = statements, groups

    def insert(self, c: sqlite3.Connection, drafts: Sequence[Draft], now: int) -> list[Put]:
        puts, rows, groups = [], [], []
        keyed: dict[tuple[str, str], Put] = {}  # by earlier drafts of this batch, whose rows are not written yet
        for draft in drafts:
            id = draft.id or new_id(now)
            if draft.key is not None:
                held = keyed.get((draft.task, draft.key)) or self.holder(c, draft.task, draft.key, now)
                if held is not None:
                    puts.append(held)
                    continue
                until = now + draft.key_for_ms if draft.key_for_ms else 0
                c.execute(self._sql["hold_key"], (draft.task, draft.key, id, until))
            due = draft.due_ms if draft.due_ms is not None else now + draft.delay_ms + (draft.delay_ms > 0)
            rows.append(insert_row(draft, id, due, now))
            puts.append(Put(id, False, "scheduled" if due > now else "ready"))
            if draft.key is not None:
                # one of a group is parked until the end of this put
                keyed[draft.task, draft.key] = Put(id, True, puts[-1].state if draft.group is None else "scheduled")
            groups.append(draft.group)
        try:
            if any(groups):
                self._groups.put(c, groups, rows, now)
            else:
                c.executemany(self._sql["put"], rows)
        except sqlite3.IntegrityError as error:
            raise EnqueueError(f"a message with one of these ids is already stored ({error})") from error
        return puts

    def holder(self, c: sqlite3.Connection, task: str, key: str, now: int) -> Put | None:
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
        return None if free and until <= now else Put(id, True, state)

    def settle(
        self, c: sqlite3.Connection, settlements: Sequence[Settlement], plain: bool, grouped: bool, now: int
    ) -> list[Settled]:
        fences = fences_of([s.receipt for s in settlements])
        touched = self._groups.touched(c, fences) if grouped else Touched()
        words = self._acked(c, settlements, fences) if plain else None
        if words is not None:
            self._groups.admit(c, touched, now)
            return words
        words = self._settle_each(c, settlements, fences, now)
        if touched:
            moved = [s.receipt.handle for s, word in zip(settlements, words, strict=True) if word is not Settled.STALE]
            self._groups.settled(c, moved, touched, now)
        return words

    def _acked(
        self, c: sqlite3.Connection, settlements: Sequence[Settlement], fences: dict[int | str, int]
    ) -> list[Settled] | None:
        """All of them acked, or None: then none was."""
        c.execute("savepoint acks")
        if len(fences) == len(settlements) == c.execute(self._sql["ack"], (text(fences),)).rowcount:
            c.execute("release acks")
            return [Settled.OK] * len(settlements)
        c.execute("rollback to acks")
        c.execute("release acks")
        return None

    def _settle_each(
        self, c: sqlite3.Connection, settlements: Sequence[Settlement], fences: dict[int | str, int], now: int
    ) -> list[Settled]:
        held = self.held(c, fences)
        swaps = [swap for s in settlements for swap in s.swaps]
        cells = Swaps(c, self._sql, swaps, now) if swaps else None
        words: list[Settled] = []
        acks: dict[int | str, int] = {}
        kept: list[tuple[Any, ...]] = []
        moves: list[list[Any]] = []
        retries: list[list[Any]] = []
        deferrals: list[list[Any]] = []
        drafts: list[Draft] = []
        for s in settlements:
            # Popped: the same receipt twice is stale the second time.
            cancel = held.pop((s.receipt.handle, s.receipt.fence), None)
            if cancel is None or (cells is not None and not cells.try_all(s.swaps)):
                words.append(Settled.STALE)
                continue
            if type(s.decision) is Ack:
                if s.decision.keep_ms == 0:
                    acks[s.receipt.handle] = s.receipt.fence
                else:
                    kept.append(kept_row(s, s.decision, now))
            elif cancel:
                moves.append(move_row(s, now))
                words.append(Settled.CANCELLED)  # its end is not what was decided, so nothing follows from that
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
        if drafts:
            self.insert(c, drafts, now)
        return words

    def held(self, c: sqlite3.Connection, fences: dict[int | str, int]) -> dict[tuple[int | str, int], int]:
        """Those that are the current claim, as (seq, fence), and whether a cancel was asked for."""
        found = msgspec.json.decode(c.execute(self._sql["held_now"], (text(fences),)).fetchone()[0])
        return {(seq, fence): cancel for seq, fence, cancel in found}

    def retain(self, c: sqlite3.Connection, lane: Lane, queue: str, keep: Keep, now: int) -> int:
        ends: list[tuple[int, int]] = []  # what lies before one of these goes
        if keep.count is not None:
            newest = c.execute(self._sql["nth_newest"], (lane, queue, max(0, keep.count - 1))).fetchone()
            if newest is not None:
                ends.append((newest[0], newest[1] + (keep.count == 0)))
        if keep.age_ms is not None:
            ends.append((now - keep.age_ms, 0))
        if not ends:
            return 0
        going = self._groups.touched_by_rest(c, lane, queue, max(ends)) if lane is Lane.DEAD else Touched()
        removed = c.execute(self._sql["retain"], (lane, queue, *max(ends))).rowcount
        self._groups.admit(c, going, now)
        return removed
