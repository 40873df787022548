"""kill -9 of workers and of producers that replace what waits: what was put last is run, and nothing is lost."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from pathlib import Path

import pytest
from tests.support.crash.children import Child, run, sweep_stores, until
from tests.support.crash.latest import KEYS, make_app, put
from tests.support.crash.ledger import Journal, handled, produced, read
from tests.support.crash.programs import Plan

from redrive.message import Counts

KILLS = 6


@pytest.mark.fault("kill -9 of workers, and of producers that replace what waits")
@sweep_stores("number", 20)
def test_of_messages_that_are_replaced_the_last_one_runs(place: Path, number: int) -> None:
    print(f"seed {number}")
    rng = random.Random(number)
    worker = Plan(place=str(place), concurrency=3, drain=False)
    children = [("indexer", worker), ("indexer", worker)]
    children += [("editor", Plan(place=str(place), count=100 * number + n)) for n in range(3)]
    running = [Child(role, plan) for role, plan in children]
    try:
        for kill in range(KILLS):
            until("runs", lambda least=10 * (kill + 1): len(read(handled(place))) > least)
            time.sleep(rng.uniform(0, 0.4))
            at = rng.randrange(len(running))
            running[at].kill()
            running[at] = Child(*children[at])
        (place / "stop").touch()
        for at, child in enumerate(running):
            child.wait() if children[at][0] == "editor" else child.kill()
    finally:
        for child in running:
            child.kill()
    app, journal = make_app(place, Journal(handled(place))), Journal(produced(place))
    for key in KEYS:
        put(app, journal, rng, key)
    assert run("indexer", Plan(place=str(place), concurrency=3)) == 0
    assert app.store.check() == [] and app.counts("index") == Counts()
    app.store.close()
    puts, runs = read(produced(place)), read(handled(place))
    assert uncovered(puts, runs) == []


def uncovered(puts: list, runs: list) -> list[str]:  # type: ignore[type-arg]
    """Return the acknowledged puts after which no run began with their content, or with one that was put later."""
    tried_s = {r.note: r.at_s for r in puts if r.what == "try"}
    ended_s = {r.note: r.at_s for r in puts if r.what != "try"}
    starts = defaultdict(list)
    for start in runs:
        starts[start.note.partition("#")[0]].append((start.at_s, start.note))
    lost = []
    for record in puts:
        if record.what != "try":
            since_s = tried_s[record.note]
            late = [note for at_s, note in starts[record.note.partition("#")[0]] if at_s >= since_s]
            if record.what == "replaced":
                late = [note for note in late if ended_s.get(note, since_s) >= since_s]
            if not late:
                lost.append(record.note)
    return lost
