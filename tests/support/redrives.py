"""A redrive run on a clock that the test moves: dead messages, a plan of them, and who works what the run moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import redrive
from redrive.fault import Fault, Kind
from redrive.message import Ack, ClaimRequest, DeadLetter, Decision, Delivery, Draft, Lane, Message, RetryAt, Settlement
from redrive.stores.memory.store import MemoryStore
from redrive.testing.clock import ManualClock
from redrive.triage.redrive import plan as plans
from redrive.triage.redrive import run as runs
from redrive.triage.redrive.options import read_settings
from redrive.triage.redrive.run import Run
from redrive.triage.redrive.runner import Runner
from redrive.worker.redrive_outcome import with_redrive_outcome

BAD = Fault(Kind.DEFAULT, "ValueError", "bad", "f-bad")
AT_ONCE: dict[str, object] = {"canary": 0, "slow_start": False}  # not as cautiously as by default
Ends = Callable[[Delivery], Decision]


def dies(delivery: Delivery) -> Decision:
    return DeadLetter("exhausted")


def works(delivery: Delivery) -> Decision:
    return Ack()


def fails_once(delivery: Delivery) -> Decision:
    return RetryAt(0, "retry") if delivery.message.attempt == 1 else Ack()


class Scene:
    """An app on a memory store, its dead messages, and the run that moves them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.app = redrive.App(store=self.store)
        self.notices: list[tuple[str, str]] = []
        self.ran: Counter[str] = Counter()
        self.buried = 0
        self.carrier = Runner(self.store, "", "one", self._notice, self.app)

    def _notice(self, name: str, text: str, run: str = "", count: int = 1) -> None:
        self.notices.append((name, text))

    def bury(self, count: int) -> list[str]:
        """Put that many messages and let them die."""
        ids = [put.id for put in self.store.put([Draft(task="t") for _ in range(count)])]
        self.work(dies)
        self.ran.clear()
        self.buried += count
        return ids

    def start(self, selector: str = "", **words: object) -> Run:
        """Plan and start a run of what the selector names, to be carried by `tick`; AT_ONCE, unless `words` differ."""
        settings = read_settings(**AT_ONCE | words)  # type: ignore[arg-type]
        plan = plans.draw_up(self.store, self.app.dlq.select(selector), selector, settings)
        runs.begin(self.store, plan, actor="ann", reason="fixed")
        self.carrier = self.carry(plan.id)
        return Run(self.store, plan.id, self.app)

    def carry(self, id: str, owner: str = "one") -> Runner:
        return Runner(self.store, id, owner, self._notice, self.app)

    def tick(self, ends: Ends = works, *, times: int = 1, ms: int = 100) -> None:
        """Carry on and work what is due, every `ms`."""
        for _ in range(times):
            self.carrier.tick()
            self.work(ends)
            self.clock.advance(ms / 1000)

    def move(self, count: int) -> None:
        """Carry on until so many were moved, with nobody to work them."""
        for _ in range(100):
            if self.store.counts().dead <= self.buried - count:
                return
            self.carrier.tick()
            self.clock.advance("0.05s")
        raise AssertionError(f"{self.store.counts()}")

    def over(self, run: Run, ends: Ends = works, *, within: int = 1000) -> None:
        """Tick until the run is over."""
        for _ in range(within):
            self.tick(ends)
            if run.state not in ("running", "paused"):
                return
        raise AssertionError(f"still {run.state} after {within} ticks: {run.view()}")

    def claim(self, limit: int = 1000) -> Sequence[Delivery]:
        return self.store.exchange([], [ClaimRequest("default", limit, 60_000)]).deliveries

    def settle(self, deliveries: Sequence[Delivery], ends: Ends = works) -> None:
        """As a worker does."""
        self.ran.update(d.message.id for d in deliveries)
        now_ms = self.store.now_ms()
        settlements = []
        for d in deliveries:
            decision = ends(d)
            settlement = Settlement(d.receipt, decision, None if isinstance(decision, Ack) else BAD)
            settlements.append(with_redrive_outcome(d.message, settlement, now_ms))
        self.store.exchange(settlements, [])

    def work(self, ends: Ends = works) -> None:
        while deliveries := self.claim():
            self.settle(deliveries, ends)

    def dead(self) -> list[Message]:
        return list(self.store.peek(Lane.DEAD, limit=10_000).messages)
