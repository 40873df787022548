"""Gates: what must hold before a redrive moves anything, asked again for as long as it moves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from ...errors import ConfigError
from ...flow import breaker as breakers
from ...flow import dependency as flow
from ...flow.breaker import Breaker
from ...flow.budget import Budget
from ...flow.dependency import Dependency, State
from ...message import Handle

if TYPE_CHECKING:
    from ...app import App
    from .plan import Plan

ANYONE = "anyone"
KEYS_MAX = 1000  # messages whose keys are remembered
PROBE_WAIT_MS = 2000  # how long a half-open breaker waits for probes of what is in the queue before it is given some
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WINDOW = re.compile(r"\s*([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})(?:\s+(\S+))?\s*", re.ASCII)


class Gates(Struct, frozen=True):
    """What must hold while a redrive moves messages; it waits otherwise, and goes on by itself.

    - `breaker`: nothing is moved while the circuit breaker of a dependency of the messages' tasks is open, or while the
      dependency asked to be left alone. One that is half-open lets them go when nothing else is there to probe with. Of
      a dependency that is split (`per=`) the breaker of each message's own key is asked: a run goes on up to the first
      message whose key is held, and waits there.
    - `health`: a URL that must answer a GET with 2xx within 5 s (redirects are not followed), or the name of a check
      that the app knows by `app.dlq.health("crm-up", fn)`. Asked at most once a second.
    - `approval`: a person who must approve first (`redrive run approve ID`): `"ann"`, who may be ann at any host,
      `"ann@ops"`, or `"anyone"`.
    - `window`: the time of day when it may move: `"22:00-06:00 Europe/Zurich"`, on UTC's clocks without a zone. What
      ends then is not moved any more; what was moved runs on.

    Raises ConfigError for what cannot be meant.
    """

    breaker: bool = True
    health: str | None = None
    approval: str | None = None
    window: str | None = None

    def __post_init__(self) -> None:
        breaker: object = self.breaker
        if not isinstance(breaker, bool):
            raise ConfigError(f"gates: breaker={breaker!r}; expected True or False")
        for what in ("health", "approval", "window"):
            value = getattr(self, what)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ConfigError(f"gates: {what}={value!r}; expected text, or None for no such gate")
        if self.health is not None:
            _check_health(self.health)
        if self.window is not None:
            _window(self.window)

    def may_approve(self, actor: str) -> bool:
        """Whether this person's approval is the one that is waited for: a name alone is that person at any host."""
        wanted = self.approval
        if wanted is None or wanted in (ANYONE, actor):
            return True
        return "@" not in wanted and actor.partition("@")[0] == wanted


class Window(NamedTuple):
    """A time of day on the clocks of a zone, from minute `start` up to `end`; over midnight where that is earlier."""

    start: int
    end: int
    zone: tzinfo

    def holds(self, now_ms: int) -> bool:
        """Whether it is that time now."""
        at = (_EPOCH + timedelta(milliseconds=now_ms)).astimezone(self.zone)
        minute = at.hour * 60 + at.minute
        return self.start <= minute < self.end if self.start < self.end else not self.end <= minute < self.start


class Approved(Protocol):
    """What a run's state says of its approval."""

    @property
    def approved_by(self) -> str: ...


def shut(plan: Plan, app: App, state: Approved, now_ms: int) -> str | None:
    """Why a run may move nothing now, as `closed`."""
    return closed(plan.settings.gates, app, plan.dependencies.values(), now_ms, approved=bool(state.approved_by))


def closed(
    gates: Gates | None, app: App, dependencies: Iterable[str], now_ms: int, *, approved: bool = False
) -> str | None:
    """Why nothing may be moved now, for people to read; None where all gates are open.

    `dependencies`: those of the messages' tasks, NAME or NAME/KEY; None for `gates` asks for what `Gates()` does. The
    words stay the same for as long as the gate does, so that a story can tell of changes only. Raises StoreError.
    """
    gates = gates or Gates()
    if gates.approval is not None and not approved:
        return f"approval by {gates.approval} is awaited"
    if gates.window is not None and not _window(gates.window).holds(now_ms):
        return f"outside its window {gates.window}"
    if gates.breaker and (why := alone(app, sorted(set(dependencies)), now_ms)):
        return why
    return None if gates.health is None else app.healths.down(gates.health)


def held(state: State, d: Dependency, about: str, now_ms: int) -> str | None:
    """Why the controls of a dependency want nothing moved; None where they do not mind. Pure."""
    if state.cool.until_ms > now_ms:
        return f"{about} asked to be left alone"
    if d.breaker is None:
        return None
    breaker = breakers.look(state.breaker, d.breaker, now_ms)
    match breaker.status:
        case "forced_open":
            return f"the breaker of {about} is held open"
        case "open":
            return f"the breaker of {about} is open"
        case "half_open" if breaker.probes or now_ms - breaker.since_ms < PROBE_WAIT_MS:
            return f"the breaker of {about} is half-open"
        case _:
            return None


def alone(app: App, abouts: Sequence[str], now_ms: int) -> str | None:
    """Why one of these dependencies, NAME or NAME/KEY, is not to be called now. Raises StoreError."""
    return next((why for why in _said(app, abouts, now_ms).values() if why is not None), None)


def _said(app: App, abouts: Sequence[str], now_ms: int) -> dict[str, str | None]:
    """Of each why it is not to be called now; None where it may be."""
    cells = app.store.cells.read([f"flow/{about}" for about in abouts]) if abouts else []
    return {
        about: held(flow.decode(cell), _rule(app, about), about, now_ms)
        for about, cell in zip(abouts, cells, strict=True)
    }


class Keys:
    """What holds messages of a plan whose dependencies are split (`per=`), each by the key that it has."""

    def __init__(self, app: App, plan: Plan) -> None:
        self._store, self._app = app.store, app
        gates = plan.settings.gates or Gates()
        rules = {task: app.dependencies.get(name) for task, name in plan.dependencies.items() if gates.breaker}
        self._rules = {task: d for task, d in rules.items() if d is not None and d.per is not None}
        self._abouts: dict[str, str | None] = {}  # by id, of those that were looked at; None: nothing that is split

    def __bool__(self) -> bool:
        return bool(self._rules)

    def first_held(self, handles: Sequence[Handle], now_ms: int) -> tuple[int, str] | None:
        """The first that may not be moved now, by its place, and why; None where all may. Raises StoreError."""
        self._look([handle.id for handle in handles])
        abouts = [self._abouts[handle.id] or "" for handle in handles]
        why = _said(self._app, sorted({*abouts} - {""}), now_ms)
        found = ((at, why.get(about)) for at, about in enumerate(abouts))
        return next(((at, said) for at, said in found if said is not None), None)

    def _look(self, ids: Sequence[str]) -> None:
        """Find the keys of these. What is not there any more is held by nothing."""
        new = [id for id in ids if id not in self._abouts]
        if len(self._abouts) > KEYS_MAX:
            self._abouts, new = {}, [*ids]
        for id, message in zip(new, self._store.find(new) if new else (), strict=True):
            d = None if message is None else self._rules.get(message.task)
            key = "" if d is None or message is None else flow.key_of(d, message)
            self._abouts[id] = flow.about_of(d.name, key) if d is not None and key else None


def _rule(app: App, about: str) -> Dependency:
    """As the app declares it; of one that a task only names, or that another app told of, as by default."""
    name = about.partition("/")[0]
    return app.dependencies.get(name) or Dependency(name, Budget(), Breaker())


def _check_health(health: str) -> None:
    if "://" not in health:
        return
    parts = urlsplit(health)
    if not is_url(health) or not parts.hostname:
        raise ConfigError(f"gates: health={health!r}; expected an http or https URL, or the name of a check")
    if parts.username is not None:
        raise ConfigError(
            "gates: health= has a user in its URL, which would be stored; register a check by name instead"
        )


@lru_cache(maxsize=64)
def _window(text: str) -> Window:
    found = _WINDOW.fullmatch(text)
    expected = "expected times of day such as '22:00-06:00 Europe/Zurich', in UTC without a zone"
    if found is None:
        raise ConfigError(f"gates: window={text!r}; {expected}")
    start, end = (int(found[at]) * 60 + int(found[at + 1]) for at in (1, 3))
    if start >= 1440 or end > 1440 or max(int(found[2]), int(found[4])) > 59 or start == end:
        raise ConfigError(f"gates: window={text!r} is no time of day that begins and ends; {expected}")
    from ...schedule.cron import zone_of  # schedules bring asyncio, which few commands need

    return Window(start, end, zone_of(found[5] or "UTC"))


def is_url(health: str) -> bool:
    """Whether it is asked by GET, and not called by name."""
    return health.startswith(("http://", "https://"))
