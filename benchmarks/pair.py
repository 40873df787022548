"""What a second worker process brings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from msgspec.structs import replace

from .engines import server_cpu_s
from .harness import (
    Child,
    Options,
    Place,
    Reading,
    await_records,
    fill,
    fresh,
    interleaved,
    need_all_once,
    rate,
    ratio,
    resume,
    worker,
)


def workers(options: Options) -> list[Reading]:
    """No-op messages through two worker processes, beside one: worth something only where cores are free."""
    runs = interleaved(options.rounds, {"one": lambda: _run(options, 1), "two": lambda: _run(options, 2)})
    speeds = {name: [per_s for per_s, _ in group] for name, group in runs.items()}
    cpu = {name: [cpu_us for _, cpu_us in group] for name, group in runs.items()}
    return [
        Reading("one process", "messages/s", speeds["one"]),
        Reading("two processes", "messages/s", speeds["two"]),
        ratio("two / one", speeds["two"], speeds["one"]),
        Reading("one process, CPU with the server's", "µs/message", cpu["one"]),
        Reading("two processes, CPU with the server's", "µs/message", cpu["two"]),
    ]


def _run(options: Options, count: int) -> tuple[float, float]:
    """Messages a second of them all, and processor time in µs a message, the server's included."""
    place = fresh(options, "workers")
    fill(place.url, "noop", options.messages)
    with _many(place, count) as children:
        for child in children:
            child.rest()
        from_s = sum(child.cpu_s() for child in children) + server_cpu_s(place.engine)
        resume(place)
        await_records(children, options.messages)
        for child in children:
            child.rest()
        cpu_s = sum(child.cpu_s() for child in children) + server_cpu_s(place.engine) - from_s
        for child in children:
            child.stop()
        records = [record for child in children for record in child.read()]
    need_all_once(records, options.messages)
    return rate(records, options.messages), cpu_s / options.messages * 1e6


@contextlib.contextmanager
def _many(place: Place, count: int) -> Iterator[list[Child]]:
    with contextlib.ExitStack() as stack:
        folders = [place.folder / f"worker-{number}" for number in range(count)]
        for folder in folders:
            folder.mkdir()
        yield [stack.enter_context(worker(replace(place, folder=folder))) for folder in folders]
