"""The reference store: everything in this process's memory, under one lock, in plain Python.

What it does is what every store shall do; `redrive.testing.StoreContract` holds all of them to it. Only, what it holds
dies with the process: it promises neither durability nor sharing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...errors import EnqueueError, StoreError, Unsupported
from ...fault import Fault
from ...ids import new_id
from ...message import (
    RESTING,
    Ack,
    Ask,
    Before,
    Cancel,
    Cell,
    Counts,
    Delivery,
    Discard,
    Draft,
    Exchange,
    FailureGroup,
    Group,
    GroupOrder,
    Handle,
    Hold,
    Isolate,
    Keep,
    Lane,
    Message,
    OnDead,
    Page,
    Put,
    Readmit,
    Receipt,
    Redrive,
    Replace,
    RetryAt,
    Return,
    Settled,
    Settlement,
    Started,
    Swap,
    Verdict,
    Where,
)
from ...store import Cells, Traits
from .. import lifecycle, validation
from ..clock import wall_ms
from ..groups import grouped
from ..retry_share import chosen
from .groups import PLACE, WOKEN_MIN, Line, settled
from .tables import Kept, Tables

CANCELLED_KEPT_MS = 24 * 3600 * 1000  # a cancelled message can be looked up that long
SWEEP_EVERY_MS = 60_000
RETAIN_MAX = 1000
LOOK_EVERY_S = 0.01  # how often a waiter looks at a clock that is not the wall clock


class MemoryStore:
    """A store in memory, for tests and for trying things out, safe for any number of threads.

    `clock_ms` replaces the wall clock.
    """

    traits = Traits(name="memory", durable=False, one_machine=True, shared=False)
    state_dir: Path | None = None

    def __init__(self, clock_ms: Callable[[], int] | None = None) -> None:
        self._clock_ms = clock_ms or wall_ms
        self._look_every_s = LOOK_EVERY_S if clock_ms else threading.TIMEOUT_MAX
        self._changed = threading.Condition()
        self._tables = Tables()
        self._nudges, self._nudges_seen = 0, threading.local()
        self._swept_ms = self._clock_ms()
        self._closed = False
        self.cells: Cells = MemoryCells(self)

    def now_ms(self) -> int:
        return self._clock_ms()

    @contextmanager
    def _look(self) -> Iterator[tuple[Tables, int]]:
        """The tables under the lock, and the time."""
        with self._changed:
            if self._closed:
                raise StoreError("this memory store is closed; open another")
            yield self._tables, self._clock_ms()

    @contextmanager
    def _commit(self) -> Iterator[tuple[Tables, int]]:
        """The same, to change them: all is undone if the block raises, else waiters look again."""
        with self._look() as (tables, now):
            try:
                yield tables, now
            except BaseException:
                tables.undo()
                raise
            tables.sweep_cells(now)
            tables.commit()
            self._changed.notify_all()

    # -- putting

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: Any = None) -> list[Put]:
        if tx is not None:
            raise Unsupported("this memory store has no transactions to write in; enqueue without tx=")
        validation.admit(drafts, self.traits)
        with self._commit() as (tables, now):
            puts = [_put(tables, draft, now) for draft in drafts]
            tables.admit(now)
            tables.swap_all(swaps, now)
            return puts

    # -- settling and claiming

    def exchange(
        self, settlements: Sequence[Settlement], asks: Sequence[Ask], *, swaps: Sequence[Swap] = ()
    ) -> Exchange:
        validation.admit((draft for s in settlements for draft in s.follow_ups), self.traits)
        with self._commit() as (tables, now):
            settled = [_settle(tables, settlement, now) for settlement in settlements]
            for settlement, word in zip(settlements, settled, strict=True):
                if word is Settled.OK:  # last, so that a key which an ack frees is free for them
                    for draft in settlement.follow_ups:
                        _put(tables, draft, now)
            tables.swap_all(swaps, now)
            tables.admit(now)
            deliveries: list[Delivery] = []
            clogged = frozenset(ask.queue for ask in asks if _claim(tables, ask, deliveries, now))
            if now - self._swept_ms >= SWEEP_EVERY_MS:
                tables.sweep(now)
                self._swept_ms = now
            return Exchange(settled, deliveries, clogged)

    def extend(self, receipts: Sequence[Receipt], *, lease_ms: int, alone: bool = False) -> list[Hold]:
        with self._commit() as (tables, now):
            return [_extend(tables, receipt, now + lease_ms, alone) for receipt in receipts]

    def release(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        with self._commit() as (tables, now):
            released = lapsed = 0
            for seq, kept in [*tables.kept.items()]:
                message = kept.message
                if message.lane is not Lane.LEASED or message.worker != worker:
                    continue
                if started is None or (message.id, message.fence) in started:
                    tables.change(int(seq), lifecycle.lapsed(message, fault, now))
                    lapsed += 1
                else:
                    given_back = lifecycle.given_back(message, now)
                    tables.write(int(seq), kept._replace(message=given_back, alone=False))
                    released += 1
            return released, lapsed

    def checkpoint(self, receipt: Receipt, state: bytes) -> bool:
        with self._commit() as (tables, _):
            message = tables.held(receipt)
            if message is None:
                return False
            tables.change(int(receipt.handle), replace(message, progress=state))
            return True

    # -- waiting

    def wait(self, asks: Sequence[Ask], *, timeout_ms: int) -> None:
        end_s = time.monotonic() + timeout_ms / 1000
        with self._changed:
            while not self._closed and not self._nudged():
                due_s = (self._next_due_ms(asks) - self._clock_ms()) / 1000
                left_s = end_s - time.monotonic()
                if due_s <= 0 or left_s <= 0:
                    return
                self._changed.wait(min(left_s, due_s, self._look_every_s))

    def _nudged(self) -> bool:
        """Whether this thread has a nudge to take; it takes all there are."""
        seen = getattr(self._nudges_seen, "count", 0)
        self._nudges_seen.count = self._nudges
        return seen != self._nudges

    def _next_due_ms(self, asks: Sequence[Ask]) -> float:
        asks = [ask for ask in asks if ask.limit > 0]
        firsts = [due_ms for ask in asks for line in self._tables.lines(ask) for due_ms, _ in islice(line, 1)]
        firsts += [due_ms for ask in asks for due_ms in islice(self._tables.waiting(ask.queue), 1)]
        return min(firsts, default=float("inf"))

    def nudge(self) -> None:
        with self._changed:
            self._nudges += 1
            self._changed.notify_all()

    # -- looking

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        with self._look() as (tables, _):
            return [tables.message(id) for id in ids]

    def counts(self, queue: str | None = None) -> Counts:
        with self._look() as (tables, now):
            messages = (kept.message for kept in tables.kept.values())
            return _counted((message for message in messages if queue in (None, message.queue)), now)

    def counts_by_queue(self) -> dict[str, Counts]:
        with self._look() as (tables, now):
            queues: dict[str, list[Message]] = {name: [] for name in tables.settings}
            for kept in tables.kept.values():
                queues.setdefault(kept.message.queue, []).append(kept.message)
            return {queue: _counted(messages, now) for queue, messages in queues.items()}

    def queues(self) -> list[str]:
        with self._look() as (tables, _):
            return sorted({kept.message.queue for kept in tables.kept.values()} | tables.settings.keys())

    def peek(
        self, lane: Lane | str | None, *, where: Where = Where(), limit: int = 100, cursor: str | None = None
    ) -> Page:
        lane = validation.lane_of(lane)
        after = validation.read_cursor(cursor)
        with self._look() as (tables, _):
            found = sorted(
                (message.rested_ms or 0, int(seq))
                for seq, (message, fault, *_) in tables.kept.items()
                if lane in (None, message.lane) and lifecycle.matches(message, fault, where)
            )
            page = list(islice((place for place in found if place > after), limit))
            more = f"{page[-1][0]}.{page[-1][1]}" if page and page[-1] != found[-1] else None
            return Page([tables.kept[seq].message for _, seq in page], more)

    def failure_groups(self, *, where: Where = Where(), trend: bool = False) -> list[FailureGroup]:
        with self._look() as (tables, now):
            dead = [(kept.message, kept.fault) for kept in tables.kept.values() if kept.message.lane is Lane.DEAD]
        found = (death for death in dead if lifecycle.matches(*death, where))
        return grouped(found, now if trend else None)

    # -- changing by hand

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        handles = validation.admit_verdict(handles, verdict, self.traits)
        with self._commit() as (tables, now):
            moved = [_judge(tables, handle, verdict, at, now) for at, handle in enumerate(handles)]
            if moved != [False] or not isinstance(verdict, Replace):
                tables.swap_all(swaps, now)
            tables.admit(now)
            return moved

    def restore(self, messages: Sequence[Message], *, swaps: Sequence[Swap] = ()) -> list[bool]:
        messages = validation.admit_restored(messages, self.traits)
        with self._commit() as (tables, now):
            tables.swap_all(swaps, now)
            return [_restore(tables, message, now) for message in messages]

    def cancel(self, ids: Sequence[str], *, swaps: Sequence[Swap] = ()) -> list[Cancel]:
        with self._commit() as (tables, now):
            tables.swap_all(swaps, now)
            found = {id: _cancel(tables, id, now) for id in dict.fromkeys(ids)}
            tables.admit(now)
            return [found[id] for id in ids]

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
        said = {"paused": paused, "width": group_width, "order": order, "on_dead": dead}
        with self._commit() as (tables, now):
            tables.configure(queue, {name: value for name, value in said.items() if value is not None}, now)
            tables.swap_all(swaps, now)
            tables.admit(now)

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
        with self._commit() as (tables, now):
            if width is not None:
                tables.set_width(queue, group, width)
            tables.swap_all(swaps, now)
            line = tables.groups.get((queue, group or ""))
            for seq in [*line.taken] if line is not None and resume else ():
                if tables.kept[seq].message.lane in RESTING:
                    tables.write(seq, tables.kept[seq]._replace(turn=None))
            tables.admit(now)

    def groups(self, queue: str) -> list[Group]:
        with self._look() as (tables, _):
            names = {name for (of, name), line in tables.groups.items() if of == queue and (line.taken or line.parked)}
            names |= {name for of, name in tables.own_widths if of == queue and name is not None}
            return [_group(tables, queue, name) for name in sorted(names, key=str.encode)]

    def retain(self, queue: str, *, done: Keep = Keep(), dead: Keep = Keep()) -> tuple[int, int]:
        with self._commit() as (tables, now):
            removed = [_retain(tables, queue, lane, keep, now) for lane, keep in ((Lane.DONE, done), (Lane.DEAD, dead))]
            tables.admit(now)
            return removed[0], removed[1]

    def paused(self) -> frozenset[str]:
        with self._look() as (tables, _):
            return frozenset(queue for queue, settings in tables.settings.items() if settings.paused)

    # -- keeping

    def check(self) -> list[str]:
        with self._look() as (tables, _):
            alive = [kept for kept in tables.kept.values() if kept.message.lane in (Lane.READY, Lane.LEASED)]
            due = sum(kept.message.group is None or kept.turn == PLACE for kept in alive)
            stand = tables.in_line()
            found = [] if due == stand else [f"{due} messages can become due, but {stand} stand in line"]
            return found + [
                f"queue {queue!r}, group {name!r}: a message is parked though a place is free"
                for (queue, name), line in tables.groups.items()
                if line.parked and len(line.taken) < tables.width(queue, name)
            ]

    def repair(self, keep: Callable[[Message], None]) -> list[str]:
        return []

    def doctor(self) -> list[str]:
        return []

    def about(self) -> dict[str, str | int]:
        return {"engine": "memory of this process"}

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class MemoryCells:
    """Cells beside the messages, under the same lock."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        with self._store._look() as (tables, now):
            return [tables.cell(key, now) for key in keys]

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        with self._store._commit() as (tables, now):
            return [tables.swap(swap, now) for swap in swaps]


def _put(tables: Tables, draft: Draft, now: int) -> Put:
    id = draft.id or new_id(now)
    if draft.key is not None:
        held = tables.key_holder(draft.task, draft.key, now)
        if held is not None:
            return held
        tables.hold_key(draft.task, draft.key, id, now + draft.key_for_ms if draft.key_for_ms else 0)
    if id in tables.seqs:
        raise EnqueueError(f"a message with id {id} is already stored; nothing was written")
    message = lifecycle.enqueued(draft, id, now)
    tables.add(message, now)
    return Put(id, False, message.state(now))


def _claim(tables: Tables, ask: Ask, deliveries: list[Delivery], now: int) -> bool:
    """Adds to the deliveries. Whether there is more due than it looked at, though it found less than it was to."""
    if ask.limit <= 0:
        return False
    tables.wake(ask.queue, max(ask.limit, WOKEN_MIN), now)
    tables.admit(now)
    found, clogged = _due(tables, ask, now)  # listed first: leasing changes the lines
    for seq in found:
        kept = tables.kept[seq]
        message = lifecycle.leased(kept.message, ask, kept.alone, now)
        tables.write(seq, kept._replace(message=message, alone=False))
        deliveries.append(Delivery(message, Receipt(seq, message.fence), now + ask.lease_ms))
    return clogged


def _due(tables: Tables, ask: Ask, now: int) -> tuple[list[int], bool]:
    """What to claim, in order. And whether more is due than it looked at, though it found less than it was to."""
    backlog: list[tuple[int, int]] = []
    clogged = False
    for priority, line in enumerate(tables.lines(ask)):
        for _, seq in takewhile(lambda place: place[0] <= now, line):
            if len(backlog) == ask.limit:
                break
            if seq is None:
                clogged = True
            else:
                backlog.append((priority, seq))
    found = chosen(tables.retries_due(ask, now), backlog, ask)
    return found, clogged and len(found) < ask.limit


def _settle(tables: Tables, settlement: Settlement, now: int) -> Settled:
    mark = tables.mark()
    message = tables.held(settlement.receipt)
    if message is None or not all(tables.swap(swap, now) for swap in settlement.swaps):
        tables.undo(mark)
        return Settled.STALE
    seq = int(settlement.receipt.handle)
    if isinstance(settlement.decision, Ack):
        tables.write(seq, _acked(message, settlement.decision, settlement.result, now))
        return Settled.OK
    moved = lifecycle.decided(message, settlement.decision, settlement.fault, now)
    fatal = None if isinstance(settlement.decision, RetryAt) else settlement.fault
    turn = settled(moved, tables.rules(moved.queue), now) if tables.kept[seq].turn == PLACE else None
    expires = now + CANCELLED_KEPT_MS if moved.lane is Lane.DONE else None
    tables.write(seq, Kept(moved, fatal, turn, expires, before=tables.kept[seq].before))
    return Settled.CANCELLED if message.cancel else Settled.OK


def _acked(message: Message, ack: Ack, result: bytes | None, now: int) -> Kept | None:
    if ack.keep_ms == 0:
        return None
    done = lifecycle.done(message, ack, result, now)
    return Kept(done, expires_ms=None if ack.keep_ms is None else now + ack.keep_ms)


def _extend(tables: Tables, receipt: Receipt, until_ms: int, alone: bool) -> Hold:
    message = tables.held(receipt)
    if message is None:
        return Hold.LOST
    seq = int(receipt.handle)
    kept = tables.kept[seq]
    held = replace(message, due_ms=until_ms, suspect=message.suspect or alone)
    tables.write(seq, kept._replace(message=held, alone=kept.alone or alone))
    return Hold.CANCEL if message.cancel else Hold.HELD


def _judge(tables: Tables, handle: Handle, verdict: Verdict, at: int, now: int) -> bool:
    """`at`: which of the handles it is."""
    seq = tables.seqs.get(handle.id)
    if seq is None:
        return False
    kept = tables.kept[seq]
    message = kept.message
    if (message.redrives, message.lane) != (handle.redrives, handle.lane) or not _may_judge(kept, verdict):
        return False
    match verdict:
        case Redrive():
            before = _before(kept) if verdict.run is not None else None
            tables.rejoin(seq, lifecycle.redriven(message, verdict, verdict.delay_of(at), now), before, now)
        case Discard():
            tables.write(seq, None)
        case Isolate():
            before = kept.before if message.lane is Lane.QUARANTINE else _before(kept)
            tables.write(seq, kept._replace(message=lifecycle.isolated(message, verdict, now), before=before))
        case Return():
            tables.write(seq, _returned(tables, kept))
        case Readmit():
            tables.write(seq, kept._replace(message=lifecycle.readmitted(message, kept.before), before=None))
        case Replace():
            _replace(tables, seq, verdict.draft, now)
    return True


def _may_judge(kept: Kept, verdict: Verdict) -> bool:
    message, before = kept.message, kept.before
    match verdict:
        case Redrive() if message.lane is Lane.DONE:
            return message.reason != "cancelled"
        case Return(run):
            mine = message.run == run and before is not None and before.redrives == message.redrives - 1
            return mine and message.lane is Lane.READY and message.attempt == message.crashes == 0
        case Readmit():
            return message.lane is Lane.QUARANTINE
        case _:
            return message.lane in RESTING


def _before(kept: Kept) -> Before:
    return lifecycle.before(kept.message, kept.fault, kept.turn == PLACE, kept.expires_ms)


def _returned(tables: Tables, kept: Kept) -> Kept:
    before = kept.before
    assert before is not None
    message = lifecycle.returned(kept.message, before)
    head = before.blocked and kept.turn == PLACE and before.queue == kept.message.queue
    turn = PLACE if head and tables.rules(before.queue).block else None
    fault = lifecycle.died_of(message.faults, before.fingerprint, before.error)
    return Kept(message, fault, turn, before.expires_ms)


def _replace(tables: Tables, seq: int, draft: Draft, now: int) -> None:
    """The discarded one's key is the draft's, and held as long as it was to be."""
    old = tables.kept[seq].message
    tables.write(seq, None)
    until_ms = None if draft.key is None else tables.key_until(draft.task, draft.key, old.id)
    if draft.key is not None and until_ms is not None:
        tables.free_key(draft.task, draft.key)
    put = _put(tables, draft, now)
    if put.duplicate:
        raise validation.key_is_held(old.id, draft, put.id)
    if draft.key is not None and until_ms is not None and until_ms > now + draft.key_for_ms:
        tables.hold_key(draft.task, draft.key, put.id, until_ms)


def _restore(tables: Tables, message: Message, now: int) -> bool:
    if message.id in tables.seqs:
        return False
    if message.key is not None:
        held = tables.key_holder(message.task, message.key, now)
        if held is not None and held.id != message.id:
            return False
        if held is None:
            tables.hold_key(message.task, message.key, message.id, 0)
    tables.restore(lifecycle.restored(message, now))
    return True


def _cancel(tables: Tables, id: str, now: int) -> Cancel:
    seq = tables.seqs.get(id)
    if seq is None:
        return Cancel.UNKNOWN
    message = tables.kept[seq].message
    if message.lane is Lane.READY:
        tables.write(seq, Kept(lifecycle.cancelled(message, now), expires_ms=now + CANCELLED_KEPT_MS))
        return Cancel.CANCELLED
    if message.lane is Lane.LEASED:
        tables.change(seq, replace(message, cancel=True))
        return Cancel.REQUESTED
    return Cancel.TOO_LATE


def _group(tables: Tables, queue: str, name: str) -> Group:
    line = tables.groups.get((queue, name)) or Line()
    held = [message for seq in line.taken if (message := tables.kept[seq].message).lane in RESTING]
    blocked_by = max((message.id for message in held), default=None)
    return Group(queue, name, tables.width(queue, name), len(line.taken), len(line.parked), blocked_by)


def _retain(tables: Tables, queue: str, lane: Lane, keep: Keep, now: int) -> int:
    found = sorted(
        (message.rested_ms or 0, int(seq))
        for seq, (message, *_) in tables.kept.items()
        if message.lane is lane and message.queue == queue
    )
    kept = len(found) if keep.count is None else keep.count
    beyond = [seq for _, seq in found[: max(0, len(found) - kept)]]
    old = [seq for rested_ms, seq in found if keep.age_ms is not None and rested_ms < now - keep.age_ms]
    going = [seq for _, seq in found if seq in {*beyond, *old}][:RETAIN_MAX]
    for seq in going:
        tables.write(seq, None)
    return len(going)


def _counted(messages: Iterable[Message], now: int) -> Counts:
    found = dict.fromkeys(("ready", "scheduled", "leased", "dead", "quarantine", "done"), 0)
    oldest_ms = now
    for message in messages:
        lane = "done" if message.lane is Lane.DONE else message.state(now)
        found[lane] += 1
        if lane == "ready":
            oldest_ms = min(oldest_ms, message.due_ms or 0)
    return Counts(**found, oldest_age_s=(now - oldest_ms) / 1000)
