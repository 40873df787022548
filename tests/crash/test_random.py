"""kill -9 of worker and producer at random moments, and a restart at once, again and again."""

from __future__ import annotations

import random
from pathlib import Path
from time import sleep

import pytest

from .children import Child, balanced, run
from .ledger import Ledger
from .programs import Plan

PAUSE_S = (0.02, 0.6)  # between two kills: some hit a process that is still starting


@pytest.mark.slow
def test_a_sixth_of_the_random_kills_loses_nothing(seed: int, tmp_path: Path) -> None:
    _kill_at_random(tmp_path, seed, kills=34, messages=340)


@pytest.mark.soak
def test_200_random_kills_over_2000_messages_lose_nothing(seed: int, tmp_path: Path) -> None:
    _kill_at_random(tmp_path, seed, kills=200, messages=2000)


def _kill_at_random(place: Path, seed: int, *, kills: int, messages: int) -> None:
    print(f"seed {seed}: {kills} kills over {messages} messages")
    rng = random.Random(seed)
    plans = {
        "worker": Plan(place=str(place), concurrency=4, prefetch=4, drain=False),
        "producer": Plan(place=str(place), count=messages, pace_ms=50),
    }
    children = {role: Child(role, plan) for role, plan in plans.items()}
    try:
        for _ in range(kills):
            sleep(rng.uniform(*PAUSE_S))
            victim = rng.choice(("worker", "worker", "producer"))
            if children["producer"].process.poll() is not None:  # it is done
                victim = "worker"
            children[victim].kill()
            children[victim] = Child(victim, plans[victim])
    finally:
        for child in children.values():
            child.kill()
    assert run("producer", Plan(place=str(place), count=messages)) == 0
    assert run("worker", Plan(place=str(place), concurrency=4, prefetch=4)) == 0
    _judge(balanced(place), kills, messages)


def _judge(ledger: Ledger, kills: int, messages: int) -> None:
    assert len(ledger.kind) == messages
    assert len(ledger.killed) > kills / 3, "too few kills hit a worker that was up"
    assert ledger.crashed() > 0 and ledger.unstarted() > 0
