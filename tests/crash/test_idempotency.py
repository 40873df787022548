"""kill -9 of a worker that pays under an idempotency key: before the effect, between effect and completion, between
their commit and the ack, and at every call of the store."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.support.crash.children import KILLED, mostly_sqlite, run, sweep_stores
from tests.support.crash.ledger import everything, handled, opened, read
from tests.support.crash.payments import POINTS, fill, payments
from tests.support.crash.programs import Plan

from redrive.message import Lane

ORDERS = 3
CALLS, CALLS_MIN = 40, 12


def worked_off(place: Path, task: str) -> Counter[int]:
    """What was paid once another worker has done the rest. By then every message is done, with its order's result, and
    each order's follow-up was made once."""
    assert run("payer", Plan(place=str(place))) == 0
    store = opened(place)
    assert store.check() == []
    messages = [*everything(store)]
    store.close()
    paid = [m for m in messages if m.task == task]
    assert {m.lane for m in paid} == {Lane.DONE} and len(paid) == 2 * ORDERS
    assert Counter(m.result for m in paid) == {f'"paid {n}"'.encode(): 2 for n in range(ORDERS)}
    assert sum(m.task == "after" for m in messages) == ORDERS, "a follow-up came twice, or never"
    return payments(place, task)


@pytest.mark.slow
@pytest.mark.fault("kill -9 of a worker in a handler that completes its key in its own transaction")
@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=[] if p in ("complete", "commit") else pytest.mark.soak) for p in POINTS]
)
def test_worker_killed_in_a_handler_leaves_one_effect_where_that_is_committed_with_the_key(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_STATE_DIR", str(tmp_path / "state"))
    fill(tmp_path, "inside", ORDERS)
    assert run("payer", Plan(place=str(tmp_path), kill_point=point)) == KILLED
    before = payments(tmp_path, "inside")
    committed = point in ("commit", "returned")
    (killed,) = [r for r in read(handled(tmp_path)) if r.what == "killing"]
    assert worked_off(tmp_path, "inside") == dict.fromkeys(range(ORDERS), 1)
    again = [r for r in read(handled(tmp_path)) if r.what == "start" and r.id == killed.id and r.pid != killed.pid]
    assert sum(before.values()) >= committed
    assert len(again) == (not committed), "what was committed is not run again, and what was not is"


@pytest.mark.slow
@pytest.mark.fault("kill -9 of a worker in a handler with an idempotency key")
@mostly_sqlite()
@pytest.mark.parametrize("point", ["before", "effect"])
def test_worker_killed_before_the_effect_has_one_and_after_it_two(place: Path, point: str) -> None:
    """A key alone guards an effect elsewhere but for the moment between the effect and the settle: at-least-once."""
    fill(place, "outside", ORDERS)
    assert run("payer", Plan(place=str(place), kill_point=point, concurrency=1, prefetch=1)) == KILLED
    paid = worked_off(place, "outside")
    assert sum(paid.values()) == ORDERS + (point == "effect") and set(paid) == set(range(ORDERS))


@pytest.mark.fault("kill -9 of a worker at a call of the store, with idempotency keys")
@sweep_stores("step", CALLS, shares=20, shares_of_servers=40)
def test_worker_killed_at_a_store_call_leaves_each_key_and_its_message_in_step(place: Path, step: int) -> None:
    fill(place, "outside", ORDERS)
    code = run("payer", Plan(place=str(place), kill_at=step))
    assert code == KILLED or step > CALLS_MIN
    paid = worked_off(place, "outside")
    runs = Counter(r.id for r in read(handled(place)) if r.what == "start")
    assert set(paid) == set(range(ORDERS)) and sum(paid.values()) <= sum(runs.values())
    assert len(runs) == ORDERS, "a duplicate ran"
