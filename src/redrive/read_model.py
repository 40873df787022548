"""The read API of an app's store, for people, pages and alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .duration import Duration
from .registry import Registry

if TYPE_CHECKING:  # not imported at run time, to start faster
    from .audit import Audit
    from .history import History, SloStatus
    from .observe.muting import Muting
    from .paused_task import PausedTask
    from .presence import WorkerInfo
    from .status import Status, Upcoming
    from .triage.controls import Controls
    from .triage.dlq import DeadLetters
    from .triage.selection import Selection
    from .triage.task_pauses import TaskState


class ReadModel(Registry):
    """An app's declarations and views of its store. `App` adds enqueueing and workers."""

    @property
    def alerts(self) -> Muting:
        """The mutes of alerts: list, add and end them. `app.on` registers a receiver of alerts."""
        from .observe.muting import Muting

        return Muting(self.store, self)

    @property
    def audit(self) -> Audit:
        """The audit log. Iterating yields the entries, newest first; `verify` finds altered ones."""
        from .audit import Audit

        return Audit(self.store)

    @property
    def dlq(self) -> DeadLetters:
        """The dead letters: list, show, retry, and plan redrives."""
        from .triage.dlq import DeadLetters

        return DeadLetters(self.store, self)

    @property
    def flow(self) -> Controls:
        """Flow control by dependency: list, show, and force breakers open or closed."""
        from .triage.controls import Controls

        return Controls(self.store, self)

    def select(self, selector: str = "", *, now_ms: int | None = None) -> Selection:
        """Return the messages that a selector such as `"queue:crm lane:scheduled due:<6h"` matches now, or at `now_ms`.

        Only dead messages need no name: `lane:scheduled`, `lane:ready`, `lane:parked`, `lane:leased`, `lane:quarantine`
        and `lane:done` name others. Raises SelectorError, which points at the mistake; StoreError.
        """
        from .triage.selection import Selection

        return Selection(self.store, selector, now_ms, app=self)

    def status(self) -> Status:
        """Return the state of the store: what needs a person, workers, what holds messages back and until when, failure
        groups, late schedules, open runs and queues. Reads at most a thousand waiting messages. Raises StoreError."""
        from .status import read_status

        return read_status(self.store, self)

    def workers(self) -> tuple[WorkerInfo, ...]:
        """Return workers and schedulers that are alive or were killed lately. Raises StoreError, Unsupported."""
        from .presence import read_workers

        return read_workers(self.store)

    def drain_worker(self, name: str, *, reason: str, actor: str | None = None) -> None:
        """Ask one of these workers to drain, as SIGTERM does: it claims nothing more, lets running messages finish
        within its grace, and ends. It reads the request within 5 s, when it renews its record. One commit with its
        entry in the audit log. Raises ConfigError, Refused (it is gone, or no worker), StoreError, Unsupported."""
        from .triage.draining import drain_worker

        drain_worker(self.store, name, reason=reason, actor=actor)

    def pause_task(
        self, name: str, *, reason: str, for_: Duration | None = None, actor: str | None = None
    ) -> PausedTask:
        """Let no worker claim messages of this task, or of all tasks that a pattern such as `crm.*` matches, for
        `for_`, or (None) until `resume_task`. Workers follow within two seconds. What they have claimed and not begun
        goes back to its place, without an attempt; what runs, runs on. A later pause of the same name replaces it. One
        commit with its entry in the audit log; `actor` defaults to user@host. Raises ConfigError (also for a name close
        to that of a task), StoreError; Unsupported on SQS, where claims cannot leave out a task."""
        from .triage.task_pauses import pause_task

        return pause_task(self.store, self, name, reason=reason, for_=for_, actor=actor)

    def resume_task(self, name: str, *, reason: str = "", actor: str | None = None) -> TaskState:
        """End the pause of this name or pattern. Returns the task's state: a pattern may still hold it. Raises
        ConfigError without such a pause, and StoreError."""
        from .triage.task_pauses import resume_task

        return resume_task(self.store, self, name, reason=reason, actor=actor)

    def task_state(self, name: str) -> TaskState:
        """Return the state of a task: its queue, and the pause that holds it. Raises StoreError."""
        from .triage.task_pauses import task_state

        return task_state(self.store, self, name)

    def history(
        self,
        queue: str | None = None,
        task: str | None = None,
        *,
        since: Duration = "24h",
        step: Duration | None = None,
    ) -> History:
        """Return counts and percentiles of the last time `since`, up to 35d: the totals, and points by `step` (default:
        about 24 points). Steps of minutes go back a day. Raises ConfigError, StoreError, Unsupported."""
        from .history import read_history

        return read_history(self.store, queue, task, since, step)

    def upcoming(self, queue: str | None = None) -> Upcoming:
        """Return how many scheduled messages become due in each of the next 60 tens of seconds, 60 minutes and 24
        hours. Raises StoreError; Unsupported if the store cannot count them (SQS)."""
        from .status import read_upcoming

        return read_upcoming(self.store, queue)

    def slo(self) -> tuple[SloStatus, ...]:
        """Return the status of the objectives of tasks and queues: good and all messages, the rest of the error budget,
        and how fast it burns. Raises StoreError, Unsupported."""
        from .history import read_objectives

        return read_objectives(self.store, self)
