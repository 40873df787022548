"""Schedules as declared, and schedulers that share a store: each tick is enqueued once."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.workers import Heard, until

from redrive import App, Draft
from redrive.enqueue import Task
from redrive.errors import ConfigError, Conflict, EnqueueError, StoreUnavailable, Unsupported
from redrive.events import Notice
from redrive.message import Message, PutResult, Swap
from redrive.observe.logs import TextLog
from redrive.schedule import Missed, Scheduler, SchedulerWatch, ScheduleState, last_seen
from redrive.schedule.scheduler import STEP_MS, DueSchedule
from redrive.schedule.turn import TAKE_OVER_MS
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqlite.store import SqliteStore
from redrive.testing import ManualClock

SECOND = 1000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[App]:
    store = MemoryStore(clock) if request.param == "memory" else SqliteStore(tmp_path / "work.db", clock_ms=clock)
    yield App(store=store)
    store.close()


def stored(app: App) -> list[Message]:
    return app.store.peek(None, limit=10_000).messages


def ticks(app: App, name: str) -> list[str]:
    """The ticks in the headers of what a schedule enqueued, in the order of enqueue."""
    ours = [m for m in stored(app) if m.headers.get("redrive-schedule") == name]
    return [m.headers["redrive-tick"] for m in sorted(ours, key=lambda m: m.enqueued_ms) if "redrive-tick" in m.headers]


# -- declaring


def test_above_a_task_it_gives_that_task_back() -> None:
    app = App("memory://")

    @app.task(name="report", queue="slow")
    def report() -> str:
        return "made"

    assert app.periodic("@daily", tz="Europe/Zurich")(report) is report
    schedule = app.schedules["report"]
    assert (schedule.task, schedule.queue, schedule.missed) == (report, "slow", Missed.LAST)
    assert report() == "made"


def test_on_a_function_it_registers_the_task_with_its_options() -> None:
    app = App("memory://")

    @app.periodic(every="30s", name="beat", queue="quick", retry="payments", timeout="5s")
    async def beat() -> None: ...

    assert isinstance(beat, Task)
    assert app.tasks == {"beat": beat}
    assert (beat.queue, beat.policy.timeout_s, beat.policy.retry.max_attempts) == ("quick", 5.0, 3)
    assert app.schedules["beat"].task is beat


def test_one_task_may_have_several_schedules() -> None:
    app = App("memory://")

    @app.periodic("0 0 * * *", name="full", kwargs={"full": True}, queue="night")
    @app.periodic("*/5 * * * *", name="quick", args=(False,))
    @app.task(name="sync")
    def sync(full: bool) -> None: ...

    assert [(s.name, s.queue, s.draft(0).body) for s in app.schedules.values()] == [
        ("quick", "default", b'{"full":false}'),
        ("full", "night", b'{"full":true}'),
    ]
    assert {queue.name for queue in app.queues_of(None)} == {"default", "night"}


def test_a_message_says_its_schedule_and_tick() -> None:
    app = App("memory://")

    @app.periodic("* * * * *", tz="Europe/Zurich", priority=0, group="g", key="k")
    @app.task(name="t")
    def t(tick: datetime, n: int = 1) -> None: ...

    draft = app.schedules["t"].draft(1_750_000_020_000)
    assert draft.headers == {"redrive-schedule": "t", "redrive-tick": "2025-06-15T15:07:00.000Z"}
    assert draft.body == b'{"tick":"2025-06-15T17:07:00+02:00"}'
    assert (draft.priority, draft.group, draft.key, draft.delay_ms) == (0, "g", "k", 0)


def test_jitter_spreads_and_is_the_same_everywhere() -> None:
    delays = []
    for _ in range(2):
        app = App("memory://")
        app.periodic("* * * * *", name="t", jitter="10s")(lambda: None)
        delays.append([app.schedules["t"].draft(n * 60_000).delay_ms for n in range(200)])
    assert delays[0] == delays[1]
    assert min(delays[0]) >= 0
    assert max(delays[0]) < 10_000
    assert len(set(delays[0])) > 150
    assert 4_000 < sum(delays[0]) / 200 < 6_000


def declare_twice(app: App) -> None:
    app.periodic("@hourly", name="twice")(app.task(name="one")(lambda: None))
    app.periodic("@hourly", name="twice")(app.task(name="two")(lambda: None))


def periodic_with(**options: object) -> object:
    def declare(app: App) -> None:
        @app.task(name="t")
        def t(n: int = 0, tick: datetime | None = None) -> None: ...

        app.periodic("@hourly", **options)(t)  # type: ignore[arg-type]

    return declare


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (declare_twice, "schedule 'twice' is declared twice"),
        (periodic_with(missed="lost"), "did you mean 'last'? expected one of last, all, skip"),
        (periodic_with(kwargs={"m": 1}), "schedule 't': task 't': "),
        (periodic_with(kwargs={"n": "one"}), "schedule 't': task 't': "),
        (periodic_with(kwargs={"tick": 1}), "parameter 'tick' is given the tick's time"),
        (periodic_with(priority=9), "schedule 't': priority 9"),
        (periodic_with(jitter=-1), "jitter -1 is refused"),
        (periodic_with(retry="payments"), "retry= of task 't': give it to @app.task(…)"),
        (lambda app: app.periodic("@hourly")(App("memory://").task(name="t")(lambda: None)), "belongs to another app"),
        (lambda app: app.periodic("@hourly")(3), "stands above a task or a function, not 3"),
        (lambda app: app.periodic(lambda: None), 'write @app.periodic("'),
    ],
)
def test_what_cannot_be_meant_is_told_where_it_is_written(declare: object, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        declare(App("memory://"))  # type: ignore[operator]
    assert told in str(raised.value)


# -- ticks


def test_a_schedule_that_is_new_has_no_past_and_ticks_from_then_on(app: App, clock: ManualClock) -> None:
    app.periodic(every="10s", name="t")(lambda: None)
    scheduler = app.scheduler()
    assert scheduler.step() == STEP_MS
    assert stored(app) == []
    clock.advance("9999ms")
    assert scheduler.step() == 1
    clock.advance("1ms")
    assert scheduler.step() == STEP_MS
    assert ticks(app, "t") == ["2025-06-15T15:06:50.000Z"]
    assert scheduler.step() == STEP_MS
    assert len(stored(app)) == 1


def test_several_that_are_due_go_in_one_commit(app: App, clock: ManualClock) -> None:
    for name in ("a", "b", "c"):
        app.periodic(every="10s", name=name, missed="all")(lambda: None)
    scheduler, puts = app.scheduler(), Puts(app.store)
    app._store = scheduler._store = puts  # type: ignore[assignment]
    scheduler.step()
    clock.advance("30s")
    scheduler.step()
    assert [len(drafts) for drafts, _ in puts.calls] == [0, 9]
    assert [len(ticks(app, name)) for name in ("a", "b", "c")] == [3, 3, 3]


@pytest.mark.parametrize(("missed", "left"), [("last", 1), ("all", 7), ("skip", 0)])
def test_ticks_missed_while_nobody_ran(app: App, clock: ManualClock, missed: str, left: int) -> None:
    app.periodic(every="10s", name="t", missed=missed)(lambda: None)
    app.scheduler().step()
    clock.advance("78s")
    app.scheduler().step()
    assert len(ticks(app, "t")) == left
    clock.advance("2s")
    app.scheduler().step()
    assert len(ticks(app, "t")) == left + 1


def test_a_worker_warns_of_schedules_that_no_scheduler_ran_within_a_minute(app: App, clock: ManualClock) -> None:
    app.periodic(every="1h", name="hourly")(lambda: None)
    app.spec = "tasks:app"
    notices: list[tuple[str, str]] = []

    def look() -> list[tuple[str, str]]:
        notices.clear()
        watch = SchedulerWatch(app, "worker", lambda name, text, *_: notices.append((name, text)), after_s=0)
        watch.begin()
        watch.look()
        watch.look()
        return notices[:]

    told = "schedule hourly has no scheduler: nothing enqueues the ticks; "
    told += "run `redrive scheduler tasks:app`, or one worker with --scheduler"
    assert look() == [("no_scheduler", told)]
    app.scheduler().step()
    assert look() == []
    clock.advance(61)
    assert look() == [("no_scheduler", told)]
    app.schedules["hourly"].pause()
    assert look() == []
    app.schedules["hourly"].resume()
    app.schedules_watched = True  # a scheduler runs in this process
    assert look() == []


def test_a_worker_within_a_program_logs_that_no_scheduler_runs(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app.periodic(every="1h", name="hourly")(lambda: None)
    watch = SchedulerWatch(app, "worker", lambda *_: None, after_s=0)
    watch.begin()
    watch.look()
    assert [(each.name, each.levelname) for each in caplog.records] == [("redrive.worker", "WARNING")]
    assert "schedule hourly has no scheduler" in caplog.text
    caplog.clear()
    app.subscribe(TextLog(io.StringIO()))  # as `redrive worker` does: its own lines have the notice
    watch.begin()
    watch.look()
    assert not caplog.records


def test_schedulers_of_two_apps_on_one_store_are_both_seen(app: App) -> None:
    other = App(store=app.store)
    app.periodic(every="1h", name="ours")(lambda: None)
    other.periodic(every="1h", name="theirs")(lambda: None)
    for each in (app, other):
        each.scheduler().step()
    assert sorted(last_seen(app.store)) == ["ours", "theirs"]


def test_what_was_left_out_is_told(app: App, clock: ManualClock) -> None:
    app.periodic(every="10s", name="t")(lambda: None)
    heard = Heard(app)
    app.scheduler().step()
    clock.advance("30s")
    app.scheduler().step()
    told = [event.text for event in heard.events if isinstance(event, Notice)]
    assert told[0] == "t: missed ones after 2025-06-15T15:06:40.000Z and before 2025-06-15T15:07:10.000Z"
    assert told[1] == f"t at 2025-06-15T15:07:10.000Z: t {stored(app)[0].id}"


def test_a_paused_schedule_waits_for_resume_also_in_other_processes(app: App, clock: ManualClock) -> None:
    app.periodic(every="10s", name="t", missed="all")(lambda: None)
    schedule, scheduler = app.schedules["t"], app.scheduler()
    schedule.pause()  # before any scheduler ran
    assert schedule.state == ScheduleState("every 10000ms", clock(), paused=True)
    clock.advance("20s")
    assert scheduler.step() == STEP_MS
    assert ticks(app, "t") == []
    schedule.resume()
    scheduler.step()
    assert len(ticks(app, "t")) == 2


def test_a_changed_expression_starts_from_now(app: App, clock: ManualClock) -> None:
    app.periodic(every="7d", name="t", missed="all")(app.task(name="t")(lambda: None))
    app.scheduler().step()
    clock.advance("1h")
    del app.schedules["t"]
    app.periodic(every="10s", name="t", missed="all")(app.tasks["t"])
    app.scheduler().step()
    assert ticks(app, "t") == []
    clock.advance("10s")
    app.scheduler().step()
    assert len(ticks(app, "t")) == 1


def test_an_old_program_that_runs_on_does_not_stop_the_new_one(app: App, clock: ManualClock) -> None:
    task = app.task(name="t")(lambda: None)
    old = App(store=app.store)
    old.periodic(every="2s", name="t", missed="all")(old.task(name="t")(lambda: None))
    old_scheduler = old.scheduler()
    old_scheduler.step()
    app.periodic(every="5s", name="t", missed="all")(task)
    scheduler = app.scheduler()
    for _ in range(TAKE_OVER_MS // SECOND - 1):
        scheduler.step()
        assert old_scheduler.step() == STEP_MS
        clock.advance("1s")
    assert len(ticks(app, "t")) == TAKE_OVER_MS // SECOND // 5 - 1


def test_a_manual_run_is_outside_the_ticks(app: App, clock: ManualClock) -> None:
    @app.periodic("* * * * *", tz="Europe/Zurich", jitter="10s")
    @app.task(name="t")
    def t(tick: datetime) -> None: ...

    ref = app.schedules["t"].run()
    message = app.job(ref.id)
    assert message is not None
    assert message.headers == {"redrive-schedule": "t"}
    assert (message.body, message.due_ms) == (b'{"tick":"2025-06-15T17:06:40+02:00"}', clock())
    assert app.schedules["t"].state is None


def test_next_gives_times_in_the_zone(app: App) -> None:
    app.periodic("30 2 * * *", tz="Europe/Zurich", name="t")(lambda: None)
    after = datetime(2026, 3, 28, 12, tzinfo=UTC)
    assert [str(at) for at in app.schedules["t"].next(2, after)] == [
        "2026-03-29 03:00:00+02:00",
        "2026-03-30 02:30:00+02:00",
    ]
    (first,) = app.schedules["t"].next()
    assert first == datetime(2025, 6, 16, 0, 30, tzinfo=UTC)
    assert first.utcoffset() == timedelta(hours=2)


def test_more_ticks_than_one_commit_takes_go_in_several(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    store.traits = type(store.traits)(name="memory", batch_max=4)
    app = App(store=store)
    for name in ("a", "b", "c"):
        app.periodic(every="1s", name=name, missed="all")(lambda: None)
    app.scheduler().step()
    clock.advance("10s")
    scheduler, puts = app.scheduler(), Puts(store)
    app._store = scheduler._store = puts  # type: ignore[assignment]
    while scheduler.step() == 0:
        pass
    assert [len(ticks(app, name)) for name in ("a", "b", "c")] == [10, 10, 10]
    assert max(len(drafts) for drafts, _ in puts.calls) == 4
    assert len(puts.calls) == 8  # 4 4 2 of each, of which the last two fit together


def test_a_message_the_store_refuses_holds_no_other_schedule_up(app: App, clock: ManualClock) -> None:
    for name in ("a", "b", "c"):
        app.periodic(every="10s", name=name)(lambda: None)
    scheduler, puts, heard = app.scheduler(), Puts(app.store, refused="b"), Heard(app)
    app._store = scheduler._store = puts  # type: ignore[assignment]
    scheduler.step()
    for _ in range(3):
        clock.advance("10s")
        scheduler.step()
    assert [len(ticks(app, name)) for name in ("a", "b", "c")] == [3, 0, 3]
    assert heard.notices.count("schedule_refused") == 1
    puts.refused = ""
    scheduler.step()
    assert len(ticks(app, "b")) == 1


def test_a_state_that_cannot_be_read_starts_anew(app: App, clock: ManualClock) -> None:
    app.periodic(every="10s", name="t", missed="all")(lambda: None)
    app.store.cells.swap([Swap("schedule:t", 0, b"{")])
    app.scheduler().step()
    clock.advance("10s")
    app.scheduler().step()
    assert len(ticks(app, "t")) == 1


class Puts:
    """A store's put, watched, and refused for one task; everything else is the store's own."""

    def __init__(self, store: object, refused: str = "") -> None:
        self.store, self.refused = store, refused
        self.calls: list[tuple[Sequence[Draft], Sequence[Swap]]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.store, name)

    def put(self, drafts: Sequence[Draft], *, swaps: Sequence[Swap] = ()) -> list[PutResult]:
        if any(draft.task == self.refused for draft in drafts):
            raise EnqueueError("not this one")
        self.calls.append((drafts, swaps))
        puts: list[PutResult] = self.store.put(drafts, swaps=swaps)  # type: ignore[attr-defined]
        return puts


# -- several schedulers

# A round: so long later, these look and put in this order; what one puts may be from a look of an earlier round.
turns = st.lists(st.tuples(st.sampled_from(["look", "put", "step"]), st.integers(0, 2)), max_size=8)
rounds = st.lists(st.tuples(st.integers(0, 3000), turns), min_size=1, max_size=15)


@given(rounds)
def test_schedulers_interleaved_in_any_way_enqueue_each_tick_once(
    story: list[tuple[int, list[tuple[str, int]]]],
) -> None:
    clock = ManualClock()
    app = App(store=MemoryStore(clock))
    for name, every in (("a", "1s"), ("b", "1500ms")):
        app.periodic(every=every, name=name, missed="all")(lambda: None)
    start = clock()
    schedulers = [Scheduler(app) for _ in range(3)]
    schedulers[0].step()
    looked: list[list[DueSchedule]] = [[], [], []]
    for later_ms, actions in story:
        clock.advance(timedelta(milliseconds=later_ms))
        for what, who in actions:
            if what == "look":
                looked[who] = schedulers[who].look(app.schedules.values())
            elif what == "put":
                schedulers[who].put(looked[who])
            else:
                schedulers[who].step()
    schedulers[0].step()
    for name, every_ms in (("a", 1000), ("b", 1500)):
        expected = list(range((start // every_ms + 1) * every_ms, clock() + 1, every_ms))
        found = sorted(round(datetime.fromisoformat(tick).timestamp() * 1000) for tick in ticks(app, name))
        assert found == expected


def test_threads_that_schedule_at_once_enqueue_each_tick_once(tmp_path: Path) -> None:
    clock = ManualClock()
    apps = [App(store=SqliteStore(tmp_path / "work.db", clock_ms=clock)) for _ in range(4)]
    for app in apps:
        for name in ("a", "b"):
            app.periodic(every="1s", name=name, missed="all")(lambda: None)
    apps[0].scheduler().step()
    schedulers = [app.scheduler() for app in apps]
    for _ in range(15):
        clock.advance("1s")
        threads = [threading.Thread(target=scheduler.step) for scheduler in schedulers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name in ("a", "b"):
        found = ticks(apps[0], name)
        assert len(found) == len(set(found)) == 15
    for app in apps:
        app.store.close()


# -- running


def test_it_runs_beside_a_worker_until_the_block_ends() -> None:
    app = App("memory://")
    seen: list[datetime] = []

    @app.periodic(every="100ms")
    @app.task(name="t")
    async def t(tick: datetime) -> None:
        seen.append(tick)

    async def main() -> None:
        async with app.worker(), app.scheduler():
            await until(lambda: len(seen) >= 3)

    asyncio.run(main())
    assert "redrive-scheduler" not in [thread.name for thread in threading.enumerate()]
    gaps = {later - earlier for earlier, later in pairwise(seen)}
    assert all(gap % timedelta(milliseconds=100) == timedelta(0) and gap > timedelta(0) for gap in gaps)
    assert all(tick.tzinfo is not None for tick in seen)


def test_it_outlives_a_store_that_fails_and_says_so() -> None:
    app = App("memory://")
    app.periodic(every="100ms", name="t")(lambda: None)
    heard, scheduler = Heard(app), app.scheduler()
    failing = Failing(app.store, [StoreUnavailable("gone"), StoreUnavailable("gone"), Conflict("moved")])
    scheduler._store = failing  # type: ignore[assignment]

    async def main() -> None:
        async with scheduler:
            await until(lambda: "tick" in heard.notices)

    asyncio.run(main())
    assert heard.notices[:3] == ["started", "store_unavailable", "store_back"]
    assert heard.notices[-1] == "stopped"


def test_what_no_later_try_would_mend_ends_it() -> None:
    app = App("memory://")
    app.periodic(every="100ms", name="t")(lambda: None)
    scheduler = app.scheduler()
    scheduler._store = Failing(app.store, [Unsupported("no cells here")])  # type: ignore[assignment]
    with pytest.raises(Unsupported):
        scheduler.run()


class Failing(Puts):
    """A store whose cells fail a few times."""

    def __init__(self, store: object, errors: list[Exception]) -> None:
        super().__init__(store)
        self.errors = errors
        self.cells = self

    def read(self, keys: Sequence[str]) -> object:
        if self.errors:
            raise self.errors.pop(0)
        return self.store.cells.read(keys)  # type: ignore[attr-defined]


def test_run_scheduler_refuses_to_block_a_running_loop() -> None:
    async def main() -> None:
        App("memory://").run_scheduler()

    with pytest.raises(RuntimeError, match=r"async with app\.scheduler\(\)"):
        asyncio.run(main())


def test_an_app_without_schedules_loads_nothing_for_them() -> None:
    program = """
import sys
from redrive import App
app = App("memory://")
app.task(name="t")(lambda: None)
import redrive.cli.worker
assert not {"cronsim", "zoneinfo", "redrive.schedule"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
