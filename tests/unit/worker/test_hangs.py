"""A worker whose event loop is blocked, or whose places are all taken by what does not end, keeps no other message."""

from __future__ import annotations

import asyncio
import io
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.workers import PATIENCE_S

from redrive import App
from redrive.decide import Policy
from redrive.events import Notice
from redrive.message import ClaimRequest, Delivery
from redrive.observe.logs import TextLog
from redrive.worker.capacity import QueueLimit, WorkerLimit
from redrive.worker.execution import Execution, WorkerQueue
from redrive.worker.hang import LEAST_S, PAUSED_S, Hangs, unbegun

LEASE = "3s"  # so silence of a second is a hang


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path / 'work.db'}")
    yield app
    app.store.close()


class Scene:
    """An app with a task that blocks its thread until it is let go, and one that does nothing."""

    def __init__(self, app: App, *, on_loop: bool, timeout: str = "60s") -> None:
        self.app, self.go, self.blocked, self.ran = app, threading.Event(), threading.Event(), list[int]()
        self.notices: list[Notice] = []
        app.subscribe(lambda events: self.notices.extend(each for each in events if isinstance(each, Notice)))

        async def roll() -> None:
            self.blocked.set()
            assert self.go.wait(60)

        def spin() -> None:
            self.blocked.set()
            assert self.go.wait(60)

        self.block = app.task(name="stats.roll", queue="stats", timeout=timeout)(roll if on_loop else spin)

        @app.task(name="charge", queue="stats")
        async def charge(n: int) -> None:
            self.ran.append(n)

        self.charge = charge

    def notice(self, name: str) -> Notice:
        return wait_for(lambda: next((notice for notice in self.notices if notice.name == name), None))


def wait_for(look: Callable[[], Any]) -> Any:
    end_s = time.monotonic() + PATIENCE_S
    while not (value := look()):
        assert time.monotonic() < end_s, "what was waited for did not come"
        time.sleep(0.01)
    return value


@contextmanager
def working(scene: Scene, **options: Any) -> Iterator[None]:
    """A worker on an event loop in a thread of its own, let go at the end."""
    over = threading.Event()

    async def main() -> None:
        async with scene.app.worker(lease=LEASE, **options):
            await asyncio.get_running_loop().run_in_executor(None, over.wait)

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    try:
        yield
    finally:
        scene.go.set()
        over.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def claim_all(app: App, queue: str, count: int) -> list[Delivery]:
    """What another worker gets, once so many are ready."""
    other = App(app.url)
    try:
        wait_for(lambda: other.store.counts(queue).ready == count)
        return list(other.store.exchange([], [ClaimRequest(queue, 100, 60_000)]).deliveries)
    finally:
        other.store.close()


def test_a_blocked_loop_gives_back_what_has_not_begun_uncounted_and_as_old_as_it_was(app: App) -> None:
    scene = Scene(app, on_loop=True)
    scene.block.enqueue()
    ids = {ref.id for ref in app.enqueue_many([scene.charge.draft(n) for n in range(8)])}
    with working(scene, concurrency=1):
        assert scene.blocked.wait(PATIENCE_S)
        taken = claim_all(app, "stats", 8)
        assert {delivery.message.id for delivery in taken} == ids
        for delivery in taken:
            assert (delivery.message.attempt, delivery.message.crashes) == (1, 0)
            assert delivery.due_ms == delivery.message.enqueued_ms


def test_a_hung_worker_names_the_task_and_shows_the_stack_that_blocks_it(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(app, on_loop=True)
    scene.block.enqueue()
    with working(scene), caplog.at_level(logging.WARNING, logger="redrive.worker"):
        notice = scene.notice("worker_hung")
        [record] = wait_for(lambda: [r for r in caplog.records if "has not turned" in r.getMessage()])
    assert notice.about == "stats.roll"
    for text in (notice.text, record.getMessage()):
        assert "it runs stats.roll (" in text and "in roll" in text and "assert self.go.wait(60)" in text
        assert "redrive/worker" not in text


def test_a_hung_call_of_several_messages_is_named(app: App) -> None:
    scene = Scene(app, on_loop=True)

    @app.task(name="stats.all", queue="stats", gather=5)
    async def roll_all(items: list[int]) -> None:
        assert scene.go.wait(60)

    app.enqueue_many([roll_all.draft(n) for n in range(3)])
    with working(scene):
        notice = scene.notice("worker_hung")
    assert notice.about == "stats.all" and "in roll_all" in notice.text and "assert scene.go.wait(60)" in notice.text


def test_a_worker_whose_loop_turns_again_says_so_and_claims_again(app: App) -> None:
    scene = Scene(app, on_loop=True)
    scene.block.enqueue()
    with working(scene):
        scene.notice("worker_hung")
        scene.charge.enqueue(7)
        scene.go.set()
        assert "it goes on after" in scene.notice("worker_back").text
        assert wait_for(lambda: scene.ran) == [7]


@pytest.mark.parametrize("on_loop", [False, True], ids=["threads", "coroutines that ignore their end"])
def test_a_queue_of_whose_places_none_comes_free_gives_back_what_waits_and_others_go_on(
    app: App, on_loop: bool
) -> None:
    scene = Scene(app, on_loop=False, timeout="100ms")
    if on_loop:

        @app.task(name="deaf", queue="stats", timeout="100ms")
        async def deaf() -> None:
            while not scene.go.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)

        app.enqueue_many([deaf.draft(), deaf.draft()])
    else:
        app.enqueue_many([scene.block.draft(), scene.block.draft()])
    ran = threading.Event()

    @app.task(name="mail", queue="mail")
    def mail() -> None:
        ran.set()

    [ref] = app.enqueue_many([scene.charge.draft(1)])
    with working(scene, queues={"stats": 2, "mail": 1}):
        notice = scene.notice("worker_hung")
        assert "all places of queue stats are taken by executions that are past their timeouts" in notice.text
        assert notice.about == ("deaf" if on_loop else "stats.roll") and "and 1 more" in notice.text
        assert [delivery.message.id for delivery in claim_all(app, "stats", 1)] == [ref.id]
        mail.enqueue()
        assert ran.wait(PATIENCE_S)


def test_lines_of_the_text_log_show_the_stack_indented() -> None:
    stream = io.StringIO()
    TextLog(stream)([Notice(name="worker_hung", worker="w", text='it hangs\n  File "a.py", line 1, in f', about="t")])
    assert stream.getvalue().split("\n", 1)[1] == '      File "a.py", line 1, in f\n'


# -- when something hangs, on a clock of the test


class Clock:
    """Hangs with a lease of nine seconds: three of silence are a hang."""

    def __init__(self, *executions: Any, running: int = 0) -> None:
        self.turned_s = self.now_s = time.monotonic()
        worker: WorkerLimit[Execution] = WorkerLimit(2)
        limit = QueueLimit(2, worker)
        for _ in range(running):
            assert limit.take()
        in_flight: Any = SimpleNamespace(all=lambda: executions)
        self.hangs = Hangs(in_flight, {"q": limit}, lambda: self.turned_s, 9.0)

    def after(self, seconds: float, *, turning: bool) -> bool:
        """Whether something hangs, looked at twice a second."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + 0.5)
            if turning:
                self.turned_s = self.now_s
            hang = self.hangs.look(self.now_s)
        return hang is not None


def test_a_loop_hangs_once_it_has_not_turned_for_a_third_of_a_lease() -> None:
    clock = Clock()
    assert not clock.after(60, turning=True)
    assert not clock.after(2.9, turning=False)
    assert clock.after(0.2, turning=False)
    assert clock.after(60, turning=False)
    assert not clock.after(0.5, turning=True)


def test_a_process_that_stood_still_as_a_whole_does_not_hang() -> None:
    clock = Clock()
    clock.after(1, turning=True)
    clock.now_s += PAUSED_S + 100  # SIGSTOP, or a paused machine: the store thread looks before the loop turns
    assert clock.hangs.look(clock.now_s) is None
    assert not clock.after(0.5, turning=True)


def test_no_lease_is_so_short_that_a_moment_is_a_hang() -> None:
    in_flight: Any = SimpleNamespace(all=list)
    began_s = time.monotonic()
    hangs = Hangs(in_flight, {}, lambda: began_s, 0.3)
    assert hangs.look(began_s + LEAST_S * 0.9) is None
    assert hangs.look(began_s + LEAST_S * 1.1) is not None


def an_execution(clock_s: float, *, timeout_s: float, place: str = "thread", queue: str = "q") -> Any:
    message = SimpleNamespace(queue=queue, task="t", id="m")
    return SimpleNamespace(
        delivery=SimpleNamespace(message=message), started_s=clock_s, finished_s=0.0, executor=place,
        deadline_s=clock_s + timeout_s, handle=None, runner=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("timeouts_s", "place", "hangs"),
    [((1, 1), "thread", True), ((1, 100), "thread", False), ((1,), "thread", False), ((1, 1), "process", False)],
    ids=["all late", "one in time", "a place is free", "children are killed at their timeouts"],
)
def test_a_queue_hangs_if_all_its_places_are_past_their_timeouts(
    timeouts_s: tuple[int, ...], place: str, hangs: bool
) -> None:
    now_s = time.monotonic()
    clock = Clock(*(an_execution(now_s, timeout_s=each, place=place) for each in timeouts_s), running=len(timeouts_s))
    assert not clock.after(3.5, turning=True)  # a second of timeout, and three of patience
    assert clock.after(1, turning=True) is hangs


@pytest.mark.parametrize(
    ("most", "timeouts_s", "hanging"),
    [((4, 4), (1, 100), set()), ((1, 4), (1, 100), {"a"}), ((4, 4), (1, 1), {"a", "b"})],
    ids=["a place of the other comes free", "at its own limit", "all of the worker's places"],
)
def test_at_the_limit_of_the_worker_a_queue_hangs_only_if_no_place_comes_free(
    most: tuple[int, int], timeouts_s: tuple[int, int], hanging: set[str]
) -> None:
    now_s, worker = time.monotonic(), WorkerLimit[Execution](2)
    limits = {name: QueueLimit(limit, worker) for name, limit in zip("ab", most, strict=True)}
    executions = [an_execution(now_s, timeout_s=each, queue=name) for name, each in zip("ab", timeouts_s, strict=True)]
    assert all(limit.take() for limit in limits.values())
    in_flight: Any = SimpleNamespace(all=lambda: executions)
    turned_s = now_s + 5
    hangs = Hangs(in_flight, limits, lambda: turned_s, 9.0)
    hang = hangs.look(turned_s)
    assert hanging == (set() if hang is None else hang.queues)


# -- an execution begins, or goes back, and never both


def execution_of(app: App) -> Execution:
    [delivery] = app.store.exchange([], [ClaimRequest("stats", 1, 60_000)]).deliveries
    run = Execution(delivery, WorkerQueue(QueueLimit(1, WorkerLimit(1))), time.monotonic() + 60)
    run.task = app.tasks["charge"]
    return run


def test_what_went_back_does_not_begin(app: App) -> None:
    Scene(app, on_loop=True).charge.enqueue(1)
    run = execution_of(app)
    assert unbegun([run]) == [run]
    with pytest.raises(Exception, match="was not held to its start"):
        run.begin(None)
    assert not run.started_s


def test_what_has_begun_does_not_go_back(app: App) -> None:
    Scene(app, on_loop=True).charge.enqueue(1)
    run = execution_of(app)
    run.begin(None)
    assert unbegun([run]) == [] and run.cause is None


def test_an_execution_has_its_deadline_before_it_counts_as_started(app: App) -> None:
    """Other threads end what is past its deadline: with none it would be."""
    Scene(app, on_loop=True).charge.enqueue(1)
    run, started_s = execution_of(app), []

    class Spec:
        policy = Policy(timeout_s=5.0)
        takes_context = False

        def __getattribute__(self, name: str) -> Any:
            if name == "policy":
                started_s.append(run.started_s)
            return object.__getattribute__(self, name)

    run.task = Spec()
    run.begin(None)
    assert started_s == [0.0] and run.deadline_s == run.started_s + 5.0
