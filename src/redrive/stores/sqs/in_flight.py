"""The messages in this process: claimed ones by receipt, and in FIFO queues those that wait behind them."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Collection, Sequence

from msgspec import Struct

from ...message import Message, Receipt
from .queues import SqsQueue
from .receive import Received
from .wire import MessageState

VISIBLE_MAX_S = 12 * 3600  # SQS's limit from the receive on, however often it is extended
MARGIN_S = 60  # safety margin below VISIBLE_MAX_S
HIDDEN_MAX = 10_000  # waiting messages remembered before due ones are dropped

GroupKey = tuple[str, str]  # SQS queue's URL, group


class ClaimedMessage(Struct):
    """A claimed message, and the data to settle it."""

    message: Message
    state: MessageState  # the message's state at the claim
    queue: SqsQueue
    handle: str  # SQS's own receipt
    sqs_id: str
    receives: int
    sent_ms: int
    received_ms: int
    until_ms: int
    version: int = 0  # version of its record; 0 without record
    group: GroupKey | None = None  # the message's group in a FIFO queue

    def stays_s(self, now_ms: int) -> int:
        """The seconds for which the message can stay hidden until SQS's limit for this receive."""
        return VISIBLE_MAX_S - MARGIN_S - math.ceil((now_ms - self.received_ms) / 1000)


class InFlightMessages:
    """The claimed and hidden messages of one store. Thread-safe; `held` is changed under `lock`."""

    def __init__(self) -> None:
        self.held: dict[Receipt, ClaimedMessage] = {}
        self.lock = threading.Lock()
        self.fifo = FifoGroups()
        self._hidden: dict[str, tuple[str, int]] = {}  # by SQS's id: URL of the queue, and the end of the hiding
        self._hidden_max = HIDDEN_MAX

    def all(self) -> list[ClaimedMessage]:
        with self.lock:
            return [*self.held.values()]

    def is_working(self, now_ms: int) -> bool:
        """True if any claimed message has a running lease."""
        with self.lock:
            return any(held.until_ms > now_ms for held in self.held.values())

    def drop(self, receipts: Sequence[Receipt]) -> list[ClaimedMessage]:
        """Forget these claims; returns those that were known."""
        with self.lock:
            return [held for receipt in receipts if (held := self.held.pop(receipt, None)) is not None]

    def drop_earlier(self, sqs_id: str) -> None:
        """Forget an earlier delivery of the same message, whose lease is lost."""
        with self.lock:
            for receipt in [receipt for receipt, held in self.held.items() if held.sqs_id == sqs_id]:
                del self.held[receipt]

    def drop_handles(self, handles: Collection[str]) -> None:
        """Forget claims by SQS's own receipts."""
        with self.lock:
            for receipt in [receipt for receipt in self.held if receipt.handle in handles]:
                del self.held[receipt]

    # -- hidden until their time

    def hide(self, waiting: Sequence[tuple[ClaimedMessage, int]], now_ms: int) -> None:
        """Remember until when each of these messages is hidden."""
        with self.lock:
            if len(self._hidden) > self._hidden_max:
                self._hidden = {id: one for id, one in self._hidden.items() if one[1] > now_ms}
                self._hidden_max = max(HIDDEN_MAX, 2 * len(self._hidden))  # bounds how often entries are examined
            for held, until_ms in waiting:
                self._hidden[held.sqs_id] = held.queue.url, until_ms

    def show(self, sqs_id: str) -> None:
        """Forget that a message is hidden, since it was delivered again."""
        self._hidden.pop(sqs_id, None)

    def hidden_in(self, url: str, now_ms: int) -> int:
        """The number of messages of the queue that are hidden until they are due."""
        with self.lock:
            self._hidden = {id: one for id, one in self._hidden.items() if one[1] > now_ms}
            return sum(where == url for where, _ in self._hidden.values())


class FifoGroups:
    """Runs one message of each group of a FIFO queue at a time; others wait behind it, in order.

    SQS delivers several messages of a group at once. Run concurrently, a retry of the first would run after the second.
    While one of a group is in flight, SQS delivers no other of it to anyone.
    """

    def __init__(self) -> None:
        self._behind: dict[GroupKey, deque[Received]] = {}  # waiting messages, by group that has a running one
        self._heads: dict[GroupKey, str] = {}  # by group: SQS's id of the running message
        self._lock = threading.Lock()

    def heads(self, url: str, received: Sequence[Received]) -> list[Received]:
        """The messages that may run now; the others wait. If the running message is delivered again, its lease ran out,
        as did the leases of those behind it, which are delivered again too."""
        heads = []
        with self._lock:
            for one in received:
                group, id = (url, group_of(one)), one.raw["MessageId"]
                if group in self._behind and self._heads[group] != id:
                    self._behind[group].append(one)
                else:
                    self._behind[group], self._heads[group] = deque(), id
                    heads.append(one)
        return heads

    def behind(self, group: GroupKey) -> list[Received]:
        """The messages waiting behind the running one."""
        with self._lock:
            return [*self._behind.get(group, ())]

    def renewed(self, group: GroupKey, until_ms: int) -> None:
        """Record that the waiting messages are hidden until this time."""
        with self._lock:
            line = self._behind.get(group, deque())
            for at, one in enumerate(line):
                line[at] = Received(one.raw, one.at_ms, until_ms)

    def over(self, group: GroupKey) -> list[Received]:
        """End the group's turn; returns its waiting messages in order: to run next if the running message is done, or
        to go back to the queue behind it if it will be delivered again."""
        with self._lock:
            self._heads.pop(group, None)
            return [*self._behind.pop(group, ())]


def group_of(one: Received) -> str:
    """The group of a message of a FIFO queue."""
    return str(one.raw["Attributes"].get("MessageGroupId", ""))
