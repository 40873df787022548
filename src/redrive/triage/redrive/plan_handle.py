"""A plan in hand: drawn up of a selection, or found again; shown, and started after what speaks against it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...audit.actor import signed
from ...duration import Duration, milliseconds, show
from ...errors import PlanRefused
from ...message import DAMAGED, Handle, Lane, Message
from ...registry import Registry
from ...store import Store
from ..annotations import held_fingerprints
from ..deaths import died_of
from .plan import KEPT_MS, Plan, check, chunks, draw_up, read_chunk, read_plan
from .run import Run
from .run_state import state_cell
from .runs import begin
from .settings import Settings

if TYPE_CHECKING:
    from ..select.selector import Selection

MAX_AGE = "24h"
QUARANTINED, HELD, NO_TASK, UNREAD = "quarantined", "held", "no such task", "unread"


class PlanHandle:
    """A plan that is kept in the store: `plan` is what it says, `start` carries it out."""

    def __init__(self, store: Store, plan: Plan, app: Registry | None = None) -> None:
        self.plan = plan
        self._store, self._app = store, app

    @classmethod
    def of(cls, store: Store, selection: Selection, settings: Settings, app: Registry | None = None) -> PlanHandle:
        """A new plan of a selection. Raises StoreError."""
        excluded: Counter[str] = Counter()
        chosen = _chosen(store, selection, app, excluded)
        return cls(store, draw_up(store, chosen, str(selection), settings, app=app, excluded=excluded), app)

    @classmethod
    def find(cls, store: Store, id: str, app: Registry | None = None) -> PlanHandle:
        """The plan of this id. Raises PlanRefused."""
        return cls(store, _read(store, id), app)

    @property
    def id(self) -> str:
        """Its id, and that of the run which carries it out."""
        return self.plan.id

    @property
    def total(self) -> int:
        """How many messages it would move."""
        return self.plan.total

    @property
    def by_queue(self) -> Mapping[str, int]:
        """How many of each queue, the most first."""
        return self.plan.by_queue

    @property
    def by_task(self) -> Mapping[str, int]:
        """How many of each task, the most first."""
        return self.plan.by_task

    @property
    def by_age(self) -> Mapping[str, int]:
        """How many by how long they have been dead, each age without what is under the one before it."""
        return self.plan.by_age

    @property
    def excluded(self) -> Mapping[str, int]:
        """How many were left out, by why: quarantined, held, damaged, no such task, unread."""
        return self.plan.excluded

    @property
    def eta_s(self) -> float:
        """About how long the run takes, if nothing fails or holds it."""
        return self.plan.eta_s

    def __repr__(self) -> str:
        return f"<plan {self.id}: {self.total} messages in about {show(self.eta_s)}>"

    def handles(self) -> Iterator[Handle]:
        """The messages that it froze, as they were seen. Raises PlanRefused where they are gone."""
        for n in range(self.plan.chunks):
            yield from read_chunk(self._store.cells, self.id, n)

    def ids(self) -> Iterator[str]:
        """Their ids."""
        return (handle.id for handle in self.handles())

    def check(self, *, reason: str, max_age: Duration | None = MAX_AGE) -> None:
        """Raises PlanRefused, and says why, where `start` would: no reason, unknown, applied, altered, too old, empty.

        `max_age`: how long ago it may have been drawn up; None: as long as it is kept.
        """
        if not reason or not reason.strip():
            raise PlanRefused("no reason is given", "say why it is done, for those who look later", "reason")
        (run,) = self._store.cells.read([state_cell(self.id)])
        if run is not None:
            why = "one plan makes one run; draw up another for what is still dead"
            raise PlanRefused(f"plan {self.id} was applied already", why, "applied")
        if _read(self._store, self.id) != self.plan:
            raise PlanRefused(f"plan {self.id} was altered since it was drawn up", "draw up another", "altered")
        check(self._store.cells, self.plan)
        self._check_age(max_age)
        if not self.total:
            raise PlanRefused(f"plan {self.id} is empty", f"nothing was chosen by {self.plan.selector!r}", "empty")

    def start(self, *, reason: str, actor: str | None = None, max_age: Duration | None = MAX_AGE) -> Run:
        """Carry it out: write the run, which any worker on the store carries from then on, and `run.wait()` too.

        `reason` and `actor` (user@host unless given) stand in the audit log and in the run's story. Raises PlanRefused
        as `check`, ConfigError, StoreError.
        """
        self.check(reason=reason, max_age=max_age)
        name, why = signed(actor, reason, f"start of plan {self.id}")
        begin(self._store, self.plan, actor=name, reason=why)
        return Run(self._store, self.id, self._app)

    def _check_age(self, max_age: Duration | None) -> None:
        past_ms = self._store.now_ms() - self.plan.made_ms
        if max_age is not None and past_ms > milliseconds(max_age, "max_age"):
            most, past = show(milliseconds(max_age, "max_age") / 1000), show(past_ms / 1000)
            why = f"at most {most} is allowed; draw up another, for what is dead now"
            raise PlanRefused(f"plan {self.id} was drawn up {past} ago", why, "old")


def _read(store: Store, id: str) -> Plan:
    plan = read_plan(store.cells, id)
    if plan is None:
        kept = show(KEPT_MS / 1000)
        raise PlanRefused(f"there is no plan {id!r}", f"one that nobody applies is kept for {kept}", "unknown")
    return plan


def _chosen(store: Store, selection: Selection, app: Registry | None, excluded: Counter[str]) -> Iterator[Message]:
    """What of a selection a plan takes; what it leaves out is counted in `excluded`."""
    known = app.tasks if app is not None and app.tasks else None
    held = held_fingerprints(store)
    for some in chunks(selection):
        holds = died_of(store, some, held)
        for message in some:
            if message.damage is not None:
                excluded[DAMAGED] += 1
            elif message.id in holds:
                excluded[HELD] += 1
            elif known is not None and message.task not in known:
                excluded[NO_TASK] += 1
            else:
                yield message
    excluded[UNREAD] += selection.unread
    excluded[QUARANTINED] += selection.count_unnamed(Lane.QUARANTINE)
