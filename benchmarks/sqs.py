"""SQS: requests per processed message by the server's own log, and speed beside other consumers.

The server is the test kit's stand-in, in this process; every consumer is a process of its own. Time is no part of the
request counts, so they are the same on any machine.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from msgspec import Struct

from redrive.testing.sqs import SqsServer

from .harness import (
    CONCURRENCY,
    STUCK_S,
    Broken,
    Child,
    Options,
    Place,
    Reading,
    fresh,
    interleaved,
    put,
    rate,
    ratio,
)
from .sqs_roles import our_app, ours_at, send_jobs, send_one_by_one, send_ten
from .tasks import FAIL_EVERY

OVERHEAD = ("CreateQueue", "GetQueueUrl")  # once per process, however many messages there are
WARM_SHARE = 0.1  # of the messages, before processor time is looked at: the imports are over then


class Consumer(Struct, frozen=True):
    """Something that works a queue: how its queue is filled, and what runs it."""

    name: str
    fill: Callable[[str, str, Sequence[int], bool], None]  # endpoint, queue, indexes, whether a fifth fails once
    start: Callable[[Place, str, bool], Child]
    module: str = "boto3"

    @property
    def is_here(self) -> bool:
        if find_spec(self.module) is None:
            print(f"{self.name} is not installed; pip install -r benchmarks/peers/sqs.txt", file=sys.stderr)
            return False
        return True


def _ours(name: str, mode: str) -> Consumer:
    def fill(endpoint: str, queue: str, indexes: Sequence[int], failing: bool) -> None:
        app = our_app(ours_at(endpoint, queue, mode))
        put(app, "failing" if failing else "noop", range(len(indexes)))
        app.store.close()

    def start(place: Place, endpoint: str, failing: bool) -> Child:
        url = ours_at(endpoint, place.folder.name, mode)
        return Child(place.folder, "ours", url, CONCURRENCY, place.folder / "ours.records")

    return Consumer(name, fill, start)


def _other(name: str, role: str, send: Callable[[str, str, Sequence[int]], None], module: str = "boto3") -> Consumer:
    def fill(endpoint: str, queue: str, indexes: Sequence[int], failing: bool) -> None:
        send(endpoint, queue, indexes)

    def start(place: Place, endpoint: str, failing: bool) -> Child:
        told = "failing" if failing else ""
        return Child(place.folder, role, endpoint, place.folder.name, place.folder / f"{role}.records", told)

    return Consumer(name, fill, start, module)


OURS = _ours("redrive", "visibility")
REQUEUE = _ours("redrive, mode=requeue", "requeue")
NAIVE = _other("naive", "naive", send_one_by_one)
PLAIN = _other("boto3 in tens", "plain", send_ten)
WORKERS = _other("sqs-workers", "sqs_workers", send_jobs, "sqs_workers")
CONSUMER = _other("aws-sqs-consumer", "aws_sqs_consumer", send_ten, "aws_sqs_consumer")


def sqs_requests(options: Options) -> list[Reading]:
    """Requests per processed message, send included, by the log of a stand-in SQS."""
    cases = [
        (OURS, False, 10, "≤ 0.32"),
        (WORKERS, False, 10, None),
        (NAIVE, False, 10, None),
        (OURS, True, 10, "≤ 0.42"),
        (REQUEUE, True, 10, None),
        (WORKERS, True, 10, None),
        (NAIVE, True, 10, None),
        (OURS, False, 3, None),
        (WORKERS, False, 3, None),
    ]
    found: list[Reading] = []
    for consumer, failing, receive_max, wanted in cases:
        if consumer.is_here:
            messages = options.messages if consumer is not NAIVE else min(options.messages, 500)
            asked, _ = run(options, consumer, messages, failing=failing, receive_max=receive_max)
            what = "20 % fail once" if failing else "full receives" if receive_max == 10 else "receives of 3"
            found.append(Reading(f"{consumer.name}, {what}", "requests", [per_message(asked, messages)], wanted))
    return found


def sqs(options: Options) -> list[Reading]:
    """No-op messages through one process against a stand-in SQS: messages a second, and processor time of each."""
    consumers = [c for c in (OURS, WORKERS, CONSUMER, PLAIN) if c.is_here]

    def run_of(consumer: Consumer) -> Callable[[], tuple[float, float]]:
        return lambda: run(options, consumer, options.messages)[1]

    runs = interleaved(options.rounds, {consumer.name: run_of(consumer) for consumer in consumers})
    rates = {name: [per_s for per_s, _ in results] for name, results in runs.items()}
    cpus = {name: [cpu_us for _, cpu_us in results] for name, results in runs.items()}
    found = [Reading(name, "/s", values, "≥ 5000" if name == OURS.name else None) for name, values in rates.items()]
    found += [ratio(f"redrive / {name}", rates[OURS.name], values, _ahead(name)) for name, values in rates.items()][1:]
    found += [Reading(f"{name}, CPU", "µs", values) for name, values in cpus.items()]
    return [*found, ratio("CPU, redrive / boto3 in tens", cpus[OURS.name], cpus[PLAIN.name])]


def _ahead(name: str) -> str | None:
    return "≥ 1" if name in (WORKERS.name, CONSUMER.name) else None


def per_message(asked: Counter[str], messages: int) -> float:
    """Requests of all kinds for each message, but for those made once."""
    return sum(count for action, count in asked.items() if action not in OVERHEAD) / messages


def run(
    options: Options, consumer: Consumer, messages: int, *, failing: bool = False, receive_max: int = 10
) -> tuple[Counter[str], tuple[float, float]]:
    """The requests by action; messages a second, and microseconds of processor time each."""
    place = fresh(options, "sqs")
    with SqsServer(receive_max=receive_max) as server:
        consumer.fill(server.url, place.folder.name, range(messages), failing)
        failures = len(range(0, messages, FAIL_EVERY)) if failing else 0
        with consumer.start(place, server.url, failing) as child:
            warm = max(1, int(messages * WARM_SHARE))
            child.await_records(warm)
            from_s, seen = child.cpu_s(), child.count()
            child.await_records(messages + failures)
            cpu_us = (child.cpu_s() - from_s) * 1e6 / max(1, messages + failures - seen)
            _await_empty(server, place.folder.name)
            asked = Counter(server.requests)
        records = child.read()
    ended = sorted(index for index, _ in records if index >= 0)
    if ended != list(range(messages)):
        raise Broken(f"{consumer.name}: {messages} messages, {len(set(ended))} of them ended, {len(ended)} runs")
    return asked, (rate(records, messages + failures), cpu_us)


def _await_empty(server: SqsServer, prefix: str) -> None:
    """Return once all is deleted."""
    end_s = time.monotonic() + STUCK_S
    while any(queue.messages for name, queue in list(server.account.queues.items()) if name.startswith(prefix)):
        if time.monotonic() > end_s:
            raise Broken("what was done was never deleted")
        time.sleep(0.005)
