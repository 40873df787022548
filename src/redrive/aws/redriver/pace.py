"""How fast a re-driver sends messages back: each at a second that has room by the rate, after its own wait.

SQS delays by whole seconds, so a message is given a second. Any T seconds of the clock together have room for
rate·T + 1 messages, so T seconds that begin anywhere see rate·(T + 1) + 1 at most: the rate, and a second of it.

Within its second a message comes in the tenth in which it was sent, so all of a batch would come at once. Therefore a
tenth of a second gets a tenth of the rate, rounded up, as long as there are other seconds: the messages of a batch come
in seconds of their own, and a second gets messages of batches that were sent in different tenths.

The tenths that were given are in a cell that all re-drivers of a dead-letter queue share (`Shared`). Without cells
each re-driver knows its own (`Known`) and passes them on with the message that calls the next one (`work_queue.py`).
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

AHEAD_S = 300  # how far behind its own wait a message may be put: what is later stays dead, where gates still hold it
ROOM_S = 60  # when to look again where there was no room
TRIES = 20  # to write the cell, while others write it too
TTL_MS = 3_600_000
KEPT_S = 2  # how long a second is known once it has begun
TENTHS = 10  # of a second
_BYTES_MAX = 100_000  # of slots

PaceSlots = Mapping[int, int]  # by the tenth of a second, of the epoch
_Fits = Callable[[int], bool]  # whether a second has room


class Wish(Struct, frozen=True):
    """A message comes at `at_s`, or as soon as possible after that, up to `last_s`; or else before it, from `first_s`
    on."""

    first_s: int
    at_s: int
    last_s: int


def room(per_s: float, second: int) -> int:
    """How many may come in that second: of a rate that is no whole number now one more, now one less.

    >>> [room(2.5, second) for second in range(4)], sum(room(0.1, second) for second in range(100))
    ([2, 3, 2, 3], 10)
    """
    return math.floor((second + 1) * per_s) - math.floor(second * per_s)


def take(
    slots: PaceSlots, per_s: float, wishes: Sequence[Wish], tenth: int = 0, *, evenly: bool = True
) -> tuple[PaceSlots, list[int | None]]:
    """The second for each wish, in order, None where all of its seconds are full; and the slots with those taken. All
    come in this tenth of their seconds; unless `evenly`, as many at once as a second has room for."""
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
    """Finds seconds that fit. Those that do not fit never will: what is taken stays taken."""

    def __init__(self, fits: _Fits) -> None:
        self._fits = fits
        self._after: dict[int, int] = {}  # the next second that may fit, of those that do not: wishes are much alike

    def find(self, wish: Wish) -> int | None:
        """The first that fits from the one wished for on; or else the last before it."""
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
    """What two know of the same slots: of each the higher number, as neither knows of too many."""
    return {at: max(one.get(at, 0), other.get(at, 0)) for at in one.keys() | other.keys()}


def current(slots: PaceSlots, now_s: int) -> PaceSlots:
    """Without what is past."""
    return {at: count for at, count in slots.items() if at // TENTHS > now_s - KEPT_S}


def encode(slots: PaceSlots) -> bytes:
    """The numbers from the first tenth to the last, compressed: most are 0 or the same."""
    if not slots:
        return b""
    first = min(slots)
    return zlib.compress(msgspec.msgpack.encode((first, [slots.get(at, 0) for at in range(first, max(slots) + 1)])))


def decode(value: bytes) -> PaceSlots:
    """The slots of these bytes; none where they are not understood."""
    try:
        reader = zlib.decompressobj()
        first, counts = msgspec.msgpack.decode(reader.decompress(value, _BYTES_MAX), type=tuple[int, list[int]])
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    if not reader.eof:
        return {}
    return {first + n: count for n, count in enumerate(counts) if count > 0}


def as_text(slots: PaceSlots) -> str:
    """The same for what carries no bytes."""
    return base64.b64encode(encode(slots)).decode()


def of_text(text: str) -> PaceSlots:
    """Never raises."""
    try:
        return decode(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return {}


# -- who knows which seconds were given


class Book(Protocol):
    """Which seconds were given."""

    def take(self, per_s: float, wishes: Sequence[Wish], now_ms: int, *, evenly: bool = True) -> list[int | None]:
        """Give a second for each wish, None for those that have no room. Raises StoreError."""
        ...


class Shared:
    """The seconds that all re-drivers of the dead-letter queue `dead` gave, in a cell."""

    def __init__(self, cells: Cells, dead: str) -> None:
        self._cells, self._key = cells, f"redriver/pace/{dead.rpartition('/')[2]}"

    def take(self, per_s: float, wishes: Sequence[Wish], now_ms: int, *, evenly: bool = True) -> list[int | None]:
        for _ in range(TRIES):
            cell = self._cells.read([self._key])[0]
            known = current(decode(cell.value) if cell else {}, now_ms // 1000)
            taken, seconds = take(known, per_s, wishes, _tenth(now_ms), evenly=evenly)
            if seconds.count(None) == len(seconds):
                break
            # cut off after this, the seconds stay given, and nothing comes in them
            swap = Swap(self._key, version_of(cell), encode(taken), TTL_MS)
            if self._cells.swap([swap], durable=False)[0]:
                return seconds
        return [None] * len(wishes)


class Known:
    """The seconds that are known here: those given here, and those that the last one in its chain knew of."""

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
        """Those that are not past."""
        with self._lock:
            self._slots = current(self._slots, now_s)
            return self._slots

    def lasts_s(self, now_s: int) -> int:
        """In how many seconds the last one is past; 0: it is."""
        return max(0, max(self.to_come(now_s), default=0) // TENTHS - now_s)


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

    def wait_s(self, raw: Raw, step: MoveStep) -> int:
        """Its own wait, by the draw that the message has for this redrive."""
        return math.ceil(self._auto.delay_s(step.attempt, _draw(raw, step)))

    def placed(self, steps: Sequence[tuple[Raw, RedriveStep]], now_ms: int) -> list[tuple[Raw, RedriveStep | None]]:
        """Each with the delay after which it comes back, at a second that has room; None where there is none. What goes
        to the poison queue has no rate. Raises StoreError."""
        moves = [(raw, step) for raw, step in steps if isinstance(step, MoveStep)]
        now_s = now_ms // 1000
        wishes = [self._wish(raw, step, now_s) for raw, step in moves]
        given = iter(self._book.take(self._auto.rate, wishes, now_ms) if wishes else ())
        return [(raw, self._step(raw, step, next(given), now_s) if isinstance(step, MoveStep) else step)
                for raw, step in steps]  # fmt: skip

    def go_now(self, count: int, now_ms: int) -> int:
        """How many of so many may come back right now: what a FIFO queue takes has no delay. What the last second left
        may be had too. Raises StoreError."""
        now_s = now_ms // 1000
        wishes = [Wish(now_s - 1, now_s, now_s)] * count
        given = self._book.take(self._auto.rate, wishes, now_ms, evenly=False) if count else []
        return count - given.count(None)

    def _wish(self, raw: Raw, step: MoveStep, now_s: int) -> Wish:
        """Its own wait, spread by its jitter as far as one delay of SQS goes. What finds no room up to there comes a
        little sooner: else those that wait for 15 minutes would get one second's room at each look."""
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
