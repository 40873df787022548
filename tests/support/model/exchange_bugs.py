"""Bugs of put and exchange."""

from __future__ import annotations

from heapq import merge
from typing import Any

from msgspec.structs import replace
from tests.support.model.bug import Bugs, any_fence

from redrive.message import (
    Ack,
    DeadLetter,
    Exchange,
    Lane,
    PutResult,
    Quarantine,
    RetryAt,
    Settled,
)
from redrive.stores import lifecycle
from redrive.stores.memory import writes as memory
from redrive.stores.memory.store import MemoryStore
from redrive.stores.memory.tables import Tables

BUGS = bug = Bugs()


# -- put


@bug(lifecycle, "later", "a delay is a millisecond short")
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
        return PutResult(message.id, True, "cancelled")
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


@bug(memory, "claim", "one more than the limit")
def _(right: Any, tables: Tables, ask: Any, *args: Any) -> Any:
    return right(tables, replace(ask, limit=ask.limit + (ask.limit > 1)), *args)


@bug(memory, "claim", "a millisecond early")
def _(right: Any, tables: Tables, ask: Any, deliveries: Any, now: int) -> Any:
    return right(tables, replace(ask, lease_ms=ask.lease_ms - 1), deliveries, now + 1)


@bug(MemoryStore, "exchange", "claims before it settles")
def _(right: Any, store: MemoryStore, settlements: Any, asks: Any, **parts: Any) -> Any:
    deliveries = right(store, [], asks).deliveries
    return Exchange(right(store, settlements, [], **parts).settled, deliveries)


@bug(lifecycle, "leased", "the fence is not raised")
def _(right: Any, message: Any, *args: Any) -> Any:
    return replace(right(message, *args), fence=max(1, message.fence))


@bug(lifecycle, "leased", "a lost lease counts as an attempt")
def _(right: Any, message: Any, *args: Any) -> Any:
    moved = right(message, *args)
    return replace(moved, attempt=moved.attempt + moved.crashes - message.crashes, crashes=message.crashes)


# -- exchange: settling


@bug(memory, "settle", "ack does not check the fence")
def _(right: Any, tables: Tables, settlement: Any, now: int) -> Any:
    message = any_fence(tables, settlement.receipt)
    if message is not None and isinstance(settlement.decision, Ack):
        settlement = replace(settlement, receipt=settlement.receipt._replace(fence=message.fence))
    return right(tables, settlement, now)


@bug(memory, "settle", "a receipt from before a crash can still retry")
def _(right: Any, tables: Tables, settlement: Any, now: int) -> Any:
    message = any_fence(tables, settlement.receipt)
    if message is not None and isinstance(settlement.decision, RetryAt):
        settlement = replace(settlement, receipt=settlement.receipt._replace(fence=message.fence))
    return right(tables, settlement, now)


@bug(Tables, "held", "a lease that ran out is lost before anybody claims")
def _(right: Any, tables: Tables, receipt: Any) -> Any:
    message = right(tables, receipt)
    return None if message is not None and message.worker is None else message


@bug(memory, "settle", "an ack of a message that is gone is well")
def _(right: Any, tables: Tables, settlement: Any, now: int) -> Any:
    gone = settlement.receipt.handle not in tables.kept and isinstance(settlement.decision, Ack)
    return Settled.OK if gone else right(tables, settlement, now)


@bug(memory, "settle", "a settlement whose swaps do not apply is taken")
def _(right: Any, tables: Tables, settlement: Any, now: int) -> Any:
    for swap in settlement.swaps:
        tables.swap(swap, now)
    return right(tables, replace(settlement, swaps=()), now)


@bug(memory, "settle", "its swaps stay though the settlement is stale")
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
    return Exchange(done.settled, right(store, [], asks).deliveries)


@bug(MemoryStore, "exchange", "the follow-ups of a death are lost")
def _(right: Any, store: MemoryStore, settlements: Any, *args: Any, **parts: Any) -> Any:
    kept = [replace(s, follow_ups=()) if isinstance(s.decision, DeadLetter) else s for s in settlements]
    return right(store, kept, *args, **parts)


@bug(lifecycle, "decided", "a retry is due a millisecond early")
def _(right: Any, *args: Any) -> Any:
    moved = right(*args)
    return moved if moved.due_ms is None else replace(moved, due_ms=moved.due_ms - 1)


@bug(lifecycle, "decided", "what does not count is counted")
def _(right: Any, message: Any, decision: Any, *args: Any) -> Any:
    return right(message, replace(decision, counts=True), *args)


@bug(lifecycle, "decided", "a quarantine that does not count is counted")
def _(right: Any, message: Any, decision: Any, *args: Any) -> Any:
    counted = isinstance(decision, Quarantine)
    return right(message, replace(decision, counts=True) if counted else decision, *args)


@bug(lifecycle, "decided", "the deferral is not kept")
def _(right: Any, message: Any, decision: Any, *args: Any) -> Any:
    return replace(right(message, decision, *args), deferral=None)


@bug(lifecycle, "decided", "an earlier deferral stays")
def _(right: Any, message: Any, *args: Any) -> Any:
    moved = right(message, *args)
    return moved if moved.lane is not Lane.READY else replace(moved, deferral=moved.deferral or message.deferral)


@bug(lifecycle, "rested", "what rests keeps its deferral")
def _(right: Any, message: Any, *args: Any) -> Any:
    return replace(right(message, *args), deferral=message.deferral)


@bug(lifecycle, "done", "what is done keeps its deferral")
def _(right: Any, message: Any, *args: Any) -> Any:
    return replace(right(message, *args), deferral=message.deferral)


@bug(lifecycle, "leased", "a claim takes the deferral away")
def _(right: Any, *args: Any) -> Any:
    return replace(right(*args), deferral=None)


@bug(lifecycle, "_again", "a crash that is told is a plain retry")
def _(right: Any, message: Any, retry: Any, now: int) -> Any:
    return right(message, replace(retry, crashed=False), now)


@bug(lifecycle, "rested", "the crash that convicts is not counted")
def _(right: Any, message: Any, lane: Any, *args: Any) -> Any:
    crashed = lane is Lane.QUARANTINE and message.crashes_alone > 0
    less = replace(message, crashes=message.crashes - 1, crashes_alone=message.crashes_alone - 1)
    return right(less if crashed else message, lane, *args)


@bug(lifecycle, "_crashed", "a crash that is told is not one alone")
def _(right: Any, message: Any, *args: Any) -> Any:
    return replace(right(message, *args), crashes_alone=message.crashes_alone)


@bug(lifecycle, "_crashed", "a crash in company is one alone")
def _(right: Any, message: Any, decision: Any) -> Any:
    return right(message, replace(decision, in_company=False))


@bug(lifecycle, "_crashed", "a crash that is told makes no suspect")
def _(right: Any, message: Any, *args: Any) -> Any:
    return replace(right(message, *args), suspect=message.suspect)


@bug(lifecycle, "decided", "a crash that is told uses up the attempt")
def _(right: Any, message: Any, decision: Any, *args: Any) -> Any:
    moved = right(message, decision, *args)
    crashed = isinstance(decision, RetryAt) and decision.crashed
    return replace(moved, attempt=message.attempt - (not decision.counts)) if crashed else moved


@bug(lifecycle, "_again", "a deferral is lost with a second one")
def _(right: Any, message: Any, retry: Any, now: int) -> Any:
    return right(message, replace(retry, deferral=None) if message.deferral else retry, now)


@bug(memory, "claim", "an ask with skip says that it is clogged")
def _(right: Any, tables: Tables, ask: Any, *args: Any) -> Any:
    return right(tables, ask, *args) or bool(ask.skip)


@bug(lifecycle, "decided", "time held is not added")
def _(right: Any, message: Any, decision: Any, *args: Any) -> Any:
    return replace(right(message, decision, *args), held_ms=message.held_ms)


@bug(lifecycle, "decided", "a cancelled message is retried")
def _(right: Any, message: Any, decision: Any, *args: Any) -> Any:
    retried = isinstance(decision, RetryAt)
    return right(replace(message, cancel=message.cancel and not retried), decision, *args)


@bug(lifecycle, "decided", "only the last fault is kept")
def _(right: Any, message: Any, decision: Any, fault: Any, now: int) -> Any:
    return right(replace(message, faults=()) if fault else message, decision, fault, now)


@bug(lifecycle, "decided", "the reason of a death is lost")
def _(right: Any, message: Any, decision: Any, *args: Any) -> Any:
    moved = right(message, decision, *args)
    return replace(moved, reason="") if moved.lane is Lane.DEAD else moved


@bug(memory, "_acked", "the result is not kept")
def _(right: Any, message: Any, ack: Any, result: Any, now: int) -> Any:
    return right(message, ack, None, now)


@bug(memory, "_acked", "what is kept for retention is kept for a day")
def _(right: Any, message: Any, ack: Any, result: Any, now: int) -> Any:
    return right(message, replace(ack, keep_ms=86_000_000) if ack.keep_ms is None else ack, result, now)


@bug(lifecycle, "done", "what it had to do without is not told")
def _(right: Any, message: Any, ack: Any, *args: Any) -> Any:
    return right(message, replace(ack, degraded=None), *args)


@bug(MemoryStore, "exchange", "the follow-ups of a cancelled message are written")
def _(right: Any, store: MemoryStore, settlements: Any, asks: Any, **parts: Any) -> Any:
    done = right(store, settlements, [], **parts)
    for settlement, word in zip(settlements, done.settled, strict=True):
        if word is Settled.CANCELLED:
            store.put(settlement.follow_ups)
    return Exchange(done.settled, right(store, [], asks).deliveries)
