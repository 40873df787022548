"""The SQLite store: one file in WAL mode, for any number of processes on one machine. This module delivers: put,
exchange, wait. `search.py` has the queries, `admin.py` the administration, `file.py` the connections.

Each process has one writing connection. Threads that write at the same time share a commit (one of them does the work
of all), so eight enqueueing threads cost one sync, not eight. The statements are in statements.sql, which explains why
batches are passed as JSON.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from ...fault import Fault
from ...message import (
    Ack,
    ClaimRequest,
    Decision,
    Delivery,
    Draft,
    Exchange,
    Lane,
    LeaseStatus,
    Message,
    PutResult,
    Receipt,
    RetryAt,
    Settlement,
    Started,
    Swap,
)
from .. import validation
from ..meta import text
from ..retry_share import chosen
from . import cells
from .admin import SqliteAdmin
from .damage import UNREADABLE
from .errors import store_error
from .file import SWEEP_EVERY_MS
from .rows import CompactRow, Strange, read_places, read_rows, to_message
from .search import SqliteQueries
from .transaction import after_commit, connection_of, within
from .wake import SqliteWaiter
from .writes import fences_of

LOOK_EVERY_S = 0.25  # how often an idle waiter checks if another process has changed the file but not woken it
SWEEP_MAX = 1000
_tuple = tuple.__new__


class SqliteStore(SqliteQueries, SqliteAdmin):
    """A store in the SQLite file at `path`, created if missing.

    With `synchronous="normal"` commits are not synced: kill -9 still loses nothing, a power cut may lose the last
    commits. In tests `clock_ms` replaces the store's time, and `host` the machine's clocks. Raises ConfigError,
    SchemaError, StoreUnavailable.
    """

    # -- putting

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[PutResult]:
        validation.admit(drafts, self.traits)

        def work(c: sqlite3.Connection) -> list[PutResult]:
            now = self._clock_ms()
            self.failpoint("put")
            puts = self._changes.insert(c, self._clock.timed(drafts), now)
            if swaps:
                cells.swap_all(c, self._sql, swaps, now)
            return puts

        if tx is not None:
            return self._put_within(tx, work)
        puts = self._writer.run(work)
        self._waker.wake_all()
        self.failpoint("acknowledge")
        return puts

    def _put_within(self, tx: Any, work: Callable[[sqlite3.Connection], list[PutResult]]) -> list[PutResult]:
        connection = connection_of(tx)
        try:
            with within(connection, self.path) as c:
                self._clock.begin_within(c)
                puts = work(c)
        except sqlite3.Error as error:
            raise store_error(error, "SQLite could not write in the transaction of tx=") from error
        after_commit(tx, self._waker.wake_all)
        return puts

    # -- settling and claiming

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        plain = _are_plain(settlements)
        if not plain:
            validation.admit((draft for s in settlements for draft in s.follow_ups), self.traits)

        def seqs(c: sqlite3.Connection) -> list[int]:
            return [int(s.receipt.handle) for s in settlements]

        def work(c: sqlite3.Connection) -> Exchange:
            now, aside = self._clock_ms(), self._set_aside
            self._groups.admitted = 0
            grouped, batched = c.execute(self._sql["grouped"]).fetchone()
            if batched:
                self._batches.begin()
            timed = settlements if plain else self._clock.timed_all(settlements)
            settled = self._changes.settle(c, timed, plain, grouped, batched, now) if settlements else []
            if swaps:
                cells.swap_all(c, self._sql, swaps, now)
            self.failpoint("settled")
            deliveries: list[Delivery] = []
            clogged: frozenset[str] = frozenset()
            damaged = [*aside]
            for ask in asks:
                if ask.limit > 0:
                    if grouped:
                        self._groups.wake(c, ask.queue, ask.limit, now)
                    if self._claim(c, ask, now, deliveries, damaged):
                        clogged |= {ask.queue}
            if now - self._swept_ms >= SWEEP_EVERY_MS:
                self._sweep(c, now)
            if now - self._cells_swept_ms >= SWEEP_EVERY_MS:
                self._sweep_cells(c, now)
            self._for_others = self._groups.admitted > len(deliveries)
            batches = self._batches.news(c) if batched else ()
            return Exchange(settled, deliveries, clogged, tuple(damaged), batches)

        # A claim alone need not be synced: a power cut that undoes it also ends the claimant, as all users of the file
        # are on this machine, and the message is ready again. A commit that acknowledges something is synced.
        result = self._write(work, seqs, synced=bool(settlements or swaps))
        if result.damaged:
            self._set_aside = []
        # This worker claims what becomes due, if it has room. Other workers may have room too, so they must be woken.
        if self._for_others or (not plain and any(s.follow_ups or type(s.decision) is RetryAt for s in settlements)):
            waiter = self._waiters.get(threading.get_ident())
            self._waker.wake_all(but=None if waiter is None else waiter.name)
        return result

    def _claim(
        self, c: sqlite3.Connection, ask: ClaimRequest, now: int, deliveries: list[Delivery], damaged: list[Message]
    ) -> bool:
        """Claim messages into `deliveries`, and add damaged ones that it quarantines to `damaged`. Returns True if it
        claimed fewer than requested because it stopped looking."""
        until = now + ask.lease_ms
        try:
            rows = self._claimable(c, ask, now)
            if ask.lapsed_by_ms is not None and ask.lapsed_by_ms < now:
                rows = [row for row in rows if not ask.leaves(row[4], row[6])]
            claimed = []
            for row in rows:
                fence = row[7] + 1
                receipt = _tuple(Receipt, (row[0], fence))  # in half the time of Receipt(…)
                claimed.append(Delivery(_claimed(row, fence, until, ask.worker), receipt, until, row[6] or 0))
        except sqlite3.DataError:  # one value fits; only all together exceed SQLite's limit
            if ask.limit == 1:
                raise
            return self._claim(c, replace(ask, limit=ask.limit // 2), now, deliveries, damaged)
        except UNREADABLE as error:
            moved = self._damages.set_aside(c, self._due_seqs(c, ask, now), now)
            damaged += moved
            if not moved and not self._passes_by_lane(error):
                raise
            return self._claim(c, ask, now, deliveries, damaged)
        if len(rows) < ask.limit and (odd := c.execute(self._sql["unclaimable"], (ask.queue,)).fetchall()):
            damaged += self._damages.set_aside(c, [seq for (seq,) in odd], now)
        clogged = bool(ask.skip) and len(rows) < ask.limit and bool(self._one(c, "clogged", ask.queue, now))
        if not rows:
            return clogged
        self.failpoint("claim")
        c.execute(self._sql["claim"], (until, ask.worker, text([row[0] for row in rows])))
        lapsed = [row[0] for row in rows if row[4] is Lane.LEASED]
        if lapsed:
            c.execute(self._sql["claim_lapsed"], (text(lapsed),))
        deliveries += claimed
        return clogged

    def _passes_by_lane(self, error: Exception) -> bool:
        """If a lane of a newer version caused the error, skip such lanes from now on and return True."""
        if not isinstance(error, Strange) or self._by_lane:
            return False
        self._by_lane = "_by_lane"
        return True

    def _due_seqs(self, c: sqlite3.Connection, ask: ClaimRequest, now: int) -> list[int]:
        """Return the seqs of the messages that a claim for this request would read."""
        skip = (text(sorted(ask.skip)),) if ask.skip else ()
        but, asked = ("_but" if skip else ""), (ask.queue, now, ask.limit)
        places = read_places(self._one(c, f"due{but}{self._by_lane}", *asked, *skip))
        if ask.retries:
            places += read_places(self._one(c, f"retries_due{but}", *asked, *skip))
        return [seq for _, seq in places]

    def _claimable(self, c: sqlite3.Connection, ask: ClaimRequest, now: int) -> list[CompactRow]:
        skip = (text(sorted(ask.skip)),) if ask.skip else ()
        but, asked = ("_but" if skip else ""), (ask.queue, now)
        retries = ask.retries and self._one(c, f"retries_due{but}", *asked, min(ask.retries, ask.limit), *skip)
        if not retries or retries == "[]":
            return read_rows(self._one(c, f"claimable{but}{self._by_lane}", *asked, ask.limit, *skip))
        backlog = read_places(self._one(c, f"due{but}{self._by_lane}", *asked, ask.limit, *skip))
        seqs = chosen(read_places(retries), backlog, ask)
        return read_rows(self._one(c, "chosen", text(seqs)))

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[LeaseStatus]:
        def work(c: sqlite3.Connection) -> list[LeaseStatus]:
            fences = fences_of(receipts)
            self.failpoint("extend")
            held = self._changes.held(c, fences)
            seqs = text([seq for seq, _ in held])
            c.execute(self._sql["extend"], (self._clock_ms() + lease_ms, seqs))
            if alone:
                c.execute(self._sql["run_alone"], (seqs,))
            return [
                LeaseStatus.LOST
                if (found := held.get((r.handle, r.fence))) is None
                else LeaseStatus.CANCEL
                if found[0]
                else LeaseStatus.HELD
                for r in receipts
            ]

        return self._write(work, lambda c: [int(r.handle) for r in receipts], synced=False)

    def reclaim(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        def work(c: sqlite3.Connection) -> tuple[int, int]:
            now = self._clock_ms()
            self.failpoint("release")
            released = 0
            if started is not None:
                released = c.execute(self._sql["give_back"], (now, worker, text(list(started)))).rowcount
            if fault is None:
                lapsed = c.execute(self._sql["lapse"], (now, worker)).rowcount
            else:
                lapsed = c.execute(self._sql["lapse_with"], (now, worker, text(fault))).rowcount
            return released, lapsed

        def seqs(c: sqlite3.Connection) -> list[int]:
            return [row[0] for row in c.execute("select seq from message where worker = ?", (worker,))]

        result = self._write(work, seqs)
        self._waker.wake_all()
        return result

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        return self._writer.run(lambda c: c.execute(self._sql["checkpoint"], (*receipt, state)).rowcount == 1)

    # -- waiting

    def wait(self, asks: Sequence[ClaimRequest], *, timeout_ms: int) -> None:
        end = time.monotonic() + timeout_ms / 1000
        waiter = self._waiter()
        seen = -1
        while True:
            version = self._read("pragma data_version")[0][0]
            if version != seen:
                self._clock.look(self._read)
                seen, due_ms = version, self._next_due_ms(asks)
            left_s = end - time.monotonic()
            due_s = (due_ms - self._clock.now()) / 1000
            if waiter.nudges != self._nudges:  # even a nudge from before this thread had a waiter
                waiter.nudges = self._nudges
                return
            if left_s <= 0 or due_s <= 0 or waiter.wait(max(0.0, min(left_s, due_s, LOOK_EVERY_S))):
                return

    def _next_due_ms(self, asks: Sequence[ClaimRequest]) -> float:
        dues_ms = [
            self._read(self._sql[f"next_due_but{self._by_lane}"], ask.queue, text(sorted(ask.skip)))[0][0]
            if ask.skip
            else self._read(self._sql[f"next_due{self._by_lane}"], ask.queue)[0][0]
            for ask in asks
            if ask.limit
        ]
        return min((due for due in dues_ms if isinstance(due, int)), default=float("inf"))

    def _waiter(self) -> SqliteWaiter:
        me = threading.get_ident()
        if me not in self._waiters:
            self._waiters[me] = SqliteWaiter(None if self.traits.read_only else self._wake_folder)
        return self._waiters[me]

    def nudge(self) -> None:
        self._nudges += 1
        for waiter in list(self._waiters.values()):
            waiter.nudge()

    def _sweep(self, c: sqlite3.Connection, now: int) -> None:
        self._swept_ms = now
        messages, kept, gone = (
            c.execute(self._sql[name], (now,)).rowcount for name in ("sweep", "keep_keys", "sweep_keys")
        )
        if messages == SWEEP_MAX or kept + gone >= SWEEP_MAX:
            self._swept_ms = now - SWEEP_EVERY_MS  # more has expired, so the next exchange continues
        c.execute(self._sql["sweep_batches"], (now,))


def _are_plain(settlements: Sequence[Settlement]) -> bool:
    """True if all settlements are acks that keep nothing, without follow-ups and swaps."""
    checked: Decision | None = None  # the settlements of a batch mostly share one
    for s in settlements:
        decision = s.decision
        if decision is not checked:
            if type(decision) is not Ack or decision.keep_ms != 0:
                return False
            checked = decision
        if s.follow_ups or s.swaps:
            return False
    return True


def _claimed(row: CompactRow, fence: int, until: int, worker: str) -> Message:
    """Return the message of a row after its claim. Raises Strange for a lane from which no message is claimed."""
    _, id, task, queue, lane, priority, _, _, attempt, enqueued, life, _, producer, group, held, body, cold = row
    if cold is None or isinstance(cold, str):  # the common case, in as few steps as possible
        content = bytes.fromhex(body)
        if lane is Lane.READY and group is None and not held:
            return Message(
                id, task, queue, content, id, Lane.LEASED, priority, until, fence, attempt + 1, enqueued, life, worker,
                producer, batch=cold,
            )  # fmt: skip
        lapsed = lane is Lane.LEASED
        if not lapsed and lane is not Lane.READY:
            raise Strange(lane)
        return Message(
            id, task, queue, content, id, Lane.LEASED, priority, until, fence, attempt + (not lapsed), enqueued, life,
            worker, producer, int(lapsed), suspect=lapsed, held_ms=held, group=group, batch=cold,
        )  # fmt: skip
    if lane is Lane.READY:
        attempt += 1
    elif lane is Lane.LEASED:
        cold.crashes += 1
        cold.crashes_alone += cold.suspect == 2
        cold.suspect = 1
    else:
        raise Strange(lane)
    return to_message((*row[:4], Lane.LEASED, priority, until, fence, attempt, *row[9:11], worker, *row[12:]))
