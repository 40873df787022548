"""The dead lane in hand, `app.dlq`: list, show, group, retry; and the way to selections, plans, runs and the rest."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..audit.actor import signed
from ..duration import Duration, milliseconds
from ..errors import ConfigError
from ..message import RESTING, FailureGroup, Lane, Message, Page, Redrive, Where
from ..registry import Registry
from ..store import Store
from .actions import Batches, Mended, Mending
from .annotations import Sayings, held_fingerprints
from .auto import state
from .auto.state import Machine
from .deaths import died_of
from .pages import PAGE, pages
from .select.selector import Selection, as_node

if TYPE_CHECKING:
    from ..flow.health import Check
    from .redrive.plan_handle import PlanHandle
    from .redrive.run import Run, RunView


class Retried(Mended, frozen=True):
    """What a retry did: the ids that went back to their queues, those that were not at rest any more, those unknown,
    and how many a standing rule held back."""

    held: int = 0


class DeadLetters(Sayings, Mending):
    """The dead messages of a store. Iterating yields all of them, the longest dead first."""

    def __init__(self, store: Store, app: Registry | None = None) -> None:
        """`app`: what knows the tasks, for plans to leave out what no task is there for."""
        self._store, self._app = store, app

    def __iter__(self) -> Iterator[Message]:
        return self.all()

    def all(self, *, where: Where = Where(), lane: Lane | str = Lane.DEAD) -> Iterator[Message]:
        """Every message that matches, the longest dead first, read page by page."""
        for page in pages(self._store, _resting(lane), where):
            yield from page

    def select(self, selector: str = "", *, now_ms: int | None = None) -> Selection:
        """What a selector names among those that are dead now, or were at `now_ms`: `"queue:crm failed:<6h"`.

        Quarantined messages are in it only by `lane:quarantine`, kept done ones only by `lane:done`. Raises
        SelectorError, which points at the mistake.
        """
        return Selection(self._store, selector, now_ms, app=self._app)

    def plan(self, id: str) -> PlanHandle:
        """A plan that was drawn up before, by `select(…).plan(…)` or `redrive dlq plan`. Raises PlanRefused where there
        is none of this id; one that nobody applies is kept for 7 days."""
        from .redrive.plan_handle import PlanHandle

        return PlanHandle.find(self._store, id, self._app)

    def run(self, id: str) -> Run:
        """The run of this id, which is its plan's. Raises ConfigError where there is none."""
        from .redrive.run import Run

        run = Run(self._store, id, self._app)
        run.view()
        return run

    def runs(self, limit: int = 50) -> Sequence[RunView]:
        """The last runs, those that are under way first, each the newest first."""
        from .redrive.run import views

        return views(self._store, limit)

    def list(
        self, *, where: Where = Where(), lane: Lane | str = Lane.DEAD, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """One page; its `cursor` leads to the next.

        Raises ConfigError for a lane where nothing rests, ValueError for a cursor that no page gave.
        """
        return self._store.peek(_resting(lane), where=where, limit=limit, cursor=cursor)

    def show(self, id: str) -> Message | None:
        """The dead or quarantined message with this id; None if there is none."""
        found = self._store.find([id])[0]
        return found if found is not None and found.lane in RESTING else None

    def groups(self, *, where: Where = Where(), trend: bool = False) -> Sequence[FailureGroup]:
        """Dead messages by fingerprint and task, the largest group first; with `trend`, how many of each died in the
        last hour and in the one before."""
        return self._store.failure_groups(where=where, trend=trend)

    def auto(self, scope: str | None = None) -> Sequence[Machine]:
        """The machines that drive dead messages back by themselves, or this one, each with its state and its story.

        A scope is `queue/NAME` or `fingerprint/FP`; the name alone will do. Raises ConfigError for one that has none.
        """
        return state.machines(self._store, scope)

    def pause_auto(self, scope: str, *, reason: str, actor: str | None = None) -> Machine:
        """Let a machine begin nothing until it is resumed, in every process; a run that is under way goes on. Raises
        ConfigError where there is no such machine, or no reason."""
        return state.pause(self._store, scope, reason=reason, actor=actor)

    def resume_auto(self, scope: str, *, reason: str, actor: str | None = None) -> Machine:
        """Let it go on. Raises as `pause_auto`."""
        return state.resume(self._store, scope, reason=reason, actor=actor)

    def health(self, name: str, check: Check) -> None:
        """Let gates ask `check` by this name, in every process that may carry a redrive: `Gates(health="crm-up")`.

        `check()`, `def` or `async def`, is true where all is well, and may raise where it is not; it is called at most
        once a second, on a thread of its own. Raises ConfigError.
        """
        if self._app is None:
            raise ConfigError(f"health check {name!r}: a store alone knows no checks; use app.dlq.health(…)")
        self._app.healths.register(name, check)

    def retry(
        self,
        ids: Iterable[str] | None = None,
        *,
        all: bool = False,
        where: Where = Where(),
        select: str | Selection | None = None,
        to_queue: str | None = None,
        delay: Duration = 0,
        attempts: int | None = None,
        reason: str = "",
        actor: str | None = None,
    ) -> Retried:
        """Send messages back to their queues (or `to_queue`) for a fresh life of `attempts` (None: the policy's).

        Give `ids`, of dead or quarantined messages, or `all=True` for every dead one that matches `where`, or `select`,
        a selector or a selection; quarantined ones must be named, and so must those of a failure group that a standing
        rule holds: `held` counts them. Each batch of 500 is one commit, with its entry in
        the audit log: who (None: user@host), and why, where a reason is given. A message that dies again meanwhile is
        not moved twice. Raises ConfigError, StoreError.
        """
        if (ids is not None) + all + (select is not None) != 1 or isinstance(ids, str):
            raise ConfigError(
                f"retry(ids={ids!r}, all={all!r}, select={select!r}): give a sequence of ids, or all=True, or select=, "
                "and only one of them"
            )
        if attempts is not None and attempts < 1:
            raise ConfigError(f"attempts={attempts!r}; expected 1 or more")
        verdict = Redrive(to_queue, milliseconds(delay, "delay"), attempts)
        batches = Batches(self._store, verdict, "retry", *signed(actor, reason, "retry", needed=False))
        if select is not None:
            if where != Where():
                raise ConfigError(f"retry(select=…, where={where!r}): say it all in the selector")
            chosen = self.select(select) if isinstance(select, str) else select
            messages, about = iter(chosen), str(chosen)
        elif ids is None:
            before_ms = self._store.now_ms() + 1  # what dies from now on is not this call's
            until_ms = before_ms if where.until_ms is None else min(where.until_ms, before_ms)
            messages, about = self.all(where=replace(where, until_ms=until_ms)), str(as_node(where))
        else:
            done = batches.of_ids(builtins.list(dict.fromkeys(ids)))
            return Retried(done.ids, done.changed, done.unknown)
        held: builtins.list[str] = []
        done = batches.of(self._free(messages, held), about or "all")
        return Retried(done.ids, done.changed, done.unknown, len(held))

    def _free(self, messages: Iterator[Message], held: builtins.list[str]) -> Iterator[Message]:
        """Those that can be read and that no standing rule holds; the ids of those that one holds join `held`."""
        fingerprints = held_fingerprints(self._store)
        while some := builtins.list(islice(messages, PAGE)):
            ids = died_of(self._store, some, fingerprints)
            held += ids
            yield from (message for message in some if message.id not in ids and message.damage is None)


def _resting(lane: Lane | str) -> Lane:
    if lane not in RESTING:
        raise ConfigError(f"lane {str(lane)!r} holds no dead letters; expected 'dead' or 'quarantine'")
    return Lane(lane)
