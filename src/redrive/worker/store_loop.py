"""The loop of the store thread: it takes batches through the steps of pipeline.py.

One thread exchanges batches with the store: each exchange settles what ended and claims what there is room for, in one
commit. Between turns the thread sleeps in `store.wait` until a message may be due, an execution ended, or a renewal or
a service is due.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..blobs import Cleaner
from ..duration import show
from ..errors import EnqueueError, StoreError, Unsupported
from ..message import Ack, ClaimRequest
from ..store import Store
from .bodies import BlobReads
from .burst import Burst
from .capacity import BATCH_MAX, Capacity, WorkerLimit
from .crash.suspects import Suspects
from .delivery_events import Reporter
from .execution import Admission, Execution, InFlightExecutions, WorkerQueue
from .gather import Gathering, parted
from .hang import Hangs, unbegun
from .leases import LeaseRenewals
from .outage import Outage
from .pipeline import Pipeline
from .rollout.newer import Newer
from .rollout.pauses import TaskPauses
from .services import Services
from .settlement import Outcome, released

LEFT_S = 0.05  # seconds to wait if the only due messages have expired leases that are left to their holders
WAKE_EVERY_S = 1.0  # longest sleep of the store thread, so that its supervisor sees beats


class FinishedExecutions:
    """The queue of ended executions, from any thread to the store thread."""

    def __init__(self, nudge: Callable[[], None]) -> None:
        self._nudge = nudge
        self.executions: deque[Execution] = deque()
        self.waiting = False  # True if the store thread sleeps, or is about to

    def add(self, executions: Sequence[Execution]) -> None:
        """Add ended executions, and wake the store thread if it sleeps. Thread-safe."""
        self.executions.extend(executions)
        if self.waiting:
            self._nudge()


class StoreLoop:
    """The store thread's part of the pipeline. `lease_s` is how long a claim holds; `burst` decides when a burst ends.

    `draining` stops claims; once `grace_over` is set, running executions are released.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        pipeline: Pipeline,
        *,
        capacity: Capacity,
        limit: WorkerLimit[Execution],
        queues: Mapping[str, WorkerQueue],
        in_flight: InFlightExecutions,
        leases: LeaseRenewals,
        admission: Admission,
        blob_reads: BlobReads | None,
        gathering: Gathering,
        suspects: Suspects,
        finished: FinishedExecutions,
        loop: asyncio.AbstractEventLoop,
        services: Services,
        burst: Burst | None,
        newer: Newer,
        pauses: TaskPauses,
        hangs: Hangs,
        outage: Outage,
        reporter: Reporter,
        cleaner: Cleaner | None,
        trips: deque[float],
        lease_s: float,
    ) -> None:
        self._store, self._name, self._pipeline, self._lease_s = store, name, pipeline, lease_s
        self._limit = limit
        self._capacity, self._queues, self._in_flight, self._leases = capacity, queues, in_flight, leases
        self._gathering, self._blob_reads = gathering, blob_reads
        self._admission, self._suspects, self._finished, self._loop = admission, suspects, finished, loop
        self._services, self._burst, self._newer = services, burst, newer
        self._pauses, self._hangs = pauses, hangs
        self._outage, self._reporter, self._cleaner = outage, reporter, cleaner
        self._trips = trips  # receives the duration of each exchange, in seconds
        self._lease_ms = int(lease_s * 1000)
        self._outcomes: list[Outcome] = []
        self._lapsed_by_ms: int | None = None
        self._hurried = False  # True if the last wait ended at once
        self._left = False  # True if the claim after that wait was empty: it may have skipped expired leases
        self.draining = False
        self.grace_over: threading.Event = threading.Event()

    def turn(self) -> bool:
        """Settle and claim one batch, or sleep; return True when the worker's work is over."""
        if self.draining:
            self._release_unstarted()
            self._store.quiesce()
        if self._blob_reads is not None and (read := self._blob_reads.taken()):
            self._take_read(read)
        self._decide_finished()
        self._tend()
        asks = self._claims()
        if self._outcomes or asks:
            self._exchange(asks)
        elif self._is_over():
            return True
        elif not self._finished.executions:
            self._wait()
        return False

    @property
    def _closed(self) -> bool:
        """True if nothing may be claimed: the worker drains, or suspects need the process for themselves."""
        return self.draining or self._suspects.holding_since_s > 0

    def _claims(self) -> list[ClaimRequest]:
        if self._closed:
            return []
        leaving = [o.delivery.message.queue for o in self._outcomes]
        if self._store.traits.releases:  # SQS hands out leases itself
            self._lapsed_by_ms = self._outage.lapsed_by_ms(self._store.now_ms())
        return self._capacity.asks(self._in_flight.counts, leaving, self._lease_ms, self._name, self._lapsed_by_ms)

    def _take_read(self, executions: Sequence[Execution]) -> None:
        """Reserve the executions whose bodies were read, as far as the worker still holds them."""
        self._reserve([each for each in self._in_flight.still(executions) if not each.settling])
        for execution in executions:
            execution.fetched = None  # read again for the run, as claimed bodies would fill the memory

    def _reserve(self, executions: Sequence[Execution]) -> None:
        """Claim the keys and permits of held executions, and let the event loop admit those that may run."""
        over = self._pipeline.reserve(executions)
        if over:
            self._finished.add(over)
            executions = [execution for execution in executions if not execution.over]
        self._loop.call_soon_threadsafe(self._admission.admit, executions)

    def _decide_finished(self) -> None:
        """Decide what follows for executions that ended; the outcomes go with the next exchange."""
        finished = self._finished.executions
        if not finished:
            return
        count = min(len(finished), BATCH_MAX - len(self._outcomes))
        executions = [finished.popleft() for _ in range(count)]
        if (self._pipeline.has_keys or self._limit.met_newer) and not self._read_others(executions):
            finished.extendleft(reversed(executions))
            return
        deciding = []
        for execution in self._in_flight.still(executions):
            if not execution.settling:  # if it is settling, it was released meanwhile
                execution.settling = True
                deciding.append(execution)
        self._outcomes += self._pipeline.decide(deciding, self._store.now_ms())

    def _read_others(self, executions: Sequence[Execution]) -> bool:
        """Read which handlers have committed their idempotency keys, and which workers know the messages that are
        unknown here; return False if the store fails."""
        try:
            self._pipeline.look_committed(executions)
            if self._limit.met_newer:
                self._newer.decide(self._in_flight.still(executions))
        except StoreError as error:
            if self.grace_over.is_set():
                raise  # the caller handles it as a failed settlement
            self._outage.failed(error)
            return False
        return True

    def _release_unstarted(self) -> None:
        """While draining, release the executions that have not started and, after the grace, also the running ones."""
        now_ms = self._store.now_ms()
        unstarted = parted(execution for queue in self._queues.values() for execution in queue.limit.withdraw())
        unstarted += self._suspects.close() + self._gathering.withdraw()
        if self._blob_reads is not None:
            unstarted += self._blob_reads.withdraw()
        if self.grace_over.is_set():
            finished = set(self._finished.executions)
            unstarted += [
                execution
                for execution in self._in_flight.all()
                if execution not in finished and not execution.finished_s
            ]
        for execution in unstarted:
            if not execution.settling:
                execution.settling = True
                self._outcomes.append(released(execution, now_ms))

    def _exchange(self, asks: list[ClaimRequest]) -> None:
        outcomes, before_s = self._outcomes, time.monotonic()
        try:
            result = self._store.exchange(self._pipeline.settlements(outcomes), asks)
        except Unsupported as error:  # a follow-up uses what this store does not support, such as a unique key
            if any(o.settlement.follow_ups for o in outcomes):
                self._settle_one_by_one(outcomes)
            else:
                self._not_settled(error)
            return
        except StoreError as error:
            self._not_settled(error)
            return
        except EnqueueError:  # the store can never accept one of the follow-ups
            self._settle_one_by_one(outcomes)
            return
        self._trips.append(time.monotonic() - before_s)
        if self._outage.wrote(before_s):
            self._leases.renew_soon()
        self._outcomes = []
        self._settled(outcomes, result.settled)
        if result.batches or self._pipeline.grown:
            self._pipeline.follow(result.batches)
        by_ms = self._lapsed_by_ms
        enough = bool(result.deliveries) or by_ms is None or by_ms >= self._store.now_ms()
        self._left = self._hurried and bool(asks) and not enough
        short = self._capacity.note(asks, result.deliveries, result.clogged)
        if self._burst is not None:
            self._pipeline.note_claims(asks, short - result.clogged, bool(outcomes))
        if result.damaged:
            self._reporter.set_aside(result.damaged)
        if not result.deliveries:
            return
        executions: list[Execution] = []
        for delivery in result.deliveries:
            message = delivery.message
            crash = self._leases.lose_earlier(message.id) if message.crashes else None
            executions.append(Execution(delivery, self._queues[message.queue], before_s + self._lease_s, crash=crash))
        self._in_flight.add(executions)
        self._reserve(executions if self._blob_reads is None else self._blob_reads.split(executions))

    def _not_settled(self, error: StoreError) -> None:
        """Pause after a failed exchange, whose outcomes stay for the next one; raise `error` if the grace is over."""
        if self.grace_over.is_set():
            raise error  # the next worker with this identity recovers the unsettled messages
        self._outage.failed(error)

    def _settle_one_by_one(self, outcomes: Sequence[Outcome]) -> None:
        """Settle outcomes with follow-ups one by one, so that a refused one affects no other. All other outcomes, and
        the replacements of refused ones, go with the next exchange."""
        left = [o for o in outcomes if not o.settlement.follow_ups]
        for o in [o for o in outcomes if o.settlement.follow_ups]:
            try:
                result = self._store.exchange(self._pipeline.settlements([o]), [])
            except (EnqueueError, Unsupported) as error:
                left.append(self._pipeline.refuse(o, error))
            except StoreError:
                left.append(o)
            else:
                self._settled([o], result.settled)
                self._pipeline.follow(result.batches)
        self._outcomes = left

    def _settled(self, outcomes: Sequence[Outcome], answers: Sequence[Any]) -> None:
        """Stop holding the executions of settled outcomes, and report them with the store's answers."""
        if not outcomes:
            return
        self._in_flight.remove([o.delivery for o in outcomes])
        if self._cleaner is not None:
            self._cleaner.settled([o.delivery.message for o in outcomes if isinstance(o.settlement.decision, Ack)])
        self._pipeline.report(outcomes, answers)

    def _tend(self) -> None:
        """Renew leases, and run services and flow control, if due."""
        now_s = time.monotonic()
        if now_s >= self._leases.due_s:
            self._leases.beat(now_s)
        if now_s >= self._hangs.due_s and not self.draining:
            self._look_for_hangs(now_s)
        if now_s >= self._services.due_s:
            self._services.look()
        if self._pauses.just_paused:
            self._give_back()
        self._pipeline.tick()

    def _give_back(self) -> None:
        """Release messages of tasks that were just paused and that wait to begin; they keep their places."""
        paused, self._pauses.just_paused = self._pauses.just_paused, frozenset()
        now_ms = self._store.now_ms()

        def chosen(execution: Execution) -> bool:
            return execution.delivery.message.task in paused

        waiting = [each for queue in self._queues.values() for each in queue.limit.withdraw(chosen)]
        for each in parted(waiting) + self._gathering.withdraw(chosen):
            each.settling = True
            self._outcomes.append(released(each, now_ms))

    def _look_for_hangs(self, now_s: float) -> None:
        """While the event loop or a queue hangs, release its messages that cannot begin, and claim no more from it."""
        before, hang = self._hangs.hang, self._hangs.look(now_s)
        if hang is before:
            return
        stopped = frozenset[str]() if hang is None else hang.queues
        self._pauses.stopped = stopped
        if hang is None:
            if before is not None:
                self._reporter.warn("worker_back", f"it goes on after {show(round(now_s - before.since_s))}")
            return
        for name in stopped:
            parted(self._queues[name].limit.withdraw())
        self._gathering.withdraw(lambda execution: execution.delivery.message.queue in stopped)
        left = unbegun([each for each in self._in_flight.all() if each.delivery.message.queue in stopped])
        now_ms = self._store.now_ms()
        for each in left:
            each.settling = True
            self._outcomes.append(released(each, now_ms))
        self._store.quiesce(stopped)
        self._reporter.warn("worker_hung", hang.text(now_s, len(left)), hang.task)

    def _wait(self) -> None:
        self._finished.waiting = True
        if not self._finished.executions:  # after the flag is set: what finishes from here on nudges the store
            no_claims: tuple[list[ClaimRequest], float] = ([], math.inf)
            held, lease_ms = self._in_flight.counts, self._lease_ms
            asks, wake_ms = no_claims if self._closed else self._capacity.asks_to_wait(held, lease_ms, self._name)
            if self._left:
                asks, wake_ms = [], LEFT_S * 1000
            began_s = time.monotonic()
            left_s = min(self._leases.renew_s - began_s, WAKE_EVERY_S, wake_ms / 1000)
            try:
                self._store.wait(asks, timeout_ms=max(0, math.ceil(left_s * 1000)))
            except StoreError as error:
                self._outage.failed(error)
            self._hurried = time.monotonic() - began_s < 2 * LEFT_S
        self._finished.waiting = False
        self._capacity.waited()

    def _is_over(self) -> bool:
        if self.draining:
            return not self._in_flight
        if self._burst is None or self._in_flight or self._finished.executions:
            return False
        try:
            over = self._burst.is_over()
        except StoreError as error:
            self._outage.failed(error)
            return False
        if over:
            self._services.finish()
        return over
