"""Tasks that run in child processes, which import this module: what a test is told of comes by files."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.workers import SOON

import redrive
from redrive import App, Context, Idempotency, Quarantine, Reject, Retry, RetryAfter, Snooze
from redrive.errors import LeaseLost

app = App("memory://")


class Strange(Exception):
    """A failure that a rule knows."""


def fresh(store: Any = None, url: str | None = None, **options: Any) -> App:
    """The module's app on another store: what a child imports is this same one."""
    app._store, app.url = store, url if store is None else None
    for name in ("recycle_after", "recycle_memory"):
        setattr(app, name, options.get(name))
    app.events.observers.clear()
    return app


# -- what each way to end comes to; both kinds of handler run this


def act(ctx: Context, what: str) -> Any:
    match what:
        case "wrapped":
            return None
        case "value":
            return {"pid": os.getpid(), "attempt": ctx.attempt, "same": redrive.context() is ctx}
        case "partial":
            return ctx.partial([1], "no prices")
        case "vague":
            return ctx.partial(1, "half a pair: \udcff")
        case "forks":
            if os.fork() == 0:
                sys.exit(0)
            return os.wait()[1]
        case "follow":
            ref = ctx.enqueue(rest.using(delay="1h", priority=1), 7)
            return [ref.id, len(ctx.follow_ups)]
        case "fault":
            raise ConnectionError("the line is dead")
        case "rule":
            raise Strange("by rule")
        case "reject":
            raise Reject("no use")
        case "quarantine":
            raise Quarantine("poison")
        case "retry_after":
            raise RetryAfter("1h", "later")
        case "snooze":
            raise Snooze("1h")
        case "exit":
            sys.exit(3)
        case "object":
            return object()
        case "remaining":
            return [ctx.remaining, ctx.cancelled, ctx.idempotency_key, ctx.fence]
        case _:
            raise AssertionError(what)


@app.task(name="rest", queue="later")
def rest(n: int) -> None: ...


async def aact(ctx: Context, what: str) -> Any:
    await asyncio.sleep(0)
    return act(ctx, what)


ACTS: dict[str, Any] = {"ctx": True, "keep_result": "1h", "rules": [(Strange, "permanent")], "retry": SOON}
app.task(name="sync", isolation="process", **ACTS)(act)
app.task(name="async", isolation="process", **ACTS)(aact)
app.task(name="thread", **ACTS)(act)
app.task(name="loop", **ACTS)(aact)


# -- checkpoints, and being told to end


@app.task(name="pages", isolation="process", ctx=True, keep_result="1h", retry=SOON)
def pages(ctx: Context) -> Any:
    before = ctx.progress
    ctx.checkpoint({"page": ctx.attempt, "of": [3, None]})
    if ctx.attempt < 3:
        raise ConnectionError("again")
    return [before, ctx.progress]


@app.task(name="apages", isolation="process", ctx=True, keep_result="1h", retry=SOON)
async def apages(ctx: Context) -> Any:
    before = ctx.progress
    await ctx.acheckpoint({"page": ctx.attempt, "of": [3, None]})
    if ctx.attempt < 3:
        raise ConnectionError("again")
    return [before, ctx.progress]


@app.task(name="waits", isolation="process", ctx=True, keep_result="1h", timeout="60s")
def waits(ctx: Context, place: str) -> str:
    """Until told to end, or `go` is there."""
    Path(place, f"began-{os.getpid()}").touch()
    while not Path(place, "go").exists():
        ctx.check()
        time.sleep(0.005)
    return "went"


@app.task(name="awaits", isolation="process", ctx=True, keep_result="1h", timeout="60s")
async def awaits(ctx: Context, place: str) -> str:
    Path(place, f"began-{os.getpid()}").touch()
    while not Path(place, "go").exists() and (Path(place, "deaf").exists() or not ctx.cancelled):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return "told" if ctx.cancelled else "went"


@app.task(name="silent", isolation="process", timeout="60s")
def silent(place: str) -> None:
    """Listens to nothing."""
    Path(place, f"began-{os.getpid()}").touch()
    while True:
        time.sleep(0.005)


@app.task(name="refused", isolation="process", ctx=True, timeout="60s")
def refused(ctx: Context, place: str) -> None:
    """A checkpoint after its lease was taken away."""
    Path(place, "began").touch()
    while not Path(place, "go").exists():
        time.sleep(0.005)
    try:
        ctx.checkpoint("mine")
    except LeaseLost as error:
        Path(place, "refused").write_text(str(error))


# -- ways to die


def die(how: str) -> None:
    match how:
        case "good":
            return
        case "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "segfault":
            ctypes.string_at(0)
        case "memory":
            kept = []
            while True:
                kept.append(bytearray(32 * 1024 * 1024))
        case "loop":
            re.match(r"(a+)+$", "a" * 64 + "b")  # years within one C function that holds the interpreter's lock
        case "thread":
            threading.Thread(target=lambda: os._exit(9)).start()
            time.sleep(60)
        case "closes":
            os.closerange(3, 100)
            time.sleep(60)


DEADLY: dict[str, Any] = {"queue": "deadly", "isolation": "process", "retry": Retry(backoff=SOON.backoff)}


@app.task(name="deadly", memory="320MiB", **DEADLY)
def deadly(n: int, how: str, place: str) -> None:
    with Path(place, f"ran-{n}").open("a") as file:
        file.write(f"{os.getpid()}\n")
    die(how)


@app.task(name="endless", timeout="300ms", **DEADLY)
def endless(n: int, how: str, place: str) -> None:
    deadly(n, how, place)


@app.task(name="naps", queue="naps", isolation="process", timeout="300ms", retry=SOON)
async def naps() -> None:
    await asyncio.sleep(60)


@app.task(name="parent", queue="parent", isolation="process", timeout="500ms", retry=SOON)
def parent(place: str) -> None:
    """Starts a process of its own, and never returns."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(place, "started").write_text(str(started.pid))
    time.sleep(60)


# -- what it finds in its process


@app.task(name="about", isolation="process", keep_result="1h")
def about() -> Any:
    files = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            files.append(str(path.readlink()))
    return {"pid": os.getpid(), "group": os.getpgid(0), "files": files}


@app.task(name="grows", isolation="process", keep_result="1h")
def grows(mib: int) -> int:
    assert bytearray(os.urandom(1024)) * (mib * 1024)
    return os.getpid()


@app.task(name="puts", isolation="process", keep_result="1h")
def puts() -> str:
    return rest.enqueue(1).id


@app.wrap
def wrapped(ctx: Context) -> Iterator[None]:
    if b"wrapped" in ctx.message.body:
        print(f"before {ctx.message_id}")
    yield


@app.task(name="small", isolation="process", memory="1GiB", keep_result="1h")
def small() -> int:
    return os.getpid()


@app.task(
    name="once", isolation="process", ctx=True, keep_result="1h", idempotency=Idempotency(key=lambda n: f"order-{n}")
)
def once(ctx: Context, n: int) -> list[Any]:
    return [ctx.idempotency_key, os.getpid(), n]


# -- what runs in the worker, and in a child that they share once they are suspects

MEETS: dict[str, Any] = {"ctx": True, "keep_result": "1h", "retry": SOON}


def met(ctx: Context, place: str, count: int) -> bool:
    """Whether so many have begun by now, itself among them."""
    Path(place, f"{ctx.message_id}.{os.getpid()}").touch()
    return len({path.stem for path in Path(place).glob("*.*")}) >= count


@app.task(name="meets", **MEETS)
def meets(ctx: Context, place: str, count: int, stay_s: float = 0.0) -> int:
    while not met(ctx, place, count):
        time.sleep(0.005)
    time.sleep(stay_s)
    return os.getpid()


@app.task(name="ameets", **MEETS)
async def ameets(ctx: Context, place: str, count: int, stay_s: float = 0.0) -> int:
    while not met(ctx, place, count):  # noqa: ASYNC110 # in other processes, too
        await asyncio.sleep(0.005)
    await asyncio.sleep(stay_s)
    return os.getpid()


@app.task(name="kills", poison=redrive.Poison(3), **MEETS)
def kills(ctx: Context, place: str, count: int) -> None:
    """Kills its process, once so many others have begun."""
    while not met(ctx, place, count):
        time.sleep(0.005)
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="lasts", **MEETS)
async def lasts(ctx: Context, place: str) -> int:
    """Until `go` is there."""
    while not Path(place, "go").exists():
        met(ctx, place, 0)
        await asyncio.sleep(0.005)
    return os.getpid()


@app.task(name="overruns", timeout="300ms", **MEETS)
def overruns(ctx: Context, place: str) -> None:
    met(ctx, place, 0)
    time.sleep(60)


@app.task(name="keeps", **MEETS)
def keeps(ctx: Context, place: str, count: int) -> Any:
    """The progress that an earlier run kept, once so many have begun."""
    found = ctx.progress
    ctx.checkpoint(ctx.message_id)
    while not met(ctx, place, count):
        time.sleep(0.005)
    if found is None:
        raise ConnectionError
    return found == ctx.message_id
