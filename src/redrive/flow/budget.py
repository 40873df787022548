"""The retry budget: bounds how many retries a dependency gets, however many messages wait for one.

`Budget` is the rule, `BudgetState` is shared by all workers in one cell. Transitions are pure: they take values and the
time, and return values. A retry without a token reserves the next one, and is deferred to that time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from ..duration import Duration
from ..errors import ConfigError
from .rules import OnExhausted, number, on_exhausted, put, span_s, whole

ILL = 0.2  # with this share of failures among recent first attempts, or more, no credit is given
LATELY = 2  # number of sub-windows whose first attempts count as recent
PARTS = 10  # sub-windows of `life`: a deposit lives between nine and ten of them
_DAY_S = 86_400.0
_SLIP = 1e-6  # tokens; floating point must not make five deposits of a fifth less than one
_SLIP_MS = 1e-3  # ms; floating point must not move a time past its millisecond


@dataclass(frozen=True, slots=True, init=False)
class Budget:
    """The retries that a dependency may get. Checked when a retry is dispatched; first attempts are never held back.

    - Each first dispatch deposits `ratio` of a token, which lives for `life`; a retry takes one token.
    - Beside the deposits `floor` tokens a second come free, and up to `floor * life` are kept in reserve (at least one,
      if there is a floor). Deposits only refill a used reserve; without a floor all are kept.
    - Deposits are spent first, the oldest first. A retry that finds no token reserves the floor's next one and is due
      at its time (`on_exhausted="defer"`), or dies with reason `budget` (`"dead_letter"`).

    Retries dispatched in any T seconds are at most `ratio * first + floor * T + floor * life`, where `first` counts the
    first dispatches of these T seconds. With the defaults: 0.2 for each, 10/s and 100. With no new traffic a backlog
    drains at the floor.

    While first attempts go well, `first` also counts those of the last `life` before: the unused credit that they
    earned serves the tail of a bulk job, once all else is spent. They go well while fewer than a fifth of the recent
    ones fail; in an outage the bound is the one above.

    `Budget.fixed` is another form. Raises ValueError or TypeError.
    """

    ratio: float
    life: float
    floor: float
    on_exhausted: str
    retries: int | None
    per: float | None

    def __init__(
        self, ratio: float = 0.2, life: Duration = "10s", floor: float = 10, on_exhausted: OnExhausted = "defer"
    ) -> None:
        """`ratio` from 0 to 1,000, `life` from 100 ms to a day, `floor` in tokens a second, from 0 to 1,000."""
        _fill(self, on_exhausted)
        put(
            self,
            ratio=number(ratio, "budget ratio", 0, 1000),
            life=span_s(life, "budget life", 0.1, _DAY_S),
            floor=number(floor, "budget floor", 0, 1000),
        )
        if self.on_exhausted == "defer" and self.floor < 1 / _DAY_S:
            raise ConfigError(
                f"budget floor {floor!r} is refused: what it denies would have no time to come back at; expected at "
                "least one token a day, or on_exhausted='dead_letter'"
            )

    @classmethod
    def fixed(cls, retries: int, per: Duration, *, on_exhausted: OnExhausted = "defer") -> Budget:
        """Return a budget of at most `retries` in each window of `per`, such as 100 per "1m". Windows begin at whole
        multiples of `per` of the store's time. Retries deferred to a later window are spread evenly over it.

        `retries` is from 1 to a million, `per` from 100 ms to 31 days. Raises ValueError or TypeError.
        """
        budget = cls.__new__(cls)
        _fill(budget, on_exhausted)
        put(
            budget,
            retries=whole(retries, "budget retries", 1, 1_000_000),
            per=span_s(per, "budget per", 0.1, 31 * _DAY_S),
        )
        return budget

    @property
    def reserve(self) -> float:
        """The most tokens of the floor that are kept for a burst."""
        return max(1.0, self.floor * self.life) if self.floor else 0.0


def _fill(budget: Budget, word: str) -> None:
    put(budget, ratio=0.0, life=10.0, floor=0.0, on_exhausted=on_exhausted(word), retries=None, per=None)


class BudgetState(Struct, frozen=True, array_like=True):
    """The tokens spent so far."""

    tat_ms: float = 0.0  # when the floor's reserve is full again (GCRA); fixed form: the time of the last grant
    head_ms: int = 0  # start of the last sub-window with a deposit
    tokens: tuple[float, ...] = ()  # deposits left, by sub-window, up to the one at head_ms
    window_ms: int = 0  # fixed form: start of the last window with a grant
    granted: int = 0  # fixed form: grants in that window
    ended_ms: int = 0  # start of the last sub-window in which a first attempt ended
    ended: tuple[float, ...] = ()  # for each sub-window: credit earned, successes, failures; flat


def deposit(state: BudgetState, budget: Budget, firsts: int, now_ms: int) -> BudgetState:
    """Deposit `ratio` of a token for each of `firsts` first dispatches."""
    if budget.retries is not None or firsts <= 0 or budget.ratio == 0:
        return state
    head_ms, tokens = _live(state, budget, now_ms)
    tokens = (*tokens[:-1], round(tokens[-1] + budget.ratio * firsts, 9))
    kept = replace(state, head_ms=head_ms, tokens=tokens)
    return replace(kept, tokens=_live(kept, budget, now_ms)[1])


def earn(state: BudgetState, budget: Budget, succeeded: int, failed: int, now_ms: int) -> BudgetState:
    """Count first attempts that ended. Their successes earn credit, which is spent once all other tokens are."""
    if budget.retries is not None or budget.ratio == 0 or not (succeeded or failed):
        return state
    ended_ms, ended = _ended(state, budget, now_ms)
    *older, credit, well, ill = ended
    credit = round(credit + budget.ratio * succeeded, 9)
    return replace(state, ended_ms=ended_ms, ended=_trimmed((*older, credit, well + succeeded, ill + failed)))


def ask(state: BudgetState, budget: Budget, now_ms: int) -> tuple[BudgetState, int]:
    """Take a token for one retry, or reserve the next. Also returns when the retry may start: at once if ≤ now_ms.

    With `on_exhausted="dead_letter"` nothing is reserved, and a time after now_ms means that the retry is refused.
    """
    taken, at_ms = _ask_fixed(state, budget, now_ms) if budget.retries is not None else _ask(state, budget, now_ms)
    refused = at_ms > now_ms and budget.on_exhausted == "dead_letter"
    return (state, at_ms) if refused else (taken, at_ms)


def left(state: BudgetState, budget: Budget, now_ms: int) -> float:
    """Return how many tokens could be taken now."""
    if budget.retries is not None:
        start_ms = _start(now_ms, budget)
        if state.tat_ms > now_ms:
            return 0.0  # waiting retries have reserved all tokens of this window
        return float(budget.retries - (state.granted if state.window_ms >= start_ms else 0))
    tokens = math.fsum(_live(state, budget, now_ms)[1])
    return max(tokens, _credit(state, budget, now_ms)) + _level(state, budget, now_ms)


def _ask(state: BudgetState, budget: Budget, now_ms: int) -> tuple[BudgetState, int]:
    head_ms, tokens = _live(state, budget, now_ms)
    if math.fsum(tokens) >= 1 - _SLIP:
        return _less_credit(replace(state, head_ms=head_ms, tokens=_less(tokens, 1.0)), budget, now_ms), now_ms
    every_ms = 1000 / budget.floor if budget.floor else math.inf
    tat_ms = max(state.tat_ms, now_ms)
    at_ms = now_ms + 1 if not budget.floor else math.ceil(tat_ms - (budget.reserve - 1) * every_ms - _SLIP_MS)
    if at_ms > now_ms and _credit(state, budget, now_ms) >= 1 - _SLIP:
        return _less_credit(state, budget, now_ms), now_ms
    if not budget.floor:
        return state, now_ms + math.ceil(budget.life * 1000)
    at_ms = max(now_ms, at_ms)
    return replace(state, tat_ms=tat_ms + every_ms, head_ms=head_ms, tokens=_less(tokens, 0.0)), at_ms


def _live(state: BudgetState, budget: Budget, now_ms: int) -> tuple[int, tuple[float, ...]]:
    """Return the start of the current sub-window, and the deposits left in the last ten, the current one last.

    Sub-windows are computed from times, so that a state stored under another `life` can be read.
    """
    part_ms = max(1, int(budget.life * 1000 / PARTS))
    head_ms = max(now_ms, state.head_ms)  # a clock that was set back prolongs no deposit
    head_ms -= head_ms % part_ms
    passed = min(PARTS, (head_ms - state.head_ms) // part_ms)
    tokens = ((0.0,) * PARTS + state.tokens + (0.0,) * passed)[-PARTS:]
    if not budget.floor:
        return head_ms, tokens
    # Deposits count only up to what the reserve lacks, so that deposits of a quiet time do not exceed the reserve.
    excess = math.fsum(tokens) - (budget.reserve - _level(state, budget, now_ms))
    return head_ms, _less(tokens, excess) if excess > 0 else tokens


def _ended(state: BudgetState, budget: Budget, now_ms: int) -> tuple[int, tuple[float, ...]]:
    """Return the same as `_live` for ended first attempts: three numbers for each of the last ten sub-windows."""
    part_ms = max(1, int(budget.life * 1000 / PARTS))
    ended_ms = max(now_ms, state.ended_ms)
    ended_ms -= ended_ms % part_ms
    passed = min(PARTS, (ended_ms - state.ended_ms) // part_ms)
    return ended_ms, ((0.0,) * 3 * PARTS + state.ended + (0.0,) * 3 * passed)[-3 * PARTS :]


def _credit(state: BudgetState, budget: Budget, now_ms: int) -> float:
    """Return the unused credit of first attempts of the last `life`; 0 if too many of the recent ones failed."""
    if not state.ended:
        return 0.0
    ended = _ended(state, budget, now_ms)[1]
    lately = [counts for counts in zip(ended[1::3], ended[2::3], strict=True) if any(counts)][-LATELY:]
    well, ill = (math.fsum(counts) for counts in zip(*lately, strict=True)) if lately else (0.0, 0.0)
    return math.fsum(ended[::3]) if ill < ILL * (well + ill) else 0.0


def _less_credit(state: BudgetState, budget: Budget, now_ms: int) -> BudgetState:
    """Subtract one token of credit for a retry, from the oldest sub-windows on."""
    if not state.ended:
        return state
    ended_ms, ended = _ended(state, budget, now_ms)
    owed, kept = 1.0, list(ended)
    for at in range(0, len(kept), 3):
        paid = min(kept[at], owed)
        kept[at], owed = round(kept[at] - paid, 9), owed - paid
    return replace(state, ended_ms=ended_ms, ended=_trimmed(tuple(kept)))


def _trimmed(ended: tuple[float, ...]) -> tuple[float, ...]:
    """Remove the leading sub-windows in which no first attempt ended."""
    at = 0
    while at < len(ended) and not any(ended[at : at + 3]):
        at += 3
    return ended[at:]


def _level(state: BudgetState, budget: Budget, now_ms: int) -> float:
    """Return how many tokens are now in the floor's reserve."""
    return max(0.0, budget.reserve - max(0.0, state.tat_ms - now_ms) * budget.floor / 1000)


def _less(tokens: tuple[float, ...], owed: float) -> tuple[float, ...]:
    """Subtract `owed` tokens from these deposits, from the oldest on."""
    kept = []
    for held in tokens:
        kept.append(round(max(0.0, held - owed), 9))
        owed = max(0.0, owed - held)
    while len(kept) > 1 and not kept[0]:
        del kept[0]
    return tuple(kept)


def _ask_fixed(state: BudgetState, budget: Budget, now_ms: int) -> tuple[BudgetState, int]:
    most = budget.retries or 1
    per_ms = _per_ms(budget)
    window_ms, granted = _start(now_ms, budget), 0
    if state.window_ms >= window_ms:
        window_ms, granted = state.window_ms - state.window_ms % per_ms, state.granted
    if granted >= most:
        window_ms, granted = window_ms + per_ms, 0
    at_ms = now_ms
    if window_ms > now_ms or state.tat_ms > now_ms:  # behind the retries that wait, evenly spread
        at_ms = max(now_ms, window_ms + granted * per_ms // most)
    return replace(state, tat_ms=float(at_ms), window_ms=window_ms, granted=granted + 1), at_ms


def _start(now_ms: int, budget: Budget) -> int:
    return now_ms - now_ms % _per_ms(budget)


def _per_ms(budget: Budget) -> int:
    return max(1, round((budget.per or 0.0) * 1000))
