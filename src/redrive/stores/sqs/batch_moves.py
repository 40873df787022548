"""Batches of a store on SQS: what its settlements, verdicts and queries mean for the counts (`batches.py`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from ...errors import StoreError, Unsupported
from ...message import (
    BatchCounts,
    BatchMark,
    Discard,
    Filter,
    Handle,
    Isolate,
    Keep,
    Lane,
    Message,
    Readmit,
    Redrive,
    Replace,
    Return,
    Settled,
    Verdict,
)
from ...store import Store
from ...store.sqs import SqsEngine
from .batches import BatchCells
from .cells import NO_CELLS
from .members import MemberState, headed, life_of, member_of, move_of
from .steps import SettleStep

PAGE = 500


class CountedBatches(SqsEngine):
    """The queries of a store on SQS about batches. `batch_cells` is None without cells."""

    batch_cells: BatchCells | None

    def batch_counts(self, ids: Sequence[str]) -> list[BatchCounts]:
        return self._counted().counts(ids)

    def batch_ids(self, *, after: str = "", limit: int = 100, failed: bool = False) -> list[str]:
        ids = [] if self.batch_cells is None else self.batch_cells.ids(after)  # all of them, in one read of the lists
        found = list[str]()
        while ids and failed and len(found) < limit:
            some, ids = ids[:PAGE], ids[PAGE:]
            found += [id for id, n in zip(some, self.batch_counts(some), strict=True) if n.dead or n.quarantine]
        return (found if failed else ids)[:limit]

    def changed_batches(self, *, after: str = "", limit: int = 100) -> list[str]:
        return [] if self.batch_cells is None else self.batch_cells.changed(after, limit)

    def mark_batches(self, marks: Sequence[BatchMark]) -> None:
        self._counted().mark(marks)
        over = [mark.id for mark in marks if mark.keep_ms is not None]
        triage = self.triage_store
        if over and triage is not None:  # it counts the members that rested there, too
            counts = triage.batch_counts(over)
            left = [n.open or n.dead or n.quarantine for n in counts]
            lines = zip(over, counts, left, strict=True)
            triage.mark_batches([BatchMark(id, n, None if some else 0) for id, n, some in lines])

    def count_dead(self, messages: Sequence[Message]) -> None:
        if self.batch_cells is not None:
            self.batch_cells.merge([move_of(message) for message in messages])

    def _counted(self) -> BatchCells:
        if self.batch_cells is None:
            raise Unsupported(f"a batch is counted in cells. {NO_CELLS}")
        return self.batch_cells


class SteppedMembers:
    """Counts what settlements do to members. Without cells it counts nothing: then there are no members."""

    def __init__(self, batches: BatchCells | None) -> None:
        self._batches = batches

    def number(self, steps: Sequence[SettleStep]) -> None:
        """Give the follow-ups that join batches their indexes."""
        if self._batches is None:
            return
        for step in steps:
            if step.joins is None and step.word is Settled.OK:
                new = [send for send in step.sends if send.message.id != step.held.message.id]
                try:
                    messages = self._batches.number([send.message for send in new])
                except StoreError as error:
                    step.error = error
                    continue
                step.joins = [move_of(message, MemberState.OPEN) for message in messages]
                for send, message in zip(new, messages, strict=True):
                    send.message = message

    def count(self, steps: Sequence[SettleStep]) -> tuple[str, ...]:
        """Count the members of batches that these steps end and bring; returns the batches to look at. Done before the
        messages are deleted, so a kill in between delivers them again, which counts nothing twice."""
        going = [step for step in steps if step.error is None and step.word is Settled.OK and not step.counted]
        if self._batches is None:
            return ()
        try:
            batches = self._batches.merge([move for step in going for move in step.moves])
        except StoreError as error:
            for step in going:
                step.error = error if any(step.moves) else None
            return ()
        for step in going:
            step.counted = True
        return batches


class TriagedMembers:
    """Counts what verdicts, retention and imports do to members in the triage store.

    No commit spans that store and the cells. What takes a dead letter away is counted before it, and set right by what
    is stored afterwards. What makes a letter ready is counted after it, and again by the pump before it sends it.
    """

    def __init__(self, triage: Store, batches: BatchCells) -> None:
        self._triage, self._batches = triage, batches

    def of(self, handles: Sequence[Handle]) -> dict[str, Message]:
        """Return by id the members among these messages whose handles hold."""
        if not self._triage.batch_ids(limit=1):
            return {}
        rows = self._triage.find([handle.id for handle in handles])
        lines = zip(handles, rows, strict=True)
        return {row.id: row for handle, row in lines if row is not None and row.handle == handle and member_of(row)}

    def in_place(self, verdict: Verdict, rows: dict[str, Message]) -> Verdict:
        """Return the verdict; if it replaces a member, its draft takes the member's place."""
        if not isinstance(verdict, Replace) or not rows:
            return verdict
        (old,) = rows.values()
        draft, member = verdict.draft, member_of(old)
        if member is None or draft.batch != member.batch:
            return verdict
        headers = headed(draft.headers, member, life_of(old, member) + 1)
        return replace(verdict, draft=replace(draft, headers=headers))

    def before(self, rows: dict[str, Message], verdict: Verdict) -> None:
        """Count what takes letters away, or back from the way to SQS."""
        if isinstance(verdict, Discard):
            state = MemberState.DONE if verdict.waive else MemberState.DISCARDED
            self._batches.merge([move_of(row, state, forced=True) for row in rows.values()])
        elif isinstance(verdict, Return):
            self._batches.merge([move_of(row, MemberState.DEAD, lives=-1, forced=True) for row in rows.values()])

    def after(self, rows: dict[str, Message], verdict: Verdict, held: Collection[str]) -> None:
        """Count the others, and set right what did not apply. `held`: the ids whose handles held."""
        if isinstance(verdict, Redrive | Replace):
            done = [row for id, row in rows.items() if id in held]
            left = isinstance(verdict, Replace) and any(verdict.draft.batch != row.batch for row in done)
            state = MemberState.DISCARDED if left else MemberState.OPEN
            self._batches.merge([move_of(row, state, lives=1) for row in done])
        elif isinstance(verdict, Discard | Return | Isolate | Readmit):
            now_there = self._triage.find([*rows]) if rows else []
            self._batches.merge([move_of(row, forced=True) for row in now_there if row is not None])

    def retained(self, queue: str, dead: Keep) -> None:
        """Count the dead members as discarded that `retain` is about to remove, the oldest ones."""
        if (dead.count is None and dead.age_ms is None) or not self._triage.batch_ids(limit=1):
            return
        self._batches.merge([move_of(row, MemberState.DISCARDED, forced=True) for row in self._old(queue, dead)])

    def _old(self, queue: str, keep: Keep) -> list[Message]:
        where = Filter(queue=queue)
        spare = 0 if keep.count is None else max(0, self._triage.counts(queue).dead - keep.count)
        since_ms = 0 if keep.age_ms is None else self._triage.now_ms() - keep.age_ms
        old, cursor = list[Message](), None
        while True:
            page = self._triage.peek(Lane.DEAD, where=where, limit=PAGE, cursor=cursor)
            going = [row for n, row in enumerate(page.messages) if n < spare or (row.rested_ms or 0) < since_ms]
            old += [row for row in going if member_of(row)]
            spare, cursor = spare - len(page.messages), page.cursor
            if cursor is None or len(going) < len(page.messages):
                return old
