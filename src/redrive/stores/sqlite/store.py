"""The embedded store: one SQLite file in WAL mode, any number of processes on one machine.

Each process has one writing connection. Threads that write at the same time share a commit (one of them carries the
others' work), so eight enqueueing threads cost one sync, not eight. Statements are in statements.sql; batches travel as
JSON (see there why).
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ...config import is_shared
from ...errors import ConfigError, Conflict, StoreError, StoreFull, StoreUnavailable
from ...fault import Fault
from ...files import make_database
from ...message import (
    DAMAGED,
    Ack,
    Ask,
    Cancel,
    Cell,
    Counts,
    Delivery,
    Draft,
    Exchange,
    FailureGroup,
    Group,
    GroupOrder,
    Handle,
    Hold,
    Keep,
    Lane,
    Message,
    OnDead,
    Page,
    Put,
    Receipt,
    Replace,
    RetryAt,
    Settlement,
    Started,
    Swap,
    Verdict,
    Where,
)
from ...store import Cells, Traits
from .. import validation
from ..counts import total
from ..failpoints import no_seam
from ..meta import text
from ..retry_share import chosen
from . import cells, schema
from .clock import StoreClock
from .damage import UNREADABLE, Damages, damage_of, raw_of, read_each
from .groups import Groups, to_group
from .held_clock import Host
from .reading import TRIES, Reading, passes, require_schema, why_read_only
from .repair import Repairs, bad_rows
from .rows import (
    COLUMNS,
    Row,
    Strange,
    claimed_message,
    fences_of,
    read_places,
    read_rows,
    to_message,
)
from .search import grouped_by_index, page_of, to_failure_group, trend_of, where_of
from .transaction import after_commit, connection_of, within
from .triage import Triage
from .upkeep import findings
from .wake import Waiter, Waker, wake_dir
from .writer import Writer, store_error
from .writes import Changes

T = TypeVar("T")
BUSY_TIMEOUT_S = 5.0
LOOK_EVERY_S = 0.25  # how often an idle waiter looks whether another process changed the file without waking it
SWEEP_EVERY_MS, SWEEP_MAX = 60_000, 1000
SET_ASIDE_TOLD = TOLD_MOST = 100
_tuple = tuple.__new__
Seqs = Callable[[sqlite3.Connection], list[int]]


class SqliteStore:
    """A store in the SQLite file at `path`, made if it is missing.

    `synchronous="normal"` gives up the sync of each commit: kill -9 still loses nothing, a power cut may lose the
    last commits. In tests `clock_ms` replaces the store's time, and `host` the clocks of the machine which that is held
    against. Raises ConfigError, SchemaError, StoreUnavailable.
    """

    traits = Traits(name="sqlite", one_machine=True)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: str = "full",
        clock_ms: Callable[[], int] | None = None,
        host: Host | None = None,
    ) -> None:
        if sqlite3.sqlite_version_info < (3, 35):
            raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old; redrive needs 3.35 or later")
        if synchronous.lower() not in ("full", "normal", "extra"):
            raise ConfigError(
                f"store option synchronous={synchronous!r}; expected full, extra, or normal (opts out of durability on "
                "power loss)"
            )
        self.path = Path(path).absolute()
        why = why_read_only(self.path)
        self._reading = Reading(self.path) if why else None
        self.traits = replace(type(self).traits, read_only=why)
        self.state_dir: Path | None = self.path.with_name(self.path.name + "-workers")
        self._synchronous = synchronous.lower()
        self._sql = schema.statements()
        self._clock = StoreClock(self._sql, clock_ms, host)
        self._clock_ms = self._clock.now_ms
        self._groups = Groups(self._sql)
        self._changes = Changes(self._sql, self._groups)
        self._triage = Triage(self._sql, self._groups, self._changes)
        self._damages = Damages(self._sql, self._groups)
        self._set_aside: list[Message] = []  # by other calls than exchange, which has yet to tell of it
        self._by_lane = ""  # or the ending of those statements that leave alone lanes of newer versions
        self.seam: Callable[[str], None] = no_seam  # tests put a function here that kills or fails at a named point
        self._read_lock = threading.RLock()
        self._open()
        self.cells: Cells = SqliteCells(self)

    def _open(self) -> None:
        self._writer = Writer(self._connect, self._synchronous, lambda point: self.seam(point))
        self._reader: sqlite3.Connection | None = None
        try:
            if self._reading is None:
                make_database(self.path, shared=is_shared())
            self._reader = reader = self._connect_reader()
            if self._reading is None:
                self._migrate(reader)
            else:
                require_schema(reader, self.path, self.traits.read_only)
                self._writer.read_only = self.traits.read_only
            self._clock.look(self._read)
        except BaseException as error:
            self._writer.close()
            self._disconnect_reader()
            if isinstance(error, sqlite3.Error):
                raise store_error(error, f"cannot open {self.path}") from error
            if isinstance(error, OSError):
                raise StoreUnavailable(f"cannot make {self.path}: {error.strerror or error}") from error
            raise
        self._writer.begun, self._writer.undone = self._clock.begin, self._clock.undo
        self._wake_folder = wake_dir(self.path)
        self._waker = Waker(self._wake_folder)
        self._waiters: dict[int, Waiter] = {}
        self._nudges = 0
        self._for_others = False  # whether the last exchange let more join their queue than it claimed
        self._swept_ms = self._cells_swept_ms = self._clock_ms()
        _open_stores.add(self)

    def _before_fork(self) -> None:
        self._writer.lock.acquire()
        self._writer.disconnect()
        self._read_lock.acquire()
        self._disconnect_reader()

    def _after_fork(self, child: bool) -> None:
        if child:
            self._writer.waiting.clear()
            for waiter in self._waiters.values():
                waiter.leave()
            self._waiters.clear()
        self._nudges += 1  # a new connection counts its data_version anew: what waiters remember of it is void
        self._read_lock.release()
        self._writer.lock.release()

    def _connect(self) -> sqlite3.Connection:
        if self._reading is not None:
            return self._reading.connect()
        c = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        try:
            self._make_wal(c)
            c.execute(f"pragma synchronous={self._synchronous}")
            c.execute("pragma cache_size=-8000")
        except BaseException:
            c.close()
            raise
        return c

    def _connect_reader(self) -> sqlite3.Connection:
        """What is no UTF-8 is read too, with its odd bytes escaped: a list must go on past it."""
        c = self._connect()
        c.text_factory = _lenient
        return c

    def _make_wal(self, c: sqlite3.Connection) -> None:
        """Where several open a new file at once, SQLite tells all but one that it is locked, at once and whatever the
        timeout is: each would wait for the others. Raises ConfigError."""
        end_s = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                mode = c.execute("pragma journal_mode=wal").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end_s:
                    raise
            time.sleep(0.005)
        if mode != "wal":
            raise ConfigError(
                f"{self.path}: journal mode is {mode!r}, but redrive needs WAL; is it on a network file system?"
            )

    def _migrate(self, reader: sqlite3.Connection) -> None:
        if schema.version(reader) != len(schema.MIGRATIONS):
            self._writer.run(lambda c: schema.migrate(c, self._sql, self.path))

    def now_ms(self) -> int:
        self._clock.look(self._read)
        return self._clock_ms()

    # -- putting

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[Put]:
        validation.admit(drafts, self.traits)

        def work(c: sqlite3.Connection) -> list[Put]:
            now = self._clock_ms()
            self.seam("put")
            puts = self._changes.insert(c, self._clock.timed(drafts), now)
            cells.swap_all(c, self._sql, swaps, now)
            return puts

        if tx is not None:
            return self._put_within(tx, work)
        puts = self._writer.run(work)
        self._waker.wake_all()
        self.seam("acknowledge")
        return puts

    def _put_within(self, tx: Any, work: Callable[[sqlite3.Connection], list[Put]]) -> list[Put]:
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
        self, settlements: Sequence[Settlement], asks: Sequence[Ask], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        plain = all(
            type(s.decision) is Ack and s.decision.keep_ms == 0 and not s.follow_ups and not s.swaps
            for s in settlements
        )
        if not plain:
            validation.admit((draft for s in settlements for draft in s.follow_ups), self.traits)

        def seqs(c: sqlite3.Connection) -> list[int]:
            return [int(s.receipt.handle) for s in settlements]

        def work(c: sqlite3.Connection) -> Exchange:
            now, found = self._clock_ms(), self._set_aside
            self._groups.admitted = 0
            grouped = self._groups.any(c)
            timed = settlements if plain else self._clock.timed_all(settlements)
            settled = self._changes.settle(c, timed, plain, grouped, now) if settlements else []
            cells.swap_all(c, self._sql, swaps, now)
            self.seam("settled")
            deliveries: list[Delivery] = []
            clogged: frozenset[str] = frozenset()
            damaged = [*found]
            for ask in asks:
                if ask.limit > 0:
                    if grouped:
                        self._groups.wake(c, ask.queue, ask.limit, now)
                    if self._claim(c, ask, now, deliveries, damaged):
                        clogged |= {ask.queue}
            self._sweep(c, now)
            self._sweep_cells(c, now)
            self._for_others = self._groups.admitted > len(deliveries)
            return Exchange(settled, deliveries, clogged, tuple(damaged))

        # A claim alone need not be synced: a power cut that takes it back takes the claimant with it, as all that use
        # the file are on this machine, and the message is ready again. What acknowledges anything is synced.
        result = self._write(work, seqs, synced=bool(settlements or swaps))
        if result.damaged:
            self._set_aside = []
        # Whoever settles claims what comes of it, if it has room. Others, who may have, must be told.
        if self._for_others or any(s.follow_ups or type(s.decision) is RetryAt for s in settlements):
            waiter = self._waiters.get(threading.get_ident())
            self._waker.wake_all(but=None if waiter is None else waiter.name)
        return result

    def _write(self, work: Callable[[sqlite3.Connection], T], seqs: Seqs, *, synced: bool = True) -> T:
        """As the writer. Where a row that cannot be read was in the way, among those that `seqs` names, it is set aside
        first, and the work is done without it."""
        try:
            return self._writer.run(work, synced=synced)
        except (StoreError, msgspec.MsgspecError, UnicodeError) as error:
            if isinstance(error, StoreUnavailable | StoreFull | Conflict):
                raise
            found = self._writer.run(lambda c: self._damages.set_aside(c, seqs(c), self._clock_ms()))
            if not found:
                raise
            self._set_aside = [*self._set_aside, *found][:SET_ASIDE_TOLD]
        return self._writer.run(work, synced=synced)

    def _of_ids(self, ids: Iterable[str]) -> Seqs:
        listed = text(list(ids))
        sql = "select seq from message where id in (select value from json_each(?))"
        return lambda c: [row[0] for row in c.execute(sql, (listed,))]

    def _claim(
        self, c: sqlite3.Connection, ask: Ask, now: int, deliveries: list[Delivery], damaged: list[Message]
    ) -> bool:
        """Adds to the deliveries, and to what was set aside. Whether more is due than it looked at, though it found
        less than it was to."""
        until = now + ask.lease_ms
        try:
            rows = self._claimable(c, ask, now)
            found = []
            for row in rows:
                fence = row[7] + 1
                receipt = _tuple(Receipt, (row[0], fence))  # half the time that Receipt(…) takes
                found.append(Delivery(claimed_message(row, fence, until, ask.worker), receipt, until))
        except sqlite3.DataError:  # together longer than SQLite takes for one value; a single one never is
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
        self.seam("claim")
        c.execute(self._sql["claim"], (until, ask.worker, text([row[0] for row in rows])))
        lapsed = [row[0] for row in rows if row[4] is Lane.LEASED]
        if lapsed:
            c.execute(self._sql["claim_lapsed"], (text(lapsed),))
        deliveries += found
        return clogged

    def _passes_by_lane(self, error: Exception) -> bool:
        """From here on leave alone what a newer version keeps in lanes of its own, if that is what was met."""
        if not isinstance(error, Strange) or self._by_lane:
            return False
        self._by_lane = "_by_lane"
        return True

    def _due_seqs(self, c: sqlite3.Connection, ask: Ask, now: int) -> list[int]:
        """The numbers of all that a claim would look at."""
        skip = (text(sorted(ask.skip)),) if ask.skip else ()
        but, asked = ("_but" if skip else ""), (ask.queue, now, ask.limit)
        found = read_places(self._one(c, f"due{but}{self._by_lane}", *asked, *skip))
        if ask.retries:
            found += read_places(self._one(c, f"retries_due{but}", *asked, *skip))
        return [seq for _, seq in found]

    def _claimable(self, c: sqlite3.Connection, ask: Ask, now: int) -> list[Row]:
        skip = (text(sorted(ask.skip)),) if ask.skip else ()
        but, asked = ("_but" if skip else ""), (ask.queue, now)
        retries = ask.retries and self._one(c, f"retries_due{but}", *asked, min(ask.retries, ask.limit), *skip)
        if not retries or retries == "[]":
            return read_rows(self._one(c, f"claimable{but}{self._by_lane}", *asked, ask.limit, *skip))
        backlog = read_places(self._one(c, f"due{but}{self._by_lane}", *asked, ask.limit, *skip))
        seqs = chosen(read_places(retries), backlog, ask)
        return read_rows(self._one(c, "chosen", text(seqs)))

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[Hold]:
        def work(c: sqlite3.Connection) -> list[Hold]:
            fences = fences_of(receipts)
            self.seam("extend")
            held = self._changes.held(c, fences)
            seqs = text([seq for seq, _ in held])
            c.execute(self._sql["extend"], (self._clock_ms() + lease_ms, seqs))
            if alone:
                c.execute(self._sql["run_alone"], (seqs,))
            return [
                Hold.LOST if (cancel := held.get((r.handle, r.fence))) is None else Hold.CANCEL if cancel else Hold.HELD
                for r in receipts
            ]

        return self._write(work, lambda c: [int(r.handle) for r in receipts], synced=False)

    def release(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        def work(c: sqlite3.Connection) -> tuple[int, int]:
            now = self._clock_ms()
            self.seam("release")
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

    def wait(self, asks: Sequence[Ask], *, timeout_ms: int) -> None:
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
            if waiter.nudges != self._nudges:  # one that came before this thread had a socket counts too
                waiter.nudges = self._nudges
                return
            if left_s <= 0 or due_s <= 0 or waiter.wait(max(0.0, min(left_s, due_s, LOOK_EVERY_S))):
                return

    def _next_due_ms(self, asks: Sequence[Ask]) -> float:
        found = [
            self._read(self._sql[f"next_due_but{self._by_lane}"], ask.queue, text(sorted(ask.skip)))[0][0]
            if ask.skip
            else self._read(self._sql[f"next_due{self._by_lane}"], ask.queue)[0][0]
            for ask in asks
            if ask.limit
        ]
        return min((due for due in found if isinstance(due, int)), default=float("inf"))

    def _waiter(self) -> Waiter:
        me = threading.get_ident()
        if me not in self._waiters:
            self._waiters[me] = Waiter(None if self.traits.read_only else self._wake_folder)
        return self._waiters[me]

    def nudge(self) -> None:
        self._nudges += 1
        for waiter in list(self._waiters.values()):
            waiter.nudge()

    # -- looking

    def _read(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        with self._read_lock:
            if self._writer.closed:
                raise StoreError("this SQLite store is closed; open another")
            for left in reversed(range(TRIES)):
                try:
                    self._reader = self._reader or self._connect_reader()
                    rows = self._reader.execute(sql, args).fetchall()
                    if self._reading is None or not self._reading.is_over():
                        return rows
                except sqlite3.Error as error:
                    if self._reading is None or not left or not passes(error):
                        raise store_error(error, "SQLite could not read") from error
                self._disconnect_reader()
            raise StoreUnavailable(f"{self.path} is being written, and was read {TRIES} times in vain; try again")

    def _disconnect_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _one(self, c: sqlite3.Connection, name: str, *args: Any) -> Any:
        return c.execute(self._sql[name], args).fetchone()[0]

    def _messages(self, where: str, *args: Any) -> list[tuple[int, Message]]:
        sql = f"select json_group_array(json_array({COLUMNS})) from (select * from message {where})"
        try:
            found = [(row[0], to_message(row)) for row in read_rows(self._read(sql, *args)[0][0])]
        except StoreUnavailable:
            raise
        except (StoreError, *UNREADABLE):
            seqs = [row[0] for row in self._read(f"select seq from message {where}", *args)]
            found = [*read_each(self._read, seqs)]
        aside = [seq for seq, message in found if message.reason == DAMAGED and message.damage is None]
        return self._with_damage(found, aside) if aside else found

    def _with_damage(self, found: list[tuple[int, Message]], aside: Sequence[int]) -> list[tuple[int, Message]]:
        """They with what is kept of the rows of those that were set aside."""
        kept = dict(self._read(self._sql["kept_before"], text(list(aside))))
        return [
            (seq, replace(message, damage=damage_of(kept[seq])) if seq in kept else message) for seq, message in found
        ]

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        found = {m.id: m for _, m in self._messages("where id in (select value from json_each(?))", text(list(ids)))}
        return [found.get(id) for id in ids]

    def counts(self, queue: str | None = None) -> Counts:
        if queue is None:
            return total(self.counts_by_queue().values())
        now = self.now_ms()
        ready, scheduled, leased, oldest, without_place = self._read(self._sql["counts"], now, queue)[0]
        resting = dict(self._read(self._sql["resting_counts"], queue))
        age_s = (now - oldest) / 1000 if oldest is not None else 0.0
        return Counts(
            ready,
            scheduled + without_place,
            leased,
            resting.get("dead", 0),
            resting.get("quarantine", 0),
            resting.get("done", 0),
            age_s,
        )

    def counts_by_queue(self) -> dict[str, Counts]:
        rows = self._read(self._sql["counts_by_queue"], self.now_ms())
        return {queue: Counts(*numbers) for queue, *numbers in rows if isinstance(queue, str)}

    def queues(self) -> list[str]:
        return sorted(row[0] for row in self._read(self._sql["queues"]) if isinstance(row[0], str))

    def peek(
        self, lane: Lane | str | None, *, where: Where = Where(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        lane = validation.lane_of(lane)
        since, after = validation.read_cursor(cursor)
        where, (since, after) = validation.begin(where, lane, (since, after))
        which, args = page_of(self._read, lane, where, (since, after), limit)
        found = self._messages(which, *args)
        more = f"{found[-1][1].rested_ms or 0}.{found[-1][0]}" if len(found) == limit and found else None
        if more is not None and found[-1][1].rested_ms is None and "rested_ms" in raw_of(found[-1][1]):
            more = None  # behind all others: no place leads on from there
        return Page([message for _, message in found], more)

    def failure_groups(self, *, where: Where = Where(), trend: bool = False) -> list[FailureGroup]:
        clauses, args = where_of(where, Lane.DEAD)
        told, since = trend_of(self.now_ms() if trend else None)
        name = "all_failure_groups" if grouped_by_index(where) else "failure_groups"
        sql = self._sql[name].replace("{trend}", told).replace("{where}", " and ".join(clauses))
        return [to_failure_group(*row) for row in self._read(sql, *since, *args)]

    # -- changing by hand

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        handles = validation.admit_verdict(handles, verdict, self.traits)

        def work(c: sqlite3.Connection) -> list[bool]:
            now = self._clock_ms()
            moved = self._triage.judge(c, handles, verdict, now)
            self.seam("triaged")
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
            self.seam("restored")
            return words

        return self._writer.run(work)

    def cancel(self, ids: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        def work(c: sqlite3.Connection) -> list[Cancel]:
            listed, now = text(list(ids)), self._clock_ms()
            rows = c.execute(
                "select id, seq, lane from message where id in (select value from json_each(?))", (listed,)
            ).fetchall()
            found = {id: lane for id, _, lane in rows}
            touched = self._groups.touched(c, [seq for _, seq, lane in rows if lane == Lane.READY])
            c.execute(self._sql["cancel"], (now, listed))
            c.execute(self._sql["request_cancel"], (listed,))
            self._groups.admit(c, touched, now)
            cells.swap_all(c, self._sql, swaps, now)
            return [_CANCEL.get(found.get(id), Cancel.TOO_LATE) for id in ids]

        cancelled = self._write(work, self._of_ids(ids))
        self._waker.wake_all()  # it may have let others of its group in
        return cancelled

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
        validation.admit_width(group_width, 1)
        order = validation.word(GroupOrder, group_order, "group_order")
        dead = validation.word(OnDead, on_dead, "on_dead")
        said = (paused, group_width, order, dead)
        set_now = self._read("select paused, group_width, group_order, on_dead from queue where name = ?", queue)
        if set_now and not swaps and all(new is None or new == now for new, now in zip(said, set_now[0], strict=True)):
            return  # as every start of an app declares

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
        validation.admit_group(group)

        def work(c: sqlite3.Connection) -> None:
            now = self._clock_ms()
            self._groups.configure_group(c, queue, group, width, resume, now)
            cells.swap_all(c, self._sql, swaps, now)

        self._writer.run(work)
        self._waker.wake_all()

    def groups(self, queue: str) -> list[Group]:
        width = self._read(self._sql["group_settings"], queue)[0][0]
        return [to_group(queue, row) for row in self._read(self._sql["groups"], queue, width)]

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        def work(c: sqlite3.Connection) -> tuple[int, int]:
            now = self._clock_ms()
            return self._changes.retain(c, Lane.DONE, queue, done, now), self._changes.retain(
                c, Lane.DEAD, queue, dead, now
            )

        return self._writer.run(work)

    def paused(self) -> frozenset[str]:
        return frozenset(row[0] for row in self._read("select name from queue where paused"))

    def _sweep(self, c: sqlite3.Connection, now: int) -> None:
        if now - self._swept_ms < SWEEP_EVERY_MS:
            return
        self._swept_ms = now
        if c.execute(self._sql["sweep"], (now,)).rowcount == SWEEP_MAX:
            self._swept_ms = now - SWEEP_EVERY_MS  # there is more: go on with the next exchange
        c.execute(self._sql["sweep_keys"], (now,))

    def _sweep_cells(self, c: sqlite3.Connection, now: int) -> None:
        if now - self._cells_swept_ms >= SWEEP_EVERY_MS:
            more = cells.sweep(c, self._sql, now)
            self._cells_swept_ms = now - SWEEP_EVERY_MS if more else now

    # -- keeping

    def check(self) -> list[str]:
        try:
            found = [row[0] for row in self._read("pragma integrity_check")]
            found += [stuck for queue in self.queues() for stuck in self._stuck_groups(queue)]
            bad = bad_rows(self._read, self._sql)
            found += [one.told for one in islice(bad, TOLD_MOST)]
            if more := sum(1 for _ in bad):
                found.append(f"and {more:,} more messages that are damaged")
        except StoreUnavailable:
            raise
        except StoreError as error:  # too damaged to be looked through
            return [str(error)]
        return [line for line in found if line != "ok"]

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        told, repairs = [], Repairs(self._damages)
        for bad in [*bad_rows(self._read, self._sql)]:
            keep(bad.message)
            told.append(self._writer.run(lambda c, bad=bad: repairs.mend(c, bad, self._clock_ms())))  # type: ignore[misc]
        self._waker.wake_all()
        return told

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

    def about(self) -> dict[str, str | int]:
        parts = [self.path, self.path.with_name(f"{self.path.name}-wal")]
        return {
            "engine": f"SQLite {sqlite3.sqlite_version}",
            "schema": self._read("pragma user_version")[0][0],
            "path": str(self.path),
            "size_bytes": sum(part.stat().st_size for part in parts if part.exists()),
        }

    def close(self) -> None:
        _open_stores.discard(self)
        for waiter in self._waiters.values():
            waiter.close()
        self._waiters.clear()
        self._writer.close()
        with self._read_lock:
            self._disconnect_reader()
        self._waker.close()


# A process does not inherit its parent's file locks, but SQLite in it thinks so as long as one connection crossed the
# fork. Then the parent's last close would delete the log that the child commits to. So none crosses: they are closed
# before, and opened again when they are needed, on both sides.
_open_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_forking: list[SqliteStore] = []


def _before_fork() -> None:
    for store in list(_open_stores):
        store._before_fork()
        _forking.append(store)


def _after_fork(child: bool) -> None:
    while _forking:
        _forking.pop()._after_fork(child)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(child=False),
    after_in_child=lambda: _after_fork(child=True),
)


def _lenient(found: bytes) -> str:
    return found.decode(errors="backslashreplace")


class SqliteCells:
    """Cells in the same file."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        rows = self._store._read(self._store._sql["read_cells"], text(list(keys)), self._store.now_ms())
        found = cells.to_cells(rows[0][0])
        return [found.get(key) for key in keys]

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        def work(c: sqlite3.Connection) -> list[bool]:
            now = self._store._clock_ms()
            words = cells.swap_each(c, self._store._sql, swaps, now)
            self._store._sweep_cells(c, now)
            return words

        return self._store._writer.run(work, synced=durable) if swaps else []


_CANCEL: dict[str | None, Cancel] = {
    None: Cancel.UNKNOWN,
    "ready": Cancel.CANCELLED,
    "leased": Cancel.REQUESTED,
    "dead": Cancel.TOO_LATE,
    "quarantine": Cancel.TOO_LATE,
    "done": Cancel.TOO_LATE,
}
