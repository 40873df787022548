"""The memory store's data: dicts, and per queue and priority a line sorted by due time. Every change can be undone."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, islice
from typing import Any

from msgspec.structs import replace

from ...errors import Conflict
from ...message import (
    PRIORITIES,
    RESTING,
    SKIP_LOOKED,
    BatchCounts,
    Before,
    Cell,
    ClaimRequest,
    Lane,
    Message,
    PutResult,
    Receipt,
    Swap,
    Verdict,
)
from .. import batches
from ..groups import PLACE, GroupLine, GroupName, QueueSettings, admitted, free_places, in_line, joined, refuse
from .rows import BatchRow, CellRow, Holder, StoredMessage

CELLS_SWEPT = 1000  # how many expired cells one commit removes at most
DueLine = list[tuple[int, Lane, int]]  # (due_ms, lane, seq), sorted
Retries = list[tuple[int, int]]  # (due_ms, seq), sorted
DuePlace = tuple[int, int | None]  # (due_ms, seq); seq None: the listing ends before this due time
_UNSAID = QueueSettings()


class Tables:
    """The data of a memory store, without locks. A caller that changes the data ends with `commit` or `undo`."""

    def __init__(self) -> None:
        self.kept: dict[int | str, StoredMessage] = {}  # by seq, which is a receipt's handle and never reused
        self.seqs: dict[str, int] = {}  # by message id
        self.settings: dict[str, QueueSettings] = {}
        self.own_widths: dict[tuple[str, str | None], int] = {}  # by queue and group (None: all groups of the queue)
        self.groups: dict[GroupName, GroupLine] = {}
        self._waiting: dict[str, list[tuple[int, int]]] = {}  # by queue: (due_ms, seq) of messages that wait to join
        self._touched: set[GroupName] = set()  # groups to admit to: they may have a free place or a new message
        self._lines: dict[str, tuple[DueLine, ...]] = {}  # by queue, then priority: messages that a claim may find
        self._retries: dict[str, tuple[Retries, ...]] = {}  # by queue, then priority: messages that failed before
        self._holders: dict[tuple[str, str], Holder] = {}  # by (task, key)
        self.batches: dict[str, BatchRow] = {}
        self._cells: dict[str, CellRow] = {}
        self._expiring: list[tuple[int, str]] = []  # heap of (expires_ms, key), with entries of cells changed since
        self._version_gone = 0  # highest version that a removed cell had
        self._undo: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._next_seq = count(1)

    # -- changes

    def mark(self) -> int:
        return len(self._undo)

    def undo(self, mark: int = 0) -> None:
        while len(self._undo) > mark:
            do, args = self._undo.pop()
            do(*args)
        if not self._undo:
            self._touched.clear()

    def commit(self) -> None:
        self._undo.clear()
        self._touched.clear()

    def add(self, message: Message, now_ms: int) -> None:
        seq, turn = next(self._next_seq), None
        if message.group is not None:
            self._touched.add((message.queue, message.group))
            message, turn = joined(message, self.rules(message.queue), seq, message.due_ms or 0, now_ms)
        self.write(seq, StoredMessage(message, turn=turn, parked_ms=now_ms))

    def change(self, seq: int, message: Message) -> None:
        """Replace a message by a changed one that has the same lane and due time."""
        self.write(seq, self.kept[seq]._replace(message=message))

    def write(self, seq: int, kept: StoredMessage | None, verdict: Verdict | None = None) -> None:
        """Replace the row under `seq`. None removes it, and frees a key that was held only for the message's life.
        `verdict`: by which it is removed."""
        if kept is not None and kept.message.group is not None:
            kept = kept._replace(message=_seen(kept.message, kept.turn))
        old = self.kept.get(seq)
        if old is not None and old.message.batch is not None:
            was = batches.state_of(old.message)
            now = batches.state_of(kept.message) if kept is not None else batches.removed_as(was, verdict)
            if kept is None or kept.message.batch == old.message.batch:  # a done member that runs again left its batch
                self.count(old.message.batch, was, now)
        elif old is None and kept is not None and kept.message.batch is not None:
            self.count(kept.message.batch, None, batches.state_of(kept.message))
        self._undo.append((self._place, (seq, old)))
        self._place(seq, kept)
        if old is not None and old.turn == PLACE and old.message.group is not None:
            self._touched.add((old.message.queue, old.message.group))
        if kept is None and old is not None and old.message.key is not None:
            name = (old.message.task, old.message.key)
            if self._holders.get(name) == (old.message.id, 0):
                self._set(self._holders, name, None)

    def count(self, batch: str, old: str | None, new: str | None) -> None:
        """Count a move of a member, see `batches.moved`."""
        before = self.counts_of(batch)
        counts = batches.moved(before, old, new)
        if counts != before:  # a member that leaves a forgotten batch does not bring it back
            self._set(self.batches, batch, BatchRow(counts, True))

    def mark_batch(self, batch: str, expires_ms: int | None) -> None:
        self._set(self.batches, batch, BatchRow(self.batches[batch].counts, False, expires_ms))

    def configure(self, queue: str, changes: dict[str, Any], now_ms: int) -> None:
        """Change these settings of the queue. Raises ConfigError if its settings then contradict each other."""
        was_strict = self.rules(queue).strict
        self._set(self.settings, queue, replace(self.rules_said(queue), **changes))
        self._refuse(queue)
        if self.rules(queue).strict != was_strict:
            self._reorder(queue, now_ms)
        if not self.rules(queue).block:
            for seq, kept in [*self.kept.items()]:
                if kept.message.queue == queue and kept.turn == PLACE and kept.message.lane in RESTING:
                    self.write(int(seq), kept._replace(turn=None))
        self._touch_all(queue)

    def _reorder(self, queue: str, now_ms: int) -> None:
        """Assign new turns after the queue's group order changed. Undue messages have one only in strict groups."""
        rules = self.rules(queue)
        for seq, kept in [*self.kept.items()]:
            message, turn = kept.message, kept.turn
            if message.queue != queue or turn is None or (turn == PLACE and message.lane is not Lane.READY):
                continue
            if not rules.strict and (message.due_ms or 0) > now_ms:
                self.write(int(seq), kept._replace(turn=None))
            elif turn > PLACE:
                self.write(int(seq), kept._replace(turn=in_line(message, rules, turn)))

    def set_width(self, queue: str, group: str | None, width: int) -> None:
        """Set the width of a group (None: of all groups of the queue); 0 removes it."""
        self._set(self.own_widths, (queue, group), width or None)
        self._refuse(queue)
        self._touch_all(queue)

    def _refuse(self, queue: str) -> None:
        said = self.rules_said(queue)
        own = any(of == queue and group and width != 1 for (of, group), width in self.own_widths.items())
        refuse(queue, self.rules(queue).width, own, said.order, said.on_dead)

    def _touch_all(self, queue: str) -> None:
        self._touched |= {name for name, line in self.groups.items() if name[0] == queue and line.parked}

    def rejoin(self, seq: int, message: Message, before: Before | None, now_ms: int) -> None:
        """Put a redriven message at the end of its group's line; a message that has kept its place keeps it still."""
        old = self.kept[seq]
        if message.group is None or (old.turn == PLACE and old.message.queue == message.queue):
            self.write(seq, StoredMessage(message, turn=old.turn, before=before))
            return
        number = next(self._next_seq)
        message, turn = joined(message, self.rules(message.queue), number, message.due_ms or 0, now_ms)
        self.write(seq, StoredMessage(message, turn=turn, parked_ms=now_ms, before=before))
        self._touched.add((message.queue, message.group or ""))

    def restore(self, message: Message) -> None:
        """Store an imported message at rest, without a turn in its group."""
        self.write(next(self._next_seq), StoredMessage(message, message.faults[-1] if message.faults else None))

    def wake(self, queue: str, limit: int, now_ms: int) -> None:
        """Let up to `limit` waiting messages that are due by now join their groups, the longest due first."""
        for due_ms, seq in self._waiting.get(queue, [])[:limit]:
            if due_ms > now_ms:
                return
            kept = self.kept[seq]
            message, turn = joined(kept.message, self.rules(queue), next(self._next_seq), due_ms, now_ms)
            self.write(seq, StoredMessage(message, turn=turn, parked_ms=now_ms, before=kept.before))
            self._touched.add((queue, message.group or ""))

    def admit(self, now_ms: int) -> None:
        """Give free places to parked messages, in order, in each group that a change has touched."""
        for name in self._touched & self.groups.keys():
            for seq in free_places(self.groups[name], partial(self.width, *name)):
                kept = self.kept[seq]
                message = admitted(kept.message, kept.parked_ms, now_ms)
                self.write(seq, StoredMessage(message, turn=PLACE, before=kept.before))
        self._touched.clear()

    def hold_key(self, task: str, key: str, id: str, until_ms: int) -> None:
        self._set(self._holders, (task, key), Holder(id, until_ms))

    def swap(self, swap: Swap, now_ms: int) -> bool:
        live = self.cell(swap.key, now_ms)
        if (live.version if live else 0) != swap.version:
            return False
        row = self._cells.get(swap.key)
        version = 1 + (row.version if row else self._version_gone)
        if swap.value is None:
            self._forget_cell(swap.key, version)
            return True
        expires_ms = now_ms + swap.ttl_ms if swap.ttl_ms is not None else None
        self._set(self._cells, swap.key, CellRow(version, swap.value, expires_ms))
        if expires_ms is not None:
            heapq.heappush(self._expiring, (expires_ms, swap.key))
        return True

    def _forget_cell(self, key: str, version: int) -> None:
        """Remove a cell. Every new cell gets a version above those of removed ones, so no version is reused."""
        self._version_gone = max(self._version_gone, version)
        self._set(self._cells, key, None)

    def sweep_cells(self, now_ms: int) -> None:
        """Remove up to CELLS_SWEPT cells that have expired."""
        for _ in range(CELLS_SWEPT):
            if not self._expiring or self._expiring[0][0] > now_ms:
                break
            expires_ms, key = heapq.heappop(self._expiring)
            row = self._cells.get(key)
            if row is not None and row.expires_ms == expires_ms:
                self._forget_cell(key, row.version)
        if len(self._expiring) > 2 * len(self._cells) + CELLS_SWEPT:
            rows = self._cells.items()
            self._expiring = [(row.expires_ms, key) for key, row in rows if row.expires_ms is not None]
            heapq.heapify(self._expiring)

    def swap_all(self, swaps: Iterable[Swap], now_ms: int) -> None:
        for swap in swaps:
            if not self.swap(swap, now_ms):
                raise Conflict(
                    f"cell {swap.key!r} is not at version {swap.version}; nothing was written, read it again"
                )

    def sweep(self, now_ms: int) -> None:
        """Remove done messages that have expired, and expired keys whose message was removed."""
        for seq, kept in [*self.kept.items()]:
            if kept.expires_ms is not None and kept.expires_ms < now_ms:
                self.write(int(seq), None)
        for batch, row in [*self.batches.items()]:
            if row.expires_ms is not None and row.expires_ms < now_ms:
                self._set(self.batches, batch, None)
        for name, held in [*self._holders.items()]:
            if held.until_ms <= now_ms and held.id not in self.seqs:
                self._set(self._holders, name, None)

    # -- queries

    def message(self, id: str) -> Message | None:
        seq = self.seqs.get(id)
        return None if seq is None else self.kept[seq].message

    def counts_of(self, batch: str) -> BatchCounts:
        row = self.batches.get(batch)
        return batches.NOTHING if row is None else row.counts

    def held(self, receipt: Receipt) -> Message | None:
        """The message leased under this receipt; None if that is stale. A lease that ran out holds until a claim."""
        kept = self.kept.get(receipt.handle)
        if kept is None or kept.message.lane is not Lane.LEASED or kept.message.fence != receipt.fence:
            return None
        return kept.message

    def key_until(self, task: str, key: str, id: str) -> int | None:
        """Return the time until which the message `id` holds the key at least; None if it does not hold the key."""
        held = self._holders.get((task, key))
        return held.until_ms if held is not None and held.id == id else None

    def free_key(self, task: str, key: str) -> None:
        self._set(self._holders, (task, key), None)

    def key_holder(self, task: str, key: str, now_ms: int) -> PutResult | None:
        """Return the result of a put under this key if a message holds the key; None if the key is free."""
        held = self._holders.get((task, key))
        if held is None:
            return None
        message = self.message(held.id)
        if message is not None and (message.task, message.key) != (task, key):
            message = None  # the holder was removed, and its id reused for this message
        if (message is None or message.lane is Lane.DONE) and held.until_ms <= now_ms:
            return None
        return PutResult(held.id, True, state_of_put(message, now_ms) if message else "done")

    def lines(self, ask: ClaimRequest) -> Iterator[Iterator[DuePlace]]:
        """Yield for each priority the messages that the request may claim now or later, by due time. With `skip` at
        most SKIP_LOOKED are examined; if there are more, the last entry has the due time of the next one and no seq."""
        if not self.rules_said(ask.queue).paused:
            for line in self._lines.get(ask.queue, ()):
                yield self._unskipped(line, ask.skip) if ask.skip else ((due_ms, seq) for due_ms, _, seq in line)

    def retries_due(self, ask: ClaimRequest, now_ms: int) -> Iterator[tuple[int, int]]:
        """Yield (priority, seq) of due messages that failed before, by due time; at most `ask.retries` per priority."""
        if not ask.retries or self.rules_said(ask.queue).paused:
            return
        for priority, line in enumerate(self._retries.get(ask.queue, ())):
            due = (seq for due_ms, seq in line[:SKIP_LOOKED] if due_ms <= now_ms)
            wanted = (seq for seq in due if self.kept[seq].message.task not in ask.skip)
            yield from ((priority, seq) for seq in islice(wanted, ask.retries))

    def _unskipped(self, line: DueLine, skip: frozenset[str]) -> Iterator[DuePlace]:
        for due_ms, _, seq in line[:SKIP_LOOKED]:
            if self.kept[seq].message.task not in skip:
                yield due_ms, seq
        if len(line) > SKIP_LOOKED:
            yield line[SKIP_LOOKED][0], None

    def waiting(self, queue: str) -> Iterator[int]:
        """Yield the due times of messages of the queue that wait to join their groups, in order."""
        if not self.rules_said(queue).paused:
            yield from (due_ms for due_ms, _ in self._waiting.get(queue, ()))

    def rules_said(self, queue: str) -> QueueSettings:
        return self.settings.get(queue, _UNSAID)

    def rules(self, queue: str) -> QueueSettings:
        """Return the settings of the queue, with the width that `configure_group` set for all its groups, if any."""
        said, width = self.rules_said(queue), self.own_widths.get((queue, None))
        return said if width is None else replace(said, width=width)

    def width(self, queue: str, group: str) -> int:
        return self.own_widths.get((queue, group)) or self.rules(queue).width

    def in_line(self) -> int:
        """Return the number of messages in the lines of all queues."""
        return sum(len(line) for lines in self._lines.values() for line in lines)

    def cell(self, key: str, now_ms: int) -> Cell | None:
        row = self._cells.get(key)
        if row is None or (row.expires_ms is not None and row.expires_ms <= now_ms):
            return None
        return Cell(row.version, row.value)

    # -- lines and turns

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((_assign, (table, key, table.get(key))))
        _assign(table, key, value)

    def _place(self, seq: int, kept: StoredMessage | None) -> None:
        old = self.kept.pop(seq, None)
        if old is not None:
            del self.seqs[old.message.id]
            for line, place in self._stand(seq, old):
                del line[bisect_left(line, place)]
            if old.turn is not None:
                self._group(old.message).remove(seq, old.turn)
        if kept is not None:
            self.kept[seq] = kept
            self.seqs[kept.message.id] = seq
            for line, place in self._stand(seq, kept):
                insort(line, place)
            if kept.turn is not None:
                self._group(kept.message).add(seq, kept.turn)
        if old is not None and old.turn is not None:
            name = (old.message.queue, old.message.group or "")
            group = self.groups.get(name)
            if group is not None and not group.taken and not group.parked:
                del self.groups[name]  # remove it, as there may be as many groups as messages

    def _stand(self, seq: int, kept: StoredMessage) -> Iterator[tuple[list[Any], tuple[Any, ...]]]:
        """Yield each sorted list that contains the message of this row, with the message's entry in the list."""
        message = kept.message
        if message.due_ms is None:
            return
        if message.group is None or kept.turn == PLACE:
            yield self._line(message), (message.due_ms, message.lane, seq)
            if message.attempt and message.lane is Lane.READY:
                yield self._of(self._retries, message), (message.due_ms, seq)
        elif kept.turn is None:
            yield self._waiting.setdefault(message.queue, []), (message.due_ms, seq)

    def _group(self, message: Message) -> GroupLine:
        return self.groups.setdefault((message.queue, message.group or ""), GroupLine())

    def _line(self, message: Message) -> DueLine:
        return self._of(self._lines, message)

    def _of(self, lines: dict[str, tuple[list[Any], ...]], message: Message) -> list[Any]:
        if message.queue not in lines:
            lines[message.queue] = tuple([] for _ in PRIORITIES)
        return lines[message.queue][message.priority]


def state_of_put(message: Message, now_ms: int) -> str:
    """Return the state for a PutResult, in which messages without a place in their group are scheduled."""
    return "scheduled" if message.parked else message.state_at(now_ms)


def _seen(message: Message, turn: int | None) -> Message:
    """Return the message as readers see it: `parked` is true if it is ready but has no place in its group, `in_line` if
    it is also in line for one."""
    parked = message.lane is Lane.READY and turn != PLACE
    in_line = parked and turn is not None
    same = (message.parked, message.in_line) == (parked, in_line)
    return message if same else replace(message, parked=parked, in_line=in_line)


def _assign(table: dict[Any, Any], key: Any, value: Any) -> None:
    """Set an entry of the table; the value None removes the entry."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
