"""Rules of swaps in settlements: each settlement is one commit with its own swaps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ...message import Ack, Draft, RetryAt, Settled, Settlement, Swap
from ...store import Store
from ..clock import ManualClock
from .base import Contract, claim, put, values
from .cells import ELSEWHERE, version
from .weaker import takes


class SettledSwapRules(Contract):
    @takes("cells", "atomic_moves")
    def test_a_conflict_makes_its_settlement_stale_and_no_other(self, store: Store) -> None:
        put(store, *[Draft(task="push") for _ in range(5)])
        store.cells.swap([Swap("there", 0, b"0")])
        at = version(store.cells, "there")
        swaps: Sequence[tuple[Swap, ...]] = (
            (Swap("a", 0, b"1"), Swap("there", at, b"1")),
            (Swap("b", 0, b"2"), Swap("there", at, b"2")),  # that version is gone by then: b is not written either
            (Swap("b", 0, b"3"),),
            (),
            (Swap("a", 0, b"5"), Swap("c", 0, b"5")),
        )
        held = claim(store)
        settlements = [Settlement(d.receipt, Ack(), swaps=mine) for d, mine in zip(held, swaps, strict=True)]
        expected = [Settled.OK, Settled.STALE, Settled.OK, Settled.OK, Settled.STALE]
        assert store.exchange(settlements, []).settled == expected
        assert values(store, "there", "a", "b", "c") == [b"1", b"1", b"3", None]
        again = store.exchange(
            [Settlement(held[1].receipt, Ack(), swaps=(Swap("b", version(store.cells, "b"), None),))], []
        )
        assert again.settled == [Settled.OK] and values(store, "b") == [None]

    @takes("cells", "fenced", "atomic_moves")
    def test_settlements_with_one_swap_are_told_apart_from_all_others(self, store: Store, clock: ManualClock) -> None:
        """A batch of a healthy queue: mostly acks, and each completes a record."""
        key = "k" if store.traits.unique else None
        put(store, *[Draft(task="push", key=key if n == 5 else None, group="g" if n == 6 else None) for n in range(12)])
        store.cells.swap([Swap("there", 0, b"0"), Swap("over", 0, b"0", ttl_ms=1000), Swap("other", 0, b"0")])
        clock.advance("1s")
        at, held = version(store.cells, "there"), {d.message.id: d for d in claim(store, limit=20)}
        ids = sorted(held)
        swaps: list[tuple[Swap, ...]] = [
            (Swap("there", at, b"1", ttl_ms=5000),),
            (Swap("new", 0, b"1"),),
            (Swap("over", 0, b"1", ttl_ms=5000),),
            (Swap("other", 0, b"1"),),  # it is there
            (Swap("none", ELSEWHERE, b"1"),),  # there is none
            (Swap("keyed", 0, b"1"),),
            (Swap("grouped", 0, b"1"),),
            (Swap("late", 0, b"1"),),
            (Swap("two", 0, b"1"), Swap("twice", 0, b"1")),
            (Swap("again", 0, b"1"),),
            (),
            (),
        ]
        decisions = [RetryAt(clock()) if n in (9, 11) else Ack() for n in range(12)]
        late = held[ids[7]]
        assert store.exchange([Settlement(late.receipt, Ack())], []).settled == [Settled.OK]
        settlements = [
            Settlement(held[id].receipt, decision, swaps=mine)
            for id, decision, mine in zip(ids, decisions, swaps, strict=True)
        ]
        stale = {3, 4, 7}
        expected = [Settled.STALE if n in stale else Settled.OK for n in range(12)]
        assert store.exchange(settlements, []).settled == expected
        wrote = ["there", "new", "over", "keyed", "grouped", "two", "twice", "again"]
        assert values(store, *wrote) == [b"1"] * len(wrote)
        assert values(store, "other", "none", "late") == [b"0", None, None]
        left = [id for id, message in zip(ids, store.find(ids), strict=True) if message is not None]
        assert left == [ids[n] for n in (3, 4, 9, 11)]
        clock.advance("5s")
        assert values(store, "there", "new", "over") == [None, b"1", None]

    @takes("cells", "fenced", "atomic_moves")
    def test_a_stale_receipt_swaps_nothing(self, store: Store) -> None:
        put(store, Draft(task="push"), Draft(task="push"))
        first, second = claim(store)
        store.exchange([Settlement(first.receipt, Ack())], [])
        late = [Settlement(d.receipt, Ack(), swaps=(Swap("a", 0, d.message.id.encode()),)) for d in (first, second)]
        assert store.exchange(late, []).settled == [Settled.STALE, Settled.OK]
        assert values(store, "a") == [second.message.id.encode()]

    @pytest.mark.parametrize("many", [1, 300])
    @takes("cells", "atomic_moves")
    def test_every_settlement_of_a_batch_may_have_swaps(self, store: Store, many: int) -> None:
        put(store, *[Draft(task="push") for _ in range(many)])
        held = claim(store, limit=many)
        for ttl_ms in (60_000, None):
            at = [found.version if found else 0 for found in store.cells.read([d.message.id for d in held])]
            swaps = [Swap(d.message.id, n, bytes([n % 256]), ttl_ms) for d, n in zip(held, at, strict=True)]
            if ttl_ms is None:
                settlements = [Settlement(d.receipt, Ack(), swaps=(one,)) for d, one in zip(held, swaps, strict=True)]
                assert store.exchange(settlements, []).settled == [Settled.OK] * many
            else:
                store.exchange([], [], swaps=swaps)
        assert values(store, *[d.message.id for d in held]) == [bytes([n % 256]) for n in at]
