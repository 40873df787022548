"""Gates of a re-driver: the breaker of the dependency that its queue's tasks call, and a health URL.

Both are checked before it moves anything, and again while it does.
"""

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

HEALTH_S = 60  # when to ask again for what was not up
HEALTH_WITHIN_S = 6.0  # it may take 5 s to connect; one that then sends a byte now and then is not up either
FORCED_S = 60  # when to look again at a breaker that a person holds open, until they let go


class Shut(Struct, frozen=True):
    """Nothing is to be moved now; look again in `wait_s`."""

    wait_s: int
    why: str


class Gate:
    """Checks both. Raises ConfigError for a health check that is not a URL."""

    def __init__(self, settings: RedriverSettings, cells: Cells | None, now_ms: Callable[[], int]) -> None:
        self._dependency, self._cells, self._now_ms = settings.dependency, cells, now_ms
        self._health = health_of(settings.auto)

    def shut(self) -> Shut | None:
        """Why nothing may be moved now; None where it may. It waits for the health URL for six seconds at most. Raises
        StoreError where the breaker cannot be read."""
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
        from ...flow.health import HealthChecks  # most deployments have none to ask

        # Made each time, so that no answer is awaited behind the back of a function, which stands still between calls.
        why = HealthChecks(first_s=HEALTH_WITHIN_S).down(self._health)
        return None if why is None else Shut(HEALTH_S, why)


def health_of(auto: AutoRedrive) -> str | None:
    """The URL that must be up. Raises ConfigError for a check by its name."""
    health = auto.gates.health
    if health is not None and not is_url(health):
        raise ConfigError(
            f"health={health!r}: a re-driver has no app that knows checks by name; expected an http or https URL "
            "(REDRIVE_HEALTH_URL)"
        )
    return health


def held_until_ms(state: flow.DependencyState, now_ms: int) -> int:
    """Until when a dependency is to be left alone, by its breaker or as it asked; 0 where it may be called."""
    breaker = state.breaker
    if breaker.status == "forced_open":
        return now_ms + FORCED_S * 1000
    open_ms = breaker.until_ms if breaker.status == "open" else 0
    until_ms = max(open_ms, state.cool.until_ms)
    return until_ms if until_ms > now_ms else 0
