"""Pace a run: its rate, slow start, halving, canary and stop rule.

All functions are pure. Times are ms of the store's clock.

Rates are enforced as in `flow.limits` (GCRA): slots are 1/rate apart, and a runner that is late catches up LATE_MS at
most. So in any T seconds at most 1 + rate·(T + 0.05) messages are moved.

Slow start: 1/s, and twice that every 10 s up to the rate: 10 messages in 10 s, 30 in 20 s, 1,270 in 70 s.
"""

from __future__ import annotations

import math
import re
from typing import Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from ...errors import StopError, near_miss
from ...flow import limits

MAX_PER_S = 500.0  # most messages a second of a run without a rate
STEP_MS = 10_000  # ms at one speed before it doubles
BAD_SHARE = 0.1  # a second with a larger share of failures halves the speed
# A run may be 0.1 s ahead of its rate. Half of that is for the runner, in ms; the other half is for slow commits, since
# a move becomes visible only with its commit.
LATE_MS = 50
STALL_MS = 3000  # ms; a runner that paused for longer saw no outcomes, so the speed does not grow for that time
OUTCOMES_MIN = 20  # a share of fewer outcomes is not significant

GO_ON: Final = "go on"
WAIT: Final = "wait"


class Speed(Struct, frozen=True, array_like=True):
    """The speed of a run: `per_s` messages a second since `since_ms`. `slot_ms`: when the next message may be moved;
    `looked_ms`: when the speed was last computed; `done` and `failed`: outcomes in `second` (of the epoch)."""

    per_s: float
    since_ms: int
    slot_ms: float
    looked_ms: int
    second: int = 0
    done: int = 0
    failed: int = 0

    @property
    def burst(self) -> float:
        """The number of messages that a late runner may move at once at this speed."""
        return 1 + self.per_s * LATE_MS / 1000


def begin(rate: float | None, slow_start: bool, now_ms: int) -> Speed:
    """Return the speed of a run that starts now: `rate` a second (None: MAX_PER_S), or a slow start up to that."""
    per_s = min(1.0, _top(rate)) if slow_start else _top(rate)
    return Speed(per_s, now_ms, float(now_ms), now_ms, now_ms // 1000)


def grant(speed: Speed, rate: float | None, now_ms: int, wanted: int) -> tuple[Speed, int]:
    """Return how many of `wanted` messages may be moved now, and the speed after these moves.

    Grants at most 1.05 · rate + 1 in any second, regardless of the pattern of calls.
    """
    speed = _grown(speed, rate, now_ms)
    tat_ms = speed.slot_ms + LATE_MS
    count = max(0, min(wanted, limits.ready(tat_ms, speed, now_ms)[0]))
    if count:
        speed = replace(speed, slot_ms=limits.ask(tat_ms, speed, now_ms, count)[0] - LATE_MS)
    return speed, count


def next_ms(speed: Speed, rate: float | None, now_ms: int) -> int:
    """Return when the next message may be moved; `now_ms` if that is now."""
    speed = _grown(speed, rate, now_ms)
    return limits.ready(speed.slot_ms + LATE_MS, speed, now_ms)[1]


def with_outcomes(speed: Speed, rate: float | None, done: int, failed: int, now_ms: int, halve: bool) -> Speed:
    """Return the speed after these new outcomes. Call this in every tick, even without outcomes.

    With `halve`, a second in which more than a tenth failed halves the speed once it is over, down to 1/s (or the rate
    if that is lower). After 10 s without such a second the speed doubles, and so on up to the rate.
    """
    second = now_ms // 1000
    if second == speed.second:
        return replace(speed, done=speed.done + done, failed=speed.failed + failed)
    if not (speed.done or speed.failed or done or failed):
        return speed  # do not write an unchanged speed every second
    if halve and speed.failed > BAD_SHARE * (speed.done + speed.failed):
        speed = replace(speed, per_s=max(min(1.0, _top(rate)), speed.per_s / 2), since_ms=now_ms)
    return replace(speed, second=second, done=done, failed=failed)


def rested(speed: Speed, paused_ms: int, now_ms: int) -> Speed:
    """Return the speed after a pause of the run for `paused_ms`, during which it does not grow."""
    since_ms = min(speed.since_ms + paused_ms, now_ms)
    return replace(speed, since_ms=since_ms, slot_ms=speed.slot_ms + paused_ms, looked_ms=now_ms)


def _top(rate: float | None) -> float:
    return MAX_PER_S if rate is None else rate


def _grown(speed: Speed, rate: float | None, now_ms: int) -> Speed:
    """Return the speed at `now_ms`, with the steps since. Adapts to a clock that was set back and to a lower rate."""
    top = _top(rate)
    away_ms = now_ms - speed.looked_ms
    stalled = away_ms > STALL_MS and speed.per_s < top
    since_ms = min(speed.since_ms + (away_ms if stalled else 0), now_ms)
    steps = (now_ms - since_ms) // STEP_MS if speed.per_s < top else 0
    per_s = min(top, speed.per_s * 2.0 ** min(steps, 60))
    slot_ms = min(speed.slot_ms, now_ms + 2 * 1000 / per_s)  # a later slot is from before the clock was set back
    return replace(speed, per_s=per_s, since_ms=since_ms + steps * STEP_MS, slot_ms=slot_ms, looked_ms=now_ms)


_WORD = re.compile(r"\s*([^\s<>=]*)")
_OP = re.compile(r"\s*(>=|>)")
_LIMIT = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*(%?)\s*")
_EXPECTED = "expected a share or a number, such as failed>20% or failed>100"


class StopRule(Struct, frozen=True):
    """When a run stops automatically: if more than `limit` of its messages failed (with `reached`, if at least that
    many did). With `share`, `limit` is a percentage of the outcomes."""

    limit: float
    share: bool = True
    reached: bool = False

    @classmethod
    def parse(cls, text: str) -> StopRule:
        """Parse "failed>20%", "failed>100", or either with `>=`. Raises StopError, which points at the mistake."""
        word = _match(_WORD, text, 0)
        if word[1] != "failed":
            meant = "did you mean failed?" if near_miss(word[1], ["failed"]) else _EXPECTED
            _refuse(text, word.start(1), word.end(1), f"{word[1]!r} is not counted; {meant}")
        op = _OP.match(text, word.end())
        if op is None:
            _refuse(text, _solid(text, word.end()), len(text), f"a run stops at too many; {_EXPECTED}")
        limit = _LIMIT.match(text, op.end())
        if limit is None or limit.end() != len(text):
            at = limit.end() if limit else _solid(text, op.end())
            _refuse(text, at, len(text), f"{text[at:].strip()!r} is not understood; {_EXPECTED}")
        stop = cls(float(limit[1]), bool(limit[2]), op[1] == ">=")
        stop._check(text, limit.start(1), limit.end(2))
        return stop

    def _check(self, text: str, at: int, end: int) -> None:
        if self.reached and not self.limit:
            _refuse(text, at, end, "it would stop the run before anything failed; expected more than 0")
        if self.share and self.limit >= 100 + self.reached:
            _refuse(
                text, at, end, f"no share is ever that high; expected {'at most' if self.reached else 'below'} 100%"
            )
        if not self.share and not self.limit.is_integer():
            _refuse(text, at, end, "a number of messages is whole; a share ends in %")

    def __str__(self) -> str:
        return f"failed{'>=' if self.reached else '>'}{self.limit:.12g}{'%' if self.share else ''}"

    def says(self, done: int, failed: int, planned: int) -> str | None:
        """Return why the run stops now; None if it continues.

        A number applies from the first outcome on; a share from 20 outcomes on, or once all `planned` messages have
        one.
        """
        outcomes = done + failed
        if self.share and outcomes < min(OUTCOMES_MIN, planned):
            return None
        # Multiplied, not divided, so that 20 of 100 are exactly 20 %.
        counted, most = (failed * 100, self.limit * outcomes) if self.share else (failed, self.limit)
        if not failed or counted < most or (counted == most and not self.reached):
            return None
        return f"{failed:,} of {outcomes:,} failed ({percent(failed, outcomes)}): the run stops at {self}"


CANARY_STOP: Final = StopRule(20.0)  # the stop rule of a canary whose run has none for a share
# The defaults of a plan, for every surface.
CANARY: Final = 5
SLOW_START: Final = True
STOP_IF: Final = str(CANARY_STOP)
NEVER: Final = "never"  # a stop rule that stops nothing


def canary(size: int, stop: StopRule | None, done: int, failed: int) -> str:
    """Return what a run does after these outcomes of its canary: GO_ON, WAIT for the rest, or why it stops.

    `size` is the number of canary messages that can have an outcome. Once all have one, the stop rule applies if it is
    a share, otherwise CANARY_STOP.
    """
    if done + failed < size:
        return WAIT
    by = stop if stop is not None and stop.share else CANARY_STOP
    why = by.says(done, failed, size) or (stop and stop.says(done, failed, size))
    return f"canary: {why}" if why else GO_ON


def percent(part: int, whole: int) -> str:
    """Return the share of `part` in percent, rounded down, so that 100 % means all."""
    return f"{math.floor(100 * part / whole) if whole else 0} %"


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    match = pattern.match(text, at)
    assert match is not None  # these patterns match even an empty text
    return match


def _solid(text: str, at: int) -> int:
    """Return the index of the first character from `at` on that is no space; the text's length if there is none."""
    return at + len(text[at:]) - len(text[at:].lstrip())


def _refuse(text: str, at: int, end: int, why: str) -> NoReturn:
    raise StopError(f"stop rule {text!r} is refused", why, text, at, end)
