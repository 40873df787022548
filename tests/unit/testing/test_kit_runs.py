"""Redrive runs in a test kit: planned, started and carried to their end on its clock."""

from __future__ import annotations

import time
from typing import Any

import pytest

from redrive import App, AutoRedrive, Backoff, Breaker, Gates, Retry
from redrive.events import Event, Notice
from redrive.testing import Kit


class Shop:
    """An app whose endpoint is down until somebody mends it, and fifty messages that died of that."""

    def __init__(self, rd: Kit, count: int = 50, **options: Any) -> None:
        self.app, self.rd, self.down, self.calls = App("memory://"), rd, True, list[float]()

        @self.app.task(name="push", queue="crm", retry=Retry(max_attempts=1), **options)
        def push(n: int, tenant: str = "") -> None:
            self.calls.append((rd.clock.now_ms() - self.began_ms) / 1000)
            if self.down:
                raise ConnectionError("down")

        self.began_ms, self.push = 0, push
        rd.use(self.app)
        self.app.enqueue_many([push.draft(n) for n in range(count)])

    def die(self) -> None:
        self.rd.drain()
        self.began_ms = self.rd.clock.now_ms()
        self.calls.clear()

    def start(self, selector: str = "queue:crm", **words: Any) -> Any:
        how = {"canary": 0, "slow_start": False} | words
        return self.app.dlq.select(selector).plan(**how).start(reason="it is mended", actor="ann")


@pytest.fixture
def shop(rd: Kit) -> Shop:
    made = Shop(rd)
    made.die()
    made.down = False
    return made


PLANS = {
    "as fast as it goes": {},
    "at a rate": {"rate": "20/s"},
    "with a canary": {"rate": "20/s", "canary": 5},
    "slowly at first": {"rate": "20/s", "slow_start": True},
    "with all of it": {
        "rate": "20/s", "canary": 5, "slow_start": True, "halve_on_failures": True, "stop_if": "failed>20%",
        "attempts": 3,
    },
    "spread over an hour": {"rate": "20/s", "spread": "1h"},
    "after a delay": {"delay": "2h"},
    "to another queue": {"to_queue": "slow"},
}  # fmt: skip


@pytest.mark.parametrize("plan", PLANS)
def test_fifty_dead_messages_are_moved_and_the_run_is_done(shop: Shop, plan: str) -> None:
    run = shop.start(**PLANS[plan])
    assert (run.state, run.counts["moved"]) == ("running", 0)
    summary = shop.rd.drain()
    assert (summary.done, summary.left, shop.rd.dead()) == (50, 0, [])
    assert (run.state, run.view().closed) == ("done", True)
    assert {name: n for name, n in run.counts.items() if n} == {"planned": 50, "moved": 50, "done": 50}
    assert sorted({ran.redrives for ran in shop.rd.runs}) == [0, 1]


def test_a_run_keeps_its_rate_on_the_kits_clock(shop: Shop) -> None:
    shop.start(rate="10/s")
    began = time.monotonic()
    shop.rd.drain()
    for second in range(5):
        assert 9 <= sum(second <= at_s < second + 1 for at_s in shop.calls) <= 12
    assert time.monotonic() - began < 30, "no time passes but the clock's"


def test_drain_until_a_time_moves_what_the_rate_lets_go_by_then(shop: Shop) -> None:
    run = shop.start(rate="10/s")
    shop.rd.run_due()
    assert run.counts["moved"] <= 1
    shop.rd.drain(until="2s")
    assert 19 <= run.counts["moved"] <= 22 and run.state == "running"
    shop.rd.drain()
    assert run.state == "done"


def test_a_canary_that_fails_stops_the_run(shop: Shop) -> None:
    shop.down = True
    run = shop.start(rate="20/s", canary=5)
    shop.rd.drain()
    assert (run.state, run.counts["moved"], run.counts["failed"], len(shop.calls)) == ("stopped", 5, 5, 5)
    assert len(shop.rd.dead()) == 50 and "canary: 5 of 5 failed" in run.why
    assert {failure.error for failure in run.failures()} == {"ConnectionError"}


def test_a_wait_for_the_run_works_it(shop: Shop) -> None:
    run = shop.start(rate="20/s")
    assert run.wait() == "done"
    assert run.counts["done"] == 50 and shop.rd.counts("crm").dead == 0
    assert run.wait("1s") == "done", "it is over"


def test_a_wait_that_is_too_short_takes_its_time_and_says_so(shop: Shop) -> None:
    run, before = shop.start(rate="1/s"), shop.rd.now
    with pytest.raises(TimeoutError, match=r"run .* is running \(moving\), and this kit has nothing left to do"):
        run.wait("10s")
    assert (shop.rd.now - before).total_seconds() == 10
    assert 10 <= run.counts["moved"] <= 11 and run.wait() == "done"


def test_a_run_that_a_person_holds_does_not_hold_the_clock_up(shop: Shop) -> None:
    run, before = shop.start(gates=Gates(approval="ann")), shop.rd.now
    shop.rd.drain()
    assert (run.state, run.why, shop.rd.now) == ("running", "approval by ann is awaited", before)
    with pytest.raises(TimeoutError, match="approval by ann is awaited"):
        run.wait()
    run.approve(actor="ann")
    run.pause(reason="not yet", actor="ann")
    shop.rd.drain()
    assert (run.state, run.counts["moved"]) == ("paused", 0)
    run.resume(actor="ann")
    shop.rd.drain()
    assert run.state == "done"


def test_a_run_is_cancelled_and_undone_as_elsewhere(shop: Shop) -> None:
    run = shop.start(rate="10/s", delay="1h")
    shop.rd.drain(until="2s")
    assert 19 <= run.undo(reason="wrong", actor="ann") <= 22
    shop.rd.drain()
    assert (run.state, len(shop.rd.dead()), shop.calls) == ("cancelled", 50, [])


def test_a_run_waits_for_a_breaker_and_goes_on_when_it_closes(rd: Kit) -> None:
    told = list[Event]()
    shop = Shop(rd, dependency="crm")
    shop.app.subscribe(told.extend)
    shop.app.dependency("crm", breaker=Breaker(min_calls=5, open_for="30s"), budget=None)
    shop.die()  # which opened it
    shop.down = False
    run = shop.start(rate="50/s")
    rd.drain()
    assert (run.state, run.counts["done"]) == ("done", 50)
    names = [event.name for event in told if isinstance(event, Notice)]
    assert "breaker_opened" in names and {"run_started", "run_done"} <= {*names}


def test_a_window_opens_with_the_clock(shop: Shop) -> None:
    shop.rd.advance((24 * 60 - shop.rd.now.hour * 60 - shop.rd.now.minute) * 60)  # midnight
    run = shop.start(gates=Gates(window="03:00-04:00"))
    shop.rd.drain(until="2h")
    assert run.counts["moved"] == 0 and "outside its window" in run.why
    shop.rd.drain(until="2h")
    assert run.state == "done"


def test_two_runs_and_two_apps_share_a_kit(rd: Kit) -> None:
    one, other = Shop(rd, 5), App("memory://")

    @other.task(name="mail", retry=Retry(max_attempts=2, backoff=Backoff.fixed("1m")))
    def mail(n: int) -> None:
        if one.down:
            raise ConnectionError("down")

    rd.use(other)
    other.enqueue_many([mail.draft(n) for n in range(5)])
    one.die()
    one.down = False
    runs = [one.start(rate="1/s"), other.dlq.select("task:mail").plan(rate="1/s").start(reason="x", actor="ann")]
    rd.drain()
    assert [(run.state, run.counts["done"]) for run in runs] == [("done", 5)] * 2


def test_a_message_that_crashes_its_worker_has_its_verdict_when_it_settles(shop: Shop) -> None:
    run = shop.start()
    shop.rd.crash_next(shop.push)
    shop.rd.drain()
    assert (run.state, run.counts["done"], run.counts["failed"]) == ("done", 50, 0)


async def redriven(shop: Shop) -> str:
    run = shop.start(rate="20/s", canary=5)
    await shop.rd.adrain()
    return str(run.state)


def test_a_run_is_carried_in_an_asynchronous_test_too(shop: Shop) -> None:
    import asyncio

    assert asyncio.run(redriven(shop)) == "done"


def test_what_no_person_begins_is_not_begun(rd: Kit) -> None:
    shop = Shop(rd, 3)
    shop.app.queue("crm", auto_redrive=AutoRedrive(base="60s"))
    shop.die()
    assert len(rd.dead()) == 3, "a drain ends; auto-redrive would go on for ever"


def test_a_run_makes_waiting_messages_due_on_the_kits_clock(rd: Kit) -> None:
    shop = Shop(rd, count=0)
    shop.down, shop.began_ms = False, rd.clock.now_ms()
    shop.app.enqueue_many([shop.push.using(delay="3h").draft(n) for n in range(20)])
    plan = shop.app.select("lane:scheduled task:push").plan(rate="10/s", canary=2, slow_start=False)
    run = plan.start(reason="the CRM is back", actor="ann")
    assert run.wait() == "done" and run.counts["done"] == 20
    assert len(shop.calls) == 20 and shop.calls[-1] < 10, "seconds, not hours"
