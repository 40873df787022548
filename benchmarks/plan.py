"""What a plan costs: so many of a store's dead messages frozen, and looked through again before its start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial

from redrive import App
from redrive.fault import Fault, classify
from redrive.message import ClaimRequest, DeadLetter, Draft, Settlement
from redrive.store import Store

from .harness import PUT_AT_ONCE, ROOT, Options, Reading, fresh, interleaved, ratio
from .tasks import Boom

QUEUES, TASKS = 10, 100
SELECTORS = {"a hundredth": "task:task-7", "a tenth": "queue:queue-7", "all": ""}


def plan(options: Options) -> list[Reading]:
    """A plan of a tenth of `dead` dead messages, by an indexed selector; and the memory of one of them all."""
    place = fresh(options, "plan")
    app = App(place.url)
    bury(app.store, options.dead)
    app.store.close()
    runs = interleaved(options.rounds, {name: partial(_plan, place.url, text) for name, text in SELECTORS.items()})
    tenth = options.dead // 10
    times = [run["plan_s"] for run in runs["a tenth"]]
    rss = {name: [run["rss_mib"] for run in some] for name, some in runs.items()}
    return [
        Reading(f"plan of {tenth:,} of {options.dead:,}", "s", times, "≤ 10"),
        Reading("each of them", "µs", [s / max(1, tenth) * 1e6 for s in times]),
        Reading("its processor time", "s", [run["cpu_s"] for run in runs["a tenth"]]),
        Reading(f"plan of all {options.dead:,}", "s", [run["plan_s"] for run in runs["all"]]),
        Reading(f"look through {tenth:,} before a start", "s", [run["check_s"] for run in runs["a tenth"]]),
        Reading("memory of the planning process", "MiB", rss["a tenth"]),
        ratio("memory, all / a hundredth", rss["all"], rss["a hundredth"], "≤ 1.25"),
    ]


def bury(store: Store, count: int) -> None:
    """Let that many messages die, spread over ten queues and a hundred tasks, each of a fault with its traceback."""
    fault = _fault()
    for at in range(0, count, PUT_AT_ONCE):
        some = range(at, min(count, at + PUT_AT_ONCE))
        store.put([Draft(task=f"task-{i % TASKS}", queue=f"queue-{i % QUEUES}", body=b'{"i":%d}' % i) for i in some])
        asks = [ClaimRequest(f"queue-{n}", PUT_AT_ONCE, 60_000) for n in range(QUEUES)]
        found = store.exchange([], asks).deliveries
        store.exchange([Settlement(d.receipt, DeadLetter("exhausted"), fault) for d in found], [])


def _fault() -> Fault:
    try:
        raise Boom("message 7 fails")
    except Boom as error:
        return classify(error)


def _plan(url: str, selector: str) -> dict[str, float]:
    """In a process of its own, whose memory is told at its end."""
    argv = [sys.executable, "-m", "benchmarks.child", "planner", url, selector]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found
