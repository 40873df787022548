"""The store on PostgreSQL: any number of processes on any number of machines.

Statements are in statements.sql; writes.py and groups.py combine them into commits. An exchange is one transaction in
one round trip.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg

from ...errors import StoreError
from ...fault import Fault
from ...ids import new_id
from ...message import ClaimRequest, Draft, Exchange, LeaseStatus, PutResult, Receipt, Settlement, Started, Swap
from .. import validation
from ..meta import text
from . import batches, exchange
from . import writes as changes
from .admin import PostgresAdmin
from .notifications import Wakes
from .rows import hex_of, ids, ints, seq_of
from .search import PostgresQueries
from .statements import AnyConnection, Cursor
from .transaction import connection_of, tell, within

SWEEP_EVERY_MS, SWEEP_MAX = 60_000, 1000


class PostgresStore(PostgresQueries, PostgresAdmin):
    """A store in one schema of the database that `url` names: `postgresql://user@host/db?schema=redrive`.

    `clock_ms` replaces the server's clock in tests. Raises ConfigError, SchemaError, StoreUnavailable, and
    Refused for a server that would lose messages.
    """

    # -- putting

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        validation.admit(drafts, self.traits)
        if not drafts and not swaps:
            return []
        now_ms, tries = self.now_ms(), 0
        given = [draft.id or new_id(now_ms) for draft in drafts]

        def work(c: AnyConnection, pipeline: psycopg.Pipeline) -> list[PutResult]:
            nonlocal tries
            tries += 1
            if tries > 1 and changes.was_put(self._st, c, drafts, given):  # the put is done, but its reply was lost
                held = changes.holders(self._st, c, drafts, given, self._st.now(), take=False)
                return changes.puts_of(self._st, drafts, given, held)
            return self._write(c, drafts, given, swaps)

        if tx is not None:
            with within(connection_of(tx), self._link, drafts) as c:
                puts = self._write(c, drafts, given, swaps)
                if drafts:
                    tell(c, self._link, self._st, drafts)
            return puts
        puts = self._link.pipeline(work, wake=changes.wakes_of(drafts, now_ms))
        self.failpoint("acknowledge")
        return puts

    # -- settling and claiming

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        for s in settlements:
            if s.follow_ups:
                validation.admit(s.follow_ups, self.traits)
        done = self._exchanges.run(settlements, asks, swaps)
        if self._st.now_ms() - self._swept_ms >= SWEEP_EVERY_MS:
            with contextlib.suppress(StoreError):  # the claims must be returned; the next exchange sweeps
                self._sweep()
        return done

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        def work(c: AnyConnection, pipeline: psycopg.Pipeline) -> Cursor:
            self.failpoint("extend")
            return self._st.do(c, "extend", *changes.named(receipts), lease_ms, self._st.now(), alone)

        rows = self._link.pipeline(work).fetchall()
        held = {(hex_of(seq), fence): cancel for seq, fence, cancel in rows}
        return [_HOLD[held.get((seq_of(handle), fence))] for handle, fence in receipts]

    def reclaim(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        wakes = Wakes()

        def work(c: AnyConnection) -> tuple[int, int]:
            now, released = self._st.now(), []
            self.failpoint("release")
            if started is not None:
                known = ids([one.id for one in started]), ints([one.fence for one in started])
                released = self._st.rows(c, "give_back", worker, *known, now)
            lapsed = self._st.rows(c, "lapse", worker, now, None if fault is None else text(fault))
            for queue, due_ms in (*released, *lapsed):
                wakes.due(queue, due_ms, self.now_ms())
            return len(released), len(lapsed)

        return self._link.run(work, wake=wakes)

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        known = changes.named([receipt])
        return bool(self._link.pipeline(lambda c, _: self._st.do(c, "checkpoint", *known, state)).fetchall())

    # -- waiting

    def wait(self, asks: Sequence[ClaimRequest], *, timeout_ms: int) -> None:
        asked = [ask for ask in asks if ask.limit > 0]
        self._listener.wait({ask.queue for ask in asked}, lambda: self._next_due_ms(asked), timeout_ms)

    def _next_due_ms(self, asks: Sequence[ClaimRequest]) -> int | None:
        self._floors.look_alone([ask.queue for ask in asks])
        dues_ms = []
        for ask in asks:
            sent_s = time.monotonic()
            now_ms, due_ms = self._link.read(partial(self._first_due, ask))
            if self._st.by_server:
                self._link.saw_clock(now_ms, sent_s)
            if due_ms is not None:
                dues_ms.append(due_ms)
        return min(dues_ms, default=None)

    def _first_due(self, ask: ClaimRequest, c: AnyConnection) -> tuple[Any, ...]:
        return exchange.next_due(self._floors.reads([ask.queue]), c, ask, self._st.now())

    def nudge(self) -> None:
        self._listener.nudge()

    def _sweep(self) -> None:
        """Remove some expired rows of each kind, continue admissions after changes of settings, and add up counts of
        batches."""
        now = self.now_ms()
        self._swept_ms = now

        def work(c: AnyConnection) -> bool:
            removed: list[int] = [self._st.rows(c, name, self._st.now())[0][0] for name in _SWEEPS]
            ((keys, until_ms),) = self._st.rows(c, "sweep_keys", self._st.now(), self._keys_at)
            ((lines, *place),) = self._st.rows(c, "sweep_lines", *self._lines_at)
            self._keys_at, self._lines_at = until_ms or 0, (place[0] or "", place[1] or "")
            removed += keys, lines
            return max(removed) >= SWEEP_MAX

        more = self._link.run(work)
        for (queue,) in self._look("queues_admitting"):
            more = self._admit_step(queue) or more
        more = batches.fold(self._link, self._st, limit=SWEEP_MAX) == SWEEP_MAX or more
        if more:
            self._swept_ms = now - SWEEP_EVERY_MS  # more is left, so the next exchange continues


_SWEEPS = ("sweep", "sweep_cells", "sweep_batches")
_HOLD = {None: LeaseStatus.LOST, False: LeaseStatus.HELD, True: LeaseStatus.CANCEL}
