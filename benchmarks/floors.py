"""The least that claims, runs and acknowledges batches on an engine: no retry, timeout, fence, task name or hook.

Each floor is two functions: `make_…` stores jobs, and the other opens the exchange that a loop calls with the keys of
what is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

Exchange = Callable[[Sequence[Any], int], Sequence[tuple[Any, bytes]]]  # (keys done, how many more) -> (key, body)s
LEASE_MS = 30_000
PUT_AT_ONCE = 1000
IDLE_S = 0.005


def make(url: str, count: int) -> None:
    """Store `count` jobs at the floor's own place beside the store that `url` names."""
    bodies = [b'{"i":%d}' % i for i in range(count)]
    _of(url)[0](url, [bodies[at : at + PUT_AT_ONCE] for at in range(0, count, PUT_AT_ONCE)])


def work(url: str, concurrency: int, add: Callable[[int], None]) -> None:
    """Run them for ever, a batch of `concurrency` at a time."""

    async def handle(body: bytes) -> None:
        add(msgspec.json.decode(body)["i"])

    async def loop(exchange: Exchange) -> None:
        done: list[Any] = []
        while True:
            jobs = exchange(done, concurrency)
            done = [key for key, _ in jobs]
            if not jobs:
                await asyncio.sleep(IDLE_S)
            for task in [asyncio.create_task(handle(body)) for _, body in jobs]:
                await task

    with exchange_on(url) as exchange:
        _run(loop(exchange))


def exchange_on(url: str) -> AbstractContextManager[Exchange]:
    return _of(url)[1](url)


def _run(main: Coroutine[object, object, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _of(url: str) -> tuple[Callable[[str, list[list[bytes]]], None], Callable[[str], AbstractContextManager[Exchange]]]:
    return {"sqlite": (make_sqlite, sqlite), "redis": (make_redis, redis), "postgresql": (make_postgres, postgres)}[
        url.partition(":")[0]
    ]


def make_sqlite(url: str, batches: list[list[bytes]]) -> None:
    c = _connect_sqlite(url)
    c.execute("pragma journal_mode=wal")
    c.execute("create table job (id integer primary key, due integer not null, body blob not null)")
    c.execute("create index job_due on job(due)")
    c.execute("begin")
    for bodies in batches:
        c.executemany("insert into job(due, body) values (0, ?)", ((body,) for body in bodies))
    c.execute("commit")
    c.close()


@contextlib.contextmanager
def sqlite(url: str) -> Iterator[Exchange]:
    c = _connect_sqlite(url)
    c.execute("pragma synchronous=full")
    claim = """update job set due = ?1 where id in (select id from job where due <= ?2 order by due limit ?3)
        returning id, body"""

    def exchange(done: Sequence[int], limit: int) -> Sequence[tuple[int, bytes]]:
        now_ms = _now_ms()
        c.execute("begin immediate")
        c.executemany("delete from job where id = ?", [(id,) for id in done])
        rows = c.execute(claim, (now_ms + LEASE_MS, now_ms, limit)).fetchall()
        c.execute("commit")
        return rows

    yield exchange
    c.close()


def _connect_sqlite(url: str) -> sqlite3.Connection:
    return sqlite3.connect(url.removeprefix("sqlite:///") + ".floor", isolation_level=None)


def make_redis(url: str, batches: list[list[bytes]]) -> None:
    r, root = _connect_redis(url)
    ids = iter(range(1, 1 << 62))
    for bodies in batches:
        jobs = {b"%016d" % next(ids): body for body in bodies}
        pipe = r.pipeline(transaction=False)
        pipe.hset(f"{root}:job", mapping=jobs)
        pipe.zadd(f"{root}:due", dict.fromkeys(jobs, 0))
        pipe.execute()
    r.close()


REDIS_FLOOR = """
local limit, now, lease = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if #ARGV > 3 then
  redis.call('zrem', KEYS[1], unpack(ARGV, 4))
  redis.call('hdel', KEYS[2], unpack(ARGV, 4))
end
local ids = redis.call('zrangebyscore', KEYS[1], '-inf', now, 'limit', 0, limit)
if #ids == 0 then return {ids, ids} end
local leases = {}
for i, id in ipairs(ids) do
  leases[2 * i - 1], leases[2 * i] = now + lease, id
end
redis.call('zadd', KEYS[1], unpack(leases))
return {ids, redis.call('hmget', KEYS[2], unpack(ids))}
"""


@contextlib.contextmanager
def redis(url: str) -> Iterator[Exchange]:
    r, root = _connect_redis(url)
    sha = r.script_load(REDIS_FLOOR)

    def exchange(done: Sequence[bytes], limit: int) -> Sequence[tuple[bytes, bytes]]:
        found = r.evalsha(sha, 2, f"{root}:due", f"{root}:job", limit, _now_ms(), LEASE_MS, *done)
        return list(zip(*found, strict=True))

    yield exchange
    r.close()


def _connect_redis(url: str) -> tuple[Any, str]:
    import redis as driver

    at, _, namespace = url.partition("?namespace=")
    return driver.Redis.from_url(at), f"{{{namespace}-floor}}"


def make_postgres(url: str, batches: list[list[bytes]]) -> None:
    c, table = _connect_postgres(url)
    c.execute(f"create table {table} (id bigserial primary key, due bigint not null, body bytea not null)")
    c.execute(f"create index on {table} (due)")
    for bodies in batches:
        c.execute(f"insert into {table} (due, body) select 0, unnest(%s::bytea[])", [bodies])
    c.close()


@contextlib.contextmanager
def postgres(url: str) -> Iterator[Exchange]:
    c, table = _connect_postgres(url)
    fused = f"""with gone as (delete from {table} where id = any(%s)),
        due as materialized (select id from {table} where due <= %s order by due limit %s for update skip locked)
        update {table} j set due = %s from due where j.id = due.id returning j.id, j.body"""

    def exchange(done: Sequence[int], limit: int) -> Sequence[tuple[int, bytes]]:
        now_ms = _now_ms()
        rows: Sequence[tuple[int, bytes]]
        rows = c.execute(fused, [list(done), now_ms, limit, now_ms + LEASE_MS], prepare=True, binary=True).fetchall()
        return rows

    yield exchange
    c.close()


def _connect_postgres(url: str) -> tuple[Any, str]:
    import psycopg

    at, _, schema = url.partition("?schema=")
    return psycopg.connect(at, autocommit=True), f"floor_{schema}"
