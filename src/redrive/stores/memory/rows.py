"""What the memory store keeps of each message, unique key and cell."""

from __future__ import annotations

from typing import NamedTuple

from ...fault import Fault
from ...message import (
    Before,
    Message,
)


class StoredMessage(NamedTuple):
    """A stored message, the fault that brought it to rest, under which it is listed, and its turn in its group: PLACE,
    a higher one while it is parked, else None. `expires_ms`: when a done one is removed. `alone`: it is leased and runs
    alone in its process. `parked_ms`: since when it is parked. `before`: what a redrive or isolation took from it."""

    message: Message
    fault: Fault | None = None
    turn: int | None = None
    expires_ms: int | None = None
    alone: bool = False
    parked_ms: int = 0
    before: Before | None = None


class Holder(NamedTuple):
    """Who holds a unique key: while that message is not done, and at least until `until_ms`."""

    id: str
    until_ms: int


class CellRow(NamedTuple):
    version: int
    value: bytes
    expires_ms: int | None
