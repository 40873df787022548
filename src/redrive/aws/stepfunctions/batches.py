"""How a page of dead messages becomes batches, and when each goes. Pure.

A batch has one wait, so its messages come back together: in any T seconds rate·T of them, and a batch more.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from msgspec import Struct

from ...flow.auto_redrive import AutoRedrive
from ...message import Isolate
from ...policy.policies import draw
from ..redriver.moving import Move, Raw, Step
from .machine import TASK_S


class Unit(Struct):
    """Messages that go together: one, or all of a FIFO group."""

    wait_s: int
    steps: list[tuple[Raw, Step]]

    @property
    def word(self) -> str:
        return "isolate" if all(isinstance(step, Isolate) for _, step in self.steps) else "redrive"


class Chunk(Struct, frozen=True):
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
    def moves(self) -> list[tuple[Raw, Move]]:
        return [(raw, step) for unit in self.units for raw, step in unit.steps if isinstance(step, Move)]


def chunks(units: Sequence[Unit], size: int) -> list[Chunk]:
    """Units that have one wait and go the same way, in order, of up to so many messages; a larger unit by itself."""
    found: list[list[Unit]] = []
    for unit in units:
        last = found[-1] if found else []
        same = last and (last[0].wait_s, last[0].word) == (unit.wait_s, unit.word)
        if same and sum(len(u.steps) for u in last) + len(unit.steps) <= size:
            last.append(unit)
        else:
            found.append([unit])
    return [Chunk(some[0].wait_s, some) for some in found]


def spaced(found: Sequence[Chunk], auto: AutoRedrive, after_s: float) -> list[Chunk]:
    """The chunks in the order in which they go, each with its wait: spread by its jitter, and so far behind the one
    before it that the rate holds. The first goes back in `after_s` at the soonest. Poison goes first, without a
    rate."""
    poison = [chunk for chunk in found if not chunk.moves]
    waits = sorted(((_jittered_s(chunk, auto), n) for n, chunk in enumerate(found) if chunk.moves))
    going, free_s = list[Chunk](), after_s
    for wait_s, n in waits:
        at_s = max(wait_s, free_s)
        going.append(Chunk(math.floor(at_s), found[n].units))
        free_s = at_s + gap_s(found[n], auto)
    return poison + going


def gap_s(chunk: Chunk, auto: AutoRedrive) -> float:
    """How long after it the next one may go."""
    return len(chunk.moves) / auto.rate


def ends_s(waits_s: Sequence[int], concurrency: int) -> list[int]:
    """When each batch will have waited at the latest, if a Map takes them up in this order, so many at once."""
    free_s = [0] * concurrency
    found = []
    for wait_s in waits_s:
        end_s = heapq.heappop(free_s) + wait_s
        found.append(end_s)
        heapq.heappush(free_s, end_s + TASK_S)
    return found


def _jittered_s(chunk: Chunk, auto: AutoRedrive) -> float:
    """Its wait by the draw of its first message. A long wait has been spent elsewhere but for this last part of it."""
    raw, step = chunk.moves[0]
    return chunk.wait_s * (1 + auto.jitter * (2 * draw(raw["MessageId"], step.attempt, 0) - 1))
