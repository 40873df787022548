"""Triage verdicts and imports in the SQLite store.

Like settlements they are batched, in a few statements for any number: a worker carries out redrive runs too.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...message import (
    Discard,
    Draft,
    Edit,
    Handle,
    Hasten,
    Isolate,
    Message,
    Postpone,
    Readmit,
    Redrive,
    Replace,
    Return,
    Verdict,
)
from .. import lifecycle
from ..batches import state_of
from ..meta import text
from ..validation import judged_lanes, key_is_held
from .batches import Move, SqliteBatches
from .groups import HandleMatch, SqliteGroups, Touched
from .rows import restored_row
from .writes import Writes

_read_seen = msgspec.json.Decoder(list[HandleMatch]).decode
_read_seqs = msgspec.json.Decoder(list[int]).decode
_read_ids = msgspec.json.Decoder(list[str]).decode


class SqliteTriage:
    """Applies verdicts and imports. Works on the connection of the caller; each call is part of its commit."""

    def __init__(
        self, statements: Mapping[str, str], groups: SqliteGroups, batches: SqliteBatches, changes: Writes
    ) -> None:
        self._sql, self._groups, self._batches, self._changes = statements, groups, batches, changes

    def judge(self, c: sqlite3.Connection, handles: Sequence[Handle], verdict: Verdict, now: int) -> list[bool]:
        """Apply the verdict to the messages of the handles; returns for each handle, in order, True if it applied."""
        moved = [False] * len(handles)
        for which in _rounds(handles):
            seen = self._seen(c, which, handles, verdict, now)
            touched = Touched((one.queue, one.group) for one in seen if one.group is not None)
            with self._batches.moving(c, [one.seq for one in seen if one.batch is not None], verdict):
                self._move(c, seen, verdict, touched, now)
            self._groups.admit(c, touched, now)
            for one in seen:
                moved[one.which] = True
        return moved

    def _seen(
        self, c: sqlite3.Connection, which: Sequence[int], handles: Sequence[Handle], verdict: Verdict, now: int
    ) -> list[HandleMatch]:
        """The messages to which the verdict may apply, of the handles in `which`: they are still as the handle says."""
        lanes = judged_lanes(verdict)
        wanted = [at for at in which if handles[at].lane in lanes]
        if not wanted:
            return []
        ends = isinstance(verdict, Discard | Replace)
        listed, edits = text([handles[at] for at in wanted]), isinstance(verdict, Edit)
        (as_seen,) = c.execute(self._sql["as_seen"], (listed, ends, edits)).fetchone()
        seen = _read_seen(as_seen)
        if (condition := _condition(verdict, now)) is not None:
            name, *values = condition
            (fit,) = c.execute(self._sql[name], (text([one.seq for one in seen]), *values)).fetchone()
            seqs = frozenset(_read_seqs(fit))
            seen = [one for one in seen if one.seq in seqs]
        seen = [msgspec.structs.replace(one, which=wanted[one.which]) for one in seen]
        if isinstance(verdict, Edit):
            seen = [one for one in seen if one.group is None or verdict.to_of(one.which).suits_groups]
        return seen

    def _move(
        self, c: sqlite3.Connection, seen: Sequence[HandleMatch], verdict: Verdict, touched: Touched, now: int
    ) -> None:
        seqs = text([one.seq for one in seen])
        match verdict:
            case _ if not seen:
                pass
            case Redrive():
                self._redrive(c, seen, verdict, touched, now)
            case Discard():
                c.execute(self._sql["discard"], (seqs,))
            case Isolate(why):
                c.execute(self._sql["isolate"], (why, now, seqs))
            case Readmit():
                c.execute(self._sql["readmit"], (seqs,))
            case Return():
                blocks = {queue: self._groups.rules(c, queue).block for queue, _ in touched}
                c.execute(self._sql["return"], (text([(one.seq, blocks.get(one.queue, False)) for one in seen]),))
            case Hasten(run=run):
                if run is None:
                    c.execute(self._sql["hasten"], (now, seqs))
                else:
                    self._postpone(c, seen, {one.seq: now for one in seen}, run)
            case Postpone(run=run, dues_ms=dues_ms, back=back):
                self._postpone(c, seen, {one.seq: dues_ms[one.which] for one in seen}, None if back else run)
            case Edit(run=run, cancel=True, back=False):
                c.execute(self._sql["cancel_by_run"], (now, seqs, run))
            case Edit(run=run, back=back):
                rows = [(one.seq, verdict.to_of(one.which)) for one in seen]
                c.execute(self._sql["edit"], (text(rows), None if back else run))
            case Replace():
                self._replace(c, seen[0].seq, verdict.draft, now)

    def _redrive(
        self, c: sqlite3.Connection, seen: Sequence[HandleMatch], verdict: Redrive, touched: Touched, now: int
    ) -> None:
        due = {one.seq: lifecycle.later(now, verdict.delay_of(one.which)) for one in seen}
        fresh = (verdict.to_queue, verdict.attempts, verdict.run, verdict.keep_deadline)
        c.execute(self._sql["redrive"], (now, text([*due.items()]), *fresh))
        for one in seen:
            if one.group is not None:
                touched.update(self._groups.rejoin(c, one, verdict.to_queue or one.queue, due[one.seq], now))

    def _postpone(
        self, c: sqlite3.Connection, seen: Sequence[HandleMatch], dues_ms: Mapping[int, int], run: str | None
    ) -> None:
        strict = {one.queue: self._groups.rules(c, one.queue).strict for one in seen if one.group is not None}
        rows = [(one.seq, dues_ms[one.seq], one.group is not None and strict[one.queue]) for one in seen]
        c.execute(self._sql["postpone"], (text(rows), run))

    def _replace(self, c: sqlite3.Connection, seq: int, draft: Draft, now: int) -> None:
        """Put the draft in place of message `seq`. A draft with the same key takes over the key's expiry too."""
        (old,) = c.execute("select id from message where seq = ?", (seq,)).fetchone()
        name = draft.task, draft.key
        held = c.execute(self._sql["key_until"], (*name, old)).fetchone()
        if held is not None:
            c.execute(self._sql["free_key"], name)
        c.execute(self._sql["discard"], (text([seq]),))
        (put,) = self._changes.insert(c, [draft], now)
        if put.duplicate:
            raise key_is_held(old, draft, put.id)
        if held is not None and held[0] > now + draft.key_for_ms:
            c.execute(self._sql["hold_key"], (*name, put.id, held[0]))

    def restore(self, c: sqlite3.Connection, messages: Sequence[Message], now: int) -> list[bool]:
        (ids,) = c.execute(self._sql["stored"], (text([message.id for message in messages]),)).fetchone()
        stored = set(_read_ids(ids))
        keyed: set[tuple[str, str]] = set()  # of messages before in this batch, whose rows are not written yet
        rows, words = [], []
        members: list[Move] = []
        for message in messages:
            words.append(message.id not in stored and self._key_is_free(c, message, keyed, now))
            if words[-1]:
                stored.add(message.id)
                rows.append(restored_row(lifecycle.restored(message, now)))
                if message.batch is not None:
                    members.append((message.batch, None, state_of(message)))
        c.executemany(self._sql["restore"], rows)
        if members:
            self._batches.count(c, Counter(members))
        return words

    def _key_is_free(self, c: sqlite3.Connection, message: Message, keyed: set[tuple[str, str]], now: int) -> bool:
        """Take the message's unique key, if it has one; returns False if another message holds that key."""
        if message.key is None:
            return True
        name = message.task, message.key
        held = self._changes.holder(c, *name, now)
        if name in keyed or (held is not None and held.id != message.id):
            return False
        if held is None:
            c.execute(self._sql["hold_key"], (*name, message.id, 0))
        keyed.add(name)
        return True


def _condition(verdict: Verdict, now: int) -> tuple[Any, ...] | None:
    """Return the statement, and its values, that finds the messages which the verdict is for; None: it is for all."""
    match verdict:
        case Return(run=run):
            return "can_return", run
        case Postpone(run=run, back=True):
            return "can_postpone", None, run
        case Hasten(run=str()) | Postpone():
            return "can_postpone", now, None
        case Edit(run=run, cancel=cancel, back=True):
            return "can_edit", run, cancel
        case _:
            return None


def _rounds(handles: Sequence[Handle]) -> Iterator[list[int]]:
    """Yield the indexes of handles in rounds, each without two handles of one message: usually one round."""
    left = [*range(len(handles))]
    while left:
        taken: dict[str, int] = {}
        for at in left:
            taken.setdefault(handles[at].id, at)
        chosen = set(taken.values())
        yield sorted(chosen)
        left = [at for at in left if at not in chosen]
