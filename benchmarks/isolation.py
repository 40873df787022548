"""What a process of its own costs a message."""

from __future__ import annotations

from .harness import (
    WARM,
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
    warm_up,
)

AT_ONCE = 4


def isolation(options: Options) -> list[Reading]:
    """No-op messages in four child processes, beside the same in four threads of the worker; and one at a time."""
    roles = {f"{role}, {n} at once": (role, n) for n in (AT_ONCE, 1) for role in ("isolated", "threaded")}
    runs = interleaved(
        options.rounds,
        {name: lambda role=role, n=n: _run(options, role, n) for name, (role, n) in roles.items()},  # type: ignore[misc]
    )
    readings = []
    for name in roles:
        readings.append(Reading(name, "messages/s", [per_s for per_s, _ in runs[name]]))
        readings.append(Reading(f"{name}, CPU", "µs/message", [cpu_us for _, cpu_us in runs[name]]))
    for n in (AT_ONCE, 1):
        of = [[per_s for per_s, _ in runs[f"{role}, {n} at once"]] for role in ("isolated", "threaded")]
        readings.append(ratio(f"isolated / threaded, {n} at once", *of))
    return readings


def _run(options: Options, role: str, at_once: int) -> tuple[float, float]:
    """Messages a second, and processor time of worker, children and server in µs a message."""
    place = fresh(options, role)
    with Child(place.folder, role, place.url, at_once, place.folder / f"{role}.records") as child:
        warm_up(child, place.url)  # also starts the children
        fill(place.url, "noop", options.messages)
        cost = cost_of_all(child, place, WARM + options.messages)
        child.stop()
        records = [record for record in child.read() if record[0] >= 0]
    need_all_once(records, options.messages)
    return rate(records, options.messages), (cost.worker_s + cost.server_s) / options.messages * 1e6
