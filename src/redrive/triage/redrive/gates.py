"""Check the gates of a redrive: what must hold before it moves anything, checked again for as long as it moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ...flow import breaker as breakers
from ...flow import dependency as flow
from ...flow.breaker import Breaker
from ...flow.budget import Budget
from ...flow.dependency import Dependency, State
from ...flow.gates import Gates, window_of
from ...message import Handle
from ...registry import Registry
from .plan import Plan

KEYS_MAX = 1000  # messages whose keys are remembered
PROBE_WAIT_MS = 2000  # how long a half-open breaker waits for probes of what is in the queue before it is given some


class Approved(Protocol):
    """What a run's state says of its approval."""

    @property
    def approved_by(self) -> str: ...


def shut(plan: Plan, app: Registry, state: Approved, now_ms: int) -> str | None:
    """Why a run may move nothing now, as `closed`."""
    return closed(plan.settings.gates, app, plan.dependencies.values(), now_ms, approved=bool(state.approved_by))


def closed(
    gates: Gates | None, app: Registry, dependencies: Iterable[str], now_ms: int, *, approved: bool = False
) -> str | None:
    """Why nothing may be moved now, for people to read; None where all gates are open.

    `dependencies`: those of the messages' tasks, NAME or NAME/KEY; None for `gates` asks for what `Gates()` does. The
    words stay the same for as long as the gate does, so that a story can tell of changes only. Raises StoreError.
    """
    gates = gates or Gates()
    if gates.approval is not None and not approved:
        return f"approval by {gates.approval} is awaited"
    if gates.window is not None and not window_of(gates.window).holds(now_ms):
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


def alone(app: Registry, abouts: Sequence[str], now_ms: int) -> str | None:
    """Why one of these dependencies, NAME or NAME/KEY, is not to be called now. Raises StoreError."""
    return next((why for why in _said(app, abouts, now_ms).values() if why is not None), None)


def _said(app: Registry, abouts: Sequence[str], now_ms: int) -> dict[str, str | None]:
    """Of each why it is not to be called now; None where it may be."""
    cells = app.store.cells.read([f"flow/{about}" for about in abouts]) if abouts else []
    return {
        about: held(flow.decode(cell), _rule(app, about), about, now_ms)
        for about, cell in zip(abouts, cells, strict=True)
    }


class Keys:
    """What holds messages of a plan whose dependencies are split (`per=`), each by the key that it has."""

    def __init__(self, app: Registry, plan: Plan) -> None:
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


def _rule(app: Registry, about: str) -> Dependency:
    """As the app declares it; of one that a task only names, or that another app told of, as by default."""
    name = about.partition("/")[0]
    return app.dependencies.get(name) or Dependency(name, Budget(), Breaker())
