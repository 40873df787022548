"""The state of a message in a cell beside SQS (`sqs/m/SQS-ID`), and received messages with their state.

A record is read only for a message that was delivered before. Tracking records (`track.py`) are read with it.
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
from .wire import RECORD_TTL_MS, MessageState, decode, read, record_of, revived, unclaimed, with_state

RECORDS = "sqs/m/"


class Records:
    """The records of one store's messages. Without `cells` there are none."""

    def __init__(self, cells: Cells | None, routes: Routes, *, now_ms: Callable[[], int]) -> None:
        self._cells, self._routes, self._now_ms = cells, routes, now_ms

    @property
    def keeps(self) -> bool:
        return self._cells is not None

    def of(self, received: Sequence[Received], tracked: str | None = None) -> dict[str, Cell]:
        """Return by SQS's id the records of messages that were delivered before. If `tracked` is given, the queue asked
        for, also return by cell name the tracking records of all messages."""
        if self._cells is None:
            return {}
        names = {one.raw["MessageId"]: RECORDS + one.raw["MessageId"] for one in received if is_again(one)}
        if tracked is not None:
            ids = (read(one.raw, queue=tracked, routes=self._routes)[0].id for one in received)
            names |= {(key := TRACKS + id): key for id in ids}
        current = self._cells.read([*names.values()]) if names else []
        return {id: cell for id, cell in zip(names, current, strict=True) if cell is not None}

    def held(self, queue: SqsQueue, one: Received, ask: ClaimRequest, record: Cell | None) -> ClaimedMessage:
        """Return the claim of a received message, with the message's state from `record` if there is one."""
        message, state = read(one.raw, queue=ask.queue, routes=self._routes)
        if state.reason is not None:  # a dead letter that a move task put back into the queue
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
        """Write the state to a claimed message's record; False without cells or if another process changed it."""
        if self._cells is None:
            return False
        swap = record_swap(held, state)
        if not self._cells.swap([swap])[0]:
            return False
        held.state, held.version = state, version_of(self._cells.read([swap.key])[0])
        return True

    def checkpoint(self, held: ClaimedMessage | None, progress: bytes) -> bool:
        """Store a checkpoint as `Store.checkpoint` does. Raises Unsupported without cells."""
        if self._cells is None:
            raise Unsupported(f"a checkpoint needs a place to be kept. {NO_CELLS}")
        if held is None or not self.write(held, replace(held.state, progress=progress)):
            return False
        held.message = replace(held.message, progress=progress)
        return True

    def mark_alone(self, held: ClaimedMessage) -> None:
        """Write to the record that the message now runs alone, unless it is written."""
        state = held.state
        if self._cells is not None and state.alone < held.receives:
            before = state.alone > state.receives  # the run marked before crashed, as this is a later one
            self.write(held, replace(state, alone=held.receives, crashes_alone=state.crashes_alone + before))

    def given_back(self, queue: SqsQueue, received: Sequence[Received]) -> list[End]:
        """Return ends that make these messages, received but not claimed, visible at once. With cells, it also writes
        records so that this costs no attempt."""
        if not received:
            return []
        if self._cells is not None:
            ask = ClaimRequest(queue.name, 1, 0)
            with suppress(StoreError, ConfigError):  # otherwise each message counts one crash too many
                records = self.of(received)
                in_flight = [self.held(queue, one, ask, records.get(one.raw["MessageId"])) for one in received]
                self._cells.swap([record_swap(held, unclaimed(held.state, held.receives)) for held in in_flight])
        now = self._now_ms()
        return [End(queue.url, one.raw["ReceiptHandle"], one.until_ms, until_ms=now) for one in received]


def is_again(one: Received) -> bool:
    """True if SQS delivered the message before this time too."""
    return bool(one.raw["Attributes"]["ApproximateReceiveCount"] != "1")


def record_swap(held: ClaimedMessage, state: MessageState) -> Swap:
    """Return the swap that writes the state to the record of a claimed message."""
    return Swap(RECORDS + held.sqs_id, held.version, record_of(state), RECORD_TTL_MS)
