"""An outage of half an hour leaves 5,000 retries spread over six hours; the endpoint is back, and a run hurries them.

The story of docs/howto/hurry.md on a virtual clock, with the real plans, runs and store: what the endpoint sees.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.support.redrives import Scene

from redrive.message import Ack, Decision, Delivery, Draft, Lane, RetryAt
from redrive.triage.redrive.run import Run

MESSAGES = 5000
OUTAGE_S, SPREAD_S = 1800, 6 * 3600
RATE_PER_S, CANARY = 20, 5


class Endpoint(Scene):
    """Messages for one endpoint, which is down until `is_up`. Failed calls are spread over six hours."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.is_up = False
        self.calls: Counter[int] = Counter()  # by second
        self.done: Counter[str] = Counter()

    def call(self, delivery: Delivery) -> Decision:
        self.calls[self.clock() // 1000] += 1
        if self.is_up:
            self.done[delivery.message.id] += 1
            return Ack()
        return RetryAt(self.clock() + self.rng.randrange(60_000, SPREAD_S * 1000), "retry")

    def hurry(self) -> Run:
        plan = self.app.select("lane:scheduled task:webhook.deliver").plan(rate=f"{RATE_PER_S}/s", canary=CANARY)
        run = plan.start(reason="the endpoint is back", actor="ann")
        self.carrier = self.carry(run.id)
        self.over(run, self.call, within=10_000)
        return run


@pytest.mark.slow
def test_an_outage_of_half_an_hour_is_made_up_for_at_a_rate(seed: int) -> None:
    scene = Endpoint(seed)
    ids: list[str] = []
    for _ in range(OUTAGE_S // 10):
        drafts = [Draft(task="webhook.deliver") for _ in range(-(-MESSAGES * 10 // OUTAGE_S))]
        ids += [put.id for put in scene.store.put(drafts[: MESSAGES - len(ids)])]
        scene.work(scene.call)
        scene.clock.advance("10s")
    scene.work(scene.call)
    last_due_ms = max(message.due_ms or 0 for message in scene.store.peek(Lane.READY, limit=MESSAGES).messages)
    assert len(ids) == MESSAGES == scene.store.counts().scheduled

    early = scene.hurry()  # somebody was too early: the canary fails, and all others keep their times
    assert early.state == "stopped" and early.counts["failed"] == CANARY
    scene.work(scene.call)
    assert scene.store.counts().scheduled == MESSAGES

    scene.is_up, began_ms = True, scene.clock()
    scene.calls.clear()
    run = scene.hurry()
    took_s, saved_s = (scene.clock() - began_ms) / 1000, (last_due_ms - scene.clock()) / 1000
    own = MESSAGES * took_s / SPREAD_S  # those whose own time comes meanwhile
    fastest = max(scene.calls.values())
    print(f"seed {seed}: canary of {CANARY} failed once, {MESSAGES - CANARY:,} kept their times")
    print(f"calls per second: {fastest} at most, {len(ids) / took_s:.1f} on average; {run.counts}")
    print(f"lost {MESSAGES - len(scene.done)}, run twice {sum(n > 1 for n in scene.done.values())}")
    print(f"over in {took_s:.0f} s; the last retry was due {saved_s / 3600:.2f} h later")
    assert run.state == "done" and run.counts["moved"] + run.counts["changed"] == MESSAGES
    assert run.counts["done"] == run.counts["moved"] and run.counts["changed"] <= 3 * own
    assert scene.done == dict.fromkeys(ids, 1) and scene.store.counts().scheduled == 0
    assert fastest <= 1.1 * RATE_PER_S + 1 + 4, "the run's rate, and few whose own time has come"
    assert saved_s > 5 * 3600
