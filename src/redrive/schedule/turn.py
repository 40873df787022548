"""Decide which ticks are due, from a schedule's times, its state and the clock. Pure.

The state is one cell. The commit that enqueues ticks swaps it, so each tick is enqueued once: of two schedulers that
find the same tick due, one finds the cell changed.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from .cron import Cron, Every, latest, next_after

MISSED_MAX = 1000  # most missed ticks that `all` enqueues; the oldest ones beyond are dropped
ON_TIME_MS = 5_000  # ms; a tick is missed if it is later than this, or if the next tick is due too
TAKE_OVER_MS = 60_000  # ms for which a changed spec is kept before a scheduler with another spec may change it back
AHEAD_MAX_MS = 24 * 3600 * 1000  # ms; a state further in the future was written under a wrong clock


class Missed(StrEnum):
    """The policy for missed ticks: `last` enqueues the latest one, `all` each of them, `skip` none."""

    LAST = "last"
    ALL = "all"
    SKIP = "skip"


class ScheduleState(Struct, frozen=True):
    """The state of a schedule: every tick up to `seen_ms` is handled, `last_ms` is the last tick that was enqueued, and
    `changed_ms` is when `spec` last changed."""

    spec: str
    seen_ms: int
    last_ms: int | None = None
    paused: bool = False
    changed_ms: int | None = None


class Turn(Struct, frozen=True):
    """The ticks of a schedule to enqueue now, oldest first, and the state to write with them. `left_out` is the span of
    ticks that the policy drops: after the first time, and before the second."""

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
    """Decide the turn of a schedule in this state at `now_ms`.

    The state is returned unchanged if there is nothing to write. A new schedule starts from now, without past ticks, as
    does one whose spec changed. But a scheduler that has read the schedule before (`first=False`) ignores a spec that
    changed within a minute: otherwise an old and a new program that overlap would keep resetting the schedule and
    enqueue nothing. `most` bounds the missed ticks that `all` enqueues.
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
    """Cut a turn to its first `most` ticks, with a state that leaves the other ticks due."""
    if len(turn.ticks) <= most:
        return turn
    last_ms = turn.ticks[most - 1]
    return replace(turn, ticks=turn.ticks[:most], state=replace(turn.state, seen_ms=last_ms, last_ms=last_ms))


def resumed(state: ScheduleState, missed: Missed, paused: bool, now_ms: int) -> ScheduleState:
    """Return the state paused or resumed. With `skip`, a schedule that is resumed continues from now."""
    seen_ms = now_ms if state.paused and not paused and missed is Missed.SKIP else state.seen_ms
    return replace(state, paused=paused, seen_ms=seen_ms)
