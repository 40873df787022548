"""What groups cost: those who use them, and those who do not."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from .engines import server_cpu_s
from .harness import (
    CONCURRENCY,
    PUT_AT_ONCE,
    ROOT,
    Broken,
    Child,
    Options,
    Reading,
    cost_of_all,
    fresh,
    interleaved,
    need_all_once,
    rate,
    ratio,
    worker,
)
from .tasks import FAIL_EVERY, make_app

GROUPS = 1000
WANTED, WANTED_BEFORE = "≥ 0.6", "≤ 1.1"


def groups(options: Options) -> list[Reading]:
    """No-op messages, each in one of 1,000 groups of width 1, beside the same without groups."""
    runs = interleaved(options.rounds, {"plain": lambda: _run(options, 0), "grouped": lambda: _run(options, GROUPS)})
    speeds = {name: [per_s for per_s, _ in group] for name, group in runs.items()}
    cpu = {name: [cpu_us for _, cpu_us in group] for name, group in runs.items()}
    return [
        Reading("no-op without groups", "messages/s", speeds["plain"]),
        Reading("no-op in 1,000 groups", "messages/s", speeds["grouped"]),
        ratio("in groups / without", speeds["grouped"], speeds["plain"], WANTED),
        Reading("in groups, worker CPU", "µs/message", cpu["grouped"]),
    ]


def before(options: Options) -> list[Reading]:
    """No-op messages without groups, and messages where a fifth fails and is retried, with this checkout and with
    another one (`--before DIR`), in pairs. Processor time is that of the worker and of the store's server."""
    if options.before is None:
        raise Broken("name the other checkout: --before DIR (git worktree add DIR COMMIT makes one)")
    sides = {"then": options.before.absolute(), "now": ROOT}
    readings: list[Reading] = []
    for task, of in (("noop", ""), ("failing", ", a fifth failing")):
        turns = {name: partial(_run_at, options, root, task) for name, root in sides.items()}
        runs = interleaved(options.rounds, turns)
        cpu = {name: [cpu_us for _, cpu_us in group] for name, group in runs.items()}
        speeds = {name: [per_s for per_s, _ in group] for name, group in runs.items()}
        readings += [
            Reading(f"CPU then{of}", "µs/message", cpu["then"]),
            Reading(f"CPU now{of}", "µs/message", cpu["now"]),
            ratio(f"CPU now / then{of}", cpu["now"], cpu["then"], WANTED_BEFORE),
            ratio(f"throughput now / then{of}", speeds["now"], speeds["then"]),
        ]
    return readings


def _run(options: Options, count: int) -> tuple[float, float]:
    """Messages a second and worker CPU in µs a message; `count` groups, 0 for none."""
    place = fresh(options, "groups")
    app = make_app(place.url)
    app.store.configure("default", paused=True)
    noop = app.tasks["noop"]
    tasks: list[Any] = [noop.using(group=f"tenant-{n}") for n in range(count)] or [noop]
    drafts = [tasks[i % len(tasks)].draft(i) for i in range(options.messages)]
    for at in range(0, len(drafts), PUT_AT_ONCE):
        app.enqueue_many(drafts[at : at + PUT_AT_ONCE])
    app.store.close()
    with worker(place) as child:
        worker_s = cost_of_all(child, place, options.messages).worker_s
        child.stop()
        records = child.read()
    need_all_once(records, options.messages)
    return rate(records, options.messages), worker_s / options.messages * 1e6


def _run_at(options: Options, root: Path, task: str) -> tuple[float, float]:
    """The same with the code in `root`: also what fills and resumes, for no code may touch a schema of other code's."""
    place = fresh(options, "before")
    folder, url = place.folder, place.url
    _python(root, "from benchmarks.harness import fill", f"fill({url!r}, {task!r}, {options.messages})")
    runs = options.messages + (len(range(0, options.messages, FAIL_EVERY)) if task == "failing" else 0)
    resume = ("a.store.configure('default', paused=False)", "a.store.close()")
    arguments = (url, CONCURRENCY, folder / "worker.records", "")
    with Child(folder, "worker", *arguments, root=root) as child:
        child.rest()
        from_s = child.cpu_s() + server_cpu_s(place.engine)
        _python(root, "from benchmarks.tasks import make_app", f"a = make_app({url!r})", *resume)
        child.await_records(runs)
        child.rest()
        cpu_s = child.cpu_s() + server_cpu_s(place.engine) - from_s
        child.stop()
        records = child.read()
    need_all_once(records, options.messages)
    return rate(records, options.messages), cpu_s / options.messages * 1e6


def _python(root: Path, *lines: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=root, env=environment, check=True)
