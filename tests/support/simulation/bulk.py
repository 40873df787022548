"""Run `examples/bulk_sync.py` for real, twice, and hold the second run against a forecast from the first one's history.

`python -m tests.support.simulation.bulk` prints both. The example has its own task and its own endpoint; the forecast
knows the rules of its endpoint, and the mean duration of a call from the first run's history. That duration includes
the wait for the processor, which worker, client and endpoint share here, and other programs use. So it also prints for
which share of the time the runs had or wanted a processor, and says that they are not comparable if that was their
bound. Linux only.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import mean, median, stdev

from redrive import App, Backoff
from redrive.message import Message
from redrive.simulate import FleetSize, ModelService, Scenario, simulate
from redrive.simulate.forecast import PROCESSOR_BOUND
from redrive.simulate.past import read_past
from redrive.simulate.world import QUEUE, TASK

from .truths import Real, error_of_calls, policy

EXAMPLES = Path(__file__).parents[3] / "examples"
COUNT = 4000
#: Of 100 records one is refused; 6 of the calls of the other 99 fail, and are tried again.
POISON, FAILS = 0.01, 6 / 105
RUN = (
    "import sys, time, json, runpy; sys.path.insert(0, sys.argv[2]); import endpoint; began_s = time.time();"
    "runpy.run_path(sys.argv[2] + '/bulk_sync.py', run_name='__main__');"
    "first = min(endpoint.seconds); last = max(endpoint.seconds);"
    "print(json.dumps([[endpoint.seconds[s] for s in range(first, last + 1)], endpoint.answers[422],"
    " time.time() - began_s, sum(map(int, open('/proc/self/schedstat').read().split()[:2])) / 1e9]))"
)


def play(folder: Path, count: int) -> tuple[Real, float]:
    """Run the example in this folder; return what came, and for which share of the time its main thread had or wanted
    a processor."""
    argv = [sys.executable, "-c", RUN, str(count), str(EXAMPLES)]
    out = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True, timeout=170).stdout
    calls, dead, took_s, processor_s = json.loads(out.splitlines()[-1])
    return Real(calls, Counter(permanent=dead), took_s, None, ""), processor_s / took_s


def latency_ms(folder: Path) -> float:
    """Return the mean duration of a call in the history."""
    app = App(f"sqlite:///{folder}/sync.db")
    with contextlib.closing(app.store):
        now_ms = app.store.now_ms()
        return read_past(app.store, app, now_ms - 300_000, now_ms).scenario.service.latency_ms


def backlog(seed: int) -> tuple[Message, ...]:
    """Return what waits at the start. Each seed has ids of its own, since an id says whether a record is refused."""
    return tuple(Message(id, TASK, QUEUE, b"", id) for id in (f"{seed}-{n}" for n in range(COUNT)))


def main() -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        before, had_before = play(Path(first), COUNT)
        took_ms = latency_ms(Path(first))
        real, had = play(Path(second), COUNT)
    forecasts = [
        simulate(Scenario(
            backlog=backlog(seed), policy=policy(5, Backoff("50ms", cap="400ms")), fleet=FleetSize(1, 20), seed=seed,
            service=ModelService(latency_ms=took_ms, poison=POISON, fails=FAILS),
        )) for seed in range(9)
    ]  # fmt: skip
    dead = [sum(each.dead.values()) for each in forecasts]
    drained_s = median(each.drained_s or math.inf for each in forecasts)
    print(f"bulk_sync.py: calls {error_of_calls(real, forecasts):.1%}, dead {sum(real.dead.values())} of "
          f"{mean(dead):.1f} ± {stdev(dead):.1f}, drained {real.drained_s:.1f} s of {drained_s:.1f} s")  # fmt: skip
    print(
        f"a processor was had or wanted {had_before:.0%} and {had:.0%} of the time; "
        f"the run before took {before.drained_s:.1f} s"
    )
    if max(had_before, had) >= PROCESSOR_BOUND:
        print("not comparable: the processor is the bound, and the forecast knows none")
    print(f"a call took {took_ms:.1f} ms; calls came {real.calls}, forecast {list(forecasts[0].calls)}")


if __name__ == "__main__":
    main()
