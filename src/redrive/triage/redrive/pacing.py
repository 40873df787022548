"""How fast a run moves, and when it stops by itself: slots of a rate, slow start, halving, the canary, the stop rule.

All of it is pure: values and the time in, values out. Times are ms of the store's clock.

Slots are those of `flow.limits` (GCRA): 1/rate apart, and what a late runner missed is lost but for LATE_MS. So in any
T seconds at most 1 + rate·(T + 0.05) messages are moved, however it is asked.

Slow start: 1/s, and twice that every 10 s up to the rate: by 10 s there were 10, by 20 s 30, by 70 s 1,270.
"""

from __future__ import annotations

import math
import re
from typing import Final, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from ...errors import StopError, near_miss
from ...flow import limits

MAX_PER_S = 500.0  # of a run that names no rate
STEP_MS = 10_000  # how long a speed is kept before it doubles
BAD_SHARE = 0.1  # a second of which more failed halves the speed
# Half of the tenth of a second that a run may be ahead of its rate: the other half is for commits that took long, as
# what is seen of a move is its commit.
LATE_MS = 50
STALL_MS = 3000  # who was away for longer did not see how the speed was borne, so it does not grow for that time
VERDICTS_MIN = 20  # a share of fewer says little

GO_ON: Final = "go on"
WAIT: Final = "wait"


class Speed(Struct, frozen=True, array_like=True):
    """How fast a run goes. `slot_ms`: when the next message may be moved; `since_ms`: since when it goes `per_s`
    messages a second; `looked_ms`: when that was looked at; `done` and `failed`: verdicts that came in `second` (of
    the epoch)."""

    per_s: float
    since_ms: int
    slot_ms: float
    looked_ms: int
    second: int = 0
    done: int = 0
    failed: int = 0

    @property
    def burst(self) -> float:
        """How many may be moved at once by a runner that is late."""
        return 1 + self.per_s * LATE_MS / 1000


def begin(rate: float | None, slow_start: bool, now_ms: int) -> Speed:
    """The speed of a run that begins now: `rate` a second (None: MAX_PER_S), or slowly up to it."""
    per_s = min(1.0, _top(rate)) if slow_start else _top(rate)
    return Speed(per_s, now_ms, float(now_ms), now_ms, now_ms // 1000)


def grant(speed: Speed, rate: float | None, now_ms: int, wanted: int) -> tuple[Speed, int]:
    """How many of `wanted` may be moved now, and the speed with those moved.

    In any second no more than 1.05 · rate + 1 are granted, under any pattern of asking.
    """
    speed = _grown(speed, rate, now_ms)
    tat_ms = speed.slot_ms + LATE_MS
    count = max(0, min(wanted, limits.ready(tat_ms, speed, now_ms)[0]))
    if count:
        speed = replace(speed, slot_ms=limits.ask(tat_ms, speed, now_ms, count)[0] - LATE_MS)
    return speed, count


def next_ms(speed: Speed, rate: float | None, now_ms: int) -> int:
    """When the next message may be moved: `now_ms` if one may."""
    speed = _grown(speed, rate, now_ms)
    return limits.ready(speed.slot_ms + LATE_MS, speed, now_ms)[1]


def judged(speed: Speed, rate: float | None, done: int, failed: int, now_ms: int, halve: bool) -> Speed:
    """The speed with these verdicts, which came now. To be called at every look, also where there are none.

    With `halve`, a second in which more than a tenth failed halves the speed once it is over, down to 1/s (or the rate
    where that is lower). After 10 s without such a second it doubles, and so on up to the rate.
    """
    second = now_ms // 1000
    if second == speed.second:
        return replace(speed, done=speed.done + done, failed=speed.failed + failed)
    if not (speed.done or speed.failed or done or failed):
        return speed  # so that it is not written anew each second
    if halve and speed.failed > BAD_SHARE * (speed.done + speed.failed):
        speed = replace(speed, per_s=max(min(1.0, _top(rate)), speed.per_s / 2), since_ms=now_ms)
    return replace(speed, second=second, done=done, failed=failed)


def rested(speed: Speed, paused_ms: int, now_ms: int) -> Speed:
    """The speed after a pause, during which its clock stood still."""
    since_ms = min(speed.since_ms + paused_ms, now_ms)
    return replace(speed, since_ms=since_ms, slot_ms=speed.slot_ms + paused_ms, looked_ms=now_ms)


def _top(rate: float | None) -> float:
    return MAX_PER_S if rate is None else rate


def _grown(speed: Speed, rate: float | None, now_ms: int) -> Speed:
    """The speed at this time. A clock that went back, and a rate that was lowered, are followed."""
    top = _top(rate)
    away_ms = now_ms - speed.looked_ms
    stalled = away_ms > STALL_MS and speed.per_s < top
    since_ms = min(speed.since_ms + (away_ms if stalled else 0), now_ms)
    steps = (now_ms - since_ms) // STEP_MS if speed.per_s < top else 0
    per_s = min(top, speed.per_s * 2.0 ** min(steps, 60))
    slot_ms = min(speed.slot_ms, now_ms + 2 * 1000 / per_s)  # further away only where the clock went back
    return replace(speed, per_s=per_s, since_ms=since_ms + steps * STEP_MS, slot_ms=slot_ms, looked_ms=now_ms)


_WORD = re.compile(r"\s*([^\s<>=]*)")
_OP = re.compile(r"\s*(>=|>)")
_LIMIT = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*(%?)\s*")
_EXPECTED = "expected a share or a number, such as failed>20% or failed>100"


class Stop(Struct, frozen=True):
    """When a run stops by itself: more than `limit` (or, with `reached`, that many) of its messages failed; of 100
    verdicts where it is a `share`."""

    limit: float
    share: bool = True
    reached: bool = False

    @classmethod
    def parse(cls, text: str) -> Stop:
        """What "failed>20%" or "failed>100" says; `>=` is known too. Raises StopError, which points at the mistake."""
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
        """Why the run stops now; None where it goes on.

        A number is looked at from the first verdict on. A share is looked at from 20 verdicts on, or once there are as
        many as `planned` (those that can get one).
        """
        verdicts = done + failed
        if self.share and verdicts < min(VERDICTS_MIN, planned):
            return None
        # Multiplied, not divided: 20 of 100 are 20 %, and not a hair more.
        counted, most = (failed * 100, self.limit * verdicts) if self.share else (failed, self.limit)
        if not failed or counted < most or (counted == most and not self.reached):
            return None
        return f"{failed:,} of {verdicts:,} failed ({percent(failed, verdicts)}): the run stops at {self}"


CANARY_STOP: Final = Stop(20.0)  # what a canary is judged by where the rule says no share


def canary(size: int, stop: Stop | None, done: int, failed: int) -> str:
    """What becomes of a run whose canary has so many verdicts: GO_ON, WAIT for the rest, or why it stops.

    `size` is how many messages the canary has, of those that can get a verdict. It is judged once it has them all, by
    the stop rule where that is a share, else by CANARY_STOP: five of five that fail are too many for any number.
    """
    if done + failed < size:
        return WAIT
    by = stop if stop is not None and stop.share else CANARY_STOP
    why = by.says(done, failed, size) or (stop and stop.says(done, failed, size))
    return f"canary: {why}" if why else GO_ON


def percent(part: int, whole: int) -> str:
    """A share for people, rounded down: never 100 % where something is left."""
    return f"{math.floor(100 * part / whole) if whole else 0} %"


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    assert found is not None  # it matches the empty text
    return found


def _solid(text: str, at: int) -> int:
    """Where the next word begins; the end of the text if there is none."""
    return at + len(text[at:]) - len(text[at:].lstrip())


def _refuse(text: str, at: int, end: int, why: str) -> NoReturn:
    raise StopError(f"stop rule {text!r} is refused", why, text, at, end)
