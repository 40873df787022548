"""Gates: what shuts them, what they say, and that asking for health never holds anybody up for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
import pytest
from tests.support.endpoints import endpoint

from redrive import App, Breaker, Budget, Gates
from redrive.errors import ConfigError
from redrive.flow import breaker as breakers
from redrive.flow.dependency import Dependency, DependencyState
from redrive.flow.health import FRESH_S, GOOD_S, HealthChecks
from redrive.flow.limits import CoolDown
from redrive.stores.memory.store import MemoryStore
from redrive.testing.clock import START_MS, ManualClock
from redrive.triage.redrive.gates import PROBE_WAIT_MS, closed, held
from redrive.triage.redrive.options import read_settings
from redrive.triage.redrive.records import Plan

CRM = Dependency("crm", Budget(), Breaker(open_for="5s"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> App:
    app = App(store=MemoryStore(clock_ms=clock))
    app.dependency("crm", breaker=Breaker(open_for="5s"))
    return app


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


# -- the breaker


def test_an_open_breaker_shuts_the_gate_and_a_closed_one_does_not(app: App) -> None:
    assert closed(Gates(), app, ["crm"], START_MS) is None
    app.flow.open("crm", reason="down")
    assert closed(Gates(), app, ["crm"], START_MS) == "the breaker of crm is held open"
    assert closed(None, app, ["crm"], START_MS) == "the breaker of crm is held open"
    assert closed(Gates(), app, ["mail"], START_MS) is closed(Gates(breaker=False), app, ["crm"], START_MS) is None
    app.flow.close("crm", reason="up")
    assert closed(Gates(), app, ["crm"], START_MS) is None


def test_a_breaker_of_one_key_shuts_the_gate_of_that_key_only(app: App) -> None:
    app.flow.open("crm", reason="down", key="tenant-7")
    assert closed(Gates(), app, ["crm/tenant-7"], START_MS) == "the breaker of crm/tenant-7 is held open"
    assert closed(Gates(), app, ["crm", "crm/tenant-8"], START_MS) is None


def test_a_half_open_breaker_gets_messages_to_probe_with_where_nothing_else_probes() -> None:
    """Else a breaker that nobody calls would stay half-open for ever, and the gate shut."""
    opened = DependencyState(breakers.State("open", until_ms=START_MS + 5000, opened=1))
    assert held(opened, CRM, "crm", START_MS) == "the breaker of crm is open"
    assert held(opened, CRM, "crm", START_MS + 5000 + PROBE_WAIT_MS - 1) == "the breaker of crm is half-open"
    assert held(opened, CRM, "crm", START_MS + 5000 + PROBE_WAIT_MS) is None
    half_ms = START_MS + 5000
    probed, _ = breakers.ask(opened.breaker, Breaker(), half_ms, "m 1")
    assert held(DependencyState(probed), CRM, "crm", half_ms + PROBE_WAIT_MS) == "the breaker of crm is half-open"
    failed = breakers.record(probed, Breaker(), "failure", half_ms + PROBE_WAIT_MS, "m 1")
    assert held(DependencyState(failed), CRM, "crm", half_ms + PROBE_WAIT_MS) == "the breaker of crm is open"


def test_a_dependency_that_asked_to_be_left_alone_shuts_the_gate_until_then() -> None:
    cooling = DependencyState(cool=CoolDown(START_MS + 100))
    assert held(cooling, CRM, "crm", START_MS + 99) == "crm asked to be left alone"
    assert held(cooling, CRM, "crm", START_MS + 100) is None
    assert held(DependencyState(breakers.State("forced_open")), Dependency("crm"), "crm", START_MS) is None


# -- the window


@pytest.mark.parametrize(
    "window, time, opened",
    [
        ("22:00-06:00", "2026-01-31T21:59:59.999Z", False),
        ("22:00-06:00", "2026-01-31T22:00Z", True),
        ("22:00-06:00", "2026-01-31T05:59:59.999Z", True),
        ("22:00-06:00", "2026-01-31T06:00Z", False),
        ("09:00-17:30", "2026-01-31T08:59Z", False),
        ("9:00 - 17:30", "2026-01-31T09:00Z", True),
        ("09:00-17:30", "2026-01-31T17:30Z", False),
        ("18:00-24:00", "2026-01-31T23:59:59.999Z", True),
        ("18:00-24:00", "2026-02-01T00:00Z", False),
        ("22:00-06:00 Europe/Zurich", "2026-01-31T21:00Z", True),
        ("22:00-06:00 Europe/Zurich", "2026-07-31T20:00Z", True),  # summer time
        ("22:00-06:00 Europe/Zurich", "2026-07-31T04:00Z", False),
    ],
)
def test_a_window_is_a_time_of_day_on_the_clocks_of_its_zone(app: App, window: str, time: str, opened: bool) -> None:
    why = closed(Gates(window=window), app, [], at(time))
    assert why == (None if opened else f"outside its window {window}")


@pytest.mark.parametrize(
    "options, says",
    [
        ({"window": "22-06"}, "such as '22:00-06:00 Europe/Zurich'"),
        ({"window": "22:00-22:00"}, "is not a span of the day"),
        ({"window": "22:00-25:00"}, "is not a span of the day"),
        ({"window": "22:60-23:00"}, "is not a span of the day"),
        ({"window": "22:00-06:00 Zurich"}, "did you mean 'Europe/Zurich'"),
        ({"health": "ftp://crm/health"}, "http or https URL"),
        ({"health": "https:///health"}, "http or https URL"),
        ({"health": "https://ann:pw@crm/health"}, "register a check by name"),
        ({"health": print}, "expected text"),
        ({"approval": " "}, "expected text"),
        ({"breaker": "crm"}, "expected True or False"),
    ],
)
def test_gates_that_cannot_be_meant_are_refused_and_no_password_is_shown(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        Gates(**options)
    assert says in str(error.value) and "pw" not in str(error.value)


def test_gates_are_a_value_that_can_be_stored() -> None:
    gates = Gates(False, "https://crm.example.com/health", "ann", "22:00-06:00 Europe/Zurich")
    assert msgspec.json.decode(msgspec.json.encode(gates), type=Gates) == gates and hash(gates) != hash(Gates())


# -- approval


def test_a_run_waits_for_the_person_that_is_named(app: App) -> None:
    gates = Gates(approval="ann", window="22:00-06:00")
    assert closed(gates, app, [], START_MS) == "approval by ann is awaited"
    assert closed(gates, app, [], at("2026-01-31T23:00Z"), approved=True) is None


def test_the_gates_of_a_run_are_those_of_its_plan(app: App) -> None:
    settings = read_settings(gates=Gates(approval="ann"))
    plan = Plan(id="p", selector="", made_ms=START_MS, settings=settings, dependencies={"crm.push": "crm"})
    gates, dependencies = plan.settings.gates, plan.dependencies.values()
    assert closed(gates, app, dependencies, START_MS) == "approval by ann is awaited"
    assert closed(gates, app, dependencies, START_MS, approved=True) is None
    app.flow.open("crm", reason="down")
    assert closed(gates, app, dependencies, START_MS, approved=True) == "the breaker of crm is held open"
    assert closed(None, app, dependencies, START_MS) == "the breaker of crm is held open"
    with pytest.raises(TypeError, match="expected Gates"):
        read_settings(gates="ann")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wanted, actor, user, may",
    [
        ("ann", "ann", "root@ops", True),
        ("ann", "ann@laptop", "ann@laptop", True),
        ("ann", "ann@example.com", "root@ops", False),
        ("ann", "ann ", "root@ops", False),
        ("ann", "anna", "anna", False),
        ("ann", "bob@ann", "bob@ann", False),
        ("ann@ops", "ann@ops", "ann@ops", True),
        ("ann@ops", "ann", "ann@laptop", False),
        ("ann@ops", "ann@laptop", "ann@laptop", False),
        ("anyone", "bob", "bob@ops", True),
    ],
)
def test_only_the_named_person_may_approve(wanted: str, actor: str, user: str, may: bool) -> None:
    assert Gates(approval=wanted).may_approve(actor, user) is may


# -- health


@pytest.mark.parametrize(
    "code, says", [(200, None), (204, None), (302, "answered 302"), (404, "answered 404"), (503, "answered 503")]
)
def test_a_health_url_must_answer_2xx_and_is_not_followed_elsewhere(app: App, code: int, says: str | None) -> None:
    with endpoint(lambda: code) as url:
        assert closed(Gates(health=f"{url}?key=secret"), app, [], START_MS) == (
            None if says is None else f"{url} {says}"
        )


def test_where_nobody_listens_nothing_is_healthy(app: App) -> None:
    with endpoint(lambda: 200) as url:
        pass
    assert closed(Gates(health=url), app, [], START_MS) == f"{url} did not answer: ConnectionRefusedError"


def test_a_registered_check_is_asked_by_name(app: App) -> None:
    up = True

    async def crm_up() -> bool:
        return up

    app.dlq.health("crm-up", crm_up)
    assert closed(Gates(health="crm-up"), app, [], START_MS) is None
    assert "did you mean 'crm-up'?" in str(closed(Gates(health="crm-pu"), app, [], START_MS))
    app.dlq.health("broken", lambda: 1 / 0)
    assert closed(Gates(health="broken"), app, [], START_MS) == "health check 'broken' raised ZeroDivisionError"
    app.dlq.health("down", lambda: None)
    assert closed(Gates(health="down"), app, [], START_MS) == "health check 'down' says no"
    for name, check in (("", print), ("https://x", print), ("x", 3)):
        with pytest.raises(ConfigError):
            app.dlq.health(name, check)  # type: ignore[arg-type]


def test_a_check_is_asked_once_a_second_and_never_on_the_thread_that_wants_to_know() -> None:
    now_s = [1000.0]
    healths, calls, up = HealthChecks(clock_s=lambda: now_s[0]), [], [True]

    def check() -> bool:
        calls.append(threading.current_thread())
        return up[0]

    healths.register("crm", check)
    assert healths.down("crm") is None
    up[0] = False
    now_s[0] += FRESH_S - 0.01
    assert [healths.down("crm") for _ in range(5)] == [None] * 5 and len(calls) == 1
    now_s[0] += 0.01
    healths.down("crm")  # the last answer, while the next one is fetched
    _until(lambda: healths.down("crm") == "health check 'crm' says no")
    assert len(calls) == 2 and threading.current_thread() not in calls


def test_a_check_that_never_returns_shuts_the_gate_and_holds_nobody_up() -> None:
    now_s, free = [1000.0], threading.Event()
    healths, calls = HealthChecks(clock_s=lambda: now_s[0]), []

    def check() -> bool:
        calls.append(1)
        return len(calls) == 1 or free.wait(20)

    healths.register("crm", check)
    assert healths.down("crm") is None
    now_s[0] += GOOD_S - 0.1
    assert healths.down("crm") is None  # asked again, and that hangs
    now_s[0] += 0.1
    assert healths.down("crm") == "health check 'crm' has not answered yet"
    assert healths.down("crm") == "health check 'crm' has not answered yet" and len(calls) == 2
    free.set()
    _until(lambda: healths.down("crm") is None)


def test_health_is_not_asked_for_while_another_gate_is_shut(app: App) -> None:
    calls: list[int] = []
    app.dlq.health("crm-up", lambda: not calls.append(1))  # type: ignore[func-returns-value]
    app.flow.open("crm", reason="down")
    assert closed(Gates(health="crm-up"), app, ["crm"], START_MS) and not calls


def _until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s, "what was waited for did not come"
        time.sleep(0.003)
