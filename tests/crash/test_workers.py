"""Workers that are paused, stopped in order, or killed beside others on the same file."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.support.crash.children import Child, balanced, fill, mostly_sqlite, records, stored, until
from tests.support.crash.programs import Plan

from redrive.message import Lane, Message

pytestmark = [pytest.mark.slow, pytest.mark.turns(3)]

SHORT = "2s"  # a lease to be waited out, though not lost where the machine holds a worker up for a second


def all_leased(place: Path, ids: list[str]) -> bool:
    return all(m is not None and m.lane is Lane.LEASED for m in stored(place, ids))


def came_back_free(message: Message | None) -> bool:
    return message is not None and (message.lane, message.attempt, message.crashes) == (Lane.READY, 0, 0)


# -- paused past the lease


@mostly_sqlite()
@pytest.mark.fault("a worker stands still past its lease (SIGSTOP), and wakes")
def test_worker_paused_past_its_lease_is_told_and_starts_nothing_it_lost(place: Path) -> None:
    ids = fill(place, ["hold", "hold", "hold_thread", "hold_thread"])
    plan = Plan(place=str(place), concurrency=4, prefetch=4, lease=SHORT, drain=False, told=True)
    with Child("worker", plan) as paused:
        until("four handlers run", lambda: paused.starts() == 4, child=paused)
        ids += fill(place, ["quick", "blocking"] * 2)
        until("four more are claimed", lambda: all_leased(place, ids))
        paused.send(signal.SIGSTOP)
        with Child("worker", Plan(place=str(place), concurrency=8, told=True)) as other:
            (place / f"go-{other.process.pid}").touch()  # its handlers return at once
            until("the other runs them all", lambda: other.starts() == 8, child=other)
            paused.send(signal.SIGCONT)
            until("the paused one's handlers are told", lambda: len(ended(place, paused)) >= 4, child=paused)
            (place / "go").touch()
            other.ends_well()
        paused.send(signal.SIGTERM)
        paused.ends_well()
    pid = paused.process.pid
    assert Counter(ended(place, paused)) == {"CancelledError": 2, "LeaseLost": 2}
    assert paused.starts() == 4, "it started a message whose lease it had lost"
    told = [r for r in records(place, "fate") if r.pid == pid]
    assert {r.id for r in told} == set(ids) and {r.note for r in told} <= {"lost", "stale"}
    ledger = balanced(place, lost=[pid])
    assert ledger.done == set(ids)
    assert all([r.pid for r in ledger.starts[id]][-1] == other.process.pid for id in ids)


@pytest.mark.fault("a worker stands still past its lease (SIGSTOP), and wakes")
def test_worker_paused_past_its_lease_is_refused_when_it_settles(place: Path) -> None:
    ids = fill(place, ["stubborn"] * 8)
    plan = Plan(place=str(place), concurrency=8, lease=SHORT, drain=False, told=True)
    with Child("worker", plan) as paused:
        until("its handlers run", lambda: paused.starts() == 8, child=paused)
        paused.send(signal.SIGSTOP)
        with Child("worker", Plan(place=str(place), concurrency=8, told=True)) as other:
            until("the other runs them all, at once", lambda: other.starts() == 8, child=other)
            assert all(m is not None and m.crashes == 1 for m in stored(place, ids))
            (place / f"go-{paused.process.pid}").touch()  # its handlers return as soon as they wake
            paused.send(signal.SIGCONT)
            until("the paused one has finished", lambda: ended(place, paused) == ["ok"] * 8, child=paused)
            until("it was told so", lambda: len(fates(place, paused)) == 8, child=paused)
            assert all_leased(place, ids), "it settled what was another's"
            (place / "go").touch()
            other.ends_well()
        paused.send(signal.SIGTERM)
        paused.ends_well()
    assert fates(place, other) == ["done"] * 8 and set(fates(place, paused)) <= {"stale", "lost"}
    for first, second in balanced(place, lost=[paused.process.pid]).starts.values():
        assert (first.fence, first.crashes, second.fence, second.crashes) == (1, 0, 2, 1)


def fates(place: Path, child: Child) -> list[str]:
    """What became of this worker's deliveries."""
    return [r.note for r in records(place, "fate") if r.pid == child.process.pid]


def ended(place: Path, child: Child) -> list[str]:
    """How the handlers of this worker ended, in order."""
    return [r.note for r in records(place, "end") if r.pid == child.process.pid]


# -- stopped in order


@mostly_sqlite()
def test_sigterm_lets_finish_what_runs_and_gives_the_rest_back(place: Path) -> None:
    ids = fill(place, ["hold", "hold_thread"] * 3)
    with Child("worker", Plan(place=str(place), prefetch=4, drain=False)) as worker:
        until("two handlers run", lambda: worker.starts() == 2, child=worker)
        until("the rest is claimed", lambda: all_leased(place, ids))
        worker.send(signal.SIGTERM)
        until("the rest is free again", lambda: sum(map(came_back_free, stored(place, ids))) == 4, child=worker)
        (place / "go").touch()
        worker.ends_well()
    assert ended(place, worker) == ["ok", "ok"]
    assert sum(map(came_back_free, stored(place, ids))) == 4
    balanced(place, worked_off=False)


@mostly_sqlite()
def test_second_sigterm_releases_at_once(place: Path) -> None:
    ids = fill(place, ["hold", "hold_thread", "stubborn"])
    with Child("worker", Plan(place=str(place), concurrency=3, grace="10m", drain=False, told=True)) as worker:
        until("all run", lambda: worker.starts() == 3, child=worker)
        worker.send(signal.SIGTERM)
        until("it drains", lambda: bool(records(place, "notice", "draining")), child=worker)
        worker.send(signal.SIGTERM)
        worker.ends_well()
    assert sorted(ended(place, worker)) == ["Cancelled", "CancelledError"]  # the third heeds nobody
    assert all(map(came_back_free, stored(place, ids)))
    assert [r.note for r in records(place, "fate")] == ["released"] * 3


@mostly_sqlite()
def test_what_outlasts_the_grace_is_released(place: Path) -> None:
    ids = fill(place, ["hold", "hold_thread", "stubborn"])
    with Child("worker", Plan(place=str(place), concurrency=3, grace="200ms", drain=False)) as worker:
        until("all run", lambda: worker.starts() == 3, child=worker)
        worker.send(signal.SIGTERM)
        worker.ends_well()
    assert all(map(came_back_free, stored(place, ids)))


# -- beside others


@pytest.mark.fault("kill -9 of a worker beside others")
def test_killed_worker_does_not_hold_up_the_others(place: Path) -> None:
    ids = fill(place, ["hold", "hold_thread"] * 15)
    plan = Plan(place=str(place), lease=SHORT)
    with Child("worker", plan) as one, Child("worker", plan) as two, Child("worker", plan) as three:
        until("all three work", lambda: all(child.starts() for child in (one, two, three)))
        one.kill()
        (place / "go").touch()
        two.ends_well()
        three.ends_well()
    ledger = balanced(place)
    assert ledger.killed == {one.process.pid} and ledger.done == set(ids)


@pytest.mark.fault("kill -9 of a worker beside others")
def test_replaced_worker_takes_back_only_what_the_dead_one_held(place: Path) -> None:
    ids = fill(place, ["hold"] * 12)
    plan = Plan(place=str(place))
    with Child("worker", plan) as dead:
        until("it has started two", lambda: dead.starts() == 2, child=dead)
        with Child("worker", plan) as living:
            until("the other has started two", lambda: living.starts() == 2, child=living)
            dead.kill()
            with Child("worker", plan) as new:
                until("the new one has started them, together", lambda: new.starts() == 2, child=new)
                (place / "go").touch()
                new.ends_well()
                living.ends_well()
    ledger = balanced(place)
    assert (ledger.crashed(), ledger.unstarted()) == (2, 2)
    assert ledger.done == set(ids)
    assert max(len(ledger.starts[id]) for id in ids) == 2
