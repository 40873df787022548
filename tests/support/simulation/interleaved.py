"""Several who carry redrive runs at once, a store call at a time, in an order that a seed chooses; any of them may be
killed between two calls, or just after one, and people meddle.

The store, the carriers and what people do are the real ones, and the clock is the test's. What was moved, returned and
judged is written down where the store commits it, so that the runs' own books can be held against it.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from redrive import App
from redrive.errors import Refused, StoreUnavailable
from redrive.fault import Fault, Kind
from redrive.message import (
    Ack,
    Cancel,
    ClaimRequest,
    DeadLetter,
    Decision,
    Delivery,
    Draft,
    Handle,
    Lane,
    Redrive,
    RetryAt,
    Return,
    Settled,
    Settlement,
    Swap,
    Verdict,
)
from redrive.stores.memory.store import MemoryStore
from redrive.testing.clock import ManualClock
from redrive.triage.redrive import plan as plans
from redrive.triage.redrive import run as runs
from redrive.triage.redrive.options import read_settings
from redrive.triage.redrive.records import FINAL, RunState, RunStatus
from redrive.triage.redrive.run import Run
from redrive.triage.redrive.runner import Runner
from redrive.worker import redrive_outcome

BAD = Fault(Kind.DEFAULT, "ValueError", "bad", "f-bad")
PATIENCE = 2000  # rounds in which all must be over


class Books(MemoryStore):
    """Writes down what is moved and returned by whom."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.moved: Counter[tuple[str | None, str]] = Counter()  # by run and message
        self.returned: Counter[tuple[str | None, str]] = Counter()

    def triage(self, handles: Sequence[Handle], verdict: Verdict, *, swaps: Sequence[Swap] = ()) -> list[bool]:
        done = super().triage(handles, verdict, swaps=swaps)
        ids = [handle.id for handle, word in zip(handles, done, strict=True) if word]
        if isinstance(verdict, Redrive | Return):
            book = self.moved if isinstance(verdict, Redrive) else self.returned
            book.update((verdict.run, id) for id in ids)
        return done


class Killed(BaseException):
    """What ends a thread that was killed, at a store call."""


class Step(threading.Thread):
    """A job that goes from one store call to the next when it is told to."""

    def __init__(self, job: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._job = job
        self._go, self._came = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = self.over = False
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.pause()
            self._job()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            self._came.release()

    def pause(self) -> None:
        """Called by the job, before and after each call."""
        self._came.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def step(self) -> None:
        """On to the next call, or to the end."""
        if not self.over:
            self._came.acquire()
            self._go.release()
            self._came.acquire()
            self._came.release()
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        self._killed = True
        self.step()


class Interrupted:
    """A store whose calls are the points between which a carrier may be left alone, or killed."""

    def __init__(self, store: MemoryStore, pause: Callable[[], None], fails: Callable[[], bool]) -> None:
        self._store, self._pause, self._fails = store, pause, fails

    @property
    def cells(self) -> Interrupted:
        return Interrupted(self._store.cells, self._pause, self._fails)  # type: ignore[arg-type]  # it has calls too

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name not in ("triage", "put", "find", "read", "swap"):
            return call

        def paused(*args: Any, **words: Any) -> Any:
            self._pause()
            if self._fails():
                raise StoreUnavailable("it did not arrive")
            found = call(*args, **words)
            self._pause()
            if self._fails():
                raise StoreUnavailable("nobody knows whether it did")
            return found

        return paused


class Hand:
    """One who carries a run, in any number of lives."""

    def __init__(self, scene: Interleaved, run: str, name: str) -> None:
        self._scene, self._run, self._name, self._life = scene, run, name, 0
        self._step: Step | None = None
        self._begin()

    def _begin(self) -> None:
        self._life += 1
        store: Any = Interrupted(self._scene.store, self._pause, self._scene.fails)
        owner = "local/1" if self._scene.namesakes else f"{self._name}.{self._life}"
        self._carrier = Runner(store, self._run, owner, self._scene.notice, self._scene.app)

    def _pause(self) -> None:
        assert self._step is not None
        self._step.pause()

    def go_on(self, calls: int) -> None:
        """So many calls further: of the tick that it is at, or else of a new one."""
        if self._step is None:
            self._step = Step(self._carrier.tick)
        for _ in range(calls):
            with suppress(StoreUnavailable):
                self._step.step()
            if self._step.over:
                self._step = None
                return

    def kill(self) -> None:
        """Wherever it is; another takes its place."""
        if self._step is not None:
            self._step.kill()
            self._step = None
        self._begin()


class Interleaved:
    """`messages` dead ones, two overlapping runs of them, each with two hands, and a worker. `plain`: runs that
    nothing slows down or stops by itself. In some the hands have one name; in some the store fails now and then, before
    or after it did what it was asked."""

    def __init__(self, seed: int, *, messages: int = 40, meddle: bool = True, plain: bool = False) -> None:
        self.rng = random.Random(seed)
        self.namesakes, self.outages = self.rng.random() < 0.3, self.rng.random() < 0.3
        self.meddle, self.plain = meddle, plain
        self.clock = ManualClock()
        self.store = self._make_store()
        self.app = App(store=self.store)
        self.notices: list[tuple[str, str]] = []
        self.verdicts: dict[tuple[str, str], str] = {}  # by run and message, as they were committed
        self.removed: set[str] = set()  # by a person
        self._held: list[Delivery] = []
        self.ids = [put.id for put in self.store.put([Draft(task="t") for _ in range(messages)])]
        for delivery in self._claim(messages):
            self.store.exchange([Settlement(delivery.receipt, DeadLetter("exhausted"), BAD)], [])
        self.runs = [self._start(), self._start()]
        self.hands = [Hand(self, run.id, f"{run.id[-4:]}-{n}") for run in self.runs for n in (1, 2)]

    def _make_store(self) -> Any:
        return Books(self.clock)

    def _start(self) -> Run:
        words: dict[str, Any] = {"rate": self.rng.choice(["100/s", "500/s", "7/s", None])}
        if self.rng.random() < 0.5:
            words |= {"canary": self.rng.choice([1, 5]), "stop_if": self.rng.choice(["", "failed>60%", "failed>=30"])}
        words |= {"slow_start": self.rng.random() < 0.2, "halve_on_failures": self.rng.random() < 0.3}
        settings = read_settings(**({} if self.plain else words))
        chosen = [m for m in self.store.peek(Lane.DEAD, limit=10_000).messages if self.rng.random() < 0.8]
        plan = plans.draw_up(self.store, chosen, "", settings, app=self.app)
        runs.begin(self.store, plan, actor="ann", reason="fixed")
        return Run(self.store, plan.id, self.app)

    def fails(self) -> bool:
        return self.outages and self.rng.random() < 0.03

    def notice(self, name: str, text: str, run: str = "", count: int = 1) -> None:
        self.notices.append((name, text))

    def play(self, steps: int) -> None:
        """So many things happen; then everything goes its way to the end."""
        acts = [self._carry] * 12 + [self._work] * 4 + [self._wait] * 4 + [self._kill]
        if self.meddle:
            acts += [self._person] * 3
        for _ in range(steps):
            self.rng.choice(acts)()
        self._to_the_end()

    # -- what happens

    def _carry(self) -> None:
        self.rng.choice(self.hands).go_on(self.rng.choice([1, 1, 2, 5, 20, 100]))

    def _wait(self) -> None:
        self.clock.advance(self.rng.choice([1, 10, 50, 200, 1000, 6000]) / 1000)

    def _kill(self) -> None:
        self.rng.choice(self.hands).kill()

    def _work(self) -> None:
        self._held += self._claim(self.rng.choice([1, 3, 20]))
        for delivery in [d for d in self._held if self.rng.random() < 0.7]:
            self._settle(delivery)

    def _claim(self, limit: int) -> list[Delivery]:
        return list(self.store.exchange([], [ClaimRequest("default", limit, 10**9)]).deliveries)

    def _settle(self, delivery: Delivery) -> None:
        self._held = [other for other in self._held if other is not delivery]
        now_ms, message = self.store.now_ms(), delivery.message
        ends: list[Decision] = [
            Ack(),
            Ack(),
            DeadLetter("exhausted"),
            RetryAt(now_ms + 50),
            RetryAt(now_ms, counts=False),
        ]
        decision = self.rng.choice(ends)
        settlement = Settlement(delivery.receipt, decision, None if isinstance(decision, Ack) else BAD)
        settlement = redrive_outcome.with_redrive_outcome(message, settlement, now_ms)
        said = self.store.exchange([settlement], []).settled[0]
        if said is not Settled.STALE and settlement.swaps:
            assert message.run is not None and settlement.swaps[0].value is not None
            self.verdicts[message.run, message.id] = redrive_outcome.decode(settlement.swaps[0].value).outcome

    def _person(self) -> None:
        run, id = self.rng.choice(self.runs), self.rng.choice(self.ids)
        acts: list[Callable[[], object]] = [
            lambda: run.pause(actor="bob"),
            lambda: run.resume(actor="bob"),
            lambda: run.resume(actor="bob"),
            lambda: self.app.dlq.retry([id]),
            lambda: self._cancel(id),
        ]
        if self.rng.random() < (0.003 if self.plain else 0.05):
            acts = [lambda: run.cancel(actor="bob"), lambda: self._undo(run), lambda: self._undo(run)]
        try:
            self.rng.choice(acts)()
        except Refused:
            assert run.state in FINAL

    def _cancel(self, id: str) -> None:
        if self.store.cancel([id])[0] is not Cancel.TOO_LATE:
            self.removed.add(id)

    def _undo(self, run: Run) -> None:
        """As `Run.undo` asks for it, without waiting for what it comes to."""

        def act(state: RunState, now_ms: int) -> RunState | None:
            if state.undo >= 0:
                return None
            if state.status not in FINAL:
                state = replace(state, status=RunStatus.CANCELLED, over_ms=now_ms, still_ms=0)
            return replace(state, undo=0, closed=False)

        runs.change(self.store, run.id, act, "run undo", "undone by bob", "bob", "")

    def _waiting(self) -> int:
        counts = self.store.counts()
        return counts.waiting

    # -- the end

    def _keep_up(self) -> None:
        """What else goes on until the end."""

    def _to_the_end(self) -> None:
        for run in self.runs:
            if run.state == RunStatus.PAUSED:
                run.resume(actor="bob")
        for _ in range(PATIENCE):
            for hand in self.hands:
                hand.go_on(10_000)
            self._held += self._claim(10_000)
            for delivery in list(self._held):
                self._settle(delivery)
            self._keep_up()
            self.clock.advance(0.5)
            if all(run.view().closed for run in self.runs) and not self.store.counts().leased + self._waiting():
                return
        raise AssertionError(f"not over: {[run.view() for run in self.runs]}")
