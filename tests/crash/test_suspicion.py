"""Kill -9 with many handlers under way: those run again together, in few processes; and a poison among them is found in
few deaths, none of them the worker's where it has children."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.crash.children import mostly_sqlite, records, stored, until
from tests.support.crash.ledger import url_of
from tests.support.crash.poisoned import Fleet, evidence, fleet, killer_of_big_ones, left, ways

import redrive
from redrive.message import Draft, Lane
from redrive.worker.crash.company import ALONE_FROM

pytestmark = [pytest.mark.slow, pytest.mark.turns(2)]

MANY = 40
ALONE_MAX = 3  # deaths alone that convict
EMBEDDED = (sys.executable, "-m", "tests.support.crash.poison", "child")
COMMAND = (
    *(sys.executable, "-m", "redrive", "worker", "tests.support.crash.poison:app", "-q", f"default:{MANY}", "--drain"),
    *("--grace", "1s", "--log", "json"),
)


def fill(place: Path, seed: int, way: str | None = None) -> list[str]:
    """So many that wait for `go`, sync and async; the poison, if there is one, is the first of the ids."""
    app, rng = redrive.App(url_of(place)), random.Random(seed)
    count = MANY - (way is not None)
    drafts = [Draft(task=rng.choice(("waits", "awaits")), body=b'{"n": %d}' % n) for n in range(count)]
    at = rng.randrange(count)
    if way is not None:
        drafts.insert(at, Draft(task="poison_waits", body=b'{"way": "%s"}' % way.encode()))
    ids = [ref.id for ref in app.enqueue_many(drafts)]
    app.store.close()
    return ids if way is None else [ids[at], *ids[:at], *ids[at + 1 :]]


def cut_off(place: Path, argv: Sequence[str], ids: Sequence[str]) -> None:
    """Kill -9 with all of them under way."""
    with fleet(place, argv, MANY) as workers:
        until("all have begun", lambda: starts(place) == Counter(ids) or not alive(workers))
        workers.kill()
    assert starts(place) == Counter(ids), workers.said()


def alive(workers: Fleet) -> bool:
    return workers.process.poll() is None


def starts(place: Path) -> Counter[str]:
    return Counter(record.id for record in records(place, "start"))


@mostly_sqlite()
@pytest.mark.parametrize("argv", [EMBEDDED, COMMAND], ids=["embedded", "command"])
@pytest.mark.fault("kill -9 of a worker with all of its many handlers under way")
def test_all_run_again_together_after_a_kill(place: Path, argv: Sequence[str], seed: int) -> None:
    ids = fill(place, seed)
    cut_off(place, argv, ids)
    before = {record.pid for record in records(place, "start")}
    with fleet(place, argv, MANY) as workers:
        until("all have begun again", lambda: starts(place) == Counter(ids * 2))
        (place / "go").touch()
        workers.ends_well()
    again = [record for record in records(place, "start") if record.pid not in before]
    assert len({record.pid for record in again}) == 1, "in one process"
    assert {(record.attempt, record.crashes) for record in again} == {(1, 1)}
    assert stored(place, ids) == [None] * MANY, "all are done"


@mostly_sqlite()
@pytest.mark.parametrize("argv", [EMBEDDED, COMMAND], ids=["embedded", "command"])
@pytest.mark.fault("kill -9 again, before those that were under way had ended")
def test_after_a_second_kill_each_waits_for_one_other_group_at_most(
    place: Path, argv: Sequence[str], seed: int
) -> None:
    ids = fill(place, seed)
    cut_off(place, argv, ids)
    with fleet(place, argv, MANY) as workers:
        until("all have begun again", lambda: starts(place) == Counter(ids * 2))
        workers.kill()
    before = {record.pid for record in records(place, "start")}
    with fleet(place, argv, MANY) as workers:
        until("half of them have begun", lambda: len(records(place, "start")) >= MANY * 2 + MANY // 2)
        (place / "go").touch()
        workers.ends_well()
    again = [record for record in records(place, "start") if record.pid not in before]
    assert Counter(record.id for record in again) == Counter(ids), "each once"
    assert len({record.pid for record in again}) <= (1 if argv is EMBEDDED else 2)
    assert {(record.attempt, record.crashes) for record in again} == {(1, 2)}


@mostly_sqlite()
@pytest.mark.parametrize("way", ways("killed", "exits", "segfault", "memory"))
@pytest.mark.fault("kill -9 of a worker with a poison among what it ran")
def test_a_poison_among_many_is_convicted_in_few_deaths_of_children_and_none_of_the_worker(
    place: Path, way: str, seed: int
) -> None:
    poison, *innocent = ids = fill(place, seed, way)
    cut_off(place, COMMAND, ids)
    (place / "go").touch()
    with fleet(place, COMMAND, MANY) as workers, killer_of_big_ones():
        workers.ends_well()
    [message] = left(place, ids)
    of_worker, *of_children = evidence(message)
    assert (message.id, message.lane, message.attempt) == (poison, Lane.QUARANTINE, 0)
    assert (message.crashes, message.crashes_alone) == (1 + len(of_children), ALONE_MAX)
    assert not of_worker.child and all(crash.child for crash in of_children)
    assert len(of_children) <= 15 and len(of_children) < ALONE_FROM + ALONE_MAX
    runs = [record for record in records(place, "start") if record.id != poison]
    assert {record.attempt for record in runs} == {1} and max(record.crashes for record in runs) <= ALONE_FROM
    assert {record.id for record in records(place, "end")} == set(innocent)
    assert "worker process" not in workers.said(), "none was replaced"


@mostly_sqlite()
@pytest.mark.fault("kill -9 of a worker with a poison among what it ran")
def test_an_embedded_worker_convicts_it_in_as_many_lives_and_no_other(place: Path, seed: int) -> None:
    poison, *innocent = ids = fill(place, seed, "killed")
    cut_off(place, EMBEDDED, ids)
    (place / "go").touch()
    lives = 0
    while not left(place, [poison]) or left(place, [poison])[0].lane is not Lane.QUARANTINE:
        lives += 1
        assert lives <= ALONE_FROM + ALONE_MAX
        with fleet(place, EMBEDDED, MANY) as workers:
            workers.process.wait(60)
    with fleet(place, EMBEDDED, MANY) as workers:
        workers.ends_well()
    [message] = left(place, ids)
    runs = [record for record in records(place, "start") if record.id != poison]
    assert (message.id, message.crashes_alone, message.attempt) == (poison, ALONE_MAX, 0)
    assert message.crashes == len(evidence(message)) == lives
    assert {record.attempt for record in runs} == {1} and max(record.crashes for record in runs) <= ALONE_FROM
    assert {record.id for record in records(place, "end")} == set(innocent)
