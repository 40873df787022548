"""Gates: conditions that a redrive checks before each batch that it moves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
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

ANYONE = "anyone"
KEYS_MAX = 1000  # messages whose keys are remembered
PROBE_WAIT_MS = (
    2000  # how long a half-open breaker waits for messages of its queue to probe with before a redrive moves
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WINDOW = re.compile(r"\s*([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})(?:\s+(\S+))?\s*", re.ASCII)


class Gates(Struct, frozen=True):
    """Conditions for a redrive to move messages. While one does not hold, it waits, and then continues by itself.

    - `breaker`: the circuit breakers of the dependencies of the messages' tasks are closed, and no dependency is in
      cool-down. A half-open breaker lets messages through if no other message is there to probe with. A split
      dependency (`per=`) has a breaker for each key: a run continues up to the first message whose key is held, and
      waits there.
    - `health`: a URL that answers a GET with 2xx within 5 s (redirects are not followed), or the name of a check that
      the app registered by `app.dlq.health("crm-up", fn)`. Called at most once a second.
    - `approval`: the person who must approve first (`redrive run approve ID`): `"ann"`, at any host, `"ann@ops"`, or
      `"anyone"`.
    - `window`: the time of day: `"22:00-06:00 Europe/Zurich"`, in UTC without a zone. When it ends, messages that were
      moved still run.

    Raises ConfigError for a bad value.
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
        """Whether this person may approve. A name without a host is that person at any host."""
        wanted = self.approval
        if wanted is None or wanted in (ANYONE, actor):
            return True
        return "@" not in wanted and actor.partition("@")[0] == wanted


class Window(NamedTuple):
    """A time of day in a zone, from minute `start` up to minute `end`; past midnight if `end` is earlier."""

    start: int
    end: int
    zone: tzinfo

    def holds(self, now_ms: int) -> bool:
        """Whether the window is open now."""
        at = (_EPOCH + timedelta(milliseconds=now_ms)).astimezone(self.zone)
        minute = at.hour * 60 + at.minute
        return self.start <= minute < self.end if self.start < self.end else not self.end <= minute < self.start


def closed(
    gates: Gates | None, app: App, dependencies: Iterable[str], now_ms: int, *, approved: bool = False
) -> str | None:
    """Why nothing may be moved now, for people; None if all gates are open.

    `dependencies` are those of the messages' tasks, as NAME or NAME/KEY; `gates=None` means `Gates()`. The text changes
    only when the reason does, so that a story can record changes. Raises StoreError.
    """
    gates = gates or Gates()
    if gates.approval is not None and not approved:
        return f"approval by {gates.approval} is awaited"
    if gates.window is not None and not _window(gates.window).holds(now_ms):
        return f"outside its window {gates.window}"
    if gates.breaker and (why := held_dependency(app, sorted(set(dependencies)), now_ms)):
        return why
    return None if gates.health is None else app.healths.down(gates.health)


def held(state: State, d: Dependency, about: str, now_ms: int) -> str | None:
    """Why breaker or cool-down of a dependency forbid to move its messages; None if they do not. Pure."""
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


def held_dependency(app: App, abouts: Sequence[str], now_ms: int) -> str | None:
    """Why the first of these dependencies (NAME or NAME/KEY) that is held is not to be called now; None if none is.
    Raises StoreError."""
    return next((why for why in _reasons(app, abouts, now_ms).values() if why is not None), None)


def _reasons(app: App, abouts: Sequence[str], now_ms: int) -> dict[str, str | None]:
    """By dependency, why it is not to be called now, or None."""
    cells = app.store.cells.read([f"flow/{about}" for about in abouts]) if abouts else []
    return {
        about: held(flow.decode(cell), _rule(app, about), about, now_ms)
        for about, cell in zip(abouts, cells, strict=True)
    }


class SplitDependencies:
    """The dependencies of a plan that are split (`per=`): each holds messages by their own keys."""

    def __init__(self, app: App, gates: Gates | None, dependencies: Mapping[str, str]) -> None:
        """`dependencies`: the name of each task's dependency."""
        self._store, self._app = app.store, app
        breaker = (gates or Gates()).breaker
        rules = {task: app.dependencies.get(name) for task, name in dependencies.items() if breaker}
        self._rules = {task: d for task, d in rules.items() if d is not None and d.per is not None}
        self._abouts: dict[str, str | None] = {}  # by message id; None: no split dependency

    def __bool__(self) -> bool:
        return bool(self._rules)

    def first_held(self, handles: Sequence[Handle], now_ms: int) -> tuple[int, str] | None:
        """The index of the first message that may not be moved now, and why; None if all may. Raises StoreError."""
        self._read_keys([handle.id for handle in handles])
        abouts = [self._abouts[handle.id] or "" for handle in handles]
        reasons = _reasons(self._app, sorted({*abouts} - {""}), now_ms)
        found = ((at, reasons.get(about)) for at, about in enumerate(abouts))
        return next(((at, why) for at, why in found if why is not None), None)

    def _read_keys(self, ids: Sequence[str]) -> None:
        """Read the keys of these messages. Nothing holds a message that is gone."""
        new = [id for id in ids if id not in self._abouts]
        if len(self._abouts) > KEYS_MAX:
            self._abouts, new = {}, [*ids]
        for id, message in zip(new, self._store.find(new) if new else (), strict=True):
            d = None if message is None else self._rules.get(message.task)
            key = "" if d is None or message is None else flow.key_of(d, message)
            self._abouts[id] = flow.about_of(d.name, key) if d is not None and key else None


def _rule(app: App, about: str) -> Dependency:
    """The dependency as the app declares it; by default for one that the app only names, or does not know."""
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
        raise ConfigError(f"gates: window={text!r} is not a time of day; {expected}")
    from ...schedule.cron import zone_of  # lazy: schedules import asyncio, which few commands need

    return Window(start, end, zone_of(found[5] or "UTC"))


def is_url(health: str) -> bool:
    """Whether this is a URL, and not the name of a check."""
    return health.startswith(("http://", "https://"))
