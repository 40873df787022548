"""Rates whose calls cost more than one permit, as sequences. No clock: time is an argument."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive import App, Rate, Retry, context
from redrive.errors import ConfigError
from redrive.flow import calls, permits, weights
from redrive.flow.dependency import Dependency, DependencyState, PendingEvidence, decode, encode
from redrive.message import Cell, Message
from redrive.task import as_rate
from redrive.worker.flow.local_state import controls

T0 = 1_760_000_000_000
TOKENS = Rate("1k/10s", cost=1, unit="tokens")


def spent_in_windows(starts: list[tuple[int, float]], window_ms: int) -> float:
    return max(sum(c for at, c in starts if from_ms <= at < from_ms + window_ms) for from_ms, _ in starts)


def play(rate: Rate, costs: list[float], look_ms: list[int]) -> list[tuple[int, float]]:
    """Start calls of these costs in order; look again after each of `look_ms` if one may not start."""
    tat_ms, now_ms, starts, looks = 0.0, T0, [], 0
    for cost in costs:
        while True:
            tat_ms, _, (at_ms,) = weights.ask(tat_ms, rate, [cost], now_ms, 0.0, reserve=False)
            if at_ms <= now_ms:
                break
            now_ms = at_ms + look_ms[looks % len(look_ms)]
            looks += 1
        starts.append((now_ms, cost))
    return starts


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.01, 20), min_size=80, max_size=160),
    st.lists(st.integers(0, 300), min_size=1, max_size=10),
)
def test_no_window_has_more_than_its_permits(costs: list[float], look_ms: list[int]) -> None:
    assert TOKENS.burst == 20
    assert spent_in_windows(play(TOKENS, costs, look_ms), 10_000) <= 1000 + 1e-6


@pytest.mark.parametrize("seed", range(20))
def test_at_least_95_percent_of_a_limit_are_used_while_there_is_work(seed: int) -> None:
    chance = random.Random(seed)
    starts = play(TOKENS, [chance.uniform(0, 20) for _ in range(500)], [0, 5, 20])
    took_s = (starts[-1][0] - starts[0][0]) / 1000
    assert sum(cost for _, cost in starts[:-1]) / took_s >= 0.95 * 100


def test_a_call_above_the_window_runs_and_the_others_wait_until_it_is_paid() -> None:
    starts = play(TOKENS, [3000, 1], [0])
    assert 3000 * 0.01 <= (starts[1][0] - starts[0][0]) / 1000 <= 3000 * 0.011


def test_an_expensive_call_does_not_wait_behind_cheap_ones() -> None:
    tat_ms, _, _ = weights.ask(0.0, TOKENS, [200], T0, 0.0, reserve=False)
    _, _, slots = weights.ask(tat_ms, TOKENS, [500, 1], T0, 0.0, reserve=False)
    assert T0 < slots[0] < slots[1]  # it is due first, and at the time when what is spent is paid
    assert slots[0] == math.ceil(tat_ms - TOKENS.slack_ms)


def test_a_call_that_costs_nothing_goes_at_once() -> None:
    tat_ms, _, _ = weights.ask(0.0, TOKENS, [500], T0, 0.0, reserve=False)
    after_ms, _, slots = weights.ask(tat_ms, TOKENS, [0], T0, 0.0, reserve=False)
    assert (after_ms, slots) == (tat_ms, [T0])


def test_keyed_rates_reserve_their_slots_by_the_costs() -> None:
    rate = Rate("1k/10s", cost=1, per="group")
    _, _, slots = weights.ask(0.0, rate, [10, 10, 10], T0, 0.0, reserve=True)
    assert slots[0] == T0 and slots[2] - slots[1] == pytest.approx(10 * rate.every_ms, abs=1)


@pytest.mark.parametrize(("spent", "moves"), [(30.0, 30), (-30.0, -30)])
def test_what_was_spent_beyond_the_estimate_moves_the_shared_state(spent: float, moves: int) -> None:
    d = Dependency("llm:1:rate", rate=TOKENS)
    state = DependencyState(tat_ms=T0 + 5000.0)
    after = calls.apply(state, d, PendingEvidence(spent=spent), T0)
    assert after.tat_ms - state.tat_ms == pytest.approx(moves * TOKENS.every_ms)


def test_a_debt_lasts_an_hour_at_most() -> None:
    assert weights.charge(0.0, TOKENS, 1e12, T0) == T0 + weights.DEBT_MAX_MS
    d = Dependency("llm:1:rate", rate=TOKENS)
    assert permits.allowance(DependencyState(tat_ms=T0 + 1e10), d, T0).count > 0  # the clock was set back


def test_a_debt_lasts_two_windows_at_most_if_these_are_longer_than_an_hour() -> None:
    rate = Rate("1M/1d", cost=1)
    assert weights.charge(0.0, rate, 300_000, T0) == pytest.approx(T0 + 300_000 * rate.every_ms)  # 7 hours
    assert weights.charge(0.0, rate, 1e12, T0) == pytest.approx(T0 + 2_000_000 * rate.every_ms)


def test_an_enormous_cost_holds_those_behind_it_no_longer_than_a_debt() -> None:
    _, later_ms, slots = weights.ask(T0 + 1000.0, TOKENS, [1e300, 1, 1], T0, 0.0, reserve=False)
    assert max(*slots, later_ms) <= T0 + weights.DEBT_MAX_MS
    _, _, slots = weights.ask(T0 + 1000.0, TOKENS, [1], T0, T0 + 1e13, reserve=False)  # an earlier release wrote it
    assert slots[0] < T0 + 1000


@pytest.mark.parametrize("per", [None, "group"])
def test_after_the_clock_was_set_back_by_a_day_calls_go_on(per: str | None) -> None:
    d = Dependency("llm:1:rate", rate=Rate("1k/10s", cost=1, per=per), per=per)
    state = DependencyState(tat_ms=T0 + 86_400_000.0, later_ms=T0 + 86_400_000.0, cost=1.0)
    message = Message("m", "ask", "q", b"{}", "m", attempt=1, fence=1, group="g")
    after, answers = permits.ask(state, d, [message], T0, costs={message.id: 5.0})
    assert answers.refusals == [None] and after.tat_ms == pytest.approx(T0 + 5 * TOKENS.every_ms)
    tat_ms, _, slots = weights.ask(T0 + 1000.0, TOKENS, [1], T0, state.later_ms, reserve=False)
    assert slots[0] < tat_ms


def test_tokens_taken_by_the_mean_are_paid_by_the_true_costs() -> None:
    d = Dependency("llm:1:rate", rate=TOKENS)
    state, count = permits.take(DependencyState(cost=2.0), d, 3, T0, 2.0)
    assert count == 3
    given_back = weights.charge(state.tat_ms, TOKENS, -3 * 2.0, T0)
    assert given_back == pytest.approx(T0)


# An older program beside this one


class OldState(msgspec.Struct, frozen=True, array_like=True):
    """The state as a worker of an older release knows it, up to `later_ms`."""

    breaker: Any = None
    budget: Any = None
    tat_ms: float = 0.0
    cool: Any = None
    aimd: Any = None
    workers: Any = None
    later_ms: float = 0.0


def test_an_older_worker_reads_the_state_and_writes_one_that_is_read_here() -> None:
    state = DependencyState(tat_ms=T0 + 5.0, later_ms=7.0, cost=3.5)
    old = msgspec.json.decode(encode(state), type=OldState)
    assert (old.tat_ms, old.later_ms) == (T0 + 5.0, 7.0)
    again = decode(Cell(1, msgspec.json.encode(old)))
    assert (again.tat_ms, again.cost) == (T0 + 5.0, 0.0)


def test_the_rate_that_older_workers_know_keeps_its_cell_and_weighted_ones_have_their_own() -> None:
    app = App("memory://")
    app.dependency("llm", rate=(TOKENS, "500/1m"))
    app.dependency("db", rate=Rate("10/s", cost=2))

    @app.task(name="ask", dependency="llm", rate=("5/s", Rate("50/s", cost=3)))
    def ask() -> None: ...

    @app.task(name="query", dependency="db")
    def query() -> None: ...

    found = [(d.name, d.rate.text if d.rate else None) for d in controls(app, "ask", "default")]
    assert found == [("task:ask", "5/s"), ("task:ask:2:rate", "50/s"), ("llm:2:rate", "1k/10s"), ("llm", "500/1m")]
    assert [d.name for d in controls(app, "query", "default")] == ["db:1:rate", "db"]


# Declarations


def test_rates_have_k_and_m_suffixes() -> None:
    assert [Rate(text).per_s for text in ("60k/1m", "1.5M/1m", "3M/h")] == [
        1000,
        25_000,
        pytest.approx(833.33, abs=0.01),
    ]


@pytest.mark.parametrize("cost", [-1, math.nan, math.inf, True, "5", 1001])
def test_a_bad_constant_cost_is_refused_where_it_is_declared(cost: Any) -> None:
    with pytest.raises((ConfigError, TypeError), match="rate cost"):
        Rate("1k/10s", cost=cost)


@pytest.mark.parametrize("rates", [(), ("5/s", 7), ["5/s", None]])
def test_several_rates_are_all_checked(rates: Any) -> None:
    with pytest.raises(ConfigError, match="expected rates in it"):
        as_rate(rates)


@pytest.mark.parametrize("kwargs", [{"burst": 501}, {"burst": 0}, {"unit": "a b"}])
def test_a_bad_burst_or_unit_is_refused(kwargs: Any) -> None:
    with pytest.raises(ConfigError):
        Rate("1k/10s", cost=1, **kwargs)


# Real workers


def run(app: App) -> None:
    app.run_worker(drain=True)


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, None, "many", ZeroDivisionError])
def test_a_bad_cost_is_a_fault_of_its_message_alone(bad: Any) -> None:
    app, ran = App("memory://"), []

    def cost(n: int) -> Any:
        if n == 1 and bad is ZeroDivisionError:
            return 1 / 0
        return bad if n == 1 else 5

    @app.task(name="ask", rate=Rate("100k/s", cost=cost), retry=Retry(max_attempts=1))
    def ask(n: int) -> None:
        ran.append(n)

    app.enqueue_many([ask.draft(n) for n in range(3)])
    run(app)
    assert sorted(ran) == [0, 2]
    (dead,) = app.store.peek(None, limit=10).messages
    kind = (
        "ZeroDivisionError"
        if bad is ZeroDivisionError
        else "ValueError"
        if isinstance(bad, int | float)
        else "TypeError"
    )
    assert dead.faults[-1].error.endswith(kind)


def test_spend_replaces_the_estimate_also_when_the_run_fails() -> None:
    app = App("memory://")
    app.dependency("llm", rate=Rate("100k/1m", cost=500, unit="tokens"), breaker=None, budget=None)

    @app.task(name="ask", dependency="llm", retry=Retry(max_attempts=1))
    def ask(n: int, fails: bool) -> None:
        context().spend(n)
        context().spend(n, "tokens")  # reports add up
        if fails:
            raise ValueError("no answer")

    for n, fails in ((1000, True), (1000, False), (10, False)):
        app.enqueue_many([ask.draft(n, fails)])
        paid_ms, before_ms, cost_ms = tat_of(app), app.store.now_ms(), 2 * n * rate_of(app).every_ms
        run(app)
        since_ms, until_ms = (max(paid_ms, at_ms) + cost_ms for at_ms in (before_ms, app.store.now_ms()))
        assert since_ms - 500 <= tat_of(app) <= until_ms + 500  # from when it began, somewhere in between


def test_in_a_gathered_call_each_message_reports_what_it_cost() -> None:
    app, sizes = App("memory://"), []
    app.dependency("llm", rate=Rate("100k/1m", cost=500, unit="tokens"), breaker=None, budget=None)

    @app.task(name="ask", dependency="llm", gather=10, linger="1s")
    def ask(prompts: list[int]) -> None:
        sizes.append(len(prompts))
        for n, each in zip(prompts, context().runs, strict=True):
            each.spend(n)

    costs = [100, 200, 300, 400]
    app.enqueue_many([ask.draft(n) for n in costs])
    before_ms, cost_ms = app.store.now_ms(), sum(costs) * rate_of(app).every_ms
    run(app)
    assert max(sizes) > 1, "they met in one call"
    assert before_ms + cost_ms - 500 <= tat_of(app) <= app.store.now_ms() + cost_ms + 500


def tat_of(app: App) -> float:
    return decode(app.store.cells.read(["flow/llm:1:rate"])[0]).tat_ms


def rate_of(app: App) -> Rate:
    rate = app.dependencies["llm"].rate
    assert rate is not None
    return rate


@pytest.mark.parametrize(
    ("permits", "unit", "error"), [(-1, None, ValueError), (math.nan, None, ValueError), (5, "calls", ConfigError)]
)
def test_a_bad_report_of_a_cost_raises(permits: float, unit: str | None, error: type[Exception]) -> None:
    app, raised = App("memory://"), []

    @app.task(name="ask", rate=Rate("100k/s", cost=1, unit="tokens"))
    def ask() -> None:
        try:
            context().spend(permits, unit)
        except error as caught:
            raised.append(caught)

    ask.enqueue()
    run(app)
    assert len(raised) == 1


def test_the_control_says_its_rates_and_the_mean_cost() -> None:
    app = App("memory://")
    app.dependency("llm", rate=("500/1m", Rate("100k/1m", cost=lambda text: len(text), unit="tokens")))

    @app.task(name="ask", dependency="llm")
    def ask(text: str) -> None: ...

    ask.enqueue("x" * 40)
    run(app)
    assert app.flow.show("llm").rates == ("500/1m, 1 at once", "100k/1m of tokens, 2000 a call")
    assert app.flow.show("llm:2:rate").mean_cost == 40
