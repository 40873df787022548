"""The programs that test_batches and test_workflows start and kill, `python -m tests.support.crash.members
member|filler|planner PLAN`, and what the journal and the store say of their batch or workflow in the end.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

import msgspec
from tests.support.crash.ledger import Journal, handled, read, url_of
from tests.support.crash.programs import Plan, hook

import redrive
import redrive.workflow
from redrive import Context
from redrive.batch import BatchRef

MEMBERS = 7  # that the test puts; one of them adds two more, one dies
ADDED = 2
KEY = "one"


def make_app(place: Path, journal: Journal) -> redrive.App:
    """Every callback writes down that it ran."""
    app = redrive.App(url_of(place))
    pause_s = float((place / "pause").read_text()) if (place / "pause").exists() else 0.0

    @app.task(name="member", ctx=True, retry=redrive.Retry(max_attempts=1), poison=redrive.Poison(10))
    async def member(c: Context, n: int) -> None:
        assert c.batch is not None
        await asyncio.sleep(pause_s)
        if n == 1:
            c.batch.add(*(member.draft(100 + m) for m in range(ADDED)))
        if n == 2 and not (place / "mended").exists():
            raise redrive.Reject("not yet")

    @app.task(name="heard", ctx=True, poison=redrive.Poison(10))
    def heard(c: Context, word: str) -> None:
        journal.write("callback", c.message_id, note=word)

    @app.task(name="first", poison=redrive.Poison(10))
    def first(n: int) -> list[int]:
        return [n, n + 1]

    @app.task(name="second", ctx=True, retry=redrive.Retry(max_attempts=1), poison=redrive.Poison(10))
    def second(c: Context, numbers: list[int]) -> int:
        if not (place / "mended").exists():
            raise redrive.Reject("not yet")
        return sum(numbers)

    @app.task(name="each", ctx=True, poison=redrive.Poison(10))
    def each(c: Context, n: int) -> None:
        journal.write("callback", c.message_id, note="each")

    @app.task(name="last", ctx=True, poison=redrive.Poison(10))
    def last(c: Context, total: int) -> None:
        journal.write("callback", c.message_id, note=f"last {total}")

    return app


def workflow_of(app: redrive.App, count: int) -> redrive.workflow.Workflow:
    """first → second → last, and `count` messages of `each` between second and last."""
    first, second, each, last, heard = (app.tasks[name] for name in ("first", "second", "each", "last", "heard"))
    callbacks = {f"on_{word}": heard.draft(word) for word in ("success", "complete", "death")}
    w = app.workflow(name="crash", key=KEY, **callbacks)
    summed = w.step(second, w.step(first, 3).result)
    w.step(last, summed.result).after(w.map(each, range(count)).after(summed))
    return w


def batch_of(app: redrive.App, members: int) -> redrive.batch.Batch:
    member, heard = app.tasks["member"], app.tasks["heard"]
    callbacks = {f"on_{word}": heard.draft(word) for word in ("success", "complete", "death")}
    return app.batch((member.draft(n) for n in range(members)), name="crash", key=KEY, **callbacks)


def callbacks(place: Path) -> Counter[str]:
    """How many messages of each callback have run: one that ran twice, as its worker was killed, counts once."""
    return Counter(word for _, word in {(r.id, r.note) for r in read(handled(place)) if r.what == "callback"})


def work(role: str, plan: Plan) -> None:
    place = Path(plan.place)
    journal = Journal(handled(place))
    journal.write("up")
    app = make_app(place, journal)
    store = app.store
    hook(store, journal, plan)
    if role == "filler":
        batch_of(app, plan.count).enqueue()
    elif role == "planner":
        workflow_of(app, plan.count).enqueue()
    else:
        app.run_worker(concurrency=plan.concurrency, prefetch=plan.prefetch, lease=plan.lease, drain=plan.drain)
    store.close()
    journal.write("exit")


def reopened(place: Path) -> tuple[redrive.App, BatchRef]:
    """The app, and the ref of its one batch, as a producer sees it that comes again."""
    app = make_app(place, Journal(handled(place)))
    return app, app.batch_ref(app.batches()[0].id)


if __name__ == "__main__":
    work(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Plan))
