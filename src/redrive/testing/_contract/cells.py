"""Cells: compare-and-set on versions that are never used twice, with time to live."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from ...message import Ack, Cell, Draft, RetryAt, Settled, Settlement, Swap
from ...store import Store
from ..clock import ManualClock
from .base import Contract, OpenStore, claim, in_threads, put, values

ELSEWHERE = 10**12  # a version that no cell has


def cell(store: Store, key: str) -> Cell:
    (found,) = store.cells.read([key])
    assert found is not None, f"cell {key!r} is gone"
    return found


def version(store: Store, key: str) -> int:
    return cell(store, key).version


class CellRules(Contract):
    def test_cells_are_read_in_the_order_asked(self, store: Store) -> None:
        assert store.cells.read(["a", "b"]) == [None, None]
        assert store.cells.swap([Swap("a", 0, b"1"), Swap("b", 0, b"\x00\xff")]) == [True, True]
        assert values(store, "b", "none", "a", "b") == [b"\x00\xff", None, b"1", b"\x00\xff"]
        assert version(store, "a") > 0
        assert store.cells.read([]) == []
        assert store.cells.swap([]) == []

    def test_a_swap_needs_the_version_that_is_there(self, store: Store) -> None:
        swap = store.cells.swap
        assert swap([Swap("a", 1, b"x"), Swap("a", ELSEWHERE, b"x")]) == [False, False]  # there is none
        assert swap([Swap("a", 0, b"1")]) == [True]
        first = version(store, "a")
        assert swap([Swap("a", 0, b"x"), Swap("a", first + 1, b"x")]) == [False, False]
        assert swap([Swap("a", first, b"2")]) == [True]
        assert swap([Swap("a", first, b"x")]) == [False]
        assert cell(store, "a").value == b"2" and version(store, "a") > first

    def test_each_swap_of_a_call_stands_for_itself(self, store: Store) -> None:
        store.cells.swap([Swap("a", 0, b"1")])
        at = version(store, "a")
        swaps = [Swap("a", at, b"2"), Swap("b", 3, b"x"), Swap("a", at, b"x"), Swap("a", 0, b"x"), Swap("c", 0, b"")]
        assert store.cells.swap(swaps) == [True, False, False, False, True]
        assert values(store, "a", "b", "c") == [b"2", None, b""]
        assert store.cells.swap([Swap("d", 0, b"1"), Swap("d", 0, b"x")]) == [True, False]
        assert values(store, "d") == [b"1"]

    def test_versions_are_never_used_twice(self, store: Store, clock: ManualClock) -> None:
        swap, seen = store.cells.swap, set[int]()
        for _ in range(3):
            assert swap([Swap("a", 0, b"1", ttl_ms=1000), Swap("other", 0, b"")]) == [True, True]
            first = version(store, "a")
            assert swap([Swap("a", first, b"2", ttl_ms=1000)]) == [True]
            second = version(store, "a")
            assert first < second and not seen & {first, second}
            seen |= {first, second}
            clock.advance("1s")  # it expires
            self._sweep(store, clock)
            assert swap([Swap("a", 0, b"3")]) == [True]
            third = version(store, "a")
            assert swap([Swap("a", third, None), Swap("other", version(store, "other"), None)]) == [True, True]
            assert store.cells.read(["a"]) == [None]
            assert third > second and third not in seen
            seen |= {third}
            self._sweep(store, clock)
            assert swap([Swap("a", old, b"x") for old in seen]) == [False] * len(seen)

    def _sweep(self, store: Store, clock: ManualClock) -> None:
        """Time and work in which a store may forget what is gone."""
        for _ in range(2):
            clock.advance("2m")
            store.exchange([], [])
            store.cells.swap([Swap("nothing", ELSEWHERE, b"")])

    def test_a_deleted_cell_can_be_made_anew_in_the_same_call(self, store: Store) -> None:
        store.cells.swap([Swap("a", 0, b"1")])
        at = version(store, "a")
        assert store.cells.swap([Swap("a", at, None), Swap("a", 0, b"2"), Swap("a", at, b"x")]) == [True, True, False]
        assert cell(store, "a").value == b"2" and version(store, "a") > at

    def test_a_cell_lives_as_long_as_it_was_told(self, store: Store, clock: ManualClock) -> None:
        store.cells.swap(
            [Swap("short", 0, b"1", ttl_ms=1000), Swap("long", 0, b"2", ttl_ms=86_400_000), Swap("ever", 0, b"3")]
        )
        short = version(store, "short")
        clock.advance("999ms")
        assert values(store, "short", "long", "ever") == [b"1", b"2", b"3"]
        clock.advance("1ms")
        assert values(store, "short", "long", "ever") == [None, b"2", b"3"]
        assert store.cells.swap([Swap("short", short, b"x")]) == [False]  # expired is not there
        clock.advance("1000d")
        assert values(store, "short", "long", "ever") == [None, None, b"3"]
        self._sweep(store, clock)
        assert values(store, "short", "long", "ever") == [None, None, b"3"]

    def test_each_swap_sets_the_time_to_live_anew(self, store: Store, clock: ManualClock) -> None:
        store.cells.swap([Swap("a", 0, b"1", ttl_ms=1000), Swap("b", 0, b"1", ttl_ms=1000)])
        later = [Swap("a", version(store, "a"), b"2", ttl_ms=9000), Swap("b", version(store, "b"), b"2")]
        assert store.cells.swap(later) == [True, True]
        clock.advance("8s")
        assert values(store, "a", "b") == [b"2", b"2"]
        clock.advance("1s")
        assert values(store, "a", "b") == [None, b"2"]

    def test_keys_and_values_may_be_anything(self, store: Store) -> None:
        keys = ["", 'it\'s "quoted" ключ 🗝', "a" * 1000, "%_*", "A", "a"]
        contents = [b"", bytes(range(256)), b"x" * 100_000, b"{}", b"A", b"a"]
        for durable in (True, False):
            at = [found.version if found else 0 for found in store.cells.read(keys)]
            swaps = [Swap(*parts) for parts in zip(keys, at, contents, strict=True)]
            assert store.cells.swap(swaps, durable=durable) == [True] * 6
            assert values(store, *keys) == contents
            contents = contents[::-1]

    def test_a_swap_that_is_not_durable_is_seen_by_all(self, store: Store, open_store: OpenStore) -> None:
        other = open_store() if store.traits.shared else store
        assert store.cells.swap([Swap("a", 0, b"1", ttl_ms=60_000)], durable=False) == [True]
        at = version(other, "a")
        assert other.cells.swap([Swap("a", at, b"2"), Swap("a", at, b"x")], durable=False) == [True, False]
        assert values(store, "a") == [b"2"]

    def test_contending_threads_lose_no_increment(self, store: Store, open_store: OpenStore) -> None:
        other = open_store() if store.traits.shared else store
        in_threads(*[_increment(handle, 25) for handle in (store, store, other, other)])
        assert cell(store, "n").value == b"100"

    # -- in settlements

    def test_a_conflict_makes_its_settlement_stale_and_no_other(self, store: Store) -> None:
        if not store.traits.atomic_moves:
            return
        put(store, *[Draft(task="push") for _ in range(5)])
        store.cells.swap([Swap("there", 0, b"0")])
        at = version(store, "there")
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
        again = store.exchange([Settlement(held[1].receipt, Ack(), swaps=(Swap("b", version(store, "b"), None),))], [])
        assert again.settled == [Settled.OK] and values(store, "b") == [None]

    def test_settlements_with_one_swap_are_told_apart_from_all_others(self, store: Store, clock: ManualClock) -> None:
        """As a batch of a healthy queue has them: most of them acks, of which each completes a record."""
        if not store.traits.atomic_moves or not store.traits.fenced:
            return
        put(store, *[Draft(task="push", key="k" if n == 5 else None, group="g" if n == 6 else None) for n in range(12)])
        store.cells.swap([Swap("there", 0, b"0"), Swap("over", 0, b"0", ttl_ms=1000), Swap("other", 0, b"0")])
        clock.advance("1s")
        at, held = version(store, "there"), {d.message.id: d for d in claim(store, limit=20)}
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

    def test_a_stale_receipt_swaps_nothing(self, store: Store) -> None:
        if not store.traits.atomic_moves or not store.traits.fenced:
            return
        put(store, Draft(task="push"), Draft(task="push"))
        first, second = claim(store)
        store.exchange([Settlement(first.receipt, Ack())], [])
        late = [Settlement(d.receipt, Ack(), swaps=(Swap("a", 0, d.message.id.encode()),)) for d in (first, second)]
        assert store.exchange(late, []).settled == [Settled.STALE, Settled.OK]
        assert values(store, "a") == [second.message.id.encode()]

    @pytest.mark.parametrize("many", [1, 300])
    def test_every_settlement_of_a_batch_may_have_swaps(self, store: Store, many: int) -> None:
        if not store.traits.atomic_moves:
            return
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


def _increment(store: Store, times: int) -> Callable[[], None]:
    def increment() -> None:
        for _ in range(times):
            won = False
            while not won:
                (found,) = store.cells.read(["n"])
                at, value = (found.version, int(found.value)) if found else (0, 0)
                (won,) = store.cells.swap([Swap("n", at, str(value + 1).encode())])

    return increment
