"""Check the gates of a redrive before each batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...flow import breaker as breakers
from ...flow import dependency as flow
from ...flow.breaker import Breaker
from ...flow.budget import Budget
from ...flow.dependency import Dependency, DependencyState
from ...flow.gates import Gates, window_of
from ...message import Handle
from ...registry import Registry

OUTSIDE_WINDOW = "outside its window"  # begins the reason of a run that waits for its time of day
KEYS_MAX = 1000  # most messages whose keys are cached
PROBE_WAIT_MS = 2000  # ms for which a half-open breaker probes with its queue's messages before a redrive moves any


def closed(
    gates: Gates | None, app: Registry, dependencies: Iterable[str], now_ms: int, *, approved: bool = False
) -> str | None:
    """Return why no messages may be moved now, in words; None if all gates are open.

    `dependencies` are those of the messages' tasks, as NAME or NAME/KEY; `gates=None` means `Gates()`. The text changes
    only when the reason does, so that a story can record changes. Raises StoreError.
    """
    gates = gates or Gates()
    if gates.approval is not None and not approved:
        return f"approval by {gates.approval} is awaited"
    if gates.window is not None and not window_of(gates.window).holds(now_ms):
        return f"{OUTSIDE_WINDOW} {gates.window}"
    if gates.breaker and (why := held_dependency(app, sorted(set(dependencies)), now_ms)):
        return why
    return None if gates.health is None else app.healths.down(gates.health)


def held(state: DependencyState, d: Dependency, about: str, now_ms: int) -> str | None:
    """Return why the dependency's breaker or cool-down stops redrives of its messages; None if neither does. Pure."""
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


def held_dependency(app: Registry, abouts: Sequence[str], now_ms: int) -> str | None:
    """Return why one of these dependencies is held, the first that is; None if none is. Raises StoreError."""
    return next((why for why in _reasons(app, abouts, now_ms).values() if why is not None), None)


def _reasons(app: Registry, abouts: Sequence[str], now_ms: int) -> dict[str, str | None]:
    """Return why each dependency must not be called now, by NAME or NAME/KEY; None if it may be called."""
    asked = {about: [(_rule(app, about), about), *_parent(_rule(app, about))] for about in abouts}
    names = sorted({name for rules in asked.values() for _, name in rules})
    cells = dict(zip(names, app.store.cells.read([f"flow/{name}" for name in names]) if names else [], strict=True))
    by_about = {about: [held(flow.decode(cells[n]), d, n, now_ms) for d, n in rules] for about, rules in asked.items()}
    return {about: next(filter(None, reasons), None) for about, reasons in by_about.items()}


class SplitDependencies:
    """The dependencies of a plan that are split by key (`per=`), so that each message is held by its own key."""

    def __init__(self, app: Registry, gates: Gates | None, dependencies: Mapping[str, str]) -> None:
        """`dependencies`: the dependency's name by task."""
        self._store, self._app = app.store, app
        breaker = (gates or Gates()).breaker
        rules = {task: app.dependencies.get(name) for task, name in dependencies.items() if breaker}
        self._rules = {task: d for task, d in rules.items() if d is not None and d.per is not None}
        self._abouts: dict[str, str | None] = {}  # NAME/KEY by message id; None if the message has no split dependency

    def __bool__(self) -> bool:
        return bool(self._rules)

    def first_held(self, handles: Sequence[Handle], now_ms: int) -> tuple[int, str] | None:
        """Return the index of the first held message, and why it is held; None if none is. Raises StoreError."""
        self._read_keys([handle.id for handle in handles])
        abouts = [self._abouts[handle.id] or "" for handle in handles]
        reasons = _reasons(self._app, sorted({*abouts} - {""}), now_ms)
        numbered = ((at, reasons.get(about)) for at, about in enumerate(abouts))
        return next(((at, why) for at, why in numbered if why is not None), None)

    def _read_keys(self, ids: Sequence[str]) -> None:
        """Cache the keys of the messages with these ids. A message that is gone has no key, and is not held."""
        new = [id for id in ids if id not in self._abouts]
        if len(self._abouts) > KEYS_MAX:
            self._abouts, new = {}, [*ids]
        for id, message in zip(new, self._store.find(new) if new else (), strict=True):
            d = None if message is None else self._rules.get(message.task)
            key = "" if d is None or message is None else flow.key_of(d, message)
            self._abouts[id] = flow.about_of(d.name, key) if d is not None and key else None


def _parent(d: Dependency) -> list[tuple[Dependency, str]]:
    """Return the breaker over all keys of d, as a dependency, and its name; empty if d has no such breaker."""
    parent = flow.parent_of(d)
    return [] if parent is None else [(parent, parent.name)]


def _rule(app: Registry, about: str) -> Dependency:
    """Return the dependency as the app declares it; one with defaults if the app does not declare it."""
    name = about.partition("/")[0]
    return app.dependencies.get(name) or Dependency(name, Budget(), Breaker())
