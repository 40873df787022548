"""Tracking records of messages beside SQS (`track=true`), by which messages are found and cancelled: SQS has no lookup.

A record is the cell `sqs/t/ID`. It is written before its message is sent and again by each settlement. A claim only
reads the record, so it does not show if a message is due or runs elsewhere. The holder of a unique key is a cell too
(`keys.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec.structs import replace

from ...errors import StoreUnavailable
from ...message import ABSENT, RESTING, Cancel, Cell, Lane, Message, Swap, version_of
from ...store import Cells
from ..lifecycle import cancelled
from .members import MEMBER
from .wire import RECORD_TTL_MS as TTL_MS

RECORDS, KEYS = "sqs/t/", "sqs/k/"
KEY_TTL_MS = 400 * 86_400_000  # how long the cell of a key lives: longer than the longest wait of a message
CANCELLED_KEPT_MS = 86_400_000  # how long a cancelled message can still be found
UNSENT_MS = 60_000  # a message not marked as sent for this long counts as never sent
SURELY_WAITS_MS = 2000  # a message due later than this surely waits, though clocks differ
TRIES = 8

Left = tuple[Message, Message | None]  # a message before its settlement, and after it (None: it left the store)


class TrackRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The tracking record of a message. Fields may be added but not renamed."""

    task: str
    queue: str
    correlation_id: str
    key: str | None = None
    group: str | None = None
    enqueued_ms: int = 0
    life_ms: int = 0
    due_ms: int = 0
    attempt: int = 0
    crashes: int = 0
    redrives: int = 0
    run: str | None = None
    batch: str | None = None
    member: str | None = None  # its place in the batch
    sent: bool = True
    begun_ms: int = 0  # time just before the message is sent
    cancel: bool = False
    cancelled_ms: int | None = None


class KeyHolder(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The message that holds a key: since `at_ms` (0: it is dead or quarantined), and at least until `until_ms`."""

    id: str
    at_ms: int = 0
    until_ms: int = 0


encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
read_record: Callable[[bytes | str], TrackRecord] = msgspec.json.Decoder(TrackRecord).decode
read_held: Callable[[bytes | str], KeyHolder] = msgspec.json.Decoder(KeyHolder).decode


def key_cell(task: str, key: str) -> str:
    """Return the name of the cell with the holder of this unique key of the task."""
    return KEYS + sha256(f"{len(task)}:{task}{key}".encode()).hexdigest()


def hold_swap(name: str, cell: Cell | None, held: KeyHolder, ttl_ms: int = KEY_TTL_MS) -> Swap:
    return Swap(name, version_of(cell), encode(held), ttl_ms)


def record_of(message: Message, before: TrackRecord | None = None) -> TrackRecord:
    """Return the record of a message; a cancel requested in the record `before` stays requested."""
    return TrackRecord(
        task=message.task,
        queue=message.queue,
        correlation_id=message.correlation_id,
        key=message.key,
        group=message.group,
        enqueued_ms=message.enqueued_ms,
        life_ms=message.life_ms,
        due_ms=message.due_ms or message.enqueued_ms,
        attempt=message.attempt,
        crashes=message.crashes,
        redrives=message.redrives,
        run=message.run,
        batch=message.batch,
        member=message.headers.get(MEMBER),
        begun_ms=before.begun_ms if before else 0,
        cancel=message.cancel or (before is not None and before.cancel),
        cancelled_ms=before.cancelled_ms if before else None,
    )


def message_of(id: str, record: TrackRecord) -> Message:
    """Return the message that a record describes, without its body, which only SQS has."""
    message = Message(
        id=id,
        task=record.task,
        queue=record.queue,
        body=b"",
        content=ABSENT,
        correlation_id=record.correlation_id,
        key=record.key,
        group=record.group,
        enqueued_ms=record.enqueued_ms,
        life_ms=record.life_ms,
        due_ms=record.due_ms,
        attempt=record.attempt,
        crashes=record.crashes,
        redrives=record.redrives,
        run=record.run,
        batch=record.batch,
        headers={MEMBER: record.member} if record.member is not None else {},
        cancel=record.cancel,
    )
    return message if record.cancelled_ms is None else cancelled(message, record.cancelled_ms)


class Track:
    """The tracking records of one store. Thread-safe."""

    def __init__(self, cells: Cells, *, now_ms: Callable[[], int]) -> None:
        self._cells, self._now_ms = cells, now_ms

    def records(self, ids: Sequence[str]) -> dict[str, tuple[TrackRecord, int]]:
        """Return by id the records that exist, each with its version."""
        current = self._cells.read([RECORDS + id for id in ids]) if ids else []
        return {id: (read_record(cell.value), cell.version) for id, cell in zip(ids, current, strict=True) if cell}

    # -- settling

    def asked(self, ids: Sequence[str]) -> set[str]:
        """Return the ids of those messages that someone asked to cancel."""
        return {id for id, (record, _) in self.records(ids).items() if record.cancel}

    def settle(self, left: Sequence[Left]) -> None:
        """Write the records and keys of settled messages, again if other processes change them meanwhile."""
        for _ in range(TRIES):
            swaps = self.changes(left)
            if not swaps or all(self._cells.swap(swaps)):
                return

    def changes(self, left: Sequence[Left]) -> list[Swap]:
        """Return the swaps that write the records and keys of settled messages. Their versions are read now, so all
        swaps apply unless other processes change those cells."""
        now, messages = self._now_ms(), [message for message, _ in left]
        names = [key_cell(m.task, m.key) if m.key is not None else None for m in messages]
        keyed = [name for name in names if name is not None]
        current = self._cells.read([*(RECORDS + m.id for m in messages), *keyed])
        keys = dict(zip(keyed, current[len(messages) :], strict=True))
        swaps = list[Swap]()
        for (message, after), name, cell in zip(left, names, current, strict=False):
            before = read_record(cell.value) if cell else None
            swaps += _record_change(after, message.id, cell, before, now)
            if name is not None:
                swaps += _key_change(after, message.id, name, keys[name], now)
        return swaps

    # -- finding and cancelling

    def find(self, ids: Sequence[str]) -> list[Message | None]:
        """Return each message as its record describes it; None without a record, or if it was probably never sent."""
        now, records = self._now_ms(), self.records(ids)
        by_id = {
            id: message_of(id, record)
            for id, (record, _) in records.items()
            if record.sent or now - record.begun_ms < UNSENT_MS
        }
        return [by_id.get(id) for id in ids]

    def cancel(self, ids: Sequence[str], running: Mapping[str, Message]) -> dict[str, Cancel]:
        """Cancel these messages. `running`: those in this process. A message that may be running is asked to stop; one
        that surely waits is cancelled, though SQS delivers it once more when due."""
        words, left = dict[str, Cancel](), list(dict.fromkeys(ids))
        for _ in range(TRIES):
            now, records, swaps, names = self._now_ms(), self.records(left), list[Swap](), list[str]()
            for id in left:
                record, version = records.get(id, (None, 0))
                if record is None and id in running:
                    record = record_of(running[id])
                words[id] = _word(record, id in running, now)
                if record is not None and words[id] is not Cancel.TOO_LATE and not record.cancel:
                    at_ms = now if words[id] is Cancel.CANCELLED else None
                    flagged = replace(record, cancel=True, cancelled_ms=at_ms)
                    swaps.append(Swap(RECORDS + id, version, encode(flagged), TTL_MS))
                    names.append(id)
            written = self._cells.swap(swaps) if swaps else []
            left = [id for id, won in zip(names, written, strict=True) if not won]
            self._free([(id, records[id][0]) for id in names if id not in left and words[id] is Cancel.CANCELLED])
            if not left:
                return words
        raise StoreUnavailable(f"the records of {len(left)} messages were changed all the time; cancel them again")

    def _free(self, over: Sequence[tuple[str, TrackRecord]]) -> None:
        keyed = [(id, key_cell(record.task, record.key)) for id, record in over if record.key is not None]
        cells = self._cells.read([name for _, name in keyed]) if keyed else []
        now = self._now_ms()
        swaps = [
            swap
            for (id, name), cell in zip(keyed, cells, strict=True)
            for swap in _key_change(None, id, name, cell, now)
        ]
        if swaps:
            self._cells.swap(swaps)


def _word(record: TrackRecord | None, runs_here: bool, now: int) -> Cancel:
    if record is None:
        return Cancel.UNKNOWN
    if record.cancelled_ms is not None:
        return Cancel.TOO_LATE
    waits = not runs_here and record.due_ms > now + SURELY_WAITS_MS and not record.cancel
    return Cancel.CANCELLED if waits else Cancel.REQUESTED


def _record_change(
    left: Message | None, id: str, cell: Cell | None, before: TrackRecord | None, now: int
) -> list[Swap]:
    name, version = RECORDS + id, version_of(cell)
    if left is None or left.lane in RESTING:
        return [] if cell is None else [Swap(name, version, None)]
    record = record_of(left, before)
    if left.lane is not Lane.DONE:
        return [Swap(name, version, encode(record), TTL_MS)]
    record = replace(record, cancel=True, cancelled_ms=record.cancelled_ms or now)
    return [Swap(name, version, encode(record), CANCELLED_KEPT_MS)]


def _key_change(left: Message | None, id: str, name: str, cell: Cell | None, now: int) -> list[Swap]:
    """Return the swap that frees the key of an ended message, unless `key_for_ms` holds that key longer. A dead or
    quarantined message keeps its key, marked so that the message does not count as about to be sent."""
    held = read_held(cell.value) if cell else None
    if held is None or held.id != id or (left is not None and left.lane not in (*RESTING, Lane.DONE)):
        return []
    if left is not None and left.lane in RESTING:
        return [hold_swap(name, cell, replace(held, at_ms=0))]
    if held.until_ms > now:
        return [hold_swap(name, cell, replace(held, at_ms=0), held.until_ms - now)]
    return [Swap(name, version_of(cell), None)]
