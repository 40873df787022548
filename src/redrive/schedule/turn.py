"""Which ticks are due: a function of a schedule's times, its state and the time. Pure.

The state is one cell. Whoever enqueues ticks swaps it in the same commit, so each tick is enqueued once: of two
schedulers that see the same tick due, one finds the cell moved.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from .cron import Cron, Every, latest, next_after

MISSED_MAX = 1000  # ticks that `all` makes up for; of more, the oldest are left out
ON_TIME_MS = 5_000  # a tick is missed when it is later than that, or when the next one has come
TAKE_OVER_MS = 60_000  # how long a changed spec stands before a scheduler that runs another one changes it again
AHEAD_MAX_MS = 24 * 3600 * 1000  # a state further ahead was written under a clock that was wrong


class Missed(StrEnum):
    """What becomes of ticks at which no scheduler ran: `last` runs the latest one, `all` each of them, `skip` none."""

    LAST = "last"
    ALL = "all"
    SKIP = "skip"


class State(Struct, frozen=True):
    """Where a schedule stands: every tick up to `seen_ms` is dealt with, `last_ms` was the last one enqueued.
    `changed_ms` is when `spec` took another's place."""

    spec: str
    seen_ms: int
    last_ms: int | None = None
    paused: bool = False
    changed_ms: int | None = None


class Turn(Struct, frozen=True):
    """What is to be done now: the ticks to enqueue, oldest first, and the state to write with them. `left_out` spans
    ticks that the policy drops: after the first time, before the second."""

    state: State
    ticks: tuple[int, ...] = ()
    left_out: tuple[int, int] | None = None


def turn(
    times: Cron | Every, missed: Missed, state: State | None, now_ms: int, *, first: bool = True, most: int = MISSED_MAX
) -> Turn:
    """The turn of a schedule that stands so, at that time.

    The state comes back as it is where nothing is to be written. A new schedule starts from now: it has no past ticks.
    So does one whose spec changed; but a scheduler that has looked before (`first=False`) leaves a spec that changed
    within a minute alone: an old and a new program that overlap would take turns to start from now, and enqueue
    nothing. `most` bounds what `all` makes up for.
    """
    if state is None or state.seen_ms - now_ms > AHEAD_MAX_MS:
        paused = state is not None and state.paused
        return Turn(State(times.spec, now_ms, paused=paused))
    if state.spec != times.spec:
        if not first and state.changed_ms is not None and 0 <= now_ms - state.changed_ms < TAKE_OVER_MS:
            return Turn(state)
        return Turn(replace(state, spec=times.spec, seen_ms=now_ms, changed_ms=now_ms))
    if state.paused or (next_after(times, state.seen_ms) or now_ms + 1) > now_ms:
        return Turn(state)
    return _due(times, missed, state, now_ms, most)


def _due(times: Cron | Every, missed: Missed, state: State, now_ms: int, most: int) -> Turn:
    wanted = most if missed is Missed.ALL else 1
    found = latest(times, state.seen_ms, now_ms, wanted + 1)
    ticks = found[-wanted:]
    dropped = len(found) > wanted
    if missed is Missed.SKIP and now_ms - ticks[-1] > ON_TIME_MS:
        return Turn(replace(state, seen_ms=ticks[-1]), (), (state.seen_ms, ticks[-1] + 1))
    moved = replace(state, seen_ms=ticks[-1], last_ms=ticks[-1])
    return Turn(moved, tuple(ticks), (state.seen_ms, ticks[0]) if dropped else None)


def cut(turn: Turn, most: int) -> Turn:
    """The first `most` ticks of a turn, and the state that leaves the others due."""
    if len(turn.ticks) <= most:
        return turn
    last_ms = turn.ticks[most - 1]
    return replace(turn, ticks=turn.ticks[:most], state=replace(turn.state, seen_ms=last_ms, last_ms=last_ms))


def resumed(state: State, missed: Missed, paused: bool, now_ms: int) -> State:
    """The state paused, or going on; under `skip` it goes on from now."""
    seen_ms = now_ms if state.paused and not paused and missed is Missed.SKIP else state.seen_ms
    return replace(state, paused=paused, seen_ms=seen_ms)
