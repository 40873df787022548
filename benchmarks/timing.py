"""How late an idle worker is, for messages that come due and for those another process puts; what idling costs."""

from __future__ import annotations

import json
import random
import time
from datetime import UTC, datetime

from .engines import server_cpu_s
from .harness import WARM, Broken, Child, Options, Place, Reading, fresh, interleaved, percentile, warm_up, worker
from .tasks import make_app

LATENCY_WANTED_MS = {"postgres": 3}  # elsewhere 2
FIRST_DUE = 0.2  # of the window: time to store them all before the first comes due


def lateness(options: Options) -> list[Reading]:
    """Messages due at random times of a window: from due time to the handler's first line, beside a bare sleep."""
    runs = interleaved(options.rounds, {"sleep": lambda: run_sleeper(options), "redrive": lambda: run_delayed(options)})
    return [
        Reading("late, p50", "ms", [percentile(late, 0.5) for late in runs["redrive"]]),
        Reading("late, p99", "ms", [percentile(late, 0.99) for late in runs["redrive"]], "≤ 10"),
        Reading("late, most", "ms", [max(late) for late in runs["redrive"]]),
        Reading("early", "messages", [sum(ms < 0 for ms in late) for late in runs["redrive"]], "≤ 0"),
        Reading("a bare sleep, p50", "ms", [percentile(late, 0.5) for late in runs["sleep"]]),
        Reading("a bare sleep, p99", "ms", [percentile(late, 0.99) for late in runs["sleep"]]),
    ]


def run_delayed(options: Options) -> list[float]:
    place = fresh(options, "delayed")
    with worker(place) as child:
        warm_up(child, place.url)
        app = make_app(place.url)
        dues_s = _dues_s(options)
        noop = app.tasks["noop"]
        app.enqueue_many([noop.using(at=datetime.fromtimestamp(due_s, UTC)).draft(i) for i, due_s in enumerate(dues_s)])
        child.await_records(options.delayed + WARM)
        app.store.close()
        return _late_ms(child, dues_s)


def run_sleeper(options: Options) -> list[float]:
    folder = fresh(options, "sleeper").folder
    dues_s = _dues_s(options)
    (folder / "dues.json").write_text(json.dumps(dues_s))
    with Child(folder, "sleeper", folder / "dues.json", folder / "sleeper.records") as child:
        child.finish()
        return _late_ms(child, dues_s)


def _dues_s(options: Options) -> list[float]:
    """Whole milliseconds, which is what stores keep."""
    draw = random.Random(7)
    now_s = time.time()
    shares = [draw.uniform(FIRST_DUE, 1) for _ in range(options.delayed)]
    return [round(now_s + share * options.within_s, 3) for share in shares]


def _late_ms(child: Child, dues_s: list[float]) -> list[float]:
    started_s = {index: at_s for index, at_s in child.read() if index >= 0}
    if len(started_s) != len(dues_s):
        raise Broken(f"{len(dues_s)} messages were due, {len(started_s)} ran")
    return [(started_s[i] - due_s) * 1000 for i, due_s in enumerate(dues_s)]


def latency(options: Options) -> list[Reading]:
    """Another process enqueues at a steady rate: from `enqueue` to the handler's first line, beside a bare datagram."""
    runs = interleaved(
        options.rounds, {"datagram": lambda: run_datagrams(options), "redrive": lambda: run_steady(options)}
    )
    returned = [[start - back for _, back, start in run] for run in runs["redrive"]]
    called = [[start - call for call, _, start in run] for run in runs["redrive"]]
    datagram = [[start - call for call, _, start in run] for run in runs["datagram"]]
    p99s = [percentile(ms, 0.99) for ms in returned]
    wanted_ms = LATENCY_WANTED_MS.get(options.engine.name, 2)
    return [
        Reading("from the return of enqueue, p50", "ms", [percentile(ms, 0.5) for ms in returned], f"≤ {wanted_ms}"),
        Reading("from the return of enqueue, p99", "ms", p99s, "≤ 10"),
        Reading("from the call of enqueue, p50", "ms", [percentile(ms, 0.5) for ms in called]),
        Reading("from the call of enqueue, p99", "ms", [percentile(ms, 0.99) for ms in called]),
        Reading("a bare datagram, p50", "ms", [percentile(ms, 0.5) for ms in datagram]),
        Reading("a bare datagram, p99", "ms", [percentile(ms, 0.99) for ms in datagram]),
    ]


def run_steady(options: Options) -> list[tuple[float, float, float]]:
    place = fresh(options, "steady")
    with worker(place) as child:
        warm_up(child, place.url)
        return _steady(options, child, place.url)


def run_datagrams(options: Options) -> list[tuple[float, float, float]]:
    folder = fresh(options, "datagrams").folder
    with Child(folder, "receiver", folder / "port", folder / "receiver.records") as child:
        child.await_records(0)
        return _steady(options, child, f"datagram:{(folder / 'port').read_text()}")


def _steady(options: Options, child: Child, url: str) -> list[tuple[float, float, float]]:
    """Times of call, return and start of each message, in ms."""
    folder, before = child.records.parent, child.count()
    with Child(folder, "steady", url, 0, options.steady, options.per_s, folder / "steady.records") as producer:
        producer.finish()
        child.await_records(before + options.steady)
        put = dict(producer.read())
    started = {index: at_s for index, at_s in child.read() if index >= 0}
    return [(put[-1 - i] * 1000, put[i] * 1000, started[i] * 1000) for i in range(options.steady)]


def idle(options: Options) -> list[Reading]:
    """Processor time of a worker that has nothing to do."""
    place = fresh(options, "idle")
    with worker(place) as child:
        warm_up(child, place.url)
        shares = [_idle_shares(child, place, options.idle_s) for _ in range(options.rounds)]
    readings = [Reading("an idle worker", "% of a core", [share for share, _ in shares], "≤ 1")]
    if place.engine.server is not None:
        readings.append(Reading("its server", "% of a core", [share for _, share in shares]))
    return readings


def _idle_shares(child: Child, place: Place, wall_s: float) -> tuple[float, float]:
    """Of the worker and of the server."""
    before_s, server_before_s, from_s = child.cpu_s(), server_cpu_s(place.engine), time.monotonic()
    time.sleep(wall_s)
    used_s, server_used_s = child.cpu_s() - before_s, server_cpu_s(place.engine) - server_before_s
    passed_s = time.monotonic() - from_s
    return used_s / passed_s * 100, server_used_s / passed_s * 100
