"""The app of the soak: work of every kind, which writes into a journal what it does.

`redrive worker benchmarks.soak_app:app` runs it; `python -m benchmarks.soak_app SEED` is a producer. Both read
REDRIVE_URL, SOAK_FOLDER (journals) and SOAK_ENDPOINT (the service that fails).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
from tests.support.crash.ledger import Journal

from redrive import App, Backoff, Breaker, Budget, Context, Idempotency, Reject, Retry, context

FOLDER = Path(os.environ["SOAK_FOLDER"])
STARTS, ENDS = "start", "end"
RETRY = Retry(max_attempts=8, backoff=Backoff(base="300ms", factor=2, cap="5s"))
PER_S = 12.5  # messages of one producer
KINDS = {  # and how many of a hundred
    "plain": 30, "push": 20, "slow": 8, "ordered": 12, "tenant": 10, "pay": 8, "parent": 6, "doomed": 3, "later": 3,
}  # fmt: skip
GROUPS = 12

app = App.from_env()
app.queue("work", concurrency=20)
app.queue("crm", concurrency=20)
app.queue("ordered", concurrency=10, group_width=1, group_order="strict")
app.queue("tenants", concurrency=10, group_width=2)
app.dependency("crm", breaker=Breaker(open_for="2s", max_open="10s"), budget=Budget(ratio=0.2, floor=20), rate="100/s")
journal = Journal(FOLDER / "journal")
client: Any = None


@contextmanager
def noted(n: str) -> Iterator[Context]:
    """Write the begin and the end of a run, with the life of its message (`redrives`)."""
    ctx = context()
    about = {"attempt": ctx.attempt, "crashes": ctx.crashes, "fence": ctx.fence}
    life = f"{n} {ctx.message.redrives}"
    journal.write(STARTS, ctx.message_id, note=life, **about)
    try:
        yield ctx
    except BaseException:
        journal.write(ENDS, ctx.message_id, note=f"{life} failed", **about)
        raise
    journal.write(ENDS, ctx.message_id, note=f"{life} ok", **about)


@app.task(name="plain", queue="work", retry=RETRY)
async def plain(n: str) -> None:
    with noted(n):
        await asyncio.sleep(crc32(n.encode()) % 50 / 1000)


@app.task(name="later", queue="work", retry=RETRY)
async def later(n: str) -> None:
    with noted(n):
        pass


@app.task(name="slow", queue="work", retry=RETRY, timeout="20s")
def slow(n: str) -> None:
    with noted(n):
        time.sleep(0.4)


@app.task(name="push", queue="crm", dependency="crm", retry=RETRY)
async def push(n: str) -> None:
    global client
    with noted(n):
        if client is None:
            client = httpx.AsyncClient(timeout=5)
        answer = await client.post(os.environ["SOAK_ENDPOINT"], headers={"idempotency-key": n})
        answer.raise_for_status()


@app.task(name="ordered", queue="ordered", retry=RETRY)
async def ordered(n: str) -> None:
    with noted(n) as ctx:
        await asyncio.sleep(0.01)
        if ctx.attempt == 1 and crc32(n.encode()) % 20 == 0:
            raise ConnectionError("once")


@app.task(name="tenant", queue="tenants", retry=RETRY)
async def tenant(n: str) -> None:
    with noted(n):
        await asyncio.sleep(0.02)


@app.task(name="pay", queue="work", retry=RETRY, idempotency=Idempotency(key=lambda n: n, keep="1h"))
async def pay(n: str) -> None:
    with noted(n) as ctx:
        await asyncio.sleep(0.01)
        journal.write("effect", ctx.message_id, note=n, fence=ctx.fence)


@app.task(name="child", queue="work", retry=RETRY)
async def child(n: str) -> None:
    with noted(n):
        pass


@app.task(name="parent", queue="work", retry=RETRY)
async def parent(n: str) -> None:
    with noted(n) as ctx:
        ctx.enqueue(child, f"{n}-child")


@app.task(name="doomed", queue="work", retry=RETRY)
async def doomed(n: str) -> None:
    with noted(n):
        if not (FOLDER / "fixed").exists():
            raise Reject("the fix is not deployed")


@app.periodic(every="1s", name="tick")
@app.task(name="tick", queue="work", retry=RETRY)
async def tick() -> None:
    with noted(context().message.headers.get("redrive-tick", "by hand")):
        pass


def produce(seed: int) -> None:
    """Enqueue until killed: single messages and batches, now and later, in groups, with keys."""
    rng, own = random.Random(f"{seed}/{os.getpid()}"), Journal(FOLDER / "producers")
    names, weights = list(KINDS), list(KINDS.values())
    count = 0
    while True:
        drafts = []
        for _ in range(rng.choice((1, 1, 1, 5, 20))):
            kind, n = rng.choices(names, weights)[0], f"{os.getpid()}-{count}"
            count += 1
            options: dict[str, Any] = {}
            if kind in ("ordered", "tenant"):
                options["group"] = (
                    f"g{rng.randrange(GROUPS)}-{os.getpid()}" if kind == "ordered" else f"t{rng.randrange(GROUPS)}"
                )
            if kind == "later":
                options["delay"] = f"{rng.randrange(1, 20)}s"
            if kind == "plain" and rng.random() < 0.2:
                options["key"] = n
            drafts.append((f"{kind}:{n}:{options.get('group', '')}", app.tasks[kind].using(**options).draft(n)))
        for note, _ in drafts:
            own.write("try", note=note)
        try:
            app.enqueue_many([draft for _, draft in drafts])
        except Exception as error:  # the server is away: nothing is acknowledged
            own.write("refused", note=type(error).__name__)
            time.sleep(0.5)
            continue
        for note, _ in drafts:
            own.write("ack", note=note)
        time.sleep(len(drafts) / PER_S * rng.uniform(0.5, 1.5))


if __name__ == "__main__":
    produce(int(sys.argv[1]))
