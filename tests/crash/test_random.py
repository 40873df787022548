"""kill -9 of worker and producer at random moments, and a restart at once, again and again."""

from __future__ import annotations

import random
from pathlib import Path
from time import sleep

import pytest
from tests.support.crash.children import Child, balanced, run, until
from tests.support.crash.ledger import Ledger, handled, produced, read
from tests.support.crash.programs import Plan

PAUSE_S = 0.4  # the longest between the first sign of life of a process and its death
HASTY = 5  # one kill in so many does not wait for a sign of life


@pytest.mark.turns(3)
@pytest.mark.fault("kill -9 of workers and producers at random")
@pytest.mark.slow
def test_a_share_of_the_random_kills_loses_nothing(
    seed: int, place: Path, record_property: pytest.RecordProperty
) -> None:
    kills = 12 if (place / "url").exists() else 24
    record_property("kills", kills)
    _kill_at_random(place, seed, kills=kills, messages=10 * kills)


@pytest.mark.fault("kill -9 of workers and producers at random")
@pytest.mark.soak
def test_200_random_kills_over_2000_messages_lose_nothing(
    seed: int, place: Path, record_property: pytest.RecordProperty
) -> None:
    record_property("kills", 200)
    ledger = _kill_at_random(place, seed, kills=200, messages=2000)
    assert ledger.crashed() > 0 and ledger.unstarted() > 0


def _kill_at_random(place: Path, seed: int, *, kills: int, messages: int) -> Ledger:
    print(f"seed {seed}: {kills} kills over {messages} messages")
    rng = random.Random(seed)
    victims = (["worker", "worker", "producer"] * kills)[:kills]
    rng.shuffle(victims)
    # Runs are short against a worker's life: what is cut off ten times goes to quarantine, as it should (see programs).
    plans = {
        "worker": Plan(place=str(place), concurrency=8, prefetch=8, drain=False),
        "producer": Plan(place=str(place), count=messages, pace_ms=60, run_ms=60),
    }
    journals = {"worker": handled(place), "producer": produced(place)}
    children = {role: Child(role, plan) for role, plan in plans.items()}
    born = dict.fromkeys(children, 0)  # how long their journals were then
    try:
        for number, role in enumerate(victims):
            if number % HASTY:
                _await_life(children[role], journals[role], born[role])
            sleep(rng.uniform(0, PAUSE_S))
            children[role].kill()
            born[role] = journals[role].stat().st_size if journals[role].exists() else 0
            children[role] = Child(role, plans[role])
    finally:
        for child in children.values():
            child.kill()
    last = Plan(place=str(place), concurrency=8, prefetch=8)
    assert run("worker", last) == 0
    assert run("producer", Plan(place=str(place), count=messages)) == 0
    assert run("worker", last) == 0
    ledger = balanced(place)
    print(f"{len(ledger.killed)} workers killed: {ledger.crashed()} runs cut off, {ledger.unstarted()} were unstarted")
    assert len(ledger.kind) == messages
    assert len(ledger.killed) >= sum(role == "worker" for number, role in enumerate(victims) if number % HASTY)
    # A few kills may hit nothing that runs, or nothing that waits; what becomes of both is shown in test_workers.
    return ledger


def _await_life(child: Child, journal: Path, since: int) -> None:
    """Until its journal holds a word of this child's, or it has ended (a producer that has no more to do)."""
    pid = child.process.pid
    until("a sign of life", lambda: child.process.poll() is not None or any(r.pid == pid for r in read(journal, since)))
