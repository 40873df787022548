"""Rules of retention: done messages that are kept, their results, and removal."""

from __future__ import annotations

import pytest

from ...message import Ack, Cancel, Discard, Handle, Keep, Lane, Settled
from ...store import Store
from ..clock import ManualClock
from .base import Contract, bury, claim, claim_one, draft, lanes, look, put, put_one, settle, shown
from .weaker import lacks, takes

SWEEP_S = 61.0  # seconds of exchanges after which done messages beyond their retention are deleted


class KeepRules(Contract):
    @takes("keeps_done")
    def test_a_kept_message_can_be_looked_up_with_its_result(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store, keep_ms=3_600_000)
        delivery = claim_one(store)
        assert delivery.message.keep_ms == 3_600_000
        assert settle(store, delivery, Ack(keep_ms=3_600_000), result=b'{"n":1}') is Settled.OK
        message = look(store, id)
        assert (message.lane, message.result, message.reason, message.rested_ms) == (
            Lane.DONE,
            b'{"n":1}',
            None,
            clock(),
        )
        assert message.state_at(clock()) == "done"
        if store.traits.exact_counts:
            assert store.counts("default").done == 1
        assert [m.id for m in store.peek(Lane.DONE).messages] == [id]
        assert claim(store) == []

    @takes("keeps_done")
    def test_it_goes_when_its_time_is_over(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        settle(store, claim_one(store), Ack(keep_ms=120_000))
        clock.advance("120s")
        store.exchange([], [])
        assert lanes(store, id) == [Lane.DONE]
        clock.advance(SWEEP_S)
        store.exchange([], [])
        assert lanes(store, id) == [None]

    @takes("keeps_done")
    def test_one_kept_for_retention_stays(self, store: Store, clock: ManualClock) -> None:
        id = put_one(store)
        settle(store, claim_one(store), Ack(keep_ms=None))
        clock.advance("400d")
        store.exchange([], [])
        assert lanes(store, id) == [Lane.DONE]

    @takes("keeps_done")
    def test_a_degraded_one_says_so(self, store: Store) -> None:
        id = put_one(store)
        settle(store, claim_one(store), Ack("no cache", keep_ms=1000))
        assert look(store, id).reason == "degraded"

    @takes("keeps_done")
    def test_a_kept_message_is_done(self, store: Store) -> None:
        id = put_one(store, key="k") if store.traits.unique else put_one(store)
        delivery = claim_one(store)
        settle(store, delivery, Ack(keep_ms=1000))
        if store.traits.fenced:
            assert settle(store, delivery, Ack()) is Settled.STALE
        assert store.cancel([id]) == [Cancel.TOO_LATE]
        assert store.triage([Handle(id, 0, Lane.DONE)], Discard("no")) == [False]
        if store.traits.unique:
            assert not store.put([draft(key="k")])[0].duplicate

    @pytest.mark.parametrize("lane", [Lane.DONE, Lane.DEAD])
    def test_retention_keeps_the_newest(self, store: Store, clock: ManualClock, lane: Lane) -> None:
        if lacks(store, "keeps_done" if lane is Lane.DONE else "triages"):
            return
        ids = self.rested(store, clock, lane)
        keep = Keep(count=2)
        assert store.retain("default", **{str(lane): keep}) == ((3, 0) if lane is Lane.DONE else (0, 3))
        assert lanes(store, *ids) == [None] * 3 + [lane] * 2
        assert store.retain("default", done=keep, dead=keep) == (0, 0)

    @pytest.mark.parametrize("lane", [Lane.DONE, Lane.DEAD])
    def test_retention_removes_what_is_old(self, store: Store, clock: ManualClock, lane: Lane) -> None:
        if lacks(store, "keeps_done" if lane is Lane.DONE else "triages"):
            return
        ids = self.rested(store, clock, lane)
        removed = store.retain("default", **{str(lane): Keep(age_ms=30_000)})
        assert sum(removed) == 2
        assert lanes(store, *ids) == [None] * 2 + [lane] * 3
        assert sum(store.retain("default", **{str(lane): Keep(count=0)})) == 3

    @takes("triages")
    def test_retention_touches_nothing_else(self, store: Store, clock: ManualClock) -> None:
        dead, poison, other = bury(store), bury(store, Lane.QUARANTINE), bury(store, queue="q")
        (waiting,) = put(store, draft())
        clock.advance("400d" if store.traits.finds else "10d")  # the record of a waiting message does not expire
        assert store.retain("default") == (0, 0)
        assert store.retain("default", done=Keep(0, 0), dead=Keep(0, 0)) == (0, 1)
        left = shown(store, None, Lane.QUARANTINE, Lane.DEAD, Lane.READY)
        assert lanes(store, dead, poison, other, waiting) == left

    def rested(self, store: Store, clock: ManualClock, lane: Lane) -> list[str]:
        """Return the ids of five messages that ended in this lane ten seconds apart, the last one ten seconds ago."""
        ids = []
        for _ in range(5):
            if lane is Lane.DEAD:
                ids.append(bury(store))
            else:
                ids.append(put_one(store))
                settle(store, claim_one(store), Ack(keep_ms=None))
            clock.advance("10s")
        return ids
