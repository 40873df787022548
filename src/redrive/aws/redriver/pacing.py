"""How fast a re-driver sends back: each message at a second that has room by the rate, on top of its own wait.

The seconds that were given lie in a cell that all re-drivers of a dead-letter queue share (`Shared`). Where there are
no cells they are what this one knows of them (`Known`), and go with the message that calls the next one (chain.py).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from ...flow.auto_redrive import AutoRedrive
from ...message import Swap, version_of
from ...policy.policies import draw
from ...store import Cells
from . import slots
from .moving import DELAY_MAX_S, Move, Raw, Step
from .slots import Slots, Wish

AHEAD_S = 300  # how far behind its own wait a message may be put: what is later stays dead, where gates still hold it
ROOM_S = 60  # when to look again where there was no room
TRIES = 20  # to write the cell, while others write it too
TTL_MS = 3_600_000


class Book(Protocol):
    """Which seconds were given."""

    def take(self, per_s: float, wishes: Sequence[Wish], now_s: int) -> list[int | None]:
        """Give a second for each wish, None for those that have no room. Raises StoreError."""
        ...


class Shared:
    """The seconds that all re-drivers of the dead-letter queue `dead` gave, in a cell."""

    def __init__(self, cells: Cells, dead: str) -> None:
        self._cells, self._key = cells, f"redriver/pace/{dead.rpartition('/')[2]}"

    def take(self, per_s: float, wishes: Sequence[Wish], now_s: int) -> list[int | None]:
        for _ in range(TRIES):
            cell = self._cells.read([self._key])[0]
            known = slots.current(slots.decode(cell.value) if cell else {}, now_s)
            taken, found = slots.take(known, per_s, wishes)
            if found.count(None) == len(found):
                break
            # cut off after this, the seconds stay given, and nothing comes in them
            swap = Swap(self._key, version_of(cell), slots.encode(taken), TTL_MS)
            if self._cells.swap([swap], durable=False)[0]:
                return found
        return [None] * len(wishes)


class Known:
    """The seconds that are known here: those given here, and those that the last one in its chain knew of."""

    def __init__(self) -> None:
        self._slots: Slots = {}
        self._lock = threading.Lock()

    def take(self, per_s: float, wishes: Sequence[Wish], now_s: int) -> list[int | None]:
        with self._lock:
            self._slots, found = slots.take(slots.current(self._slots, now_s), per_s, wishes)
        return found

    def learn(self, more: Slots) -> None:
        with self._lock:
            self._slots = slots.merged(self._slots, more)

    def to_come(self, now_s: int) -> Slots:
        """Those that are not past."""
        with self._lock:
            self._slots = slots.current(self._slots, now_s)
            return self._slots

    def lasts_s(self, now_s: int) -> int:
        """In how many seconds the last one is past; 0: it is."""
        return max(0, max(self.to_come(now_s), default=now_s) - now_s)


class Pace:
    """The rate and the jitter of `auto`, by the book that the seconds are written down in."""

    def __init__(self, auto: AutoRedrive, book: Book) -> None:
        self._auto, self._book = auto, book

    @property
    def full(self) -> str:
        """Why nothing can be moved now, for people to read."""
        return f"its rate of {self._auto.rate:.6g}/s has no room yet"

    @property
    def room_s(self) -> int:
        """When there may be room again: sooner there is none, or too little to come for."""
        return min(max(ROOM_S, math.ceil(1 / self._auto.rate)), DELAY_MAX_S)

    @property
    def next_s(self) -> int:
        """In how many seconds a FIFO queue takes more."""
        return min(max(1, math.ceil(1 / self._auto.rate)), DELAY_MAX_S)

    def wait_s(self, raw: Raw, step: Move) -> int:
        """Its own wait, by the draw that the message has for this redrive."""
        return math.ceil(self._auto.delay_s(step.attempt, _draw(raw, step)))

    def placed(self, steps: Sequence[tuple[Raw, Step]], now_ms: int) -> list[tuple[Raw, Step | None]]:
        """Each with the delay after which it comes back, at a second that has room; None where there is none. What goes
        to the poison queue has no rate. Raises StoreError."""
        moves = [(raw, step) for raw, step in steps if isinstance(step, Move)]
        now_s = now_ms // 1000
        wishes = [self._wish(raw, step, now_s) for raw, step in moves]
        given = iter(self._book.take(self._auto.rate, wishes, now_s) if wishes else ())
        return [(raw, self._step(raw, step, next(given), now_s) if isinstance(step, Move) else step)
                for raw, step in steps]  # fmt: skip

    def go_now(self, count: int, now_ms: int) -> int:
        """How many of so many may come back right now: what a FIFO queue takes has no delay. What the last second left
        may be had too. Raises StoreError."""
        now_s = now_ms // 1000
        given = self._book.take(self._auto.rate, [Wish(now_s - 1, now_s, now_s)] * count, now_s) if count else []
        return count - given.count(None)

    def _wish(self, raw: Raw, step: Move, now_s: int) -> Wish:
        """Its own wait, spread by its jitter as far as one delay of SQS goes. What finds no room up to there comes a
        little sooner: else those that wait for 15 minutes would get one second's room at each look."""
        low_s, high_s = (min(math.ceil(self._auto.delay_s(step.attempt, u)), DELAY_MAX_S) for u in (0.0, 1.0))
        at_s = low_s + math.floor(_draw(raw, step) * (high_s - low_s + 1))
        first_s = min(low_s, DELAY_MAX_S - 2 * ROOM_S)
        return Wish(now_s + first_s, now_s + at_s, now_s + min(high_s + AHEAD_S, DELAY_MAX_S))

    def _step(self, raw: Raw, step: Move, second: int | None, now_s: int) -> Step | None:
        if second is None:
            return None
        comes_s = max(0, second - now_s)
        if step.delay_s > DELAY_MAX_S:
            return replace(step, delay_s=self.wait_s(raw, step), comes_s=comes_s)
        return replace(step, delay_s=comes_s, comes_s=comes_s)


def _draw(raw: Raw, step: Move) -> float:
    return draw(raw["MessageId"], step.attempt, 0)
