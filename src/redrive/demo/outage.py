"""Run the same outage twice at once, with a circuit breaker and without, each against its own endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import as_file, files
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec import Struct

from ..deliver import Pacer, read_secret
from ..deliver.sending import Poster, UrlTarget, delivery_app, new_client
from ..duration import show
from ..events import DeliveryEvent, Event
from ..flow.breaker import Breaker
from ..ids import new_id
from ..message import Draft
from ..observe.logs import JsonLog
from ..policy import Backoff, Retry
from ..run_context import Context
from ..store import Store
from ..stores import open_store
from ..triage.dlq import DeadLetters
from ..triage.redrive.records import FINAL
from ..triage.redrive.run import Run
from .endpoint import EndpointLine
from .ledger import ProofVerdict, SentEvent, lines
from .plan import DATA, one_outage
from .processes import SECRET, TIMEOUT_S, DemoFailed, EndpointProcess, proved
from .view import Report

QUEUE = "outage"
ARRIVALS_PER_S = 50
CONCURRENCY = 16
LOOK_S = 0.1
LIMIT_S = 90.0
#: Six attempts take about three seconds, less than the outage: without a breaker, messages die in it.
POLICY = Retry(max_attempts=6, max_elapsed=None, backoff=Backoff("150ms", 2, "1500ms", "equal"))
BREAKER = Breaker(window="1s", open_for="1s", max_open="1500ms", probes=32, probe_lease="5s")
REDRIVE_RATE = "40/s"


class SentRequest(Struct, frozen=True, array_like=True):
    """A request. `redriven`: its message had been dead before."""

    at_ms: int
    redriven: bool


class Side(Struct, frozen=True, kw_only=True):
    """The result of one of the two runs. Times are in ms since the first request."""

    breaker: bool
    outage_ms: tuple[int, int]
    in_outage: int  # number of requests while the endpoint did not listen
    died: int
    requests: list[SentRequest]
    deaths_ms: list[int]
    took_s: float
    verdict: ProofVerdict


class OneRun:
    """One of the two runs: its store, its log, and the events that it sends to an endpoint of its own."""

    def __init__(self, folder: Path, breaker: Breaker | None, stack: contextlib.ExitStack) -> None:
        self.name = "without" if breaker is None else "with"
        self.requests: list[SentRequest] = []
        self.deaths_ms: dict[str, int] = {}  # the first death of each message that died
        self._breaker = breaker
        self._log, self._sent, self._fates = (
            folder / f"{self.name}-{what}.jsonl" for what in ("endpoint", "sent", "fates")
        )
        self._url = f"sqlite:///{quote(str(folder / f'{self.name}.db'))}"
        self._endpoint = EndpointProcess(self._log, "--one-outage")
        stack.callback(self._endpoint.end)

    def side(self) -> Side:
        """Return the result of this run, with its ledger proved by another process."""
        began_ms = self.requests[0].at_ms
        begin_ms, end_ms = (seen.at_ms for seen in lines(self._log, EndpointLine) if seen.answer.startswith("outage"))
        return Side(
            breaker=self._breaker is not None,
            outage_ms=(begin_ms - began_ms, end_ms - began_ms),
            in_outage=sum(begin_ms <= request.at_ms < end_ms for request in self.requests),
            died=len(self.deaths_ms),
            requests=[SentRequest(r.at_ms - began_ms, r.redriven) for r in self.requests],
            deaths_ms=[at_ms - began_ms for at_ms in self.deaths_ms.values()],
            took_s=round((self.requests[-1].at_ms - began_ms) / 1000, 1),
            verdict=proved(self._url, self._log, self._sent, self._fates, QUEUE),
        )

    def wait(self) -> None:
        """Wait until the run's endpoint listens."""
        self._endpoint.wait()
        url = f"http://127.0.0.1:{self._endpoint.port}/webhooks"
        self._target = UrlTarget(url=url, keys=(read_secret(SECRET),), timeout_s=TIMEOUT_S)

    async def work(self) -> None:
        """Enqueue the events as they arrive, send them, then redrive the dead ones. Raises TimeoutError."""
        store = open_store(self._url)
        try:
            with self._fates.open("w") as fates:
                async with new_client(self._target, CONCURRENCY) as client, asyncio.timeout(LIMIT_S):
                    poster = Timed(client, self._target, self.requests)
                    app = delivery_app(store, QUEUE, poster, POLICY, self._target.timeout_s, self._breaker)
                    app.subscribe(JsonLog(fates))
                    app.subscribe(self._observe)
                    async with app.worker({QUEUE: CONCURRENCY}, grace=2.0, name=QUEUE):
                        await self._arrive(store, app.tasks[next(iter(app.tasks))].name)
                        await self._wait(store)
                        while (await asyncio.to_thread(store.counts, QUEUE)).dead:
                            await self._wait(store, await asyncio.to_thread(_redrive, store))
        finally:
            store.close()

    async def _arrive(self, store: Store, task: str) -> None:
        began_s = time.monotonic()
        with self._sent.open("wb") as sent:
            for n, (event, body) in enumerate(_events()):
                await asyncio.sleep(max(0.0, began_s + n / ARRIVALS_PER_S - time.monotonic()))
                draft = Draft(id=new_id(store.now_ms()), task=task, queue=QUEUE, body=body)
                sent.write(msgspec.json.encode(SentEvent(draft.id or "", event)) + b"\n")
                await asyncio.to_thread(store.put, [draft])

    async def _wait(self, store: Store, run: Run | None = None) -> None:
        """Wait until no message waits or runs, and the redrive run, if given, has ended."""
        while True:
            counts = await asyncio.to_thread(store.counts, QUEUE)
            over = run is None or await asyncio.to_thread(lambda: run.state) in FINAL
            if over and not counts.waiting + counts.leased:
                return
            await asyncio.sleep(LOOK_S)

    def _observe(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, DeliveryEvent) and event.outcome == "dead":
                self.deaths_ms.setdefault(event.id, event.at_ms)


class Timed(Poster):
    """A poster that records the time of each request."""

    def __init__(self, client: object, target: UrlTarget, requests: list[SentRequest]) -> None:
        super().__init__(client, target, Pacer(None))  # type: ignore[arg-type]
        self._times = requests

    async def post(self, ctx: Context, body: bytes) -> None:
        self._times.append(SentRequest(time.time_ns() // 1_000_000, ctx.message.redrives > 0))
        await super().post(ctx, body)


def _events() -> list[tuple[str, bytes]]:
    decode = msgspec.json.Decoder(dict[str, object]).decode
    with as_file(files(__package__) / DATA) as path, gzip.open(path) as file:
        bodies = [line.rstrip(b"\n") for line in file]
    return [(str(decode(body)["id"]), body) for body in bodies]


def _redrive(store: Store) -> Run:
    plan = DeadLetters(store).select(f"queue:{QUEUE}").plan(rate=REDRIVE_RATE, canary=0, slow_start=False)
    return plan.start(reason="the endpoint is back", actor="demo")


async def _run_both(runs: Sequence[OneRun], report: Report) -> None:
    """Work both runs at the same time, and print a line each second. Raises DemoFailed."""
    both, began_s = asyncio.gather(*(run.work() for run in runs)), time.monotonic()
    try:
        for second in itertools.count(1):
            done, _ = await asyncio.wait([both], timeout=began_s + second - time.monotonic())
            if done:
                break
            said = (f"{run.name} {len(run.requests):>5,} requests, {len(run.deaths_ms):>3} dead" for run in runs)
            report.say(f"{second:4d} s   {'      '.join(said)}")
        await both
    except TimeoutError:
        raise DemoFailed(f"the outage took longer than {LIMIT_S:g} s; is this machine very busy?") from None


def show_outage(folder: Path, report: Report) -> tuple[Side, Side]:
    """Run the outage with and without a breaker, print both side by side, and prove that neither lost an event."""
    plan = one_outage()
    report.heading("The same outage, without a circuit breaker and with one")
    report.say(
        f"{len(_events())} events arrive at {ARRIVALS_PER_S} a second, at two endpoints. After request "
        f"{plan.outage_after} nothing listens for {plan.outage_s:g} s."
    )
    b = POLICY.backoff
    report.say(
        f"Policy: {POLICY.max_attempts} attempts; delays double from {show(b.base)} to {show(b.cap)}, half drawn."
    )
    report.say(f'$ app.dependency("endpoint", breaker=Breaker({_options(BREAKER)}))', "cyan")
    with contextlib.ExitStack() as stack:
        runs = [OneRun(folder, breaker, stack) for breaker in (None, BREAKER)]
        for run in runs:  # both endpoints were started by then
            run.wait()
        asyncio.run(_run_both(runs, report))
        with ThreadPoolExecutor(len(runs)) as pool:
            sides = list(pool.map(OneRun.side, runs))
    without, with_breaker = sides
    report.space()
    rows = [
        (f"{without.in_outage:,}", f"{with_breaker.in_outage:,}", "requests while nothing listened"),
        (f"{without.died:,}", f"{with_breaker.died:,}", f"events died, and were redriven at {REDRIVE_RATE} afterwards"),
        (f"{without.verdict.delivered:,}", f"{with_breaker.verdict.delivered:,}", "events were accepted in the end"),
    ]
    report.compare(rows, [side.verdict for side in sides])
    return without, with_breaker


def _options(breaker: Breaker) -> str:
    """Return the options of a breaker that differ from the defaults, as code."""
    usual = Breaker()
    given = {name: getattr(breaker, name) for name in ("window", "open_for", "max_open", "probes", "probe_lease")}
    changed = {name: value for name, value in given.items() if value != getattr(usual, name)}
    return ", ".join(f"{name}={value if name == 'probes' else repr(show(value))}" for name, value in changed.items())
