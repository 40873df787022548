"""Roll-outs: what an older worker does not know goes to the living worker that does, and waits for one otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.workers import Heard, stored, until

from redrive import App, Draft, Retry
from redrive.decide import PARK_LOOK_MS
from redrive.errors import StoreUnavailable
from redrive.fault import classify
from redrive.message import ClaimRequest, DeadLetter, Lane, Message, Settlement, Swap
from redrive.presence import GONE_MS, Knowledge, Teller, release_of, waiting_tasks
from redrive.status import Reasons
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock

KINDS = ["another task", "a newer version", "another argument"]


def older(app: App, kind: str, ran: list[Any], **options: Any) -> App:
    """A program of the release before, on the same store."""
    made = App(store=app.store, **options)
    if kind != "another task":

        @made.task(name="push")
        async def push(id: int) -> None:
            ran.append(("old", id))

    return made


def put(app: App, draft: Draft) -> str:
    return app.store.put([draft])[0].id


def newer(app: App, kind: str, handler: Callable[[int], Any]) -> Callable[[int], str]:
    """What enqueues a message that only this release knows."""
    if kind == "another argument":

        @app.task(name="push")
        async def push_with(id: int, color: str = "red") -> None:
            await handler(id)

        return lambda id: put(app, push_with.draft(id, "blue"))

    @app.task(name="push", version=2)
    async def push(id: int) -> None:
        await handler(id)

    push.upcast(1)(lambda body: body)
    return lambda id: put(app, push.draft(id))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_living_worker_knows_is_never_dead(app: App, kind: str) -> None:
    """The only worker that knows it is busy for longer than `park_for`."""
    ran: list[Any] = []
    old = older(app, kind, ran, park_for="50ms")
    heard, free = Heard(old), asyncio.Event()

    async def handler(id: int) -> None:
        ran.append(("new", id))
        await free.wait()

    enqueue = newer(app, kind, handler)

    async def main() -> None:
        async with app.worker(queues={"default": 1}, prefetch=0):
            enqueue(0)
            await until(lambda: ran)
            async with old.worker(queues={"default": 10}):
                ids = [enqueue(n) for n in range(1, 6)]
                await until(lambda: heard.outcomes)
                await asyncio.sleep(0.5)
                waiting = app.store.find(ids)
                lanes = {m.lane for m in waiting if m is not None}
                assert lanes <= {Lane.READY, Lane.LEASED}, "nothing is dead; the older one may look at some"
                assert [m.faults for m in waiting if m is not None] == [()] * 5
                free.set()
                await until(lambda: len(ran) == 6)

    asyncio.run(main())
    assert sorted(ran) == [("new", n) for n in range(6)]
    assert set(heard.outcomes) == {"held"}, "the older one died of none, and ran none"


def test_a_task_that_others_know_is_claimed_no_more(app: App) -> None:
    """The old worker meets it once, and not again while a worker that knows it lives."""
    ran: list[Any] = []
    old = older(app, "another task", ran)
    heard, free = Heard(old), asyncio.Event()

    @old.task(name="known")
    async def known(id: int) -> None:
        ran.append(("old", id))

    async def handler(id: int) -> None:
        ran.append(("new", id))
        await free.wait()

    enqueue = newer(app, "another task", handler)

    async def main() -> None:
        async with app.worker(queues={"default": 1}, prefetch=0):
            enqueue(0)
            await until(lambda: ran)
            async with old.worker(queues={"default": 10}):
                enqueue(1)
                await until(lambda: heard.outcomes)
                for n in range(2, 40):
                    enqueue(n)
                    await asyncio.sleep(0.005)
                    put(app, known.draft(n))
                await until(lambda: len(ran) == 39)
                free.set()
                await until(lambda: len(ran) == 78)

    asyncio.run(main())
    assert heard.outcomes.count("held") <= 3 and heard.outcomes.count("done") == 38


def test_an_older_worker_still_runs_its_own_version_of_a_task(app: App) -> None:
    """Beside messages of the newer version that nobody has room for."""
    ran: list[Any] = []
    old = older(app, "a newer version", ran)
    free = asyncio.Event()

    async def handler(id: int) -> None:
        ran.append(("new", id))
        await free.wait()

    enqueue = newer(app, "a newer version", handler)

    async def main() -> None:
        async with app.worker(queues={"default": 1}, prefetch=0):
            enqueue(0)
            await until(lambda: ran)
            async with old.worker(queues={"default": 10}):
                for n in range(1, 30):
                    enqueue(n) if n % 3 == 0 else put(app, old.tasks["push"].draft(n))
                await until(lambda: len(ran) == 21)
                assert sorted(n for who, n in ran if who == "old") == [n for n in range(1, 30) if n % 3]
                free.set()
                await until(lambda: len(ran) == 30)

    asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_starts_wakes_what_waits_for_it(app: App, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.decide.PARK_LOOK_FIRST_MS", 3_600_000)
    monkeypatch.setattr("redrive.decide.PARK_LOOK_MS", 3_600_000)
    ran: list[Any] = []
    old = older(app, kind, ran, park_for="5h")

    async def handler(id: int) -> None:
        ran.append(("new", id))

    enqueue = newer(app, kind, handler)
    ids = [enqueue(n) for n in range(250)]
    old.run_worker(["default"], burst=True)
    assert min((stored(app, id).due_ms or 0) - app.store.now_ms() for id in ids) > 3_000_000
    assert waiting_tasks(app.store) == {"default": ["push"]}

    async def main() -> None:
        async with app.worker(queues={"default": 10}):
            await until(lambda: len(ran) == 250)

    asyncio.run(main())


def test_a_worker_that_starts_leaves_what_waits_for_another(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delayed message, a retry, and what this release does not know either."""
    monkeypatch.setattr("redrive.decide.PARK_LOOK_FIRST_MS", 3_600_000)
    old, ran = older(app, "another task", [], park_for="5h"), list[Any]()

    async def handler(id: int) -> None:
        ran.append(id)

    enqueue = newer(app, "a newer version", handler)
    enqueue(0)
    third = app.tasks["push"].draft(1)
    unknown = put(app, replace(third, version=3))
    old.run_worker(["default"], burst=True)
    delayed = put(app, replace(third, delay_ms=3_600_000))
    before = {id: stored(app, id) for id in (unknown, delayed)}

    async def main() -> None:
        async with app.worker(queues={"default": 10}):
            await until(lambda: ran == [0])
            await asyncio.sleep(1.5)  # it looks once more after a second

    asyncio.run(main())
    assert {id: stored(app, id) for id in before} == before


def test_the_wait_runs_only_while_no_living_worker_knows_it() -> None:
    clock = ManualClock()
    app = App(store=MemoryStore(clock_ms=clock.now_ms), park_for="60s")
    new = App(store=app.store)

    async def handler(id: int) -> None: ...

    id, teller = newer(new, "another task", handler)(1), Teller(app.store)

    def looked() -> Message:
        app.run_worker(["default"], burst=True)
        return stored(app, id)

    assert [f.kind for f in looked().faults] == ["unroutable"], "nobody knows it"
    clock.advance("50s")
    teller.tell(release_of(["default"], new.tasks))
    for _ in range(5):
        clock.advance("14s")
        message = looked()
        assert message.lane is Lane.READY and len(message.faults) == 1
        teller.tell(release_of(["default"], new.tasks))
    clock.advance("59s")  # the last that knew it told this long ago
    assert looked().lane is Lane.READY
    clock.advance("10s")
    assert looked().reason == "unroutable"


def test_a_worker_of_another_queue_or_of_an_older_version_does_not_know_it() -> None:
    app, clock = App("memory://"), ManualClock()
    store = MemoryStore(clock_ms=clock.now_ms)

    @app.task(name="push", version=2)
    def push(id: int, color: str = "red") -> None: ...

    Teller(store).tell(release_of(["a"], app.tasks))
    knowledge = Knowledge(store)
    knowledge.read()
    known = knowledge.known_ms
    assert known("a", "push", 2) == known("a", "push", 1, ("id", "color")) == clock()
    assert known("b", "push", 2) is None and known("a", "push", 3) is None and known("a", "pull", 1) is None
    assert known("a", "push", 1, ("size",)) is None and known("a", "push", 1, ("size",), above=2) is None
    assert known("a", "push", 1, ("size",), above=1) == clock(), "a later version may lift it"
    assert knowledge.is_alive(clock()) and not knowledge.is_alive(None)
    clock.advance("15s")
    assert not knowledge.is_alive(known("a", "push", 2))


def test_workers_of_one_release_tell_it_once_in_a_while() -> None:
    app, clock = App("memory://"), ManualClock()
    store = MemoryStore(clock_ms=clock.now_ms)

    @app.task(name="push")
    def push(id: int) -> None: ...

    tellers, versions = [Teller(store) for _ in range(5)], list[int]()
    for _ in range(10):
        for teller in tellers:
            teller.tell(release_of(["a"], app.tasks))
        clock.advance("1s")
        (cell,) = store.cells.read(["knows"])
        assert cell is not None
        versions.append(cell.version)
    assert len(set(versions)) == 2, "one of five workers each 4.5 s"


def test_no_living_release_is_forgotten_however_many_there_are() -> None:
    app, clock = App("memory://"), ManualClock()
    store = MemoryStore(clock_ms=clock.now_ms)

    @app.task(name="push")
    def push(id: int) -> None: ...

    Teller(store).tell(release_of(["gone"], app.tasks))
    clock.advance("1m")
    queues = [f"q{n}" for n in range(80)]
    for queue in queues:
        Teller(store).tell(release_of([queue], app.tasks))
    knowledge = Knowledge(store)
    knowledge.read()
    assert {queue for release in knowledge._releases.values() for queue in release.queues} == {*queues}


def test_cells_altered_by_hand_are_written_anew() -> None:
    app = App("memory://")
    release, teller = release_of(["a"], app.tasks), Teller(app.store)
    app.store.cells.swap([Swap("knows", 0, b"{"), Swap("waits", 0, b"[]")])
    teller.tell(release)
    knowledge = Knowledge(app.store)
    knowledge.read()
    knowledge.waits("a", ["t"])
    assert waiting_tasks(app.store) == {"a": ["t"]}


def test_a_worker_that_knows_everything_asks_nothing_more(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ran = list[ClaimRequest](), list[int]()

    def unread(self: Knowledge) -> None:
        raise AssertionError("it reads what others know")

    monkeypatch.setattr(Knowledge, "read", unread)
    exchange = app.store.exchange

    def watched(settlements: Any, asks: Any, **rest: Any) -> Any:
        asked.extend(asks)
        return exchange(settlements, asks, **rest)

    monkeypatch.setattr(app.store, "exchange", watched)

    @app.task(name="push")
    async def push(id: int) -> None:
        ran.append(id)

    for n in range(50):
        push.enqueue(n)
    app.run_worker(["default"], burst=True)
    assert len(ran) == 50 and {ask.skip for ask in asked} == {frozenset()}


def test_while_nobody_can_be_asked_nothing_is_decided(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells fail for a while: what is unknown is neither dead nor put off by that."""
    old, failing = older(app, "another task", [], park_for="10ms"), [3]
    read = Knowledge.read

    def out(self: Knowledge) -> None:
        if failing[0]:
            failing[0] -= 1
            raise StoreUnavailable("cells are out")
        read(self)

    monkeypatch.setattr(Knowledge, "read", out)

    async def handler(id: int) -> None: ...

    id = newer(app, "another task", handler)(1)
    heard = Heard(old)
    old.run_worker(["default"], drain=True)
    assert not failing[0] and "store_unavailable" in heard.notices
    assert stored(app, id).reason == "unroutable"


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_living_worker_of_another_release_knows_is_said_to_be_left_to_it(kind: str) -> None:
    clock = ManualClock()
    app = App(store=MemoryStore(clock))
    old = older(app, kind, [])
    old.task(name="other")(lambda: None)
    enqueue = newer(app, kind, asyncio.sleep)
    message = app.store.find([enqueue(1)])[0]
    assert message is not None

    def holds() -> list[tuple[str, str]]:
        return [(hold.kind, hold.text) for hold in Reasons(app.store, old).of(message)]

    expected = {
        "another task": "this app has no task 'push', and a message of an unknown task dies in time",
        "a newer version": "a message of push waits for a newer worker: version 2 is not known to this app",
        "another argument": "a message of push waits for a newer worker: no argument 'color' is known to this app",
    }
    assert holds() == [("no_task", expected[kind])]
    Teller(app.store).tell(release_of(["default"], app.tasks))
    assert holds() == [("release", "task push is known to workers of another release than this app, and left to them")]
    clock.advance(GONE_MS / 1000)
    assert holds() == [("no_task", expected[kind])]


def test_a_redrive_run_says_that_no_worker_knows_what_it_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary waited for five minutes without a reason: its messages were sent before an argument went away."""
    monkeypatch.setattr("redrive.decide.PARK_LOOK_FIRST_MS", PARK_LOOK_MS)  # else it is due before a slow machine looks
    monkeypatch.setattr("redrive.worker.rollout.waking.TIMES", 0)  # else this worker's start may make it due
    app = App("memory://")

    @app.task(name="invoice.send", retry=Retry(max_attempts=1))
    def send(number: int) -> None: ...

    (id,) = (put(app, Draft(task="invoice.send", body=b'{"number":1,"to":"a@b"}')),)
    (delivery,) = app.store.exchange([], [ClaimRequest("default", 1, 60_000)]).deliveries
    fault = classify(ConnectionError("the mail server is down"))
    app.store.exchange([Settlement(delivery.receipt, DeadLetter("exhausted"), fault)], [])
    run = app.dlq.select("task:invoice.send").plan().start(reason="it is back", actor="ann")
    app.run_worker(burst=True)
    view = run.view()
    assert (view.counts["moved"], view.counts["waiting"], view.per_s) == (1, 1, None)
    (hold,) = [hold for hold in Reasons(app.store, app).of_run(view, run.plan) if hold.kind == "no_task"]
    assert hold.text == (
        "a message of invoice.send waits for a newer worker: body does not fit invoice.send(number: 'int'): "
        "no argument 'to' is known here"
    )
    assert app.store.find([id])[0].faults[-1].error == "redrive.errors.Unroutable"  # type: ignore[union-attr]
