"""A worker for tests of processes that race on one store: claims, settles, and writes down when each message ran.

    python -m tests.support.racers URL SEED

Each line on its standard output is a run: group, place in the group, fence, begun, ended (nanoseconds of the machine's
monotonic clock, the same in all its processes) and how it was settled.
"""

from __future__ import annotations

import random
import sys
import time

from redrive.fault import Fault, Kind
from redrive.message import Ack, ClaimRequest, DeadLetter, Decision, Delivery, RetryAt, Settlement
from redrive.stores import open_store

IDLE_TURNS = 100
FAULT = Fault(Kind.DEFAULT, "ValueError", "boom", "f" * 16)


def decide(rng: random.Random, now_ms: int) -> tuple[Decision, Fault | None]:
    chance = rng.random()
    if chance < 0.8:
        return Ack(), None
    if chance < 0.9:
        return RetryAt(now_ms + rng.choice((0, 5, 20))), FAULT
    return (RetryAt(now_ms, counts=False), None) if chance < 0.97 else (DeadLetter("permanent"), FAULT)


def race(url: str, seed: str) -> None:
    rng, store = random.Random(seed), open_store(url)
    running: list[tuple[Delivery, int]] = []
    idle = 0
    while idle < IDLE_TURNS:
        settlements, runs = [], []
        for delivery, begun in running:
            decision, fault = decide(rng, store.now_ms())
            settlements.append(Settlement(delivery.receipt, decision, fault))
            runs.append((delivery, begun, time.monotonic_ns(), type(decision).__name__))
        done = store.exchange(settlements, [ClaimRequest("default", rng.randrange(1, 9), 30_000, worker=seed)])
        for (delivery, begun, ended, how), word in zip(runs, done.settled, strict=True):
            message = delivery.message
            print(message.group, message.headers["n"], message.fence, begun, ended, how, word, flush=True)
        begun = time.monotonic_ns()
        running = [(delivery, begun) for delivery in done.deliveries]
        idle = 0 if running or settlements else idle + 1
        time.sleep(rng.choice((0, 0, 0.002)) if running else 0.01)
    store.close()


if __name__ == "__main__":
    race(*sys.argv[1:])
