"""The memory store's rows for messages, unique keys and cells."""

from __future__ import annotations

from typing import NamedTuple

from ...fault import Fault
from ...message import BatchCounts, Before, Message


class StoredMessage(NamedTuple):
    """A stored message, the fault by which it is indexed, and its turn in its group: PLACE, a higher number while
    parked, otherwise None. `expires_ms`: when a done message is removed. `alone`: True if it runs alone in its process.
    `parked_ms`: when it was parked. `before`: the fields that a redrive or isolation overwrote."""

    message: Message
    fault: Fault | None = None
    turn: int | None = None
    expires_ms: int | None = None
    alone: bool = False
    parked_ms: int = 0
    before: Before | None = None


class Holder(NamedTuple):
    """The message that has a unique key: until the message is done, and at least until `until_ms`."""

    id: str
    until_ms: int


class BatchRow(NamedTuple):
    """The counts of a batch. `changed`: they changed since they were last marked. `expires_ms`: when they are removed,
    unless they change before."""

    counts: BatchCounts
    changed: bool
    expires_ms: int | None = None


class CellRow(NamedTuple):
    version: int
    value: bytes
    expires_ms: int | None
