"""Decide which ticks are due, from a schedule's times, its state and the time. Pure.

The state is one cell. The commit that enqueues ticks swaps it, so each tick is enqueued once: of two schedulers that
find the same tick due, one finds the cell changed.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from .cron import Cron, Every, latest, next_after

MISSED_MAX = 1000  # ticks that `all` makes up for; of more, the oldest are left out
ON_TIME_MS = 5_000  # a tick is missed when it is later than that, or when the next one has come
TAKE_OVER_MS = 60_000  # how long a changed spec is kept before a scheduler that runs another one changes it again
AHEAD_MAX_MS = 24 * 3600 * 1000  # a state further ahead was written under a clock that was wrong


class Missed(StrEnum):
    """How missed ticks are made up for: `last` enqueues the latest one, `all` each of them, `skip` none."""

    LAST = "last"
    ALL = "all"
    SKIP = "skip"


class ScheduleState(Struct, frozen=True):
    """The state of a schedule: every tick up to `seen_ms` is handled, and `last_ms` was the last one enqueued.
    `changed_ms` is when `spec` changed."""

    spec: str
    seen_ms: int
    last_ms: int | None = None
    paused: bool = False
    changed_ms: int | None = None


class Turn(Struct, frozen=True):
    """The ticks to enqueue now, oldest first, and the state to write with them. `left_out` spans the ticks that the
    policy drops: after the first time, before the second."""

    state: ScheduleState
    ticks: tuple[int, ...] = ()
    left_out: tuple[int, int] | None = None


def turn(
    times: Cron | Every,
    missed: Missed,
    state: ScheduleState | None,
    now_ms: int,
    *,
    first: bool = True,
    most: int = MISSED_MAX,
) -> Turn:
    """Decide the turn of a schedule in this state, at that time.

    The same state comes back where nothing is to be written. A new schedule starts from now: it has no past ticks.
    So does one whose spec changed; but a scheduler that has looked before (`first=False`) leaves a spec that changed
    within a minute alone: an old and a new program that overlap would take turns to start from now, and enqueue
    nothing. `most` bounds what `all` makes up for.
    """
    if state is None or state.seen_ms - now_ms > AHEAD_MAX_MS:
        paused = state is not None and state.paused
        return Turn(ScheduleState(times.spec, now_ms, paused=paused))
    if state.spec != times.spec:
        if not first and state.changed_ms is not None and 0 <= now_ms - state.changed_ms < TAKE_OVER_MS:
            return Turn(state)
        return Turn(replace(state, spec=times.spec, seen_ms=now_ms, changed_ms=now_ms))
    if state.paused or (next_after(times, state.seen_ms) or now_ms + 1) > now_ms:
        return Turn(state)
    return _due(times, missed, state, now_ms, most)


def _due(times: Cron | Every, missed: Missed, state: ScheduleState, now_ms: int, most: int) -> Turn:
    wanted = most if missed is Missed.ALL else 1
    candidates = latest(times, state.seen_ms, now_ms, wanted + 1)
    ticks = candidates[-wanted:]
    dropped = len(candidates) > wanted
    if missed is Missed.SKIP and now_ms - ticks[-1] > ON_TIME_MS:
        return Turn(replace(state, seen_ms=ticks[-1]), (), (state.seen_ms, ticks[-1] + 1))
    moved = replace(state, seen_ms=ticks[-1], last_ms=ticks[-1])
    return Turn(moved, tuple(ticks), (state.seen_ms, ticks[0]) if dropped else None)


def cut(turn: Turn, most: int) -> Turn:
    """Cut a turn to its first `most` ticks; its state leaves the others due."""
    if len(turn.ticks) <= most:
        return turn
    last_ms = turn.ticks[most - 1]
    return replace(turn, ticks=turn.ticks[:most], state=replace(turn.state, seen_ms=last_ms, last_ms=last_ms))


def resumed(state: ScheduleState, missed: Missed, paused: bool, now_ms: int) -> ScheduleState:
    """Pause or resume the state; under `skip` it continues from now."""
    seen_ms = now_ms if state.paused and not paused and missed is Missed.SKIP else state.seen_ms
    return replace(state, paused=paused, seen_ms=seen_ms)
