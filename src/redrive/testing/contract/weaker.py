"""What a store does that does not promise something: it refuses, by name, or does the stated less. Nothing is lost."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from ...errors import Unsupported
from ...message import (
    ABSENT,
    Ack,
    BatchCounts,
    BatchMark,
    Cancel,
    DeadLetter,
    Decision,
    Discard,
    Edit,
    GroupOrder,
    Handle,
    Hasten,
    Lane,
    LeaseStatus,
    Quarantine,
    RetryAt,
    Settled,
    Settlement,
    Started,
    Swap,
    WaitFields,
)
from ...store import Store
from .base import LEASE_MS, Contract, ask, claim, claim_one, claimed_ids, draft, fresh_id, put, put_one, settle, values

Rule = TypeVar("Rule", bound=Callable[..., None])


_held_to: set[tuple[type, str]] = set()  # (class, trait) whose weaker behaviour is tested already


def takes(*traits: str) -> Callable[[Rule], Rule]:
    """Mark a rule that needs these traits. For a store that lacks one of them, the rule tests what the store does
    instead, once per trait, since that is the same for each rule."""

    def taking(rule: Rule) -> Rule:
        looks_itself = "store" in inspect.signature(rule).parameters

        @functools.wraps(rule)
        def held(self: Contract, *, store: Store, **parts: Any) -> None:
            lacking = next((trait for trait in traits if not getattr(store.traits, trait)), None)
            if lacking is None:
                rule(self, **parts | ({"store": store} if looks_itself else {}))
            elif (type(self), lacking) not in _held_to:
                LESS[lacking](store)
                _held_to.add((type(self), lacking))

        if not looks_itself:
            parts = [*inspect.signature(rule).parameters.values()]
            named = inspect.Parameter("store", inspect.Parameter.KEYWORD_ONLY)
            held.__signature__ = inspect.Signature([*parts, named])  # type: ignore[attr-defined]
        return held  # type: ignore[return-value]

    return taking


def lacks(store: Store, trait: str) -> bool:
    """Return True if the store lacks the trait, after testing what the store does instead."""
    if getattr(store.traits, trait):
        return False
    LESS[trait](store)
    return True


def no_cells(store: Store) -> None:
    id = put_one(store)
    delivery = claim_one(store)
    swap = Swap("a", 0, b"1")
    for call in (
        lambda: store.cells.swap([swap]),
        lambda: store.put([draft()], swaps=[swap]),
        lambda: store.exchange([], [ask()], swaps=[swap]),
        lambda: settle(store, delivery, Ack(), swaps=(swap,)),
        lambda: store.checkpoint(delivery.receipt, b"half"),
        lambda: store.configure("default", paused=True),
    ):
        with pytest.raises(Unsupported):
            call()
    assert (values(store, "a", "b"), store.paused()) == ([None, None], frozenset())
    assert claim(store) == []  # the refused put stored nothing
    assert (settle(store, delivery, Ack()), store.find([id])) == (Settled.OK, [None])  # nor was it settled


def no_batches(store: Store) -> None:
    with pytest.raises(Unsupported, match="batch"):
        store.put([draft(batch="b"), draft()])
    with pytest.raises(Unsupported, match="batch"):
        store.batch_counts(["b"])
    with pytest.raises(Unsupported, match="batch"):
        store.mark_batches([BatchMark("b", BatchCounts())])
    assert store.changed_batches() == store.batch_ids() == [] and claim(store) == []  # the refused put stored nothing


def no_look(store: Store) -> None:
    if store.traits.cancels:
        return by_record(store)
    id = put_one(store)
    assert store.find([id]) == [None]
    (delivery,) = claim(store)
    assert store.find([id]) == [delivery.message]  # by the handle that holds the message
    for lane in (Lane.READY, Lane.LEASED, Lane.DONE, None):
        with pytest.raises(Unsupported):
            store.peek(lane)
    for ids in ([id], [fresh_id(store)]):
        with pytest.raises(Unsupported):
            store.cancel(ids)
    assert settle(store, delivery, Ack()) is Settled.OK and store.find([id]) == [None]


def by_record(store: Store) -> None:
    """Test a store of records: it does not distinguish due messages from those that run elsewhere, has no bodies, and
    lists nothing."""
    now = store.now_ms()
    due, later, runs, ends = put(store, draft(), draft(delay_ms=60_000), draft("r"), draft("r"))
    messages = [message for message in store.find([due, later]) if message is not None]
    assert [(m.id, m.task, m.lane, m.attempt, m.body, m.content) for m in messages] == [
        (id, "push", Lane.READY, 0, b"", ABSENT) for id in (due, later)
    ]
    assert [(m.due_ms or 0) >= now + wait_ms for m, wait_ms in zip(messages, (0, 60_000), strict=True)] == [True, True]
    for lane in (Lane.READY, Lane.LEASED, Lane.DONE, None):
        with pytest.raises(Unsupported):
            store.peek(lane)
    held = {d.message.id: d for d in claim(store, limit=3)}
    for delivery in held.values():
        if delivery.message.id not in (runs, ends):
            assert settle(store, delivery, RetryAt(now)) is Settled.OK
    assert store.find([runs]) == [held[runs].message]
    ids = [due, later, runs, ends, fresh_id(store)]
    asked, over = Cancel.REQUESTED, Cancel.CANCELLED
    assert store.cancel(ids) == [asked, over, asked, asked, Cancel.UNKNOWN]
    assert store.extend([held[id].receipt for id in (runs, ends)], lease_ms=LEASE_MS) == [LeaseStatus.CANCEL] * 2
    assert claim(store) == []  # a cancelled message is not delivered
    assert settle(store, held[runs], RetryAt(now)) is Settled.CANCELLED
    assert settle(store, held[ends], Ack()) is Settled.OK
    assert [m and (m.lane, m.reason) for m in store.find(ids)] == [
        *[(Lane.DONE, "cancelled")] * 3, None, None,
    ]  # fmt: skip
    assert store.cancel([due]) == [Cancel.TOO_LATE]


def no_triage(store: Store) -> None:
    dead, poison = put(store, draft(), draft())
    ends: tuple[Decision, ...] = DeadLetter("permanent"), Quarantine()
    for delivery, decision in zip(claim(store), ends, strict=True):
        assert settle(store, delivery, decision) is Settled.OK
    assert store.find([dead, poison]) == [None, None]
    for lane in (Lane.DEAD, Lane.QUARANTINE, None):
        with pytest.raises(Unsupported):
            store.peek(lane)
    for call in (
        store.failure_groups,
        lambda: store.triage([Handle(dead, 0, Lane.DEAD)], Discard("no")),
        lambda: store.restore([delivery.message]),
    ):
        with pytest.raises(Unsupported):
            call()
    assert claim(store) == []  # the message is at rest in a lane that this store cannot read


def no_haste(store: Store) -> None:
    id = put_one(store, delay_ms=60_000)
    for handles in ([], [Handle(id, 0, Lane.READY)]):
        with pytest.raises(Unsupported):
            store.triage(handles, Hasten())
    assert claim(store) == []


def no_edit(store: Store) -> None:
    id = put_one(store)
    for handles in ([], [Handle(id, 0, Lane.READY)]):
        for verdict in (Edit("r", (WaitFields(priority=0),) * len(handles)), Edit("r", cancel=True)):
            with pytest.raises(Unsupported):
                store.triage(handles, verdict)
    assert claimed_ids(store) == [id]


def no_kept(store: Store) -> None:
    id, other = put(store, draft(keep_ms=1000), draft())
    for delivery in claim(store):
        assert settle(store, delivery, Ack(keep_ms=None), result=b"1") is Settled.OK
    assert (store.find([id, other]), claim(store)) == ([None, None], [])
    assert store.retain("default") == (0, 0)


def no_widths(store: Store) -> None:
    for settings in ({"group_width": 2}, {"group_order": GroupOrder.STRICT, "group_width": 1}):
        with pytest.raises(Unsupported):
            store.configure("default", **settings)
    for name in ("g", None):
        with pytest.raises(Unsupported):
            store.configure_group("default", name, width=2)
    with pytest.raises(Unsupported):
        store.groups("default")
    ids = put(store, draft(group="g"), draft(group="g"), draft(group="h"))
    held = claim(store)
    assert [(d.message.id, d.message.group) for d in held] == list(zip(ids, "ggh", strict=True))  # not limited by group


def no_skips(store: Store) -> None:
    ids = put(store, draft("a"), draft("b"))
    done = store.exchange([], [ask(skip=["a"])])
    assert (sorted(d.message.id for d in done.deliveries), done.clogged) == (sorted(ids), frozenset())


def no_releases(store: Store) -> None:
    ids = put(store, draft(), draft())
    claim(store, worker="dead")
    assert store.reclaim("dead", [Started(ids[0], 1)]) == store.reclaim("dead", None) == (0, 0)
    assert claim(store) == []


def no_keys(store: Store) -> None:
    for drafts in ([draft(key="k")], [draft(), draft(key="k")]):
        with pytest.raises(Unsupported):
            store.put(drafts)
    put_one(store)
    delivery = claim_one(store)
    with pytest.raises(Unsupported):
        settle(store, delivery, Ack(), follow_ups=(draft(key="k"),))
    assert settle(store, delivery, Ack()) is Settled.OK and claim(store) == []


def no_taking_over(store: Store) -> None:
    with pytest.raises(Unsupported):
        store.put([draft(), draft(key="k", waiting=True)])
    no_replacing(store)


def no_replacing(store: Store) -> None:
    with pytest.raises(Unsupported):
        store.put([draft(), draft(key="k", replace=True)])
    assert claim(store) == []


def no_one_commit(store: Store) -> None:
    """Test that a settlement's follow-ups, swaps and end are three steps, and that swaps that do not apply stop it
    before the first."""
    put(store, draft(), draft())
    store.cells.swap([Swap("there", 0, b"0")])
    stopped, good = claim(store)
    settlements = [
        Settlement(stopped.receipt, Ack(), follow_ups=(draft("ghost"),), swaps=(Swap("there", 0, b"1"),)),
        Settlement(good.receipt, Ack(), follow_ups=(draft("next"),), swaps=(Swap("new", 0, b"1"),)),
    ]
    assert store.exchange(settlements, []).settled == [Settled.STALE, Settled.OK]
    assert values(store, "there", "new") == [b"0", b"1"]
    assert [d.message.task for d in claim(store)] == ["next"]
    again = Settlement(stopped.receipt, Ack(), swaps=(Swap("other", 0, b"1"),))
    assert store.exchange([again], []).settled == [Settled.OK] and values(store, "other") == [b"1"]


def no_fence(store: Store) -> None:
    """Test that a message is settled once and not lost, whatever the store answers to a receipt that is not the last
    one."""
    put_one(store)
    delivery = claim_one(store)
    assert settle(store, delivery, Ack()) is Settled.OK
    assert settle(store, delivery, Ack()) in (Settled.OK, Settled.STALE)
    assert claim(store) == []


def no_order(store: Store) -> None:
    """Test that a claim with `retries` gets the same messages as any other."""
    ids = put(store, draft(), draft())
    delivery, other = claim(store)
    settle(store, delivery, RetryAt(0))
    settle(store, other, RetryAt(0))
    claimed = []
    for _ in ids:
        deliveries = store.exchange([], [replace(ask(limit=1), retries=1)]).deliveries
        assert len(deliveries) <= 1
        claimed += [delivery.message.id for delivery in deliveries]
    assert sorted(claimed) == sorted(ids)


LESS: dict[str, Callable[[Store], None]] = {
    "priorities": no_order,
    "cells": no_cells,
    "finds": no_look,
    "cancels": no_look,
    "triages": no_triage,
    "hastens": no_haste,
    "edits": no_edit,
    "keeps_done": no_kept,
    "widths": no_widths,
    "skips": no_skips,
    "releases": no_releases,
    "unique": no_keys,
    "takes_over": no_taking_over,
    "replaces": no_replacing,
    "batches": no_batches,
    "fenced": no_fence,
    "atomic_moves": no_one_commit,
}
