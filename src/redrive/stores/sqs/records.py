"""The record of a message beside SQS (`sqs/m/SQS-ID`), and what was received as it is with its own.

It is read only for what was delivered before, together with the cells of what is tracked (`track.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from ...codec import Routes
from ...errors import ConfigError, StoreError
from ...message import Ask, Cell, Swap, version_of
from ...store import Cells
from .deletes import End
from .envelope import read
from .fifo import group_of
from .in_flight import Held
from .message_state import (
    RECORD_TTL_MS,
    Kept,
    decode,
    record_of,
    revived,
    with_kept,
)
from .queues import Place
from .receive import Received
from .track import RECORDS as TRACKS

RECORDS = "sqs/m/"


class Records:
    """The records of one store. Without `cells` there are none."""

    def __init__(self, cells: Cells | None, routes: Routes, *, now_ms: Callable[[], int]) -> None:
        self._cells, self._routes, self._now_ms = cells, routes, now_ms

    def of(self, received: Sequence[Received], tracked: str | None = None) -> dict[str, Cell]:
        """The records of those that were delivered before, by SQS's id; with `tracked`, the queue that was asked for,
        also the cells of what is tracked of each, by their keys."""
        if self._cells is None:
            return {}
        names = {one.raw["MessageId"]: RECORDS + one.raw["MessageId"] for one in received if is_again(one)}
        if tracked is not None:
            ids = (read(one.raw, queue=tracked, routes=self._routes)[0].id for one in received)
            names |= {(key := TRACKS + id): key for id in ids}
        found = self._cells.read([*names.values()]) if names else []
        return {id: cell for id, cell in zip(names, found, strict=True) if cell is not None}

    def held(self, place: Place, one: Received, ask: Ask, record: Cell | None) -> Held:
        """What was received, with its record."""
        message, kept = read(one.raw, queue=ask.queue, routes=self._routes)
        if kept.reason is not None:  # a dead letter that a move task brought back
            kept = revived(kept, int(one.raw["Attributes"]["SentTimestamp"]))
            message = with_kept(message, kept)
        version = 0
        if record is not None:
            kept, version = decode(record.value), record.version
            message = with_kept(message, kept)
        return Held(
            message=message,
            kept=kept,
            place=place,
            handle=one.raw["ReceiptHandle"],
            sqs_id=one.raw["MessageId"],
            receives=int(one.raw["Attributes"]["ApproximateReceiveCount"]),
            sent_ms=int(one.raw["Attributes"]["SentTimestamp"]),
            received_ms=one.at_ms,
            until_ms=one.until_ms,
            version=version,
            group=(place.url, group_of(one)) if place.fifo else None,
        )

    def write(self, held: Held, kept: Kept) -> bool:
        """Whether this is its record now."""
        if self._cells is None:
            return False
        swap = record_swap(held, kept)
        if not self._cells.swap([swap])[0]:
            return False
        held.kept, held.version = kept, version_of(self._cells.read([swap.key])[0])
        return True

    def mark_alone(self, held: Held) -> None:
        """It runs with no other beside it."""
        kept = held.kept
        if self._cells is not None and kept.alone < held.receives:
            before = kept.alone > kept.receives  # that run ended as a crash: this one is another
            self.write(held, replace(kept, alone=held.receives, crashes_alone=kept.crashes_alone + before))

    def given_back(self, place: Place, received: Sequence[Received]) -> list[End]:
        """What it takes to let others have what was received and never claimed, at once; where there are cells, no
        attempt is lost."""
        if not received:
            return []
        if self._cells is not None:
            ask = Ask(place.queue, 1, 0)
            with suppress(StoreError, ConfigError):  # then they count a crash more than they had
                records = self.of(received)
                holding = [self.held(place, one, ask, records.get(one.raw["MessageId"])) for one in received]
                self._cells.swap([record_swap(held, replace(held.kept, receives=held.receives)) for held in holding])
        now = self._now_ms()
        return [End(place.url, one.raw["ReceiptHandle"], one.until_ms, until_ms=now) for one in received]


def is_again(one: Received) -> bool:
    """Whether it was delivered before."""
    return bool(one.raw["Attributes"]["ApproximateReceiveCount"] != "1")


def record_swap(held: Held, kept: Kept) -> Swap:
    """What writes its record."""
    return Swap(RECORDS + held.sqs_id, held.version, record_of(kept), RECORD_TTL_MS)
