"""Objectives: what counts as good, and how fast the error budget burns."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive import SLO, App, Backoff, Reject, Retry
from redrive.errors import ConfigError
from redrive.history import Burn, SloStatus, read_objectives
from redrive.history.chunk import HOUR_MS, MINUTE_MS
from redrive.history.objectives import WINDOWS, rate
from redrive.history.tally import ALL, GOOD
from redrive.history.writer import HistoryWriter
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock


@pytest.mark.parametrize(
    ("text", "over", "why"),
    [
        ("soon", "28d", "expected a share and a bound, such as '99.9% within 30s'"),
        ("99.9 within 30s", "28d", "expected a share and a bound"),
        ("100% within 30s", "28d", "below 100%"),
        ("0% within 30s", "28d", "above 0%"),
        ("99% within 0s", "28d", "not above 0"),
        ("99% within soon", "28d", "soon"),
        ("99% within 30s", "36d", "expected 1d to 35d"),
        ("99% within 30s", "1h", "expected 1d to 35d"),
    ],
)
def test_an_objective_that_says_nothing_is_refused(text: str, over: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        SLO(text, over=over)


def test_an_objective_reads_its_parts() -> None:
    slo = SLO("99.95% within 1m30s", over="7d")
    assert (slo.objective, slo.within_s, slo.over_s, str(slo)) == (0.9995, 90, 604_800, "99.95% within 1m30s over 7d")


def test_what_is_no_objective_is_refused() -> None:
    app = App("memory://")
    given: Any = "99.9% within 30s"
    with pytest.raises(ConfigError, match="expected an SLO"):
        app.task(slo=given)(lambda: None)
    with pytest.raises(ConfigError, match="expected an SLO"):
        app.queue("q", slo=given)


def test_windows_and_thresholds_are_those_of_the_google_sre_workbook() -> None:
    """Table 5-8: long window, short window, burn rate, and what to do."""
    table = [("1h", "5m", 14.4, "page"), ("6h", "30m", 6.0, "page"), ("3d", "6h", 1.0, "ticket")]
    units = {"m": MINUTE_MS, "h": HOUR_MS, "d": 24 * HOUR_MS}
    wanted = [(int(a[:-1]) * units[a[-1]], int(b[:-1]) * units[b[-1]], c, d) for a, b, c, d in table]
    assert [(w.long_ms, w.short_ms, w.threshold, w.severity) for w in WINDOWS] == wanted


def recorded(bad_by_minute: dict[int, int], *, each: int = 100, days: int = 4) -> SloStatus:
    """The objective of a task with `each` messages a minute for so many days; bad ones by minutes ago."""
    clock = ManualClock(1_750_000_000_000 - 1_750_000_000_000 % HOUR_MS + 59 * MINUTE_MS)  # whole hours end now
    store = MemoryStore(clock)
    app = App(store=store)

    @app.task(name="push", queue="crm", slo=SLO("99.9% within 30s"))
    def push() -> None: ...

    now = clock() // MINUTE_MS
    minutes = {now - ago: {ALL: each, GOOD: each - bad_by_minute.get(ago, 0)} for ago in range(days * 24 * 60)}
    HistoryWriter(store).write({("crm", "push"): minutes})
    (found,) = read_objectives(store, app)
    return found


def test_burn_rates_of_a_recorded_outage_are_those_of_a_hand_calculation() -> None:
    """100 messages a minute. For 40 minutes, up to now, 3 of 100 are bad, which is 30 times what 99.9% allows.

    In the last 5 and 30 minutes the rate is 30. In the last hour 40 × 3 of 6,000 are bad: 2%, a rate of 20. In 6 hours
    120 of 36,000: 0.333%, 3.33. In 3 days 120 of 432,000: 0.0278%, 0.278. In the 4 days 120 of 576,000: 0.0208%, so
    0.208 of the budget is gone.
    """
    found = recorded(dict.fromkeys(range(40), 3))
    rates = [(burn.threshold, round(burn.long, 3), round(burn.short, 3), burn.firing) for burn in found.burns]
    assert rates == [(14.4, 20.0, 30.0, True), (6.0, 3.333, 30.0, False), (1.0, 0.278, 3.333, False)]
    assert (found.good, found.all) == (575_880, 576_000)
    assert round(found.budget_left, 4) == 0.7917
    assert [burn.threshold for burn in found.firing] == [14.4]


def test_an_alert_ends_soon_after_the_outage() -> None:
    found = recorded(dict.fromkeys(range(6, 60), 3))
    assert found.burns[0].long > 14.4 and found.burns[0].short == 0 and not found.firing


def test_a_slow_burn_is_a_ticket() -> None:
    found = recorded(dict.fromkeys(range(0, 3 * 24 * 60, 8), 1))  # 0.125%, where 0.1% is allowed
    assert [burn.severity for burn in found.firing] == ["ticket"]
    assert found.budget_left < 1


def test_without_messages_nothing_burns() -> None:
    found = recorded({}, each=0)
    assert (found.share, found.budget_left, found.firing) == (None, 1.0, ())
    assert Burn(severity="page", threshold=1.0, long_ms=1, short_ms=1, long=1.0, short=0.9).firing is False
    assert rate(0, 10, 0.9) == pytest.approx(10)


def test_a_message_is_good_if_it_succeeded_within_the_bound_of_when_it_was_first_due_and_counts_once() -> None:
    clock = ManualClock()
    app = App(store=MemoryStore(clock))
    retry = Retry(max_attempts=3, backoff=Backoff.fixed("20s"))
    failing: dict[str, int] = {}

    @app.task(name="push", queue="crm", retry=retry, slo=SLO("50% within 30s"))
    async def push(what: str) -> None:
        if what == "dies":
            raise Reject("no")
        if failing.get(what, 0) > 0:
            failing[what] -= 1
            raise ConnectionError(what)

    app.queue("crm", slo=SLO("50% within 1m"))
    app.dependency("push", budget=None, breaker=None)

    async def work(seconds: int) -> None:
        clock.advance(f"{seconds}s")
        async with app.worker(["crm"], burst=True) as worker:
            await worker.wait()

    async def scenario() -> None:
        failing.update(once=1, twice=2)
        drafts = [push.draft(what) for what in ("at once", "once", "twice", "dies")]
        await app.aenqueue_many([*drafts, push.using(delay="2m").draft("late, as it was asked to be")])
        await work(1)  # one is good; one dies: bad
        await work(21)  # after 22 s the second try of `once` is in time
        await work(21)  # after 43 s the third of `twice` is too late for the task, in time for the queue
        await work(90)  # the delayed one, 13 s after it was due
        app.dlq.retry(all=True, reason="again")
        await work(1)  # it dies again: it was counted

    asyncio.run(scenario())
    assert app.flusher is not None
    app.flusher.flush()
    task, queue = app.slo()
    assert (task.name, task.kind, task.good, task.all) == ("push", "task", 3, 5)
    assert (queue.name, queue.kind, queue.good, queue.all) == ("crm", "queue", 4, 5)
    assert app.history("crm", "push", since="1h").total.slo_all == 5
