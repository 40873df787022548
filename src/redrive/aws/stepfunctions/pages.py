"""Messages that wait in a state machine, laid in cells: Step Functions passes 256 KiB between states, keeps all of it
in its history, and a receipt alone does not bring a body back.

What lies here is a copy. The message itself is in the dead-letter queue, hidden, and comes again if this one is lost.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from ...errors import StoreUnavailable
from ...ids import new_id
from ...message import Swap
from ...store import Cells
from ..redriver.moving import Raw

PART_BYTES = 300 * 1024  # of a cell; DynamoDB keeps 400 KB
_WANTED = ("MessageId", "ReceiptHandle", "Body", "Attributes", "MessageAttributes")


class Pages:
    """Batches of messages by key, each for as long as it may be needed."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    def write(self, raws: Sequence[Raw], now_ms: int, ttl_ms: int) -> str:
        """Keep them; the key. Raises StoreUnavailable."""
        data = msgspec.msgpack.encode([{name: raw[name] for name in _WANTED if name in raw} for raw in raws])
        packed = zlib.compress(data, 1)
        parts = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
        key = f"{len(parts)}/{new_id(now_ms)}"
        for name, part in zip(_names(key), parts, strict=True):
            if not self._cells.swap([Swap(name, 0, part, ttl_ms)], durable=False)[0]:
                raise StoreUnavailable(f"cell {name} could not be written")
        return key

    def read(self, key: str) -> list[Raw]:
        """What lies there; nothing where it was removed, or its time is over."""
        cells = [self._cells.read([name])[0] for name in _names(key)]
        found = b"".join(cell.value for cell in cells if cell is not None)
        return [] if None in cells else msgspec.msgpack.decode(zlib.decompress(found), type=list[dict[str, object]])

    def remove(self, key: str) -> None:
        """What cannot be removed goes when its time is over."""
        for name in _names(key):
            cell = self._cells.read([name])[0]
            if cell is not None:
                self._cells.swap([Swap(name, cell.version, None)], durable=False)


def _names(key: str) -> list[str]:
    count = key.partition("/")[0]
    return [f"redriver/page/{key}/{n}" for n in range(int(count) if count.isascii() and count.isdigit() else 0)]
