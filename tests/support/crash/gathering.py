"""The worker that test_gather starts and kills: `python -m tests.support.crash.gathering gatherer PLAN`. Its tasks
gather messages, and each run's start says with how many others it shared its call."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
from tests.support.crash.ledger import Journal, handled
from tests.support.crash.programs import Plan, make_app, sleep, write_found

import redrive

GATHER = 10
KINDS = ("quick", "flaky", "quick", "doomed", "quick")


class Item(msgspec.Struct):
    kind: str
    pause_ms: int


def with_gathering(app: redrive.App, journal: Journal) -> redrive.App:
    """Add `many`, a coroutine, and `many_threads` to the tasks of the crash tests. An item says how it ends."""
    soon = redrive.Retry(max_attempts=4, backoff=redrive.Backoff.fixed("30ms"))
    cut_off = redrive.Poison(10)  # kills at random must convict nobody

    def begin(count: int) -> None:
        for c in redrive.context().runs:
            journal.write(
                "start", c.message_id, attempt=c.attempt, crashes=c.crashes, fence=c.fence, note=f"of {count}"
            )

    def end(items: list[Item]) -> list[Exception | None]:
        answers: list[Exception | None] = []
        for item, c in zip(items, redrive.context().runs, strict=True):
            answer: Exception | None = None
            if item.kind == "doomed":
                answer = redrive.Reject("never wanted")
            elif item.kind == "flaky" and c.attempt == 1:
                answer = ConnectionError("the first attempt always fails")
            note = "ok" if answer is None else type(answer).__name__
            journal.write("end", c.message_id, attempt=c.attempt, fence=c.fence, note=note)
            answers.append(answer)
        return answers

    @app.task(name="many", gather=GATHER, linger="20ms", retry=soon, poison=cut_off)
    async def many(items: list[Item]) -> list[Exception | None]:
        begin(len(items))
        await asyncio.sleep(max(item.pause_ms for item in items) / 1000)
        return end(items)

    @app.task(name="many_threads", gather=GATHER, retry=soon, poison=cut_off)
    def many_threads(items: list[Item]) -> list[Exception | None]:
        begin(len(items))
        sleep(max(item.pause_ms for item in items) / 1000)
        return end(items)

    @app.task(name="deadly", gather=GATHER)
    async def deadly(items: list[Item]) -> None:
        begin(len(items))
        await asyncio.sleep(0.005)
        if any(item.kind == "poison" for item in items):
            os.kill(os.getpid(), signal.SIGKILL)
            sleep(60)
        end(items)

    return app


def work(plan: Plan) -> None:
    place = Path(plan.place)
    journal = Journal(handled(place))
    app = with_gathering(make_app(place, journal), journal)
    journal.write("up")
    write_found(app.store, journal)
    app.run_worker(
        {"default": plan.concurrency}, prefetch=plan.prefetch, lease=plan.lease, grace=plan.grace, drain=plan.drain
    )
    app.store.close()
    journal.write("exit")


if __name__ == "__main__":
    work(msgspec.json.decode(sys.argv[2], type=Plan))
