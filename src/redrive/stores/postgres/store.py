"""The store on PostgreSQL: any number of processes on any number of machines.

Statements are in statements.sql, and what they change in a commit is put together by writes.py and
groups.py. An exchange is one transaction, sent in one round trip.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import psycopg
from msgspec.structs import replace

from ...errors import StoreError
from ...fault import Fault
from ...ids import new_id
from ...message import (
    DAMAGED,
    Ask,
    Cancel,
    Cell,
    Counts,
    Damage,
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
from ..state_dir import state_dir
from . import groups, triage
from . import writes as changes
from .damage import readable, stand_in, with_kept
from .doctor import doctor, preflight
from .exchange import Exchanges
from .floors import Floors
from .listen import Listener
from .rows import ids, ints, texts
from .schema import open_schema
from .search import groups as find_groups
from .search import page, to_counts, to_failure_group
from .session import Link
from .statements import prepared
from .told import Told
from .transaction import connection_of, tell, within
from .url import parse
from .writes import Connection, Statements

TOLD_MOST = 100
SWEEP_EVERY_MS, SWEEP_MAX = 60_000, 1000
NAMES_MAX = 2500  # bytes: a row of an index has 2,704 at most, of which numbers and heads take some
TICK_S = 0.01  # how often a waiter looks at a clock that is set by hand


class PostgresStore:
    """A store in one schema of the database that `url` names: `postgresql://user@host/db?schema=redrive`.

    `clock_ms` replaces the server's clock in tests. Raises ConfigError, SchemaError, StoreUnavailable, and
    Refused for a server that would lose messages.
    """

    traits = Traits(name="postgres", names_bytes_max=NAMES_MAX)

    def __init__(self, url: str, *, clock_ms: Callable[[], int] | None = None) -> None:
        self.seam: Callable[[str], None] = no_seam  # tests put a function here that kills or fails at a named point
        self._link = Link(parse(url), seam=self._at)
        self._st = Statements(prepared(self._link.schema), self._link.now_ms, clock_ms)
        try:
            preflight(self._link)
            self._link.read_only = why = open_schema(self._link).read_only
        except BaseException:
            self._link.close()
            raise
        self.traits = replace(type(self).traits, read_only=why)
        self._floors = Floors()
        self._exchanges = Exchanges(self._link, self._st, self._floors, self._at)
        self._listener = Listener(self._link, now_ms=self.now_ms, tick_s=TICK_S if clock_ms else inf)
        self._link.store_ms, self._link.on_late = self.now_ms, self._floors.expect
        self._floors.on_kept = self._listener.attend
        self.state_dir: Path | None = state_dir(f"{self._link.url.place}/{self._link.schema}")
        self.cells: Cells = PostgresCells(self)
        self._swept_ms, self._lines_at = self.now_ms(), ("", "")

    def _at(self, point: str) -> None:
        self.seam(point)

    def now_ms(self) -> int:
        return self._st.now_ms()

    # -- putting

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[Put]:
        validation.admit(drafts, self.traits)
        if not drafts and not swaps:
            return []
        now_ms, tries = self.now_ms(), 0
        given = [draft.id or new_id(now_ms) for draft in drafts]

        def work(c: Connection, pipeline: psycopg.Pipeline) -> list[Put]:
            nonlocal tries
            tries += 1
            if tries > 1 and changes.was_put(self._st, c, drafts, given):  # it was committed, and the answer lost
                held = changes.holders(self._st, c, drafts, given, self._st.now(), take=False)
                return changes.puts_of(self._st, drafts, given, held)
            return self._write(c, drafts, given, swaps)

        if tx is not None:
            with within(connection_of(tx), self._link) as c:
                puts = self._write(c, drafts, given, swaps)
                if drafts:
                    tell(c, self._link, self._st, drafts)
            return puts
        puts = self._link.pipeline(work, wake=changes.told_of(drafts, now_ms))
        self.seam("acknowledge")
        return puts

    def _write(self, c: Connection, drafts: Sequence[Draft], given: Sequence[str], swaps: Sequence[Swap]) -> list[Put]:
        """The put, as a part of somebody's transaction."""
        now, names = self._st.now(), changes.names_of(drafts)
        self.seam("put")
        if names:
            groups.lock(self._st, c, names, (), now)
        puts = changes.insert_all(self._st, c, drafts, given, now)
        groups.admit(self._st, c, names, now)
        changes.swap_all(self._st, c, swaps, now)
        return puts

    # -- settling and claiming

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[Ask], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        for s in settlements:
            if s.follow_ups:
                validation.admit(s.follow_ups, self.traits)
        done = self._exchanges.run(settlements, asks, swaps)
        with contextlib.suppress(StoreError):  # it can wait for the next exchange; what this one claimed cannot
            self._sweep()
        return done

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[Hold]:
        def work(c: Connection) -> list[Hold]:
            self.seam("extend")
            rows = self._st.rows(c, "extend", *changes.named(receipts), lease_ms, self._st.now(), alone)
            held = {(f"{seq:016x}", fence): cancel for seq, fence, cancel in rows}
            return [_HOLD[held.get((changes.seq_of(handle), fence))] for handle, fence in receipts]

        return self._link.run(work)

    def release(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        told = Told()

        def work(c: Connection) -> tuple[int, int]:
            now, released = self._st.now(), []
            self.seam("release")
            if started is not None:
                known = ids([one.id for one in started]), ints([one.fence for one in started])
                released = self._st.rows(c, "give_back", worker, *known, now)
            lapsed = self._st.rows(c, "lapse", worker, now, None if fault is None else text(fault))
            for queue, due_ms in (*released, *lapsed):
                told.due(queue, due_ms, self.now_ms())
            return len(released), len(lapsed)

        return self._link.run(work, wake=told)

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        known = changes.named([receipt])
        return bool(self._link.run(lambda c: self._st.rows(c, "checkpoint", *known, state)))

    # -- waiting

    def wait(self, asks: Sequence[Ask], *, timeout_ms: int) -> None:
        asked = [ask for ask in asks if ask.limit > 0]
        self._listener.wait({ask.queue for ask in asked}, lambda: self._next_due_ms(asked), timeout_ms)

    def _next_due_ms(self, asks: Sequence[Ask]) -> int | None:
        self._look_behind(asks)
        found = []
        for ask in asks:
            sent_s = time.monotonic()
            now_ms, due_ms = self._link.read(partial(self._first_due, ask))
            if self._st.by_server:
                self._link.saw_clock(now_ms, sent_s)
            if due_ms is not None:
                found.append(due_ms)
        return min(found, default=None)

    def _first_due(self, ask: Ask, c: Connection) -> tuple[Any, ...]:
        parts = self._floors.parts([ask.queue], self._st.now_ms).get(ask.queue)
        return changes.next_due(self._st, c, ask, self._st.now(), parts)

    def _look_behind(self, asks: Sequence[Ask]) -> None:
        """While no exchange does it."""
        looking = self._floors.looking([ask.queue for ask in asks]) if self._floors.kept else None
        if looking is not None:
            rows = self._link.read(lambda c: changes.look_behind(self._st, c, looking).fetchall())
            self._floors.saw(looking, rows, self.now_ms())

    def nudge(self) -> None:
        self._listener.nudge()

    # -- looking

    def _look(self, name: str, *args: Any) -> list[tuple[Any, ...]]:
        return self._link.read(lambda c: self._st.rows(c, name, *args))

    def find(self, ids_: Sequence[str]) -> list[Message | None]:
        found = {row[0]: row for row in self._look("find", ids(ids_))}
        messages = dict(zip(found, self._readable([*found.values()]), strict=True))
        return [messages.get(id) for id in ids_]

    def _readable(self, rows: Sequence[tuple[Any, ...]]) -> list[Message]:
        messages = [readable(row) for row in rows]
        aside = [message.id for message in messages if message.reason == DAMAGED and message.damage is None]
        if not aside:
            return messages
        kept = dict(self._look("kept_before", ids(aside)))
        return [with_kept(message, kept[message.id]) if message.id in kept else message for message in messages]

    def counts(self, queue: str | None = None) -> Counts:
        if queue is not None:
            return to_counts(self._look("counts", queue, self._st.now()))
        return total(self.counts_by_queue().values())

    def counts_by_queue(self) -> dict[str, Counts]:
        rows = self._look("counts_by_queue", self._st.now())
        return {queue: Counts(*map(int, lanes), oldest_age_s=age_ms / 1000) for queue, age_ms, *lanes in rows}  # type: ignore[misc]

    def queues(self) -> list[str]:
        return sorted(row[0] for row in self._look("queues"))

    def peek(
        self, lane: Lane | str | None, *, where: Where = Where(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        lane = validation.lane_of(lane)
        since, after = validation.read_cursor(cursor)
        rows = self._link.read(lambda c: page(c, self._link.schema, where, lane, (since, after), limit))
        more = f"{rows[-1][16] or 0}.{rows[-1][15]}" if rows and len(rows) == limit else None
        return Page(self._readable(rows), more)

    def failure_groups(self, *, where: Where = Where(), trend: bool = False) -> list[FailureGroup]:
        sql, lately = self._st.sql["failure_groups"].decode(), (self._st.now(),) if trend else None
        rows = self._link.read(lambda c: find_groups(c, self._link.schema, sql, where, lately))
        return [to_failure_group(*row) for row in rows]

    # -- changing by hand

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        handles = validation.admit_verdict(handles, verdict, self.traits)
        told: set[str] = set()

        def work(c: Connection) -> list[bool]:
            words = triage.judge(self._st, c, handles, verdict, swaps, told, self._st.now())
            self.seam("triaged")
            return words

        # Whether it took place cannot be told by a second try where its swaps, or what it put, are in the way.
        once = bool(swaps) or isinstance(verdict, Replace)
        return self._link.run(work, wake=told, again=not once) if handles or swaps else []

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        messages = validation.admit_restored(messages, self.traits)

        def work(c: Connection) -> list[bool]:
            now = self._st.now()
            words = triage.restore(self._st, c, messages, now) if messages else []
            changes.swap_all(self._st, c, swaps, now)
            return words

        return self._link.run(work, again=not swaps) if messages or swaps else []

    def cancel(self, ids_: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        told: set[str] = set()

        def work(c: Connection) -> list[Cancel]:
            now, listed = self._st.now(), ids(sorted(set(ids_)))
            names: groups.Names = set()
            while True:
                rows = self._st.rows(c, "lanes", listed)
                found = {(queue, group) for _, _, queue, group in rows if group is not None}
                if found <= names:
                    break  # none of them was redriven to another queue meanwhile
                names |= found
                groups.lock(self._st, c, names, (), now)
            ended = dict(self._st.rows(c, "cancel", listed, now))
            groups.admit(self._st, c, names, now)
            told.update(queue for queue, _ in names)
            known = {id for id, _, _, _ in rows}
            changes.swap_all(self._st, c, swaps, now)
            return [_CANCEL[ended.get(id, "rests" if id in known else None)] for id in ids_]

        return self._link.run(work, wake=told, again=not swaps) if ids_ or swaps else []

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
        said = (paused, group_width, order and order.value, dead and dead.value)
        set_now = self._look("settings", queue)

        def work(c: Connection) -> None:
            groups.configure(self._st, c, queue, *said, self._st.now())
            changes.swap_all(self._st, c, swaps, self._st.now())

        same = bool(set_now) and all(new is None or new == now for new, now in zip(said, set_now[0][:4], strict=True))
        if not same or swaps:
            self._link.run(work, wake=[queue], again=not swaps)
        elif set_now[0][4] is None:
            return  # as every start of an app declares
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
        validation.admit_group(group)

        def work(c: Connection) -> None:
            groups.configure_group(self._st, c, queue, group, width, resume, self._st.now())
            changes.swap_all(self._st, c, swaps, self._st.now())

        self._link.run(work, wake=[queue], again=not swaps)
        if group is None:
            self._admit_all(queue)

    def _admit_all(self, queue: str) -> None:
        """To whom new settings give a place. After a crash in between, sweeps of any process go on."""
        while self._admit_step(queue):
            pass

    def _admit_step(self, queue: str) -> bool:
        self.seam("admitting")
        return self._link.run(lambda c: groups.admit_step(self._st, c, queue, self._st.now()), wake=[queue])

    def groups(self, queue: str) -> list[Group]:
        width = self._look("group_settings", queue)[0][0]
        return [Group(queue, *row) for row in self._look("groups", queue, width)]

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        def work(c: Connection) -> tuple[int, int]:
            kept = (Lane.DONE, done), (Lane.DEAD, dead)
            removed = [triage.retain(self._st, c, lane, queue, keep, self._st.now()) for lane, keep in kept]
            return removed[0], removed[1]

        return self._link.run(work, wake=[queue])

    def paused(self) -> frozenset[str]:
        return frozenset(row[0] for row in self._look("paused"))

    def _sweep(self) -> None:
        """Forget what was kept long enough, a thousand at a time."""
        now = self.now_ms()
        if now - self._swept_ms < SWEEP_EVERY_MS:
            return
        self._swept_ms = now

        def work(c: Connection) -> bool:
            removed = [self._st.rows(c, name, self._st.now())[0][0] for name in ("sweep", "sweep_cells")]
            self._st.do(c, "sweep_keys", self._st.now())
            self._lines_at = next(iter(self._st.rows(c, "sweep_lines", *self._lines_at)), ("", ""))
            return SWEEP_MAX in removed

        more = self._link.run(work)
        for (queue,) in self._look("queues_admitting"):
            more = self._admit_step(queue) or more
        if more:
            self._swept_ms = now - SWEEP_EVERY_MS  # there is more: go on with the next exchange

    # -- keeping

    def check(self) -> list[str]:
        found = [f"message {id} in lane {lane} stands where it should not" for id, lane in self._look("misplaced")]
        stuck = self._look("stuck_groups")
        told = "a message is parked though a place is free"
        found += [f"queue {queue!r}, group {name!r}: {told}" for queue, name in stuck]
        damaged = self._damaged()
        found += [f"message {m.id}: {m.damage.why if m.damage else ''}" for m in damaged[:TOLD_MOST]]
        return found + ([f"and {len(damaged) - TOLD_MOST:,} more messages"] if len(damaged) > TOLD_MOST else [])

    def _damaged(self) -> list[Message]:
        """The messages that cannot be read, or were set aside."""
        page = self.peek(None, limit=1000)
        found = [m for m in page.messages if m.damage is not None]
        while page.cursor is not None:
            page = self.peek(None, limit=1000, cursor=page.cursor)
            found += [m for m in page.messages if m.damage is not None]
        return found

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        told, now = [], self._st.now()
        for message in self._damaged():
            keep(message)
            (row,) = self._look("find", ids([message.id]))
            wrong = texts([*stand_in(row)[1]])
            self._link.run(lambda c, id=message.id, wrong=wrong: self._st.do(c, "repair", id, wrong, now))  # type: ignore[misc]
            told.append(f"message {message.id} is dead, as {DAMAGED}, without what could not be read of it")
        for id, _ in self._look("misplaced"):
            (found,) = self.find([id])
            if found is None or found.lane not in (Lane.READY, Lane.LEASED):
                continue
            keep(replace(found, damage=Damage("it stands in no lane")))
            queue = {found.queue}
            if self._link.run(lambda c, id=id: self._st.rows(c, "put_back", id, now), wake=queue):  # type: ignore[misc]
                told.append(f"message {id} is back in queue {found.queue!r}")
        return told

    def doctor(self) -> list[str]:
        return doctor(self._link)

    def about(self) -> dict[str, str | int]:
        ((version, schema, size_bytes),) = self._look("about")
        where = f"{self._link.where}, schema {self._link.schema}"
        return {"engine": f"PostgreSQL {version}", "schema": schema, "path": where, "size_bytes": size_bytes}

    def close(self) -> None:
        self._listener.close()
        self._link.close()


class PostgresCells:
    """Cells in the same schema."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        rows = self._store._look("read_cells", texts(keys), self._store._st.now())
        found = {key: Cell(version, value) for key, version, value in rows}
        return [found.get(key) for key in keys]

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        st = self._store._st

        def work(c: Connection, pipeline: psycopg.Pipeline) -> list[bool]:
            if not durable:
                st.do(c, "not_durable")
            return changes.try_swaps(st, c, swaps, st.now())

        return self._store._link.pipeline(work) if swaps else []


_HOLD = {None: Hold.LOST, False: Hold.HELD, True: Hold.CANCEL}
_CANCEL = {
    None: Cancel.UNKNOWN,
    "done": Cancel.CANCELLED,
    "leased": Cancel.REQUESTED,
    "rests": Cancel.TOO_LATE,
}
