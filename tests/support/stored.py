"""Stores that an earlier version wrote, opened by this one: the files of tests/data/stored-COMMIT, made by
scripts/stored_fixtures, and the app that worked on them.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import tarfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import redis
from tests.support.servers import PostgresServer, RedisServer

from redrive import (
    Aimd,
    App,
    AutoRedrive,
    Backoff,
    Breaker,
    Budget,
    Context,
    Idempotency,
    Keys,
    Retry,
)
from redrive.files import boot_id
from redrive.message import Counts, Filter, Message
from redrive.presence import Knowledge, waiting_tasks
from redrive.store import Store
from redrive.stores.postgres.store import PostgresStore
from redrive.stores.redis.store import RedisStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.triage.pauses import paused_by
from redrive.triage.redrive.records import recent_plans

FILES = Path(__file__).parents[1] / "data" / "stored-e314369c"
NAME = "stored_earlier"  # of the schema and the namespace that were saved
PATIENCE_S = 30.0
BOOT_AT = 8  # of a file of slots, behind its magic: which start of which machine it was written in
OF_A_MOMENT = {"now_ms", "names", "oldest_age_s", "budget_left", "cool_s", "found_ms", "next_ms", "carried_by", "per_s"}
KEYS = Keys({"first": bytes(range(32))})
HISTORIES: dict[str, dict[str, Any]] = {
    "all": {},
    "kills": {"task": "kills"},
    "charges": {"queue": "charges", "step": "1m"},
}
UNREAD_OF_A_FAULT = {"held_ms"}
LONG = Retry(max_attempts=8, backoff=Backoff.fixed("30s"))


@cache
def files(engine: str) -> dict[str, bytes]:
    """What was saved of an engine: `manifest.json`, `data`, and `state/…`, which workers had beside the store."""
    content = gzip.decompress((FILES / f"{engine}.tar.gz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        opened = {member.name: tar.extractfile(member) for member in tar}
        return {name: file.read() for name, file in opened.items() if file is not None}


def _written_here(slots: bytes) -> bytes:
    """What a worker had noted, as if it had run on this machine since it started: leases of before run out by
    themselves, and the clock of these stores stands."""
    return slots[:BOOT_AT] + boot_id().encode() + slots[BOOT_AT + len(boot_id()) :]


class Clock:
    """Stands where the saved store's clock stood, until it is put forward or goes on with the machine's."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._since_ms: int | None = None

    def __call__(self) -> int:
        return self._now_ms + (0 if self._since_ms is None else self._machine_ms() - self._since_ms)

    def go(self) -> None:
        """Go on with the machine's."""
        self._since_ms = self._machine_ms()

    def advance(self, seconds: float) -> None:
        self._now_ms += int(seconds * 1000)

    @staticmethod
    def _machine_ms() -> int:
        return time.monotonic_ns() // 1_000_000


class Stored:
    """A saved store, loaded and opened. `names` are ids by what they are there for, `known` is what the version before
    read; `ran` are the arguments that each task was called with, in their order, and `found` what else handlers saw.
    """

    def __init__(self, engine: str, store: Callable[[Clock], Store]) -> None:
        self.known: dict[str, Any] = json.loads(files(engine)["manifest.json"])
        self.names: dict[str, Any] = self.known["names"]
        self.clock = Clock(self.known["now_ms"])
        self.store = store(self.clock)
        if self.store.state_dir is not None:
            self.store.state_dir.mkdir(parents=True, exist_ok=True)
            for name, content in files(engine).items():
                if name.startswith("state/"):
                    beside = self.store.state_dir / name.removeprefix("state/")
                    beside.write_bytes(_written_here(content) if beside.suffix == ".slots" else content)
        self.ran: dict[str, list[int]] = defaultdict(list)
        self.found: dict[str, Any] = {}
        self.app = self._app()

    def message(self, name: str) -> Message | None:
        """The message, or the first of those, that was saved by this name."""
        ids = self.names[name]
        return self.app.store.find([ids if isinstance(ids, str) else ids[0]])[0]

    def numbers(self, name: str) -> list[int]:
        """The arguments of the messages that were saved by this name."""
        ids = self.names[name]
        bodies = [self.known["messages"][id]["body"] for id in ([ids] if isinstance(ids, str) else ids)]
        return sorted(msgspec.json.decode(msgspec.convert(body, bytes))["n"] for body in bodies)

    def work(self, *queues: str) -> None:
        """Work what is due in these queues, one after another, until nothing is leased either."""
        self.app.run_worker(queues, burst=True, concurrency=1)

    def work_until(self, over: Callable[[], bool], *queues: str, concurrency: int = 10) -> None:
        """Work these queues until it is so."""
        asyncio.run(self._work_until(over, queues, concurrency))

    async def _work_until(self, over: Callable[[], bool], queues: Sequence[str], concurrency: int) -> None:
        end_s = time.monotonic() + PATIENCE_S
        async with self.app.worker(queues, concurrency=concurrency):
            while not over():
                assert time.monotonic() < end_s, f"not over: {self.app.store.counts_by_queue()}"
                await asyncio.sleep(0.02)

    def _app(self) -> App:
        """As the version before declared it; but nothing fails any more."""
        app, ran = App(store=self.store), self.ran
        app.dependency("mail", breaker=Breaker(min_calls=4, open_for="60s"))
        app.dependency("maps", breaker=Breaker())
        app.dependency("api", rate="2/s", concurrency=Aimd())
        app.dependency("sms", budget=Budget.fixed(2, per="1d"), breaker=None)
        app.queue("steps", group_order="strict", on_dead="block")
        app.queue("turns", group_width=2)
        app.queue("auto", auto_redrive=AutoRedrive(base="10m"))

        def declare(name: str, queue: str, **how: Any) -> None:
            def handler(ctx: Context, n: int) -> int:
                ran[name].append(n)
                if ctx.message.group is not None:
                    ran[f"{name} {ctx.message.group}"].append(n)
                if ctx.progress is not None:
                    self.found[f"progress of {name} {n}"] = ctx.progress
                return n

            app.task(name=name, queue=queue, ctx=True, **{"retry": LONG, **how})(handler)

        once = Retry(max_attempts=1)
        declare("work", "work", keep_result="365d")
        declare("step", "steps")
        declare("mail", "mail", dependency="mail")
        declare("look-up", "maps", dependency="maps")
        declare("call", "api", dependency="api")
        declare("sms", "sms", dependency="sms", retry=Retry(max_attempts=8, backoff=Backoff.fixed("10ms")))
        declare("load", "charges")
        declare("kills", "kills")
        declare("again", "redriven", retry=once)
        declare("fails", "auto", retry=once)

        key = Idempotency(key=lambda order, cents: f"charge-{order}", keep="365d")

        @app.task(name="charge", queue="charges", keep_result="365d", retry=LONG, idempotency=key)
        def charge(order: int, cents: int) -> dict[str, int]:
            ran["charge"].append(order)
            return {"receipt": 2000 + order}

        work = app.tasks["work"]
        app.periodic(every="2s", name="pulse", queue="ticks", args=(0,))(work)
        app.periodic("0 3 * * *", tz="Europe/Berlin", name="nightly", queue="ticks", args=(0,))(work)
        app.periodic(every="2s", name="quiet", queue="ticks", args=(0,))(work)
        return app


def closed_app(store: Store, ran: list[int]) -> App:
    """An app that has the key of what is encrypted."""
    app = App(store=store, encrypt=KEYS)

    @app.task(name="closed", queue="closed")
    def closed(n: int) -> None:
        ran.append(n)

    return app


def load_sqlite(path: Path) -> Callable[[Clock], Store]:
    path.write_bytes(files("sqlite")["data"])
    return lambda clock: SqliteStore(path, clock_ms=clock)


def load_postgres(server: PostgresServer, schema: str) -> Callable[[Clock], Store]:
    sql = files("postgres")["data"].replace(NAME.encode(), schema.encode())
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(sql)
    return lambda clock: PostgresStore(f"{server.url}?schema={schema}", clock_ms=clock)


def load_redis(server: RedisServer, namespace: str) -> Callable[[Clock], Store]:
    commands = msgspec.msgpack.decode(files("redis")["data"], type=list[list[bytes]])
    with redis.Redis.from_url(server.url) as client:
        for word, key, *words in commands:
            client.execute_command(word, key.replace(NAME.encode(), namespace.encode()), *words)
    return lambda clock: RedisStore(f"{server.url}?namespace={namespace}", clock_ms=clock)


def as_before(counts: Counts) -> Counts:
    """The counts as releases before knew them: messages in line in their group were called scheduled."""
    return msgspec.structs.replace(counts, scheduled=counts.scheduled + counts.parked, parked=0)


def read(app: App, planned: str) -> dict[str, Any]:
    """What this version reads of all that the manifest tells of."""
    store, dlq = app.store, app.dlq
    runs = [view.id for view in dlq.runs()]
    plans = [planned, *runs]
    found = {
        "messages": {message.id: message for message in messages(store)},
        "counts": {name: as_before(counts) for name, counts in store.counts_by_queue().items()},
        "paused": sorted(store.paused()),
        "groups": {queue: store.groups(queue) for queue in ("steps", "turns")},
        "failure_groups": [msgspec.structs.replace(group, sample_id="") for group in dlq.groups()],
        "annotations": dlq.annotations(["fa" * 8, "fb" * 8]),
        "rules": dlq.rules(),
        "plans": {id: dlq.plan(id).plan for id in plans},
        "frozen": {id: [handle[:3] for handle in dlq.plan(id).handles()] for id in plans},
        "runs": {view.id: view for view in dlq.runs()},
        "stories": {id: dlq.run(id).story() for id in runs},
        "failures": {id: dlq.run(id).failures() for id in runs},
        "autos": dlq.auto(),
        "recent_plans": recent_plans(store.cells),
        "pauses": paused_by(store, ["paused"]),
        "mutes": app.alerts.list(),
        "audit": list(app.audit),
        "audit_head": app.audit.verify().head,
        "workers": app.workers(),
        "waits": waiting_tasks(store),
        "known_ms": _known_ms(store),
        "history": {name: app.history(**of).points for name, of in HISTORIES.items()},
        "schedules": {name: schedule.state for name, schedule in app.schedules.items()},
        "flow": {name: app.flow.show(name) for name in ("api", "mail", "maps", "sms")},
    }
    built: dict[str, Any] = json.loads(msgspec.json.encode(found))
    return built


def _known_ms(store: Store) -> int | None:
    """When a worker was last alive that knows a task."""
    knowledge = Knowledge(store)
    knowledge.read()
    return knowledge.known_ms("charges", "charge", 1, ["order", "cents"])


def messages(store: Store, queue: str | None = None) -> list[Message]:
    """All of them, by their ids."""
    found, cursor = list[Message](), None
    while True:
        page = store.peek(None, where=Filter(queue=queue), limit=500, cursor=cursor)
        found += page.messages
        if (cursor := page.cursor) is None:
            return sorted(found, key=lambda message: message.id)


def as_known(now: Any, then: Any) -> Any:
    """What is read now, without the fields that the version before did not have."""
    if isinstance(now, dict) and isinstance(then, dict):
        return {name: as_known(value, then.get(name)) for name, value in now.items() if name in then}
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [as_known(*pair) for pair in zip(now, then, strict=True)]
    return now


def lasting(value: Any) -> Any:
    """Without what changes from one look to the next, and what no version after it reads."""
    if isinstance(value, dict):
        without = OF_A_MOMENT | UNREAD_OF_A_FAULT if "fingerprint" in value and "kind" in value else OF_A_MOMENT
        return {name: lasting(each) for name, each in value.items() if name not in without}
    return [lasting(each) for each in value] if isinstance(value, list) else value
