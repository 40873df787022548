"""Which second a message comes back in, so that no more come than a rate allows: how many come in each second of the
clock, as far as that is known. Pure.

What SQS delays comes after whole seconds, so a second is what can be chosen for it. Any T seconds of the clock together
have room for rate·T + 1, so T seconds that begin anywhere see rate·(T + 1) + 1 at most: the rate, and a second of it.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

KEPT_S = 2  # how long a second is known once it has begun

Slots = Mapping[int, int]  # by the second, of the epoch


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


def take(slots: Slots, per_s: float, wishes: Sequence[Wish]) -> tuple[Slots, list[int | None]]:
    """The second for each wish, in order, None where all of its seconds are full; and the slots with those taken."""
    taken, found = dict(slots), list[int | None]()
    after: dict[int, int] = {}  # the next second that may not be full, of those that are: wishes are much alike
    for wish in wishes:
        second = _later(taken, per_s, wish, after)
        if second is None:
            second = next((s for s in range(wish.at_s - 1, wish.first_s - 1, -1) if not _full(taken, per_s, s)), None)
        if second is not None:
            taken[second] = taken.get(second, 0) + 1
        found.append(second)
    return taken, found


def _later(taken: Slots, per_s: float, wish: Wish, after: dict[int, int]) -> int | None:
    """The first second that is not full, from the one wished for on."""
    passed: list[int] = []
    second = wish.at_s
    while second <= wish.last_s and (second in after or _full(taken, per_s, second)):
        passed.append(second)
        second = after.get(second, second + 1)
    after.update(dict.fromkeys(passed, second))
    return second if second <= wish.last_s else None


def _full(taken: Slots, per_s: float, second: int) -> bool:
    return taken.get(second, 0) >= room(per_s, second)


def merged(one: Slots, other: Slots) -> Slots:
    """What two know of the same slots: of each second the higher number, as neither knows of too many."""
    return {second: max(one.get(second, 0), other.get(second, 0)) for second in one.keys() | other.keys()}


def current(slots: Slots, now_s: int) -> Slots:
    """Without what is past."""
    return {second: count for second, count in slots.items() if second > now_s - KEPT_S}


def encode(slots: Slots) -> bytes:
    """The numbers from the first second to the last: a byte or so for each."""
    if not slots:
        return b""
    first = min(slots)
    return msgspec.msgpack.encode((first, [slots.get(s, 0) for s in range(first, max(slots) + 1)]))


def decode(value: bytes) -> Slots:
    """The slots of these bytes; none where they are not understood."""
    try:
        first, counts = msgspec.msgpack.decode(value, type=tuple[int, list[int]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return {first + n: count for n, count in enumerate(counts) if count > 0}


def as_text(slots: Slots) -> str:
    """The same for what carries no bytes."""
    return base64.b64encode(encode(slots)).decode()


def of_text(text: str) -> Slots:
    """Never raises."""
    try:
        return decode(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return {}
