"""What much does: a backlog of delayed messages, many enqueueing threads, and memory over many messages."""

from __future__ import annotations

import random
import threading
import time

from redrive import App

from .harness import (
    PUT_AT_ONCE,
    Cost,
    Options,
    Place,
    Reading,
    cost_of_all,
    fill,
    fresh,
    interleaved,
    put,
    ratio,
    worker,
)
from .tasks import FAIL_EVERY, make_app

THREADS = 8
DAY_S = 86_400
DEPTH = 5_000  # messages waiting at most while memory is watched: there is always work, and the file stays small


def backlog(options: Options) -> list[Reading]:
    """Processor time per no-op message in a store where `backlog` delayed messages wait, beside one where none do."""
    empty, full = fresh(options, "without"), fresh(options, "backlog")
    for place in (empty, full):
        fill(place.url, "noop", 0)
    before = full.engine.size(full.url)
    put_delayed(full.url, options.backlog)
    size = full.engine.size(full.url) - before
    runs = interleaved(
        options.rounds, {"without": lambda: _cost(options, empty), "backlog": lambda: _cost(options, full)}
    )
    of = {name: [cost.worker_s + cost.server_s for cost in costs] for name, costs in runs.items()}
    us = {name: [s / options.messages * 1e6 for s in group] for name, group in of.items()}
    return [
        Reading("no-op, worker and server CPU", "µs/message", us["without"]),
        Reading(f"beside {options.backlog:,} delayed", "µs/message", us["backlog"]),
        ratio("with / without", us["backlog"], us["without"], "≤ 1.15"),
        Reading("a delayed message", "bytes", [size / options.backlog]),
    ]


def put_delayed(url: str, count: int) -> None:
    """Messages due at random times of the day after tomorrow."""
    app, draw = make_app(url), random.Random(11)
    noop = app.tasks["noop"]
    for at in range(0, count, PUT_AT_ONCE):
        app.enqueue_many(
            [noop.using(delay=DAY_S + draw.random() * DAY_S).draft(i) for i in range(at, min(count, at + PUT_AT_ONCE))]
        )
    app.store.close()


def _cost(options: Options, place: Place) -> Cost:
    """Of one worker over no-op messages in an existing store."""
    (place.folder / "worker.records").unlink(missing_ok=True)
    fill(place.url, "noop", options.messages)
    with worker(place) as child:
        cost = cost_of_all(child, place, options.messages)
        child.stop()
    return cost


def enqueue(options: Options) -> list[Reading]:
    """Single `enqueue` calls, each durable when it returns: from one thread, and from eight that share commits."""
    app = make_app(fresh(options, "enqueue").url)
    each = max(1, options.messages // 20)
    _enqueue_rate(app, 1, 1)  # opens the store
    runs = interleaved(
        options.rounds, {"one": lambda: _enqueue_rate(app, 1, each), "many": lambda: _enqueue_rate(app, THREADS, each)}
    )
    bulk = [_bulk_rate(app, options.messages) for _ in range(options.rounds)]
    app.store.close()
    return [
        Reading("one thread", "enqueues/s", runs["one"]),
        Reading(f"{THREADS} threads", "enqueues/s", runs["many"]),
        ratio(f"{THREADS} threads / one", runs["many"], runs["one"], "≥ 5" if options.engine.server is None else None),
        Reading(f"enqueue_many of {PUT_AT_ONCE:,}", "messages/s", bulk),
    ]


def _enqueue_rate(app: App, threads: int, each: int) -> float:
    noop, ready = app.tasks["noop"], threading.Barrier(threads + 1)

    def work() -> None:
        ready.wait()
        for i in range(each):
            noop.enqueue(i)

    started = [threading.Thread(target=work) for _ in range(threads)]
    for thread in started:
        thread.start()
    ready.wait()
    from_s = time.perf_counter()
    for thread in started:
        thread.join()
    return threads * each / (time.perf_counter() - from_s)


def _bulk_rate(app: App, count: int) -> float:
    from_s = time.perf_counter()
    put(app, "noop", range(count))
    return count / (time.perf_counter() - from_s)


def memory(options: Options) -> list[Reading]:
    """Memory of one worker over many messages, a fifth of which fail once: at a fifth of the way, and at the end."""
    place = fresh(options, "memory")
    app = make_app(place.url)
    runs = options.memory + len(range(0, options.memory, FAIL_EVERY))
    samples: list[tuple[int, float]] = []
    with worker(place) as child:
        for at in range(0, options.memory, PUT_AT_ONCE):
            put(app, "failing", range(at, min(options.memory, at + PUT_AT_ONCE)))
            child.await_records(max(0, at - DEPTH))
            samples.append((child.count(), child.rss_mib()))
        child.await_records(runs)
        samples.append((runs, child.rss_mib()))
        child.stop()
    app.store.close()
    early, late = next(rss for done, rss in samples if done >= runs // 5), samples[-1][1]
    return [
        Reading(f"after {options.memory // 5:,} messages", "MiB", [early]),
        Reading(f"after {options.memory:,} messages", "MiB", [late]),
        Reading("most", "MiB", [max(rss for _, rss in samples)]),
        ratio("end / a fifth of the way", [late], [early], "≤ 1.1"),
    ]
