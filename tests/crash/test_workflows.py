"""kill -9 of workers and producers of a workflow: each step begins once, with its results, and the workflow ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.crash.children import KILLED, run, sweep_stores
from tests.support.crash.ledger import Journal, handled
from tests.support.crash.members import callbacks, make_app, reopened, workflow_of
from tests.support.crash.programs import Plan

from redrive.message import BatchCounts

EACH = 260  # more than one stored list of members
CALLS, CALLS_MIN = 30, 10  # the most and the fewest store calls of a worker of the workflow
PLAN_CALLS, PLAN_CALLS_MIN = 12, 4
WORKER = {"concurrency": 50, "prefetch": 500}


def worked_off(place: Path) -> BatchCounts:
    assert run("member", Plan(place=str(place), **WORKER)) == 0
    app, ref = reopened(place)
    counts = ref.counts
    assert app.store.check() == []
    app.store.close()
    return counts


@pytest.mark.fault("kill -9 of a worker between two steps of a workflow")
@sweep_stores("step", CALLS)
def test_worker_killed_at_a_store_call_begins_each_step_once(place: Path, step: int) -> None:
    app = make_app(place, Journal(handled(place)))
    workflow_of(app, EACH).enqueue()
    app.store.close()
    run("member", Plan(place=str(place), kill_at=step, **WORKER))
    assert worked_off(place) == BatchCounts(done=1, dead=1, opened=2, died=1)
    assert callbacks(place) == {"complete": 1, "death": 1}
    (place / "mended").touch()
    app, ref = reopened(place)
    app.dlq.retry(ids=[message.id for message in ref.members("dead")])
    app.store.close()
    code = run("member", Plan(place=str(place), kill_at=step, **WORKER))
    assert code == KILLED or step > CALLS_MIN
    total = EACH + 3
    assert worked_off(place) == BatchCounts(done=total, opened=total + 1, died=1)
    assert callbacks(place) == {"complete": 2, "death": 1, "success": 1, "each": EACH, "last 7": 1}


@pytest.mark.fault("kill -9 of a producer that enqueues a workflow")
@sweep_stores("step", PLAN_CALLS)
def test_producer_killed_at_a_store_call_enqueues_a_workflow_once(place: Path, step: int) -> None:
    (place / "mended").touch()
    code = run("planner", Plan(place=str(place), count=EACH, kill_at=step))
    assert code == KILLED or step > PLAN_CALLS_MIN
    assert run("planner", Plan(place=str(place), count=EACH)) == 0
    total = EACH + 3
    assert worked_off(place) == BatchCounts(done=total, opened=total)
    assert callbacks(place) == {"complete": 1, "success": 1, "each": EACH, "last 7": 1}
