"""Bugs of leases, of looking, of what is done by hand, of keeping, of cells."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.support.model.bug import Bugs, any_fence

from redrive.message import (
    RESTING,
    Cancel,
    Counts,
    Discard,
    Edit,
    Lane,
    LeaseStatus,
    Postpone,
    Started,
    WaitFields,
)
from redrive.stores import lifecycle
from redrive.stores.memory import writes as memory
from redrive.stores.memory.store import MemoryCells, MemoryStore
from redrive.stores.memory.tables import Tables

BUGS = bug = Bugs()


# -- extend, release, checkpoint


@bug(memory, "extend", "a stale receipt extends")
def _(right: Any, tables: Tables, receipt: Any, *args: Any) -> Any:
    message = any_fence(tables, receipt)
    return right(tables, receipt if message is None else receipt._replace(fence=message.fence), *args)


@bug(memory, "extend", "a cancel is not told")
def _(right: Any, *args: Any) -> Any:
    return LeaseStatus.HELD if right(*args) is LeaseStatus.CANCEL else right(*args)


@bug(memory, "extend", "the end of the lease stays")
def _(right: Any, tables: Tables, receipt: Any, until_ms: int, alone: bool) -> Any:
    message = tables.held(receipt)
    return right(tables, receipt, message.due_ms if message is not None else until_ms, alone)


@bug(memory, "extend", "a heartbeat takes back that it runs alone")
def _(right: Any, tables: Tables, receipt: Any, until_ms: int, alone: bool) -> Any:
    word = right(tables, receipt, until_ms, alone)
    if word is not LeaseStatus.LOST and not alone:
        tables.write(int(receipt.handle), tables.kept[receipt.handle]._replace(alone=False))
    return word


@bug(lifecycle, "leased", "a crash alone is not counted")
def _(right: Any, message: Any, ask: Any, alone: bool, now: int) -> Any:
    return right(message, ask, False, now)


@bug(lifecycle, "decided", "a free outcome clears the suspicion")
def _(right: Any, *args: Any) -> Any:
    return replace(right(*args), suspect=False)


@bug(MemoryStore, "reclaim", "what was started goes back free")
def _(right: Any, store: MemoryStore, worker: str, started: Any, **parts: Any) -> Any:
    return right(store, worker, started and [], **parts)


@bug(MemoryStore, "reclaim", "what was never started is a crash")
def _(right: Any, store: MemoryStore, worker: str, started: Any, **parts: Any) -> Any:
    return right(store, worker, None, **parts)


@bug(MemoryStore, "reclaim", "the other worker's goes back too")
def _(right: Any, store: MemoryStore, worker: str, started: Any, **parts: Any) -> Any:
    store_of_others = right(store, {"w1": "w2"}.get(worker, worker), started, **parts)
    mine = right(store, worker, started, **parts)
    return mine[0] + store_of_others[0], mine[1] + store_of_others[1]


@bug(MemoryStore, "reclaim", "what was started in an earlier claim is a crash of this one")
def _(right: Any, store: MemoryStore, worker: str, started: Any, **parts: Any) -> Any:
    found = [] if started is None else store.find([one.id for one in started])
    return right(store, worker, started and [Started(m.id, m.fence) for m in found if m is not None], **parts)


@bug(lifecycle, "lapsed", "how its worker died is not kept")
def _(right: Any, message: Any, fault: Any, now: int) -> Any:
    return right(message, None, now)


@bug(lifecycle, "lapsed", "how its worker died takes the place of what was before")
def _(right: Any, message: Any, fault: Any, now: int) -> Any:
    return right(replace(message, faults=()) if fault else message, fault, now)


@bug(MemoryStore, "reclaim", "what was never started keeps how the worker died")
def _(right: Any, store: MemoryStore, worker: str, started: Any, *, fault: Any = None) -> Any:
    leased = [k.message.id for k in store._tables.kept.values() if k.message.lane is Lane.LEASED]
    counted = right(store, worker, started, fault=fault)
    with store._commit() as (tables, _):
        for message in filter(None, map(tables.message, leased if fault else ())):
            if message.lane is Lane.READY:
                tables.change(tables.seqs[message.id], replace(message, faults=(*message.faults, fault)))
    return counted


@bug(lifecycle, "given_back", "the deferral goes with the claim")
def _(right: Any, *args: Any) -> Any:
    return replace(right(*args), deferral=None)


@bug(lifecycle, "given_back", "the attempt is not given back")
def _(right: Any, message: Any, now: int) -> Any:
    return replace(right(message, now), attempt=message.attempt)


@bug(lifecycle, "lapsed", "released twice, it goes back free")
def _(right: Any, message: Any, *args: Any) -> Any:
    return replace(right(message, *args), worker=message.worker)


@bug(MemoryStore, "checkpoint", "a stale receipt leaves one")
def _(right: Any, store: MemoryStore, receipt: Any, state: bytes) -> Any:
    message = any_fence(store._tables, receipt)
    return right(store, receipt if message is None else receipt._replace(fence=message.fence), state)


@bug(lifecycle, "decided", "the checkpoint is lost with the attempt")
def _(right: Any, *args: Any) -> Any:
    return replace(right(*args), progress=None)


# -- looking


@bug(MemoryStore, "find", "a cancelled message is not found")
def _(right: Any, *args: Any) -> Any:
    return [None if message and message.lane is Lane.DONE else message for message in right(*args)]


@bug(MemoryStore, "find", "not in the order asked")
def _(right: Any, store: MemoryStore, ids: Any) -> Any:
    return right(store, sorted(ids))


@bug(MemoryStore, "counts", "a lost lease is ready")
def _(right: Any, store: MemoryStore, queue: str | None = None) -> Any:
    counts, now = right(store, queue), store.now_ms()
    late = [k.message for k in store._tables.kept.values() if k.message.lane is Lane.LEASED]
    lost = sum(m.due_ms <= now for m in late if m.due_ms is not None and queue in (None, m.queue))
    return replace(counts, ready=counts.ready + lost, leased=counts.leased - lost)


@bug(MemoryStore, "counts", "what waits is forgotten")
def _(right: Any, *args: Any) -> Any:
    return replace(right(*args), scheduled=0)


@bug(MemoryStore, "counts", "the age is that of the youngest")
def _(right: Any, store: MemoryStore, queue: str | None = None) -> Any:
    counts, now = right(store, queue), store.now_ms()
    ready = [k.message for k in store._tables.kept.values() if k.message.state_at(now) == "ready"]
    ages = [(now - (m.due_ms or 0)) / 1000 for m in ready if queue in (None, m.queue)]
    return replace(counts, oldest_age_s=min(ages, default=0.0))


@bug(MemoryStore, "queues", "one that has only settings is forgotten")
def _(right: Any, store: MemoryStore) -> Any:
    return sorted({kept.message.queue for kept in store._tables.kept.values()})


@bug(MemoryStore, "peek", "the last of a full page is shown twice")
def _(right: Any, store: MemoryStore, lane: Any, *, cursor: str | None = None, **parts: Any) -> Any:
    page = right(store, lane, cursor=cursor, **parts)
    if page.cursor is None or len(page.messages) < 2:
        return page
    rested, seq = map(int, page.cursor.split("."))
    return replace(page, cursor=f"{rested}.{seq - 1}")


@bug(lifecycle, "matches", "until is inclusive")
def _(right: Any, message: Any, fault: Any, where: Any) -> Any:
    return right(message, fault, replace(where, until_ms=where.until_ms and where.until_ms + 1))


@bug(lifecycle, "matches", "the error is not looked at")
def _(right: Any, message: Any, fault: Any, where: Any) -> Any:
    return right(message, fault, replace(where, error=None))


@bug(MemoryStore, "failure_groups", "two tasks are one group")
def _(right: Any, *args: Any, **parts: Any) -> Any:
    return [replace(group, task="a") for group in right(*args, **parts)]


@bug(MemoryStore, "failure_groups", "the time it was first seen is the last")
def _(right: Any, *args: Any, **parts: Any) -> Any:
    return [replace(group, first_ms=group.last_ms) for group in right(*args, **parts)]


@bug(MemoryStore, "counts_by_queue", "a queue that has only settings is forgotten")
def _(right: Any, *args: Any) -> Any:
    return {queue: counts for queue, counts in right(*args).items() if counts != Counts()}


# -- by hand


@bug(memory, "judge", "a handle from before a redrive is taken")
def _(right: Any, tables: Tables, handle: Any, *args: Any) -> Any:
    message = tables.message(handle.id)
    return right(tables, handle if message is None else handle._replace(redrives=message.redrives), *args)


@bug(memory, "judge", "the lane of a handle is not looked at")
def _(right: Any, tables: Tables, handle: Any, *args: Any) -> Any:
    message = tables.message(handle.id)
    return right(tables, handle if message is None else handle._replace(lane=message.lane), *args)


@bug(memory, "judge", "a message that does not rest is discarded")
def _(right: Any, tables: Tables, handle: Any, verdict: Any, *args: Any) -> Any:
    message = tables.message(handle.id)
    if message is None or message.lane in RESTING or not isinstance(verdict, Discard):
        return right(tables, handle, verdict, *args)
    tables.write(tables.seqs[handle.id], None)
    return True


def redriven(what: str, **kept: str) -> None:
    """What a redrive shall begin anew stays as it was."""

    @bug(lifecycle, "redriven", what)
    def _(right: Any, message: Any, *args: Any) -> Any:
        return replace(right(message, *args), **{name: getattr(message, old) for name, old in kept.items()})


redriven("attempts are kept", attempt="attempt")
redriven("crashes are kept", crashes="crashes")
redriven("the old life goes on", life_ms="life_ms")
redriven("held time is kept", held_ms="held_ms")
redriven("the deadline is kept", deadline_ms="deadline_ms")
redriven("it stays in its queue", queue="queue")
redriven("redrives are not counted", redrives="redrives")
redriven("the history is kept from the run", run="run")
redriven("the reason is kept", reason="reason")


def returned(what: str, *names: str) -> None:
    """What a return shall give back stays as it is."""

    @bug(lifecycle, "returned", what)
    def _(right: Any, message: Any, before: Any) -> Any:
        return replace(right(message, before), **{name: getattr(message, name) for name in names})


returned("the redrive still counts", "redrives")
returned("it stays where the run put it", "queue")
returned("it lies as if it never rested", "rested_ms")
returned("the run is said to have moved it", "run")
returned("its result is lost", "result")


@bug(memory, "_returned", "nobody knows what it died of")
def _(right: Any, *args: Any) -> Any:
    return right(*args)._replace(fault=None)


@bug(memory, "_may_judge", "what was cancelled is redriven")
def _(right: Any, tables: Any, kept: Any, verdict: Any, at: int, now: int) -> Any:
    return right(tables, kept._replace(message=replace(kept.message, reason=None)), verdict, at, now)


@bug(memory, "_may_judge", "a run takes back the due times that another gave")
def _(right: Any, tables: Any, kept: Any, verdict: Any, at: int, now: int) -> Any:
    if isinstance(verdict, Postpone) and verdict.back:
        return bool(kept.message.lane is Lane.READY)
    return right(tables, kept, verdict, at, now)


@bug(lifecycle, "may_edit", "what runs is edited")
def _(right: Any, message: Any, verdict: Edit, to: WaitFields) -> Any:
    waits = replace(message, lane=Lane.READY) if message.lane is Lane.LEASED else message
    return right(waits, verdict, to)


@bug(lifecycle, "may_edit", "a member of a group is moved")
def _(right: Any, message: Any, verdict: Edit, to: WaitFields) -> Any:
    return right(message, verdict, WaitFields())


@bug(lifecycle, "may_edit", "a run undoes the edits of another")
def _(right: Any, message: Any, verdict: Edit, to: WaitFields) -> Any:
    return right(replace(message, run=verdict.run), verdict, to)


@bug(lifecycle, "edited", "the undo forgets the earlier priority")
def _(right: Any, message: Any, verdict: Edit, to: WaitFields, now: int) -> Any:
    return right(message, verdict, to._replace(priority=None) if verdict.back else to, now)


@bug(lifecycle, "moved_by", "the attempts before a run made it due are forgotten")
def _(right: Any, run: str, attempt: int) -> Any:
    return right(run, 0)


@bug(lifecycle, "readmitted", "the reason of the isolation stays")
def _(right: Any, message: Any, before: Any) -> Any:
    return right(message, None)


@bug(Tables, "key_until", "the key of what is replaced is not free")
def _(right: Any, *args: Any) -> Any:
    return None


@bug(Tables, "restore", "nobody knows what a restored message died of")
def _(right: Any, tables: Tables, message: Any) -> Any:
    right(tables, message)
    seq = tables.seqs[message.id]
    tables.write(seq, tables.kept[seq]._replace(fault=None))


@bug(memory, "restore", "a restored message does not hold its key")
def _(right: Any, tables: Tables, message: Any, now: int) -> Any:
    held = None if message.key is None else tables.key_holder(message.task, message.key, now)
    word = right(tables, message, now)
    if word and message.key is not None and held is None:
        tables.free_key(message.task, message.key)
    return word


@bug(lifecycle, "isolated", "the time of rest stays")
def _(right: Any, message: Any, *args: Any) -> Any:
    return replace(right(message, *args), rested_ms=message.rested_ms)


@bug(memory, "cancel", "a cancel of a running message is lost")
def _(right: Any, tables: Tables, id: str, now: int) -> Any:
    message = tables.message(id)
    return Cancel.REQUESTED if message and message.lane is Lane.LEASED else right(tables, id, now)


@bug(memory, "cancel", "a dead message can be cancelled")
def _(right: Any, tables: Tables, id: str, now: int) -> Any:
    message = tables.message(id)
    if message is None or message.lane is not Lane.DEAD:
        return right(tables, id, now)
    tables.change(tables.seqs[id], lifecycle.cancelled(message, now))
    return Cancel.CANCELLED


@bug(MemoryStore, "configure", "None ends a pause")
def _(right: Any, store: MemoryStore, queue: str, *, paused: bool | None = None, **parts: Any) -> Any:
    return right(store, queue, paused=bool(paused), **parts)


@bug(MemoryStore, "paused", "all queues with settings are paused")
def _(right: Any, store: MemoryStore) -> Any:
    return frozenset(store._tables.settings)


# -- keeping, waiting, time


@bug(MemoryStore, "retain", "the newest go first")
def _(right: Any, store: MemoryStore, queue: str, *, done: Any, dead: Any) -> Any:
    found = [k.message for k in store._tables.kept.values() if k.message.queue == queue]
    mine = sorted((m.rested_ms or 0, m.id) for m in found if m.lane is Lane.DEAD)
    if dead.count is None or len(mine) <= dead.count:
        return right(store, queue, done=done, dead=dead)
    with store._commit() as (tables, _):
        for _, id in mine[dead.count :]:
            tables.write(tables.seqs[id], None)
    return right(store, queue, done=done)[0], len(mine) - dead.count


@bug(memory, "retain", "one more is kept")
def _(right: Any, tables: Tables, queue: str, lane: Any, keep: Any, now: int) -> Any:
    return right(tables, queue, lane, replace(keep, count=keep.count and keep.count + 1), now)


@bug(memory, "retain", "an age is never reached")
def _(right: Any, tables: Tables, queue: str, lane: Any, keep: Any, now: int) -> Any:
    return right(tables, queue, lane, replace(keep, age_ms=None), now)


@bug(memory, "retain", "those of other queues go too")
def _(right: Any, tables: Tables, queue: str, lane: Any, keep: Any, now: int) -> Any:
    return sum(right(tables, name, lane, keep, now) for name in ("q", "r"))


@bug(Tables, "sweep", "dead messages are swept")
def _(right: Any, tables: Tables, now: int) -> Any:
    for seq, (message, *_) in [*tables.kept.items()]:
        if message.lane is Lane.DEAD and (message.rested_ms or 0) < now - memory.CANCELLED_KEPT_MS:
            tables.write(int(seq), None)
    return right(tables, now)


@bug(Tables, "sweep", "done messages are swept early")
def _(right: Any, tables: Tables, now: int) -> Any:
    return right(tables, now + 86_300_000)


@bug(Tables, "sweep", "never")
def _(right: Any, *args: Any) -> Any:
    return None


@bug(Tables, "sweep", "keys that are held for a time are swept")
def _(right: Any, tables: Tables, now: int) -> Any:
    for name, held in [*tables._holders.items()]:
        if held.id not in tables.seqs:
            tables._set(tables._holders, name, None)
    return right(tables, now)


@bug(MemoryStore, "_next_due_ms", "waiting, what is leased is not looked at")
def _(right: Any, store: MemoryStore, asks: Any) -> Any:
    return float("inf")


@bug(MemoryStore, "nudge", "nobody wakes")
def _(right: Any, store: MemoryStore) -> Any:
    return None


@bug(MemoryStore, "close", "it is as if it were open")
def _(right: Any, store: MemoryStore) -> Any:
    return None


@bug(MemoryStore, "now_ms", "its clock is ahead")
def _(right: Any, store: MemoryStore) -> Any:
    return right(store) + 1


@bug(MemoryStore, "check", "it finds damage where there is none")
def _(right: Any, store: MemoryStore) -> Any:
    return ["damaged"] if store.paused() else []


# -- cells


@bug(Tables, "cell", "an expired cell is there")
def _(right: Any, tables: Tables, key: str, now: int) -> Any:
    return right(tables, key, 0)


@bug(Tables, "swap", "the version is not looked at")
def _(right: Any, tables: Tables, swap: Any, now: int) -> Any:
    cell = tables.cell(swap.key, now)
    return right(tables, replace(swap, version=cell.version if cell else 0), now)


@bug(Tables, "_forget_cell", "a version is used twice")
def _(right: Any, tables: Tables, key: str, version: int) -> Any:
    right(tables, key, 0)


@bug(Tables, "sweep_cells", "cells go before their time")
def _(right: Any, tables: Tables, now: int) -> Any:
    return right(tables, now + 900)


@bug(Tables, "sweep_cells", "a cell goes when its first time is over, though it was set anew")
def _(right: Any, tables: Tables, now: int) -> Any:
    for expires_ms, key in tables._expiring:
        if expires_ms <= now and key in tables._cells:
            tables._forget_cell(key, tables._cells[key].version)
    return right(tables, now)


@bug(MemoryCells, "swap", "what need not be durable is not written")
def _(right: Any, cells: MemoryCells, swaps: Any, *, durable: bool = True) -> Any:
    return right(cells, swaps if durable else [replace(swap, version=-5) for swap in swaps])


@bug(MemoryCells, "swap", "one that fails fails all")
def _(right: Any, cells: MemoryCells, swaps: Any, **parts: Any) -> Any:
    done = [right(cells, [swap])[0] for swap in swaps]
    return [all(done)] * len(done)


@bug(MemoryCells, "read", "not in the order asked")
def _(right: Any, cells: MemoryCells, keys: Any) -> Any:
    return right(cells, sorted(keys, reverse=True))
