"""The worker's heart: one thread that exchanges batches with the store, and hands them to the executors.

A turn: collect what finished, decide its fate, settle it and claim the next batch in one exchange, admit, hand out.
Between turns the thread sleeps in `store.wait` until something may be due, something finished, or a heartbeat is
owed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby

from msgspec.structs import replace

from ..blobs import ClaimCheck, Cleaner
from ..errors import EnqueueError, StoreError, Unsupported
from ..events import Notice, Notify
from ..fault import STARTED_MAX, Crash
from ..message import Ack, Ask, Delivery, Hold, Receipt, Settled, Settlement
from ..registry import Queue, Registry
from ..store import box_of
from .admission import admit_run
from .capacity import BATCH_MAX, Places
from .crash.company import ALONE_FROM, ANY, company_of, escapes
from .crash.recovery import take_back
from .crash.suspects import Suspects
from .delivery_events import fate, fate_of_damaged, fate_of_lost
from .execution import Gate, Hall, Run
from .executors.app_import import Origin, origin_of
from .executors.processes import ProcessExecutor, Recycling
from .executors.tasks import TaskExecutor
from .executors.threads import ThreadExecutor
from .flow.controller import Flow
from .idempotency import Keys
from .identity import identity
from .maintenance import Keeper
from .redrive_outcome import with_verdict
from .request_meter import Meter
from .services import RunService, Service
from .settlement import Outcome, outcome, refused, released

UNWIND_S = 0.5  # how long a cancelled coroutine may take to end before it is left behind
BEAT_EVERY_S = 1.0  # how often the store thread shows its supervisor that it lives, at least
STORE_RETRY_S = (0.05, 2.0)  # the first and the longest pause while the store cannot be reached


class Worker:
    """Works the queues of one app in this process. Made by `app.worker(…)`; use it as `async with`, or run it by
    `app.run_worker`."""

    def __init__(
        self,
        app: Registry,
        queues: Sequence[Queue],
        *,
        total: int | None,
        lease_s: float,
        grace_s: float,
        prefetch: int | None,
        burst: bool,
        drain: bool,
        name: str | None,
        park_for_s: float,
        runs: Callable[[str, Notify], RunService],
        recycle: tuple[int | None, int | None] = (None, None),
        suspect_processes: int | None = None,
        ingesting: Callable[[Notify], Service] | None = None,
    ) -> None:
        self.app, self.queues = app, list(queues)
        self._store = app.store
        listen = getattr(self._store, "listen", None)
        if listen is not None:  # a store that receives by itself has things to tell
            listen(self._notice)
        self._hush: Callable[[], None] = getattr(self._store, "hush", _nothing)  # and is told when nobody claims
        self._checked: ClaimCheck | None = self._store if isinstance(self._store, ClaimCheck) else None
        self._cleaner: Cleaner | None = None
        self._lease_s, self._lease_ms = lease_s, int(lease_s * 1000)
        self.grace_s, self._park_ms = grace_s, math.ceil(park_for_s * 1000)
        self._burst, self._until_empty = burst, drain
        self._total = total or sum(q.concurrency for q in queues)
        self._hall, weighted = Hall(self._total), any(q.weight != 1 for q in queues)
        self._gates = {
            q.name: Gate(
                q.concurrency,
                self._hall,
                q.weight if weighted else math.inf,
                q.retention.ack,
                park_ms=self._park_ms,
                store=self._store,
            )
            for q in queues
        }
        self._keeper = Keeper(queues, self._store, self._notice)
        self._meter = Meter(self._store, self._notice)
        self._origin = _origin(app)
        self._recycling, self._suspect_processes = Recycling(*recycle), suspect_processes
        self._places = Places(queues, self._total, prefetch, self._store.traits.batch_max)
        self.name, self._slots, self._complaint = identity(self._store, name)
        flow = Flow(app, self._store, self.name, self._notice)
        self._flow: Flow | None = flow if flow else None
        if self._flow is not None:
            self._places.watched_by(self._flow)
        self._runs = runs(self.name, self._notice)
        self._ingesting = None if ingesting is None else ingesting(self._notice)
        keys = Keys(app.tasks, self._store, grace_s, lease_s)
        self._keys: Keys | None = keys if keys else None
        self._held: dict[Receipt, Run] = {}
        self._finished: deque[Run] = deque()
        self._to_mark: deque[Run] = deque()  # suspects that are to run alone now
        self._outcomes: list[Outcome] = []
        self._waiting = self._draining = False
        self._grace_over = threading.Event()
        self._beat_at_s = self._busy_until_s = 0.0
        self._stopped = asyncio.Event()
        self._error: BaseException | None = None

    # -- life, on the event loop's thread

    async def __aenter__(self) -> Worker:
        self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.drain()
        await self.wait()

    def start(self) -> None:
        """Begin to work on the running event loop."""
        self._loop = asyncio.get_running_loop()
        take_back(self._store, self._slots, self._places.capacity + BATCH_MAX, self.app.events, self._notice)
        self._threads = ThreadExecutor(self._places.capacity, self._finish, self._start_other, self._slots)
        self._tasks = TaskExecutor(
            self._loop,
            self._finish,
            self._start_other,
            lambda: list(self._held.values()),
            self._slots,
            self._lease_s / 6,
        )
        if self._origin is not None:
            self._processes = ProcessExecutor(
                self.app, self._origin, self._total, self._finish, self._start_other, self._slots,
                worker=self.name, grace_s=self.grace_s, recycling=self._recycling, notice=self._notice,
                suspect_processes=self._suspect_processes,
            )  # fmt: skip
        self._tasks.watch()
        self._suspects = Suspects(
            self._loop,
            self._hall,
            lambda: list(self._held.values()),
            self._mark_soon,
            self._begin,
            self._finish,
            self._store.nudge,
            self._store.now_ms,
        )
        if self._checked is not None:
            self._cleaner = Cleaner(self._checked, self._notice)
        self._thread = threading.Thread(target=self._work, name="redrive-store", daemon=True)
        self._thread.start()
        if self._ingesting is not None:
            self._ingesting.begin()
        self._notice("started", f"queues {', '.join(q.name for q in self.queues)}")
        if self._complaint is not None:
            self._notice("no_identity", self._complaint)

    async def wait(self) -> None:
        """Return once the worker has stopped. Raises what ended it, if that was an error; any number may wait."""
        await self._stopped.wait()
        self._tasks.close()
        self._threads.close()
        if self._processes is not None:
            await asyncio.to_thread(self._processes.close)
        if self._cleaner is not None:
            await asyncio.to_thread(self._cleaner.close)
        if self._ingesting is not None:
            await asyncio.to_thread(self._ingesting.close)
        slots, self._slots = self._slots, None
        if slots is not None:
            if not self._held:
                slots.settle()
            slots.close()
        if self._error is not None:
            raise self._error

    def drain(self) -> None:
        """Claim nothing more, let what runs finish within the grace, release the rest uncounted. From any thread."""
        self._loop.call_soon_threadsafe(self._drain)

    def release_now(self) -> None:
        """Drain without the grace: what still runs is cancelled and released. From any thread."""
        self._loop.call_soon_threadsafe(self._drain)
        self._loop.call_soon_threadsafe(self._end_grace)

    def _drain(self) -> None:
        if self._draining:
            return
        self._notice("draining", f"{len(self._held)} held, grace {self.grace_s:g} s")  # told before it can be over
        self._draining = True
        self._loop.call_later(self.grace_s, self._end_grace)
        self._store.nudge()

    def _end_grace(self) -> None:
        self._tasks.end_all("drain")
        # A coroutine may need a moment to unwind; one that will not is left behind.
        self._loop.call_later(UNWIND_S, self._give_up)

    def _give_up(self) -> None:
        self._grace_over.set()
        self._store.nudge()

    # -- the store thread

    def _work(self) -> None:
        try:
            while not self._turn():
                pass
        except BaseException as error:
            self._error = error
        finally:
            if self._flow is not None:
                self._flow.close()
            self._runs.close()
            self._meter.finish()
            self._notice("stopped", f"{len(self._held)} still leased" + (f": {self._error!r}" if self._error else ""))
            with contextlib.suppress(RuntimeError):  # the loop may be gone already
                self._loop.call_soon_threadsafe(self._stopped.set)

    def _turn(self) -> bool:
        """One round; True when the work is over."""
        if self._draining:
            self._release_unstarted()
            self._hush()
        self._collect()
        self._beat()
        self._mark_alone()
        self._retain()
        self._meter.look()
        self._runs.look()
        if self._flow is not None:
            self._flow.tick()
        asks = self._asks()
        if self._outcomes or asks:
            self._exchange(asks)
        elif self._idle_over():
            if self._burst:
                self._tidy()
            return True
        elif not self._finished:
            self._wait()
        return False

    def _wait(self) -> None:
        self._waiting = True
        if not self._finished:  # checked after the flag is up: a run that finishes from here on nudges
            asks, wake_ms = ([], math.inf) if self._closed else self._places.asks_to_wait(self._lease_ms, self.name)
            left_s = min(self._beat_at_s - time.monotonic(), BEAT_EVERY_S, wake_ms / 1000)
            try:
                self._store.wait(asks, timeout_ms=max(0, math.ceil(left_s * 1000)))
            except StoreError as error:
                self._store_failed(error)
        self._waiting = False
        self._places.waited()

    def _finish(self, runs: Sequence[Run]) -> None:
        """Runs ended: called by the executors, from any thread."""
        self._finished.extend(runs)
        if self._waiting:
            self._store.nudge()

    def _collect(self) -> None:
        """Turn what finished into settlements."""
        if not self._finished:
            return
        count = min(len(self._finished), BATCH_MAX - len(self._outcomes))
        runs = [self._finished.popleft() for _ in range(count)]
        if self._keys is not None and not self._looked_committed(self._keys, runs):
            self._finished.extendleft(reversed(runs))
            return
        now_ms = self._store.now_ms()
        for run in runs:
            if run.delivery.receipt in self._held:
                if run.guards and self._flow is not None:
                    self._flow.ended(run)
                o = outcome(run, now_ms, self.name)
                if self._checked is not None and o.settlement.follow_ups:
                    o = self._deposited(o, self._checked, now_ms)
                self._outcomes.append(o)
                if run.complaint is not None:
                    self._notice("result_dropped", f"{run.delivery.message.id} is done without result: {run.complaint}")

    def _looked_committed(self, keys: Keys, runs: Sequence[Run]) -> bool:
        """Whether it is known what those came to that completed their keys themselves."""
        try:
            keys.look_committed(runs)
        except StoreError as error:
            if self._grace_over.is_set():
                raise  # as where it cannot be settled
            self._store_failed(error)
            return False
        return True

    def _deposited(self, o: Outcome, checked: ClaimCheck, now_ms: int) -> Outcome:
        """With the large bodies of its follow-ups in blob storage; where they cannot be put there, the run failed."""
        try:
            deposited = tuple(checked.deposit(o.settlement.follow_ups))
        except (EnqueueError, StoreError) as error:
            return refused(o, error, self.app.tasks[o.delivery.message.task], now_ms, self.name)
        return replace(o, settlement=replace(o.settlement, follow_ups=deposited))

    def _release_unstarted(self) -> None:
        now_ms = self._store.now_ms()
        unstarted = [run for gate in self._gates.values() for run in gate.close()] + self._suspects.close()
        if self._grace_over.is_set():  # what still runs now will not be waited for
            finished = set(self._finished)
            unstarted += [run for run in self._held.values() if run not in finished and not run.finished_s]
        settling = {o.delivery.receipt for o in self._outcomes}
        self._outcomes += [released(run, now_ms) for run in unstarted if run.delivery.receipt not in settling]

    @property
    def _closed(self) -> bool:
        """Whether nothing is to be claimed."""
        return self._draining or self._suspects.holding

    def _asks(self) -> list[Ask]:
        if self._closed:
            return []
        leaving = [o.delivery.message.queue for o in self._outcomes]
        return self._places.asks(leaving, self._lease_ms, self.name)

    def _exchange(self, asks: list[Ask]) -> None:
        outcomes = self._outcomes
        before_s = time.monotonic()
        try:
            result = self._store.exchange(self._settlements(outcomes), asks)
        except Unsupported as error:  # so for a follow-up with what this store does not promise, such as a unique key
            self._refused(outcomes, error)
            return
        except StoreError as error:  # nothing was settled: the same outcomes go with the next exchange
            if self._grace_over.is_set():
                raise  # whoever holds this identity next takes back what could not be settled
            self._store_failed(error)
            return
        except EnqueueError:  # and the same for ever, with a follow-up among them that no store takes
            self._settle_one_by_one(outcomes)
            return
        self._store_works()
        self._outcomes = []
        self._settled(outcomes, result.settled)
        short = self._places.note(asks, result.deliveries, result.clogged)
        if self._flow is not None and self._burst:
            self._flow.noted(asks, short - result.clogged, bool(outcomes))
        if result.damaged and self.app.events:
            now_ms = self._store.now_ms()
            self.app.events.emit([fate_of_damaged(message, now_ms, self.name) for message in result.damaged])
        if result.deliveries:
            self._hold(result.deliveries, before_s + self._lease_s)

    def _refused(self, outcomes: Sequence[Outcome], error: Unsupported) -> None:
        if any(o.settlement.follow_ups for o in outcomes):
            self._settle_one_by_one(outcomes)
        elif self._grace_over.is_set():
            raise error
        else:
            self._store_failed(error)

    def _settlements(self, outcomes: Sequence[Outcome]) -> list[Settlement]:
        """What they come to, with the verdicts that redrive runs wait for."""
        if all(o.delivery.message.run is None for o in outcomes):
            return [o.settlement for o in outcomes]
        now_ms = self._store.now_ms()
        texts = box_of(self._store) is None
        return [with_verdict(o.delivery.message, o.settlement, now_ms, texts=texts) for o in outcomes]

    def _settled(self, outcomes: Sequence[Outcome], words: Sequence[Settled]) -> None:
        for o in outcomes:
            self._forget(o.delivery.receipt)
        if self._cleaner is not None:
            self._cleaner.settled([o.delivery.message for o in outcomes if isinstance(o.settlement.decision, Ack)])
        if self.app.events and outcomes:
            now_ms, pairs = self._store.now_ms(), zip(outcomes, words, strict=True)
            self.app.events.emit([fate(o, word, now_ms, self.name) for o, word in pairs])

    def _settle_one_by_one(self, outcomes: Sequence[Outcome]) -> None:
        """Those with follow-ups each by itself, so that one that is refused holds up no other; the rest, and what it
        comes to instead, goes with the next exchange."""
        left = [o for o in outcomes if not o.settlement.follow_ups]
        for o in [o for o in outcomes if o.settlement.follow_ups]:
            try:
                result = self._store.exchange(self._settlements([o]), [])
            except (EnqueueError, Unsupported) as error:
                task = self.app.tasks[o.delivery.message.task]
                left.append(refused(o, error, task, self._store.now_ms(), self.name))
            except StoreError:
                left.append(o)
            else:
                self._settled([o], result.settled)
        self._outcomes = left

    def _forget(self, receipt: Receipt) -> None:
        run = self._held.pop(receipt, None)
        if run is not None:
            self._places.taken[run.delivery.message.queue] -= 1
            if run.counted and self._flow is not None:
                self._flow.left(run)
            if self._slots is not None:
                self._slots.give(run.slot)

    def _hold(self, deliveries: Sequence[Delivery], until_s: float) -> None:
        """From here on these leases are renewed; the event loop admits and starts them."""
        runs = []
        for delivery in deliveries:
            lost = self._lose_earlier_run(delivery.message.id) if delivery.message.crashes else None
            queue = delivery.message.queue
            run = Run(delivery, self._gates[queue], until_s, crash=lost)
            if self._slots is not None:
                run.slot = self._slots.take(delivery.message.id, delivery.message.fence)
            self._held[delivery.receipt] = run
            self._places.taken[queue] += 1
            runs.append(run)
        going = runs if self._keys is None else self._keys.claim(runs)
        if self._flow is not None:
            self._flow.admit(going)  # what its key holds up, or has done with, shall take nobody's token
        if self._keys is not None:
            runs = self._not_over(runs)
        self._loop.call_soon_threadsafe(self._start, runs)

    def _not_over(self, runs: Sequence[Run]) -> list[Run]:
        """Those that are still to be started; the others finish, unrun."""
        over = [run for run in runs if run.over]
        if over:
            self._finish(over)
        return [run for run in runs if not run.over]

    def _start(self, runs: Sequence[Run]) -> None:
        """Admit what was claimed and start what its gate lets in, in the order it was claimed. On the event loop's
        thread.
        """
        now_ms, tasks = self._store.now_ms(), self.app.tasks
        admitted = [run for run in runs if admit_run(run, tasks, now_ms)]
        if len(admitted) < len(runs):
            self._finish([run for run in runs if run.verdict is not None])
        suspects = [run for run in admitted if run.delivery.message.suspect]
        if suspects:
            apart = {id(run) for run in suspects if self._is_set_apart(run)}
            self._suspects.add([run for run in suspects if id(run) in apart])
            admitted = [run for run in admitted if id(run) not in apart]
        for queue, of_queue in groupby(admitted, key=_queue_of):
            for run in self._gates[queue].enter(list(of_queue)):
                self._begin(run)

    def _is_set_apart(self, run: Run) -> bool:
        """Whether only its group may be under way in this process while the suspect runs. One that a child can run is
        no danger to the others, unless it brings down more than a child."""
        message = run.delivery.message
        # On SQS each crash costs a receive, of which a queue need allow no more than convict a message.
        few = not self._store.traits.releases
        alone_from = min(ALONE_FROM, run.task.policy.crashes_alone_max) if few else ALONE_FROM
        run.company = company_of(message, self._total, alone_from=alone_from)
        if run.place == "process":
            return escapes(message)
        run.apart = self._can_be_apart(message.task)
        return escapes(message) if run.apart else run.company < ANY

    def _can_be_apart(self, task: str) -> bool:
        """Whether a child has what it takes: the task, and the store, which a handler may use by itself."""
        return self._processes is not None and self._store.traits.shared and self._processes.takes(task)

    def _begin(self, run: Run) -> None:
        self._tasks.start(run) if run.place == "loop" else self._start_other(run)

    def _start_other(self, run: Run) -> None:
        """Start a run where it belongs, from any thread."""
        if run.place == "thread":
            self._threads.start(run)
        elif run.place == "loop":
            self._loop.call_soon_threadsafe(self._tasks.start, run)
        elif self._processes is not None:
            self._processes.start(run)

    def _mark_soon(self, run: Run) -> None:
        """Have the store thread tell the store that this run is alone from now on."""
        self._to_mark.append(run)
        self._store.nudge()

    def _mark_alone(self) -> None:
        """Written before it begins: a kill from then on counts as a crash alone, one before as one of a suspect."""
        while self._to_mark:
            run, before_s, lease_ms = self._to_mark[0], time.monotonic(), math.ceil(self._lease_s * 1000)
            try:
                [word] = self._store.extend([run.delivery.receipt], lease_ms=lease_ms, alone=True)
            except StoreError as error:
                self._store_failed(error)
                return
            self._to_mark.popleft()
            run.until_s = before_s + self._lease_s
            if word is Hold.LOST and run.delivery.receipt in self._held:
                self._lose(run)
            self._loop.call_soon_threadsafe(self._suspects.go, run, word)

    # -- leases

    def _beat(self) -> None:
        now = time.monotonic()
        if now >= self._beat_at_s:
            self._beat_at_s = now + self._lease_s / 3
            self._renew(now)
        if self._slots is not None:
            self._slots.beat_store(now, self._busy_until_s)

    def _renew(self, now: float) -> None:
        """Renew every lease, though none past its run's timeout and grace; tell runs that lost theirs, or that were
        cancelled."""
        groups: dict[int, list[Run]] = {}
        self._busy_until_s = 0.0
        for run in list(self._held.values()):
            left_s = self._lease_s
            if run.started_s:
                ends_s = run.deadline_s + self.grace_s
                self._busy_until_s = max(self._busy_until_s, ends_s)
                left_s = min(left_s, ends_s - now)
            if left_s > 0:
                groups.setdefault(math.ceil(left_s * 1000), []).append(run)
        self._renew_keys()
        for lease_ms, runs in groups.items():
            for at in range(0, len(runs), self._store.traits.batch_max):
                self._extend(runs[at : at + self._store.traits.batch_max], lease_ms)

    def _renew_keys(self) -> None:
        if self._keys is None or self._draining:
            return
        waiting = [run for run in self._held.values() if run.claim is not None and not run.started_s and not run.over]
        try:
            lost = self._keys.renew(waiting)
        except StoreError as error:
            self._store_failed(error)
            return
        for run in lost:
            self._lose(run)

    def _extend(self, runs: Sequence[Run], lease_ms: int) -> None:
        before_s = time.monotonic()
        try:
            found = self._store.extend([run.delivery.receipt for run in runs], lease_ms=lease_ms)
        except StoreError as error:
            self._store_failed(error)
            return
        for run, word in zip(runs, found, strict=True):
            if word is Hold.LOST:
                self._lose(run)
                continue
            run.until_s = before_s + lease_ms / 1000
            if word is Hold.CANCEL and run.context is not None:
                run.context.stop("cancel")

    def _lose_earlier_run(self, id: str) -> Crash | None:
        """The lease that ran out may have been this worker's own: its run still stands in the slots as started, and a
        kill would count a second crash. What is known of it, then."""
        crash = None
        for run in [run for run in self._held.values() if run.delivery.message.id == id]:
            crash = self._lost(run)
            self._lose(run)
        return crash

    def _lost(self, run: Run) -> Crash | None:
        if not run.started_s:
            return None
        ids = [other.delivery.message.id for other in self._held.values() if other.started_s and not other.finished_s]
        return Crash(
            cause="lease",
            run_s=time.monotonic() - run.started_s,
            alone=run.alone,
            started=tuple(ids[:STARTED_MAX]),
            started_count=len(ids),
            worker=self.name,
            host=os.uname().nodename,
        )

    def _lose(self, run: Run) -> None:
        if any(o.delivery.receipt == run.delivery.receipt for o in self._outcomes):
            return  # its settlement is on the way, and will be told that it is stale
        self._forget(run.delivery.receipt)
        self._loop.call_soon_threadsafe(run.end, "lease")
        if self.app.events:
            self.app.events.emit([fate_of_lost(run.delivery.message, self._store.now_ms(), self.name)])

    # -- retention

    def _retain(self) -> None:
        try:
            self._keeper.look()
        except StoreError as error:
            self._store_failed(error)

    def _tidy(self) -> None:
        try:
            self._keeper.finish()
        except StoreError as error:
            self._store_failed(error)

    # -- the end

    def _idle_over(self) -> bool:
        if self._draining:
            return not self._held
        if not self._burst or self._held or self._finished:
            return False
        self._runs.look(now=True)
        try:
            if self._runs.busy({queue.name for queue in self.queues} - {*self._store.paused()}):
                return False
            return not any(self._left_in(queue.name) for queue in self.queues)
        except StoreError as error:
            self._store_failed(error)
            return False

    def _left_in(self, queue: str) -> bool:
        """Whether a burst is not over for this queue."""
        counts = self._store.counts(queue)
        held = not self._until_empty and self._flow is not None and self._flow.rests(queue)
        left = counts.leased or (0 if held else counts.ready)
        if not left and self._until_empty and counts.scheduled:
            left = counts.scheduled - self._blocked_in(queue)
        return left > 0 and queue not in self._store.paused()

    def _blocked_in(self, queue: str) -> int:
        """How many messages stand behind a dead one: they wait for a person, and a drain does not wait for that."""
        if not self._store.traits.widths:
            return 0
        return sum(group.parked for group in self._store.groups(queue) if group.blocked_by is not None)

    # -- telling

    def _store_failed(self, error: StoreError) -> None:
        if not self._pause_s:
            self._notice("store_unavailable", str(error))
        self._pause_s = min(max(self._pause_s * 2, STORE_RETRY_S[0]), STORE_RETRY_S[1])
        time.sleep(self._pause_s)

    _pause_s = 0.0
    _processes: ProcessExecutor | None = None  # where the app can be imported by children

    def _store_works(self) -> None:
        if self._pause_s:
            self._pause_s = 0.0
            self._notice("store_back", "the store works again")

    def _notice(self, name: str, text: str, about: str = "", count: int = 1) -> None:
        if self.app.events:
            now_ms = self._store.now_ms()
            told = Notice(name=name, worker=self.name, at_ms=now_ms, text=text, about=about, count=count)
            self.app.events.emit([told])


def _nothing() -> None:
    """For a store that has nothing to do."""


def _origin(app: Registry) -> Origin | None:
    """How child processes import the app, where they are needed or it is known. Raises ConfigError where they are and
    cannot."""
    if app.spec is None and all(task.place != "process" for task in app.tasks.values()):
        return None
    return origin_of(app)


def _queue_of(run: Run) -> str:
    return run.delivery.message.queue
