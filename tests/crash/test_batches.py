"""kill -9 of workers and producers of a batch: each callback is put once, each member is counted once, none is lost."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import pytest
from tests.support.crash.children import KILLED, Child, run, sweep_stores, until
from tests.support.crash.ledger import Journal, handled, read
from tests.support.crash.members import ADDED, MEMBERS, batch_of, callbacks, make_app, reopened
from tests.support.crash.programs import Plan
from tests.support.servers import PostgresServer, RedisServer, Server, memory_disk

from redrive.message import BatchCounts

CALLS, CALLS_MIN = 36, 12  # the most and the fewest store calls of a worker of the batch
FILLED = 2_300
FILL_CALLS, FILL_CALLS_MIN = 14, 5


def worked_off(place: Path) -> BatchCounts:
    assert run("member", Plan(place=str(place))) == 0
    app, ref = reopened(place)
    counts = ref.counts
    assert app.store.check() == []
    app.store.close()
    return counts


@pytest.mark.fault("kill -9 of a worker between the last ack of a batch and its callbacks")
@sweep_stores("step", CALLS)
def test_worker_killed_at_a_store_call_puts_each_callback_once(place: Path, step: int) -> None:
    app = make_app(place, Journal(handled(place)))
    batch_of(app, MEMBERS).enqueue()
    app.store.close()
    code = run("member", Plan(place=str(place), kill_at=step))
    assert code == KILLED or step > CALLS_MIN
    total = MEMBERS + ADDED
    assert worked_off(place) == BatchCounts(done=total - 1, dead=1, opened=total, died=1)
    assert callbacks(place) == {"complete": 1, "death": 1}
    (place / "mended").touch()
    app, ref = reopened(place)
    app.dlq.retry(ids=[message.id for message in ref.members("dead")])
    app.store.close()
    run("member", Plan(place=str(place), kill_at=step))
    assert worked_off(place) == BatchCounts(done=total, opened=total + 1, died=1)
    assert callbacks(place) == {"complete": 2, "death": 1, "success": 1}


@pytest.mark.fault("kill -9 of a producer that fills a batch")
@sweep_stores("step", FILL_CALLS)
def test_producer_killed_at_a_store_call_goes_on_where_it_stood(place: Path, step: int) -> None:
    (place / "mended").touch()
    code = run("filler", Plan(place=str(place), count=FILLED, kill_at=step))
    assert code == KILLED or step > FILL_CALLS_MIN
    assert run("member", Plan(place=str(place), concurrency=50, prefetch=500)) == 0
    early = callbacks(place)
    assert not early or reopened_counts(place).total == FILLED + ADDED, "it called back before it was sealed"
    assert run("filler", Plan(place=str(place), count=FILLED)) == 0
    assert run("member", Plan(place=str(place), concurrency=50, prefetch=500)) == 0
    assert reopened_counts(place) == BatchCounts(done=FILLED + ADDED, opened=FILLED + ADDED)
    assert callbacks(place) == {"complete": 1, "success": 1}


def reopened_counts(place: Path) -> BatchCounts:
    app, ref = reopened(place)
    counts = ref.counts
    app.store.close()
    return counts


@pytest.mark.turns(3)
@pytest.mark.fault("kill -9 of workers of a batch at random")
@pytest.mark.slow
def test_random_kills_of_workers_and_producers_leave_exact_counts(seed: int, place: Path, soak: bool) -> None:
    kills, members = (100, 100_000) if soak else (8, 12_000)
    print(f"seed {seed}: {kills} kills over {members} members")
    (place / "mended").touch()
    rng = random.Random(seed)
    worker = Plan(place=str(place), concurrency=50, prefetch=500, drain=False)
    filler = Plan(place=str(place), count=members)
    children = {"member": Child("member", worker), "filler": Child("filler", filler)}
    try:
        for _ in range(kills):
            role = rng.choice(["member", "member", "filler"])
            until(
                "a sign of life",
                lambda role=role: any(r.pid == children[role].process.pid for r in read(handled(place))),
                child=None,
            )
            sleep(rng.uniform(0, 0.5))
            children[role].kill()
            children[role] = Child(role, worker if role == "member" else filler)
    finally:
        for child in children.values():
            child.kill()
    assert run("filler", filler) == 0
    counts = worked_off(place)
    assert counts == BatchCounts(done=members + ADDED, opened=members + ADDED)
    assert callbacks(place) == {"complete": 1, "success": 1}


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Server | None]:
    """A server of this test's own, which it may kill; None for SQLite."""
    if request.param == "sqlite":
        yield None
    elif request.param == "postgres":
        with PostgresServer(folder=memory_disk()) as postgres:
            yield postgres
    else:
        with RedisServer(appendonly=True, appendfsync="always", folder=memory_disk()) as redis:
            yield redis


@pytest.mark.fault("kill -9 of workers of a batch and of their server, again and again")
@pytest.mark.soak
def test_100_000_members_are_counted_while_workers_and_their_server_are_killed(
    seed: int, server: Server | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight workers, one killed each second, the server each ten."""
    monkeypatch.setenv("REDRIVE_STATE_DIR", str(tmp_path / "state"))
    if server is not None:
        option = "schema" if isinstance(server, PostgresServer) else "namespace"
        (tmp_path / "url").write_text(f"{server.url}?{option}=crash_{secrets.token_hex(6)}")
    (tmp_path / "pause").write_text("0.1")
    members, rng = 100_000, random.Random(seed)
    app = make_app(tmp_path, Journal(handled(tmp_path)))
    batch_of(app, members).enqueue()
    app.store.close()
    plan = Plan(place=str(tmp_path), concurrency=60, prefetch=120, drain=False)
    workers = [Child("member", plan) for _ in range(8)]
    kills, servers, since_s = 0, 0, time.monotonic()
    try:
        while len(callbacks(tmp_path)) < 2 and time.monotonic() - since_s < 600:
            sleep(1.0)
            victim = rng.randrange(len(workers))
            workers[victim].kill()
            workers[victim], kills = Child("member", plan), kills + 1
            if server is not None and kills % 10 == 0:
                server.kill()
                sleep(rng.uniform(0, 1))
                server.restart()
                servers += 1
    finally:
        for worker in workers:
            worker.kill()
    counts = worked_off(tmp_path)
    print(f"seed {seed}: {kills} workers and {servers} servers killed; {counts}; {dict(callbacks(tmp_path))}")
    total = members + ADDED
    assert counts.total == total and counts.done + counts.dead + counts.quarantine == total and counts.dead == 1
    assert callbacks(tmp_path) == {"complete": 1, "death": 1}
