"""The `rd` fixture: an app's tasks in a test, on a clock that jumps, by the worker's own code."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from redrive import (
    App,
    Backoff,
    Breaker,
    Budget,
    Context,
    Draft,
    Idempotency,
    Quarantine,
    Reject,
    Retry,
    RetryAfter,
    Snooze,
    context,
)
from redrive.errors import ConfigError
from redrive.events import Event, Notice
from redrive.message import GroupOrder, Lane, OnDead
from redrive.testing import Crash, Kit

HOURS = Retry(max_attempts=9, max_elapsed="1d", backoff=Backoff(base="100s", factor=2, cap="1d", jitter="none"))


class Program:
    """A small program with tasks of both kinds, as a user would have it."""

    def __init__(self, store: Path) -> None:
        self.app = app = App(f"sqlite:///{store}")
        self.sent: list[tuple[str, int]] = []

        @app.task(name="crm.push", queue="crm", retry=HOURS, timeout="30s")
        async def push(record_id: int, *, dry: bool = False) -> str:
            await asyncio.sleep(0)
            self.sent.append(("push", record_id))
            return f"pushed {record_id}"

        @app.task(name="mail", retry=Retry(max_attempts=2, backoff=Backoff.fixed("1m")))
        def mail(to: int) -> None:
            self.sent.append(("mail", to))
            if to < 0:
                raise ValueError(f"no such address: {to}")

        @app.task(name="order", ctx=True)
        def order(ctx: Context, id: int) -> None:
            push.using(delay="5m").enqueue(id)
            mail.enqueue(ctx.attempt)

        self.push, self.mail, self.order = push, mail, order


@pytest.fixture
def program(tmp_path: Path, rd: Kit) -> Program:
    made = Program(tmp_path / "work.db")
    rd.use(made.app)
    return made


# -- time


def test_eight_retries_over_seven_hours_take_no_time(rd: Kit, program: Program) -> None:
    program.push.enqueue(42)
    rd.fail_next(program.push, ConnectionError("refused"), times=8)
    summary = rd.drain()
    assert (summary.runs, summary.done, summary.failed, summary.dead, summary.left) == (9, 1, 8, 0, 0)
    assert summary.elapsed_s == 100 * (2**8 - 1) > timedelta(hours=7).total_seconds()
    assert [ran.delay_s for ran in rd.runs] == [100 * 2**n for n in range(8)] + [None]
    assert program.sent == [("push", 42)]


def test_a_delay_is_over_when_the_clock_was_advanced_by_it(rd: Kit, program: Program) -> None:
    program.push.using(delay="5m").enqueue(1)
    rd.advance("299s")
    assert rd.run_due().runs == 0
    rd.advance("1s")
    assert rd.run_due().runs == 1 and rd.run_due().elapsed_s == 0


def test_run_due_runs_what_is_enqueued_meanwhile_and_jumps_nowhere(rd: Kit, program: Program) -> None:
    program.order.enqueue(7)
    summary = rd.run_due()
    assert (summary.runs, summary.left, summary.elapsed_s) == (2, 1, 0)
    assert program.sent == [("mail", 1)]


def test_drain_until_a_duration_works_through_exactly_that_time(rd: Kit, program: Program) -> None:
    program.push.enqueue(1)
    rd.fail_next(program.push, times=8)
    assert rd.drain(until="1h").elapsed_s == 3600
    assert len(rd.runs) == 6  # at 0, 100, 300, 700, 1500 and 3100 s
    assert rd.drain(until="1h").runs == 1 and rd.drain().left == 0


def test_drain_until_a_condition_stops_before_the_next_message(rd: Kit, program: Program) -> None:
    program.app.enqueue_many(program.mail.draft(n) for n in range(5))
    assert rd.drain(until=lambda: len(program.sent) == 2).left == 3


def test_the_clock_starts_at_the_time_it_is(rd: Kit) -> None:
    assert abs(rd.now.timestamp() - time.time()) < 60
    before = rd.now
    rd.advance("2d")
    assert rd.now - before == timedelta(days=2)


def test_messages_run_in_the_order_of_their_times_over_all_queues(rd: Kit, program: Program) -> None:
    program.push.using(delay="2m").enqueue(2)
    program.mail.using(delay="1m").enqueue(1)
    program.push.using(delay="3m", queue="elsewhere").enqueue(3)
    rd.drain()
    assert program.sent == [("mail", 1), ("push", 2), ("push", 3)]


def test_a_handler_that_comes_back_for_ever_is_an_error_that_shows_it(rd: Kit, program: Program) -> None:
    @program.app.task(name="again")
    def again() -> None:
        raise Snooze("1m")

    again.enqueue()
    with pytest.raises(AssertionError, match=r"20 runs, and 20m after.*\n(.*again\(\)  snoozed in 1m\n?){5}"):
        rd.drain(max_runs=20)
    assert rd.run_due().runs == 0, "the kit can be used again"


def test_advance_goes_to_a_time_but_never_back(rd: Kit, program: Program) -> None:
    goal = rd.now + timedelta(hours=3)
    rd.advance(goal)
    assert rd.now == goal
    program.push.using(delay="1h").enqueue(1)
    assert rd.drain(until=goal + timedelta(hours=2)).done == 1 and rd.now == goal + timedelta(hours=2)
    with pytest.raises(ConfigError, match="time does not go back"):
        rd.advance(goal)
    with pytest.raises(ConfigError, match="no time zone"):
        rd.advance(datetime(2100, 1, 1))  # noqa: DTZ001


# -- schedules


class Ticks:
    """An app with a nightly task, and what it saw."""

    def __init__(self, missed: str) -> None:
        self.app = app = App("memory://")
        self.seen: list[datetime] = []

        @app.periodic("0 3 * * *", tz="Europe/Berlin", missed=missed)
        @app.task(name="nightly")
        def nightly(tick: datetime) -> None:
            self.seen.append(tick)

        self.nightly = nightly


def test_tick_jumps_to_the_next_one_and_a_scheduler_enqueues_it(rd: Kit) -> None:
    ticks = Ticks("last")
    rd.use(ticks.app)
    first = rd.tick("nightly")
    assert rd.now == first and (first.hour, first.minute) == (3, 0) and str(first.tzinfo) == "Europe/Berlin"
    assert rd.run_due().done == 1 and rd.drain().left == 0
    second = rd.tick(ticks.nightly)
    rd.drain()
    assert ticks.seen == [first, second] and second.date() - first.date() == timedelta(days=1)
    rd.assert_enqueued(ticks.nightly, tick=second, times=1)


@pytest.mark.parametrize(("missed", "days"), [("last", [0, 3, 4]), ("all", [0, 1, 2, 3, 4]), ("skip", [0, 4])])
def test_ticks_that_time_passed_over_are_missed(rd: Kit, missed: str, days: list[int]) -> None:
    ticks = Ticks(missed)
    rd.use(ticks.app)
    first = rd.tick(ticks.nightly)
    rd.advance("3d12h")
    rd.tick(ticks.nightly)
    rd.drain()
    assert [(tick.date() - first.date()).days for tick in ticks.seen] == days


def test_a_tick_keeps_to_local_time_over_a_change_of_it(rd: Kit) -> None:
    ticks = Ticks("last")
    rd.use(ticks.app)
    year = rd.now.year + 1
    rd.advance(datetime(year, 10, 20, 12, tzinfo=UTC))
    made = []
    for _ in range(14):
        made.append(rd.tick(ticks.nightly))
        assert rd.now == made[-1] and rd.run_due().done == 1
    assert {tick.astimezone(UTC).hour for tick in made} == {1, 2} and ticks.seen == made


def test_a_schedule_that_is_not_there_is_named(rd: Kit, program: Program) -> None:
    rd.use(Ticks("last").app)
    with pytest.raises(ConfigError, match="no schedule 'nightley' in this test's apps; known: 'nightly'"):
        rd.tick("nightley")
    with pytest.raises(ConfigError, match=r"no schedule <redrive task 'crm.push'"):
        rd.tick(program.push)


# -- the app


def test_the_app_has_its_own_store_back_afterwards(tmp_path: Path) -> None:
    program = Program(tmp_path / "work.db")
    with Kit(program.app) as rd:
        program.push.enqueue(1)
        assert rd.counts("crm").ready == 1
    assert not (tmp_path / "work.db").exists(), "no file was touched"
    assert program.app.counts("crm").ready == 0
    program.app.store.close()


def test_a_store_that_was_open_is_put_back_as_it_was(tmp_path: Path) -> None:
    program = Program(tmp_path / "work.db")
    program.push.enqueue(1)
    own = program.app.store
    with Kit()(program.app) as rd:
        rd.use(program.app)  # twice is once
        assert rd.counts().ready == 0
    assert program.app.store is own and program.app.counts().ready == 1
    own.close()


def test_several_apps_share_the_store(rd: Kit, program: Program, tmp_path: Path) -> None:
    other = App(f"sqlite:///{tmp_path}/other.db")

    @other.task(name="report")
    def report() -> str:
        program.push.enqueue(5)
        return "sent"

    rd.use(other)
    report.enqueue()
    assert rd.drain().done == 2 and program.sent == [("push", 5)]


def test_a_drain_without_an_app_is_an_error(rd: Kit) -> None:
    with pytest.raises(ConfigError, match=r"call rd\.use\(app\) first"):
        rd.drain()


def test_tasks_declared_after_use_are_run_too(rd: Kit, program: Program) -> None:
    @program.app.task(name="late")
    def late() -> str:
        return "here"

    late.enqueue()
    rd.drain()
    assert [ran.result for ran in rd.done(late)] == ["here"]


def test_observers_are_told_as_by_a_worker(rd: Kit, program: Program) -> None:
    events: list[Event] = []
    program.app.subscribe(events.extend)
    program.mail.enqueue(-1)
    rd.drain()
    assert [getattr(event, "outcome", None) for event in events] == ["retry", "dead"]


def test_refs_states_and_cancels_are_those_of_the_test_store(rd: Kit, program: Program) -> None:
    ref = program.push.using(delay="1h").enqueue(1)
    assert ref.state == "scheduled" and program.app.cancel(ref.id) == "cancelled"
    assert rd.drain().runs == 0 and ref.state == "cancelled"


# -- what goes wrong


def test_fail_next_fails_that_many_runs_of_that_task_only(rd: Kit, program: Program) -> None:
    program.push.enqueue(1)
    program.mail.enqueue(1)
    rd.fail_next("crm.push", TimeoutError)
    rd.drain()
    assert [(ran.task, ran.outcome) for ran in rd.runs] == [
        ("crm.push", "retry"),
        ("mail", "done"),
        ("crm.push", "done"),
    ]
    assert rd.runs[0].fault is not None and rd.runs[0].fault.error == "TimeoutError"


def test_fail_next_after_leaves_the_side_effects(rd: Kit, program: Program) -> None:
    program.mail.enqueue(1)
    rd.fail_next(program.mail, after=True)
    rd.drain()
    assert program.sent == [("mail", 1), ("mail", 1)]


@pytest.mark.parametrize(
    ("error", "outcome", "delay_s"),
    [
        (Snooze("2m"), "snoozed", 120.0),
        (Reject("no"), "dead", None),
        (Quarantine("poison"), "quarantined", None),
        (PermissionError("403"), "retry", None),
    ],
)
def test_errors_steer_as_raised_by_a_handler(
    rd: Kit, program: Program, error: Exception, outcome: str, delay_s: float | None
) -> None:
    program.push.enqueue(1)
    rd.fail_next(program.push, error)
    rd.run_due()
    assert rd.runs[0].outcome == outcome
    assert delay_s is None or rd.runs[0].delay_s == delay_s


def test_an_asked_delay_is_a_floor(rd: Kit, program: Program) -> None:
    program.mail.enqueue(1)
    rd.fail_next(program.mail, RetryAfter("10m"))
    assert 600 <= rd.drain().elapsed_s <= 720


def test_a_crash_is_counted_and_the_message_comes_again_when_its_lease_is_over(rd: Kit, program: Program) -> None:
    program.push.enqueue(1)
    rd.crash_next(program.push)
    assert rd.run_due().left == 1 and rd.counts().leased == 1 and program.sent == []
    summary = rd.drain()
    assert summary.done == 1 and summary.elapsed_s == 30
    assert [(ran.outcome, ran.attempt, ran.crashes) for ran in rd.runs] == [("crashed", 1, 0), ("done", 1, 1)]


def test_what_always_kills_its_worker_ends_in_quarantine(rd: Kit, program: Program) -> None:
    program.push.enqueue(1)
    rd.crash_next(program.push, times=100)
    summary = rd.drain()
    assert (summary.dead, summary.left) == (1, 0) and summary.runs == summary.failed <= 10
    assert [dead.reason for dead in rd.quarantined()] == ["crashed"] and rd.dead() == []
    assert f"quarantine (crashed) after 0 attempts and {summary.runs} crashes" in repr(rd.quarantined()[0])


def test_crash_raised_in_a_handler_is_a_kill_there(rd: Kit, program: Program) -> None:
    stages: list[str] = []

    @program.app.task(name="two")
    def two() -> None:
        stages.append("first")
        if len(stages) == 1:
            raise Crash
        stages.append("second")

    two.enqueue()
    assert rd.drain().done == 1
    assert stages == ["first", "first", "second"] and rd.runs[1].crashes == 1


def test_duplicate_next_runs_the_handler_twice(rd: Kit, program: Program) -> None:
    program.push.enqueue(1)
    program.mail.enqueue(1)
    rd.duplicate_next(program.push)
    summary = rd.drain()
    assert program.sent == [("push", 1), ("mail", 1), ("push", 1)]
    assert (summary.runs, summary.done, summary.failed) == (3, 2, 1)


def test_timeout_next_spends_the_timeout_and_retries(rd: Kit, program: Program) -> None:
    program.push.enqueue(1)
    rd.timeout_next(program.push)
    assert rd.run_due().elapsed_s == 30
    fault = rd.runs[0].fault
    assert fault is not None and fault.kind == "timeout" and "its timeout of 30 s" in fault.text
    assert rd.drain().done == 1 and program.sent == [("push", 1)]


def test_a_handler_that_hangs_is_ended_by_its_timeout(rd: Kit, program: Program) -> None:
    @program.app.task(name="hang", timeout="20ms", retry=Retry(max_attempts=1))
    async def hang() -> None:
        await asyncio.sleep(3600)

    hang.enqueue()
    assert rd.drain().dead == 1
    assert rd.dead()[0].faults[-1].kind == "timeout"


@pytest.mark.parametrize("outcome", [pytest.fail.Exception("stop"), KeyboardInterrupt()])
@pytest.mark.parametrize("task", ["crm.push", "mail"])
def test_what_belongs_to_the_test_comes_through_the_worker(
    rd: Kit, program: Program, task: str, outcome: BaseException
) -> None:
    program.app.enqueue_many([program.push.draft(1), program.mail.draft(1)])
    rd.fail_next(task, outcome)
    with pytest.raises(type(outcome)):
        rd.drain()
    assert rd.drain().left == 0, "and the kit can still be used"


def test_what_cannot_be_meant_is_refused_at_once(rd: Kit, program: Program) -> None:
    with pytest.raises(ConfigError, match=r"no task 'crm.pusch'.*known: crm.push, mail, order"):
        rd.fail_next("crm.pusch")
    with pytest.raises(ConfigError, match="times=0"):
        rd.crash_next(program.push, times=0)
    with pytest.raises(ConfigError, match="give an instance"):
        rd.fail_next(program.push, UnicodeDecodeError)
    with pytest.raises(ConfigError, match="expected an exception"):
        rd.fail_next(program.push, "refused")  # type: ignore[arg-type]


def test_a_task_of_an_app_not_in_use_is_named(rd: Kit, tmp_path: Path) -> None:
    program = Program(tmp_path / "work.db")
    for use in (rd.fail_next, rd.assert_enqueued, rd.enqueued, rd.done):
        with pytest.raises(ConfigError, match=r"'crm.push' is of an app .* call rd.use\(app\) first"):
            use(program.push)


# -- what a handler says beside its return value


def test_follow_ups_are_enqueued_with_the_ack_and_dropped_with_a_crash(rd: Kit, program: Program) -> None:
    @program.app.task(name="split", ctx=True)
    def split(ctx: Context, n: int) -> None:
        for k in range(n):
            ctx.enqueue(program.mail.using(key=f"part-{k % 2}"), k)

    split.enqueue(3)
    rd.duplicate_next(split)
    rd.drain(until=lambda: rd.done(split))
    rd.assert_enqueued(program.mail, 0, key="part-0", times=1)
    rd.assert_enqueued(program.mail, times=2)  # of each run three, the first run's lost, and one a duplicate
    assert rd.drain().done == 2


def test_a_death_enqueues_its_compensation(rd: Kit, program: Program) -> None:
    @program.app.task(name="book", on_dead="unbook")
    async def book(seat: str) -> None: ...

    @program.app.task(name="unbook")
    async def unbook(seat: str) -> str:
        return context().message.headers["redrive-dead-reason"]

    book.enqueue("12A")
    rd.fail_next(book, Reject("no seats"))
    assert rd.drain().dead == 1
    assert [(ran.args, ran.result) for ran in rd.done(unbook)] == [({"seat": "12A"}, "rejected")]


def test_a_checkpoint_outlives_a_crash(rd: Kit, program: Program) -> None:
    seen: list[Any] = []

    @program.app.task(name="steps", ctx=True)
    async def steps(ctx: Context) -> str:
        seen.append(ctx.progress)
        await ctx.acheckpoint({"row": 10})
        if ctx.crashes == 0:
            raise Crash
        return ctx.partial("half", "no prices")

    steps.enqueue()
    assert rd.drain().done == 1
    assert seen == [None, {"row": 10}] and rd.runs[-1].degraded == "no prices"


def test_kept_results_can_be_waited_for_and_go_when_their_time_is_over(rd: Kit, program: Program) -> None:
    ref = program.push.using(keep_result="1h").enqueue(42)
    rd.run_due()
    assert ref.wait(0) == "pushed 42" and rd.counts().done == 1
    rd.advance("2h")
    assert rd.run_due().runs == 0 and rd.counts().done == 0


def test_an_enqueue_in_the_callers_transaction_is_there_at_once(rd: Kit, program: Program) -> None:
    program.push.using(tx=object()).enqueue(42)
    rd.assert_enqueued(program.push, 42, times=1)
    assert rd.drain().done == 1


def test_a_result_that_json_cannot_hold_is_told_of(rd: Kit, program: Program) -> None:
    events: list[Event] = []
    program.app.subscribe(events.extend)

    @program.app.task(name="odd", keep_result="1h")
    def odd() -> Any:
        return object()

    odd.enqueue()
    assert rd.drain().done == 1
    assert [event.name for event in events if isinstance(event, Notice)] == ["result_dropped"]


# -- looking


def test_enqueued_shows_all_with_decoded_arguments_whatever_became_of_it(rd: Kit, program: Program) -> None:
    program.order.enqueue(7)
    program.push.using(delay="1m", key="k", group="g", queue="bulk").enqueue(8, dry=True)
    program.push.using(key="k").enqueue(8)  # a duplicate: refused
    rd.drain()
    assert [(e.task, e.args, e.delay_s) for e in rd.enqueued()] == [
        ("order", {"id": 7}, 0),
        ("crm.push", {"record_id": 8, "dry": True}, 60),
        ("crm.push", {"record_id": 7, "dry": False}, 300),
        ("mail", {"to": 1}, 0),
    ]
    assert [repr(e) for e in rd.enqueued(program.push)] == [
        "crm.push(record_id=8, dry=True)  [at 0s, delay 1m, key 'k', group 'g', queue 'bulk']",
        "crm.push(record_id=7, dry=False)  [at 0s, delay 5m, queue 'crm']",
    ]


def test_assert_enqueued_matches_the_arguments_given(rd: Kit, program: Program) -> None:
    for n in range(3):
        program.push.using(delay="5m", key=f"k{n}").enqueue(n, dry=n == 2)
    assert len(rd.assert_enqueued(program.push)) == 3
    assert [e.args["record_id"] for e in rd.assert_enqueued(program.push, dry=False, times=2)] == [0, 1]
    rd.assert_enqueued("crm.push", 2, dry=True, delay=timedelta(minutes=5), key="k2", queue="crm", times=1)
    rd.assert_enqueued(program.push, 3, times=0)
    rd.assert_enqueued(program.mail, times=0)


@dataclass
class Address:
    street: str
    since: timedelta


def test_values_are_compared_as_the_handler_gets_them(rd: Kit, program: Program) -> None:
    @program.app.task(name="move")
    def move(to: Address) -> None: ...

    move.enqueue(Address("Elm", timedelta(days=1)))
    rd.assert_enqueued(move, Address("Elm", timedelta(days=1)), times=1)
    rd.assert_enqueued(move, Address("Oak", timedelta(days=1)), times=0)


def failure(assertion: Callable[[], object]) -> str:
    with pytest.raises(AssertionError) as caught:
        assertion()
    return str(caught.value)


def test_a_failed_assertion_says_what_was_enqueued_instead(rd: Kit, program: Program) -> None:
    program.mail.enqueue(3)
    program.push.enqueue(41)
    program.push.using(delay="5m").enqueue(42)
    assert failure(lambda: rd.assert_enqueued(program.push, 42, dry=True, delay="1m")) == (
        "crm.push(record_id=42, dry=True) with delay 1m was not enqueued.\n"
        "What was, the likest first:\n"
        "  crm.push(record_id=42, dry=False)  [at 0s, delay 5m, queue 'crm']\n"
        "      dry is False, expected True; delay is 5m, expected 1m\n"
        "  crm.push(record_id=41, dry=False)  [at 0s, queue 'crm']\n"
        "      record_id is 41, expected 42; dry is False, expected True; delay is 0s, expected 1m\n"
        "  mail(to=3)  [at 0s]"
    )


def test_a_wrong_number_shows_the_ones_that_match(rd: Kit, program: Program) -> None:
    assert failure(lambda: rd.assert_enqueued(program.mail)) == "mail() was not enqueued.\nNothing was."
    program.app.enqueue_many(program.mail.draft(n) for n in range(30))
    text = failure(lambda: rd.assert_enqueued(program.mail, times=2))
    assert text.startswith("mail() was enqueued 30 times, expected 2:\n  mail(to=0)  [at 0s]\n")
    assert text.endswith("  mail(to=19)  [at 0s]\n  … and 10 more")
    assert "expected none:" in failure(lambda: rd.assert_enqueued(program.mail, 4, times=0))
    assert "expected 2 times." in failure(lambda: rd.assert_enqueued(program.mail, 99, times=2))


def test_an_argument_the_task_does_not_take_is_a_type_error(rd: Kit, program: Program) -> None:
    with pytest.raises(TypeError, match=r"'crm.push': got an unexpected keyword argument 'rec'.*record_id: "):
        rd.assert_enqueued(program.push, rec=1)
    with pytest.raises(TypeError, match="only be given by name"):
        rd.assert_enqueued("elsewhere", 1)


def test_messages_of_unknown_tasks_and_torn_bodies_can_be_looked_at(rd: Kit, program: Program) -> None:
    rd.store.put([Draft(task="elsewhere", body=b'{"n": 1}'), Draft(task="mail", body=b"\xff", content="raw")])
    rd.assert_enqueued("elsewhere", n=1)
    assert "unrun (un" in (rd.drain().last_failure or "")
    assert [e.args for e in rd.enqueued()] == [{"n": 1}, {}]
    assert ("mail", "unreadable", b"\xff") in [(dead.task, dead.reason, dead.body) for dead in rd.dead()]


def test_an_argument_of_a_newer_release_waits_as_long_as_a_worker_lets_it(rd: Kit, program: Program) -> None:
    rd.store.put([Draft(task="mail", body=b'{"to":1,"cc":2}')])
    assert rd.drain(until="290s").dead == 0 and not rd.runs
    assert rd.drain().elapsed_s == 10
    [dead] = rd.dead()
    assert (dead.reason, dead.attempt, dead.body) == ("unroutable", 0, b'{"to":1,"cc":2}')


def test_dead_messages_show_reason_faults_and_arguments(rd: Kit, program: Program) -> None:
    program.mail.enqueue(-1)
    assert rd.drain().last_failure == ("1m  attempt 2  mail(to=-1)  dead (exhausted): ValueError: no such address: -1")
    (dead,) = rd.dead()
    assert (dead.task, dead.args, dead.reason, dead.attempt, len(dead.faults)) == (
        "mail",
        {"to": -1},
        "exhausted",
        2,
        2,
    )
    assert repr(dead) == "mail(to=-1)  dead (exhausted) after 2 attempts: ValueError: no such address: -1"


def test_dead_messages_can_be_driven_back_by_the_apps_own_means(rd: Kit, program: Program) -> None:
    program.push.enqueue(1)
    rd.fail_next(program.push, Reject("no"))
    rd.drain()
    assert len(program.app.dlq.retry(all=True, delay="1h", to_queue="repair")) == 1
    rd.advance("1h")
    assert rd.run_due().done == 1 and rd.dead() == [] and rd.runs[-1].redrives == 1


def test_the_report_tells_runs_dead_and_waiting(rd: Kit, program: Program) -> None:
    program.mail.enqueue(-1)
    program.push.using(delay="1h").enqueue(1)
    rd.drain(until="30m")
    assert rd.report().splitlines() == [
        "after 30m of virtual time: 2 runs; 1 scheduled, 1 dead",
        "runs:",
        "        0s  attempt 1  mail(to=-1)  retry in 1m: ValueError: no such address: -1",
        "        1m  attempt 2  mail(to=-1)  dead (exhausted): ValueError: no such address: -1",
        "dead:",
        "  mail(to=-1)  dead (exhausted) after 2 attempts: ValueError: no such address: -1",
        "waiting:",
        "  crm.push(record_id=1, dry=False)  [due in 30m]",
    ]
    assert repr(rd) == "<redrive kit after 30m of virtual time: 2 runs; 1 scheduled, 1 dead>"


def test_a_paused_queue_is_left_alone(rd: Kit, program: Program) -> None:
    program.push.enqueue(1)
    rd.store.configure("crm", paused=True)
    assert rd.drain().left == 1
    rd.store.configure("crm", paused=False)
    assert rd.drain().done == 1


# -- groups and versions


def test_a_strict_group_keeps_its_order_through_retries(rd: Kit, program: Program) -> None:
    rd.store.configure("crm", group_order=GroupOrder.STRICT)
    program.app.enqueue_many(program.push.using(group=f"g{n % 2}").draft(n) for n in range(6))
    rd.fail_next(program.push, times=3)
    assert rd.drain().done == 6
    order = [n for _, n in program.sent]
    assert [n for n in order if n % 2 == 0] == [0, 2, 4] and [n for n in order if n % 2] == [1, 3, 5]


def test_a_dead_head_blocks_its_group_and_the_drain_ends(rd: Kit, program: Program) -> None:
    rd.store.configure("crm", group_order=GroupOrder.STRICT, on_dead=OnDead.BLOCK)
    program.app.enqueue_many(program.push.using(group="g").draft(n) for n in range(3))
    rd.fail_next(program.push, Reject("no"))
    summary = rd.drain()
    assert (summary.dead, summary.done, summary.left) == (1, 0, 2)
    assert "crm.push(record_id=1, dry=False)  [behind others of group 'g']" in rd.report()
    program.app.dlq.retry(all=True)
    assert rd.drain().done == 3 and [n for _, n in program.sent] == [0, 1, 2]


def test_a_crowd_that_wakes_in_a_group_at_once_does_not_end_the_drain(rd: Kit, program: Program) -> None:
    drafts = [program.push.using(group="crowd", delay="70s").draft(n) for n in range(350)]
    program.app.enqueue_many([program.push.using(group="crowd").draft(-1), *drafts])
    rd.crash_next(program.push, times=3)  # its place is taken till 90 s: while the crowd wakes, nothing can be claimed
    assert rd.drain().left == 0 and len(program.sent) == 351


def test_arguments_of_old_versions_are_shown_lifted(rd: Kit, program: Program) -> None:
    @program.app.task(name="ship", version=2)
    def ship(order: int) -> None: ...

    @ship.upcast(1)
    def _(old: dict[str, Any]) -> dict[str, Any]:
        return {"order": old["id"]}

    rd.store.put([Draft(task="ship", body=b'{"id": 5}', version=1)])
    assert rd.drain().done == 1 and rd.runs[0].args == {"order": 5}
    rd.assert_enqueued(ship, 5, times=1)


def test_what_no_task_knows_waits_for_a_newer_worker_and_dies(rd: Kit, program: Program) -> None:
    rd.store.put([Draft(task="unknown")])
    summary = rd.drain()
    assert (summary.runs, summary.dead) == (0, 1) and 300 <= summary.elapsed_s < 400
    assert [dead.reason for dead in rd.dead()] == ["unroutable"]


# -- where handlers run


def test_sync_handlers_run_in_the_thread_of_a_sync_test(rd: Kit, program: Program) -> None:
    @program.app.task(name="where")
    def where() -> Any:
        asyncio.run(asyncio.sleep(0))  # as in a worker, there is no loop around it
        return threading.current_thread().name, context().attempt

    where.enqueue()
    rd.drain()
    assert rd.done()[0].result == (threading.current_thread().name, 1)


def test_async_handlers_share_one_loop_for_the_test(rd: Kit, program: Program) -> None:
    loops = set()

    @program.app.task(name="loop")
    async def loop(n: int) -> None:
        loops.add(asyncio.get_running_loop())
        asyncio.get_running_loop().create_task(asyncio.sleep(3600))  # left behind: closing the kit ends it

    program.app.enqueue_many(loop.draft(n) for n in range(3))
    rd.drain()
    assert len(loops) == 1


def test_a_handler_cannot_drain(rd: Kit, program: Program) -> None:
    @program.app.task(name="drains", retry=Retry(max_attempts=1))
    def drains() -> None:
        rd.drain()

    drains.enqueue()
    rd.drain()
    assert "are being run already" in rd.dead()[0].faults[0].text


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


def test_an_async_test_drains_on_its_own_loop(rd: Kit, program: Program) -> None:
    async def test() -> None:
        own, seen = asyncio.get_running_loop(), []

        @program.app.task(name="async")
        async def coroutine() -> None:
            seen.append(asyncio.get_running_loop())

        await coroutine.aenqueue()
        await program.push.using(delay="1h").aenqueue(1)
        rd.fail_next(program.push, times=8)
        summary = await rd.adrain()
        assert summary.done == 2 and summary.elapsed_s == 3600 + 25500 and seen == [own]

    in_loop(test)


def test_in_an_async_test_sync_handlers_may_block_and_enqueue(rd: Kit, program: Program) -> None:
    var: ContextVar[str] = ContextVar("var", default="unset")

    @program.app.task(name="blocks")
    def blocks() -> str:
        program.mail.enqueue(1)
        asyncio.run(asyncio.sleep(0))
        return var.get()

    async def test() -> None:
        var.set("the test's")
        await blocks.aenqueue()
        assert (await rd.arun_due()).done == 2
        assert rd.done(blocks)[0].result == "the test's"

    in_loop(test)


def test_a_sync_drain_in_an_async_test_names_the_other(rd: Kit, program: Program) -> None:
    async def test() -> None:
        with pytest.raises(RuntimeError, match=r"await rd\.adrain\(\)"):
            rd.drain()
        with pytest.raises(RuntimeError, match=r"await rd\.arun_due\(\)"):
            rd.run_due()

    in_loop(test)


def test_cancelling_an_async_test_ends_the_handler_it_waits_for(rd: Kit, program: Program) -> None:
    ended = []

    @program.app.task(name="waits")
    async def waits() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(True)

    async def test() -> None:
        await waits.aenqueue()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rd.adrain(), 0.02)
        await asyncio.sleep(0)
        assert ended == [True]

    in_loop(test)


def test_a_drain_of_many_is_quick_enough_to_use(rd: Kit, program: Program) -> None:
    program.app.enqueue_many(program.mail.using(delay=n).draft(n) for n in range(2_000))
    assert rd.drain().done == 2_000


def test_the_store_is_of_this_test_alone(rd: Kit, program: Program) -> None:
    assert rd.store.peek(None).messages == [] and rd.store.peek(Lane.DEAD).messages == []


def test_the_apps_wraps_run_around_what_is_made_to_fail(rd: Kit, program: Program) -> None:
    seen: list[str] = []

    @program.app.wrap
    def session(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ConnectionError:
            seen.append("rolled back")
            raise
        seen.append("committed")

    rd.fail_next(program.mail)
    program.mail.enqueue(1)
    program.push.enqueue(2)
    rd.drain()
    assert sorted(seen) == ["committed", "committed", "rolled back"]


def test_flow_control_holds_as_in_a_worker(rd: Kit, program: Program) -> None:
    starts: list[float] = []

    @program.app.task(name="call", dependency="shop", rate="10/m", retry=Retry(backoff=Backoff.fixed("1s")))
    def call(n: int) -> None:
        starts.append(rd.now.timestamp())
        if len(starts) == 1:
            raise RetryAfter("5m")

    rd.use(program.app)
    for n in range(10):
        call.enqueue(n)
    drained = rd.drain()
    assert (drained.done, drained.failed, drained.dead) == (10, 1, 0)
    assert starts[1] - starts[0] >= 300  # what one was asked to wait, all do
    assert all(later - earlier >= 5.999 for earlier, later in pairwise(starts[1:]))


def test_idempotency_keys_hold_as_in_a_worker(rd: Kit, program: Program) -> None:
    ran: list[int] = []

    @program.app.task(name="pay", ctx=True, retry=HOURS, idempotency=Idempotency(lambda n, cents: f"pay-{n}"))
    def pay(ctx: Context, n: int, cents: int) -> str:
        ran.append(n)
        ctx.enqueue(program.mail, n)
        assert ctx.idempotency_key == f"pay-{n}"
        return "paid"

    rd.use(program.app)
    rd.fail_next(pay)
    pay.enqueue(7, 100)
    pay.enqueue(7, 100)
    rd.crash_next(pay)
    pay.enqueue(8, 100)
    rd.drain()
    pay.enqueue(7, 999)
    drained = rd.drain()
    assert (drained.done, drained.dead) == (0, 1) and drained.last_failure is not None
    assert sorted(ran) == [7, 8] and sorted(program.sent) == [("mail", 7), ("mail", 8)]


def test_flow_control_tells_its_notices_in_a_kit_too(rd: Kit) -> None:
    app, told = App("memory://"), list[Event]()
    app.subscribe(told.extend)
    app.dependency("shop", budget=Budget.fixed(1, per="10m"), breaker=Breaker(min_calls=2))

    @app.task(name="call", dependency="shop", retry=Retry(max_attempts=3, backoff=Backoff.fixed("1s")))
    def call(n: int) -> None:
        raise ConnectionError("down")

    rd.use(app)
    app.enqueue_many([call.draft(n) for n in range(4)])
    rd.drain()
    notices = {(event.name, event.about) for event in told if isinstance(event, Notice)}
    assert {("budget_exhausted", "shop"), ("breaker_opened", "shop")} <= notices
