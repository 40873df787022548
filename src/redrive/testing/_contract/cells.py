"""Cells: compare-and-set on versions that are never used twice, with time to live."""

from __future__ import annotations

from collections.abc import Callable

from ...message import Cell, Swap
from ...store import Store
from ..clock import ManualClock
from .base import Contract, OpenStore, in_threads


class CellRules(Contract):
    def test_cells_are_read_in_the_order_asked(self, store: Store) -> None:
        assert store.cells.read(["a", "b"]) == [None, None]
        assert store.cells.swap([Swap("a", 0, b"1"), Swap("b", 0, b"\x00\xff")]) == [True, True]
        assert store.cells.read(["b", "none", "a", "b"]) == [
            Cell(1, b"\x00\xff"),
            None,
            Cell(1, b"1"),
            Cell(1, b"\x00\xff"),
        ]
        assert store.cells.read([]) == []
        assert store.cells.swap([]) == []

    def test_a_swap_needs_the_version_that_is_there(self, store: Store) -> None:
        swap = store.cells.swap
        assert swap([Swap("a", 1, b"x")]) == [False]  # there is none
        assert swap([Swap("a", 0, b"1")]) == [True]
        assert swap([Swap("a", 0, b"x"), Swap("a", 2, b"x")]) == [False, False]
        assert swap([Swap("a", 1, b"2")]) == [True]
        assert swap([Swap("a", 1, b"x")]) == [False]
        assert store.cells.read(["a"]) == [Cell(2, b"2")]

    def test_each_swap_of_a_call_stands_for_itself(self, store: Store) -> None:
        swaps = [Swap("a", 0, b"1"), Swap("b", 3, b"x"), Swap("a", 1, b"2"), Swap("a", 1, b"x"), Swap("c", 0, b"")]
        assert store.cells.swap(swaps) == [True, False, True, False, True]
        assert store.cells.read(["a", "b", "c"]) == [Cell(2, b"2"), None, Cell(1, b"")]

    def test_versions_are_never_used_twice(self, store: Store, clock: ManualClock) -> None:
        swap = store.cells.swap
        swap([Swap("a", 0, b"1")])
        assert swap([Swap("a", 1, None)]) == [True]  # deleted
        assert store.cells.read(["a"]) == [None]
        assert swap([Swap("a", 1, b"x"), Swap("a", 2, b"x")]) == [False, False]
        assert swap([Swap("a", 0, b"3", ttl_ms=1000)]) == [True]
        (cell,) = store.cells.read(["a"])
        assert cell is not None
        assert cell.version > 2
        clock.advance("1s")
        assert swap([Swap("a", 0, b"4")]) == [True]
        (later,) = store.cells.read(["a"])
        assert later is not None
        assert later.version > cell.version

    def test_a_cell_lives_as_long_as_it_was_told(self, store: Store, clock: ManualClock) -> None:
        store.cells.swap(
            [Swap("short", 0, b"1", ttl_ms=1000), Swap("long", 0, b"2", ttl_ms=86_400_000), Swap("ever", 0, b"3")]
        )
        clock.advance("999ms")
        assert [cell and cell.value for cell in store.cells.read(["short", "long", "ever"])] == [b"1", b"2", b"3"]
        clock.advance("1ms")
        assert [cell and cell.value for cell in store.cells.read(["short", "long", "ever"])] == [None, b"2", b"3"]
        assert store.cells.swap([Swap("short", 1, b"x")]) == [False]  # expired is not there
        clock.advance("1000d")
        assert [cell and cell.value for cell in store.cells.read(["short", "long", "ever"])] == [None, None, b"3"]

    def test_each_swap_sets_the_time_to_live_anew(self, store: Store, clock: ManualClock) -> None:
        store.cells.swap([Swap("a", 0, b"1", ttl_ms=1000), Swap("b", 0, b"1", ttl_ms=1000)])
        store.cells.swap([Swap("a", 1, b"2", ttl_ms=9000), Swap("b", 1, b"2")])
        clock.advance("8s")
        assert store.cells.read(["a", "b"]) == [Cell(2, b"2"), Cell(2, b"2")]
        clock.advance("1s")
        assert store.cells.read(["a", "b"]) == [None, Cell(2, b"2")]

    def test_keys_and_values_may_be_anything(self, store: Store) -> None:
        keys = ["", 'it\'s "quoted" ключ 🗝', "a" * 1000, "%_*", "A", "a"]
        values = [b"", bytes(range(256)), b"x" * 100_000, b"{}", b"A", b"a"]
        assert store.cells.swap([Swap(key, 0, value) for key, value in zip(keys, values, strict=True)]) == [True] * 6
        assert store.cells.read(keys) == [Cell(1, value) for value in values]

    def test_contending_threads_lose_no_increment(self, store: Store, open_store: OpenStore) -> None:
        other = open_store() if store.traits.shared else store
        in_threads(*[_increment(handle, 25) for handle in (store, store, other, other)])
        assert store.cells.read(["n"]) == [Cell(100, b"100")]


def _increment(store: Store, times: int) -> Callable[[], None]:
    def increment() -> None:
        for _ in range(times):
            won = False
            while not won:
                (cell,) = store.cells.read(["n"])
                version, value = (cell.version, int(cell.value)) if cell else (0, 0)
                (won,) = store.cells.swap([Swap("n", version, str(value + 1).encode())])

    return increment
