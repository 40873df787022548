"""kill -9 of a worker whose handlers make follow-ups: the ack and all of them are there, or neither; and so are a death
and its compensation. At every named point of the store, at every write and sync call, and at random."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from time import sleep

import pytest
from tests.support.crash.children import KILLED, Child, mostly_sqlite, run, sweep, sweep_stores, until
from tests.support.crash.followers import KINDS, Books, fill
from tests.support.crash.ledger import handled, read
from tests.support.crash.programs import Plan
from tests.support.crash.traces import killed_at, traced

PARENTS = len(KINDS)  # one of each
CALLS, WRITES = 48, 180  # all that a worker makes for them and their children; fewer where it settles more at once,
CALLS_MIN, WRITES_MIN = 28, 100  # though never fewer than these
PAUSE_S = 0.3


def looked_at(place: Path, kinds: dict[str, str]) -> Books:
    """The books after a kill. Of a file a copy is opened: opening mends what a kill left, and that is for the next
    worker to do."""
    if (place / "url").exists():
        books = Books(place, kinds)
        assert books.problems() == []
        return books
    copy = place / "copy"
    shutil.copytree(place, copy, ignore=shutil.ignore_patterns("work.db-wake", "copy"))
    books = Books(copy, kinds)
    shutil.rmtree(copy)
    assert books.problems() == []
    return books


def worked_off(place: Path, kinds: dict[str, str]) -> Books:
    """The books once another worker has done the rest."""
    assert run("follower", Plan(place=str(place))) == 0
    books = Books(place, kinds)
    assert books.problems() == [] and books.left() == 0
    assert books.settled() == len(books.kinds) > len(kinds), "no chain went on"
    return books


@pytest.mark.fault("kill -9 of a worker between an ack, or a death, and what follows from it")
@sweep_stores("step", CALLS)
def test_worker_killed_at_a_store_call_writes_all_that_follows_or_nothing(place: Path, step: int) -> None:
    kinds = fill(place, PARENTS)
    code = run("follower", Plan(place=str(place), kill_at=step))
    assert code == KILLED or step > CALLS_MIN
    assert len(looked_at(place, kinds).points) == (code == KILLED)
    worked_off(place, kinds)


@pytest.fixture(scope="session")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    place = tmp_path_factory.mktemp("traced-follower")
    fill(place, PARENTS)
    return traced("follower", Plan(place=str(place))).calls


@pytest.mark.linux
@sweep("step", WRITES, shares=18)
def test_worker_killed_at_a_write_or_sync_writes_all_that_follows_or_nothing(
    step: int, calls: list[tuple[str, int]], tmp_path: Path
) -> None:
    kinds = fill(tmp_path, PARENTS)
    if step <= len(calls):
        code = killed_at("follower", Plan(place=str(tmp_path)), calls[step - 1])
        assert code == KILLED or step > WRITES_MIN
    else:
        assert step > WRITES_MIN
    looked_at(tmp_path, kinds)
    worked_off(tmp_path, kinds)


@pytest.mark.turns(3)
@pytest.mark.fault("kill -9 of a worker between an ack, or a death, and what follows from it")
@pytest.mark.slow
@mostly_sqlite()
def test_random_kills_leave_no_half_of_an_ack_or_a_death(seed: int, place: Path) -> None:
    _kill_at_random(place, seed, kills=3, parents=180)


@pytest.mark.fault("kill -9 of a worker between an ack, or a death, and what follows from it")
@pytest.mark.soak
def test_40_random_kills_leave_no_half_of_an_ack_or_a_death(seed: int, place: Path) -> None:
    _kill_at_random(place, seed, kills=40, parents=1800)


def _kill_at_random(place: Path, seed: int, *, kills: int, parents: int) -> None:
    print(f"seed {seed}: {kills} kills over {parents} parents")
    rng = random.Random(seed)
    kinds = fill(place, parents, pause_ms=40)  # so slow that the first kill comes before the end
    plan = Plan(place=str(place), concurrency=8, prefetch=8, drain=False)
    settled = [0]
    for _ in range(kills):
        since = handled(place).stat().st_size
        with Child("follower", plan) as child:
            _await_start(place, since, child)
            sleep(rng.uniform(0, PAUSE_S))
            child.kill()
        books = looked_at(place, kinds)
        settled.append(books.settled())
        if books.left() == 0:  # a fast machine
            break
    books = worked_off(place, kinds)
    print(f"settled after each kill: {settled[1:]}; in the end {books.settled()}")
    assert len(settled) > kills // 2 and settled[1] < books.settled()


def _await_start(place: Path, since: int, child: Child) -> None:
    def started() -> bool:
        return any(r.what == "start" for r in read(handled(place), since))

    until("it runs something", started, child=child)
