"""What it costs that processes tell about themselves in the store."""

from __future__ import annotations

import time

from redrive import App
from redrive.presence import LISTED_MAX, HeldMessage, ProcessCell, QueueWork, WorkerInfo

from .engines import server_cpu_s
from .harness import (
    CONCURRENCY,
    Child,
    Options,
    Reading,
    cost_of_all,
    fill,
    fresh,
    interleaved,
    need_all_once,
    rate,
    ratio,
)

WANTED = "≤ 1.03"
RENEWALS = 200


def telemetry(options: Options) -> list[Reading]:
    """No-op messages with the setting `telemetry` on, beside the same with it off; and one renewal of a full record."""
    roles = ("silent", "telling")
    runs = interleaved(options.rounds, {role: lambda role=role: _run(options, role) for role in roles})  # type: ignore[misc]
    speeds = {name: [per_s for per_s, _ in group] for name, group in runs.items()}
    cpu = {name: [cpu_us for _, cpu_us in group] for name, group in runs.items()}
    return [
        Reading("CPU without telemetry", "µs/message", cpu["silent"]),
        Reading("CPU with it", "µs/message", cpu["telling"]),
        ratio("CPU with / without", cpu["telling"], cpu["silent"], WANTED),
        ratio("throughput with / without", speeds["telling"], speeds["silent"]),
        Reading("CPU of a renewal, with the server's", "ms", [_renewal(options) for _ in range(options.rounds)]),
    ]


def _run(options: Options, role: str) -> tuple[float, float]:
    """Messages a second, and processor time of worker and server in µs a message."""
    place = fresh(options, "telemetry")
    fill(place.url, "noop", options.messages)
    with Child(place.folder, role, place.url, CONCURRENCY, place.folder / f"{role}.records") as child:
        cost = cost_of_all(child, place, options.messages)
        child.stop()
        records = child.read()
    need_all_once(records, options.messages)
    return rate(records, options.messages), (cost.worker_s + cost.server_s) / options.messages * 1e6


def _renewal(options: Options) -> float:
    """Processor time of a renewal in ms, of a worker that holds a hundred messages."""
    place = fresh(options, "renewal")
    app = App(place.url)
    message = HeldMessage(id="0192f0c1-0000-7000-8000-000000000000", task="crm.push", since_ms=1)
    queues = (QueueWork(name="crm", concurrency=LISTED_MAX, held=LISTED_MAX),)
    told = WorkerInfo(name="vm/worker-0", queues=queues, held=LISTED_MAX, messages=(message,) * LISTED_MAX)
    entry = ProcessCell(app.store)
    entry.write(told)
    from_s = time.process_time() + server_cpu_s(place.engine)
    for _ in range(RENEWALS):
        entry.write(told)
    cpu_s = time.process_time() + server_cpu_s(place.engine) - from_s
    entry.remove()
    app.store.close()
    return cpu_s / RENEWALS * 1000
