"""A person's process for the test of two who apply overlapping plans at once.

    python -m tests.support.overlaps URL SELECTOR RECORDS

Draws up a plan and says so; starts it once told to, works until all is over, and prints the run's counts.
"""

from __future__ import annotations

import json
import os
import sys

from redrive import App


def act(url: str, selector: str, records: str) -> None:
    app, file = App(url), os.open(records, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    @app.task(name="push")
    async def push(n: int) -> None:
        os.write(file, f"{n}\n".encode())

    plan = app.dlq.select(selector).plan(rate="2000/s", canary=0, slow_start=False, stop_if="never")
    print(json.dumps(plan.total), flush=True)
    sys.stdin.readline()
    run = plan.start(reason="at the same time")
    app.run_worker(drain=True)
    state = run.wait(60)
    print(json.dumps({**run.counts, "state": state}), flush=True)
    app.store.close()


if __name__ == "__main__":
    act(*sys.argv[1:])
