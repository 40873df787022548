"""Keep the forecasts of ten redrives with what came of each, for `redrive forecast score`.

`python -m tests.support.simulation.scored FOLDER` plays them for real, one after the other: a store in the folder, two
worker processes, a service on loopback. It takes three minutes.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from redrive import App
from redrive.flow import dependency as flow
from redrive.simulate import ModelService, ServicePhase, foretell
from redrive.simulate.world import TASK

from .truths import PLAYED, Endpoint, _left, _until, bury, make_app

SCORED = "scored"
WELL = ModelService(latency_ms=30)


class Kind(NamedTuple):
    """A redrive: of how many, against which service, with which options; `opened`: the breaker is open at its start."""

    total: int
    options: dict[str, Any]
    service: ModelService = WELL
    opened: bool = False


AT_ONCE = {"canary": 0, "slow_start": False}
KINDS = {
    "short": Kind(60, {"rate": "15/s", **AT_ONCE}),
    "steady": Kind(120, {"rate": "20/s", **AT_ONCE}),
    "canary": Kind(100, {"rate": "20/s", "canary": 5, "slow_start": False}),
    "slow start": Kind(60, {"rate": "20/s", "canary": 0, "slow_start": True}),
    "canary and slow start": Kind(60, {"rate": "20/s", "canary": 10, "slow_start": True}),
    "delayed": Kind(100, {"rate": "20/s", "delay": "3s", **AT_ONCE}),
    "slow service": Kind(120, {"rate": "20/s", **AT_ONCE}, replace(WELL, latency_ms=300)),
    "a tenth fails at first": Kind(200, {"rate": "20/s", "stop_if": "never", **AT_ONCE}, replace(WELL, fails=0.1)),
    "fast": Kind(500, {"rate": "50/s", **AT_ONCE}),
    "breaker open": Kind(100, {"rate": "20/s", **AT_ONCE}, opened=True),
}


def main(folder: Path) -> None:
    url = f"sqlite:///{folder}/work.db"
    endpoint = Endpoint(PLAYED[SCORED])
    app = make_app(PLAYED[SCORED], url, endpoint.port)
    argv = [sys.executable, "-m", "tests.support.simulation.truths", SCORED, url, str(endpoint.port), str(os.getpid())]
    workers: list[subprocess.Popen[bytes]] = []
    with contextlib.closing(endpoint), contextlib.closing(app.store), (folder / "stderr").open("wb") as stderr:
        try:
            for number, kind in enumerate(KINDS.values()):  # before there are workers, who would take them
                bury(app, kind.total, f"kind-{number:02}")
            workers += [subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=stderr) for _ in range(2)]
            _until(lambda: sum(not worker.gone for worker in app.workers()) == 2, workers, folder)
            for number, (name, kind) in enumerate(KINDS.items()):
                time.sleep(2 + random.random())  # a worker looks for runs once a second: at any time of it
                if kind.opened:
                    _open(app, endpoint)
                endpoint.serve(kind.service)
                handle = app.dlq.select(f"text:kind-{number:02}").plan(**kind.options)
                made = foretell(app.store, app, handle)
                run = handle.start(reason=name)
                _until(lambda run=run: run.state in ("done", "stopped"), workers, folder)
                view, calls = run.view(), endpoint.calls
                begun_s, over_s = view.started_ms / 1000 - endpoint.start_s, view.over_ms / 1000 - endpoint.start_s
                foretold = "–" if made is None or made.over_s is None else f"{made.over_s:.2f} s"
                first_s, last_s = calls[0] - begun_s, over_s - calls[-1]
                print(f"{name}: {foretold} foretold, {over_s - begun_s:.2f} s came, {view.state}; "
                      f"{first_s:.2f} s to the first call, {last_s:.2f} s after the last")  # fmt: skip
                _until(lambda: not _left(app), workers, folder)
            time.sleep(3)  # the last run is closed
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def _open(app: App, endpoint: Endpoint) -> None:
    """Let calls fail until the breaker opens; then the service is well again."""
    endpoint.serve(replace(WELL, phases=(ServicePhase(0, 60, 1.0),)))
    key, end_s = flow.cell_of("d", ""), time.monotonic() + 60
    while flow.decode(app.store.cells.read([key])[0]).breaker.status != "open":
        assert time.monotonic() < end_s, "the breaker did not open"
        app.enqueue_many([app.tasks[TASK].draft() for _ in range(5)])
        time.sleep(0.1)
    endpoint.serve(WELL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
