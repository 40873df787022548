"""What people, pages and alerts read of an app's store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .duration import Duration
from .registry import Registry

if TYPE_CHECKING:  # for start-up time: all of these are below
    from .audit.log import Audit
    from .history import History, SloStatus
    from .observe.muting import Muting
    from .presence import WorkerInfo
    from .status import Status
    from .status.upcoming import Upcoming
    from .triage.controls import Controls
    from .triage.dlq import DeadLetters


class ReadModel(Registry):
    """An app's declarations, and the views of the store that they run on. `App` adds what changes something."""

    @property
    def alerts(self) -> Muting:
        """What alerts are muted about: list, mute for a while, and end it. `app.on` registers who is told."""
        from .observe.muting import Muting

        return Muting(self.store, self)

    @property
    def audit(self) -> Audit:
        """The audit log. Iterating yields the entries, newest first; `verify` finds altered ones."""
        from .audit.log import Audit

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

    def status(self) -> Status:
        """What is going on, and what needs a person: workers, what holds messages back and until when, failure groups,
        late schedules, open runs and queues. Reads at most a thousand waiting messages. Raises StoreError."""
        from .status import read_status

        return read_status(self.store, self)

    def workers(self) -> tuple[WorkerInfo, ...]:
        """Workers and schedulers that are alive or were killed lately. Raises StoreError, Unsupported."""
        from .presence import read_workers

        return read_workers(self.store)

    def history(
        self,
        queue: str | None = None,
        task: str | None = None,
        *,
        since: Duration = "24h",
        step: Duration | None = None,
    ) -> History:
        """What happened in the last time `since`, up to 35d: counts and percentiles in all, and by `step` (default: one
        that gives 24 points or so). Steps of minutes go back a day. Raises ConfigError, StoreError, Unsupported."""
        from .history import read_history

        return read_history(self.store, queue, task, since, step)

    def upcoming(self, queue: str | None = None) -> Upcoming:
        """How many scheduled messages come due in each of the next 60 tens of seconds, 60 minutes and 24 hours. Raises
        StoreError, Unsupported where the store cannot tell (SQS)."""
        from .status.upcoming import read_upcoming

        return read_upcoming(self.store, queue)

    def slo(self) -> tuple[SloStatus, ...]:
        """The objectives of tasks and queues: good and all messages, what is left of the error budget, and how fast it
        burns. Raises StoreError, Unsupported."""
        from .history import read_objectives

        return read_objectives(self.store, self)
