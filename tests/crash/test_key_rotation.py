"""Keys are rotated while producers put, workers work and all are killed: nothing is lost, nothing dies of it."""

from __future__ import annotations

import random
from pathlib import Path
from time import sleep

import pytest
from tests.support.crash.children import Child, balanced, mostly_sqlite, run
from tests.support.crash.ledger import url_of
from tests.support.crash.programs import Plan

from redrive import App
from redrive.crypto import Keys, key_uses, keys_in
from redrive.message import Lane

PER_STAGE = 40
SECRETS = {"old": "A" * 43, "new": "B" * 42 + "A"}
STAGES = (  # the keys of workers, and of producers; the first writes. A release reaches them one after the other.
    ("old", "old"),
    ("old,new", "old"),
    ("old", "new,old"),  # a worker that was left behind: what the new key wrote waits for others
    ("old,new", "new,old"),
    ("new,old", "new,old"),
)


def env(ids: str) -> dict[str, str]:
    return {"REDRIVE_KEYS": ",".join(f"{id}:{SECRETS[id]}" for id in ids.split(","))}


@pytest.mark.fault("keys are rotated under load, with kill -9 of workers and producers")
@pytest.mark.slow
@mostly_sqlite()
def test_a_rotation_under_load_and_kills_loses_nothing(
    seed: int, place: Path, monkeypatch: pytest.MonkeyPatch, record_property: pytest.RecordProperty
) -> None:
    rng, kills = random.Random(seed), 0
    for number, (working, putting) in enumerate(STAGES, 1):
        producing = Plan(place=str(place), count=PER_STAGE * number, pace_ms=10, run_ms=20)
        for _ in range(2):
            plan = Plan(place=str(place), concurrency=4, prefetch=4, drain=False)
            with (
                Child("worker", plan, extra=env(working)) as worker,
                Child("producer", producing, extra=env(putting)) as producer,
            ):
                sleep(rng.uniform(0.3, 0.9))
                worker.kill()
                producer.kill()
                kills += 2
        with Child("producer", producing, extra=env(putting)) as producer:
            producer.ends_well()
    record_property("kills", kills)
    for name, value in env("new,old").items():
        monkeypatch.setenv(name, value)
    assert run("worker", Plan(place=str(place), concurrency=8)) == 0
    ledger = balanced(place)
    assert len(ledger.kind) == PER_STAGE * len(STAGES)
    let_go_of_the_old_key(place)


def let_go_of_the_old_key(place: Path) -> None:
    """As an operator: the dead that it encrypted are the last that need it."""
    app = App(url_of(place), encrypt=Keys.from_env())
    needs = {use.key: use.used for use in key_uses(app.store)[0]}
    assert needs == {"new": True, "old": True}, "some are dead, of the time of each key, or failed then"
    assert not app.store.peek(Lane.QUARANTINE).messages
    inner = app.store.engine  # as they are stored
    old = [m.id for m in inner.peek(Lane.DEAD, limit=1000).messages if "old" in {key for _, key in keys_in(m)}]
    assert {m.reason for m in app.store.peek(Lane.DEAD, limit=1000).messages} == {"rejected"}
    app.dlq.discard(old, reason="the old key goes", actor="ann")
    assert {use.key: use.used for use in key_uses(app.store)[0]} == {"new": True, "old": False}
    app.store.close()
