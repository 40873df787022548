"""Gates of a re-driver: the breaker of a dependency, and a health URL. Checked before messages are moved, and again
during the run."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ...errors import ConfigError
from ...flow import dependency as flow
from ...flow.auto_redrive import AutoRedrive
from ...flow.gates import is_url
from ...store import Cells
from .settings import RedriverSettings
from .steps import DELAY_MAX_S

HEALTH_S = 60  # seconds until a health URL that failed is checked again
HEALTH_WITHIN_S = 6.0  # most seconds of a check, 5 of them to connect; a server that trickles bytes counts as down
FORCED_S = 60  # seconds until a breaker that a person holds open is checked again


class Shut(Struct, frozen=True):
    """A closed gate: nothing may be moved now, for the reason `why`; check again in `wait_s` seconds."""

    wait_s: int
    why: str


class Gate:
    """Checks the breaker and the health URL. Raises ConfigError for a health check that is not a URL."""

    def __init__(self, settings: RedriverSettings, cells: Cells | None, now_ms: Callable[[], int]) -> None:
        self._dependency, self._cells, self._now_ms = settings.dependency, cells, now_ms
        self._health = health_of(settings.auto)

    def shut(self) -> Shut | None:
        """Return why no message may be moved now and when to check again, or None. Waits for the health URL for at most
        six seconds. Raises StoreError if the breaker cannot be read."""
        return self._left_alone() or self._down()

    def _left_alone(self) -> Shut | None:
        if self._dependency is None or self._cells is None:
            return None
        name, _, key = self._dependency.partition("/")
        now_ms = self._now_ms()
        until_ms = held_until_ms(flow.decode(self._cells.read([flow.cell_of(name, key)])[0]), now_ms)
        wait_s = min(max(-(-(until_ms - now_ms) // 1000), 1), DELAY_MAX_S)
        return Shut(wait_s, f"{self._dependency} is not to be called now") if until_ms else None

    def _down(self) -> Shut | None:
        if self._health is None:
            return None
        from ...flow.health import HealthChecks  # imported late: most deployments have no health URL

        # A new object each time: a Lambda is frozen between calls, so a check in the background would not proceed.
        why = HealthChecks(first_s=HEALTH_WITHIN_S).down(self._health)
        return None if why is None else Shut(HEALTH_S, why)


def health_of(auto: AutoRedrive) -> str | None:
    """Return the health URL in the settings, or None. Raises ConfigError for a check given by its name."""
    health = auto.gates.health
    if health is not None and not is_url(health):
        raise ConfigError(
            f"health={health!r}: a re-driver has no app that knows checks by name; expected an http or https URL "
            "(REDRIVE_HEALTH_URL)"
        )
    return health


def held_until_ms(state: flow.DependencyState, now_ms: int) -> int:
    """Return the time until which breaker or cool-down forbid calls of the dependency; 0 if it may be called."""
    breaker = state.breaker
    if breaker.status == "forced_open":
        return now_ms + FORCED_S * 1000
    open_ms = breaker.until_ms if breaker.status == "open" else 0
    until_ms = max(open_ms, state.cool.until_ms)
    return until_ms if until_ms > now_ms else 0
