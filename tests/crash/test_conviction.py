"""One message that kills whoever runs it, among eleven good ones: it alone is quarantined, with the evidence, and the
others lose no attempt and run no more often than the search for it takes."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.crash.children import ENGINES, PATIENCE_S, SERVER_ENGINES, records
from tests.support.crash.ledger import url_of
from tests.support.crash.poison import CONCURRENCY
from tests.support.crash.poisoned import BIG_BYTES, evidence, fleet, killer_of_big_ones, left, ways

import redrive
from redrive.fault import Crash
from redrive.message import Draft, Lane, Message

pytestmark = pytest.mark.slow

CLI = (
    *(sys.executable, "-m", "redrive", "worker", "tests.support.crash.poison:app", "-q", "default:4", "--drain"),
    *("--lease", "2s", "--grace", "1s", "--log", "json"),
)  # runs suspects in child processes
QUICK = (sys.executable, "-m", "tests.support.crash.poison", "parent")  # sees after three seconds what hangs
IN_COMPANY = 3  # deaths of a process with it and others: at first, together again, and with half of them
WAYS = {
    "killed": {"cause": "signal", "signal": "SIGKILL"},
    "exits": {"cause": "exit", "code": 3},
    "exits well": {"cause": "exit", "code": 0},
    "exits as if misused": {"cause": "exit", "code": 2},
    "segfault": {"cause": "signal", "signal": "SIGSEGV"},
    "memory": {"cause": "signal", "signal": "SIGKILL"},
    "hangs": {"cause": "hung", "signal": "SIGKILL"},
}


def engines() -> pytest.MarkDecorator:
    chosen = [pytest.param(engine, marks=pytest.mark.soak) for engine in SERVER_ENGINES]
    return pytest.mark.parametrize("place", [ENGINES[0], *chosen], indirect=True)


def fill(place: Path, way: str, seed: int, task: str = "poison") -> tuple[str, list[str]]:
    """Eleven good ones, and the poison somewhere among them: its id and theirs."""
    app = redrive.App(url_of(place))
    drafts = [
        Draft(task=random.Random(f"{seed}.{n}").choice(("good", "good_too")), body=b'{"n": 1}') for n in range(11)
    ]
    at = random.Random(seed).randrange(12)
    drafts.insert(at, Draft(task=task, body=b'{"way": "%s"}' % way.encode()))
    ids = [ref.id for ref in app.enqueue_many(drafts)]
    app.store.close()
    print(f"TEST_SEED={seed}: the poison is number {at}")
    return ids[at], [*ids[:at], *ids[at + 1 :]]


def state_dir_of(place: Path) -> Path:
    app = redrive.App(url_of(place))
    state_dir = app.store.state_dir
    app.store.close()
    assert state_dir is not None
    return state_dir


def convicted(place: Path, poison: str, good: Sequence[str]) -> Message:
    """The poison, after asserting that it alone was quarantined, with as many crashes as there is evidence of, and the
    others are done in their first attempt."""
    [message] = left(place, [poison, *good])
    assert (message.id, message.lane, message.reason) == (poison, Lane.QUARANTINE, "crashed")
    *company, first, second, third = [crash.alone for crash in evidence(message)]
    assert first and second and third and not any(company) and 1 <= len(company) <= IN_COMPANY
    assert (message.attempt, message.crashes, message.crashes_alone) == (0, len(company) + 3, 3)
    starts = Counter(record.id for record in records(place, "start"))
    assert set(starts) == {poison, *good} and starts[poison] == message.crashes
    assert max(starts[id] for id in good) <= IN_COMPANY + 1, starts
    assert {record.attempt for record in records(place, "start")} == {1}
    assert {record.id for record in records(place, "end")} == set(good)
    return message


def in_doubt(place: Path, first: Crash, poison: str) -> set[str]:
    """Of what a crash names, what had not ended in that process: a hung loop also keeps back what ended before it."""
    process = next(record.pid for record in records(place, "start") if record.id == poison)
    return set(first.started) - {record.id for record in records(place, "end") if record.pid == process}


def assert_evidence(place: Path, message: Message, way: str, good: Sequence[str]) -> None:
    first, *later = evidence(message)
    assert len(in_doubt(place, first, message.id)) <= CONCURRENCY
    assert_company(message, good)
    for crash in (first, *later):
        assert {name: getattr(crash, name) for name in WAYS[way]} == WAYS[way]
        assert crash.peak_bytes is not None and crash.peak_bytes > 10_000_000
        assert crash.host == os.uname().nodename and crash.worker.startswith(crash.host)
    if way == "memory":
        assert max(crash.peak_bytes or 0 for crash in later) > BIG_BYTES


def assert_company(message: Message, good: Sequence[str]) -> None:
    """Each crash names all that had been started in the process, in company never more than half of those before,
    rounded up."""
    sizes = []
    for crash in evidence(message):
        assert message.id in crash.started and set(crash.started) <= {message.id, *good}
        assert crash.started_count == len(crash.started)
        assert not crash.alone or crash.started == (message.id,)
        sizes += [] if crash.alone else [crash.started_count]
    for at, size in enumerate(sizes[2:], 2):
        assert size <= (sizes[at - 1] + 1) // 2, sizes


@engines()
@pytest.mark.parametrize("way", ways("killed", "exits", "exits well", "segfault", "memory", "exits as if misused"))
@pytest.mark.fault("a message that kills its worker process, each time it is run")
def test_poison_is_quarantined_with_evidence_and_the_others_are_done(place: Path, way: str, seed: int) -> None:
    poison, good = fill(place, way, seed)
    with fleet(place, QUICK) as workers, killer_of_big_ones():
        workers.ends_well()
    assert_evidence(place, convicted(place, poison, good), way, good)


@engines()
@pytest.mark.parametrize("task", ways("poison", "poison_on_the_loop"))
@pytest.mark.fault("a message that hangs its worker process, each time it is run")
def test_what_hangs_its_process_is_killed_by_the_supervisor_and_convicted(place: Path, task: str, seed: int) -> None:
    poison, good = fill(place, "hangs", seed, task)
    with fleet(place, QUICK) as workers:
        workers.ends_well()
    assert_evidence(place, convicted(place, poison, good), "hangs", good)
    assert "hung; its process was killed by SIGKILL" in left(place, [poison])[0].faults[-1].text


@engines()
@pytest.mark.parametrize("way", ways("memory", "killed", "exits", "exits well", "segfault", "exits as if misused"))
@pytest.mark.fault("a message that kills its worker process, each time it is run")
def test_a_worker_of_an_app_runs_suspects_in_a_child_and_goes_on(place: Path, way: str, seed: int) -> None:
    poison, good = fill(place, way, seed)
    with fleet(place, CLI) as workers, killer_of_big_ones():
        workers.ends_well()
    message = convicted(place, poison, good)
    first, *later = evidence(message)
    assert len(in_doubt(place, first, poison)) <= CONCURRENCY
    assert_company(message, good)
    assert [crash.child for crash in (first, *later)] == [False] + [True] * len(later), "one worker died of it"
    for crash in (first, *later):
        assert {name: getattr(crash, name) for name in WAYS[way]} == WAYS[way]
        assert crash.peak_bytes is None or crash.peak_bytes > 10_000_000


@pytest.mark.soak
@pytest.mark.parametrize("place", ENGINES, indirect=True)
@pytest.mark.fault("kill -9 of a worker's whole tree by a message, its record of what it started lost")
def test_a_host_that_dies_hard_is_counted_through_lost_leases(place: Path, seed: int) -> None:
    poison, good = fill(place, "tree", seed)
    state_dir, lives = state_dir_of(place), 0
    while not (found := left(place, [poison])) or found[0].lane is not Lane.QUARANTINE:
        lives += 1
        assert lives <= 9, found
        with fleet(place, QUICK) as workers:
            workers.process.wait(PATIENCE_S)
        shutil.rmtree(state_dir)  # another host comes next
    with fleet(place, QUICK) as workers:
        workers.ends_well()
    [message] = left(place, [poison, *good])
    starts = Counter(record.id for record in records(place, "start"))
    assert (message.lane, message.reason, message.crashes_alone) == (Lane.QUARANTINE, "crashed", 3)
    assert [(crash.cause, crash.alone) for crash in evidence(message)] == [("lease", True)]
    assert starts[poison] == message.crashes <= IN_COMPANY + 3, starts
    assert max(starts[id] for id in good) <= IN_COMPANY + 1, starts
    assert {record.id for record in records(place, "end")} == set(good)
