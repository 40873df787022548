"""Run the demo's redrives: plan the dead messages, start the run, and wait until a worker has finished it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from ..deliver import Pacer
from ..deliver.run import DeliveryOptions
from ..deliver.sending import Poster, UrlTarget, delivery_app, new_client
from ..duration import rfc3339, show
from ..events import Observer
from ..store import Store
from ..triage.dlq import DeadLetters
from ..triage.redrive.plan import PlanHandle
from ..triage.redrive.records import FINAL
from ..triage.redrive.run import Run
from .view import Report

ACTOR = "demo"
LOOK_S = 0.1
# Without the slow start, which takes ten seconds for so few; the canary is what shows the brake.
SETTINGS: Mapping[str, object] = {
    "rate": "10/s",
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
        asyncio.run(self._carry(run, limit_s))
        view = run.view()
        return Came(view.state, view.why, view.counts)

    async def _carry(self, run: Run, limit_s: float) -> None:
        size, timeout_s = self._options.concurrency, self._target.timeout_s
        shown = 0
        async with new_client(self._target, size) as client, asyncio.timeout(limit_s):
            poster = Poster(client, self._target, Pacer(None))
            app = delivery_app(self._store, self._queue, poster, self._options.retry, timeout_s)
            for observer in self._observers:
                app.subscribe(observer)
            async with app.worker({self._queue: size}, grace=timeout_s + 1, name=self._queue):
                while not self._over(run):
                    shown = self._tell(run, shown)
                    await asyncio.sleep(LOOK_S)
        self._tell(run, shown)

    def _over(self, run: Run) -> bool:
        counts = self._store.counts(self._queue)
        return run.state in FINAL and not counts.waiting + counts.leased

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
