"""The worker that test_redrive_runs starts and kills, which carries a redrive run and works what that moves:
`python -m tests.support.crash.redrives redriver PLAN`; and what the books of the run must say when all is over.

Of what is redriven every third message fails again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.support.crash.children import records
from tests.support.crash.ledger import Journal, handled, url_of
from tests.support.crash.programs import Plan, kill_hook

import redrive
from redrive import Context
from redrive.fault import Fault, Kind
from redrive.message import ClaimRequest, DeadLetter, Draft, Lane, RetryAt, Settlement
from redrive.store import Store
from redrive.triage.redrive.run import Run
from redrive.worker import redrive_outcome

AT_ONCE: dict[str, Any] = {"canary": 0, "slow_start": False, "stop_if": "never"}
CARRIES = "redrive-runs"  # the thread that carries runs


def make_app(place: Path, journal: Journal | None = None) -> redrive.App:
    app = redrive.App(url_of(place))

    @app.task(name="again", ctx=True, retry=redrive.Retry(max_attempts=1))
    def again(c: Context, n: int) -> None:
        assert journal is not None
        journal.write("start", c.message_id, attempt=c.attempt, crashes=c.crashes, fence=c.fence)
        time.sleep(0.002)
        if n % 3 == 0:
            raise ValueError("it fails again")

    return app


def bury(place: Path, count: int) -> list[str]:
    """Put so many messages that have died; their ids."""
    store = make_app(place).store
    ids = [put.id for put in store.put([Draft(task="again", body=b'{"n":%d}' % n) for n in range(count)])]
    fault = Fault(Kind.DEFAULT, "ValueError", "it failed", "f")
    claimed = store.exchange([], [ClaimRequest("default", count, 60_000)]).deliveries
    store.exchange([Settlement(one.receipt, DeadLetter("exhausted"), fault) for one in claimed], [])
    store.close()
    return ids


def delay(place: Path, count: int) -> list[str]:
    """Put so many messages that failed once and wait for an hour; their ids."""
    store = make_app(place).store
    ids = [put.id for put in store.put([Draft(task="again", body=b'{"n":%d}' % n) for n in range(count)])]
    fault, due_ms = Fault(Kind.DEFAULT, "ValueError", "it failed", "f"), store.now_ms() + 3_600_000
    claimed = store.exchange([], [ClaimRequest("default", count, 60_000)]).deliveries
    store.exchange([Settlement(one.receipt, RetryAt(due_ms, "retry"), fault) for one in claimed], [])
    store.close()
    return ids


def start(place: Path, selector: str = "", **how: Any) -> str:
    """Plan and start a run of what the selector names, by default all that is dead; its id."""
    app = make_app(place)
    run = app.select(selector).plan(**AT_ONCE | how).start(reason="it is mended", actor="ann@ops")
    app.store.close()
    return run.id


def problems(place: Path, runs: Sequence[str], ids: Sequence[str], *, hurried: bool = False) -> list[str]:
    """What is wrong with the books of runs that moved these messages together, and are over. `hurried`: they were made
    due in the second attempt of their only life, and not redriven."""
    app = make_app(place)
    store = app.store
    try:
        of_messages = _of_messages(store, runs, ids, 0 if hurried else 1)
        return [*_of_runs(app, runs, ids), *of_messages, *_of_starts(place, ids, 1 + hurried), *store.check()]
    finally:
        store.close()


def _of_runs(app: redrive.App, ids_of_runs: Sequence[str], ids: Sequence[str]) -> list[str]:
    views = [app.dlq.run(id).view() for id in ids_of_runs]
    said = [f"not over: {view}" for view in views if view.state != "done" or not view.closed]
    sums = sum((Counter(view.counts) for view in views), Counter[str]())
    fail = len(ids[::3])
    expected = {"moved": len(ids), "failed": fail, "done": len(ids) - fail}
    if {word: sums[word] for word in expected} != expected or sums["waiting"] or sums["skipped"]:
        said.append(f"counts are {dict(sums)}, expected {expected}")
    if any(view.counts["moved"] + view.counts["changed"] != view.counts["planned"] for view in views):
        said.append(f"counts do not add up: {views}")
    told = [cell for id in ids_of_runs for cell in _verdicts(app.store, id, ids)]
    failures = {failure.id for id in ids_of_runs for failure in Run(app.store, id, app).failures()}
    if failures != set(ids[::3]):
        said.append(f"{len(failures)} failures are told of, {fail} failed")
    return said + [f"{len(told)} verdicts were left behind"] * bool(told)


def _verdicts(store: Store, run: str, ids: Sequence[str]) -> list[object]:
    return [cell for cell in store.cells.read([redrive_outcome.cell_of(run, id) for id in ids]) if cell is not None]


def _of_messages(store: Store, runs: Sequence[str], ids: Sequence[str], redrives: int) -> list[str]:
    """Each is in one place: gone, as it was done, or dead again, moved once by one of the runs."""
    said = []
    for n, (id, message) in enumerate(zip(ids, store.find(ids), strict=True)):
        if n % 3:
            said += [f"{id} is {message.lane}, it was done"] if message is not None else []
        elif (
            message is None
            or message.lane is not Lane.DEAD
            or message.redrives != redrives
            or message.run_id not in runs
        ):
            said.append(f"{id} should be dead again, with {redrives} redrives: {message}")
    counts = store.counts()
    if counts.dead != len(ids[::3]) or counts.waiting + counts.leased + counts.quarantine:
        said.append(f"the store counts {counts}")
    return said


def _of_starts(place: Path, ids: Sequence[str], attempt: int) -> list[str]:
    """Each ran once, but for those whose run was cut off."""
    starts = records(place, "start")
    by_id = Counter(record.id for record in starts)
    again = [record for record in starts if record.attempt != attempt]
    said = [f"{id} never ran" for id in ids if not by_id[id]]
    said += [f"{record.id} began attempt {record.attempt} of its life" for record in again]
    crashes: Counter[str] = Counter()
    for record in starts:
        crashes[record.id] = max(crashes[record.id], record.crashes)
    said += [f"{id} ran {n} times, cut off {crashes[id]} times" for id, n in by_id.items() if n > crashes[id] + 1]
    return said


def work(plan: Plan) -> None:
    place = Path(plan.place)
    journal = Journal(handled(place))
    journal.write("up")
    app = make_app(place, journal)
    if plan.kill_at:
        failpoint = kill_hook(journal, plan)
        app.store.failpoint = lambda point: failpoint(point) if threading.current_thread().name == CARRIES else None  # type: ignore[attr-defined]
    app.run_worker({"default": plan.concurrency}, prefetch=plan.prefetch, lease=plan.lease, burst=plan.drain)
    app.store.close()


if __name__ == "__main__":
    assert sys.argv[1] == "redriver"
    work(msgspec.json.decode(sys.argv[2], type=Plan))
