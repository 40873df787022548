"""Bugs of the counts of batches."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.model.bug import Bugs

from redrive.message import RESTING, Ack, Cancel, Lane, RetryAt, Settled
from redrive.stores import batches, lifecycle
from redrive.stores.memory import store as memory_store
from redrive.stores.memory import writes as memory
from redrive.stores.memory.rows import BatchRow
from redrive.stores.memory.store import MemoryStore
from redrive.stores.memory.tables import Tables

BUGS = bug = Bugs()


def add(tables: Tables, batch: str | None, **fields: int) -> None:
    """Count so many more in these fields."""
    if batch is not None:
        row = tables.batches.get(batch) or BatchRow(batches.NOTHING, True)
        more = {name: getattr(row.counts, name) + n for name, n in fields.items()}
        tables._set(tables.batches, batch, row._replace(counts=replace(row.counts, **more)))


# -- members come


@bug(Tables, "count", "a duplicate is open")
def _(right: Any, tables: Tables, batch: str, old: Any, new: Any) -> Any:
    return right(tables, batch, old, "open" if new == "duplicate" else new)


@bug(Tables, "count", "a duplicate is not counted")
def _(right: Any, tables: Tables, batch: str, old: Any, new: Any) -> Any:
    return None if new == "duplicate" else right(tables, batch, old, new)


@bug(Tables, "count", "a put that is refused counts")
def _(right: Any, tables: Tables, batch: str, old: Any, new: Any) -> Any:
    right(tables, batch, old, new)
    if old is None:
        tables._undo.pop()


@bug(memory, "restore", "what is restored is no member")
def _(right: Any, tables: Tables, message: Any, now: int) -> Any:
    return right(tables, replace(message, batch=None), now)


@bug(memory, "restore", "what is restored is not counted")
def _(right: Any, tables: Tables, message: Any, now: int) -> Any:
    word = right(tables, message, now)
    if word:
        add(tables, message.batch, **{message.lane.value: -1})
    return word


@bug(memory, "restore", "what is restored died once more")
def _(right: Any, tables: Tables, message: Any, now: int) -> Any:
    word = right(tables, message, now)
    if word:
        add(tables, message.batch, died=1)
    return word


# -- members are settled


@bug(memory, "settle", "a retry counts as another open one")
def _(right: Any, tables: Tables, settlement: Any, now: int) -> Any:
    message, word = tables.held(settlement.receipt), right(tables, settlement, now)
    if message is not None and word is Settled.OK and isinstance(settlement.decision, RetryAt):
        add(tables, message.batch, opened=1)
    return word


@bug(memory, "settle", "a stale ack counts")
def _(right: Any, tables: Tables, settlement: Any, now: int) -> Any:
    word, kept = right(tables, settlement, now), tables.kept.get(settlement.receipt.handle)
    if word is Settled.STALE and kept is not None and isinstance(settlement.decision, Ack):
        add(tables, kept.message.batch, done=1)
    return word


@bug(memory, "settle", "a cancelled one that dies counts as dead as well")
def _(right: Any, tables: Tables, settlement: Any, now: int) -> Any:
    message, word = tables.held(settlement.receipt), right(tables, settlement, now)
    if message is not None and word is Settled.CANCELLED and not isinstance(settlement.decision, RetryAt):
        add(tables, message.batch, died=1)
    return word


@bug(batches, "state_of", "a cancelled one is done")
def _(right: Any, message: Any) -> Any:
    return "done" if message.lane is Lane.DONE else right(message)


@bug(batches, "state_of", "a quarantined one is dead")
def _(right: Any, message: Any) -> Any:
    return "dead" if message.lane in RESTING else right(message)


@bug(memory, "claim", "a lease that ran out opens its member again")
def _(right: Any, tables: Tables, ask: Any, deliveries: Any, now: int) -> Any:
    leased = {kept.message.id for kept in tables.kept.values() if kept.message.lane is Lane.LEASED}
    clogged = right(tables, ask, deliveries, now)
    for id in leased & {d.message.id for d in deliveries}:
        message = tables.message(id)
        if message is not None and message.crashes:
            add(tables, message.batch, opened=1)
    return clogged


@bug(MemoryStore, "reclaim", "a lapse opens its member again")
def _(right: Any, store: MemoryStore, worker: str, *args: Any, **parts: Any) -> Any:
    mine = [kept.message for kept in store._tables.kept.values() if kept.message.worker == worker]
    word = right(store, worker, *args, **parts)
    with store._commit() as (tables, _):
        for message in mine:
            if message.lane is Lane.LEASED:
                add(tables, message.batch, opened=1)
    return word


@bug(MemoryStore, "exchange", "follow-ups join after the batch was looked at")
def _(right: Any, store: MemoryStore, settlements: Any, *args: Any, **parts: Any) -> Any:
    joining = {draft.batch for s in settlements for draft in s.follow_ups if draft.batch is not None}
    held = [store._tables.held(s.receipt) for s in settlements]
    done = right(store, settlements, *args, **parts)
    early = {m.batch for m in held if m is not None and m.batch in joining}
    return replace(done, batches=tuple(sorted({*done.batches, *early})))


@bug(MemoryStore, "exchange", "a batch with a dead member is named each time")
def _(right: Any, store: MemoryStore, settlements: Any, *args: Any, **parts: Any) -> Any:
    held = [store._tables.held(s.receipt) for s in settlements]
    done = right(store, settlements, *args, **parts)
    dead = {m.batch for m in held if m is not None and m.batch is not None and store.batch_counts([m.batch])[0].dead}
    return replace(done, batches=tuple(sorted({*done.batches, *dead})))


@bug(MemoryStore, "exchange", "a batch is not named when a member died and others are open")
def _(right: Any, store: MemoryStore, *args: Any, **parts: Any) -> Any:
    done = right(store, *args, **parts)
    counts = store.batch_counts(done.batches)
    return replace(done, batches=tuple(b for b, n in zip(done.batches, counts, strict=True) if not n.open))


# -- by hand


def moved(what: str, when: Any, **wrong: Any) -> None:
    """A move from one field to another is counted otherwise: `wrong` are the fields that keep their number."""

    @bug(batches, "moved", what)
    def _(right: Any, counts: Any, old: Any, new: Any) -> Any:
        found = right(counts, old, new)
        return replace(found, **{name: n(counts, found) for name, n in wrong.items()}) if when(old, new) else found


moved("died does not grow", lambda old, new: new in RESTING, died=lambda before, _: before.died)
moved("an isolation is a death", lambda old, new: (old, new) == ("dead", "quarantine"), died=lambda n, _: n.died + 1)
moved("died falls with a redrive", lambda old, new: old == "dead" and new == "open", died=lambda n, _: n.died - 1)
moved("a redriven one is not opened again", lambda old, new: old and new == "open", opened=lambda n, _: n.opened)
moved("a redriven one stays dead, too", lambda old, new: old == "dead" and new == "open", dead=lambda n, _: n.dead)
moved("one that dies stays open, too", lambda old, new: old == "open" and new in RESTING, open=lambda n, _: n.open)


@bug(lifecycle, "redriven", "a done one that runs again stays a member")
def _(right: Any, message: Any, *args: Any) -> Any:
    return replace(right(message, *args), batch=message.batch)


@bug(lifecycle, "redriven", "a dead one that is redriven leaves its batch")
def _(right: Any, message: Any, *args: Any) -> Any:
    return replace(right(message, *args), batch=None)


@bug(batches, "removed_as", "a waived one counts as discarded")
def _(right: Any, state: str, verdict: Any = None) -> Any:
    return "discarded" if state in RESTING and right(state, verdict) == "done" else right(state, verdict)


@bug(batches, "removed_as", "a discarded one counts as waived")
def _(right: Any, state: str, verdict: Any = None) -> Any:
    return "done" if state in RESTING and right(state, verdict) == "discarded" else right(state, verdict)


@bug(batches, "removed_as", "a replaced one counts as discarded as well")
def _(right: Any, state: str, verdict: Any = None) -> Any:
    return right(state, verdict) or "discarded"


@bug(memory, "_replace", "the draft in its place is no member")
def _(right: Any, tables: Tables, seq: int, verdict: Any, now: int) -> Any:
    return right(tables, seq, replace(verdict, draft=replace(verdict.draft, batch=None)), now)


@bug(memory, "_replace", "the draft in its place is a member of its batch")
def _(right: Any, tables: Tables, seq: int, verdict: Any, now: int) -> Any:
    batch = tables.kept[seq].message.batch
    return right(tables, seq, replace(verdict, draft=replace(verdict.draft, batch=batch)), now)


@bug(memory, "cancel", "a running one counts as cancelled at once")
def _(right: Any, tables: Tables, id: str, now: int) -> Any:
    word, message = right(tables, id, now), tables.message(id)
    if word is Cancel.REQUESTED and message is not None:
        add(tables, message.batch, open=-1, cancelled=1)
    return word


@bug(memory, "retain", "what retention removes is forgotten")
def _(right: Any, *args: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "removed_as", lambda *_: None)
        return right(*args)


@bug(Tables, "sweep", "a done one counts until it is swept")
def _(right: Any, *args: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "removed_as", lambda *_: None)
        return right(*args)


# -- looks and marks


@bug(MemoryStore, "batch_counts", "in the order of the ids")
def _(right: Any, store: MemoryStore, ids: Any) -> Any:
    return right(store, sorted(ids, reverse=True))


@bug(MemoryStore, "batch_ids", "those in which something is open")
def _(right: Any, store: MemoryStore, **parts: Any) -> Any:
    return [id for id in right(store, **parts) if store.batch_counts([id])[0].open]


@bug(MemoryStore, "batch_ids", "the last of a page begins the next one")
def _(right: Any, store: MemoryStore, *, after: str = "", limit: int = 100, failed: bool = False) -> Any:
    if failed:
        return right(store, after=after, limit=limit, failed=True)
    return sorted(id for id in store._tables.batches if id >= after)[:limit]


@bug(MemoryStore, "batch_ids", "a batch of which one died stays a failed one")
def _(right: Any, store: MemoryStore, *, failed: bool = False, **parts: Any) -> Any:
    found = right(store, **parts)
    return [id for id in found if store.batch_counts([id])[0].died] if failed else found


@bug(memory_store, "has_failed", "a quarantined one did not fail")
def _(right: Any, counts: Any) -> Any:
    return counts.dead > 0


@bug(memory_store, "is_news", "a dead member waits for the open ones")
def _(right: Any, counts: Any) -> Any:
    return counts.open == 0


@bug(memory_store, "is_news", "open members are news")
def _(right: Any, counts: Any) -> Any:
    return True


@bug(memory_store, "is_news", "only a dead one is, and no quarantined one")
def _(right: Any, counts: Any) -> Any:
    return right(replace(counts, quarantine=0))


@bug(Tables, "count", "a batch that was marked changes no more")
def _(right: Any, tables: Tables, batch: str, old: Any, new: Any) -> Any:
    row = tables.batches.get(batch)
    right(tables, batch, old, new)
    if row is not None and not row.changed:
        tables._set(tables.batches, batch, tables.batches[batch]._replace(changed=False))


@bug(MemoryStore, "mark_batches", "a mark with old counts works")
def _(right: Any, store: MemoryStore, marks: Any) -> Any:
    return right(store, [mark._replace(counts=store.batch_counts([mark.id])[0]) for mark in marks])


@bug(MemoryStore, "mark_batches", "a mark from before a death and a redrive works")
def _(right: Any, store: MemoryStore, marks: Any) -> Any:
    now = [store.batch_counts([mark.id])[0] for mark in marks]
    told = [replace(mark.counts, opened=n.opened, died=n.died) for mark, n in zip(marks, now, strict=True)]
    return right(store, [mark._replace(counts=counts) for mark, counts in zip(marks, told, strict=True)])


@bug(Tables, "mark_batch", "what was marked is forgotten at once")
def _(right: Any, tables: Tables, batch: str, expires_ms: int | None) -> Any:
    return right(tables, batch, expires_ms and 0)


@bug(Tables, "mark_batch", "an ended batch is never forgotten")
def _(right: Any, tables: Tables, batch: str, expires_ms: int | None) -> Any:
    return right(tables, batch, None)


@bug(Tables, "count", "a batch that goes on is forgotten all the same")
def _(right: Any, tables: Tables, batch: str, old: Any, new: Any) -> Any:
    row = tables.batches.get(batch)
    right(tables, batch, old, new)
    if row is not None:
        tables._set(tables.batches, batch, tables.batches[batch]._replace(expires_ms=row.expires_ms))


@bug(Tables, "count", "a member that leaves brings a forgotten batch back")
def _(right: Any, tables: Tables, batch: str, old: Any, new: Any) -> Any:
    right(tables, batch, old, new)
    if batch not in tables.batches:
        tables._set(tables.batches, batch, BatchRow(batches.NOTHING, True))


@bug(lifecycle, "matches", "the batch is not looked at")
def _(right: Any, message: Any, fault: Any, where: Any) -> Any:
    return right(message, fault, replace(where, batch=None))


@bug(MemoryStore, "check", "members that are done are missed")
def _(right: Any, store: MemoryStore) -> Any:
    return right(store) + [f"batch {id}" for id in store.batch_ids() if store.batch_counts([id])[0].done]
