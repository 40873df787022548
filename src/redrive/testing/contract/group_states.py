"""Rules for the states of failure groups: resolved and regressed, muted until they grow, merged, held for a person."""

from __future__ import annotations

from typing import Any

import pytest

from ...errors import Conflict
from ...message import HELD, Swap
from ...store import Store
from ...triage.annotations import Annotation, Annotations, read_annotations
from ...triage.group_states import begin_release, changing, combined, held_counts, read_states
from ..clock import ManualClock
from .base import Contract, OpenStore, another, bury, fault, in_threads
from .weaker import takes

A, B, C = "a" * 16, "b" * 16, "c" * 16  # fingerprints
WHY: dict[str, Any] = {"actor": "ann", "reason": "known"}


class GroupStateRules(Contract):
    @takes("triages", "cells")
    def test_a_resolved_group_regresses_once_it_dies_again(self, store: Store, clock: ManualClock) -> None:
        _die(store, clock, A, B)
        Annotations(store).resolve(A, **WHY)
        _die(store, clock, B)
        assert _about(store, A).state.word == "resolved", "neither earlier deaths nor those of another group count"
        _die(store, clock, A)
        assert _about(store, A).state.word == "regressed" and B not in read_annotations(store, [B])

    @takes("triages", "cells")
    def test_resolved_in_a_release_only_deaths_in_it_and_in_later_ones_count(
        self, store: Store, clock: ManualClock
    ) -> None:
        for release in ("1", "2", "3"):
            begin_release(store, release)
            clock.advance("1s")
        for group, died_in, word in ((A, "1", "resolved"), (B, "2", "regressed"), (C, "3", "regressed")):
            Annotations(store).resolve(group, release="2", **WHY)
            _die(store, clock, group, release=died_in)
            assert _about(store, group).state.word == word

    @takes("triages", "cells")
    def test_a_mute_ends_at_a_total_or_a_rate_of_its_own_group(self, store: Store, clock: ManualClock) -> None:
        _die(store, clock, A, A, B, B)
        Annotations(store).mute(A, until_total=4, **WHY)
        Annotations(store).mute(B, until_rate="3/m", **WHY)
        clock.advance("1m")
        _die(store, clock, A, B, B, C)
        assert _about(store, A).muted(store.now_ms()) and _about(store, B).muted(store.now_ms())
        _die(store, clock, A, B)
        assert not _about(store, A).muted(store.now_ms()) and not _about(store, B).muted(store.now_ms())

    @takes("triages", "cells")
    def test_merged_groups_are_one_until_they_are_unmerged(self, store: Store, clock: ManualClock) -> None:
        _die(store, clock, A, A, B, C)
        say, before = Annotations(store), _counts(store)
        say.merge(B, A, **WHY)
        assert _counts(store) == {A: 3, C: 1} and say.family(A) == (A, B)
        say.resolve(A, **WHY)
        assert _about(store, B).state.word == "resolved"
        _die(store, clock, B)
        assert _about(store, A).state.word == "regressed", "a death of a merged group is one of the whole"
        say.reopen(A, **WHY)
        say.unmerge(B, **WHY)
        assert _counts(store) == before | {B: 2} and read_states(store) == {}

    @takes("triages", "cells")
    def test_messages_that_are_held_for_a_person_are_counted_apart(self, store: Store, clock: ManualClock) -> None:
        _die(store, clock, A, B)
        bury(store, why=fault(fingerprint=A), reason=HELD)
        assert held_counts(store, {}) == {(A, "push"): 1}

    @takes("triages", "cells")
    def test_a_state_is_one_commit_with_its_entry_in_the_log(self, store: Store) -> None:
        say = Annotations(store)
        say.resolve(A, **WHY)
        assert [(entry.action, entry.about) for entry in say.audit()] == [("resolve", A)]
        before = read_states(store)
        for swaps in ([Swap("other", 7, b"1")], [Swap("rules/groups", 0, b"{}")]):
            with pytest.raises(Conflict):
                store.put([], swaps=[Swap("mine", 0, b"1"), *swaps])
        assert read_states(store) == before and store.cells.read(["mine"]) == [None]

    @takes("triages", "cells")
    def test_people_who_change_states_at_once_lose_none(self, store: Store, open_store: OpenStore) -> None:
        others = [store, (another(store, open_store) or store) if store.traits.shared else store]
        groups = [f"{n:016x}" for n in range(8)]
        in_threads(*(lambda n=n, f=f: Annotations(others[n % 2]).resolve(f, **WHY) for n, f in enumerate(groups)))
        assert sorted(read_states(store)) == groups
        late = changing(store, A, {"resolved_ms": 1})
        Annotations(store).resolve(B, **WHY)
        with pytest.raises(Conflict):
            store.put([], swaps=late)
        assert sorted(read_states(store)) == [*groups, B]


def _die(store: Store, clock: ManualClock, *fingerprints: str, release: str = "") -> None:
    """Let a message die of each of these, each a little later than what was before."""
    for fingerprint in fingerprints:
        clock.advance("10ms")
        bury(store, why=fault(fingerprint=fingerprint, release=release))


def _about(store: Store, fingerprint: str) -> Annotation:
    return read_annotations(store, [fingerprint])[fingerprint]


def _counts(store: Store) -> dict[str, int]:
    return {group.fingerprint: group.count for group in combined(read_states(store), store.failure_groups())}
