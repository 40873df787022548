"""A redrive run on a virtual clock: the carrier, the plan, the store and all that decides are the real ones. Modelled
are a worker with places, and the dependency that it calls. Between events no time passes.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Sequence

from msgspec import json
from tests.support.simulation.world import Endpoint

from redrive import App, Breaker, Retry
from redrive.decide import RUN, Signals, admit, decide
from redrive.fault import Fault
from redrive.flow import calls, permits
from redrive.flow import dependency as flow
from redrive.flow.dependency import DependencyState, PendingEvidence
from redrive.message import (
    Ack,
    ClaimRequest,
    DeadLetter,
    Decision,
    Delivery,
    Draft,
    Handle,
    PutResult,
    RetryAt,
    Settlement,
    Swap,
    Verdict,
)
from redrive.stores.memory.store import MemoryStore
from redrive.testing.clock import ManualClock
from redrive.triage.redrive import plan as plans
from redrive.triage.redrive import run as runs
from redrive.triage.redrive.options import read_settings
from redrive.triage.redrive.run import Run
from redrive.triage.redrive.runner import Runner
from redrive.worker.redrive_outcome import with_redrive_outcome

WORKER, QUEUE, CELL = "w0", "crm", flow.cell_of("crm", "")
ONE = Retry(max_attempts=1)


class Watched(MemoryStore):
    """Writes down when each message was moved, and counts what else is committed of runs."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.clock, self.moves, self.commits = clock, list[int](), 0

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = (), tx: object = None) -> list[PutResult]:
        self.commits += bool(swaps)
        return super().put(drafts, swaps=swaps, tx=tx)

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        moved = super().triage(handles, verdict, swaps=swaps)
        self.moves += [self.clock()] * sum(moved)
        return moved


class Redriving:
    """Dead messages of one task that calls `endpoint`, and who drives them back."""

    def __init__(self, endpoint: Endpoint, *, breaker: Breaker | None = None, retry: Retry = ONE, places: int = 200):
        self.clock = ManualClock()
        self.store = Watched(self.clock)
        self.app = App(store=self.store)
        self.app.dependency("crm", breaker=breaker)
        self.task = self.app.task(name="crm.push", queue=QUEUE, dependency="crm", retry=retry)(_push)
        self.d = self.app.dependencies["crm"]
        self.endpoint, self.places = endpoint, places
        self.begun_ms = self.clock()
        self.notices: list[tuple[str, str]] = []
        self.speeds: list[tuple[int, float]] = []  # the run's, with times, whenever it changed
        self.statuses: list[tuple[int, str]] = []  # of the breaker, whenever it changed
        self._state, self._version = DependencyState(), 0
        self._running: list[tuple[int, int, Delivery, bool, int, Fault | None]] = []
        self._due: list[int] = [self.clock()]
        self._tick_ms, self._number = 0, 0

    # -- what a test does

    def bury(self, count: int) -> None:
        """Messages that died before the story begins."""
        self.store.put([Draft(task="crm.push", queue=QUEUE) for _ in range(count)])
        dead = DeadLetter("exhausted")
        for delivery in self._claim(count):
            self.store.exchange([Settlement(delivery.receipt, dead, Fault("default", "ValueError", "before"))], [])

    def start(self, **words: object) -> Run:
        """Plan a run of all that is dead, and start it."""
        settings = read_settings(**{"canary": 0, "slow_start": False} | words)  # type: ignore[arg-type]
        plan = plans.draw_up(self.store, self.app.dlq.select(""), "", settings, app=self.app)
        runs.begin(self.store, plan, actor="ann", reason="fixed")
        self.carrier = Runner(self.store, plan.id, "one", self._notice, self.app)
        self.run = Run(self.store, plan.id, self.app)
        return self.run

    def play(self, until_s: float = math.inf) -> None:
        """Let time pass, at most until so long after the beginning, or until the run is over."""
        until_ms = self.begun_ms + until_s * 1000
        while self.clock() < until_ms:
            self._tick()
            self._end_runs()
            self._begin_runs()
            if self.run.state not in ("running", "paused") and not self._running:
                return
            next_ms = min([self._tick_ms, self._due[0] if self._due else math.inf, until_ms, *self._ends()])
            self.clock.advance(max(next_ms - self.clock(), 1) / 1000)

    @property
    def moves(self) -> list[int]:
        """When each message was moved."""
        return self.store.moves

    @property
    def dead(self) -> int:
        return self.store.counts(QUEUE).dead

    def moved(self, from_s: float, until_s: float) -> int:
        """How many messages were moved in that time since the beginning."""
        return bisect_left(self.moves, self.begun_ms + until_s * 1000) - bisect_left(
            self.moves, self.begun_ms + from_s * 1000
        )

    # -- the carrier

    def _tick(self) -> None:
        if self.clock() < self._tick_ms:
            return
        wait_s = self.carrier.tick()
        self._tick_ms = self.clock() + math.ceil(1000 * (1.0 if wait_s is None else wait_s))
        heapq.heappush(self._due, self.clock())
        view = self.run.view()
        if view.per_s is not None and (not self.speeds or self.speeds[-1][1] != view.per_s):
            self.speeds.append((self.clock(), view.per_s))

    def _notice(self, name: str, text: str, run: str = "", count: int = 1) -> None:
        self.notices.append((name, text))

    # -- the worker

    def _ends(self) -> list[int]:
        return [self._running[0][0]] if self._running else []

    def _claim(self, limit: int) -> list[Delivery]:
        return list(self.store.exchange([], [ClaimRequest(QUEUE, limit, 3_600_000, worker=WORKER)]).deliveries)

    def _begin_runs(self) -> None:
        now_ms = self.clock()
        if not self._due or self._due[0] > now_ms:
            return
        while self._due and self._due[0] <= now_ms:
            heapq.heappop(self._due)
        found = permits.allowance(self._state, self.d, now_ms, self.places - len(self._running))
        if found.count <= 0:
            heapq.heappush(self._due, max(now_ms + 1, math.ceil(found.next_ms)))
            return
        deliveries = self._claim(int(min(found.count, self.places)))
        if not deliveries:
            return
        state, answers = permits.ask(self._state, self.d, [d.message for d in deliveries], now_ms)
        self._set(state)
        for delivery, refusal in zip(deliveries, answers.refusals, strict=True):
            verdict = admit(delivery.message, self.task.policy, Signals(refusal=refusal), now_ms)
            if verdict is not RUN:
                self._settle(delivery, verdict, None)
                continue
            end_ms, fault = self.endpoint.call(now_ms, delivery.message.attempt == 1)
            probe = flow.owner_of(delivery.message) in answers.probes
            self._number += 1
            heapq.heappush(self._running, (end_ms, self._number, delivery, probe, now_ms, fault))
        heapq.heappush(self._due, now_ms + 1)  # there may be more

    def _end_runs(self) -> None:
        now_ms = self.clock()
        while self._running and self._running[0][0] <= now_ms:
            _, _, delivery, probe, began_ms, fault = heapq.heappop(self._running)
            word, asked_s = calls.seen_of(fault, (now_ms - began_ms) / 1000, self.d)
            seen = PendingEvidence(asked_s=asked_s)
            if probe:
                seen.probes = {flow.owner_of(delivery.message): word}
            elif word in ("success", "failure", "slow", "slow_failure"):
                setattr(seen, word, 1)
            self._set(calls.apply(self._state, self.d, seen, now_ms, WORKER))
            decision = Ack() if fault is None else decide(delivery.message, fault, self.task.policy, now_ms)
            self._settle(delivery, decision, fault)

    def _settle(self, delivery: Delivery, decision: Decision, fault: Fault | None) -> None:
        settlement = with_redrive_outcome(delivery.message, Settlement(delivery.receipt, decision, fault), self.clock())
        self.store.exchange([settlement], [])
        heapq.heappush(self._due, decision.at_ms if isinstance(decision, RetryAt) else self.clock())

    def _set(self, state: DependencyState) -> None:
        """What the worker found out of the dependency, for the gates to read."""
        if state == self._state:
            return
        if state.breaker.status != self._state.breaker.status:
            self.statuses.append((self.clock(), state.breaker.status))
        self.store.cells.swap([Swap(CELL, self._version, json.encode(state))])
        cell = self.store.cells.read([CELL])[0]
        assert cell is not None
        self._state, self._version = state, cell.version


def _push(n: int = 0) -> None:
    """Its calls are modelled."""
