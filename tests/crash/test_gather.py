"""kill -9 of workers whose calls gather messages: none is lost, and each counts its own attempts and crashes."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from time import sleep

import msgspec
import pytest
from tests.support.crash.children import (
    ENGINES,
    KILLED,
    PATIENCE_S,
    Child,
    balanced,
    put_all,
    records,
    run,
    stored,
    until,
)
from tests.support.crash.gathering import GATHER, KINDS, Item, with_gathering
from tests.support.crash.ledger import Journal, Record, handled
from tests.support.crash.programs import Plan, make_app

import redrive
from redrive.ids import new_id
from redrive.message import Draft, Lane

pytestmark = pytest.mark.slow

SEEDS = 20
KILLS = 4
MESSAGES = 80


def seeds() -> pytest.MarkDecorator:
    """Two seeds on SQLite in every run; the others, and those on servers, in soaks."""
    return pytest.mark.parametrize(
        "place, number",
        [
            pytest.param(engine, n, marks=[] if engine == "sqlite" and n < 2 else pytest.mark.soak)
            for engine in ENGINES
            for n in range(SEEDS)
        ],
        indirect=["place"],
    )


def drafts(place: Path, rng: random.Random) -> list[tuple[str, Draft]]:
    journal = Journal(handled(place))
    app = with_gathering(make_app(place, journal), journal)
    made = []
    for n in range(MESSAGES):
        kind = KINDS[n % len(KINDS)]
        draft = app.tasks[rng.choice(("many", "many_threads"))].draft(Item(kind, rng.randrange(60)))
        made.append((kind, msgspec.structs.replace(draft, id=new_id(app.store.now_ms()))))
    app.store.close()
    journal.close()
    return made


@seeds()
def test_kills_of_gathered_calls_lose_nothing_and_count_for_each_message(place: Path, number: int, seed: int) -> None:
    print(f"seed {seed}, number {number}: {KILLS} kills over {MESSAGES} messages")
    rng = random.Random(f"{seed}.{number}")
    ids = put_all(place, list(drafts(place, rng)))
    plan = Plan(place=str(place), concurrency=2, prefetch=20)
    for _ in range(KILLS):
        with Child("gatherer", plan) as child:
            _await_runs(child, rng.randrange(2 * GATHER + 5))  # suspects run first, each by itself
            sleep(rng.uniform(0, 0.08))
            child.kill()
    assert run("gatherer", plan) == 0
    ledger = balanced(place)
    starts = records(place, "start")
    sizes = Counter(record.note for record in starts)
    print(f"calls of {dict(sizes)}; {ledger.crashed()} runs cut off, {ledger.unstarted()} were unstarted")
    assert {record.id for record in starts} == set(ids)
    assert f"of {GATHER}" in sizes, "nothing was gathered"
    suspects = [
        after
        for some in ledger.starts.values()
        for before, after in pairwise([Record("start"), *some])
        if after.crashes > before.crashes
    ]
    assert {record.note for record in suspects} <= {"of 1"}, "what was cut off shared a call again"
    assert not any(message.lane is Lane.QUARANTINE for message in ledger.stored.values())
    for message in ledger.stored.values():  # the dead
        evidence = [fault.crash for fault in message.faults if fault.crash is not None]
        shared = [r.note != "of 1" for r in starts if r.id == message.id and r.pid in ledger.killed]
        assert not any(crash.alone for crash, others in zip(evidence, shared, strict=False) if others)


def _await_runs(child: Child, some: int) -> None:
    until("some runs", lambda: child.starts() > some or child.process.poll() is not None)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_of_fifty_that_die_together_the_poison_alone_is_convicted(place: Path, seed: int) -> None:
    at = random.Random(seed).randrange(GATHER * 5)
    print(f"seed {seed}: the poison is number {at} of {GATHER * 5}")
    journal = Journal(handled(place))
    app = with_gathering(make_app(place, journal), journal)
    ids = [
        ref.id
        for ref in app.enqueue_many(
            [app.tasks["deadly"].draft(Item("poison" if n == at else "quick", 0)) for n in range(GATHER * 5)]
        )
    ]
    app.store.close()
    deaths = 0
    while run("gatherer", Plan(place=str(place), concurrency=5, prefetch=50)) == KILLED:
        deaths += 1
        assert deaths <= 12, "the search does not end"
    [poison] = stored(place, [ids[at]])
    assert poison is not None and (poison.lane, poison.reason) == (Lane.QUARANTINE, "crashed")
    assert poison.crashes_alone == 3 and poison.attempt == 0
    assert all(message is None for message in stored(place, [id for id in ids if id != ids[at]])), "one is not done"
    starts = [record for record in records(place, "start") if record.id != ids[at]]
    again = Counter(record.id for record in starts)
    print(
        f"{deaths} deaths; {sum(n > 1 for n in again.values())} others ran again, none more than {max(again.values())}"
    )
    assert {record.attempt for record in starts} == {1} and {r.note for r in starts if r.crashes} <= {"of 1"}


TASKS = """
import asyncio, os, signal
from redrive import App, context

app = App("sqlite:///work.db")


@app.task(name="push", gather=10, linger="50ms")
async def push(items: list[int]) -> None:
    with open("runs", "a") as file:
        for item, run in zip(items, context().runs):
            file.write(f"{item} of {len(items)} crashes {run.crashes}\\n")
    await asyncio.sleep(0.01)
    if 7 in items:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_with_redrive_worker_suspects_of_a_call_run_in_children_in_calls_of_one(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    app = redrive.App(f"sqlite:///{tmp_path / 'work.db'}")
    ids = [ref.id for ref in app.enqueue_many([Draft(task="push", body=b'{"items": %d}' % n) for n in range(30)])]
    command = [sys.executable, "-m", "redrive", "worker", "tasks:app", "--drain", "--lease", "2s", "--log", "off"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    messages = app.store.find(ids)
    app.store.close()
    assert [m is not None for m in messages] == [n == 7 for n in range(30)], done.stderr
    poison = messages[7]
    assert poison is not None and poison.lane is Lane.QUARANTINE and poison.crashes_alone == 3
    runs = [line.split() for line in (tmp_path / "runs").read_text().splitlines()]
    assert "10" in {run[2] for run in runs}
    assert {run[2] for run in runs if run[4] != "0"} == {"1"}, "what was cut off shared a call"
    begun = Counter(run[0] for run in runs)
    assert max(begun.values()) <= begun["7"] + 1, "a message is run again only where the poison ended its worker"
