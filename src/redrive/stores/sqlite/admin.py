"""Triage, settings, retention and repair of the SQLite store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from itertools import islice

from msgspec.structs import astuple

from ...errors import StoreError, StoreUnavailable
from ...message import BatchMark, Cancel, GroupOrder, Handle, Keep, Lane, Message, OnDead, Replace, Swap, Verdict
from .. import validation
from ..groups import setting_line
from ..meta import text
from . import cells, schema
from .batches import miscounted
from .file import SqliteFile
from .repair import Repairs, bad_rows
from .upkeep import findings

CHECKED_MAX = 100  # most damaged messages that `check` lists
_CANCEL: dict[str | None, Cancel] = {
    None: Cancel.UNKNOWN,
    "ready": Cancel.CANCELLED,
    "leased": Cancel.REQUESTED,
    "dead": Cancel.TOO_LATE,
    "quarantine": Cancel.TOO_LATE,
    "done": Cancel.TOO_LATE,
}


class SqliteAdmin(SqliteFile):
    """Administration of the SQLite store. Each call is one commit."""

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        handles = validation.admit_verdict(handles, verdict, self.traits)

        def work(c: sqlite3.Connection) -> list[bool]:
            now = self._clock_ms()
            moved = self._triage.judge(c, handles, verdict, now)
            self.failpoint("triaged")
            if moved != [False] or not isinstance(verdict, Replace):
                cells.swap_all(c, self._sql, swaps, now)
            return moved

        moved = self._write(work, self._of_ids(handle.id for handle in handles))
        self._waker.wake_all()
        return moved

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        messages = validation.admit_restored(messages, self.traits)

        def work(c: sqlite3.Connection) -> list[bool]:
            now = self._clock_ms()
            words = self._triage.restore(c, messages, now)
            cells.swap_all(c, self._sql, swaps, now)
            self.failpoint("restored")
            return words

        return self._writer.run(work)

    def cancel(self, ids: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        def work(c: sqlite3.Connection) -> list[Cancel]:
            listed, now = text(list(ids)), self._clock_ms()
            rows = c.execute(
                "select id, seq, lane, batch is not null from message where id in (select value from json_each(?))",
                (listed,),
            ).fetchall()
            lanes = {id: lane for id, _, lane, _ in rows}
            touched = self._groups.touched(c, [seq for _, seq, lane, _ in rows if lane == Lane.READY])
            with self._batches.moving(c, [seq for _, seq, _, member in rows if member]):
                c.execute(self._sql["cancel"], (now, listed))
            c.execute(self._sql["request_cancel"], (listed,))
            self._groups.admit(c, touched, now)
            cells.swap_all(c, self._sql, swaps, now)
            return [_CANCEL.get(lanes.get(id), Cancel.TOO_LATE) for id in ids]

        cancelled = self._write(work, self._of_ids(ids))
        self._waker.wake_all()  # other messages of the groups may have got a place
        return cancelled

    def mark_batches(self, marks: Sequence[BatchMark]) -> None:
        def work(c: sqlite3.Connection) -> None:
            now = self._clock_ms()
            rows = [(None if keep_ms is None else now + keep_ms, id, *astuple(counts)) for id, counts, keep_ms in marks]
            c.executemany(self._sql["mark_batch"], rows)

        self._writer.run(work, synced=False)

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
        said = (paused, group_width, order, dead)
        set_now = self._read("select paused, group_width, group_order, on_dead from queue where name = ?", queue)
        if set_now and not swaps and all(new is None or new == now for new, now in zip(said, set_now[0], strict=True)):
            return  # nothing changed, as usual when an app starts

        def work(c: sqlite3.Connection) -> None:
            now = self._clock_ms()
            self._groups.configure(c, queue, paused, group_width, order, dead, now)
            cells.swap_all(c, self._sql, swaps, now)

        self._writer.run(work)
        self._waker.wake_all()

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

        def work(c: sqlite3.Connection) -> None:
            now = self._clock_ms()
            self._groups.configure_group(c, queue, group, width, resume, now)
            cells.swap_all(c, self._sql, swaps, now)

        self._writer.run(work)
        self._waker.wake_all()

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        def work(c: sqlite3.Connection) -> tuple[int, int]:
            now = self._clock_ms()
            return self._changes.retain(c, Lane.DONE, queue, done, now), self._changes.retain(
                c, Lane.DEAD, queue, dead, now
            )

        return self._writer.run(work)

    def check(self) -> list[str]:
        try:
            problems = [row[0] for row in self._read("pragma integrity_check")]
            problems += [stuck for queue in self.queues() for stuck in self._stuck_groups(queue)]
            problems += [setting_line(*row) for row in self._read(self._sql["odd_settings"])]
            problems += [line for row in self._read(self._sql["miscounted"]) for line in miscounted(*row)]
            problems += [f"cell {row[0]!r} is not what redrive writes" for row in self._read(self._sql["odd_cells"])]
            bad = bad_rows(self._read, self._sql)
            problems += [one.line for one in islice(bad, CHECKED_MAX)]
            if more := sum(1 for _ in bad):
                problems.append(f"and {more:,} more messages that are damaged")
        except StoreUnavailable:
            raise
        except StoreError as error:  # the file is too damaged to be read to its end
            return [str(error)]
        return [line for line in problems if line != "ok"]

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        report, repairs = [], Repairs(self._damages, self._batches)
        for bad in [*bad_rows(self._read, self._sql)]:
            keep(bad.message)
            report.append(self._writer.run(lambda c, bad=bad: repairs.mend(c, bad, self._clock_ms())))  # type: ignore[misc]
        report += [f"cell {row[0]!r} is gone" for row in self._read(self._sql["odd_cells"])]
        report += [f"batch {row[0]}: its members are counted again" for row in self._read(self._sql["miscounted"])]

        def rest(c: sqlite3.Connection) -> None:
            c.execute(self._sql["mend_cells"])
            c.execute(self._sql["mend_versions"], (self._clock_ms(),))
            c.execute(self._sql["recount"])
            self._groups.admit_everywhere(c, self._clock_ms())

        self._writer.run(rest)
        self._waker.wake_all()
        return report

    def _stuck_groups(self, queue: str) -> list[str]:
        width = self._read(self._sql["group_settings"], queue)[0][0]
        stuck = self._read(self._sql["stuck_groups"], queue, width)
        return [f"queue {queue!r}, group {row[0]!r}: a message is parked though a place is free" for row in stuck]

    def doctor(self) -> list[str]:
        waiting = 0
        if not self.traits.read_only:
            _, frames, carried = self._read("pragma wal_checkpoint(passive)")[0]
            waiting = max(0, frames - carried) * int(self._read("pragma page_size")[0][0])
        return [*findings(self.path, self._synchronous, waiting), *self._clock.findings()]

    def info(self) -> dict[str, str | int]:
        parts = [self.path, self.path.with_name(f"{self.path.name}-wal")]
        return {
            "engine": f"SQLite {sqlite3.sqlite_version}",
            "schema": schema.version(self._read),
            "path": str(self.path),
            "size_bytes": sum(part.stat().st_size for part in parts if part.exists()),
        }
