"""Ten scenarios that are simulated and also played for real: an endpoint on loopback, worker processes, SQLite.

`python -m tests.support.simulation.truths NAME URL PORT` is one of the worker processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from redrive import Aimd, App, Backoff, Breaker, Budget, Context, Retry
from redrive.decide import Policy
from redrive.fault import Fault
from redrive.flow.dependency import Dependency
from redrive.message import ClaimRequest, DeadLetter, Draft, Message, Settlement
from redrive.simulate import FleetSize, LoadPhase, ModelService, PlannedRedrive, Scenario, ServicePhase, Simulated
from redrive.simulate.past import with_setting
from redrive.simulate.service import ServiceModel
from redrive.simulate.world import QUEUE, TASK
from redrive.triage.redrive.options import read_settings

PATIENCE_S = 240.0


def policy(attempts: int, backoff: Backoff) -> Policy:
    return Policy(Retry(max_attempts=attempts, max_elapsed=None, backoff=backoff))


PATIENT = policy(50, Backoff("1s", 2, "5s"))
GUARDED = Dependency("d", budget=Budget(), breaker=Breaker())
OPEN = Dependency("d")
LOAD = (LoadPhase(0, 40, 60),)

SCENARIOS: dict[str, Scenario] = {
    "redrive": Scenario(
        redrive=PlannedRedrive(total=900, settings=read_settings(rate="50/s")),
        policy=PATIENT, dependency=GUARDED, service=ModelService(latency_ms=30),
    ),
    "429 with Retry-After": Scenario(
        load=LOAD, policy=PATIENT, dependency=OPEN,
        service=ModelService(latency_ms=30, phases=(ServicePhase(10, 14, 1.0, "throttled", 5.0),)),
    ),
    "outage of 30 s": Scenario(
        load=(LoadPhase(0, 60, 60),), policy=PATIENT, dependency=Dependency("d", budget=Budget()),
        service=ModelService(latency_ms=30, phases=(ServicePhase(10, 40, 1.0),)),
    ),
    "outage of 30 s, with a breaker": Scenario(
        load=(LoadPhase(0, 60, 60),), policy=PATIENT, dependency=GUARDED,
        service=ModelService(latency_ms=30, phases=(ServicePhase(10, 40, 1.0),)),
    ),
    "brown-out of 40 %": Scenario(
        load=LOAD, policy=policy(3, Backoff("1s", 2, "5s")), dependency=OPEN,
        service=ModelService(latency_ms=30, phases=(ServicePhase(10, 30, 0.4),)),
    ),
    "weak dependency": Scenario(
        redrive=PlannedRedrive(total=900, settings=read_settings(
            rate="60/s", slow_start=False, canary=0, stop_if="never")),
        policy=policy(60, Backoff("1s", 2, "5s")), dependency=OPEN,
        service=ModelService(latency_ms=30, capacity=24),
    ),
    "wave of retries": Scenario(
        load=LOAD, policy=policy(20, Backoff("3s", 1, "3s", jitter="none")), dependency=OPEN,
        service=ModelService(latency_ms=30, phases=(ServicePhase(10, 20, 1.0),)),
    ),
    "breaker closing": Scenario(
        load=(LoadPhase(0, 50, 60),), policy=PATIENT, dependency=Dependency("d", breaker=Breaker(open_for="3s")),
        service=ModelService(latency_ms=30, phases=(ServicePhase(10, 25, 1.0),)),
    ),
    "slow dependency": Scenario(
        load=LOAD, policy=PATIENT, dependency=OPEN, fleet=FleetSize(2, 10),
        service=ModelService(latency_ms=60, phases=(ServicePhase(10, 25, latency_ms=700),)),
    ),
    "messages that always fail": Scenario(
        redrive=PlannedRedrive(total=900, settings=read_settings(rate="50/s", canary=0, slow_start=False, attempts=2,
                                                         stop_if="never")),
        policy=PATIENT, dependency=OPEN, service=ModelService(latency_ms=30, poison=0.12),
    ),
    "redrive that stops itself": Scenario(
        redrive=PlannedRedrive(total=900, settings=read_settings(rate="50/s", canary=0, slow_start=False, attempts=1)),
        policy=PATIENT, dependency=OPEN, service=ModelService(latency_ms=30, phases=(ServicePhase(8, 200, 1.0),)),
    ),
    "adaptive concurrency": Scenario(
        load=LOAD, policy=PATIENT, dependency=Dependency("d", concurrency=Aimd(start=4, most=20)),
        service=ModelService(latency_ms=80),
    ),
}  # fmt: skip


#: An outage of two of four minutes, to be recorded by the history of a store and replayed.
RECORDED = "an outage to replay"
PLAYED = SCENARIOS | {
    RECORDED: Scenario(
        load=(LoadPhase(0, 235, 15),), policy=policy(12, Backoff("2s", 2, "20s")), dependency=OPEN,
        service=ModelService(latency_ms=30, phases=(ServicePhase(60, 180, 1.0),)),
    ),
}  # fmt: skip
#: An outage of one of three minutes, whole minutes as the history keeps them; and the same with one more setting each.
_MINUTE = Scenario(
    load=(LoadPhase(0, 178, 6),), policy=policy(5, Backoff("2s", 2, "20s")), dependency=OPEN,
    service=ModelService(latency_ms=30, phases=(ServicePhase(60, 120, 1.0),)),
)  # fmt: skip
CUT_S = 180.0  # they are watched for so long; with a budget, messages still wait then
REPLAYED = {"without change": "", "with a breaker": "breaker=on", "with a budget": "budget=0.1"}
PLAYED |= {name: with_setting(_MINUTE, setting) if setting else _MINUTE for name, setting in REPLAYED.items()}
PLAYED["scored"] = Scenario(policy=PATIENT, dependency=GUARDED)
ALIGNED = {"outage of 30 s, with a breaker", "breaker closing"}  # whose openings last as long as chance says
#: Seconds by which a forecast may be moved: of 40 seeds of an outage of 30 s with a breaker, the earliest and the
#: latest drain 19 s apart. With 6 s, one of the 40 was 141 % off the mean of nine others, by chance alone. The bound on
#: the time to drained tells how late a forecast is.
REACH_S = 20


class Real(NamedTuple):
    """What came of a scenario that was played for real, in seconds since its start."""

    calls: list[int]
    dead: Counter[str]
    drained_s: float
    over_s: float | None
    stopped: str


class Refused(Exception):
    def __init__(self, kind: str, retry_after_s: float | None) -> None:
        status = {"throttled": 429, "permanent": 400}.get(kind, 503)
        super().__init__(f"HTTP {status}")
        headers = {} if retry_after_s is None else {"retry-after": f"{retry_after_s:g}"}
        self.response = SimpleNamespace(status_code=status, headers=headers)


def make_app(scenario: Scenario, url: str, port: int) -> App:
    app = App(url)
    d = scenario.dependency
    assert d is not None
    app.dependency(d.name, budget=d.budget, breaker=d.breaker, concurrency=d.concurrency, rate=d.rate)
    app.queue(QUEUE, concurrency=scenario.fleet.concurrency)

    @app.task(name=TASK, queue=QUEUE, dependency=d.name, ctx=True, retry=scenario.policy.retry)
    async def call(ctx: Context) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            writer.write(msgspec.json.encode([ctx.message_id, ctx.attempt]) + b"\n")
            line = await reader.readline()
        kind, retry_after_s = msgspec.json.decode(line or b'["transient", null]')
        if kind:
            raise Refused(kind, retry_after_s)

    return app


class Endpoint:
    """The scenario's service, on loopback."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.calls: list[float] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        serving = asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1000)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.begin()

    def begin(self) -> None:
        self.start_s = time.time()
        self._model = ServiceModel(self._scenario.service, int(self.start_s * 1000), self._scenario.seed)

    def serve(self, service: ModelService) -> None:
        """From now on, be another service."""
        self._scenario = replace(self._scenario, service=service)
        self.begin()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            if not (line := await reader.readline()):
                return
            id, attempt = msgspec.json.decode(line)
            now_s = time.time()
            self.calls.append(now_s - self.start_s)
            message = Message(id, TASK, QUEUE, b"", id, attempt=attempt)
            end_ms, fault = self._model.call(message, int(now_s * 1000))
            await asyncio.sleep(end_ms / 1000 - time.time())
            answer: list[Any] = ["", None] if fault is None else [fault.kind.value, fault.retry_after_s]
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            serving = asyncio.all_tasks() - {asyncio.current_task()}
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def play(name: str, folder: Path) -> Real:
    """Play a scenario for real."""
    scenario, url = PLAYED[name], f"sqlite:///{folder}/work.db"
    endpoint = Endpoint(scenario)
    app = make_app(scenario, url, endpoint.port)
    redrive, workers = scenario.redrive, list[subprocess.Popen[bytes]]()
    try:
        if redrive is not None:
            bury(app, redrive.total)
        argv = [
            sys.executable,
            "-m",
            "tests.support.simulation.truths",
            name,
            url,
            str(endpoint.port),
            str(os.getpid()),
        ]
        with (folder / "stderr").open("wb") as stderr:
            for _ in range(scenario.fleet.processes):
                workers.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=stderr))
        _until(lambda: len([w for w in app.workers() if not w.gone]) == len(workers), workers, folder)
        if name in REPLAYED:
            time.sleep(60 - time.time() % 60)
        endpoint.begin()
        run = None
        if redrive is not None:
            settings = _options(redrive)
            run = app.dlq.select("").plan(**settings).start(reason="to see")
            endpoint.begin()
        sent, load = 0, scenario.load
        while load and (at_s := time.time() - endpoint.start_s) < load[-1].until_s:
            due = sum(int((min(at_s, each.until_s) - each.from_s) * each.per_s) for each in load if at_s > each.from_s)
            app.enqueue_many([app.tasks[TASK].draft() for _ in range(due - sent)])
            sent = max(due, sent)
            time.sleep(0.01)
        cut_s = endpoint.start_s + CUT_S if name in REPLAYED else math.inf
        _until(
            lambda: time.time() >= cut_s or (_left(app) == 0 and (run is None or run.state in ("done", "stopped"))),
            workers,
            folder,
        )
        drained_s = math.inf if _left(app) else time.time() - endpoint.start_s
        if name in REPLAYED:
            time.sleep(2)  # the workers' counts reach the history
        view = None if run is None else run.view()
        dead = Counter(message.reason for message in app.dlq.select("redrives:>0" if redrive else ""))
        return Real(
            _by_second(endpoint.calls), dead, drained_s,
            None if view is None else view.over_ms / 1000 - endpoint.start_s,
            view.why if view is not None and view.state == "stopped" else "",
        )  # fmt: skip
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        app.store.close()
        endpoint.close()


def _options(redrive: PlannedRedrive) -> dict[str, Any]:
    s = redrive.settings
    return {
        "rate": f"{s.rate:g}/s", "canary": s.canary, "slow_start": s.slow_start, "stop_if": s.stop_if or "never",
        "attempts": s.attempts, "halve_on_failures": s.halve_on_failures,
    }  # fmt: skip


def bury(app: App, total: int, text: str = "before") -> None:
    app.store.put([Draft(task=TASK, queue=QUEUE) for _ in range(total)])
    dead, fault = DeadLetter("exhausted"), Fault("default", "ValueError", text)
    left = total
    while left:
        claimed = app.store.exchange([], [ClaimRequest(QUEUE, min(left, 100), 3_600_000, worker="w")]).deliveries
        app.store.exchange([Settlement(each.receipt, dead, fault) for each in claimed], [])
        left -= len(claimed)


def _left(app: App) -> int:
    counts = app.counts()
    return counts.ready + counts.scheduled + counts.leased


def _until(condition: Any, workers: list[subprocess.Popen[bytes]], folder: Path) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert all(worker.poll() is None for worker in workers), (folder / "stderr").read_text()
        assert time.monotonic() < end_s, "it did not come"
        time.sleep(0.05)


def _by_second(times: list[float]) -> list[int]:
    counts = Counter(int(at_s) for at_s in times)
    return [counts[second] for second in range(max(counts, default=-1) + 1)]


def error_of_calls(real: Real, forecasts: list[Simulated], *, aligned: bool = False) -> float:
    """The median, over seconds with any call, of the relative error of the calls in a second. The forecast is the mean
    of some seeds; `aligned`: each moved by so many seconds as make it fit best, within REACH_S, since openings of a
    breaker last as long as chance says."""
    series = [_moved(each.calls, _best_shift(each.calls, real.calls) if aligned else 0) for each in forecasts]
    errors = []
    for second in range(max(len(real.calls), *map(len, series))):
        mean, came = sum(_at(calls, second) for calls in series) / len(series), _at(real.calls, second)
        if mean >= 1 or came:
            errors.append(abs(came - mean) / max(mean, 1))
    return sorted(errors)[len(errors) // 2]


def _at(calls: Sequence[int], second: int) -> int:
    return calls[second] if 0 <= second < len(calls) else 0


def _moved(calls: Sequence[int], shift: int) -> list[int]:
    return [_at(calls, second - shift) for second in range(len(calls) + max(0, shift))]


def _best_shift(calls: Sequence[int], real: Sequence[int]) -> int:
    def apart(shift: int) -> int:
        return sum(abs(_at(calls, second - shift) - came) for second, came in enumerate(real))

    return min(range(-REACH_S, REACH_S + 1), key=lambda shift: (apart(shift), abs(shift)))


if __name__ == "__main__":
    from redrive.worker.process import run as work

    name, url, port, parent = sys.argv[1:]

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    work(make_app(PLAYED[name], url, int(port)).worker(grace=1))
