"""kill -9 of whoever carries a redrive run: at every call of the store that it makes, and at random with two carrying
two runs at once. Each message ends in one place, driven once, and the counts are exact."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from tests.support.crash.children import KILLED, Child, mostly_sqlite, run, sweep_stores, until
from tests.support.crash.ledger import handled, opened, read
from tests.support.crash.programs import Plan
from tests.support.crash.redrives import bury, delay, make_app, problems, start

STEPS, STEPS_MIN = 40, 15  # calls to be killed at, and such as each run surely makes
PAUSE_S = 0.3  # the longest between a worker's first sign of life and its death


@pytest.mark.fault("kill -9 of a worker that carries a redrive run, at each of its store calls")
@sweep_stores("step", STEPS, shares=STEPS, shares_of_servers=4 * STEPS)
def test_a_run_whose_carrier_was_killed_at_a_store_call_is_carried_on_and_its_counts_are_exact(
    place: Path, step: int
) -> None:
    ids = bury(place, 45)
    id = start(place, rate="300/s", canary=3, stop_if="failed>90%")
    code = run("redriver", Plan(place=str(place), kill_at=step))
    assert code == KILLED or step > STEPS_MIN
    assert run("redriver", Plan(place=str(place))) == 0
    assert problems(place, [id], ids) == []


@pytest.mark.fault("kill -9 of a worker that carries a run which makes due what waits, at each of its store calls")
@sweep_stores("step", STEPS, shares=STEPS, shares_of_servers=4 * STEPS)
def test_a_run_that_hurries_is_carried_on_after_a_kill_at_a_store_call(place: Path, step: int) -> None:
    ids = delay(place, 45)
    id = start(place, "lane:scheduled", rate="300/s", canary=3, stop_if="failed>90%")
    code = run("redriver", Plan(place=str(place), kill_at=step))
    assert code == KILLED or step > STEPS_MIN
    assert run("redriver", Plan(place=str(place))) == 0
    assert problems(place, [id], ids, hurried=True) == []


@pytest.mark.fault("kill -9 of workers that carry runs which make due what waits, at random")
@pytest.mark.parametrize("nth", [pytest.param(n, marks=pytest.mark.soak if n else pytest.mark.slow) for n in range(20)])
@mostly_sqlite()
def test_random_kills_of_two_carriers_that_hurry_leave_each_message_run_once(
    seed: int, place: Path, nth: int, record_property: pytest.RecordProperty
) -> None:
    record_property("kills", 3)
    _kill_at_random(place, seed + nth, kills=3, messages=60, hurried=True)


@pytest.mark.fault("kill -9 of workers that carry redrive runs, at random")
@pytest.mark.slow
@mostly_sqlite()
def test_a_share_of_random_kills_of_two_carriers_leaves_each_message_driven_once(
    seed: int, place: Path, record_property: pytest.RecordProperty
) -> None:
    record_property("kills", 2)
    _kill_at_random(place, seed, kills=2, messages=80)


@pytest.mark.fault("kill -9 of workers that carry redrive runs, at random")
@pytest.mark.soak
def test_100_random_kills_of_two_carriers_leave_each_of_3000_messages_driven_once(
    seed: int, place: Path, record_property: pytest.RecordProperty
) -> None:
    record_property("kills", 100)
    _kill_at_random(place, seed, kills=100, messages=3000)


def _kill_at_random(place: Path, seed: int, *, kills: int, messages: int, hurried: bool = False) -> None:
    """Two overlapping runs of all, so that each message is in both plans, and two workers that carry them."""
    print(f"seed {seed}: {kills} kills over {messages} messages")
    rng = random.Random(seed)
    ids = delay(place, messages) if hurried else bury(place, messages)
    rate = messages / kills / 2 + 10  # together they are about half-way when the kills are over
    runs = [start(place, "lane:scheduled" if hurried else "", rate=rate) for _ in range(2)]
    plan = Plan(place=str(place), concurrency=4, prefetch=4, drain=False)
    children = [Child("redriver", plan) for _ in range(2)]
    try:
        for _ in range(kills):
            n = rng.randrange(2)
            _await_life(children[n])
            time.sleep(rng.uniform(0, PAUSE_S))
            children[n].kill()
            children[n] = Child("redriver", plan)
    finally:
        for child in children:
            child.kill()
    print(f"{_moved(place, runs)} of {messages} were moved by then")
    with Child("redriver", plan) as last:
        app = make_app(place)
        until("both are over", lambda: all(app.dlq.run(id).view().closed for id in runs), child=last)
        app.store.close()
        store = opened(place)
        until("all have run", lambda: not store.counts().ready + store.counts().leased, child=last)
        store.close()
    assert problems(place, runs, ids, hurried=hurried) == []


def _moved(place: Path, runs: list[str]) -> int:
    app = make_app(place)
    try:
        return sum(app.dlq.run(id).counts["moved"] for id in runs)
    finally:
        app.store.close()


def _await_life(child: Child) -> None:
    pid = child.process.pid
    until("a sign of life", lambda: any(r.pid == pid for r in read(handled(child.place))), child=child)


@pytest.mark.fault("kill -9 of a worker that carries a redrive run, with another there")
@pytest.mark.soak
@mostly_sqlite()
def test_another_worker_carries_on_once_the_lease_of_the_killed_one_has_run_out(place: Path) -> None:
    ids = bury(place, 300)
    id = start(place, rate="30/s")
    plan = Plan(place=str(place), drain=False)
    with Child("redriver", plan) as first:
        until("it moves", lambda: first.starts() > 5, child=first)
        with Child("redriver", plan) as second:
            _await_life(second)
            first.kill()
            killed_s = time.monotonic()
            before = second.starts()
            app = make_app(place)
            until("the other moves", lambda: second.starts() > before + 20, child=second)
            assert time.monotonic() - killed_s < 12  # a lease of 5 s, a look a second, and 20 messages
            until("it is over", lambda: app.dlq.run(id).view().closed, child=second)
            app.store.close()
    assert problems(place, [id], ids) == []
