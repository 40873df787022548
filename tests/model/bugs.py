"""Plausible bugs: each puts something wrong in the place of one function of the memory store, of `admit` or of
`decide`. A bug gets the right function first and then its arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import merge
from typing import Any

import pytest
from msgspec.structs import replace

from redrive import decide
from redrive.fault import Kind
from redrive.message import (
    RESTING,
    Ack,
    Cancel,
    DeadLetter,
    GroupOrder,
    Hold,
    Lane,
    OnDead,
    Quarantine,
    Redrive,
    RetryAt,
    Settled,
    Started,
)
from redrive.stores import _lifecycle, _tables, memory
from redrive.stores._groups import PLACE
from redrive.stores._tables import Tables
from redrive.stores.memory import MemoryCells, MemoryStore


@dataclass(frozen=True)
class Bug:
    """`wrong` instead of `place.name`."""

    what: str
    place: Any
    name: str
    wrong: Callable[..., Any]

    def put_into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right, wrong = getattr(self.place, self.name), self.wrong
        monkeypatch.setattr(self.place, self.name, lambda *args, **parts: wrong(right, *args, **parts))


STORE_BUGS: list[Bug] = []
FATE_BUGS: list[Bug] = []


def bug(place: Any, name: str, what: str) -> Callable[[Callable[..., Any]], None]:
    bugs = FATE_BUGS if place is decide else STORE_BUGS
    return lambda wrong: bugs.append(Bug(f"{name}: {what}", place, name, wrong))


# -- put


@bug(_lifecycle, "later", "a delay is a millisecond short")
def _(right: Any, now: int, delay_ms: int) -> Any:
    return now + delay_ms - (delay_ms > 0)


@bug(Tables, "key_holder", "a dead message gives its key back")
def _(right: Any, tables: Tables, task: str, key: str, now: int) -> Any:
    put = right(tables, task, key, now)
    return None if put is not None and put.state == "dead" else put


@bug(Tables, "key_holder", "a cancelled message holds its key")
def _(right: Any, tables: Tables, task: str, key: str, now: int) -> Any:
    held = tables._holders.get((task, key))
    message = tables.message(held.id) if held else None
    if message is not None and message.lane is Lane.DONE:
        return memory.Put(message.id, True, "cancelled")
    return right(tables, task, key, now)


@bug(Tables, "hold_key", "for_ is forgotten")
def _(right: Any, tables: Tables, task: str, key: str, id: str, until_ms: int) -> Any:
    return right(tables, task, key, id, 0)


@bug(Tables, "hold_key", "a key is unique over all tasks")
def _(right: Any, tables: Tables, task: str, key: str, id: str, until_ms: int) -> Any:
    right(tables, "a", key, id, until_ms)
    return right(tables, "b", key, id, until_ms)


@bug(Tables, "swap_all", "a put is written though its swaps do not apply")
def _(right: Any, tables: Tables, swaps: Any, now: int) -> Any:
    for swap in swaps:
        tables.swap(swap, now)


@bug(MemoryStore, "put", "drafts are written one by one")
def _(right: Any, store: MemoryStore, drafts: Any, **parts: Any) -> Any:
    return [put for draft in drafts for put in right(store, [draft], **parts)]


# -- exchange: claiming


@bug(Tables, "lines", "priority is ignored")
def _(right: Any, tables: Tables, ask: Any) -> Any:
    return iter([merge(*right(tables, ask))])


@bug(Tables, "lines", "skip is ignored")
def _(right: Any, tables: Tables, ask: Any) -> Any:
    return right(tables, replace(ask, skip=frozenset()))


@bug(Tables, "rules_said", "a pause is ignored")
def _(right: Any, *args: Any) -> Any:
    return replace(right(*args), paused=False)


@bug(memory, "_claim", "one more than the limit")
def _(right: Any, tables: Tables, ask: Any, now: int) -> Any:
    return right(tables, replace(ask, limit=ask.limit + (ask.limit > 1)), now)


@bug(memory, "_claim", "a millisecond early")
def _(right: Any, tables: Tables, ask: Any, now: int) -> Any:
    return right(tables, replace(ask, lease_ms=ask.lease_ms - 1), now + 1)


@bug(MemoryStore, "exchange", "claims before it settles")
def _(right: Any, store: MemoryStore, settlements: Any, asks: Any, **parts: Any) -> Any:
    deliveries = right(store, [], asks).deliveries
    return memory.Exchange(right(store, settlements, [], **parts).settled, deliveries)


@bug(_lifecycle, "leased", "the fence is not raised")
def _(right: Any, message: Any, *args: Any) -> Any:
    return replace(right(message, *args), fence=max(1, message.fence))


@bug(_lifecycle, "leased", "a lost lease counts as an attempt")
def _(right: Any, message: Any, *args: Any) -> Any:
    moved = right(message, *args)
    return replace(moved, attempt=moved.attempt + moved.crashes - message.crashes, crashes=message.crashes)


# -- exchange: settling


def _any_fence(tables: Tables, receipt: Any) -> Any:
    kept = tables.kept.get(receipt.handle)
    return kept.message if kept is not None and kept.message.lane is Lane.LEASED else None


@bug(memory, "_settle", "ack does not check the fence")
def _(right: Any, tables: Tables, settlement: Any, now: int) -> Any:
    message = _any_fence(tables, settlement.receipt)
    if message is not None and isinstance(settlement.decision, Ack):
        settlement = replace(settlement, receipt=settlement.receipt._replace(fence=message.fence))
    return right(tables, settlement, now)


@bug(memory, "_settle", "a receipt from before a crash can still retry")
def _(right: Any, tables: Tables, settlement: Any, now: int) -> Any:
    message = _any_fence(tables, settlement.receipt)
    if message is not None and isinstance(settlement.decision, RetryAt):
        settlement = replace(settlement, receipt=settlement.receipt._replace(fence=message.fence))
    return right(tables, settlement, now)


@bug(Tables, "held", "a lease that ran out is lost before anybody claims")
def _(right: Any, tables: Tables, receipt: Any) -> Any:
    message = right(tables, receipt)
    return None if message is not None and message.worker is None else message


@bug(memory, "_settle", "an ack of a message that is gone is well")
def _(right: Any, tables: Tables, settlement: Any, now: int) -> Any:
    gone = settlement.receipt.handle not in tables.kept and isinstance(settlement.decision, Ack)
    return Settled.OK if gone else right(tables, settlement, now)


@bug(memory, "_settle", "a settlement whose swaps do not apply is taken")
def _(right: Any, tables: Tables, settlement: Any, now: int) -> Any:
    for swap in settlement.swaps:
        tables.swap(swap, now)
    return right(tables, replace(settlement, swaps=()), now)


@bug(memory, "_settle", "its swaps stay though the settlement is stale")
def _(right: Any, tables: Tables, settlement: Any, now: int) -> Any:
    word = right(tables, settlement, now)
    if word is Settled.STALE:
        for swap in settlement.swaps:
            tables.swap(swap, now)
    return word


@bug(MemoryStore, "exchange", "the follow-ups of a stale settlement are written")
def _(right: Any, store: MemoryStore, settlements: Any, asks: Any, **parts: Any) -> Any:
    done = right(store, settlements, [], **parts)
    for settlement, word in zip(settlements, done.settled, strict=True):
        if word is Settled.STALE:
            store.put(settlement.follow_ups)
    return memory.Exchange(done.settled, right(store, [], asks).deliveries)


@bug(MemoryStore, "exchange", "the follow-ups of a death are lost")
def _(right: Any, store: MemoryStore, settlements: Any, *args: Any, **parts: Any) -> Any:
    kept = [replace(s, follow_ups=()) if isinstance(s.decision, DeadLetter) else s for s in settlements]
    return right(store, kept, *args, **parts)


@bug(_lifecycle, "decided", "a retry is due a millisecond early")
def _(right: Any, *args: Any) -> Any:
    moved = right(*args)
    return moved if moved.due_ms is None else replace(moved, due_ms=moved.due_ms - 1)


@bug(_lifecycle, "decided", "what does not count is counted")
def _(right: Any, message: Any, decision: Any, *args: Any) -> Any:
    return right(message, replace(decision, counts=True), *args)


@bug(_lifecycle, "decided", "a quarantine that does not count is counted")
def _(right: Any, message: Any, decision: Any, *args: Any) -> Any:
    counted = isinstance(decision, Quarantine)
    return right(message, replace(decision, counts=True) if counted else decision, *args)


@bug(_lifecycle, "decided", "time held is not added")
def _(right: Any, message: Any, decision: Any, *args: Any) -> Any:
    return replace(right(message, decision, *args), held_ms=message.held_ms)


@bug(_lifecycle, "decided", "a cancelled message is retried")
def _(right: Any, message: Any, decision: Any, *args: Any) -> Any:
    retried = isinstance(decision, RetryAt)
    return right(replace(message, cancel=message.cancel and not retried), decision, *args)


@bug(_lifecycle, "decided", "only the last fault is kept")
def _(right: Any, message: Any, decision: Any, fault: Any, now: int) -> Any:
    return right(replace(message, faults=()) if fault else message, decision, fault, now)


@bug(_lifecycle, "decided", "the reason of a death is lost")
def _(right: Any, message: Any, decision: Any, *args: Any) -> Any:
    moved = right(message, decision, *args)
    return replace(moved, reason="") if moved.lane is Lane.DEAD else moved


@bug(memory, "_acked", "the result is not kept")
def _(right: Any, message: Any, ack: Any, result: Any, now: int) -> Any:
    return right(message, ack, None, now)


@bug(memory, "_acked", "what is kept for retention is kept for a day")
def _(right: Any, message: Any, ack: Any, result: Any, now: int) -> Any:
    return right(message, replace(ack, keep_ms=86_000_000) if ack.keep_ms is None else ack, result, now)


@bug(_lifecycle, "done", "what it had to do without is not told")
def _(right: Any, message: Any, ack: Any, *args: Any) -> Any:
    return right(message, replace(ack, degraded=None), *args)


@bug(MemoryStore, "exchange", "the follow-ups of a cancelled message are written")
def _(right: Any, store: MemoryStore, settlements: Any, asks: Any, **parts: Any) -> Any:
    done = right(store, settlements, [], **parts)
    for settlement, word in zip(settlements, done.settled, strict=True):
        if word is Settled.CANCELLED:
            store.put(settlement.follow_ups)
    return memory.Exchange(done.settled, right(store, [], asks).deliveries)


# -- extend, release, checkpoint


@bug(memory, "_extend", "a stale receipt extends")
def _(right: Any, tables: Tables, receipt: Any, *args: Any) -> Any:
    message = _any_fence(tables, receipt)
    return right(tables, receipt if message is None else receipt._replace(fence=message.fence), *args)


@bug(memory, "_extend", "a cancel is not told")
def _(right: Any, *args: Any) -> Any:
    return Hold.HELD if right(*args) is Hold.CANCEL else right(*args)


@bug(memory, "_extend", "the end of the lease stays")
def _(right: Any, tables: Tables, receipt: Any, until_ms: int, alone: bool) -> Any:
    message = tables.held(receipt)
    return right(tables, receipt, message.due_ms if message is not None else until_ms, alone)


@bug(memory, "_extend", "a heartbeat takes back that it runs alone")
def _(right: Any, tables: Tables, receipt: Any, until_ms: int, alone: bool) -> Any:
    word = right(tables, receipt, until_ms, alone)
    if word is not Hold.LOST and not alone:
        tables.write(int(receipt.handle), tables.kept[receipt.handle]._replace(alone=False))
    return word


@bug(_lifecycle, "leased", "a crash alone is not counted")
def _(right: Any, message: Any, ask: Any, alone: bool, now: int) -> Any:
    return right(message, ask, False, now)


@bug(_lifecycle, "decided", "a free outcome clears the suspicion")
def _(right: Any, *args: Any) -> Any:
    return replace(right(*args), suspect=False)


@bug(MemoryStore, "release", "what was started goes back free")
def _(right: Any, store: MemoryStore, worker: str, started: Any) -> Any:
    return right(store, worker, started and [])


@bug(MemoryStore, "release", "what was never started is a crash")
def _(right: Any, store: MemoryStore, worker: str, started: Any) -> Any:
    return right(store, worker, None)


@bug(MemoryStore, "release", "the other worker's goes back too")
def _(right: Any, store: MemoryStore, worker: str, started: Any) -> Any:
    store_of_others = right(store, {"w1": "w2"}.get(worker, worker), started)
    mine = right(store, worker, started)
    return mine[0] + store_of_others[0], mine[1] + store_of_others[1]


@bug(MemoryStore, "release", "what was started in an earlier claim is a crash of this one")
def _(right: Any, store: MemoryStore, worker: str, started: Any) -> Any:
    found = [] if started is None else store.find([one.id for one in started])
    return right(store, worker, started and [Started(m.id, m.fence) for m in found if m is not None])


@bug(_lifecycle, "given_back", "the attempt is not given back")
def _(right: Any, message: Any, now: int) -> Any:
    return replace(right(message, now), attempt=message.attempt)


@bug(_lifecycle, "lapsed", "released twice, it goes back free")
def _(right: Any, message: Any, now: int) -> Any:
    return replace(right(message, now), worker=message.worker)


@bug(MemoryStore, "checkpoint", "a stale receipt leaves one")
def _(right: Any, store: MemoryStore, receipt: Any, state: bytes) -> Any:
    message = _any_fence(store._tables, receipt)
    return right(store, receipt if message is None else receipt._replace(fence=message.fence), state)


@bug(_lifecycle, "decided", "the checkpoint is lost with the attempt")
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
    ready = [k.message for k in store._tables.kept.values() if k.message.state(now) == "ready"]
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


@bug(_lifecycle, "matches", "until is inclusive")
def _(right: Any, message: Any, fault: Any, where: Any) -> Any:
    return right(message, fault, replace(where, until_ms=where.until_ms and where.until_ms + 1))


@bug(_lifecycle, "matches", "the error is not looked at")
def _(right: Any, message: Any, fault: Any, where: Any) -> Any:
    return right(message, fault, replace(where, error=None))


@bug(MemoryStore, "failure_groups", "two tasks are one group")
def _(right: Any, *args: Any, **parts: Any) -> Any:
    return [replace(group, task="a") for group in right(*args, **parts)]


@bug(memory, "_failure_group", "the time it was first seen is the last")
def _(right: Any, *args: Any) -> Any:
    group = right(*args)
    return replace(group, first_ms=group.last_ms)


@bug(MemoryStore, "counts_by_queue", "a queue that has only settings is forgotten")
def _(right: Any, *args: Any) -> Any:
    return {queue: counts for queue, counts in right(*args).items() if counts != memory.Counts()}


# -- by hand


@bug(memory, "_judge", "a handle from before a redrive is taken")
def _(right: Any, tables: Tables, handle: Any, *args: Any) -> Any:
    message = tables.message(handle.id)
    return right(tables, handle if message is None else handle._replace(redrives=message.redrives), *args)


@bug(memory, "_judge", "the lane of a handle is not looked at")
def _(right: Any, tables: Tables, handle: Any, *args: Any) -> Any:
    message = tables.message(handle.id)
    return right(tables, handle if message is None else handle._replace(lane=message.lane), *args)


@bug(memory, "_judge", "a message that does not rest is discarded")
def _(right: Any, tables: Tables, handle: Any, verdict: Any, now: int) -> Any:
    message = tables.message(handle.id)
    if message is None or message.lane in RESTING or isinstance(verdict, Redrive):
        return right(tables, handle, verdict, now)
    tables.write(tables.seqs[handle.id], None)
    return True


def redriven(what: str, **kept: str) -> None:
    """What a redrive shall begin anew stays as it was."""

    @bug(_lifecycle, "redriven", what)
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


@bug(_lifecycle, "isolated", "the time of rest stays")
def _(right: Any, message: Any, *args: Any) -> Any:
    return replace(right(message, *args), rested_ms=message.rested_ms)


@bug(memory, "_cancel", "a cancel of a running message is lost")
def _(right: Any, tables: Tables, id: str, now: int) -> Any:
    message = tables.message(id)
    return Cancel.REQUESTED if message and message.lane is Lane.LEASED else right(tables, id, now)


@bug(memory, "_cancel", "a dead message can be cancelled")
def _(right: Any, tables: Tables, id: str, now: int) -> Any:
    message = tables.message(id)
    if message is None or message.lane is not Lane.DEAD:
        return right(tables, id, now)
    tables.change(tables.seqs[id], _lifecycle.cancelled(message, now))
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


@bug(memory, "_retain", "one more is kept")
def _(right: Any, tables: Tables, queue: str, lane: Any, keep: Any, now: int) -> Any:
    return right(tables, queue, lane, replace(keep, count=keep.count and keep.count + 1), now)


@bug(memory, "_retain", "an age is never reached")
def _(right: Any, tables: Tables, queue: str, lane: Any, keep: Any, now: int) -> Any:
    return right(tables, queue, lane, replace(keep, age_ms=None), now)


@bug(memory, "_retain", "those of other queues go too")
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


# -- groups


@bug(_tables, "free_places", "the width is ignored")
def _(right: Any, line: Any, width: Any) -> Any:
    return right(line, lambda: 100)


@bug(Tables, "width", "a group's own width is ignored")
def _(right: Any, tables: Tables, queue: str, group: str) -> Any:
    return tables.rules(queue).width


@bug(Tables, "rules", "a width for all groups is ignored")
def _(right: Any, tables: Tables, queue: str) -> Any:
    return tables.rules_said(queue)


@bug(_tables, "admitted", "an admitted one is due when it was put")
def _(right: Any, message: Any, now: int) -> Any:
    return right(message, message.enqueued_ms)


@bug(_tables, "joined", "priority is ignored in line")
def _(right: Any, message: Any, settings: Any, number: int, *args: Any) -> Any:
    joined, turn = right(message, settings, number, *args)
    return joined, turn and number


@bug(_tables, "joined", "the last in line goes first")
def _(right: Any, message: Any, settings: Any, number: int, *args: Any) -> Any:
    return right(message, settings, 1_000_000 - number, *args)


@bug(_tables, "joined", "who is delayed stands in line")
def _(right: Any, message: Any, settings: Any, *args: Any) -> Any:
    return right(message, replace(settings, order=GroupOrder.STRICT), *args)


@bug(Tables, "_reorder", "the line stands as it stood when the order changes")
def _(right: Any, *args: Any) -> Any:
    return None


@bug(memory, "settled", "who waits keeps his place though turns are taken")
def _(right: Any, message: Any, settings: Any, now: int) -> Any:
    return PLACE if message.lane is Lane.READY else right(message, settings, now)


@bug(memory, "settled", "a strict group's head gives its place up for a wait")
def _(right: Any, message: Any, settings: Any, now: int) -> Any:
    turns = replace(settings, order=GroupOrder.TURNS)
    return right(message, turns if message.lane is Lane.READY else settings, now)


@bug(memory, "settled", "a wait of no length gives the place up")
def _(right: Any, message: Any, settings: Any, now: int) -> Any:
    return right(message, settings, -1)


@bug(memory, "settled", "a dead head does not block")
def _(right: Any, message: Any, settings: Any, now: int) -> Any:
    return right(message, settings, now) if message.lane is not Lane.DEAD else None


@bug(memory, "settled", "a dead head blocks though it is to be skipped")
def _(right: Any, message: Any, settings: Any, now: int) -> Any:
    return right(message, replace(settings, on_dead=OnDead.BLOCK), now)


@bug(Tables, "rejoin", "a redriven head joins at the tail of the line it blocked")
def _(right: Any, tables: Tables, seq: int, message: Any, now: int) -> Any:
    tables.write(seq, tables.kept[seq]._replace(turn=None))
    return right(tables, seq, message, now)


@bug(Tables, "wake", "whose time has come does not join")
def _(right: Any, *args: Any) -> Any:
    return None


@bug(Tables, "wake", "who waits joins before his time")
def _(right: Any, tables: Tables, queue: str, limit: int, now: int) -> Any:
    return right(tables, queue, limit, now + 5)


@bug(MemoryStore, "cancel", "the place of a cancelled message stays empty")
def _(right: Any, store: MemoryStore, ids: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tables, "admit", lambda *_: None)
        return right(store, ids)


@bug(MemoryStore, "triage", "the place of a discarded head stays empty")
def _(right: Any, store: MemoryStore, *args: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tables, "admit", lambda *_: None)
        return right(store, *args)


@bug(MemoryStore, "configure_group", "resume does nothing")
def _(right: Any, store: MemoryStore, queue: str, group: Any, *, width: Any = None, resume: bool = False) -> Any:
    return right(store, queue, group, width=width)


@bug(MemoryStore, "configure_group", "resume lets go who runs")
def _(right: Any, store: MemoryStore, queue: str, group: Any, *, width: Any = None, resume: bool = False) -> Any:
    right(store, queue, group, width=width, resume=resume)
    with store._commit() as (tables, now):
        line = tables.groups.get((queue, group or "")) if resume else None
        for seq in [*line.taken] if line is not None else ():
            tables.write(seq, tables.kept[seq]._replace(turn=None))
        tables.admit(now)


@bug(_tables, "refuse", "settings that contradict each other are taken")
def _(right: Any, *args: Any) -> Any:
    return None


@bug(memory, "_group", "nobody is told what blocks it")
def _(right: Any, *args: Any) -> Any:
    return replace(right(*args), blocked_by=None)


@bug(MemoryStore, "groups", "a group in which nobody stands is forgotten though it has a width")
def _(right: Any, *args: Any) -> Any:
    return [group for group in right(*args) if group.taken or group.parked]


# -- cells


@bug(Tables, "cell", "an expired cell is there")
def _(right: Any, tables: Tables, key: str, now: int) -> Any:
    return right(tables, key, 0)


@bug(Tables, "swap", "the version is not looked at")
def _(right: Any, tables: Tables, swap: Any, now: int) -> Any:
    cell = tables.cell(swap.key, now)
    return right(tables, replace(swap, version=cell.version if cell else 0), now)


@bug(Tables, "swap", "a version is used twice")
def _(right: Any, tables: Tables, swap: Any, now: int) -> Any:
    done = right(tables, swap, now)
    if done and swap.value is None:
        tables._set(tables._cells, swap.key, None)
    return done


@bug(MemoryCells, "swap", "one that fails fails all")
def _(right: Any, cells: MemoryCells, swaps: Any) -> Any:
    done = [right(cells, [swap])[0] for swap in swaps]
    return [all(done)] * len(done)


@bug(MemoryCells, "read", "not in the order asked")
def _(right: Any, cells: MemoryCells, keys: Any) -> Any:
    return right(cells, sorted(keys, reverse=True))


# -- admit, a row each


def row(what: str, *, admit: bool = True, message: Any = None, policy: Any = None, answer: Any = None) -> None:
    """`admit` or `decide` with its message, its policy or its answer changed."""

    @bug(decide, "admit" if admit else "decide", what)
    def _(right: Any, m: Any, second: Any, third: Any, now: int) -> Any:
        m = message(m, now) if message else m
        if policy is not None:
            second, third = (policy(second), third) if admit else (second, policy(third))
        given = right(m, second, third, now)
        return answer(given, m, second, now) if answer else given


def retried(policy: Any, **parts: Any) -> Any:
    """The policy with some of its retry changed."""
    retry = policy.retry
    names = ("max_attempts", "max_elapsed", "backoff", "on", "never", "only", "override", "max_retry_after")
    return replace(policy, retry=type(retry)(**{name: getattr(retry, name) for name in names} | parts))


row("a cancelled message runs", message=lambda m, now: replace(m, cancel=False))
row("the deadline is ignored", message=lambda m, now: replace(m, deadline_ms=None))
row(
    "the deadline itself is in time",
    message=lambda m, now: replace(m, deadline_ms=m.deadline_ms and m.deadline_ms + 1),
)
row("one crash more is allowed", message=lambda m, now: replace(m, crashes=max(0, m.crashes - 1)))
row("one crash alone more is allowed", message=lambda m, now: replace(m, crashes_alone=max(0, m.crashes_alone - 1)))
row("what was asked for long is forgotten", message=lambda m, now: replace(m, faults=()))
row(
    "what an earlier life was asked holds still",
    message=lambda m, now: replace(m, life_ms=0),
)
row(
    "an answer costs an attempt",
    answer=lambda given, m, policy, now: given if given == decide.RUN else replace(given, counts=True),
)
row(
    "poison is dead instead",
    answer=lambda given, m, policy, now: (
        DeadLetter("crashed", counts=False) if isinstance(given, Quarantine) else given
    ),
)


@bug(decide, "admit", "an unknown task runs")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(m, policy, replace(signals, unroutable=None), now)


@bug(decide, "admit", "an unreadable body runs")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(m, policy, replace(signals, unreadable=None), now)


@bug(decide, "admit", "an unknown task is parked for ever")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(replace(m, faults=()), policy, signals, now) if signals.unroutable else right(m, policy, signals, now)


@bug(decide, "admit", "an unknown task is dead at once")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(m, policy, replace(signals, park_ms=0), now)


@bug(decide, "admit", "a body that cannot be fetched runs")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(m, policy, replace(signals, unfetched=None), now)


@bug(decide, "admit", "unreadable comes before unroutable")
def _(right: Any, m: Any, policy: Any, signals: Any, now: int) -> Any:
    return right(m, policy, replace(signals, unroutable=None) if signals.unreadable else signals, now)


# -- decide, a row each


def counted(given: Any, *args: Any) -> Any:
    return given if isinstance(given, Ack) else replace(given, counts=True)


def steer(what: str, word: str) -> None:
    @bug(decide, "decide", what)
    def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
        return right(m, replace(fault, steer="") if fault.steer == word else fault, policy, now)


steer("a snooze is a failure", "snooze")
steer("a reject is retried", "reject")
steer("a quarantine is dead", "quarantine")


@bug(decide, "decide", "an interruption is a failure")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    return right(m, replace(fault, kind=Kind.DEFAULT) if fault.kind is Kind.INTERRUPTED else fault, policy, now)


@bug(decide, "decide", "permanent faults are retried")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    return right(m, replace(fault, kind=Kind.DEFAULT) if fault.kind is Kind.PERMANENT else fault, policy, now)


@bug(decide, "decide", "what was asked is ignored")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    return right(m, fault if fault.steer else replace(fault, retry_after_s=None), policy, now)


@bug(decide, "decide", "what was asked is not a floor")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    given = right(m, fault, policy, now)
    if not isinstance(given, RetryAt) or not fault.retry_after_s or given.at_ms < now + fault.retry_after_s * 1000:
        return given
    return replace(given, at_ms=given.at_ms - 1000)


row("snoozed and interrupted ones count", admit=False, answer=counted)
row("an attempt more is allowed", admit=False, message=lambda m, now: replace(m, attempt=m.attempt - 1))
row("a redrive's attempts are ignored", admit=False, message=lambda m, now: replace(m, attempts_allowed=None))
row("time held counts as elapsed", admit=False, message=lambda m, now: replace(m, held_ms=0))
row("elapsed is never looked at", admit=False, policy=lambda p: retried(p, max_elapsed=None))
row("override is never asked", admit=False, policy=lambda p: retried(p, override=None))
row("never is ignored", admit=False, policy=lambda p: retried(p, never=()))
row("only is ignored", admit=False, policy=lambda p: retried(p, only=()))
row("entries for kinds and classes are ignored", admit=False, policy=lambda p: retried(p, on={}))
row("what was asked is not clamped", admit=False, policy=lambda p: retried(p, max_retry_after="365d"))
row(
    "a retry is due a millisecond early",
    admit=False,
    answer=lambda given, m, policy, now: replace(given, at_ms=given.at_ms - 1) if isinstance(given, RetryAt) else given,
)


@bug(decide, "decide", "the least special class wins")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    return right(m, replace(fault, errors=fault.errors[::-1]), policy, now)


@bug(decide, "decide", "the elapsed time ends with the failure, not with the next start")
def _(right: Any, m: Any, fault: Any, policy: Any, now: int) -> Any:
    given = right(m, fault, policy, now)
    bound_s = policy.retry.max_elapsed
    early = isinstance(given, DeadLetter) and given.reason == "elapsed" and bound_s is not None
    if early and (now - m.life_ms - m.held_ms) / 1000 <= bound_s:
        return right(m, fault, retried(policy, max_elapsed=None), now)
    return given
