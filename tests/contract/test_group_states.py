"""Failure groups on every engine: held for a person, resolved and regressed, muted until they grow, merged. And real
workers that are killed between a death and what is written about it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.urls import url_of
from tests.support.workers import Heard

from redrive import App, Retry
from redrive.message import Filter, Lane
from redrive.triage.annotations import Annotation, read_annotations
from redrive.triage.group_states import held_counts, read_states

ENGINES = ["memory", "sqlite", "postgres", "redis"]
SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 20))]
POINTS = 30  # calls of the store among which a worker is killed: from its start to after the last death


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else url_of(request.param, request, tmp_path)


def shop(url: str, release: str = "") -> App:
    """An app whose tasks fail as their argument says; those of `invoice` are then held for a person."""
    app = App(url, release=release)

    def fail(error: str) -> None:
        raise {"a": ValueError, "b": KeyError, "c": OSError}[error](error)

    app.task(name="charge", retry=Retry(max_attempts=1))(fail)
    app.task(name="invoice", retry=Retry(max_attempts=1, on_exhausted="hold"))(lambda error: fail(error))
    return app


def die(app: App, errors: str, task: str = "charge") -> None:
    app.enqueue_many([app.tasks[task].draft(error) for error in errors])
    app.run_worker(burst=True)


def names(app: App) -> dict[str, str]:
    return {group.error: group.fingerprint for group in app.store.failure_groups()}


def about(app: App, fingerprint: str) -> Annotation:
    return read_annotations(app.store, [fingerprint])[fingerprint]


def test_what_is_held_is_counted_found_and_moved_as_a_dead_letter(url: str) -> None:
    app = shop(url)
    die(app, "aab")
    die(app, "cc", "invoice")
    held = app.dlq.select("reason:held")
    assert held.count() == 2 and {message.task for message in held} == {"invoice"}
    assert [*held_counts(app.store, {}).values()] == [2]
    texts = [need.text for need in app.status().needs if need.area == "failures"]
    assert texts == [
        "3 messages are dead, in 2 failure groups",
        "2 messages are held for a person, who retries, edits or discards",
    ]
    first, second = (message.id for message in held)
    assert app.dlq.retry([first], reason="again").ids == (first,)
    assert app.dlq.edit(second, args={"error": "b"}, reason="mended")
    app.run_worker(burst=True)
    assert app.dlq.select("reason:held").count() == 2
    app.dlq.discard(select="reason:held", reason="not needed")
    assert not held_counts(app.store, {}) and app.counts().dead == 3
    app.store.close()


def test_a_group_that_is_resolved_in_a_release_regresses_in_it_and_in_later_ones(url: str) -> None:
    app, new = shop(url, "1"), shop(url, "2")
    new.__dict__["_store"] = app.store
    die(app, "a")
    fingerprint = names(app)["ValueError"]
    (dead,) = app.dlq.select()
    assert dead.faults[-1].release == "1"
    app.dlq.resolve(fingerprint, release="2", reason="fixed")
    die(app, "a")
    assert about(app, fingerprint).state.word == "resolved"
    heard = Heard(new)
    die(new, "a")
    assert about(app, fingerprint).state.word == "regressed" and heard.notices.count("regressed") == 1
    app.store.close()


def test_a_mute_ends_at_a_rate_or_a_total(url: str) -> None:
    app = shop(url)
    die(app, "abb")
    a, b = names(app)["ValueError"], names(app)["KeyError"]
    app.dlq.mute(a, until_total=3, reason="known")
    app.dlq.mute(b, until_rate="4/h", reason="known")
    die(app, "ab")
    assert about(app, a).muted(app.store.now_ms()) and about(app, b).muted(app.store.now_ms())
    die(app, "ab")
    assert not about(app, a).muted(app.store.now_ms()) and not about(app, b).muted(app.store.now_ms())
    assert all(state.grown_ms for state in read_states(app.store).values())
    app.store.close()


def test_merged_groups_are_selected_counted_and_moved_together(url: str) -> None:
    app = shop(url)
    die(app, "aaabbc")
    a, b = names(app)["ValueError"], names(app)["KeyError"]
    before = app.dlq.groups(trend=True)
    app.dlq.merge(b, a, reason="the same")
    together = [(group.fingerprint, group.count, group.recent) for group in app.dlq.groups(trend=True)]
    assert together[0] == (a, 5, 5) and len(together) == 2
    assert app.dlq.select(f"fingerprint:{a}").count() == 5
    assert app.dlq.select(f"fingerprint:{a} error:*Error").count() == 5
    app.dlq.rule(a, "hold", reason="later")
    assert app.dlq.select().plan().total == 1
    app.dlq.rule(a, None, reason="now")
    app.dlq.unmerge(b)
    assert app.dlq.groups(trend=True) == before and app.dlq.select(f"fingerprint:{a}").count() == 3
    app.store.close()


WORKER = """
import os, signal, sys
from tests.contract.test_group_states import shop
app, point = shop(sys.argv[1]), int(sys.argv[2])
calls = 0
def failpoint(name):
    global calls
    calls += 1
    if calls == point:
        os.kill(os.getpid(), signal.SIGKILL)
app.store.failpoint = failpoint
app.subscribe(lambda events: [print(e.name, flush=True) for e in events if getattr(e, "name", "") == "regressed"])
app.run_worker(burst=True, lease="2s")
"""


def work(url: str, point: int) -> subprocess.CompletedProcess[str]:
    """Run a worker that is killed at this call of its store (0: at none)."""
    return subprocess.run(
        [sys.executable, "-c", WORKER, url, str(point)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.fault("kill -9 of a worker between a death and the note that its group has regressed")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_killed_worker_hides_no_regression(
    engine: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url, chance = url_of(engine, request, tmp_path), random.Random(seed)
    app = shop(url)
    die(app, "a")
    fingerprint = names(app)["ValueError"]
    app.dlq.resolve(fingerprint, actor="ann", reason="fixed")
    resolved_ms = about(app, fingerprint).state.resolved_ms
    app.enqueue_many([app.tasks["charge"].draft("a") for _ in range(20)])
    told, points = "", [chance.randint(1, POINTS), chance.randint(1, POINTS), 0]
    for point in points:
        worker = work(url, point)
        assert worker.returncode in (0, -signal.SIGKILL), worker.stderr
        told += worker.stdout
        since = Filter(fingerprint=fingerprint, since_ms=resolved_ms + 1)
        died = sum(group.count for group in app.store.failure_groups(where=since))
        assert (about(app, fingerprint).state.word == "regressed") == (died > 0), (seed, points, point)
        assert any("died again" in need.text for need in app.status().needs) == (died > 0), (seed, points, point)
    print(f"seed {seed}: killed at {points[:2]}, {died} died, told {told.split()}")
    assert read_states(app.store)[fingerprint].regressed_ms, "the last worker has written it, if none before"
    assert told.count("regressed") <= 1, (seed, points)
    app.store.close()


@pytest.mark.fault("kill -9 of a worker whose messages are held for a person once their retries are used up")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_killed_worker_holds_each_message_once(
    engine: str, seed: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url, chance = url_of(engine, request, tmp_path), random.Random(seed)
    app = shop(url)
    ids = [ref.id for ref in app.enqueue_many([app.tasks["invoice"].draft("c") for _ in range(20)])]
    points = [chance.randint(1, POINTS), chance.randint(1, POINTS), 0]
    killed = 0
    for point in points:
        worker = work(url, point)
        assert worker.returncode in (0, -signal.SIGKILL), worker.stderr
        killed += worker.returncode != 0
        held = app.dlq.select("reason:held").count()
        assert held == app.counts().dead == sum(held_counts(app.store, {}).values()), (seed, points, point)
    app.run_worker(drain=True)  # those whose run was cut off, once their leases are over
    print(f"seed {seed}: killed at {points[:2]}, {killed} times; {held} were held then")
    messages = [message for message in app.store.find(ids) if message is not None]
    assert [message.id for message in messages] == ids, "one is lost"
    assert {(message.lane, message.reason) for message in messages} == {(Lane.DEAD, "held")}
    assert {len([f for f in message.faults if f.crash is None]) for message in messages} == {1}, "one failed twice"
    assert app.dlq.retry(ids, reason="again").ids == tuple(ids)
    app.run_worker(drain=True)
    assert app.dlq.select("reason:held").count() == len(ids) and app.store.check() == []
    app.store.close()
