"""What a healthy tenant feels of 300 sick ones among 5,000: a dependency that is split by tenant, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path

from redrive import App, Backoff, Retry
from redrive.flow.breaker_rule import Breaker

from .harness import Broken, Child, Options, Reading, await_records, fresh, interleaved, percentile, ratio
from .tasks import Records

TENANTS, WORKERS, CONCURRENCY, WIDTH = 5_000, 2, 100, 50
PER_S, STEP_S, LAST_S = 500, 0.05, 20.0
HEAVY, HEAVY_SHARE = "tenant-0", 0.4
DOWN, SLOW, GONE = 3, 2, 1  # of a hundred: they refuse, answer after SLOW_S, or never answer
SLOW_S, TIMEOUT_S = 1.0, 2.0
WANTED = "≤ 2"


def make_app(url: str, ask: Callable[[str], Awaitable[None]] | None = None, add: Records | None = None) -> App:
    """`call` asks the endpoint for its tenant. The records are of the healthy heavy tenant."""
    app = App(url)
    app.queue("default", concurrency=CONCURRENCY, group_width=WIDTH)
    app.dependency("crm", per="group", breaker=Breaker(min_calls=2, open_for="2s"))

    @app.task(name="call", dependency="crm", timeout=TIMEOUT_S, retry=Retry(6, backoff=Backoff(base="200ms")))
    async def call(i: int, tenant: str) -> None:
        assert add is not None and ask is not None
        if tenant == HEAVY:
            add.add(i)
        await ask(tenant)

    return app


class Client:
    """Many calls at once on one connection to the endpoint, which answers each by its number."""

    def __init__(self, port: int) -> None:
        self._port, self._numbers, self._calls = port, count(), dict[int, asyncio.Future[str]]()
        self._opening: asyncio.Task[asyncio.StreamWriter] | None = None

    async def call(self, tenant: str) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        writer, number = await self._opening, next(self._numbers)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            writer.write(f"{number} {tenant}\n".encode())
            if await answer != "ok":
                raise ConnectionError(f"503 of {tenant}")
        finally:
            del self._calls[number]

    async def _open(self) -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._reading = asyncio.create_task(self._read(reader))
        return writer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        async for line in reader:
            number, word = line.decode().split()
            if (answer := self._calls.get(int(number))) is not None and not answer.done():
                answer.set_result(word)


def tenants_endpoint(sick: str, port: str, records: str) -> None:
    """Answers each tenant by how it is; with `sick` "no" all are healthy. `port`: a file."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        async for line in reader:
            number, tenant = line.decode().split()
            word = "well" if sick == "no" else health(int(tenant.removeprefix("tenant-")))
            if word == "slow":
                loop.call_later(SLOW_S, writer.write, f"{number} ok\n".encode())
            elif word != "gone":
                writer.write(f"{number} {'no' if word == 'down' else 'ok'}\n".encode())

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        Path(port).write_text(str(server.sockets[0].getsockname()[1]))
        Records(Path(records))  # its file says that the port can be read
        await server.serve_forever()

    asyncio.run(serve())


def tenants_worker(url: str, port: str, records: str) -> None:
    """A worker of that app until SIGTERM."""
    make_app(url, Client(int(port)).call, Records(Path(records))).run_worker()


def health(tenant: int) -> str:
    """How a tenant's endpoint is; the heavy one's is well."""
    place = (tenant - 1) % 100
    if tenant == 0 or place >= DOWN + SLOW + GONE:
        return "well"
    return "down" if place < DOWN else "slow" if place < DOWN + SLOW else "gone"


def tenants(options: Options) -> list[Reading]:
    """The waits of a healthy tenant with 40 % of the traffic, with 6 of 100 other tenants down, slow or gone, and with
    all well."""
    found = interleaved(options.rounds, {word: partial(_waits_ms, options, word) for word in ("no", "yes")})
    readings = []
    for of, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        well, sick = ([percentile(waits, share) for waits in found[word]] for word in ("no", "yes"))
        readings += [
            Reading(f"{of} wait of the heavy tenant, all well", "ms", well),
            Reading(f"{of} wait beside the sick ones", "ms", sick),
            ratio(f"{of} beside sick / all well", sick, well, WANTED if of == "p95" else None),
        ]
    return readings


def _waits_ms(options: Options, sick: str) -> list[float]:
    place = fresh(options, f"tenants-{sick}")
    with contextlib.ExitStack() as stack:
        port = place.folder / "port"
        endpoint = Child(place.folder, "tenants_endpoint", sick, port, place.folder / "tenants_endpoint.records")
        stack.enter_context(endpoint).await_records(0)
        children = []
        for number in range(WORKERS):
            folder = place.folder / f"worker-{number}"
            folder.mkdir()
            arguments = place.url, port.read_text(), folder / "tenants_worker.records"
            children.append(stack.enter_context(Child(folder, "tenants_worker", *arguments)))
        for child in children:
            child.rest()
        put_s = _put(place.url)
        heavy = [i for i in put_s if _tenant(i) == HEAVY]
        await_records(children, len(heavy))
        for child in children:
            child.stop()
    records = [record for child in children for record in child.read()]
    if sorted(i for i, _ in records) != heavy:
        raise Broken(f"{len(heavy)} messages of the heavy tenant, {len(records)} runs")
    return [(at_s - put_s[i]) * 1000 for i, at_s in records]


def _tenant(i: int) -> str:
    """The heavy one in two of five; the others in turn."""
    of_five = i % 5
    return HEAVY if of_five < 5 * HEAVY_SHARE else f"tenant-{1 + (i // 5 * 3 + of_five - 2) % (TENANTS - 1)}"


def _put(url: str) -> dict[int, float]:
    """Enqueue at a steady rate; when each message was put."""
    app = make_app(url)
    call, put_s, start_s = app.tasks["call"], dict[int, float](), time.monotonic()
    for step in range(round(LAST_S / STEP_S)):
        time.sleep(max(0.0, start_s + step * STEP_S - time.monotonic()))
        batch = range(len(put_s), round((step + 1) * STEP_S * PER_S))
        at_s = time.time()
        app.enqueue_many([call.using(group=_tenant(i)).draft(i, _tenant(i)) for i in batch])
        put_s |= dict.fromkeys(batch, at_s)
    app.store.close()
    return put_s
