"""Schedule the messages of a re-driver: each becomes due in a second that the rate has room for, after its own wait.

SQS delays by whole seconds, so a message is given a second. T whole seconds together have room for rate·T + 1 messages,
so any T seconds get at most rate·(T + 1) + 1: one second more than the rate.

Within its second a message becomes visible at the fraction at which it was sent, so a batch would arrive at once.
Therefore each tenth of a second has room for a tenth of the rate, rounded up, while other seconds have room: the
messages of a batch get different seconds, and a second gets messages of batches sent in different tenths.

A cell holds the used tenths, for all re-drivers of a dead-letter queue (`Shared`). Without cells each re-driver has its
own (`Known`) and passes them on in the message that calls the next one (`work_queue.py`).
"""

from __future__ import annotations

import base64
import binascii
import math
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...flow.auto_redrive import AutoRedrive
from ...message import Swap, version_of
from ...policy import draw
from ...store import Cells
from .steps import DELAY_MAX_S, MoveStep, Raw, RedriveStep

AHEAD_S = 300  # most seconds between a message's own wait and its second; if all are full, it stays dead
ROOM_S = 60  # seconds until room is checked again after there was none
TRIES = 20  # most attempts at the swap of the cell
TTL_MS = 3_600_000
KEPT_S = 2  # seconds for which the messages of a past second are remembered
TENTHS = 10  # parts of a second
_BYTES_MAX = 100_000  # bytes of encoded slots

PaceSlots = Mapping[int, int]  # the number of messages by tenth of a second since the epoch
_Fits = Callable[[int], bool]  # returns True if a second has room


class Wish(Struct, frozen=True):
    """The seconds wanted for a message: `at_s`, or a later one up to `last_s`, or else one from `first_s` on."""

    first_s: int
    at_s: int
    last_s: int


def room(per_s: float, second: int) -> int:
    """Return how many messages may arrive in this second; the number alternates if the rate is not a whole number.

    >>> [room(2.5, second) for second in range(4)], sum(room(0.1, second) for second in range(100))
    ([2, 3, 2, 3], 10)
    """
    return math.floor((second + 1) * per_s) - math.floor(second * per_s)


def take(
    slots: PaceSlots, per_s: float, wishes: Sequence[Wish], tenth: int = 0, *, evenly: bool = True
) -> tuple[PaceSlots, list[int | None]]:
    """Assign a second to each wish, in order; None if all of its seconds are full. Also returns the updated slots.
    Messages arrive in this tenth of their seconds: `evenly` only its share of them, while other seconds have room."""
    taken, seconds = dict(slots), list[int | None]()
    sums = Counter[int]()
    for at, count in slots.items():
        sums[at // TENTHS] += count
    most = math.ceil(per_s / TENTHS)

    def has_room(second: int) -> bool:
        return sums[second] < room(per_s, second)

    def is_even(second: int) -> bool:
        return has_room(second) and taken.get(second * TENTHS + tenth, 0) < most

    ways = [_Way(fits) for fits in ((is_even, has_room) if evenly else (has_room,))]
    for wish in wishes:
        second = next((second for way in ways if (second := way.find(wish)) is not None), None)
        if second is not None:
            sums[second] += 1
            at = second * TENTHS + tenth
            taken[at] = taken.get(at, 0) + 1
        seconds.append(second)
    return taken, seconds


class _Way:
    """Finds a second with room. Full seconds stay full, so later searches skip them."""

    def __init__(self, fits: _Fits) -> None:
        self._fits = fits
        self._after: dict[int, int] = {}  # by full second: the next second that may have room

    def find(self, wish: Wish) -> int | None:
        """Return the first second with room from `at_s` to `last_s`, or else the last one from `first_s` on."""
        passed: list[int] = []
        second = wish.at_s
        while second <= wish.last_s and (second in self._after or not self._fits(second)):
            passed.append(second)
            second = self._after.get(second, second + 1)
        self._after.update(dict.fromkeys(passed, second))
        if second <= wish.last_s:
            return second
        return next((s for s in range(wish.at_s - 1, wish.first_s - 1, -1) if self._fits(s)), None)


def merged(one: PaceSlots, other: PaceSlots) -> PaceSlots:
    """Merge two counts of the same slots: the higher number of each, since neither counts too many."""
    return {at: max(one.get(at, 0), other.get(at, 0)) for at in one.keys() | other.keys()}


def current(slots: PaceSlots, now_s: int) -> PaceSlots:
    """Return the slots without those of past seconds."""
    return {at: count for at, count in slots.items() if at // TENTHS > now_s - KEPT_S}


def encode(slots: PaceSlots) -> bytes:
    """Encode the numbers from the first tenth to the last, compressed: most are 0 or equal."""
    if not slots:
        return b""
    first = min(slots)
    return zlib.compress(msgspec.msgpack.encode((first, [slots.get(at, 0) for at in range(first, max(slots) + 1)])))


def decode(value: bytes) -> PaceSlots:
    """Decode slots; an invalid value gives empty slots."""
    try:
        reader = zlib.decompressobj()
        first, counts = msgspec.msgpack.decode(reader.decompress(value, _BYTES_MAX), type=tuple[int, list[int]])
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    if not reader.eof:
        return {}
    return {first + n: count for n, count in enumerate(counts) if count > 0}


def as_text(slots: PaceSlots) -> str:
    """Encode slots as text."""
    return base64.b64encode(encode(slots)).decode()


def of_text(text: str) -> PaceSlots:
    """Decode slots from text; an invalid text gives empty slots."""
    try:
        return decode(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return {}


class Book(Protocol):
    """Records which seconds of the rate are assigned to messages."""

    def take(self, per_s: float, wishes: Sequence[Wish], now_ms: int, *, evenly: bool = True) -> list[int | None]:
        """Assign a second to each wish; None for a wish without room. Raises StoreError."""
        ...


class Shared:
    """The assigned seconds of all re-drivers of the dead-letter queue `dead`, in one cell."""

    def __init__(self, cells: Cells, dead: str) -> None:
        self._cells, self._key = cells, f"redriver/pace/{dead.rpartition('/')[2]}"

    def take(self, per_s: float, wishes: Sequence[Wish], now_ms: int, *, evenly: bool = True) -> list[int | None]:
        for _ in range(TRIES):
            cell = self._cells.read([self._key])[0]
            known = current(decode(cell.value) if cell else {}, now_ms // 1000)
            taken, seconds = take(known, per_s, wishes, _tenth(now_ms), evenly=evenly)
            if seconds.count(None) == len(seconds):
                break
            swap = Swap(self._key, version_of(cell), encode(taken), TTL_MS)  # a kill after this wastes the seconds
            if self._cells.swap([swap], durable=False)[0]:
                return seconds
        return [None] * len(wishes)


class Known:
    """The assigned seconds known to this process: its own, and those that the previous re-driver passed on."""

    def __init__(self) -> None:
        self._slots: PaceSlots = {}
        self._lock = threading.Lock()

    def take(self, per_s: float, wishes: Sequence[Wish], now_ms: int, *, evenly: bool = True) -> list[int | None]:
        with self._lock:
            known = current(self._slots, now_ms // 1000)
            self._slots, seconds = take(known, per_s, wishes, _tenth(now_ms), evenly=evenly)
        return seconds

    def learn(self, more: PaceSlots) -> None:
        with self._lock:
            self._slots = merged(self._slots, more)

    def to_come(self, now_s: int) -> PaceSlots:
        """Return the assigned seconds that are not past."""
        with self._lock:
            self._slots = current(self._slots, now_s)
            return self._slots

    def lasts_s(self, now_s: int) -> int:
        """Return the number of seconds until the last assigned second is over; 0 if it already is."""
        return max(0, max(self.to_come(now_s), default=0) // TENTHS - now_s)


class Pace:
    """Assigns seconds in a book to messages, by the rate and jitter of `auto`."""

    def __init__(self, auto: AutoRedrive, book: Book) -> None:
        self._auto, self._book = auto, book

    @property
    def full(self) -> str:
        """Why nothing can be moved now, in words."""
        return f"its rate of {self._auto.rate:.6g}/s has no room yet"

    @property
    def room_s(self) -> int:
        """Return after how many seconds to check for room again: late enough to find some."""
        return min(max(ROOM_S, math.ceil(1 / self._auto.rate)), DELAY_MAX_S)

    @property
    def next_s(self) -> int:
        """Return after how many seconds the rate has room for another message, on a FIFO queue."""
        return min(max(1, math.ceil(1 / self._auto.rate)), DELAY_MAX_S)

    def wait_s(self, raw: Raw, step: MoveStep) -> int:
        """Return the message's own wait with the jitter of this redrive, in seconds."""
        return math.ceil(self._auto.delay_s(step.attempt, _draw(raw, step)))

    def placed(self, steps: Sequence[tuple[Raw, RedriveStep]], now_ms: int) -> list[tuple[Raw, RedriveStep | None]]:
        """Return the steps, each move with the delay to its assigned second; None for a move that the rate has no room
        for. Moves to the poison queue have no rate. Raises StoreError."""
        moves = [(raw, step) for raw, step in steps if isinstance(step, MoveStep)]
        now_s = now_ms // 1000
        wishes = [self._wish(raw, step, now_s) for raw, step in moves]
        given = iter(self._book.take(self._auto.rate, wishes, now_ms) if wishes else ())
        return [(raw, self._step(raw, step, next(given), now_s) if isinstance(step, MoveStep) else step)
                for raw, step in steps]  # fmt: skip

    def go_now(self, count: int, now_ms: int) -> int:
        """Return how many of `count` messages may be moved right now, since a FIFO queue cannot delay messages. Unused
        room of the last second may be used too. Raises StoreError."""
        now_s = now_ms // 1000
        wishes = [Wish(now_s - 1, now_s, now_s)] * count
        given = self._book.take(self._auto.rate, wishes, now_ms, evenly=False) if count else []
        return count - given.count(None)

    def _wish(self, raw: Raw, step: MoveStep, now_s: int) -> Wish:
        """Return the wanted seconds of a message: its own wait with jitter, up to SQS's longest delay. If those are
        full, an earlier second will do: else messages that wait 15 minutes would get one second's room per check."""
        low_s, high_s = (min(math.ceil(self._auto.delay_s(step.attempt, u)), DELAY_MAX_S) for u in (0.0, 1.0))
        at_s = low_s + math.floor(_draw(raw, step) * (high_s - low_s + 1))
        first_s = min(low_s, DELAY_MAX_S - 2 * ROOM_S)
        return Wish(now_s + first_s, now_s + at_s, now_s + min(high_s + AHEAD_S, DELAY_MAX_S))

    def _step(self, raw: Raw, step: MoveStep, second: int | None, now_s: int) -> RedriveStep | None:
        if second is None:
            return None
        comes_s = max(0, second - now_s)
        if step.delay_s > DELAY_MAX_S:
            return replace(step, delay_s=self.wait_s(raw, step), comes_s=comes_s)
        return replace(step, delay_s=comes_s, comes_s=comes_s)


def _tenth(now_ms: int) -> int:
    return now_ms % 1000 * TENTHS // 1000


def _draw(raw: Raw, step: MoveStep) -> float:
    return draw(raw["MessageId"], step.attempt, 0)
