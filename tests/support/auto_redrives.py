"""Machines that drive dead messages back by themselves, on a clock that the test moves; and a store that dies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redrive
from redrive import AutoRedrive
from redrive.fault import Fault, Kind
from redrive.message import Ack, ClaimRequest, DeadLetter, Decision, Delivery, Draft, Lane, Message, Settlement
from redrive.stores.memory.store import MemoryStore
from redrive.testing.clock import ManualClock
from redrive.triage.auto.machine import Machine, machines
from redrive.triage.auto.runner import LEASE_MS, AutoRunner
from redrive.triage.redrive import records
from redrive.triage.redrive.runner import Runner
from redrive.worker.redrive_outcome import with_redrive_outcome

Ends = Callable[[Delivery], Decision]


def dies(delivery: Delivery) -> Decision:
    return DeadLetter("exhausted")


def works(delivery: Delivery) -> Decision:
    return Ack()


def fault_of(delivery: Delivery) -> Fault:
    task = delivery.message.task
    return Fault(Kind.DEFAULT, "ValueError", f"bad {task}", f"f{task}")


class Killed(BaseException):
    """The process that worked the machines is dead: nothing catches this."""


class Mortal:
    """A store on which the process dies with its n-th commit, just before or just after it."""

    def __init__(self, store: MemoryStore) -> None:
        self._store, self.cells = store, _Cells(self, store)
        self.left: int | None = None  # commits until it dies
        self.after = False
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, *args: Any, **words: Any) -> Any:
        with self.commit():
            return self._store.put(*args, **words)

    def triage(self, *args: Any, **words: Any) -> Any:
        with self.commit():
            return self._store.triage(*args, **words)

    @contextmanager
    def commit(self) -> Iterator[None]:
        self.commits += 1
        if self.left is not None:
            self.left -= 1
        if self.left == 0 and not self.after:
            raise Killed
        yield
        if self.left == 0:
            raise Killed


class _Cells:
    def __init__(self, mortal: Mortal, store: MemoryStore) -> None:
        self._mortal, self._cells = mortal, store.cells

    def read(self, keys: Sequence[str]) -> Any:
        return self._cells.read(keys)

    def swap(self, *args: Any, **words: Any) -> Any:
        with self._mortal.commit():
            return self._cells.swap(*args, **words)


class World:
    """A store, an app with machines, and all that is about them: carriers, and a worker."""

    def __init__(self, auto: AutoRedrive | None, *, queue: str = "crm") -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.mortal = Mortal(self.store)
        self.queue = queue
        self.app = redrive.App(store=self.mortal)  # type: ignore[arg-type]  # all of it that is used
        self.app.queue(queue, auto_redrive=auto)
        self.ran: Counter[str] = Counter()
        self.notices: list[tuple[str, str, str]] = []
        self.processes = 0
        self.born()

    def born(self) -> None:
        """Another process takes over, and knows nothing."""
        self.processes += 1
        self.mortal.left = None
        self.autos = AutoRunner(self.app, f"p{self.processes}", self._notice)
        self.carriers: dict[str, Runner] = {}

    def _notice(self, name: str, text: str, about: str = "", count: int = 1) -> None:
        self.notices.append((name, text, about))

    # -- what happens

    def bury(self, count: int, *, queue: str | None = None, task: str = "1") -> list[str]:
        """Put that many messages and let them die, a millisecond apart."""
        drafts = [Draft(task=task, queue=queue or self.queue) for _ in range(count)]
        ids = [put.id for put in self.store.put(drafts)]
        self.work(dies, queue=queue)
        self.ran.clear()
        return ids

    def work(self, ends: Ends = works, *, queue: str | None = None) -> None:
        while deliveries := self.store.exchange([], [ClaimRequest(queue or self.queue, 500, 60_000)]).deliveries:
            now_ms, settlements = self.store.now_ms(), []
            for d in deliveries:
                self.ran[d.message.id] += 1
                decision = ends(d)
                fault = None if isinstance(decision, Ack) else fault_of(d)
                settlements.append(with_redrive_outcome(d.message, Settlement(d.receipt, decision, fault), now_ms))
            self.store.exchange(settlements, [])

    def carry(self) -> float:
        """In how many seconds they want to carry on."""
        waits_s = [60.0]
        for id in records.index(self.store).open:
            carrier = self.carriers.get(id)
            if carrier is None:
                name = f"p{self.processes}"
                carrier = self.carriers[id] = Runner(self.mortal, id, name, self._notice, self.app)  # type: ignore[arg-type]
            wait_s = carrier.tick()
            waits_s += [] if wait_s is None else [wait_s]
        return min(waits_s)

    def turn(self, ends: Ends = works, *, times: int = 1, ms: int = 1000) -> None:
        """What happens in so many seconds: its machines look once, its runs as often as they want to."""
        for _ in range(times):
            self.autos.tick()
            over_ms = self.clock() + ms
            while self.clock() < over_ms:
                wait_ms = math.ceil(1000 * self.carry())
                self.work(ends)
                self.clock.advance(min(max(wait_ms, 10), over_ms - self.clock()) / 1000)

    def until(self, over: Callable[[], object], ends: Ends = works, *, within: int = 2000, ms: int = 1000) -> None:
        for _ in range(within):
            if over():
                return
            self.turn(ends, ms=ms)
        raise AssertionError(f"not within {within} turns: {self.machine()}")

    def until_killed_and_on(self, over: Callable[[], object], ends: Ends = works) -> bool:
        """As `until`, but a kill on the way is survived; whether there was one."""
        try:
            self.until(over, ends)
            return False
        except Killed:
            self.born()
            self.clock.advance((2 * LEASE_MS + 30_000) / 1000)
            self.until(over, ends)
            return True

    # -- what there is

    def lane(self, lane: Lane) -> list[Message]:
        return list(self.store.peek(lane, limit=10_000).messages)

    def dead(self) -> int:
        return self.store.counts().dead

    def machine(self, scope: str | None = None) -> Machine:
        return machines(self.store, scope or f"queue/{self.queue}")[0]

    def story(self, scope: str | None = None) -> list[str]:
        return [line.text for line in self.machine(scope).story]
