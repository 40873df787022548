"""What it gains to handle several messages in one call, where a call takes its time."""

from __future__ import annotations

import asyncio
import time

from redrive import App

from .harness import Options, Reading, fresh, interleaved, ratio

CALL_S = 0.005  # how long a call of the dependency takes, for one message or for many
GATHER = 50
CALLS = 10  # at once


def gather(options: Options) -> list[Reading]:
    """Messages through one worker in this process, whose handler calls a service for 5 ms, ten calls at once: a call
    for each message, and one for up to 50, in pairs. From the first call to the end of the last."""
    runs = interleaved(
        options.rounds,
        {
            "one": lambda: _run(options, options.messages // 10, None),
            "many": lambda: _run(options, options.messages, GATHER),
        },
    )
    speeds = {name: [per_s for per_s, _ in group] for name, group in runs.items()}
    return [
        Reading("a call for each message", "messages/s", speeds["one"]),
        Reading(f"a call for up to {GATHER}", "messages/s", speeds["many"]),
        Reading("messages in a call, mean", "messages", [size for _, size in runs["many"]]),
        ratio(f"gather={GATHER} / one by one", speeds["many"], speeds["one"], "≥ 3"),
    ]


def _run(options: Options, count: int, most: int | None) -> tuple[float, float]:
    """Messages a second, and the mean number of messages in a call."""
    place = fresh(options, "gather")
    app = App(place.url)
    sizes: list[int] = []
    times: list[float] = []

    async def call(messages: int) -> None:
        times.append(time.perf_counter())
        await asyncio.sleep(CALL_S)
        sizes.append(messages)
        times.append(time.perf_counter())

    if most is None:

        @app.task(name="push")
        async def push(item: int) -> None:
            await call(1)
    else:

        @app.task(name="push", gather=most)
        async def push_all(items: list[int]) -> None:
            await call(len(items))

    for at in range(0, count, 1000):
        app.enqueue_many([app.tasks["push"].draft(n) for n in range(at, min(at + 1000, count))])
    app.run_worker(burst=True, concurrency=CALLS)
    app.store.close()
    assert sum(sizes) == count
    return count / (max(times) - min(times)), count / len(sizes)
