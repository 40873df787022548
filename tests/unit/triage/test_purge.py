"""Emptying a queue: what goes, what stays, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from redrive import Draft
from redrive.message import Cancel, ClaimRequest, DeadLetter, Lane, Page, Quarantine, Settlement
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.triage.purge import PAGE, Purged, PurgeNote, purge, purge_behind


class Watched(MemoryStore):
    """Runs `before_cancel` once, before the first cancel."""

    before_cancel: Callable[[], object] | None = None
    batches: Sequence[int] = ()

    def cancel(self, ids: Sequence[str]) -> list[Cancel]:
        self.batches = [*self.batches, len(ids)]
        before, self.before_cancel = self.before_cancel, None
        if before is not None:
            before()
        return super().cancel(ids)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Watched:
    return Watched(clock)


def put(store: MemoryStore, **parts: object) -> str:
    return store.put([Draft(task="t", queue="q", **parts)])[0].id  # type: ignore[arg-type]


def claim(store: MemoryStore) -> Settlement:
    (delivery,) = store.exchange([], [ClaimRequest("q", 1, 60_000)]).deliveries
    return Settlement(delivery.receipt, DeadLetter("permanent"))


def test_what_waits_goes_and_all_else_stays(store: Watched) -> None:
    for decision in (DeadLetter("permanent"), Quarantine("poison")):
        put(store)
        store.exchange([Settlement(claim(store).receipt, decision)], [])
    leased = put(store)
    claim(store)
    put(store, group="g")
    waiting = [put(store), put(store, delay_ms=60_000), put(store, group="g")]  # ready, scheduled, parked
    other = store.put([Draft(task="t", queue="other")])[0].id
    assert purge(store, "q", actor="ann") == Purged(cancelled=4)
    counts = store.counts("q")
    assert (counts.ready, counts.scheduled, counts.leased, counts.dead, counts.quarantine) == (0, 0, 1, 1, 1)
    assert [m.reason for m in store.find(waiting) if m is not None] == ["cancelled"] * 3
    held, kept = store.find([leased, other])
    assert held is not None and held.lane is Lane.LEASED and not held.cancel
    assert kept is not None and kept.lane is Lane.READY


def test_it_goes_in_batches_and_says_after_each(store: Watched) -> None:
    store.put([Draft(task="t", queue="q") for _ in range(2 * PAGE + 1)])
    ticks: list[int] = []
    assert purge(store, "q", actor="ann", tick=ticks.append).cancelled == 2 * PAGE + 1
    assert max(store.batches) == PAGE and sum(ticks) == 2 * PAGE + 1 and len(ticks) >= 3


def test_large_bodies_are_looked_at_few_at_a_time(store: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put([Draft(task="t", queue="q", body=b"x" * 1000) for _ in range(3 * PAGE)])
    limits, peek = [], store.peek

    def watched(*args: Any, **options: Any) -> Page:
        limits.append(options["limit"])
        return peek(*args, **options)

    monkeypatch.setattr(store, "peek", watched)
    monkeypatch.setattr("redrive.store.paging.PAGE_BYTES", 600_000)
    assert purge(store, "q", actor="ann").cancelled == 3 * PAGE
    assert set(limits) == {PAGE, 599}


def test_what_is_enqueued_after_it_began_stays(store: Watched, clock: ManualClock) -> None:
    put(store)

    def later() -> None:
        clock.advance("10ms")
        put(store)

    store.before_cancel = later
    assert purge(store, "q", actor="ann") == Purged(cancelled=1)
    assert store.counts("q").ready == 1


def test_what_is_claimed_under_it_is_asked_to_stop_and_counted_apart(store: Watched) -> None:
    put(store)
    put(store)
    store.before_cancel = lambda: claim(store)
    assert purge(store, "q", actor="ann") == Purged(cancelled=1, asked_to_stop=1)


def test_a_cancelled_message_leads_to_who_purged_it_and_why(store: Watched, clock: ManualClock) -> None:
    by_hand = put(store)
    store.cancel([by_hand])
    clock.advance("1s")
    ids = []
    for reason in ("wrong import", "again"):
        ids.append(put(store))
        began = clock()
        purge(store, "q", actor="ann", reason=reason)
        clock.advance("1s")
    first, second, alone = store.find([*ids, by_hand])
    assert first is not None and second is not None and alone is not None
    assert purge_behind(store, second) == PurgeNote(began, began, "ann", "again")
    assert (found := purge_behind(store, first)) is not None and found.reason == "wrong import"
    assert purge_behind(store, alone) is None


def test_one_that_was_cut_off_can_be_called_again_and_is_noted(store: Watched) -> None:
    id = put(store)

    def cut(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        purge(store, "q", actor="ann", reason="cut off", tick=cut)
    (message,) = store.find([id])
    assert message is not None and (note := purge_behind(store, message)) is not None
    assert (note.ended_ms, note.reason) == (None, "cut off")
    assert purge(store, "q", actor="ann") == Purged()
