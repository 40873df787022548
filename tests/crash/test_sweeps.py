"""kill -9 at every step: at the store's named points everywhere, at every write and sync call with strace on Linux."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.crash.children import KILLED, Child, balanced, fill, run, sweep, sweep_stores, until
from tests.support.crash.ledger import Ledger
from tests.support.crash.programs import Plan
from tests.support.crash.traces import killed_at, traced

STEPS = 60

# -- at the named points


@pytest.mark.fault("kill -9 of a worker at each named point of the store")
@sweep_stores("step", STEPS)
def test_worker_killed_at_a_store_call_loses_nothing(place: Path, step: int) -> None:
    fill(place, 60)
    assert run("worker", Plan(place=str(place), kill_at=step)) == KILLED
    assert run("worker", Plan(place=str(place))) == 0
    ledger = balanced(place)
    assert sum(ledger.points().values()) == 1


@pytest.mark.fault("kill -9 of a producer at each named point of the store")
@sweep_stores("step", STEPS)
def test_producer_killed_at_a_store_call_loses_nothing(place: Path, step: int) -> None:
    plan = Plan(place=str(place), count=60)
    assert run("producer", Plan(place=str(place), count=60, kill_at=step)) == KILLED
    assert Ledger(place).problems(worked_off=False) == []
    assert run("producer", plan) == 0
    assert run("worker", Plan(place=str(place))) == 0
    ledger = balanced(place)
    assert len(ledger.kind) == 60 and len(ledger.acknowledged) >= 57  # a put holds three at most


@pytest.mark.fault("kill -9 of a worker while it takes back what a dead one held")
@sweep_stores("step", 12)
def test_worker_killed_while_it_takes_back_counts_the_crash_once(place: Path, step: int) -> None:
    fill(place, ["hold", "hold_thread"] * 6)
    with Child("worker", Plan(place=str(place), prefetch=6)) as first:
        until("it runs two", lambda: first.starts() == 2, child=first)
        first.kill()
    (place / "go").touch()
    assert run("worker", Plan(place=str(place), kill_at=step)) == KILLED
    assert run("worker", Plan(place=str(place))) == 0
    ledger = balanced(place)
    assert ledger.crashed() > 0 and ledger.unstarted() > 0


@pytest.mark.fault("kill -9 of a worker while it renews leases")
@sweep_stores("step", 3, shares=1, shares_of_servers=3)
def test_worker_killed_while_it_renews_leases_loses_nothing(place: Path, step: int) -> None:
    fill(place, ["quick", "blocking"] * 2, pause_ms=500)
    plan = Plan(place=str(place), lease="300ms", kill_point="extend", kill_at=step)
    assert run("worker", plan) == KILLED
    assert run("worker", Plan(place=str(place))) == 0
    balanced(place)


# -- at the system calls


def made(place: Path) -> None:
    """A store that holds nothing yet, so that the sweep begins after its making."""
    fill(place, [])


def producing(place: Path) -> Plan:
    return Plan(place=str(place), count=9, ways=("one", "batch"))


@pytest.fixture(scope="session")
def producer_calls(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    place = tmp_path_factory.mktemp("traced-producer")
    made(place)
    return traced("producer", producing(place)).calls


@pytest.fixture(scope="session")
def making_calls(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    return traced("producer", producing(tmp_path_factory.mktemp("traced-making"))).calls


@pytest.fixture(scope="session")
def worker_calls(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    place = tmp_path_factory.mktemp("traced-worker")
    fill(place, 60)
    return traced("worker", Plan(place=str(place))).calls


@pytest.mark.fault("kill -9 of a producer at each write or sync of the file")
@pytest.mark.linux
@sweep("step", STEPS)
def test_producer_killed_at_a_write_or_sync_loses_nothing(
    step: int, producer_calls: list[tuple[str, int]], tmp_path: Path
) -> None:
    made(tmp_path)
    _kill_producer(producer_calls[step - 1], tmp_path)


@pytest.mark.fault("kill -9 of a producer at each write or sync of the file")
@pytest.mark.linux
@sweep("step", STEPS)
def test_store_is_whole_when_its_maker_is_killed(
    step: int, making_calls: list[tuple[str, int]], tmp_path: Path
) -> None:
    _kill_producer(making_calls[step - 1], tmp_path)


def _kill_producer(call: tuple[str, int], place: Path) -> None:
    assert killed_at("producer", producing(place), call) == KILLED
    copy = (
        place / "copy"
    )  # looked at there: opening a file that a kill left mends it, and the restarted ones shall do that
    shutil.copytree(place, copy, ignore=shutil.ignore_patterns("work.db-wake"))
    assert Ledger(copy).problems(worked_off=False) == []
    assert run("producer", producing(place)) == 0
    assert run("worker", Plan(place=str(place))) == 0
    balanced(place)


@pytest.mark.fault("kill -9 of a worker at each write or sync of the file")
@pytest.mark.linux
@sweep("step", STEPS)
def test_worker_killed_at_a_write_or_sync_loses_nothing(
    step: int, worker_calls: list[tuple[str, int]], tmp_path: Path
) -> None:
    fill(tmp_path, 60)
    assert killed_at("worker", Plan(place=str(tmp_path)), worker_calls[step - 1]) == KILLED
    assert run("worker", Plan(place=str(tmp_path))) == 0
    balanced(tmp_path)
