"""The contract itself: it lets a store promise less, and catches one that does not do what it promises."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.modest import ModestStore

from redrive.fault import Fault
from redrive.message import (
    ClaimRequest,
    Decision,
    Discard,
    Draft,
    Edit,
    Exchange,
    FailureGroup,
    Filter,
    GroupOrder,
    Handle,
    Lane,
    Message,
    Page,
    PutResult,
    RetryAt,
    Settlement,
    Started,
    Swap,
    Verdict,
    version_of,
)
from redrive.store import Cells, Store
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock, StoreContract
from redrive.testing.contract import deferring, waiting
from redrive.testing.contract.cells import let_forget


class TestModestStore(StoreContract):
    def make_store(self, clock: ManualClock, place: Path) -> Store:
        return ModestStore(clock)


# -- what must be caught


class Overstated(MemoryStore):
    traits = replace(MemoryStore.traits, durable=True, shared=True)


class Understated(MemoryStore):
    traits = replace(
        MemoryStore.traits,
        fenced=False,
        counts_crashes=False,
        cells=False,
        finds=False,
        cancels=False,
        triages=False,
        keeps_done=False,
        skips=False,
        widths=False,
        releases=False,
    )


class LooksAway(MemoryStore):
    """It promises a look at what waits, and gives none."""

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        return [None if message and message.lane is Lane.READY else message for message in super().find(ids)]


class Early(MemoryStore):
    """Ticks, rounded down."""

    traits = replace(MemoryStore.traits, tick_ms=1000)

    def put(self, drafts: Sequence[Draft], **parts: Any) -> list[PutResult]:
        return super().put([replace(d, delay_ms=d.delay_ms // 1000 * 1000) for d in drafts], **parts)


class ClaimsTooMuch(MemoryStore):
    def exchange(self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], **parts: Any) -> Exchange:
        return super().exchange(settlements, [replace(ask, limit=ask.limit + 1) for ask in asks], **parts)


class ClaimsBeforeItSettles(MemoryStore):
    def exchange(self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], **parts: Any) -> Exchange:
        deliveries = super().exchange([], asks).deliveries
        return Exchange(super().exchange(settlements, [], **parts).settled, deliveries)


class RetriesEarly(MemoryStore):
    def exchange(self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], **parts: Any) -> Exchange:
        return super().exchange([replace(s, decision=_early(s.decision)) for s in settlements], asks, **parts)


def _early(decision: Decision) -> Decision:
    return replace(decision, at_ms=decision.at_ms - 1) if isinstance(decision, RetryAt) else decision


class LosesFollowUps(MemoryStore):
    def exchange(self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], **parts: Any) -> Exchange:
        return super().exchange([replace(s, follow_ups=()) for s in settlements], asks, **parts)


class PutsOneByOne(MemoryStore):
    def put(self, drafts: Sequence[Draft], **parts: Any) -> list[PutResult]:
        return [super(PutsOneByOne, self).put([draft])[0] for draft in drafts]


class DecodesBodies(MemoryStore):
    def put(self, drafts: Sequence[Draft], **parts: Any) -> list[PutResult]:
        return super().put([replace(d, body=d.body.decode(errors="replace").encode()) for d in drafts], **parts)


class Spins(MemoryStore):
    def wait(self, asks: Sequence[ClaimRequest], *, timeout_ms: int) -> None:
        pass


class ForgetsHandles(MemoryStore):
    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        now = [Handle(m.id, m.redrives, m.lane) for m in self.find([seen.id for seen in handles]) if m is not None]
        return super().triage(now, verdict, swaps=swaps)


class NeverClogged(MemoryStore):
    def exchange(self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], **parts: Any) -> Exchange:
        return replace(super().exchange(settlements, asks, **parts), clogged=frozenset())


class SleepsPastWhatItDidNotLookAt(MemoryStore):
    def _next_due_ms(self, asks: Sequence[ClaimRequest]) -> float:
        lines = [line for ask in asks for line in self._tables.lines(ask)]
        return min((due_ms for line in lines for due_ms, seq in line if seq is not None), default=float("inf"))


class ReusesVersions(MemoryStore):
    def exchange(self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], **parts: Any) -> Exchange:
        self._tables._version_gone = 0
        return super().exchange(settlements, asks, **parts)


class ForgetsHowWorkersDied(MemoryStore):
    def reclaim(self, worker: str, started: Sequence[Started] | None, *, fault: Fault | None = None) -> tuple[int, int]:
        return super().reclaim(worker, started)


class IgnoresSince(MemoryStore):
    def peek(self, lane: Lane | None, *, where: Filter = Filter(), **parts: Any) -> Page:
        return super().peek(lane, where=replace(where, since_ms=None), **parts)


class ForgetsReleases(MemoryStore):
    def exchange(self, settlements: Sequence[Settlement], asks: Sequence[ClaimRequest], **parts: Any) -> Exchange:
        bare = [replace(s, fault=replace(s.fault, release="")) if s.fault else s for s in settlements]
        return super().exchange(bare, asks, **parts)


class CountsAllGroups(MemoryStore):
    def failure_groups(self, *, where: Filter = Filter(), trend: bool = False) -> list[FailureGroup]:
        return super().failure_groups(where=replace(where, fingerprint=None), trend=trend)


class CountsAllReasons(MemoryStore):
    def failure_groups(self, *, where: Filter = Filter(), trend: bool = False) -> list[FailureGroup]:
        return super().failure_groups(where=replace(where, reason=None), trend=trend)


class LooksForOneFingerprint(MemoryStore):
    def peek(self, lane: Lane | None, *, where: Filter = Filter(), **parts: Any) -> Page:
        first = where.fingerprint[0] if isinstance(where.fingerprint, tuple) else where.fingerprint
        return super().peek(lane, where=replace(where, fingerprint=first), **parts)


class SwapsNothingWithoutDrafts(MemoryStore):
    def put(self, drafts: Sequence[Draft], **parts: Any) -> list[PutResult]:
        return super().put(drafts, **parts) if drafts else []


class SwapsAnyVersion(MemoryStore):
    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), **parts: Any) -> list[PutResult]:
        return super().put(drafts, swaps=_as_they_are(self.cells, swaps), **parts)


class EditsWhatChangedSince(MemoryStore):
    def triage(self, handles: Sequence[Handle], verdict: Verdict, **parts: Any) -> list[bool]:
        bare = [Handle(h.id, h.redrives, h.lane) for h in handles] if isinstance(verdict, Edit) else handles
        return super().triage(bare, verdict, **parts)


class EditsNoLine(MemoryStore):
    def triage(self, handles: Sequence[Handle], verdict: Verdict, **parts: Any) -> list[bool]:
        turns = {seq: kept.turn for seq, kept in self._tables.kept.items()}
        words = super().triage(handles, verdict, **parts)
        with self._commit() as (tables, _):
            for seq, turn in turns.items():
                tables.write(int(seq), tables.kept[seq]._replace(turn=turn))
        return words


class AlteredCells(MemoryStore):
    """A store with altered cells."""

    altered: type[Cells]

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.cells = self.altered(self.cells)  # type: ignore[call-arg]


class CellsOfAnyVersion(AlteredCells):
    class altered:
        def __init__(self, cells: Cells) -> None:
            self._cells, self.read = cells, cells.read

        def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
            return self._cells.swap(_as_they_are(self._cells, swaps), durable=durable)


class CellsThatLoseWhatNeedNotLast(AlteredCells):
    class altered(CellsOfAnyVersion.altered):
        def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
            return self._cells.swap(swaps) if durable else [True] * len(swaps)


def _as_they_are(cells: Cells, swaps: Sequence[Swap]) -> list[Swap]:
    found = cells.read([swap.key for swap in swaps])
    return [replace(swap, version=version_of(cell)) for swap, cell in zip(swaps, found, strict=True)]


def keeps(make: Callable[[ManualClock], Store], rule: str, parts: dict[str, object]) -> bool:
    """Whether a store keeps one rule of the contract."""

    class Held(StoreContract):
        def make_store(self, clock: ManualClock, place: Path) -> Store:
            return make(clock)

    test = getattr(Held(), rule)
    clock = ManualClock()
    store = make(clock)
    parts = {
        "store": store,
        "clock": clock,
        "open_store": lambda: make(clock),
        "cells": store.cells,
        "forget": lambda: let_forget(store, clock),
    } | parts
    try:
        test(**{name: parts[name] for name in inspect.signature(test).parameters})
    except (AssertionError, pytest.fail.Exception):
        return False
    return True


@pytest.mark.parametrize(
    ("store", "rule", "parts"),
    [
        (Overstated, "what_was_put_outlives_the_handle_if_the_store_is_durable", {}),
        (Overstated, "other_handles_see_it_if_the_store_is_shared", {}),
        (Understated, "a_stale_receipt_is_refused", {}),
        (Understated, "a_lost_lease_is_claimed_again_and_counted_as_a_crash", {}),
        (Understated, "cells_are_read_in_the_order_asked", {}),
        (Understated, "a_waiting_message_is_cancelled_at_once", {}),
        (Understated, "a_discarded_message_is_gone", {}),
        (Understated, "it_goes_when_its_time_is_over", {}),
        (Understated, "skipped_tasks_are_left", {}),
        (Understated, "groups_take_turns", {}),
        (Understated, "release_without_knowledge_counts_all_as_started", {}),
        (LooksAway, "a_retry_goes_back_to_its_queue_until_its_time", {}),
        (LooksAway, "find_answers_in_the_order_asked", {}),
        (Early, "a_delay_is_never_cut_short", {}),
        (ClaimsTooMuch, "asks_are_served_in_their_order", {}),
        (ClaimsBeforeItSettles, "one_call_settles_then_claims", {}),
        (RetriesEarly, "a_retry_goes_back_to_its_queue_until_its_time", {}),
        (LosesFollowUps, "follow_ups_commit_with_the_settlement", {}),
        (PutsOneByOne, "an_id_is_stored_once", {}),
        (DecodesBodies, "a_body_arrives_byte_for_byte", {"body": b"\xff"}),
        (Spins, "a_wait_lasts_until_its_timeout", {}),
        (NeverClogged, "what_lies_beyond_is_told_as_clogged_and_found_without_skip", {}),
        (SleepsPastWhatItDidNotLookAt, "a_wait_sleeps_until_what_lies_beyond_is_due", {}),
        (ReusesVersions, "versions_are_never_used_twice", {}),
        (ForgetsHowWorkersDied, "what_lapses_keeps_how_its_worker_died", {}),
        (IgnoresSince, "a_resolved_group_regresses_once_it_dies_again", {}),
        (IgnoresSince, "a_mute_ends_at_a_total_or_a_rate_of_its_own_group", {}),
        (ForgetsReleases, "resolved_in_a_release_only_deaths_in_it_and_in_later_ones_count", {}),
        (CountsAllGroups, "a_mute_ends_at_a_total_or_a_rate_of_its_own_group", {}),
        (CountsAllReasons, "messages_that_are_held_for_a_person_are_counted_apart", {}),
        (LooksForOneFingerprint, "merged_groups_are_one_until_they_are_unmerged", {}),
        (SwapsNothingWithoutDrafts, "a_state_is_one_commit_with_its_entry_in_the_log", {}),
        (SwapsAnyVersion, "people_who_change_states_at_once_lose_none", {}),
        (CellsOfAnyVersion, "workers_spend_no_more_in_a_window_than_its_permits", {}),
        (CellsOfAnyVersion, "workers_that_ask_at_once_take_no_more_than_there_is", {}),
        (CellsThatLoseWhatNeedNotLast, "what_one_worker_spent_beyond_the_estimate_holds_back_all", {}),
        (EditsWhatChangedSince, "only_what_waits_as_it_was_seen_is_changed", {}),
        (EditsNoLine, "another_priority_counts_in_line_unless_the_group_is_strict", {"order": GroupOrder.TURNS}),
        (ForgetsHandles, "a_handle_of_what_changed_since_is_refused", {"verdict": Discard("no")}),
    ],
)
def test_a_store_that_breaks_its_word_is_caught(
    store: type[MemoryStore], rule: str, parts: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.5)  # who sleeps too long does so to the end
    monkeypatch.setattr(deferring, "FAR_MS", 1000)
    assert keeps(MemoryStore, f"test_{rule}", parts)
    assert not keeps(store, f"test_{rule}", parts)
