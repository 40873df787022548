"""Pages of dead messages: cut into batches with one wait each, and stored in cells while they wait.

A batch has one wait, so its messages come back together: in any T seconds rate·T of them, and a batch more.

Step Functions passes at most 256 KiB between states and keeps all of it in its history, and a receipt alone cannot
bring a body back. So the machine passes a key, and the messages are in cells. They are copies: the messages themselves
are in the dead-letter queue, hidden, and come again if a copy is lost.
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

PART_BYTES = 300 * 1024  # of a cell; DynamoDB keeps 400 KB
_WANTED = ("MessageId", "ReceiptHandle", "Body", "Attributes", "MessageAttributes")


class Unit(Struct):
    """Messages that go together: one, or all of a FIFO group."""

    wait_s: int
    steps: list[tuple[Raw, RedriveStep]]

    @property
    def word(self) -> str:
        return "isolate" if all(isinstance(step, Isolate) for _, step in self.steps) else "redrive"


class PageChunk(Struct, frozen=True):
    """What becomes a batch: units with one wait. `count` is of its messages, `moves` of those that go back."""

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
    """Units that have one wait and go the same way, in order, of up to so many messages; a larger unit by itself."""
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
    """The chunks in the order in which they go, each with its wait: spread by its jitter, and so far behind the one
    before it that the rate holds. The first goes back in `after_s` at the soonest. Poison goes first, without a
    rate."""
    poison = [chunk for chunk in parts if not chunk.moves]
    waits = sorted(((_jittered_s(chunk, auto), n) for n, chunk in enumerate(parts) if chunk.moves))
    going, free_s = list[PageChunk](), after_s
    for wait_s, n in waits:
        at_s = max(wait_s, free_s)
        going.append(PageChunk(math.floor(at_s), parts[n].units))
        free_s = at_s + gap_s(parts[n], auto)
    return poison + going


def gap_s(chunk: PageChunk, auto: AutoRedrive) -> float:
    """How long after it the next one may go."""
    return len(chunk.moves) / auto.rate


def ends_s(waits_s: Sequence[int], concurrency: int) -> list[int]:
    """When each batch will have waited at the latest, if a Map takes them up in this order, so many at once."""
    free_s = [0] * concurrency
    ends = []
    for wait_s in waits_s:
        end_s = heapq.heappop(free_s) + wait_s
        ends.append(end_s)
        heapq.heappush(free_s, end_s + TASK_S)
    return ends


def _jittered_s(chunk: PageChunk, auto: AutoRedrive) -> float:
    """Its wait by the draw of its first message. A long wait has been spent elsewhere but for this last part of it."""
    raw, step = chunk.moves[0]
    return chunk.wait_s * (1 + auto.jitter * (2 * draw(raw["MessageId"], step.attempt, 0) - 1))


# -- in cells


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
        """The page's messages; none where it was removed or has expired."""
        cells = [self._cells.read([name])[0] for name in _names(key)]
        packed = b"".join(cell.value for cell in cells if cell is not None)
        return [] if None in cells else msgspec.msgpack.decode(zlib.decompress(packed), type=list[dict[str, object]])

    def remove(self, key: str) -> None:
        """What cannot be removed goes when its time is over."""
        for name in _names(key):
            cell = self._cells.read([name])[0]
            if cell is not None:
                self._cells.swap([Swap(name, cell.version, None)], durable=False)


def _names(key: str) -> list[str]:
    count = key.partition("/")[0]
    return [f"redriver/page/{key}/{n}" for n in range(int(count) if count.isascii() and count.isdigit() else 0)]
