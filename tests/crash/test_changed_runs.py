"""kill -9 of those who carry a run that changes or cancels what waits, and work it: each message waits wholly as the
run says or as it was, none is lost and none runs twice, and an undo gives back what nobody has claimed."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from tests.support.crash.changes import HOW, after_undo, make_app, put, ran_once, start, torn
from tests.support.crash.children import ENGINES, Child, until
from tests.support.crash.ledger import handled, opened, read
from tests.support.crash.programs import Plan

SEEDS, SEEDS_OF_SERVERS = 20, 2  # seeds in each run of the tests; those with a server have the others in soaks
MESSAGES, KILLS, PAUSE_S = 60, 3, 0.3


def _seeds() -> list[object]:
    return [
        pytest.param(
            engine, n, marks=pytest.mark.slow if engine == "sqlite" or n < SEEDS_OF_SERVERS else pytest.mark.soak
        )
        for engine in ENGINES
        for n in range(SEEDS)
    ]


@pytest.mark.fault("kill -9 of workers that carry a run which changes or cancels what waits, at random, and its undo")
@pytest.mark.parametrize("place, nth", _seeds(), indirect=["place"])
def test_random_kills_leave_each_message_wholly_changed_or_not_and_an_undo_gives_it_back(
    seed: int, place: Path, nth: int, record_property: pytest.RecordProperty
) -> None:
    record_property("kills", KILLS + 1)
    rng, kind = random.Random(seed + nth), [*HOW][nth % len(HOW)]
    print(f"seed {seed + nth}: {kind}")
    before = put(place, MESSAGES)
    run = start(place, kind, rate=MESSAGES / KILLS / PAUSE_S)
    plan = Plan(place=str(place), concurrency=1, prefetch=1, drain=False)
    children = [Child("changer", plan) for _ in range(2)]
    try:
        for _ in range(KILLS):
            n = rng.randrange(2)
            _await_life(children[n])
            time.sleep(rng.uniform(0, PAUSE_S))
            children[n].kill()
            assert torn(place, before, kind, run) == []
            children[n] = Child("changer", plan)
    finally:
        for child in children:
            child.kill()
    app = make_app(place)
    try:
        if nth % 4 < 2:  # the others are undone in the middle
            app.dlq.run(run).wait("30s")
        assert torn(place, before, kind, run) == []
        undone = app.dlq.run(run).undo(reason="it was wrong")
        assert after_undo(place, before, run) == []
        print(f"{app.dlq.run(run).counts}, {undone} returned")
        with Child("changer", plan) as last:
            app.run_now(*[message.id for message in before])
            store = opened(place)
            until("all have run", lambda: not sum(_left(store, queue) for queue in ("default", "bulk")), child=last)
            store.close()
    finally:
        app.store.close()
    assert ran_once(place, before) == []


def _left(store: object, queue: str) -> int:
    counts = store.counts(queue)  # type: ignore[attr-defined]
    return int(counts.waiting + counts.leased)


def _await_life(child: Child) -> None:
    pid = child.process.pid
    until("a sign of life", lambda: any(r.pid == pid for r in read(handled(child.place))), child=child)
