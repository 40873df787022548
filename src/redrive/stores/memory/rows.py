"""The memory store's rows for messages, unique keys and cells."""

from __future__ import annotations

from typing import NamedTuple

from ...fault import Fault
from ...message import Before, Message


class StoredMessage(NamedTuple):
    """A stored message, the fault it is indexed by, and its turn in its group: PLACE, a higher one while parked,
    otherwise None. `expires_ms`: when a done one is removed. `alone`: it is leased and runs alone in its process.
    `parked_ms`: since when it is parked. `before`: the fields that a redrive or isolation overwrote."""

    message: Message
    fault: Fault | None = None
    turn: int | None = None
    expires_ms: int | None = None
    alone: bool = False
    parked_ms: int = 0
    before: Before | None = None


class Holder(NamedTuple):
    """The message with a unique key: it has the key until it is done, and at least until `until_ms`."""

    id: str
    until_ms: int


class CellRow(NamedTuple):
    version: int
    value: bytes
    expires_ms: int | None
