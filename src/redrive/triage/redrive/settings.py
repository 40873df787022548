"""How a redrive is to go: what a plan is given, and a run goes by."""

from __future__ import annotations

from msgspec import Struct

from ...duration import Duration, milliseconds
from ...errors import ConfigError
from ...flow.gates import Gates
from ...flow.limits import per_s
from ...task import as_text
from .pacing import CANARY_STOP, MAX_PER_S, STEP_MS, Stop

VERDICT_S = 1.0  # how long a canary's verdict is taken to need where an estimate is given
COUNT_MAX = 1_000_000_000


class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the messages of a plan are moved. `read_settings` makes it of what people write.

    What is absent has its default: so a field that is added later alters no plan that was drawn up before.
    """

    rate: float | None = None  # messages a second; None: MAX_PER_S
    canary: int = 0  # so many first, and the others once these are judged
    slow_start: bool = False
    halve_on_failures: bool = False
    stop_if: str = ""  # "failed>20%"; empty: never
    attempts: int | None = None  # of the new life; None: the policy's
    to_queue: str | None = None
    delay_ms: int = 0
    spread_ms: int = 0  # each message comes back up to so much later, by its own draw
    keep_deadline: bool = False
    gates: Gates | None = None  # None: as Gates() says
    note: str = ""


def read_settings(
    *,
    rate: str | float | None = None,
    canary: int = 0,
    slow_start: bool = False,
    halve_on_failures: bool = False,
    stop_if: str | None = None,
    attempts: int | None = None,
    to_queue: str | None = None,
    delay: Duration = 0,
    spread: Duration = 0,
    keep_deadline: bool = False,
    gates: Gates | None = None,
    note: str = "",
) -> Settings:
    """The settings that these words mean. Raises ConfigError, ValueError or TypeError for what cannot be meant."""
    _whole(canary, "canary", 0)
    if attempts is not None:
        _whole(attempts, "attempts", 1)
    given: object = gates
    if not isinstance(given, Gates | None):
        raise TypeError(f"gates {gates!r} is refused: expected Gates, such as Gates(window='22:00-06:00')")
    return Settings(
        rate=None if rate is None else per_s(rate),
        canary=canary,
        slow_start=bool(slow_start),
        halve_on_failures=bool(halve_on_failures),
        stop_if=_stop(stop_if, canary),
        attempts=attempts,
        to_queue=as_text(to_queue, "to_queue"),
        delay_ms=milliseconds(delay, "delay"),
        spread_ms=milliseconds(spread, "spread"),
        keep_deadline=bool(keep_deadline),
        gates=gates,
        note=note,
    )


def estimate_s(settings: Settings, total: int) -> float:
    """How long it takes until all of them could run, if nothing fails, holds or stops it.

    Slow start makes 1/s for 10 s, then 2/s, 4/s, … up to the rate. A canary's verdict counts for a second.

    >>> estimate_s(Settings(rate=20.0), 100), estimate_s(Settings(rate=100.0, slow_start=True), 1270)
    (5.0, 70.0)
    """
    rate, left, past_s = settings.rate or MAX_PER_S, float(total), 0.0
    per_s = min(1.0, rate) if settings.slow_start else rate
    while per_s < rate and left > per_s * STEP_MS / 1000:
        left -= per_s * STEP_MS / 1000
        past_s += STEP_MS / 1000
        per_s = min(rate, per_s * 2)
    past_s += left / per_s
    judged_s = VERDICT_S if 0 < settings.canary < total else 0.0
    waits_s = (settings.delay_ms + settings.spread_ms) / 1000 if total else 0.0
    return round(past_s + judged_s + waits_s, 3)


def _stop(rule: str | None, canary: int) -> str:
    """The stop rule, as it is kept: empty for none. Where nothing is said, a canary has one."""
    if rule is None:
        return str(CANARY_STOP) if canary else ""
    return str(Stop.parse(rule)) if rule.strip() else ""


def _whole(value: int, what: str, least: int) -> None:
    if type(value) is not int or not least <= value <= COUNT_MAX:
        raise ConfigError(f"{what}={value!r}; expected a whole number from {least} up")
