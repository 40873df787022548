"""What this process holds of SQS: each message that it claimed, by its receipt, and who waits hidden until when."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Sequence

from msgspec import Struct

from ...message import Message, Receipt
from .fifo import Group
from .message_state import Kept
from .queues import Place

VISIBLE_MAX_S = 12 * 3600  # from the receive on, whatever is asked for later
MARGIN_S = 60  # which we stay away from that
HIDDEN_MAX = 10_000  # waiting messages that are remembered, before those whose time has come are forgotten


class Held(Struct):
    """A claimed message, and what it takes to settle it."""

    message: Message
    kept: Kept  # as it was when it was claimed
    place: Place
    handle: str  # SQS's own receipt
    sqs_id: str
    receives: int
    sent_ms: int
    received_ms: int
    until_ms: int
    version: int = 0  # of its record; 0 where there is none
    group: Group | None = None  # of a FIFO queue

    def stays_s(self, now_ms: int) -> int:
        """For how many seconds more SQS may hide it without a further receive."""
        return VISIBLE_MAX_S - MARGIN_S - math.ceil((now_ms - self.received_ms) / 1000)


class Holding:
    """All that one store holds. Any number of threads may use it; `held` is changed under `lock`."""

    def __init__(self) -> None:
        self.held: dict[Receipt, Held] = {}
        self.lock = threading.Lock()
        self._hidden: dict[str, tuple[str, int]] = {}  # by SQS's id: the queue's URL, and until when
        self._hidden_max = HIDDEN_MAX

    def all(self) -> list[Held]:
        with self.lock:
            return [*self.held.values()]

    def is_working(self, now_ms: int) -> bool:
        """Whether the lease of any of it runs."""
        with self.lock:
            return any(held.until_ms > now_ms for held in self.held.values())

    def drop(self, receipts: Sequence[Receipt]) -> list[Held]:
        """Forget these; those of them that were held."""
        with self.lock:
            return [held for receipt in receipts if (held := self.held.pop(receipt, None)) is not None]

    def drop_earlier(self, sqs_id: str) -> None:
        """An earlier delivery of the same message is nobody's any more."""
        with self.lock:
            for receipt in [receipt for receipt, held in self.held.items() if held.sqs_id == sqs_id]:
                del self.held[receipt]

    def drop_handles(self, handles: Collection[str]) -> None:
        """Forget these, by SQS's own receipts."""
        with self.lock:
            for receipt in [receipt for receipt in self.held if receipt.handle in handles]:
                del self.held[receipt]

    # -- who waits hidden

    def hide(self, waiting: Sequence[tuple[Held, int]], now_ms: int) -> None:
        """Each of these was hidden until its time."""
        with self.lock:
            if len(self._hidden) > self._hidden_max:
                self._hidden = {id: one for id, one in self._hidden.items() if one[1] > now_ms}
                self._hidden_max = max(HIDDEN_MAX, 2 * len(self._hidden))  # each is looked at a few times at most
            for held, until_ms in waiting:
                self._hidden[held.sqs_id] = held.place.url, until_ms

    def show(self, sqs_id: str) -> None:
        """It was delivered again."""
        self._hidden.pop(sqs_id, None)

    def hidden_in(self, url: str, now_ms: int) -> int:
        """How many messages of the queue were hidden until a time that has not come."""
        with self.lock:
            self._hidden = {id: one for id, one in self._hidden.items() if one[1] > now_ms}
            return sum(where == url for where, _ in self._hidden.values())
