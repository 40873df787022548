"""What flow control knows can be looked at, told of, and set by hand: by the app, and by the store alone."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.support.workers import Heard, store_in, until

from redrive import Aimd, App, Backoff, Breaker, Budget, Retry, RetryAfter
from redrive.audit.log import Audit
from redrive.errors import ConfigError
from redrive.events import Notice
from redrive.flow import breaker as breakers
from redrive.flow import budget as budgets
from redrive.flow import dependency as flow
from redrive.flow import ramp as ramps
from redrive.flow.limits import CoolDown
from redrive.message import Swap, version_of
from redrive.observe.prometheus import Metrics
from redrive.program.main import run
from redrive.triage.controls import Controls

SOON = Retry(max_attempts=50, backoff=Backoff.fixed("10ms"))
OPENS = Breaker(min_calls=5, open_for="1h", max_open="1h")


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    app = App(store=store_in(tmp_path, request.param))
    app.dependency("stripe", breaker=OPENS, rate="1000/s", concurrency=Aimd(start=7))
    app.queue("bulk", rate="50/s")

    @app.task(name="charge", dependency="stripe", retry=SOON)
    async def charge(n: int) -> None:
        raise ConnectionError("refused")

    @app.task(name="ok", dependency="stripe", queue="bulk")
    async def ok(n: int) -> None: ...

    yield app
    app.store.close()


def opened(app: App, count: int = 6) -> Heard:
    """With its breaker open: that many were put, and failed until it opened."""
    heard = Heard(app)

    async def work() -> None:
        await app.aenqueue_many([app.tasks["charge"].draft(n) for n in range(count)])
        async with app.worker():
            await until(lambda: "breaker_opened" in heard.notices)

    asyncio.run(work())
    return heard


# -- looking


def test_what_is_declared_is_listed_before_anything_ran(app: App) -> None:
    found = {control.name: control for control in app.flow.list()}
    assert list(found) == ["queue:bulk", "stripe"]
    assert (found["stripe"].breaker, found["stripe"].budget_left, found["stripe"].concurrency) == ("closed", 100.0, 7)
    assert (found["stripe"].rate_per_s, found["stripe"].next_ms) == (1000.0, None)
    assert (found["queue:bulk"].breaker, found["queue:bulk"].budget_left) == (None, None)


def test_an_open_breaker_says_until_when_why_and_how_many_wait(app: App) -> None:
    opened(app)
    found = app.flow.show("stripe")
    assert found.breaker == "open" and found.opened == 1
    assert found.until_ms is not None and found.until_ms > app.store.now_ms() + 1_000_000
    assert found.waiting == 6
    (turned,) = found.transitions
    assert (turned.before, turned.after, turned.actor) == ("closed", "open", "")
    assert re.fullmatch(r"(\d+) of \1 calls in 10s failed", turned.why)


def test_the_store_alone_shows_breakers_but_no_rules(app: App) -> None:
    opened(app)
    found = {control.name: control for control in Controls(app.store).list()}
    assert found["stripe"].breaker == "open"
    assert (found["stripe"].budget_left, found["stripe"].concurrency, found["stripe"].waiting) == (None, None, None)
    assert found["queue:bulk"].breaker is None


def test_a_cool_down_is_shown_with_its_end(app: App) -> None:
    @app.task(name="limited", dependency="github")
    async def limited() -> None:
        raise RetryAfter("1h")

    limited.enqueue()
    app.run_worker(burst=True)
    found = app.flow.show("github")
    assert found.cool_until_ms is not None and 3500 < found.cool_s <= 3600
    assert found.breaker == "closed"


def test_a_key_is_shown_by_itself(app: App) -> None:
    app.dependency("hooks", breaker=OPENS, per="args.customer", budget=None)

    @app.task(name="hook", dependency="hooks", retry=SOON)
    async def hook(customer: str) -> None:
        raise ConnectionError("refused")

    heard = Heard(app)

    async def work() -> None:
        await app.aenqueue_many([hook.draft("bad") for _ in range(6)])
        async with app.worker():
            await until(lambda: "breaker_opened" in heard.notices)

    asyncio.run(work())
    assert app.flow.show("hooks", key="bad").breaker == "open"
    assert app.flow.show("hooks", key="good").breaker == app.flow.show("hooks").breaker == "closed"
    assert app.flow.show("hooks").per == "args.customer"
    assert "hooks/bad" in [event.about for event in heard.events if isinstance(event, Notice)]


# -- setting


def test_a_breaker_held_open_stops_calls_and_keeps_attempts_until_it_is_auto_again(app: App) -> None:
    app.dependency("stripe", breaker=Breaker(open_for="200ms"))
    held = app.flow.open("stripe", reason="they asked us to", actor="ann")
    assert held.breaker == "forced_open"
    ref = app.tasks["ok"].enqueue(1)

    async def work() -> None:
        async with app.worker():
            await asyncio.sleep(0.3)
            waiting = await app.ajob(ref.id)
            assert waiting is not None and waiting.attempt == 0
            app.flow.auto("stripe", reason="they are back", actor="ben")
            await until(lambda: app.store.find([ref.id]) == [None])

    asyncio.run(work())
    said = [(t.after, t.actor, t.reason) for t in app.flow.show("stripe").transitions]
    assert said[0] == ("forced_open", "ann", "they asked us to")
    assert said[1] == ("half_open", "ben", "they are back")


def test_a_breaker_held_closed_stays_closed_whatever_fails(app: App) -> None:
    app.flow.close("stripe", reason="its errors are harmless")
    heard = Heard(app)

    async def work() -> None:
        await app.aenqueue_many([app.tasks["charge"].draft(n) for n in range(30)])
        async with app.worker():
            await until(lambda: heard.outcomes.count("retry") >= 30)

    asyncio.run(work())
    assert app.flow.show("stripe").breaker == "forced_closed"
    assert "breaker_opened" not in heard.notices
    assert "@" in app.flow.show("stripe").transitions[0].actor  # who it was, though nobody said


def test_a_breaker_is_set_without_the_app(app: App) -> None:
    opened(app)
    assert Controls(app.store).close("stripe", reason="r").breaker == "forced_closed"
    assert app.flow.show("stripe").breaker == "forced_closed"


# -- ending what flow control began


def held(app: App, **state: Any) -> None:
    """As if flow control had written this state of stripe."""
    (cell,) = app.store.cells.read(["flow/stripe"])
    value = flow.encode(flow.DependencyState(**state))
    assert app.store.cells.swap([Swap("flow/stripe", version_of(cell), value)]) == [True]


def test_the_end_of_a_cool_down_lets_running_workers_call_again(app: App) -> None:
    six_hours_ms = app.store.now_ms() + 6 * 3600_000
    held(app, cool=CoolDown(six_hours_ms, 3600_000))
    assert app.flow.show("stripe").cool_until_ms == six_hours_ms

    async def work() -> None:
        refs = [await app.tasks["ok"].aenqueue(n) for n in range(5)]
        async with app.worker():
            await asyncio.sleep(0.5)
            assert None not in app.store.find([ref.id for ref in refs])
            app.flow.end_cooldown("stripe", reason="they meant seconds", actor="ann")
            await until(lambda: app.store.find([ref.id for ref in refs]) == [None] * 5)

    asyncio.run(work())
    assert app.flow.show("stripe").cool_until_ms is None
    entry = next(iter(Audit(app.store)))
    assert (entry.action, entry.claimed, entry.reason, entry.about) == (
        "flow",
        "ann",
        "they meant seconds",
        "flow/stripe",
    )
    assert entry.text.startswith("cool-down ended, 2")


def test_a_budget_is_reset(app: App) -> None:
    app.dependency("stripe", budget=Budget.fixed(10, per="1h"))
    now_ms = app.store.now_ms()
    spent = budgets.BudgetState()
    for _ in range(30):
        spent, _ = budgets.ask(spent, Budget.fixed(10, per="1h"), now_ms)
    held(app, budget=spent)
    assert app.flow.show("stripe").budget_left == 0
    assert app.flow.reset_budget("stripe", reason="that was the drill").budget_left == 10
    assert [(e.text, e.reason) for e in Audit(app.store)] == [("budget reset", "that was the drill")]


def test_a_ramp_is_ended(app: App) -> None:
    now_ms = app.store.now_ms()
    held(app, breaker=breakers.State(since_ms=now_ms, ramp=ramps.start(3, now_ms), places=4))
    assert app.flow.show("stripe").ramp_per_s is not None
    after = app.flow.end_ramp("stripe", reason="they can take it all")
    assert (after.breaker, after.ramp_per_s) == ("closed", None)
    assert [e.text for e in Audit(app.store)] == ["ramp ended at 3/s"]


@pytest.mark.parametrize("end", ["end_cooldown", "reset_budget", "end_ramp"])
def test_nothing_ends_without_a_reason_or_a_name(app: App, end: str) -> None:
    with pytest.raises(ConfigError, match="no reason is given"):
        getattr(app.flow, end)("stripe", reason="")
    with pytest.raises(ConfigError, match="no dependency 'strip'"):
        getattr(app.flow, end)("strip", reason="r")
    assert list(Audit(app.store)) == []
    getattr(app.flow, end)("stripe", reason="r", key="eu")  # of one key
    assert [e.about for e in Audit(app.store)] == ["flow/stripe/eu"]


def test_what_cannot_be_set_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match=r"no dependency 'strip'; did you mean 'stripe'\? known: queue:bulk, stripe"):
        app.flow.open("strip", reason="r")
    with pytest.raises(ConfigError, match="no reason is given"):
        app.flow.open("stripe", reason=" ")
    with pytest.raises(ConfigError, match="has no breaker"):
        app.flow.open("queue:bulk", reason="r")


# -- telling


def test_a_transition_and_a_spent_budget_are_told_with_whose_they_are(app: App) -> None:
    told = [event for event in opened(app).events if isinstance(event, Notice) and event.about]
    assert [(notice.name, notice.about) for notice in told] == [("breaker_opened", "stripe")]
    assert told[0].text.startswith("closed to open, for ") and "calls in 10s failed" in told[0].text


def test_a_spent_budget_is_told_once_a_minute(app: App) -> None:
    app.dependency("stripe", breaker=None, budget=Budget(ratio=0, life="1s", floor=5))
    heard = Heard(app)

    async def work() -> None:
        await app.aenqueue_many([app.tasks["charge"].draft(n) for n in range(20)])
        async with app.worker():
            await until(lambda: [f.deferral for f in heard.fates].count("budget") >= 10)

    asyncio.run(work())
    told = [event for event in heard.events if isinstance(event, Notice) and event.name == "budget_exhausted"]
    assert [notice.about for notice in told] == ["stripe"]
    assert {fate.by for fate in heard.fates if fate.deferral == "budget"} == {"stripe"}


def test_gauges_show_breaker_budget_and_limit(app: App) -> None:
    opened(app)
    registry = CollectorRegistry()
    Metrics(app).register(registry)
    of = {"dependency": "stripe"}
    assert registry.get_sample_value("redrive_breaker_state", of) == 2
    assert registry.get_sample_value("redrive_budget_left", of) == pytest.approx(101, abs=2)
    assert registry.get_sample_value("redrive_concurrency_limit", of) == app.flow.show("stripe").concurrency
    assert registry.get_sample_value("redrive_cool_down_seconds", of) == 0
    assert registry.get_sample_value("redrive_breaker_state", {"dependency": "queue:bulk"}) is None


# -- the command


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/work.db"
    app = App(url)
    app.dependency("stripe", breaker=OPENS)

    @app.task(name="charge", dependency="stripe", retry=SOON)
    async def charge(n: int) -> None:
        raise ConnectionError("refused")

    opened(app)
    app.store.close()
    return url


def test_flow_list_is_a_table_tsv_json_or_ids(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flow", "list", "-o", "table", "--url", url]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["dependency", "breaker", "until"]
    assert line.split()[:3] == ["stripe", "open", "in"]
    run(["flow", "list", "--url", url])
    assert capsys.readouterr().out.splitlines()[1].startswith("stripe\topen\t20")
    run(["flow", "list", "-o", "ids", "--url", url])
    assert capsys.readouterr().out == "stripe\n"
    run(["flow", "list", "-o", "json", "--url", url])
    assert json.loads(capsys.readouterr().out)[0]["breaker"] == "open"


def test_flow_set_and_show_tell_who_and_why(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--breaker", "closed", "--reason", "they are\x1b back", "--actor", "ann", "--url", url]
    assert run(["flow", "set", "stripe", *asked, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["breaker"] == "forced_closed"
    run(["flow", "show", "stripe", "-o", "table", "--url", url])
    shown = capsys.readouterr().out
    assert "open to forced closed by ann: they are\\x1b back" in shown
    assert shown.index("forced closed by ann") < shown.index("closed to open: ")  # the last first


def test_flow_set_refuses_an_unknown_name_and_asks_for_a_reason(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flow", "set", "strip", "--breaker", "open", "--reason", "r", "--url", url]) == 2
    assert "did you mean 'stripe'" in capsys.readouterr().err
    assert run(["flow", "set", "stripe", "--breaker", "open", "--url", url]) == 2
    assert "--reason" in capsys.readouterr().err
    assert run(["flow", "set", "stripe", "--reason", "r", "--url", url]) == 2
    assert "give --breaker, --cooldown, --budget or --ramp" in capsys.readouterr().err
    assert run(["flow", "show", "stripe", "--url", url]) == 0
    assert "forced" not in capsys.readouterr().out


def test_the_transitions_of_an_odd_key_are_found_by_it(app: App) -> None:
    key = "north\nsouth"
    heard = Heard(app)

    @app.task(name="hook", dependency="hooks")
    async def hook(shop: str, n: int) -> None:
        raise ConnectionError("refused")

    app.dependency("hooks", breaker=Breaker(min_calls=2, open_for="1h", max_open="1h"), budget=None, per="args.shop")

    async def work() -> None:
        await app.aenqueue_many([hook.draft(key, n) for n in range(4)])
        async with app.worker(["default"]):
            await until(lambda: "breaker_opened" in heard.notices)

    asyncio.run(work())
    found = app.flow.show("hooks", key=key)
    assert found.breaker == "open" and [turned.after for turned in found.transitions] == ["open"]
