"""Compute where claims start to read the due index, to skip deleted entries.

While a transaction is open anywhere in the database, PostgreSQL keeps every row that was deleted since it began, and
each claim passes the index entries of all of them before it meets the first message that is due. A Floor remembers, for
one queue and priority, the place below which the last look found no message, and claims start there. A floor is a hint
of one process: without it claims are only slower.

After that look a message can still appear below the floor: by a late commit, or with a due time in the past. Its writer
notifies others of the place (`expect`), and claims read that spot too, until it is empty. For missed notifications, the
process scans all of the index below in pieces: about once a second while that is cheap, otherwise with a bounded share
of its time.

Pure: times come from the caller. `now_ms` is the store's clock, `at_s` a monotonic one.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from .notifications import DueSpan

IndexPlace = tuple[int, str, int]  # (due_ms, lane, seq), in the order of the due index
FIRST: IndexPlace = (-(2**63), "", 0)  # before the place of every message
NEVER_MS = 2**63 - 1
LATE_MS = 500  # how far a floor stays below the current time: most transactions are shorter
WORTH_MS = 1.0  # a floor is kept if reading up to the first message costs the server this much
FREE_MS = 0.25  # a floor is dropped if reading everything below it costs the server less
OPEN_EVERY_S = 1.0  # how often the cost is measured in a queue without a floor
FRONT_EVERY_S = 0.2  # how often looks may raise a floor
BEHIND_EVERY_S = 1.0  # least time between two scans of everything below a floor
SHARE = 0.05  # share of a process's time that its scans below floors may take
SAVED_MS = 40.0  # most unused scan time that is saved for later
PIECE_MS = 8.0  # a piece is cut if its scan costs the server more
PIECES_MAX = 4096
CUT_EVERY_S = 0.25
SPOTS_MAX = 8
LOOKS_MAX = 64  # most looks in progress for one floor
_STEPS = 12  # how many cuts the lowest piece gets: 1 s, 4 s, 16 s, … before its end, up to half a year


class Range(NamedTuple):
    """A part of the due index: from the place `low` up to the due time `until_ms`."""

    low: IndexPlace
    until_ms: int


class Aim(Enum):
    """The purpose of a look at the due index."""

    FRONT = "to raise the floor"
    SPOT = "to find out whether a spot is empty"
    BEHIND = "to find what no notification named"


class FloorLook(NamedTuple):
    """A search for the first message in a part of the index, which measures its cost. `number` identifies the look."""

    aim: Aim
    low: IndexPlace
    until_ms: int
    number: int = 0


class LookAllowance:
    """The share of one process's time that scans below the floors of all queues may take on the server."""

    def __init__(self) -> None:
        self._left_ms, self._at_s = SAVED_MS, 0.0

    def left_ms(self, at_s: float) -> float:
        gained_ms = max(0.0, at_s - self._at_s) * 1000 * SHARE
        self._left_ms, self._at_s = min(SAVED_MS, self._left_ms + gained_ms), at_s
        return self._left_ms

    def spend(self, ms: float) -> None:
        self._left_ms -= ms


class Floor:
    """The floor of one queue and priority, or of the queue's messages that wait to join groups.

    `scattered=False` is for messages whose claims read one range only: then a spot lowers the floor.
    """

    place: IndexPlace

    __slots__ = ("_behind", "_expected_ms", "_front_s", "_number", "_scattered", "place", "spots")

    def __init__(self, *, scattered: bool = True) -> None:
        self._scattered = scattered
        self._front_s = 0.0  # when the next look at the front may be sent
        self._number = 0
        self._expected_ms: dict[int, int] = {}  # lowest due time of `expect` since a look was sent, by its number
        self._open()

    def _open(self) -> None:
        self.place = FIRST
        self.spots: list[DueSpan] = []  # sorted, disjoint, and all below the floor
        self._behind: Pieces | None = None

    @property
    def kept(self) -> bool:
        """True if a floor is set, so that claims start there."""
        return self._behind is not None

    @property
    def asks(self) -> bool:
        """True if a look is in progress, which may miss messages that are expected from now on."""
        return bool(self._expected_ms)

    def ranges(self, now_ms: int) -> list[Range]:
        """Return the ranges of the due index that a claim reads, in order and disjoint."""
        low = min(self.place, _from(now_ms - LATE_MS))
        spots = [Range(_from(low_ms), min(until_ms, low[0] - 1)) for low_ms, until_ms in self.spots if low_ms < low[0]]
        return [*spots, Range(low, NEVER_MS)]

    def expect(self, low_ms: int, until_ms: int) -> None:
        """Record that messages with due times from `low_ms` to `until_ms` were or may have been written."""
        for number, expected_ms in self._expected_ms.items():
            self._expected_ms[number] = min(expected_ms, low_ms)
        top_ms = self.place[0]
        if not self.kept or low_ms > top_ms:
            return
        if not self._scattered:
            return self._lower(_from(low_ms))
        if until_ms >= top_ms:
            self._lower(_from(top_ms))
        if low_ms < top_ms:
            self._add(low_ms, min(until_ms, top_ms - 1))

    def _add(self, low_ms: int, until_ms: int) -> None:
        spots: list[DueSpan] = []
        for low, until in sorted([*self.spots, (low_ms, until_ms)]):
            if spots and low <= spots[-1][1] + 1:
                spots[-1] = spots[-1][0], max(spots[-1][1], until)
            else:
                spots.append((low, until))
        while len(spots) > SPOTS_MAX:  # merge the two closest spots
            at = min(range(1, len(spots)), key=lambda n: spots[n][0] - spots[n - 1][1])
            spots[at - 1 : at + 1] = [(spots[at - 1][0], spots[at][1])]
        self.spots = spots

    def _lower(self, place: IndexPlace) -> None:
        if place < self.place:
            self.place = place
            if self._behind is not None:
                self._behind.end_at(place[0])

    def assume(self, now_ms: int, cost_ms: float, at_s: float) -> None:
        """Set a floor without a look below it, which would take too long. Scans in pieces cover that part later."""
        expected_ms = min(self._expected_ms.values(), default=NEVER_MS)
        self._expected_ms.clear()
        self.place = _from(now_ms - LATE_MS)
        self._behind = Pieces(self.place[0], cost_ms, at_s)
        self.expect(expected_ms, NEVER_MS)

    # -- looking

    def looks(self, at_s: float, allowance: LookAllowance) -> list[FloorLook]:
        """The looks to send now. The one at the front is last: it may raise the floor, which moves the pieces' ends."""
        all_looks: list[FloorLook] = []
        if self._behind is not None:
            all_looks += [self._ask(Aim.SPOT, _from(low_ms), until_ms) for low_ms, until_ms in self.spots]
            all_looks += [
                FloorLook(Aim.BEHIND, FIRST if low_ms is None else _from(low_ms), until_ms)
                for low_ms, until_ms in self._behind.due(self.place[0], at_s, allowance)
            ]
        if at_s >= self._front_s:
            self._front_s = at_s + (FRONT_EVERY_S if self.kept else OPEN_EVERY_S)
            all_looks.append(self._ask(Aim.FRONT, self.place, NEVER_MS))
        return all_looks

    def _ask(self, aim: Aim, low: IndexPlace, until_ms: int) -> FloorLook:
        self._number += 1
        self._expected_ms[self._number] = NEVER_MS
        if len(self._expected_ms) > LOOKS_MAX:  # looks of failed exchanges are never answered
            del self._expected_ms[next(iter(self._expected_ms))]
        return FloorLook(aim, low, until_ms, self._number)

    def saw(
        self,
        look: FloorLook,
        first: IndexPlace | None,
        cost_ms: float,
        now_ms: int,
        at_s: float,
        allowance: LookAllowance,
    ) -> None:
        """Update the floor by a look's result: the first message it found, or None, and its cost. If other threads have
        moved the floor since, the result is ignored. The look may have missed messages that were expected after it was
        sent, as they may have been committed after it ran."""
        expected_ms = self._expected_ms.pop(look.number, FIRST[0])
        match look.aim:
            case Aim.FRONT:
                self._raise(look, first, expected_ms, cost_ms, now_ms, at_s)
            case Aim.SPOT:
                self._narrow(look, first, expected_ms)
            case Aim.BEHIND:
                self._looked_behind(look, first, cost_ms, at_s, allowance)

    def _raise(
        self, look: FloorLook, first: IndexPlace | None, expected_ms: int, cost_ms: float, now_ms: int, at_s: float
    ) -> None:
        late = _from(now_ms - LATE_MS)
        place = min(late if first is None else min(first, late), max(look.low, _from(expected_ms)))
        if look.low != self.place or (not self.kept and cost_ms < WORTH_MS):
            return
        if self._behind is None:
            self._behind, self._front_s = Pieces(place[0], cost_ms, at_s), at_s + FRONT_EVERY_S
        self.place = place  # lower than the old place only if the clock was set back
        self._behind.end_at(place[0], at_s)

    def _narrow(self, look: FloorLook, first: IndexPlace | None, expected_ms: int) -> None:
        spot = look.low[0], look.until_ms
        if spot in self.spots and expected_ms > look.until_ms:
            at = self.spots.index(spot)
            self.spots[at : at + 1] = [] if first is None else [(first[0], look.until_ms)]

    def _looked_behind(
        self, look: FloorLook, first: IndexPlace | None, cost_ms: float, at_s: float, allowance: LookAllowance
    ) -> None:
        if self._behind is None:
            return
        if first is not None and first < self.place:
            if first[0] == self.place[0]:
                self._lower(first)
            else:
                self.expect(first[0], min(look.until_ms, self.place[0] - 1))
        low_ms = None if look.low == FIRST else look.low[0]
        all_ms = self._behind.measured(low_ms, look.until_ms, cost_ms, at_s, allowance)
        if all_ms is not None and all_ms < FREE_MS and not self.spots:
            self._open()


class Pieces:
    """The range below a floor, cut by due time into pieces of about equal cost.

    `due` returns the next pieces to scan; `measured` takes in their cost, and cuts and joins pieces.
    """

    def __init__(self, top_ms: int, cost_ms: float, at_s: float) -> None:
        self._bounds: list[int] = []  # due times where one piece ends and the next begins
        self._costs = [cost_ms]  # by piece: server time of its last scan
        self._next, self._pass_s, self._cut_s = 0, at_s, at_s
        if cost_ms > PIECE_MS:
            self._cut(0, top_ms)

    def end_at(self, top_ms: int, at_s: float | None = None) -> None:
        """Move the end of the last piece to `top_ms`, where the floor is now."""
        while self._bounds and self._bounds[-1] > top_ms:
            self._join(len(self._bounds) - 1)
        grown = top_ms > (self._bounds[-1] if self._bounds else FIRST[0])
        if at_s is not None and at_s >= self._cut_s + CUT_EVERY_S and grown:
            self._cut_s = at_s
            self._bounds.append(top_ms)
            self._costs.append(PIECE_MS / 2)  # assumed until a scan measures it
            if len(self._bounds) > PIECES_MAX:
                for at in range(len(self._bounds) - 2, 0, -2):
                    self._join(at)

    def due(self, top_ms: int, at_s: float, allowance: LookAllowance) -> list[tuple[int | None, int]]:
        """The pieces to scan now, each as its first due time (None: none) and its last. Spends allowance on them."""
        pieces: list[tuple[int | None, int]] = []
        at = self._next
        while at_s >= self._pass_s and at < len(self._costs) and allowance.left_ms(at_s) > 0:
            allowance.spend(self._costs[at])
            pieces.append(self._piece(at, top_ms))
            at += 1
        return pieces

    def _piece(self, at: int, top_ms: int) -> tuple[int | None, int]:
        low_ms = self._bounds[at - 1] if at else None
        return low_ms, self._bounds[at] - 1 if at < len(self._bounds) else top_ms

    def measured(
        self, low_ms: int | None, until_ms: int, cost_ms: float, at_s: float, allowance: LookAllowance
    ) -> float | None:
        """Store the measured cost of a piece. Returns the cost of all pieces if it was the last one, else None."""
        at = self._next
        if at >= len(self._costs) or low_ms != self._piece(at, until_ms)[0] or until_ms < self._piece(at, until_ms)[1]:
            return None  # another thread has scanned or changed the pieces
        allowance.spend(cost_ms - self._costs[at])
        self._costs[at] = cost_ms
        self._next = at + 1
        if cost_ms > PIECE_MS:
            self._next += self._cut(at, until_ms)
        elif at and cost_ms + self._costs[at - 1] < PIECE_MS / 2:
            self._join(at - 1)
        if self._next < len(self._costs):
            return None
        self._next, self._pass_s = 0, max(at_s, self._pass_s + BEHIND_EVERY_S)
        return sum(self._costs)

    def _cut(self, at: int, until_ms: int) -> int:
        """Cut a piece whose scan costs too much; returns the number of additional pieces."""
        parts = min(64, ceil(2 * self._costs[at] / PIECE_MS))
        if at:
            low_ms = self._bounds[at - 1]
            bounds = {low_ms + (until_ms + 1 - low_ms) * n // parts for n in range(1, parts)} - {low_ms}
        else:
            ends = [until_ms - 1000 * 4**n for n in range(_STEPS, -1, -1)]
            bounds = {low + (high - low) * n // parts for low, high in pairwise(ends) for n in range(parts)}
        cuts = sorted(bounds)
        self._costs[at : at + 1] = [self._costs[at] / (len(cuts) + 1)] * (len(cuts) + 1)
        self._bounds[at:at] = cuts
        return len(cuts)

    def _join(self, at: int) -> None:
        """Join the two pieces on both sides of the bound with index `at`."""
        del self._bounds[at]
        self._costs[at : at + 2] = [self._costs[at] + self._costs[at + 1]]
        if self._next > at:
            self._next -= 1


def _from(due_ms: int) -> IndexPlace:
    return due_ms, "", 0
