"""`python -m benchmarks`: run some or all, print a table, keep the figures."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import redrive

from .aws_calls import aws_calls
from .batches import batches
from .crowded import crowded
from .dead import dead
from .encryption import encryption
from .engines import ENGINES
from .fairness import fairness
from .find import find
from .flow import flow
from .freezing import freezing
from .gather import gather
from .groups import before, groups
from .harness import Broken, Options, Reading, as_json, table
from .isolation import isolation
from .late import late
from .otel import otel
from .pair import workers
from .plan import plan
from .recovery import recovery
from .redaction import redaction
from .rollout import rollout, rollout_sqs
from .snapshot import snapshot
from .sqs import sqs, sqs_requests
from .startup import startup
from .suspects import poison, suspects
from .telemetry import telemetry
from .tenants import tenants
from .testkit import testkit
from .throughput import failing, idempotency, noop
from .timing import idle, latency, lateness
from .top import top
from .upcoming import upcoming
from .volume import backlog, enqueue, memory
from .web import web

BENCHMARKS: dict[str, Callable[[Options], list[Reading]]] = {
    f.__name__.replace("_", "-"): f
    for f in (
        noop,
        failing,
        idempotency,
        groups,
        batches,
        gather,
        fairness,
        tenants,
        flow,
        telemetry,
        isolation,
        before,
        lateness,
        latency,
        idle,
        top,
        recovery,
        rollout,
        rollout_sqs,
        suspects,
        poison,
        workers,
        backlog,
        enqueue,
        memory,
        plan,
        dead,
        upcoming,
        find,
        snapshot,
        late,
        freezing,
        redaction,
        encryption,
        otel,
        startup,
        testkit,
        sqs_requests,
        sqs,
        aws_calls,
        web,
        crowded,
    )
}
OWN = ("folder", "engine")
UNTOLD = (*OWN, "before")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 when everything was measured, whatever the figures; 1 when a run lost, repeated or forgot something."""
    arguments = parser().parse_args(argv)
    where = tempfile.TemporaryDirectory(prefix="redrive-bench-", dir=arguments.folder)
    with where as folder, ENGINES[arguments.store](arguments.folder) as engine:
        sizes = {name: getattr(arguments, name) for name in Options.__struct_fields__ if name not in OWN}
        options = Options(folder=Path(folder), engine=engine, **sizes)
        readings: list[tuple[str, Reading]] = []
        for name in arguments.benchmark or [name for name in BENCHMARKS if name != "before" or arguments.before]:
            print(f"{name}: {(BENCHMARKS[name].__doc__ or '').splitlines()[0]}", file=sys.stderr, flush=True)
            try:
                readings += [(name, reading) for reading in BENCHMARKS[name](options)]
            except Broken as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 1
    print(table(readings))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(_report(options, readings), indent=1, ensure_ascii=False) + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    p.add_argument(
        "benchmark",
        nargs="*",
        metavar="BENCHMARK",
        choices=[[], *BENCHMARKS],
        help=f"which: {' '.join(BENCHMARKS)} (default: all)",
    )
    p.add_argument("--store", choices=[*ENGINES], default="sqlite", help="the engine; a private server is started")
    p.add_argument(
        "--rounds", type=int, default=3, help="how often each run is repeated, interleaved with what it is compared to"
    )
    p.add_argument("--messages", type=int, default=20_000, help="per throughput run")
    p.add_argument("--delayed", type=int, default=2_000, help="lateness: messages that come due")
    p.add_argument("--within-s", type=float, default=5.0, help="lateness: the window they come due in")
    p.add_argument("--steady", type=int, default=1_000, help="latency: messages put at the rate")
    p.add_argument("--per-s", type=float, default=100.0, help="latency: the rate")
    p.add_argument("--backlog", type=int, default=100_000, help="backlog, upcoming, find, web: messages that wait")
    p.add_argument("--memory", type=int, default=100_000, help="memory: messages run in all")
    p.add_argument("--idle-s", type=float, default=10.0, help="idle, top: seconds watched per round")
    p.add_argument("--starts", type=int, default=11, help="startup: starts of each program; testkit: tests")
    p.add_argument("--waiting", type=int, default=10_000, help="fairness: messages of the large tenant")
    p.add_argument("--dead", type=int, default=100_000, help="plan, dead, top, web, crowded: dead messages")
    p.add_argument(
        "--suspects", default="500x15ms,100x2s", help="suspects: messages under way, and how long each takes"
    )
    p.add_argument("--crowd", type=int, default=500, help="poison: messages under way with it")
    p.add_argument("--stream", type=int, default=100_000, help="snapshot, late: messages that pass through in all")
    p.add_argument("--browsers", type=int, default=50, help="web: browsers that watch a page")
    p.add_argument("--old", type=int, default=9, help="rollout: workers of the old release")
    p.add_argument("--new", type=int, default=1, help="rollout: workers of the new release")
    p.add_argument("--late-s", type=float, default=5.0, help="late: how long after its begin a transaction commits")
    p.add_argument("--freezes", type=int, default=10, help="freezing: how often a worker is frozen")
    p.add_argument("--seconds", type=float, default=12.0, help="freezing: for how long")
    p.add_argument(
        "--workers", type=int, default=6, help="freezing: worker processes, half of them under each supervisor"
    )
    p.add_argument("--before", type=Path, metavar="DIR", help="before, crowded: another checkout of this project")
    p.add_argument("--folder", type=Path, help="where the stores lie: on a real disk, for tmpfs syncs nothing")
    p.add_argument("--json", type=Path, metavar="FILE", help="keep every value of every round here")
    return p


def _report(options: Options, readings: Sequence[tuple[str, Reading]]) -> dict[str, object]:
    return {
        "redrive": redrive.__version__,
        "python": platform.python_version(),
        "store": options.engine.name,
        "sqlite": sqlite3.sqlite_version,
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "options": {name: value for name, value in msgspec.structs.asdict(options).items() if name not in UNTOLD},
        "readings": [as_json(name, reading) for name, reading in readings],
    }


if __name__ == "__main__":
    sys.exit(main())
