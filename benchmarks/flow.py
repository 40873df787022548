"""What flow control costs while it has nothing against anybody."""

from __future__ import annotations

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

WANTED = "≤ 1.25"


def flow(options: Options) -> list[Reading]:
    """No-op messages whose task has a budget, a breaker and a rate that holds nobody back, beside the same without."""
    runs = interleaved(options.rounds, {role: lambda role=role: _run(options, role) for role in ("worker", "guarded")})  # type: ignore[misc]
    speeds = {name: [per_s for per_s, _ in group] for name, group in runs.items()}
    cpu = {name: [cpu_us for _, cpu_us in group] for name, group in runs.items()}
    return [
        Reading("CPU without flow control", "µs/message", cpu["worker"]),
        Reading("CPU with it, quiet", "µs/message", cpu["guarded"]),
        ratio("CPU with / without", cpu["guarded"], cpu["worker"], WANTED),
        ratio("throughput with / without", speeds["guarded"], speeds["worker"]),
    ]


def _run(options: Options, role: str) -> tuple[float, float]:
    """Messages a second, and processor time of worker and server in µs a message."""
    place = fresh(options, "flow")
    fill(place.url, "noop", options.messages)
    with Child(place.folder, role, place.url, CONCURRENCY, place.folder / f"{role}.records") as child:
        cost = cost_of_all(child, place, options.messages)
        child.stop()
        records = child.read()
    need_all_once(records, options.messages)
    return rate(records, options.messages), (cost.worker_s + cost.server_s) / options.messages * 1e6
