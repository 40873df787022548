"""The memory store's data: dicts, and per queue and priority a line sorted by due time. Every change can be undone."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any, NamedTuple

from ..errors import Conflict
from ..fault import Fault
from ..message import PRIORITIES, Ask, Cell, Lane, Message, Put, Receipt, Swap

Line = list[tuple[int, Lane, int]]  # (due_ms, lane, seq), sorted


class Kept(NamedTuple):
    """A stored message, and the fault that brought it to rest, by which it is found and grouped."""

    message: Message
    fault: Fault | None = None


class _Holder(NamedTuple):
    """Who holds a unique key: while that message is not done, and at least until `until_ms`."""

    id: str
    until_ms: int


class _CellRow(NamedTuple):
    """A cell; a deleted one (value None) stays, so that its versions are never used twice."""

    version: int
    value: bytes | None
    expires_ms: int | None


class Tables:
    """Not locked; whoever changes them ends with `commit` or `undo`."""

    def __init__(self) -> None:
        self.kept: dict[int | str, Kept] = {}  # by seq: the receipt's handle, never used twice
        self.seqs: dict[str, int] = {}  # by id
        self.paused: dict[str, bool] = {}  # by queue
        self._lines: dict[str, tuple[Line, ...]] = {}  # by queue, then priority: all that can become due
        self._holders: dict[tuple[str, str], _Holder] = {}  # by (task, key)
        self._cells: dict[str, _CellRow] = {}
        self._undo: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._next_seq = count(1)

    # -- changes

    def mark(self) -> int:
        return len(self._undo)

    def undo(self, mark: int = 0) -> None:
        while len(self._undo) > mark:
            do, args = self._undo.pop()
            do(*args)

    def commit(self) -> None:
        self._undo.clear()

    def add(self, message: Message) -> None:
        self.write(next(self._next_seq), Kept(message))

    def write(self, seq: int, kept: Kept | None) -> None:
        """Keep this under `seq` instead of what is there. None removes it, and frees a key held for its life only."""
        old = self.kept.get(seq)
        self._undo.append((self._place, (seq, old)))
        self._place(seq, kept)
        if kept is None and old is not None and old.message.key is not None:
            name = (old.message.task, old.message.key)
            if self._holders.get(name) == (old.message.id, 0):
                self._set(self._holders, name, None)

    def pause(self, queue: str, paused: bool | None) -> None:
        """Make the queue's settings; None leaves the pause as it is."""
        self._set(self.paused, queue, self.paused.get(queue, False) if paused is None else paused)

    def hold_key(self, task: str, key: str, id: str, until_ms: int) -> None:
        self._set(self._holders, (task, key), _Holder(id, until_ms))

    def swap(self, swap: Swap, now_ms: int) -> bool:
        live = self.cell(swap.key, now_ms)
        if (live.version if live else 0) != swap.version:
            return False
        row = self._cells.get(swap.key)
        expires_ms = now_ms + swap.ttl_ms if swap.ttl_ms is not None else None
        self._set(self._cells, swap.key, _CellRow(row.version + 1 if row else 1, swap.value, expires_ms))
        return True

    def swap_all(self, swaps: Iterable[Swap], now_ms: int) -> None:
        for swap in swaps:
            if not self.swap(swap, now_ms):
                raise Conflict(
                    f"cell {swap.key!r} is not at version {swap.version}; nothing was written, read it again"
                )

    def sweep(self, rested_before_ms: int, now_ms: int) -> None:
        """Forget done messages, and keys whose time is over and whose message is gone."""
        for seq, (message, _) in [*self.kept.items()]:
            if message.lane is Lane.DONE and (message.rested_ms or 0) < rested_before_ms:
                self.write(int(seq), None)
        for name, held in [*self._holders.items()]:
            if held.until_ms <= now_ms and held.id not in self.seqs:
                self._set(self._holders, name, None)

    # -- looking

    def message(self, id: str) -> Message | None:
        seq = self.seqs.get(id)
        return None if seq is None else self.kept[seq].message

    def held(self, receipt: Receipt) -> Message | None:
        """The message this receipt holds; None if it is stale. A lease that ran out holds until somebody claims."""
        kept = self.kept.get(receipt.handle)
        if kept is None or kept.message.lane is not Lane.LEASED or kept.message.fence != receipt.fence:
            return None
        return kept.message

    def key_holder(self, task: str, key: str, now_ms: int) -> Put | None:
        """What a put under this key gives while the key is held."""
        held = self._holders.get((task, key))
        if held is None:
            return None
        message = self.message(held.id)
        if (message is None or message.lane is Lane.DONE) and held.until_ms <= now_ms:
            return None
        return Put(held.id, True, message.state(now_ms) if message else "done")

    def lines(self, ask: Ask) -> Iterator[Iterator[tuple[int, int]]]:
        """Per priority (due_ms, seq) of what the ask may get now or later, in the order of due times."""
        if not self.paused.get(ask.queue):
            for line in self._lines.get(ask.queue, ()):
                yield ((due_ms, seq) for due_ms, _, seq in line if self.kept[seq].message.task not in ask.skip)

    def in_line(self) -> int:
        """How many messages stand in all lines."""
        return sum(len(line) for lines in self._lines.values() for line in lines)

    def cell(self, key: str, now_ms: int) -> Cell | None:
        row = self._cells.get(key)
        if row is None or row.value is None or (row.expires_ms is not None and row.expires_ms <= now_ms):
            return None
        return Cell(row.version, row.value)

    # -- places

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((_assign, (table, key, table.get(key))))
        _assign(table, key, value)

    def _place(self, seq: int, kept: Kept | None) -> None:
        old = self.kept.pop(seq, None)
        if old is not None:
            del self.seqs[old.message.id]
            if old.message.due_ms is not None:
                line = self._line(old.message)
                del line[bisect_left(line, (old.message.due_ms, old.message.lane, seq))]
        if kept is not None:
            self.kept[seq] = kept
            self.seqs[kept.message.id] = seq
            if kept.message.due_ms is not None:
                insort(self._line(kept.message), (kept.message.due_ms, kept.message.lane, seq))

    def _line(self, message: Message) -> Line:
        lines = self._lines.get(message.queue)
        if lines is None:
            lines = self._lines[message.queue] = tuple([] for _ in PRIORITIES)
        return lines[message.priority]


def _assign(table: dict[Any, Any], key: Any, value: Any) -> None:
    """None removes."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
