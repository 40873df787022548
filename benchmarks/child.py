"""What runs in processes of its own: `python -m benchmarks.child ROLE …`, started by harness.py."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from redrive.fault import Fault

from .tasks import Records, make_app


def worker(url: str, concurrency: str, records: str, evidence: str = "") -> None:
    """A worker until SIGTERM. `evidence`: a file for the faults that retries were claimed with, written at the end."""
    retried: dict[int, tuple[Fault, ...]] = {}
    app = make_app(url, Records(Path(records)).add, retried if evidence else None)
    app.run_worker(queues={"default": int(concurrency)})
    if evidence:
        Path(evidence).write_bytes(msgspec.json.encode({str(i): faults for i, faults in retried.items()}))


def floor(path: str, concurrency: str, records: str) -> None:
    """The least that claims, runs and acknowledges batches on SQLite: no retry, timeout, fence, task name or hook."""
    add = Records(Path(records)).add
    c = sqlite3.connect(path, isolation_level=None)
    c.execute("pragma synchronous=full")
    claim = """update job set due = ?1 where id in (select id from job where due <= ?2 order by due limit ?3)
        returning id, body"""

    async def handle(body: bytes) -> None:
        add(msgspec.json.decode(body)["i"])

    async def loop() -> None:
        done: list[tuple[int]] = []
        while True:
            now_ms = time.time_ns() // 1_000_000
            c.execute("begin immediate")
            c.executemany("delete from job where id = ?", done)
            rows = c.execute(claim, (now_ms + 30_000, now_ms, int(concurrency))).fetchall()
            c.execute("commit")
            done = [(id,) for id, _ in rows]
            if not rows:
                await asyncio.sleep(0.005)
            for task in [asyncio.create_task(handle(body)) for _, body in rows]:
                await task

    _run(loop())


def make_floor(path: Path, count: int) -> None:
    """The floor's table with `count` jobs in it."""
    c = sqlite3.connect(path, isolation_level=None)
    c.execute("pragma journal_mode=wal")
    c.execute("create table job (id integer primary key, due integer not null, body blob not null)")
    c.execute("create index job_due on job(due)")
    c.execute("begin")
    c.executemany("insert into job(due, body) values (0, ?)", ((b'{"i":%d}' % i,) for i in range(count)))
    c.execute("commit")
    c.close()


def steady(url: str, first: str, count: str, per_s: str, records: str) -> None:
    """Enqueue at a fixed rate, whatever the queue does; records each call as -1 - index and its return as index."""
    file = Records(Path(records))
    send = _datagrams(url.removeprefix("datagram:")) if url.startswith("datagram:") else _enqueues(url)
    start_s = time.monotonic() + 0.05
    for k in range(int(count)):
        time.sleep(max(0.0, start_s + k / float(per_s) - time.monotonic()))
        file.add(-1 - int(first) - k)
        send(int(first) + k)
        file.add(int(first) + k)


def _datagrams(port: str) -> Callable[[int], object]:
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(("127.0.0.1", int(port)))
    return lambda i: sender.send(str(i).encode())


def _enqueues(url: str) -> Callable[[int], object]:
    return make_app(url).tasks["noop"].enqueue


def receiver(port: str, records: str) -> None:
    """The least that another process can wake: blocks on a datagram socket, records what comes. `port`: a file."""
    receiving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiving.bind(("127.0.0.1", 0))
    Path(port).write_text(str(receiving.getsockname()[1]))
    add = Records(Path(records)).add  # its file says that the port can be read
    while True:
        add(int(receiving.recv(64)))


def sleeper(dues: str, records: str) -> None:
    """The least that is on time: sleeps until each due time of the JSON list in turn."""
    add = Records(Path(records)).add
    for index, due_s in sorted(enumerate(json.loads(Path(dues).read_text())), key=lambda pair: pair[1]):
        time.sleep(max(0.0, due_s - time.time()))
        add(index)


def _run(main: Coroutine[object, object, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


ROLES: dict[str, Callable[..., None]] = {f.__name__: f for f in (worker, floor, steady, receiver, sleeper)}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
