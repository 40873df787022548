"""Enter all that one message enters, several times, and print it: run as `python walk.py SRC URL` by walks.py.

Runs the package of the tree SRC on the store at URL, by its public interface. The answer on standard output is JSON:
for each walk the sorted pairs of file and function that every round entered after the first. So imports, caches and
a sweep that happened to be due are not counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from hook import Hook

SRC, URL = sys.argv[1:]
hook = Hook(SRC)
hook.install()

import redrive  # noqa: E402

if not str(redrive.__file__).startswith(SRC):
    sys.exit(f"walk: {redrive.__file__} was imported, which is not of {SRC}")

ROUNDS = 8
# A message is stored so long before it is due, and counting begins in between. Not the same in each round: what happens
# once a second would else be due in all of them.
LEADS_S = (0.4, 0.5, 0.6, 0.7)
QUIET_S = 0.25  # a message leaves nothing to do when nothing was entered for so long
PATIENCE_S = 60.0
SUCCESS, FAILURE, DEATH = "succeed", "fail once", "die"

Entered = set[tuple[str, str]]

app = redrive.App(URL)
executions = 0  # of the current message
_observer = ThreadPoolExecutor(1, initializer=hook.leave_out_this_thread)


@app.task(name="walk", retry=redrive.Retry(max_attempts=2, backoff=redrive.Backoff.fixed("1ms")))
async def walk(end: str) -> None:
    global executions
    executions += 1
    if end == DEATH or (end == FAILURE and executions == 1):
        raise ConnectionError("the endpoint is down")


async def main() -> None:
    walks = {"enqueue": await rounds(enqueue)}  # in a process without a worker, as a producer is
    # A page searches a text with a 40, an encoded @, for secrets. Process ids have one by chance, this name always.
    async with app.worker(name="worker-40"):
        await quiet()
        walks["claim to settled"] = await rounds(partial(delivery, SUCCESS))
        walks["claim to settled, with a failure"] = await rounds(partial(delivery, FAILURE))
        dead = [await walk.aenqueue(DEATH) for _ in range(10)]
        await all_dead(dead)
        walks["plan to done"] = await rounds(partial(redrive_all, dead))
    walks["a group's page"] = await rounds(page)
    if missing := hook.not_entered():
        sys.exit(
            f"walk: nothing was entered of: {'; '.join(missing)}. Where the tree has new names, add them to hook.py"
        )
    print(json.dumps(walks))


async def rounds(walk_once: Callable[[int], Awaitable[Entered]]) -> list[tuple[str, str]]:
    """What every round after the first entered."""
    return sorted(set.intersection(*[await walk_once(n) for n in range(ROUNDS)][1:]))


async def enqueue(_: int) -> Entered:
    hook.begin()
    await walk.aenqueue(SUCCESS)
    return hook.end()


async def delivery(end: str, round: int) -> Entered:
    """One message, from before its claim until it is settled and nothing is left to do."""
    global executions
    lead_s = LEADS_S[round % len(LEADS_S)]
    while True:
        executions, due_s = 0, time.monotonic() + lead_s
        ref = await walk.using(delay=lead_s).aenqueue(end)
        await asyncio.sleep(lead_s / 2)
        hook.begin()
        in_time = time.monotonic() < due_s - lead_s / 4
        while await uncounted(lambda ref=ref: ref.state) != "done":
            await quiet()
        entered = hook.end()
        if in_time:
            return entered
        lead_s *= 2  # this machine is busy


async def redrive_all(dead: Sequence[Any], _: int) -> Entered:
    """From the plan until the run is done, and all of them are dead again."""
    hook.begin(redrive=True)
    plan = app.dlq.select("queue:default").plan(rate="500/s", canary=0, slow_start=False)
    run = plan.start(reason="walk", actor="house")
    while run.state == "running":  # noqa: ASYNC110 - another thread ends it
        await asyncio.sleep(0.05)
    await all_dead(dead)
    await asyncio.sleep(QUIET_S)  # the last outcome is recorded
    return hook.end()


async def page(_: int) -> Entered:
    """One GET of a failure group, from a site that keeps no sums of it yet."""
    site, path = app.dashboard(), f"/groups/{app.dlq.groups()[0].fingerprint}"
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
        "method": "GET",
        "scheme": "http",
    }
    scope |= {"path": path, "raw_path": path.encode(), "root_path": "", "query_string": b""}
    scope |= {"headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 50_000), "server": ("127.0.0.1", 80)}
    statuses = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    hook.begin()
    await site(scope, receive, send)
    entered = hook.end()
    if statuses[0] != 200:
        sys.exit(f"walk: GET {path} was answered with {statuses[0]}")
    return entered


async def all_dead(refs: Sequence[Any]) -> None:
    for ref in refs:
        while await uncounted(lambda ref=ref: ref.state) != "dead":  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def uncounted(read: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(_observer, read)


async def quiet() -> None:
    """Wait until nothing is entered any more."""
    calls, since_s, end_s = hook.calls, time.monotonic(), time.monotonic() + PATIENCE_S
    while time.monotonic() - since_s < QUIET_S:
        if time.monotonic() > end_s:
            sys.exit("walk: the worker does not come to rest; what it calls by the clock belongs into APART of hook.py")
        await asyncio.sleep(0.02)
        if hook.calls != calls:
            calls, since_s = hook.calls, time.monotonic()


asyncio.run(main())
