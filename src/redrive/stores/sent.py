"""The cells that say which redriven messages have left a store for a queue in which none can be looked up, such as SQS.

The store writes a cell as it sends the message; the redrive run reads it, and removes it with the outcome.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..message import Cell


class Sent(Struct, frozen=True, array_like=True):
    """A message that a run moved was sent, at this time."""

    at_ms: int = 0


def sent_cell(run: str, id: str) -> str:
    """The cell of this message in this run."""
    return f"run/{run}/p/{id}"


def read_sent(cell: Cell) -> Sent:
    """The content of such a cell."""
    return msgspec.json.decode(cell.value, type=Sent)
