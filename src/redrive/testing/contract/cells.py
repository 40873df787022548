"""Rules of cells: compare-and-set on versions that are never used twice, with time to live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ...errors import Conflict
from ...message import Cell, Swap
from ...store import Cells, OpenCells, Store
from ..clock import ManualClock
from .base import Contract, OpenStore, in_threads
from .weaker import takes

ELSEWHERE = 10**12  # a version that no cell has

MoreCells = Callable[[], Cells]
Forget = Callable[[], None]


def cell(cells: Cells, key: str) -> Cell:
    (stored,) = cells.read([key])
    assert stored is not None, f"cell {key!r} is gone"
    return stored


def version(cells: Cells, key: str) -> int:
    return cell(cells, key).version


def values(cells: Cells, *keys: str) -> list[bytes | None]:
    return [None if stored is None else stored.value for stored in cells.read(keys)]


class CellRules:
    """Rules of cells, wherever they are stored. `more_cells` returns one more handle on the same cells, if several
    handles may share them; `forget` lets so much time and work pass that the cells may forget expired versions."""

    increments = 25  # increments by each contending thread; fewer where a swap takes milliseconds

    def test_cells_are_read_in_the_order_asked(self, cells: Cells) -> None:
        assert cells.read(["a", "b"]) == [None, None]
        assert cells.swap([Swap("a", 0, b"1"), Swap("b", 0, b"\x00\xff")]) == [True, True]
        assert values(cells, "b", "none", "a", "b") == [b"\x00\xff", None, b"1", b"\x00\xff"]
        assert version(cells, "a") > 0
        assert cells.read([]) == []
        assert cells.swap([]) == []

    def test_a_swap_needs_the_version_that_is_there(self, cells: Cells) -> None:
        swap = cells.swap
        assert swap([Swap("a", 1, b"x"), Swap("a", ELSEWHERE, b"x")]) == [False, False]  # the cell does not exist
        assert swap([Swap("a", 0, b"1")]) == [True]
        first = version(cells, "a")
        assert swap([Swap("a", 0, b"x"), Swap("a", first + 1, b"x")]) == [False, False]
        assert swap([Swap("a", first, b"2")]) == [True]
        assert swap([Swap("a", first, b"x")]) == [False]
        assert cell(cells, "a").value == b"2" and version(cells, "a") > first

    def test_each_swap_of_a_call_stands_for_itself(self, cells: Cells) -> None:
        cells.swap([Swap("a", 0, b"1")])
        at = version(cells, "a")
        swaps = [Swap("a", at, b"2"), Swap("b", 3, b"x"), Swap("a", at, b"x"), Swap("a", 0, b"x"), Swap("c", 0, b"")]
        assert cells.swap(swaps) == [True, False, False, False, True]
        assert values(cells, "a", "b", "c") == [b"2", None, b""]
        assert cells.swap([Swap("d", 0, b"1"), Swap("d", 0, b"x")]) == [True, False]
        assert values(cells, "d") == [b"1"]

    def test_versions_are_never_used_twice(self, cells: Cells, clock: ManualClock, forget: Forget) -> None:
        swap, seen = cells.swap, set[int]()
        for _ in range(3):
            assert swap([Swap("a", 0, b"1", ttl_ms=1000), Swap("other", 0, b"")]) == [True, True]
            first = version(cells, "a")
            assert swap([Swap("a", first, b"2", ttl_ms=1000)]) == [True]
            second = version(cells, "a")
            assert first < second and not seen & {first, second}
            seen |= {first, second}
            clock.advance("1s")  # the cell expires
            forget()
            assert swap([Swap("a", 0, b"3")]) == [True]
            third = version(cells, "a")
            assert swap([Swap("a", third, None), Swap("other", version(cells, "other"), None)]) == [True, True]
            assert cells.read(["a"]) == [None]
            assert third > second and third not in seen
            seen |= {third}
            forget()
            assert swap([Swap("a", old, b"x") for old in seen]) == [False] * len(seen)

    def test_a_deleted_cell_can_be_made_anew_in_the_same_call(self, cells: Cells) -> None:
        cells.swap([Swap("a", 0, b"1")])
        at = version(cells, "a")
        assert cells.swap([Swap("a", at, None), Swap("a", 0, b"2"), Swap("a", at, b"x")]) == [True, True, False]
        assert cell(cells, "a").value == b"2" and version(cells, "a") > at

    def test_a_cell_lives_as_long_as_it_was_told(self, cells: Cells, clock: ManualClock, forget: Forget) -> None:
        cells.swap(
            [Swap("short", 0, b"1", ttl_ms=1000), Swap("long", 0, b"2", ttl_ms=86_400_000), Swap("ever", 0, b"3")]
        )
        short = version(cells, "short")
        clock.advance("999ms")
        assert values(cells, "short", "long", "ever") == [b"1", b"2", b"3"]
        clock.advance("1ms")
        assert values(cells, "short", "long", "ever") == [None, b"2", b"3"]
        assert cells.swap([Swap("short", short, b"x")]) == [False]  # an expired cell does not exist
        clock.advance("1000d")
        assert values(cells, "short", "long", "ever") == [None, None, b"3"]
        forget()
        assert values(cells, "short", "long", "ever") == [None, None, b"3"]

    def test_each_swap_sets_the_time_to_live_anew(self, cells: Cells, clock: ManualClock) -> None:
        cells.swap([Swap("a", 0, b"1", ttl_ms=1000), Swap("b", 0, b"1", ttl_ms=1000)])
        later = [Swap("a", version(cells, "a"), b"2", ttl_ms=9000), Swap("b", version(cells, "b"), b"2")]
        assert cells.swap(later) == [True, True]
        clock.advance("8s")
        assert values(cells, "a", "b") == [b"2", b"2"]
        clock.advance("1s")
        assert values(cells, "a", "b") == [None, b"2"]

    def test_keys_and_values_may_be_anything(self, cells: Cells) -> None:
        keys = ["", 'it\'s "quoted" ключ 🗝', "a" * 1000, "%_*", "A", "a"]
        contents = [b"", bytes(range(256)), b"x" * 100_000, b"{}", b"A", b"a"]
        for durable in (True, False):
            at = [stored.version if stored else 0 for stored in cells.read(keys)]
            swaps = [Swap(*parts) for parts in zip(keys, at, contents, strict=True)]
            assert cells.swap(swaps, durable=durable) == [True] * 6
            assert values(cells, *keys) == contents
            contents = contents[::-1]

    def test_a_swap_that_is_not_durable_is_seen_by_all(self, cells: Cells, more_cells: MoreCells) -> None:
        other = more_cells()
        assert cells.swap([Swap("a", 0, b"1", ttl_ms=60_000)], durable=False) == [True]
        at = version(other, "a")
        assert other.swap([Swap("a", at, b"2"), Swap("a", at, b"x")], durable=False) == [True, False]
        assert values(cells, "a") == [b"2"]

    def test_contending_threads_lose_no_increment(self, cells: Cells, more_cells: MoreCells) -> None:
        other = more_cells()
        in_threads(*[_increment(handle, self.increments) for handle in (cells, cells, other, other)])
        assert cell(cells, "n").value == b"%d" % (4 * self.increments)


class StoreCellRules(CellRules, Contract):
    """Rules for the cells of a store."""

    @pytest.fixture
    def cells(self, store: Store) -> Cells:
        return store.cells

    @pytest.fixture
    def more_cells(self, store: Store, open_store: OpenStore) -> MoreCells:
        return lambda: open_store().cells if store.traits.shared else store.cells

    @pytest.fixture
    def forget(self, store: Store, clock: ManualClock) -> Forget:
        return lambda: let_forget(store, clock)


for _name, _rule in [*vars(CellRules).items()]:
    if _name.startswith("test_"):
        setattr(StoreCellRules, _name, takes("cells")(_rule))


def let_forget(store: Store, clock: ManualClock) -> None:
    """Give the store time and work in which it may forget expired cells."""
    for _ in range(2):
        clock.advance("2m")
        store.exchange([], [])
        store.cells.swap([Swap("nothing", ELSEWHERE, b"")])


class OpenCellRules(CellRules, ABC):
    """Rules for cells that are opened alone."""

    @abstractmethod
    def make_cells(self, clock: ManualClock, place: Path) -> OpenCells:
        """Return a handle on the cells named by `place`, with `clock` as its time."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def more_cells(self, clock: ManualClock, tmp_path: Path) -> Iterator[Callable[[], OpenCells]]:
        opened: list[OpenCells] = []

        def more_cells() -> OpenCells:
            opened.append(self.make_cells(clock, tmp_path))
            return opened[-1]

        yield more_cells
        for cells in opened:
            cells.close()

    @pytest.fixture
    def cells(self, more_cells: Callable[[], OpenCells]) -> OpenCells:
        return more_cells()

    @pytest.fixture
    def forget(self, cells: OpenCells, clock: ManualClock) -> Forget:
        def forget() -> None:
            clock.advance("4m")
            cells.swap([Swap("nothing", ELSEWHERE, b"")])

        return forget

    def test_all_are_swapped_or_none(self, cells: OpenCells, more_cells: Callable[[], OpenCells]) -> None:
        other = more_cells()
        cells.swap_all([])
        cells.swap_all([Swap("a", 0, b"1"), Swap("b", 0, b"2", ttl_ms=1000)])
        assert values(other, "a", "b") == [b"1", b"2"]
        at = [version(other, key) for key in "ab"]
        for swaps in (
            [Swap("a", at[0], b"x"), Swap("b", 0, b"x")],
            [Swap("b", at[1], b"x"), Swap("none", ELSEWHERE, b"x")],
            [Swap("b", at[1] + 1, b"x")],
        ):
            with pytest.raises(Conflict, match="nothing was written"):
                other.swap_all(swaps)
        assert values(cells, "a", "b", "none") == [b"1", b"2", None]
        other.swap_all([Swap("a", at[0], None), Swap("b", at[1], b"3"), Swap("a", 0, b"4")])
        assert values(cells, "a", "b") == [b"4", b"3"]
        assert version(cells, "a") > at[0] and version(cells, "b") > at[1]

    def test_what_expired_or_was_deleted_may_be_made_anew_in_one_commit(
        self, cells: OpenCells, clock: ManualClock
    ) -> None:
        seen = set[int]()
        for n in range(3):
            cells.swap_all([Swap("short", 0, b"1", ttl_ms=1000), Swap("gone", 0, b"2"), Swap(f"new {n}", 0, b"3")])
            at = {version(cells, "short"), version(cells, "gone")}
            assert not seen & at
            seen |= at
            assert cells.swap([Swap("gone", version(cells, "gone"), None)]) == [True]
            with pytest.raises(Conflict):
                cells.swap_all([Swap("gone", 0, b"x"), Swap("short", 0, b"x")])  # `short` still exists
            assert cells.read(["gone"]) == [None]
            clock.advance("1s")


def _increment(cells: Cells, times: int) -> Callable[[], None]:
    def increment() -> None:
        for _ in range(times):
            won = False
            while not won:
                (stored,) = cells.read(["n"])
                at, value = (stored.version, int(stored.value)) if stored else (0, 0)
                (won,) = cells.swap([Swap("n", at, str(value + 1).encode())])

    return increment
