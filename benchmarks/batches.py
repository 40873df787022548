"""What batches cost: their members, and how long their callbacks take."""

from __future__ import annotations

import time

from .harness import Options, Reading, cost_of_all, fresh, interleaved, need_all_once, percentile, rate, ratio, worker
from .harness import warm_up as warm
from .tasks import make_app

ENDS = 200  # batches of one member whose callbacks are timed
CALLBACK = 1_000_000  # the index of a callback is that of its member and this
COUNTS = 200  # how often `ref.counts` is read
WANTED = {"sqlite": "≥ 0.92", "redis": "≥ 0.92", "postgres": "≥ 0.88"}


def batches(options: Options) -> list[Reading]:
    """No-op messages that are all members of one batch, beside the same in none, in pairs. Then batches of one member
    each: from the first line of the member to that of its on_success. And the time of one `ref.counts`."""
    runs = interleaved(options.rounds, {"none": lambda: _run(options, False), "one": lambda: _run(options, True)})
    speeds = {name: [per_s for per_s, _ in group] for name, group in runs.items()}
    cpu = {name: [cpu_us for _, cpu_us in group] for name, group in runs.items()}
    ends = [_ends(options) for _ in range(options.rounds)]
    return [
        Reading("no-op in no batch", "messages/s", speeds["none"]),
        Reading("no-op in one batch", "messages/s", speeds["one"]),
        ratio("in one batch / in none", speeds["one"], speeds["none"], WANTED[options.engine.name]),
        Reading("in no batch, CPU with the server's", "µs/message", cpu["none"]),
        Reading("in one batch, CPU with the server's", "µs/message", cpu["one"]),
        Reading("last member to its callback, p50", "ms", [percentile(ms, 0.5) for ms, _ in ends], "≤ 10"),
        Reading("last member to its callback, p99", "ms", [percentile(ms, 0.99) for ms, _ in ends], "≤ 100"),
        Reading("ref.counts, p50", "ms", [percentile(ms, 0.5) for _, ms in ends], "≤ 1"),
    ]


def _run(options: Options, batch: bool) -> tuple[float, float]:
    """Messages a second, and processor time of worker and server in µs a message."""
    place = fresh(options, "batches")
    app = make_app(place.url)
    app.store.configure("default", paused=True)
    drafts = [app.tasks["noop"].draft(n) for n in range(options.messages)]
    if batch:
        app.batch(drafts, name="all").enqueue()
    else:
        for at in range(0, len(drafts), 1000):
            app.enqueue_many(drafts[at : at + 1000])
    app.store.close()
    with worker(place) as child:
        cost = cost_of_all(child, place, options.messages)
        child.stop()
        records = child.read()
    need_all_once(records, options.messages)
    return rate(records, options.messages), (cost.worker_s + cost.server_s) / options.messages * 1e6


def _ends(options: Options) -> tuple[list[float], list[float]]:
    """Times in ms from each member to its callback, and of reads of the counts."""
    place = fresh(options, "ends")
    with worker(place) as child:
        warm(child, place.url)
        app, before = make_app(place.url), child.count()
        noop = app.tasks["noop"]
        for n in range(ENDS):
            ref = app.batch([noop.draft(n)], name="one", on_success=noop.draft(CALLBACK + n)).enqueue()
            time.sleep(0.005)
        child.await_records(before + 2 * ENDS)
        counts_ms = []
        for _ in range(COUNTS):
            since_s = time.perf_counter()
            assert ref.counts.done == 1
            counts_ms.append((time.perf_counter() - since_s) * 1000)
        app.store.close()
        child.stop()
        at_s = dict(child.read())
    return [(at_s[CALLBACK + n] - at_s[n]) * 1000 for n in range(ENDS)], counts_ms
