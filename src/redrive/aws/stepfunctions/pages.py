"""Pages of dead messages: cut into batches with one wait each, and stored in cells while they wait.

A batch has one wait, so its messages return together: in any T seconds at most rate·T plus one batch.

Step Functions passes at most 256 KiB between states and stores it all in its history, and a receipt cannot restore a
body. So the machine passes a key, and cells hold copies of the messages. The messages themselves are hidden in the
dead-letter queue, and become visible again if a copy is lost.
"""

from __future__ import annotations

import heapq
import math
import zlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ...errors import StoreUnavailable
from ...flow.auto_redrive import AutoRedrive
from ...ids import new_id
from ...message import Isolate, Swap
from ...policy.backoff import draw
from ...store import Cells
from ..redriver import MoveStep, Raw, RedriveStep
from .machine import TASK_S

PART_BYTES = 300 * 1024  # bytes of one cell; DynamoDB stores 400 KB
_WANTED = ("MessageId", "ReceiptHandle", "Body", "Attributes", "MessageAttributes")


class Unit(Struct):
    """Messages that move together: one, or all of a FIFO group."""

    wait_s: int
    steps: list[tuple[Raw, RedriveStep]]

    @property
    def word(self) -> str:
        return "isolate" if all(isinstance(step, Isolate) for _, step in self.steps) else "redrive"


class PageChunk(Struct, frozen=True):
    """The content of a batch: units with one wait. `count` counts its messages; `moves` are those that go back."""

    wait_s: int
    units: Sequence[Unit]

    @property
    def word(self) -> str:
        return self.units[0].word

    @property
    def raws(self) -> list[Raw]:
        return [raw for unit in self.units for raw, _ in unit.steps]

    @property
    def moves(self) -> list[tuple[Raw, MoveStep]]:
        return [(raw, step) for unit in self.units for raw, step in unit.steps if isinstance(step, MoveStep)]


def chunks(units: Sequence[Unit], size: int) -> list[PageChunk]:
    """Group neighbouring units with the same wait and direction, in order, into chunks of up to `size` messages; a unit
    larger than that is one chunk."""
    groups: list[list[Unit]] = []
    for unit in units:
        last = groups[-1] if groups else []
        same = last and (last[0].wait_s, last[0].word) == (unit.wait_s, unit.word)
        if same and sum(len(u.steps) for u in last) + len(unit.steps) <= size:
            last.append(unit)
        else:
            groups.append([unit])
    return [PageChunk(some[0].wait_s, some) for some in groups]


def spaced(parts: Sequence[PageChunk], auto: AutoRedrive, after_s: float) -> list[PageChunk]:
    """Return the chunks in order, each with its wait: spread by jitter, and far enough after the one before to keep the
    rate. The first that goes back does so after `after_s` at the soonest. Poison goes first, without a rate."""
    poison = [chunk for chunk in parts if not chunk.moves]
    waits = sorted(((_jittered_s(chunk, auto), n) for n, chunk in enumerate(parts) if chunk.moves))
    going, free_s = list[PageChunk](), after_s
    for wait_s, n in waits:
        at_s = max(wait_s, free_s)
        going.append(PageChunk(math.floor(at_s), parts[n].units))
        free_s = at_s + gap_s(parts[n], auto)
    return poison + going


def gap_s(chunk: PageChunk, auto: AutoRedrive) -> float:
    """Return the seconds to keep free after a chunk before the next one goes."""
    return len(chunk.moves) / auto.rate


def ends_s(waits_s: Sequence[int], concurrency: int) -> list[int]:
    """Return when each batch's wait ends at the latest, in seconds, if a Map runs `concurrency` at once, in order."""
    free_s = [0] * concurrency
    ends = []
    for wait_s in waits_s:
        end_s = heapq.heappop(free_s) + wait_s
        ends.append(end_s)
        heapq.heappush(free_s, end_s + TASK_S)
    return ends


def _jittered_s(chunk: PageChunk, auto: AutoRedrive) -> float:
    """Return the chunk's wait with the jitter of its first message, in seconds."""
    raw, step = chunk.moves[0]
    return chunk.wait_s * (1 + auto.jitter * (2 * draw(raw["MessageId"], step.attempt, 0) - 1))


class Pages:
    """Batches of messages in cells, by key, each with an expiry."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    def write(self, raws: Sequence[Raw], now_ms: int, ttl_ms: int) -> str:
        """Store the messages of a page in cells; return the page's key. Raises StoreUnavailable."""
        data = msgspec.msgpack.encode([{name: raw[name] for name in _WANTED if name in raw} for raw in raws])
        packed = zlib.compress(data, 1)
        parts = [packed[at : at + PART_BYTES] for at in range(0, len(packed), PART_BYTES)]
        key = f"{len(parts)}/{new_id(now_ms)}"
        for name, part in zip(_names(key), parts, strict=True):
            if not self._cells.swap([Swap(name, 0, part, ttl_ms)], durable=False)[0]:
                raise StoreUnavailable(f"cell {name} could not be written")
        return key

    def read(self, key: str) -> list[Raw]:
        """Return the messages of the page with this key; none if it was removed or has expired."""
        cells = [self._cells.read([name])[0] for name in _names(key)]
        packed = b"".join(cell.value for cell in cells if cell is not None)
        return [] if None in cells else msgspec.msgpack.decode(zlib.decompress(packed), type=list[dict[str, object]])

    def remove(self, key: str) -> None:
        """Remove the cells of a page. A cell that cannot be removed expires."""
        for name in _names(key):
            cell = self._cells.read([name])[0]
            if cell is not None:
                self._cells.swap([Swap(name, cell.version, None)], durable=False)


def _names(key: str) -> list[str]:
    count = key.partition("/")[0]
    return [f"redriver/page/{key}/{n}" for n in range(int(count) if count.isascii() and count.isdigit() else 0)]
