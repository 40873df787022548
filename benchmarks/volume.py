"""What much does: a backlog of delayed messages, many enqueueing threads, and memory over many messages."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from redrive import App

from .harness import PUT_AT_ONCE, Options, Reading, cpu_of_all, fill, fresh, interleaved, put, ratio, url_in, worker
from .tasks import FAIL_EVERY, make_app

THREADS = 8
DAY_S = 86_400
DEPTH = 5_000  # messages waiting at most while memory is watched: there is always work, and the file stays small


def backlog(options: Options) -> list[Reading]:
    """Processor time per no-op message in a store where `backlog` delayed messages wait, beside one where none do."""
    empty, full = fresh(options, "without"), fresh(options, "backlog")
    make_app(url_in(empty)).store.close()
    put_delayed(url_in(full), options.backlog)
    runs = interleaved(
        options.rounds, {"without": lambda: _cpu_us(options, empty), "backlog": lambda: _cpu_us(options, full)}
    )
    size = sum(path.stat().st_size for path in full.glob("work.db*") if path.is_file())
    return [
        Reading("no-op, worker CPU", "µs/message", runs["without"]),
        Reading(f"beside {options.backlog:,} delayed", "µs/message", runs["backlog"]),
        ratio("with / without", runs["backlog"], runs["without"], "≤ 1.15"),
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


def _cpu_us(options: Options, folder: Path) -> float:
    """Of one worker over no-op messages in an existing store."""
    (folder / "worker.records").unlink(missing_ok=True)
    fill(url_in(folder), "noop", options.messages)
    with worker(folder) as child:
        cpu_s = cpu_of_all(child, url_in(folder), options.messages)
        child.stop()
    return cpu_s / options.messages * 1e6


def enqueue(options: Options) -> list[Reading]:
    """Single `enqueue` calls, each durable when it returns: from one thread, and from eight that share commits."""
    app = make_app(url_in(fresh(options, "enqueue")))
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
        ratio(f"{THREADS} threads / one", runs["many"], runs["one"], "≥ 5"),
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
    folder = fresh(options, "memory")
    app = make_app(url_in(folder))
    runs = options.memory + len(range(0, options.memory, FAIL_EVERY))
    samples: list[tuple[int, float]] = []
    with worker(folder) as child:
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
