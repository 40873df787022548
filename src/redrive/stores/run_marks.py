"""Marks of a redrive run in cells, for messages outside the triage store.

`run/RUN/p/ID` marks a message that has been sent to SQS. SQS cannot look up a message, so a run that does not find a
message reads the mark. `run/RUN/v/ID` is the outcome of the message's first run (`worker/redrive_outcome.py`).
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..message import Cell, Swap

SENT_TTL_MS = 30 * 86_400_000  # a mark lasts longer than every redrive run that reads it


class SentMark(Struct, frozen=True, array_like=True):
    """The record that a message moved by a redrive run was sent to SQS at `at_ms`."""

    at_ms: int = 0


def sent_cell(run: str, id: str) -> str:
    """Return the key of the cell that marks a message of a redrive run as sent."""
    return f"run/{run}/p/{id}"


def sent_swap(run: str, id: str, now_ms: int) -> Swap:
    """Return the swap that marks a message of a redrive run as sent at `now_ms`."""
    return Swap(sent_cell(run, id), 0, msgspec.json.encode(SentMark(now_ms)), SENT_TTL_MS)


def read_sent(cell: Cell) -> SentMark:
    return msgspec.json.decode(cell.value, type=SentMark)


def is_verdict(swap: Swap) -> bool:
    """True if the swap writes the outcome of a redriven message's first execution. The first writer wins."""
    return swap.version == 0 and swap.key.startswith("run/") and "/v/" in swap.key
