"""The worker that test_changed_runs starts and kills, which carries a run that changes or cancels what waits, and works
what is due: `python -m tests.support.crash.changes changer PLAN`; and what must be true of the messages.

Every other message is due in an hour. A message waits as it was put, or wholly as the run says, never between.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.support.crash.children import records
from tests.support.crash.ledger import Journal, handled, url_of
from tests.support.crash.programs import Plan

import redrive
from redrive import Context
from redrive.message import Draft, Lane, Message, WaitFields

HOW: dict[str, dict[str, Any]] = {
    "edit": {"to_queue": "bulk", "priority": 0, "deadline": "9h"},
    "cancel": {"cancel": True},
}
WAITS = "lane:(ready,scheduled)"
HOUR_MS = 3_600_000


def make_app(place: Path, journal: Journal | None = None) -> redrive.App:
    app = redrive.App(url_of(place))

    @app.task(name="kept", ctx=True)
    def kept(c: Context, n: int) -> None:
        assert journal is not None
        journal.write("start", c.message_id, attempt=c.attempt, crashes=c.crashes, fence=c.fence)
        time.sleep(0.02)

    return app


def put(place: Path, count: int) -> list[Message]:
    """Put so many messages; each as it waits."""
    app = make_app(place)
    drafts = [Draft(task="kept", body=b'{"n":%d}' % n, delay_ms=HOUR_MS * (n % 2)) for n in range(count)]
    ids = [put.id for put in app.store.put(drafts)]
    before = [message for message in app.store.find(ids) if message is not None]
    app.store.close()
    return before


def start(place: Path, kind: str, rate: float) -> str:
    """Plan and start a run over all that waits; its id."""
    app = make_app(place)
    run = app.select(WAITS).plan(rate=rate, **HOW[kind]).start(reason="it is wanted", actor="ann@ops")
    app.store.close()
    return run.id


def torn(place: Path, before: Sequence[Message], kind: str, run: str) -> list[str]:
    """The messages that are neither as they were put nor wholly as the run says."""
    app = make_app(place)
    found = app.store.find([message.id for message in before])
    app.store.close()
    return [
        f"{m.id}: {m}" for m, was in zip(found, before, strict=True) if m is not None and _is_torn(m, was, kind, run)
    ]


def _is_torn(message: Message, was: Message, kind: str, run: str) -> bool:
    now, then = _fields(message), _fields(was)
    if message.run_id is None:
        return now != then or message.reason == "cancelled"
    if kind == "cancel":
        return now != then or message.lane is not Lane.DONE or message.run_id != run
    late = message.deadline_ms or 0
    return (message.queue, message.priority, message.run_id) != ("bulk", 0, run) or late < was.enqueued_ms + 9 * HOUR_MS


def _fields(message: Message) -> WaitFields:
    return WaitFields(message.queue, message.priority, message.deadline_ms)


def after_undo(place: Path, before: Sequence[Message], run: str) -> list[str]:
    """What is wrong once the run is undone, with nobody at work: one that was never claimed is as it was put, and
    nothing is cancelled or lost."""
    app = make_app(place)
    ran = {record.id for record in records(place, "start")}
    counts, said = app.dlq.run(run).counts, []
    for was, message in zip(before, app.store.find([m.id for m in before]), strict=True):
        if message is None:
            said += [] if was.id in ran else [f"{was.id} is gone, and never ran"]
        elif message.fence == 0 and message != was:
            said.append(f"{was.id} is not as it was put: {message}")
        elif message.reason == "cancelled":
            said.append(f"{was.id} is cancelled still")
    if counts["moved"] + counts["changed"] + counts["skipped"] != counts["planned"]:
        said.append(f"counts do not add up: {counts}")
    said += app.store.check()
    app.store.close()
    return said


def ran_once(place: Path, before: Sequence[Message]) -> list[str]:
    """What is wrong once all has run: each did once, but for those whose run was cut off, and none is left."""
    starts, crashes = Counter[str](), Counter[str]()
    for record in records(place, "start"):
        starts[record.id] += 1
        crashes[record.id] = max(crashes[record.id], record.crashes)
    app = make_app(place)
    said = [f"{m.id} is left: {m}" for m in app.store.find([m.id for m in before]) if m is not None]
    said += app.store.check()
    app.store.close()
    said += [f"{m.id} never ran" for m in before if not starts[m.id]]
    return said + [
        f"{id} ran {n} times, cut off {crashes[id]} times" for id, n in starts.items() if n > crashes[id] + 1
    ]


def work(plan: Plan) -> None:
    place = Path(plan.place)
    journal = Journal(handled(place))
    journal.write("up")
    app = make_app(place, journal)
    app.run_worker({"default": plan.concurrency, "bulk": plan.concurrency}, prefetch=plan.prefetch, lease=plan.lease)
    app.store.close()


if __name__ == "__main__":
    assert sys.argv[1] == "changer"
    work(msgspec.json.decode(sys.argv[2], type=Plan))
