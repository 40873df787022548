"""Work on dead letters by `app.dlq`: list, show, group and retry messages; select and plan; find runs and machines."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..audit import signed
from ..duration import Duration, milliseconds
from ..errors import ConfigError
from ..message import RESTING, FailureGroup, Filter, Lane, Message, Page, Redrive
from ..registry import Registry
from ..store import PAGE, Store, pages
from .actions import ActionResult, Actions, VerdictBatches
from .annotations import Annotations
from .auto import machine
from .auto.machine import Machine
from .auto.rules import held_fingerprints
from .group_states import combined, read_states
from .lanes import at_rest
from .search import died_of
from .select.parser import parse
from .select.terms import as_node
from .selection import Selection

if TYPE_CHECKING:  # only for types: commands without plans and runs start faster without these modules
    from ..flow.health import Check
    from .redrive.plan import PlanHandle
    from .redrive.run import Run, RunView


class Retried(ActionResult, frozen=True):
    """The result of a retry: ids of messages returned to their queues, ids of those that had changed, unknown ids, and
    the number of messages that a standing rule held."""

    held: int = 0


class DeadLetters(Annotations, Actions):
    """The dead messages of a store. Iterating yields all of them, the longest dead first."""

    def __init__(self, store: Store, app: Registry | None = None) -> None:
        """With `app`, plans leave out messages of unknown tasks."""
        self._store, self._app = store, app

    def __iter__(self) -> Iterator[Message]:
        return self.all()

    def all(self, *, where: Filter = Filter(), lane: Lane | str = Lane.DEAD) -> Iterator[Message]:
        """Yield the messages of the lane that match `where`, the longest dead first, read page by page."""
        for page in pages(self._store, _resting(lane), where):
            yield from page

    def select(self, selector: str = "", *, now_ms: int | None = None) -> Selection:
        """The messages that match a selector such as `"queue:crm failed:<6h"`, of those dead now or at `now_ms`.

        Quarantined messages are included only by `lane:quarantine`, and kept done messages only by `lane:done`. Raises
        SelectorError, which points at the mistake; `app.select` selects messages that wait or run too.
        """
        return Selection(self._store, at_rest(parse(selector)), now_ms, app=self._app)

    def plan(self, id: str) -> PlanHandle:
        """Return the plan with this id, made by `select(…).plan(…)` or `redrive dlq plan`. Raises PlanRefused if there
        is none; a plan that is not started is kept for 7 days."""
        from .redrive.plan import PlanHandle

        return PlanHandle.find(self._store, id, self._app)

    def run(self, id: str) -> Run:
        """Return the run with this id, which is also that of its plan. Raises ConfigError if there is none."""
        from .redrive.run import Run

        run = Run(self._store, id, self._app)
        run.view()
        return run

    def runs(self, limit: int = 50) -> Sequence[RunView]:
        """Return the last runs: the open ones, then the closed ones, the newest first in both."""
        from .redrive.run import views

        return views(self._store, limit)

    def list(
        self, *, where: Filter = Filter(), lane: Lane | str = Lane.DEAD, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """One page of messages; its `cursor` leads to the next.

        Raises ConfigError for a lane other than dead and quarantine, ValueError for a cursor that no page returned.
        """
        return self._store.peek(_resting(lane), where=where, limit=limit, cursor=cursor)

    def show(self, id: str) -> Message | None:
        """Return the dead or quarantined message with this id; None if no such message is at rest."""
        message = self._store.find([id])[0]
        return message if message is not None and message.lane in RESTING else None

    def groups(self, *, where: Filter = Filter(), trend: bool = False) -> Sequence[FailureGroup]:
        """Count dead messages by fingerprint and task, the largest group first; with `trend`, also the deaths in the
        last ten minutes and in the fifty minutes before. Merged groups are one."""
        return combined(read_states(self._store), self._store.failure_groups(where=where, trend=trend))

    def auto(self, scope: str | None = None) -> Sequence[Machine]:
        """Return the machines that redrive automatically, or the one of this scope, each with its state and story.

        A scope is `queue/NAME` or `fingerprint/FP`; the name alone is enough. Raises ConfigError for an unknown scope.
        """
        return machine.machines(self._store, scope)

    def pause_auto(self, scope: str, *, reason: str, actor: str | None = None) -> Machine:
        """Let the machine of this scope start no more runs, in any process, until it is resumed; an open run continues.
        Raises ConfigError for an unknown scope or without a reason."""
        return machine.pause(self._store, scope, reason=reason, actor=actor)

    def resume_auto(self, scope: str, *, reason: str, actor: str | None = None) -> Machine:
        """Let a paused machine continue. Raises as `pause_auto`."""
        return machine.resume(self._store, scope, reason=reason, actor=actor)

    def health(self, name: str, check: Check) -> None:
        """Register a health check for gates: `Gates(health="crm-up")`. Every process that runs redrives needs it.

        `check()`, `def` or `async def`, returns a true value if healthy, and may raise otherwise. It is called at most
        once a second, on a thread of its own. Raises ConfigError.
        """
        if self._app is None:
            raise ConfigError(f"health check {name!r}: only an app has health checks; use app.dlq.health(…)")
        self._app.healths.register(name, check)

    def retry(
        self,
        ids: Iterable[str] | None = None,
        *,
        all: bool = False,
        where: Filter = Filter(),
        select: str | Selection | None = None,
        to_queue: str | None = None,
        delay: Duration = 0,
        attempts: int | None = None,
        reason: str = "",
        actor: str | None = None,
    ) -> Retried:
        """Send messages back to their queues (or `to_queue`) with `attempts` new attempts (None: the policy's).

        Give `ids` of dead or quarantined messages, or `all=True` for every dead message that matches `where`, or
        `select`, a selector or a selection. Quarantined messages must be named, and so must messages that a standing
        rule holds; `held` counts the latter. Each batch of 500 is one commit with its entry in the audit log, which
        records `actor` (default: user@host) and `reason`. A message that dies again meanwhile is not moved twice.
        Raises ConfigError, StoreError.
        """
        if (ids is not None) + all + (select is not None) != 1 or isinstance(ids, str):
            raise ConfigError(
                f"retry(ids={ids!r}, all={all!r}, select={select!r}): give one of them: a sequence of ids, "
                "all=True, or select="
            )
        if attempts is not None and attempts < 1:
            raise ConfigError(f"attempts={attempts!r}; expected 1 or more")
        verdict = Redrive(to_queue, milliseconds(delay, "delay"), attempts)
        batches = VerdictBatches(self._store, verdict, "retry", *signed(actor, reason, "retry", needed=False))
        if select is not None:
            if where != Filter():
                raise ConfigError(f"retry(select=…, where={where!r}): say it all in the selector")
            chosen = self.select(select) if isinstance(select, str) else select
            messages, about = iter(chosen), str(chosen)
        elif ids is None:
            before_ms = self._store.now_ms() + 1  # messages that die from now on are left out
            until_ms = before_ms if where.until_ms is None else min(where.until_ms, before_ms)
            messages, about = self.all(where=replace(where, until_ms=until_ms)), str(as_node(where))
        else:
            done = batches.of_ids(builtins.list(dict.fromkeys(ids)))
            return Retried(done.ids, done.changed, done.unknown)
        held: builtins.list[str] = []
        done = batches.of(self._free(messages, held), about or "all")
        return Retried(done.ids, done.changed, done.unknown, len(held))

    def _free(self, messages: Iterator[Message], held: builtins.list[str]) -> Iterator[Message]:
        """Yield the readable messages that no standing rule holds; the ids of those held are added to `held`."""
        fingerprints = held_fingerprints(self._store)
        while some := builtins.list(islice(messages, PAGE)):
            ids = died_of(self._store, some, fingerprints)
            held += ids
            yield from (message for message in some if message.id not in ids and message.damage is None)


def _resting(lane: Lane | str) -> Lane:
    if lane not in RESTING:
        raise ConfigError(f"lane {str(lane)!r} holds no dead letters; expected 'dead' or 'quarantine'")
    return Lane(lane)
