"""Run the demo's redrives: plan the dead messages, start the run, and wait until a worker has finished it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ..deliver import Pacer
from ..deliver.run import DeliveryOptions
from ..deliver.sending import UrlTarget, delivery_app, new_client
from ..duration import rfc3339, show
from ..events import Observer
from ..store import Store
from ..triage.dlq import DeadLetters
from ..triage.redrive.plan import PlanHandle
from ..triage.redrive.records import FINAL
from ..triage.redrive.run import Run
from .causes import NamingPoster
from .view import Report

ACTOR = "demo"
LOOK_S = 0.1
RUNS_MAX = 50
# Without the slow start, which takes ten seconds for so few; the canary is what shows the brake.
SETTINGS: Mapping[str, object] = {
    "rate": "20/s",
    "slow_start": False,
    "canary": 3,
    "stop_if": "failed>20%",
    "attempts": 3,
}


class Came(msgspec.Struct, frozen=True):
    state: str
    why: str
    counts: dict[str, int]


class Redrives:
    """Redrives dead messages of one queue, and prints each step."""

    def __init__(
        self,
        store: Store,
        queue: str,
        target: UrlTarget,
        options: DeliveryOptions,
        report: Report,
        observers: Sequence[Observer],
    ) -> None:
        self._store, self._queue, self._target, self._options = store, queue, target, options
        self._report, self._observers = report, observers

    def plan(self, selector: str) -> PlanHandle:
        """Return a plan with the selected messages frozen; none of them is moved."""
        flags = " ".join(_flag(name.replace("_", "-"), value) for name, value in SETTINGS.items())
        self._report.say(f"$ redrive dlq plan {_word(f'queue:{self._queue} {selector}')} {flags}", "cyan")
        plan = DeadLetters(self._store).select(f"queue:{self._queue} {selector}").plan(**SETTINGS)  # type: ignore[arg-type]
        self._report.say(
            f"{plan.total} messages are frozen in the plan, about {show(plan.eta_s)} of work. Nothing has moved yet."
        )
        return plan

    def apply(self, plan: PlanHandle, reason: str, limit_s: float) -> Came:
        """Start the plan's run, and work until it and all messages that it moved have ended. Raises TimeoutError."""
        self._report.say(f"$ redrive dlq apply {plan.id} --reason {_word(reason)} --watch", "cyan")
        run = plan.start(reason=reason, actor=ACTOR)
        shown = [0]

        def over() -> bool:
            shown[0] = self._tell(run, shown[0])
            return run.state in FINAL and self._is_quiet()

        asyncio.run(self._work(over, limit_s))
        self._tell(run, shown[0])
        view = run.view()
        return Came(view.state, view.why, view.counts)

    def by_hand(self, is_done: Callable[[], bool], limit_s: float) -> None:
        """Work, and print the story of each run that a person starts meanwhile, until `is_done`, the runs are over and
        nothing waits. Raises TimeoutError."""
        dlq, shown = DeadLetters(self._store), dict[str, int]()
        known = {view.id for view in dlq.runs(RUNS_MAX)}

        def over() -> bool:
            views = [view for view in dlq.runs(RUNS_MAX) if view.id not in known]
            for view in reversed(views):
                if view.id not in shown:
                    self._report.say(f"A redrive by hand, of {view.selector or 'all that is dead'}")
                shown[view.id] = self._tell(dlq.run(view.id), shown.get(view.id, 0))
            return all(view.state in FINAL for view in views) and self._is_quiet() and is_done()

        asyncio.run(self._work(over, limit_s))

    async def _work(self, over: Callable[[], bool], limit_s: float) -> None:
        """Run a worker until `over`, which is asked again and again. Raises TimeoutError."""
        size, timeout_s = self._options.concurrency, self._target.timeout_s
        async with new_client(self._target, size) as client, asyncio.timeout(limit_s):
            poster = NamingPoster(client, self._target, Pacer(None))
            app = delivery_app(self._store, self._queue, poster, self._options.retry, timeout_s)
            for observer in self._observers:
                app.subscribe(observer)
            async with app.worker({self._queue: size}, grace=timeout_s + 1, name=self._queue):
                while True:
                    if await asyncio.to_thread(over):
                        return
                    await asyncio.sleep(LOOK_S)

    def _is_quiet(self) -> bool:
        counts = self._store.counts(self._queue)
        return not counts.waiting + counts.leased

    def _tell(self, run: Run, shown: int) -> int:
        """Print the lines of the run's story after the first `shown`; return how many lines the story has."""
        story = run.story()
        for line in story[shown:]:
            self._report.say(f"  {rfc3339(line.at_ms)[11:22]}  {line.text}", "dim")
        return len(story)


def _flag(name: str, value: object) -> str:
    return f"--no-{name}" if value is False else f"--{name} {_word(value)}"


def _word(value: object) -> str:
    text = str(value)
    return f"'{text}'" if any(c in text for c in ' "<>%') else text
