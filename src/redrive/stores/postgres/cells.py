"""Swaps of cells in the PostgreSQL store, within the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...errors import Conflict
from ...message import Draft, Swap
from .rows import byteas, numbers, texts
from .statements import AnyConnection, Cursor, Statements


def swap_all(st: Statements, c: AnyConnection, swaps: Sequence[Swap], now: int | None) -> None:
    for swap, won in zip(swaps, try_swaps(st, c, swaps, now).won(), strict=True):
        if not won:
            raise Conflict(f"cell {swap.key!r} is not at version {swap.version}; nothing was written, read it again")


class SentSwaps:
    """Swaps that were sent to the server, each to apply or not by itself."""

    def __init__(self, count: int, sent: Sequence[tuple[dict[str, int], Cursor]]) -> None:
        self._count, self._sent = count, sent

    def won(self) -> list[bool]:
        """Fetch the results: for each swap, in order, True if it was applied."""
        won = [False] * self._count
        for turn, made in self._sent:
            for (key,) in made.fetchall():
                won[turn[key]] = True
        return won


def try_swaps(st: Statements, c: AnyConnection, swaps: Sequence[Swap], now: int | None) -> SentSwaps:
    """Send swaps independent of each other: one statement, and another for each repetition of a key."""
    turns: list[dict[str, int]] = []
    for n, swap in enumerate(swaps):
        turn = next((turn for turn in turns if swap.key not in turn), None)
        if turn is None:
            turns.append(turn := {})
        turn[swap.key] = n
    sent = [_swap_once(st, c, [swaps[n] for _, n in sorted(turn.items())], now) for turn in turns]
    return SentSwaps(len(swaps), [*zip(turns, sent, strict=True)])


def _swap_once(st: Statements, c: AnyConnection, swaps: Sequence[Swap], now: int | None) -> Cursor:
    versions = numbers([swap.version for swap in swaps])
    return st.do(c, "swap_cells", texts([swap.key for swap in swaps]), versions, *swap_values(swaps), now)


class SettlementCells:
    """The cells that a batch of settlements swaps, locked until the commit. The process decides which swaps apply, and
    one statement writes all changes."""

    def __init__(self, st: Statements, c: AnyConnection, keys: Sequence[str], now: int | None) -> None:
        self._st, self._c = st, c
        locked = st.do(c, "lock_cells", texts(sorted(set(keys))), now) if keys else None
        self._locked = locked
        self._versions: dict[str, int | None] | None = None  # None: not fetched; a version 0: no such cell
        self._there = set[str]()
        self._changes: dict[str, Swap] = {}

    def swap(self, swaps: Sequence[Swap]) -> bool:
        """Take all of these swaps into the changes to write, or none if one does not apply; returns True if taken."""
        if not swaps:
            return True
        if self._versions is None:
            self._versions = {} if self._locked is None else dict(self._locked.fetchall())
            self._there = set(self._versions)
        changed: dict[str, Swap] = {}
        versions: dict[str, int | None] = {}
        for swap in swaps:
            if versions.get(swap.key, self._versions.get(swap.key, 0)) != swap.version:
                return False
            changed[swap.key], versions[swap.key] = swap, 0 if swap.value is None else None
        self._changes |= changed
        self._versions |= versions
        return True

    def write(self, now: int | None) -> None:
        there: list[Swap] = []
        new: list[Swap] = []
        gone: list[str] = []
        for key, swap in sorted(self._changes.items()):
            if swap.value is not None:
                (there if key in self._there else new).append(swap)
            elif key in self._there:
                gone.append(key)
        for name, swaps in (("change_cells", there), ("make_cells", new)):
            if swaps:
                self._st.do(self._c, name, texts([swap.key for swap in swaps]), *swap_values(swaps), now)
        if gone:
            self._st.do(self._c, "drop_cells", texts(gone))


def names_of(drafts: Iterable[Draft]) -> set[tuple[str, str]]:
    """Return (queue, group) of each group that a draft will join."""
    return {(draft.queue, draft.group) for draft in drafts if draft.group is not None}


def swap_values(swaps: Sequence[Swap]) -> tuple[bytes, bytes]:
    return byteas([swap.value for swap in swaps]), numbers([swap.ttl_ms for swap in swaps])
