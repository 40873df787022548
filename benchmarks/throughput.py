"""How fast one worker process is: no-op messages, and a fifth of them failing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from redrive.fault import TRACEBACK_MAX, Fault
from redrive.message import Lane

from . import floors
from .harness import (
    CONCURRENCY,
    Broken,
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
    worker,
)
from .tasks import FAIL_EVERY, make_app


class Run(msgspec.Struct, frozen=True):
    """One timed run: messages a second, processor time a message, and how many faults had their evidence."""

    per_s: float
    worker_us: float
    server_us: float
    faults: int


def noop(options: Options) -> list[Reading]:
    """No-op messages through one worker, beside the least that could do it (see floors.py)."""
    least, runs = [], []
    for _ in range(options.rounds):
        least.append(run_floor(options))
        runs.append(run_task(options, "noop"))
    speeds = [run.per_s for run in runs]
    return [
        Reading("no-op", "messages/s", speeds),
        Reading("the floor", "messages/s", least),
        ratio("no-op / floor", speeds, least),
        *_costs("no-op", runs),
    ]


def _costs(name: str, runs: Sequence[Run]) -> list[Reading]:
    of_worker = Reading(f"{name}, worker CPU", "µs/message", [run.worker_us for run in runs])
    of_server = Reading(f"{name}, server CPU", "µs/message", [run.server_us for run in runs])
    return [of_worker, of_server] if any(of_server.values) else [of_worker]


def failing(options: Options) -> list[Reading]:
    """Every fifth message fails once and is retried, or fails twice and dies; then each fault's evidence is checked."""
    names = ("noop", "failing", "dying")
    runs = interleaved(options.rounds, {name: lambda name=name: run_task(options, name) for name in names})  # type: ignore[misc]
    speeds = {name: [run.per_s for run in group] for name, group in runs.items()}
    return [
        Reading("no-op", "messages/s", speeds["noop"]),
        Reading("20 % fail once", "messages/s", speeds["failing"]),
        Reading("20 % fail twice and die", "messages/s", speeds["dying"]),
        ratio("20 % fail once / no-op", speeds["failing"], speeds["noop"], "≥ 0.5"),
        ratio("20 % fail twice / no-op", speeds["dying"], speeds["noop"]),
        *_costs("20 % fail once", runs["failing"]),
        Reading("faults with all evidence", "faults", [run.faults for run in (*runs["failing"], *runs["dying"])]),
    ]


def idempotency(options: Options) -> list[Reading]:
    """No-op messages, each with an idempotency key of its own, beside the same without."""
    names = ("noop", "keyed")
    runs = interleaved(options.rounds, {name: lambda name=name: run_task(options, name) for name in names})  # type: ignore[misc]
    speeds = {name: [run.per_s for run in group] for name, group in runs.items()}
    return [
        Reading("no-op", "messages/s", speeds["noop"]),
        Reading("with a key each", "messages/s", speeds["keyed"]),
        ratio("with keys / without", speeds["keyed"], speeds["noop"], "≥ 0.4"),
        *_costs("no-op", runs["noop"]),
        *_costs("with a key each", runs["keyed"]),
    ]


def run_floor(options: Options) -> float:
    place = fresh(options, "floor")
    floors.make(place.url, options.messages)
    with Child(place.folder, "floor", place.url, CONCURRENCY, place.folder / "floor.records") as child:
        child.await_records(options.messages)
        need_all_once(child.read(), options.messages)
        return rate(child.read(), options.messages)


def run_task(options: Options, task: str) -> Run:
    """Enqueue, then start the worker, wait for every message's end, and look at what the store kept."""
    place = fresh(options, task)
    evidence = place.folder / "evidence.json"
    fill(place.url, task, options.messages)
    doomed = 0 if task in ("noop", "keyed") else len(range(0, options.messages, FAIL_EVERY))
    with worker(place, evidence=evidence) as child:
        cost = cost_of_all(child, place, options.messages + doomed)
        child.stop()
        records = child.read()
    need_all_once(records, options.messages)
    found: Mapping[int, Sequence[Fault]] = {}
    if task == "failing":
        found = msgspec.json.decode(evidence.read_bytes(), type=dict[int, list[Fault]])
    elif task == "dying":
        found = dead_faults(place.url)
    need_evidence(found, doomed, 2 if task == "dying" else 1)
    faults = sum(map(len, found.values()))
    worker_us, server_us = (s / options.messages * 1e6 for s in (cost.worker_s, cost.server_s))
    return Run(rate(records, options.messages), worker_us, server_us, faults)


def dead_faults(url: str) -> dict[int, tuple[Fault, ...]]:
    """The fault history of every dead message, read by this process once the worker is gone."""
    app = make_app(url)
    found: dict[int, tuple[Fault, ...]] = {}
    cursor = None
    while True:
        page = app.store.peek(Lane.DEAD, limit=1000, cursor=cursor)
        found |= {msgspec.json.decode(m.body)["i"]: m.faults for m in page.messages}
        cursor = page.cursor
        if cursor is None:
            app.store.close()
            return found


def need_evidence(found: Mapping[int, Sequence[Fault]], messages: int, faults_each: int) -> None:
    """Raise unless each message has all its faults, and each fault its type, text, bounded traceback, fingerprint."""
    if len(found) != messages:
        raise Broken(f"{messages} messages failed, but the store kept faults of {len(found)}")
    for index, faults in found.items():
        if len(faults) != faults_each:
            raise Broken(f"message {index} failed {faults_each} times, but the store kept {len(faults)} faults")
        for number, fault in enumerate(faults, 1):
            if not _complete(fault, index, number):
                raise Broken(f"message {index}: its fault {number} is not what was raised: {fault}")
    prints = {fault.fingerprint for faults in found.values() for fault in faults}
    if found and len(prints) != 1:
        raise Broken(f"one failure, but {len(prints)} fingerprints: {sorted(prints)[:5]}")


def _complete(fault: Fault, index: int, number: int) -> bool:
    return (
        fault.error.endswith(".Boom")
        and fault.text == f"message {index} fails"
        and fault.attempt == number
        and fault.at_ms > 0
        and re.fullmatch("[0-9a-f]{16}", fault.fingerprint) is not None
        and "raise Boom" in fault.traceback
        and len(fault.traceback) <= TRACEBACK_MAX
    )
