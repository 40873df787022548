"""Send messages under a record and a unique key (`track=true`).

A message's key is taken and its record written before the message is sent; then the record is marked as sent. If the
process is killed in between, another message may take the key after a minute. If the first message was sent after all
and has not run since, both messages share the key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from enum import Enum, auto

from msgspec.structs import replace

from ...errors import ConfigError, EnqueueError, StoreError, StoreUnavailable
from ...message import Lane, Message, Swap, version_of
from ...store import Cells, Store
from .track import (
    RECORDS,
    TRIES,
    UNSENT_MS,
    KeyHolder,
    Track,
    encode,
    hold_swap,
    key_cell,
    read_held,
    read_record,
    record_of,
)
from .wire import RECORD_TTL_MS as TTL_MS

PATIENCE_S, LOOK_S = 1.0, 0.02  # how long a put waits to see if the holder of its key was sent, and how often it looks

SendResult = str | StoreError | ConfigError | None
SendMessages = Callable[[Sequence[Message]], Sequence[StoreError | ConfigError | None]]


class KeyState(Enum):
    """The state of a unique key; UNSURE while the key's holder may be about to be sent."""

    FREE = auto()
    HELD = auto()
    UNSURE = auto()


class TrackedSends:
    """Sends messages that have a record and may have a unique key. Thread-safe."""

    def __init__(
        self,
        track: Track,
        cells: Cells,
        triage: Store | None,
        *,
        now_ms: Callable[[], int],
        failpoint: Callable[[str], None],
    ) -> None:
        self._track, self._cells, self._triage, self._now_ms, self._failpoint = track, cells, triage, now_ms, failpoint

    def put(
        self,
        messages: Sequence[Message],
        send: SendMessages,
        *,
        keys_for_ms: Sequence[int] = (),
        ending: Collection[str] = (),
        keyed: bool = True,
    ) -> list[SendResult]:
        """Send messages. Returns for each None, the id of another message that holds its key, or its error; after an
        error the message holds no key.

        A key counts as free if its holder is in `ending`. Raises StoreError if the cells are unreachable: then no more
        messages were sent.
        """
        results: list[SendResult] = [None] * len(messages)
        first: dict[str, int] = {}
        twins: list[tuple[int, int]] = []
        for at, message in enumerate(messages):
            if keyed and message.key is not None:
                before = first.setdefault(key_cell(message.task, message.key), at)
                if before != at:
                    twins.append((at, before))
        left = sorted({*range(len(messages))} - {at for at, _ in twins})
        cell_of = {at: cell for cell, at in first.items()}
        begun, end_s = set[int](), time.monotonic() + PATIENCE_S
        while left:
            going, waiting = self._begin(messages, left, cell_of, keys_for_ms, ending, results, begun)
            if going:
                self._send([messages[at] for at in going], going, send, results)
            if waiting and time.monotonic() > end_s:
                self.forget([messages[at] for at in waiting if at in begun])
                for at in waiting:
                    results[at] = StoreUnavailable(
                        f"another message of task {messages[at].task!r} took the key {messages[at].key!r} just now, "
                        "and it is not known whether it was sent; try again: within a minute it is, or the key is free"
                    )
                break
            if waiting:
                time.sleep(LOOK_S)
            left = waiting
        self.forget([messages[at] for at in begun if isinstance(results[at], str)], keys=False)
        for at, before in twins:
            results[at] = messages[before].id if results[before] is None else results[before]
        return results

    def _begin(
        self,
        messages: Sequence[Message],
        left: Sequence[int],
        cell_of: dict[int, str],
        keys_for_ms: Sequence[int],
        ending: Collection[str],
        results: list[SendResult],
        begun: set[int],
    ) -> tuple[list[int], list[int]]:
        """Take keys and write records; returns the positions of messages to send, and of those whose key is unsure."""
        now, keyed = self._now_ms(), [at for at in left if at in cell_of]
        current = self._cells.read([RECORDS + messages[at].id for at in left] + [cell_of[at] for at in keyed])
        own = dict(zip(left, current, strict=False))
        holds = dict(zip(keyed, current[len(left) :], strict=True))
        words = self._words({at: read_held(cell.value) for at, cell in holds.items() if cell}, messages, ending, now)
        going, waiting, swaps = list[int](), list[int](), list[Swap]()
        takes: list[int] = []
        for at in left:
            message, cell = messages[at], holds.get(at)
            if words.get(at) is KeyState.UNSURE:
                waiting.append(at)
            elif words.get(at) is KeyState.HELD and cell is not None:
                results[at] = read_held(cell.value).id
            else:
                going.append(at)
                if at in cell_of and (cell is None or read_held(cell.value).id != message.id):
                    until_ms = now + keys_for_ms[at] if keys_for_ms and keys_for_ms[at] else 0
                    takes.append(at)
                    swaps.append(hold_swap(cell_of[at], cell, KeyHolder(message.id, now, until_ms)))
        for at in going:
            cell = own[at]
            before = read_record(cell.value) if cell else None
            record = replace(record_of(messages[at], before), sent=False, begun_ms=now)
            swaps.append(Swap(RECORDS + messages[at].id, version_of(cell), encode(record), TTL_MS))
        if going:
            self._failpoint("track")
            words_of = self._cells.swap(swaps)
            self._failpoint("tracked")
            begun.update(going)
            lost = {at for at, won in zip(takes, words_of, strict=False) if not won}
            waiting += [at for at in going if at in lost]
            going = [at for at in going if at not in lost]
        return going, waiting

    def _words(
        self, holds: dict[int, KeyHolder], messages: Sequence[Message], ending: Collection[str], now: int
    ) -> dict[int, KeyState]:
        """The states of these keys. A message holds its key while it waits, runs or is dead, and until `until_ms`."""
        ids = [hold.id for hold in holds.values()]
        records = self._track.records(ids) if ids else {}
        unknown = [id for id in ids if id not in records or not records[id][0].sent]
        rows = self._triage.find(unknown) if unknown and self._triage is not None else [None] * len(unknown)
        resting = {row.id for row in rows if row is not None and row.lane is not Lane.DONE}
        words = {}
        for at, hold in holds.items():
            record = records[hold.id][0] if hold.id in records else None
            since_ms = hold.at_ms if record is None else record.begun_ms
            if hold.id in resting:
                words[at] = KeyState.HELD
            elif record.sent if record is not None else hold.at_ms == 0:  # the holder was sent, and may be done
                works = record is not None and record.cancelled_ms is None and hold.id not in ending
                words[at] = KeyState.HELD if works or hold.until_ms > now else KeyState.FREE
            elif hold.id == messages[at].id or now - since_ms >= UNSENT_MS:
                words[at] = KeyState.FREE
            else:
                words[at] = KeyState.UNSURE
        return words

    def _send(
        self, messages: Sequence[Message], ats: Sequence[int], send: SendMessages, results: list[SendResult]
    ) -> None:
        try:
            errors = send(messages)
        except Exception:
            self.forget(messages)
            raise
        self._failpoint("mark")
        for at, error in zip(ats, errors, strict=True):
            results[at] = error
        self.forget([message for message, error in zip(messages, errors, strict=True) if error is not None])
        with suppress(StoreError):  # the message was sent, and the next settlement marks it
            self._mark([message.id for message, error in zip(messages, errors, strict=True) if error is None])

    def _mark(self, ids: Sequence[str]) -> None:
        for _ in range(TRIES):
            todo = (
                [(id, *stored) for id, stored in self._track.records(ids).items() if not stored[0].sent] if ids else []
            )
            swaps = [Swap(RECORDS + id, n, encode(replace(one, sent=True)), TTL_MS) for id, one, n in todo]
            if not swaps or all(self._cells.swap(swaps)):
                return

    def forget(self, messages: Sequence[Message], *, keys: bool = True) -> None:
        """Remove the records of messages that were not sent, and with `keys` free their keys, best effort."""
        if not messages:
            return
        with suppress(StoreError):
            records = self._track.records([message.id for message in messages])
            swaps = [Swap(RECORDS + id, n, None) for id, (record, n) in records.items() if not record.sent]
            if keys:
                keyed = [(key_cell(m.task, m.key), m.id) for m in messages if m.key is not None]
                cells = self._cells.read([cell for cell, _ in keyed])
                swaps += [
                    Swap(name, cell.version, None)
                    for (name, id), cell in zip(keyed, cells, strict=True)
                    if cell is not None and read_held(cell.value).id == id
                ]
            self._cells.swap(swaps)

    def refuse_known(self, messages: Sequence[Message]) -> None:
        """Raise EnqueueError if a message with the id of one of these exists."""
        if not messages:
            return
        ids = [message.id for message in messages]
        known = {id for id, (record, _) in self._track.records(ids).items() if record.sent}
        rows = self._triage.find(ids) if self._triage is not None else []
        known |= {row.id for row in rows if row is not None}
        keyed = [m for m in messages if m.id in known and m.key is not None]
        cells = self._cells.read([key_cell(m.task, m.key or "") for m in keyed])
        same = {m.id for m, cell in zip(keyed, cells, strict=True) if cell and read_held(cell.value).id == m.id}
        for id in ids:
            if id in known - same:
                raise EnqueueError(f"message {id} is there already; nothing was sent")

    # -- keys of dead letters

    def blocked(self, messages: Sequence[Message], *, by_others_than: Collection[str] = ()) -> dict[str, str]:
        """By id, the messages whose key another one holds, and that one's id. Holders in `by_others_than` do not
        count."""
        keyed = {at: message for at, message in enumerate(messages) if message.key is not None}
        cells = self._cells.read([key_cell(m.task, m.key or "") for m in keyed.values()])
        holds = {at: read_held(cell.value) for at, cell in zip(keyed, cells, strict=True) if cell}
        words = self._words(holds, messages, by_others_than, self._now_ms())
        return {
            messages[at].id: holds[at].id
            for at, word in words.items()
            if word is not KeyState.FREE and holds[at].id not in {messages[at].id, *by_others_than}
        }

    def hand_over(self, messages: Sequence[Message], *, key_for_ms: int = 0) -> None:
        """Make each message the holder of its key, for `key_for_ms` at least. A later expiry of the key stays."""
        for message in messages:
            if message.key is None:
                continue
            name, now = key_cell(message.task, message.key), self._now_ms()
            for _ in range(TRIES):
                (cell,) = self._cells.read([name])
                before = read_held(cell.value).until_ms if cell else 0
                until_ms = max(before, now + key_for_ms if key_for_ms else 0)
                if self._cells.swap([hold_swap(name, cell, KeyHolder(message.id, 0, until_ms))])[0]:
                    break
