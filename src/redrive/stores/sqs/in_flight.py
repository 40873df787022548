"""The messages that this process has received: claimed ones by receipt, in FIFO queues those waiting behind them."""

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

VISIBLE_MAX_S = 12 * 3600  # how long SQS hides a message from its receive on, however often that is extended
MARGIN_S = 60  # how far redrive stays below VISIBLE_MAX_S
HIDDEN_MAX = 10_000  # number of hidden messages above which those due by now are forgotten

GroupKey = tuple[str, str]  # SQS queue's URL, group


class ClaimedMessage(Struct):
    """A claimed message, and the data with which it is settled."""

    message: Message
    state: MessageState  # the message's state at the claim
    queue: SqsQueue
    handle: str  # SQS's own receipt
    sqs_id: str
    receives: int
    sent_ms: int
    received_ms: int
    until_ms: int
    version: int = 0  # version of the message's record; 0 if it has none
    group: GroupKey | None = None  # the message's group in a FIFO queue

    def stays_s(self, now_ms: int) -> int:
        """Return for how many seconds from `now_ms` the message can stay hidden, given SQS's limit for one receive."""
        return VISIBLE_MAX_S - MARGIN_S - math.ceil((now_ms - self.received_ms) / 1000)


class InFlightMessages:
    """The claimed and the hidden messages of one store. Thread-safe; `held` may be changed only under `lock`."""

    lock: threading.Lock

    def __init__(self) -> None:
        self.held: dict[Receipt, ClaimedMessage] = {}
        self.lock = threading.Lock()
        self.fifo: FifoGroups = FifoGroups()
        self._hidden: dict[str, tuple[str, int]] = {}  # by SQS's id: the queue's URL, and when the hiding ends
        self._hidden_max = HIDDEN_MAX

    def all(self) -> list[ClaimedMessage]:
        with self.lock:
            return [*self.held.values()]

    def is_working(self, now_ms: int) -> bool:
        """True if any claimed message has a lease that has not run out."""
        with self.lock:
            return any(held.until_ms > now_ms for held in self.held.values())

    def drop(self, receipts: Sequence[Receipt]) -> list[ClaimedMessage]:
        """Forget the claims with these receipts; returns those that were known."""
        with self.lock:
            return [held for receipt in receipts if (held := self.held.pop(receipt, None)) is not None]

    def drop_earlier(self, sqs_id: str) -> None:
        """Forget the claims of a message that was delivered again, as their leases are lost."""
        with self.lock:
            for receipt in [receipt for receipt, held in self.held.items() if held.sqs_id == sqs_id]:
                del self.held[receipt]

    def drop_handles(self, handles: Collection[str]) -> None:
        """Forget the claims with these receipts of SQS."""
        with self.lock:
            for receipt in [receipt for receipt in self.held if receipt.handle in handles]:
                del self.held[receipt]

    # -- messages hidden until they are due

    def hide(self, waiting: Sequence[tuple[ClaimedMessage, int]], now_ms: int) -> None:
        """Remember until when each of these messages is hidden. If there are many, forget those due by now."""
        with self.lock:
            if len(self._hidden) > self._hidden_max:
                self._hidden = {id: one for id, one in self._hidden.items() if one[1] > now_ms}
                self._hidden_max = max(HIDDEN_MAX, 2 * len(self._hidden))  # bounds how often the entries are examined
            for held, until_ms in waiting:
                self._hidden[held.sqs_id] = held.queue.url, until_ms

    def show(self, sqs_id: str) -> None:
        """Forget that the message with this id of SQS is hidden, since it was delivered again."""
        self._hidden.pop(sqs_id, None)

    def hidden_in(self, url: str, now_ms: int) -> int:
        """Return the number of the queue's messages that are hidden until they are due, and forget those due by now."""
        with self.lock:
            self._hidden = {id: one for id, one in self._hidden.items() if one[1] > now_ms}
            return sum(where == url for where, _ in self._hidden.values())


class FifoGroups:
    """Runs one message of each group of a FIFO queue at a time; others wait behind it, in order.

    SQS delivers several messages of a group at once. Run concurrently, a retry of the first would run after the second.
    While one message of a group is in flight, SQS delivers no others of that group to anyone.
    """

    def __init__(self) -> None:
        self._behind: dict[GroupKey, deque[Received]] = {}  # by group with a running message: the messages behind it
        self._heads: dict[GroupKey, str] = {}  # by group: SQS's id of its running message
        self._lock = threading.Lock()

    def heads(self, url: str, received: Sequence[Received]) -> list[Received]:
        """Return the messages that may run now; the others wait. If a group's running message is delivered again, its
        lease ran out, as did those of the messages behind it, which SQS delivers again too."""
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
        """The messages that wait behind the running message of the group."""
        with self._lock:
            return [*self._behind.get(group, ())]

    def renewed(self, group: GroupKey, until_ms: int) -> None:
        """Record that the messages waiting in the group are hidden until `until_ms`."""
        with self._lock:
            line = self._behind.get(group, deque())
            for at, one in enumerate(line):
                line[at] = Received(one.raw, one.at_ms, until_ms)

    def over(self, group: GroupKey) -> list[Received]:
        """End the group's turn; returns its waiting messages in order: to run next if the running message is done, or
        to go back to the queue if that message will be delivered again."""
        with self._lock:
            self._heads.pop(group, None)
            return [*self._behind.pop(group, ())]


def group_of(one: Received) -> str:
    """Return the group of a message received from a FIFO queue; empty if it has none."""
    return str(one.raw["Attributes"].get("MessageGroupId", ""))
