"""A past time is played again from a store's history, and changed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from redrive import App, Backoff, Breaker, Retry
from redrive.errors import ConfigError
from redrive.history.writer import HistoryWriter
from redrive.simulate import simulate
from redrive.simulate.past import read_past, read_span, with_setting
from redrive.stores.memory.store import MemoryStore
from redrive.testing.clock import ManualClock

NOW_MS = round(datetime(2026, 3, 10, 17, 20, tzinfo=UTC).timestamp() * 1000)
MINUTE_MS = 60_000


@pytest.mark.parametrize(
    "text, since, until",
    [
        ("yesterday 14:00..16:00", (9, 14, 0), (9, 16, 0)),
        ("today 16:30..17:00", (10, 16, 30), (10, 17, 0)),
        ("16:30..17:00", (10, 16, 30), (10, 17, 0)),
        ("2026-03-01 09:30..10:00", (1, 9, 30), (1, 10, 0)),
        ("80m..20m", (10, 16, 0), (10, 17, 0)),
    ],
)
def test_a_time_is_read(text: str, since: tuple[int, int, int], until: tuple[int, int, int]) -> None:
    at = [round(datetime(2026, 3, *each, tzinfo=UTC).timestamp() * 1000) for each in (since, until)]
    assert read_span(text, NOW_MS) == tuple(at)


@pytest.mark.parametrize("text", ["", "14:00", "18:00..19:00", "16:00..15:00", "1h..2h", "yesterday", "99:00..99:30"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"time .* is refused: expected 'yesterday 14:00\.\.16:00'"):
        read_span(text, NOW_MS)


def recorded() -> App:
    """Five minutes of 600 messages each; in the second and third 90 % of the calls fail."""
    app = App(store=MemoryStore(ManualClock(NOW_MS)))
    app.dependency("crm", budget=None, breaker=None)

    @app.task(
        name="crm.push", queue="crm", dependency="crm", retry=Retry(3, max_elapsed=None, backoff=Backoff("5s", 1, "5s"))
    )
    def push() -> None: ...

    well = {"e": 600, "o0done": 600}
    ill = {"e": 600, "o0done": 160, "o0retry": 1240, "o0dead": 200, "ftransient": 1440, "dexhausted": 400}
    now = NOW_MS // MINUTE_MS
    minutes = {now - 6 + n: counts for n, counts in enumerate((well, ill, ill, well, well))}
    HistoryWriter(app.store).write({("crm", "crm.push"): minutes})
    return app


def test_load_and_faults_of_a_past_time_are_played_again() -> None:
    app = recorded()
    past = read_past(app.store, app, NOW_MS - 6 * MINUTE_MS, NOW_MS - MINUTE_MS)
    assert (past.enqueued, past.calls, past.failed, past.dead) == (3000, 5000, 2880, 800)
    assert (past.task, past.step_s) == ("crm.push", 60)
    came = simulate(past.scenario)
    assert came.messages == pytest.approx(3000, abs=200)
    assert came.retries and sum(came.calls[60:180]) > 2 * sum(came.calls[:60])
    # Of those that came in the two minutes, 0.9³ fail three times; of those near the end, fewer.
    assert sum(came.dead.values()) == pytest.approx(1200 * 0.9**3, rel=0.15)
    assert not came.breaker


def test_with_a_breaker_less_dies_and_less_is_called_in_vain() -> None:
    app = recorded()
    past = read_past(app.store, app, NOW_MS - 6 * MINUTE_MS, NOW_MS - MINUTE_MS).scenario
    as_it_was, guarded = simulate(past), simulate(with_setting(past, "breaker=on"))
    assert guarded.breaker and sum(guarded.dead.values()) < 0.2 * sum(as_it_was.dead.values())
    assert sum(guarded.calls[70:180]) < 0.2 * sum(as_it_was.calls[70:180])


def test_with_a_budget_retries_are_bounded() -> None:
    app = recorded()
    past = read_past(app.store, app, NOW_MS - 6 * MINUTE_MS, NOW_MS - MINUTE_MS).scenario
    as_it_was, bounded = simulate(past), simulate(with_setting(past, "budget=0.1"))
    firsts = sum(bounded.calls[60:180]) - sum(bounded.retries[60:180])
    assert sum(bounded.retries[60:180]) <= 0.1 * firsts + 1 * 120 + 10 < sum(as_it_was.retries[60:180])


def test_settings_change_the_policy() -> None:
    app = recorded()
    past = read_past(app.store, app, NOW_MS - 6 * MINUTE_MS, NOW_MS - MINUTE_MS).scenario
    changed = with_setting(past, "breaker=on, rate=50/s,attempts=7,workers=3x4")
    d = changed.dependency
    assert d is not None and d.breaker == Breaker() and d.rate is not None and d.rate.per_s == 50
    assert (changed.policy.retry.max_attempts, tuple(changed.fleet)) == (7, (3, 4))
    assert with_setting(changed, "breaker=off,rate=off").dependency == replace(d, breaker=None, rate=None)


@pytest.mark.parametrize("text", ["", "breaker", "breaker=maybe", "budget=much", "rate=", "retry=none", "workers=2"])
def test_another_setting_is_refused(text: str) -> None:
    app = recorded()
    past = read_past(app.store, app, NOW_MS - 6 * MINUTE_MS, NOW_MS - MINUTE_MS).scenario
    with pytest.raises(ConfigError, match=r"setting .* is refused: expected breaker=on\|off, budget="):
        with_setting(past, text)


def test_of_a_time_of_which_nothing_is_kept_nothing_is_played() -> None:
    app = recorded()
    with pytest.raises(ConfigError, match="nothing is kept of that time"):
        read_past(app.store, app, NOW_MS - 60 * MINUTE_MS, NOW_MS - 50 * MINUTE_MS)
