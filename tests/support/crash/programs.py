"""The programs that the crash tests start and kill: `python -m tests.support.crash.programs worker|producer PLAN`.

PLAN is a Plan as JSON.
"""
# ruff: noqa: E402  # the clock is read before anything is imported

from __future__ import annotations

import time

FIRST_LINE_S = time.monotonic()  # the bound on recovery counts from here

import asyncio
import contextlib
import itertools
import os
import random
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from tests.support.crash.ledger import Journal, handled, produced, read, url_of

import redrive
from redrive import Context
from redrive.errors import StoreError
from redrive.events import DeliveryEvent, Event, Notice
from redrive.ids import new_id
from redrive.message import Draft, Lane, Message, Started
from redrive.store import Store
from redrive.worker.crash.ledger import left_behind


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a child shall do. `kill_at`: SIGKILL itself at that call of the store's failpoint; only calls of
    `kill_point` are counted, if that is given."""

    place: str
    url: str = ""  # of the store, where it is another than the place's own: by way of a proxy
    kill_at: int = 0
    kill_point: str = ""
    concurrency: int = 2
    prefetch: int = 2
    lease: str = "30s"
    grace: str = "30s"
    drain: bool = True
    told: bool = False  # journal what became of each delivery
    count: int = 0  # messages to enqueue, over all lives of the producer
    pace_ms: int = 0  # mean pause between puts
    run_ms: int = 30  # the longest run of what is enqueued
    ways: tuple[str, ...] = ("one", "batch", "threads", "loop")
    patient: bool = False  # go on after a refusal of the store
    unsure: bool = False  # and what was refused may be stored all the same: the reply was lost
    file_limit: int = 0  # refuse the disk beyond this many bytes per file, for a while


def sleep(seconds: float) -> None:
    """Not time.sleep: under libfaketime that is an error."""
    select.select([], [], [], seconds)


# -- the tasks


def make_app(place: Path, journal: Journal, url: str = "") -> redrive.App:
    """The app both programs share. Every handler writes down its start and its end."""
    keys = redrive.Keys.from_env() if "REDRIVE_KEYS" in os.environ else None
    app = redrive.App(url or url_of(place), park_for=0, encrypt=keys)
    soon = redrive.Retry(max_attempts=4, backoff=redrive.Backoff.fixed("30ms"))
    # Kills at random must convict nobody, also not one that ran alone in several processes that were hit at once.
    cut_off = redrive.Poison(10)

    def goes() -> bool:
        """Whether another process said that what holds may end: all of it, or this process's."""
        return (place / "go").exists() or (place / f"go-{os.getpid()}").exists()

    @contextlib.contextmanager
    def running() -> Iterator[Context]:
        c = redrive.context()
        journal.write("start", c.message_id, attempt=c.attempt, crashes=c.crashes, fence=c.fence)
        try:
            yield c
        except BaseException as error:
            journal.write("end", c.message_id, attempt=c.attempt, fence=c.fence, note=type(error).__name__)
            raise
        journal.write("end", c.message_id, attempt=c.attempt, fence=c.fence, note="ok")

    @app.task(name="quick", poison=cut_off)
    async def quick(n: int, pause_ms: int) -> None:
        with running():
            await asyncio.sleep(pause_ms / 1000)

    @app.task(name="blocking", poison=cut_off)
    def blocking(n: int, pause_ms: int) -> None:
        with running():
            sleep(pause_ms / 1000)

    @app.task(name="flaky", retry=soon, poison=cut_off)
    async def flaky(n: int, pause_ms: int) -> None:
        with running() as c:
            await asyncio.sleep(pause_ms / 1000)
            if c.attempt == 1:
                raise ConnectionError("the first attempt always fails")

    @app.task(name="doomed", poison=cut_off)
    async def doomed(n: int, pause_ms: int) -> None:
        with running():
            raise redrive.Reject("never wanted")

    @app.task(name="hold")
    async def hold(n: int) -> None:
        with running():
            while not goes():  # noqa: ASYNC110  # another process says so
                await asyncio.sleep(0.005)

    @app.task(name="hold_thread")
    def hold_thread(n: int) -> None:
        with running() as c:
            while not goes():
                c.check()
                sleep(0.005)

    @app.task(name="stubborn")
    def stubborn(n: int) -> None:
        with running():
            while not goes():
                sleep(0.005)

    @app.task(name="any_value")
    def any_value(value: object) -> None:
        with running():
            pass

    return app


def drafts_of(app: redrive.App, kinds: Sequence[str], first: int = 0, pause_ms: int = 4) -> list[Draft]:
    """A draft per kind, numbered from `first`. The ids are chosen here, so that unacknowledged ones are known too."""
    made = []
    for n, kind in enumerate(kinds, first):
        arguments = (n,) if kind in ("hold", "hold_thread", "stubborn") else (n, pause_ms)
        draft = app.tasks[kind].draft(*arguments)
        made.append(msgspec.structs.replace(draft, id=new_id(time.time_ns() // 1_000_000)))
    return made


def kind_of(n: int) -> str:
    """The mix that producers enqueue: coroutines, threads, one that fails first, one that dies."""
    return ("quick", "blocking", "quick", "flaky", "blocking", "quick", "quick", "doomed", "blocking", "quick")[n % 10]


def put(app: redrive.App, journal: Journal, drafts: Sequence[Draft], batch: str) -> None:
    """Enqueue in one commit; `try` before and `ack` after each."""
    announce(journal, drafts, batch)
    app.enqueue_many(drafts)
    acknowledge(journal, drafts)


def announce(journal: Journal, drafts: Sequence[Draft], batch: str) -> None:
    for draft in drafts:
        journal.write("try", draft.id or "", note=f"{draft.task}#{batch}")


def acknowledge(journal: Journal, drafts: Sequence[Draft]) -> None:
    for draft in drafts:
        journal.write("ack", draft.id or "")


def hook(store: Store, journal: Journal, plan: Plan) -> None:
    """Put what kills this process into the store's failpoint, which is no part of the protocol."""
    if plan.kill_at:
        store.failpoint = kill_hook(journal, plan)  # type: ignore[attr-defined]


def kill_hook(journal: Journal, plan: Plan) -> Callable[[str], None]:
    """For the store's failpoints: SIGKILL to this process at the chosen call."""
    calls = itertools.count(1)

    def failpoint(point: str) -> None:
        if plan.kill_point in ("", point) and next(calls) == plan.kill_at:
            journal.write("killing", note=point)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # no step further, should the signal take its time

    return failpoint


# -- the worker


def work(plan: Plan) -> None:
    place = Path(plan.place)
    journal = Journal(handled(place))
    journal.write("up", at_s=FIRST_LINE_S)
    app = make_app(place, journal, plan.url)
    store = app.store
    write_found(store, journal)
    hook(store, journal, plan)
    if plan.told:
        app.subscribe(lambda events: write_events(journal, events))
    app.run_worker(
        {"default": plan.concurrency}, prefetch=plan.prefetch, lease=plan.lease, grace=plan.grace, drain=plan.drain
    )
    store.close()
    journal.write("exit")


def write_found(store: Store, journal: Journal) -> None:
    """Journal what dead workers hold, before this one takes it back."""
    assert store.state_dir is not None
    dead = {s.last: s.started for s in left_behind(store.state_dir)}
    for m in store.peek(Lane.LEASED, limit=1000).messages:
        if m.lane is not Lane.LEASED or (m.worker is not None and m.worker not in dead):
            continue  # a living worker's
        journal.write("found", m.id, attempt=m.attempt, crashes=m.crashes, fence=m.fence, note=how_left(m, dead))


def how_left(m: Message, dead: Mapping[str, Sequence[Started] | None]) -> str:
    """`lapsed`: an earlier worker took it back as a crash and died before it claimed it again."""
    if m.worker is None:
        return "lapsed"
    started = dead[m.worker]
    return "started" if started is None or (m.id, m.fence) in started else "unstarted"


def write_events(journal: Journal, events: Sequence[Event]) -> None:
    for event in events:
        match event:
            case DeliveryEvent():
                journal.write("fate", event.id, note=event.outcome, attempt=event.attempt)
            case Notice():
                journal.write("notice", note=event.name)


# -- the producer


def produce(plan: Plan) -> None:
    place = Path(plan.place)
    journal = Journal(produced(place))
    tried = sum(r.what == "try" for r in read(journal.path))
    app = make_app(place, Journal(handled(place)), plan.url)
    store = app.store
    hook(store, journal, plan)
    rng = random.Random(tried)
    limit(plan.file_limit)
    refusals = 0
    while tried < plan.count:
        count = min(rng.choice((1, 2, 3)), plan.count - tried)
        drafts = drafts_of(app, [kind_of(n) for n in range(tried, tried + count)], tried, rng.randrange(plan.run_ms))
        if plan.unsure:  # a put that is repeated, its answer lost, may find its message done: a key excludes that
            drafts = [msgspec.structs.replace(draft, key=draft.id, key_for_ms=3_600_000) for draft in drafts]
        refusals = enqueue(app, journal, drafts, plan.ways[tried % len(plan.ways)], refusals, plan)
        tried += count
        if plan.file_limit and refusals == 3:
            limit(0)
        if plan.pace_ms:
            time.sleep(rng.uniform(0, plan.pace_ms / 500))
    store.close()
    journal.write("exit")


def enqueue(app: redrive.App, journal: Journal, drafts: list[Draft], way: str, refusals: int, plan: Plan) -> int:
    """Put these drafts one way or another; returns the refusals so far."""
    try:
        _WAYS[way](app, journal, drafts)
    except StoreError as error:
        if not plan.patient:
            raise
        journal.write("refused", note=type(error).__name__)
        if plan.unsure:
            return refusals + 1
        assert app.store.find([d.id or "" for d in drafts]) == [None] * len(drafts), "a refused message is stored"
        return refusals + 1
    return refusals


def _one(app: redrive.App, journal: Journal, drafts: list[Draft]) -> None:
    for draft in drafts:
        put(app, journal, [draft], draft.id or "")


def _batch(app: redrive.App, journal: Journal, drafts: list[Draft]) -> None:
    put(app, journal, drafts, drafts[0].id or "")


def _threads(app: redrive.App, journal: Journal, drafts: list[Draft]) -> None:
    threads = [threading.Thread(target=_one, args=(app, journal, [draft])) for draft in drafts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _loop(app: redrive.App, journal: Journal, drafts: list[Draft]) -> None:
    async def one(draft: Draft) -> None:
        announce(journal, [draft], draft.id or "")
        await app.aenqueue_many([draft])
        acknowledge(journal, [draft])

    async def all_at_once() -> None:
        await asyncio.gather(*map(one, drafts))

    asyncio.run(all_at_once())


_WAYS = {"one": _one, "batch": _batch, "threads": _threads, "loop": _loop}


def limit(file_bytes: int) -> None:
    """Let no file of this process grow beyond that, 0: lift it. To SQLite what is over is a failed write."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes or hard, hard))


if __name__ == "__main__":
    plan = msgspec.json.decode(sys.argv[2], type=Plan)
    {"worker": work, "producer": produce}[sys.argv[1]](plan)
