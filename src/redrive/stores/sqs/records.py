"""The state of a message in a cell beside SQS (`sqs/m/SQS-ID`), and received messages with their state.

A record is read only for a message that was delivered before, together with records of tracked messages (`track.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from ...codec import Routes
from ...errors import ConfigError, StoreError, Unsupported
from ...message import Cell, ClaimRequest, Swap, version_of
from ...store import Cells
from .cells import NO_CELLS
from .deletes import End
from .in_flight import ClaimedMessage, group_of
from .queues import SqsQueue
from .receive import Received
from .track import RECORDS as TRACKS
from .wire import RECORD_TTL_MS, MessageState, decode, read, record_of, revived, with_state

RECORDS = "sqs/m/"


class Records:
    """The records of one store; none without `cells`."""

    def __init__(self, cells: Cells | None, routes: Routes, *, now_ms: Callable[[], int]) -> None:
        self._cells, self._routes, self._now_ms = cells, routes, now_ms

    def of(self, received: Sequence[Received], tracked: str | None = None) -> dict[str, Cell]:
        """The records of messages that were delivered before, by SQS's id. With `tracked`, the requested
        queue, also the tracking records of all messages, by cell name."""
        if self._cells is None:
            return {}
        names = {one.raw["MessageId"]: RECORDS + one.raw["MessageId"] for one in received if is_again(one)}
        if tracked is not None:
            ids = (read(one.raw, queue=tracked, routes=self._routes)[0].id for one in received)
            names |= {(key := TRACKS + id): key for id in ids}
        current = self._cells.read([*names.values()]) if names else []
        return {id: cell for id, cell in zip(names, current, strict=True) if cell is not None}

    def held(self, queue: SqsQueue, one: Received, ask: ClaimRequest, record: Cell | None) -> ClaimedMessage:
        """The claim of a received message, with the state in its record."""
        message, state = read(one.raw, queue=ask.queue, routes=self._routes)
        if state.reason is not None:  # a dead letter that a move task returned
            state = revived(state, int(one.raw["Attributes"]["SentTimestamp"]))
            message = with_state(message, state)
        version = 0
        if record is not None:
            state, version = decode(record.value), record.version
            message = with_state(message, state)
        return ClaimedMessage(
            message=message,
            state=state,
            queue=queue,
            handle=one.raw["ReceiptHandle"],
            sqs_id=one.raw["MessageId"],
            receives=int(one.raw["Attributes"]["ApproximateReceiveCount"]),
            sent_ms=int(one.raw["Attributes"]["SentTimestamp"]),
            received_ms=one.at_ms,
            until_ms=one.until_ms,
            version=version,
            group=(queue.url, group_of(one)) if queue.fifo else None,
        )

    def write(self, held: ClaimedMessage, state: MessageState) -> bool:
        """Write the record; False if another process was faster."""
        if self._cells is None:
            return False
        swap = record_swap(held, state)
        if not self._cells.swap([swap])[0]:
            return False
        held.state, held.version = state, version_of(self._cells.read([swap.key])[0])
        return True

    def checkpoint(self, held: ClaimedMessage | None, progress: bytes) -> bool:
        """Like `Store.checkpoint`. Raises Unsupported without cells."""
        if self._cells is None:
            raise Unsupported(f"a checkpoint needs a place to be kept. {NO_CELLS}")
        if held is None or not self.write(held, replace(held.state, progress=progress)):
            return False
        held.message = replace(held.message, progress=progress)
        return True

    def mark_alone(self, held: ClaimedMessage) -> None:
        """Record that the message runs alone."""
        state = held.state
        if self._cells is not None and state.alone < held.receives:
            before = state.alone > state.receives  # that run crashed: this is another
            self.write(held, replace(state, alone=held.receives, crashes_alone=state.crashes_alone + before))

    def given_back(self, queue: SqsQueue, received: Sequence[Received]) -> list[End]:
        """Give back messages that were received and not claimed: returns the ends that make them visible at once. With
        cells, this costs no attempt."""
        if not received:
            return []
        if self._cells is not None:
            ask = ClaimRequest(queue.name, 1, 0)
            with suppress(StoreError, ConfigError):  # if this fails, each message counts one crash too many
                records = self.of(received)
                in_flight = [self.held(queue, one, ask, records.get(one.raw["MessageId"])) for one in received]
                self._cells.swap([record_swap(held, replace(held.state, receives=held.receives)) for held in in_flight])
        now = self._now_ms()
        return [End(queue.url, one.raw["ReceiptHandle"], one.until_ms, until_ms=now) for one in received]


def is_again(one: Received) -> bool:
    """True if the message was delivered before."""
    return bool(one.raw["Attributes"]["ApproximateReceiveCount"] != "1")


def record_swap(held: ClaimedMessage, state: MessageState) -> Swap:
    """The swap that writes the record."""
    return Swap(RECORDS + held.sqs_id, held.version, record_of(state), RECORD_TTL_MS)
