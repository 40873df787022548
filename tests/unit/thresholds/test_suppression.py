"""Alerts on thresholds are muted for a while, and one outage is one alert."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from redrive import App, Breaker, Draft
from redrive.errors import ConfigError
from redrive.observe.alert import Alert
from redrive.observe.alerts import NotSent
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.thresholds import Watching, rules_of
from redrive.thresholds.machine import AlertState, step
from redrive.thresholds.rule import AlertRule
from redrive.triage.purge import purge

DEPTH = AlertRule(name="depth", above=1, for_ms=0, every_ms=600_000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> App:
    app = App(store=MemoryStore(clock))
    for queue in ("cards", "refunds", "payouts"):
        app.task(name=queue, queue=queue, dependency="stripe")(lambda: None)
    app.task(name="mail", queue="mail", dependency="mailgun")(lambda: None)
    return app


def watching(app: App) -> tuple[Watching, list[Alert]]:
    told: list[Alert] = []
    app.on("depth", told.append, above=1, for_=0)
    return Watching(app, rules_of(app)), told


@pytest.fixture
def pile(app: App) -> Callable[..., None]:
    def put(*queues: str) -> None:
        app.store.put([Draft(task=queue, queue=queue) for queue in queues for _ in range(2)])

    return put


def work(app: App, *queues: str) -> None:
    for queue in queues:
        purge(app.store, queue, actor="ann")


def words(told: list[Alert]) -> list[tuple[str | None, str | None]]:
    return [(alert.state, alert.queue or alert.about) for alert in told]


# -- muted


def test_what_still_fires_when_its_mute_ends_is_told_then(
    app: App, clock: ManualClock, pile: Callable[..., None]
) -> None:
    watch, told = watching(app)
    app.alerts.mute(queue="mail", for_="1h", reason="import")
    pile("mail", "cards")
    watch.look()
    assert words(told) == [("firing", "cards")]
    clock.advance("1h")
    watch.look()
    assert ("firing", "mail") in words(told)
    assert next(alert for alert in told if alert.queue == "mail").since < told[-1].at


def test_what_was_told_as_firing_is_told_as_resolved_also_while_it_is_muted_and_what_was_not_is_not(
    app: App, clock: ManualClock, pile: Callable[..., None]
) -> None:
    watch, told = watching(app)
    pile("mail")
    watch.look()
    app.alerts.mute(dependency="mailgun", for_="1h", reason="maintenance")
    app.alerts.mute(dependency="stripe", for_="1h", reason="maintenance")
    pile("cards")
    clock.advance("11m")  # beyond `every`
    watch.look()
    assert words(told) == [("firing", "mail")]
    work(app, "mail", "cards")
    clock.advance("5s")
    watch.look()
    assert words(told) == [("firing", "mail"), ("resolved", "mail")]


def test_a_muted_state_remembers_when_it_fired() -> None:
    state, word = step(DEPTH, AlertState(), 2, 1000, muted=True)
    assert state == AlertState(above_ms=1000, fired_ms=1000, value=2) and word is None
    assert step(DEPTH, state, 2, 6000)[1] == "firing"
    assert step(DEPTH, state, 0, 6000) == (None, None)


def test_a_mute_says_what_is_wrong_with_it(app: App) -> None:
    with pytest.raises(ConfigError, match=r"dependency 'strip': there is none of this name; .*mailgun, stripe"):
        app.alerts.mute(dependency="strip", for_="1h", reason="r")
    with pytest.raises(ConfigError, match="the name of one queue or one dependency"):
        app.alerts.mute(queue="a", dependency="stripe", for_="1h", reason="r")
    with pytest.raises(ConfigError, match="more than 0 and a year at most"):
        app.alerts.mute(queue="a", for_="400d", reason="r")
    with pytest.raises(ConfigError, match="no reason is given"):
        app.alerts.mute(queue="a", for_="1h", reason="")
    with pytest.raises(ConfigError, match="queue/a is not muted; muted: nothing"):
        app.alerts.unmute(queue="a")


# -- grouped


def test_an_outage_is_one_alert_that_lists_its_queues_until_all_of_them_are_below(
    app: App, clock: ManualClock, pile: Callable[..., None]
) -> None:
    watch, told = watching(app)
    app.flow.open("stripe", reason="down")
    pile("cards", "refunds", "refunds", "mail")
    watch.look()
    assert sorted(words(told)) == [("firing", "mail"), ("firing", "stripe")]
    (alert,) = (alert for alert in told if alert.about)
    assert (alert.value, alert.queue, alert.affected) == (4, None, ("queue refunds", "queue cards"))
    assert alert.text == (
        "the breaker of stripe opened: 4 messages wait on queue refunds; affected: queue refunds, queue cards; "
        "the threshold is 1"
    )
    assert alert.command.startswith("redrive flow show stripe")

    pile("payouts")  # another one joins, and nothing is told before `every`
    clock.advance("5s")
    watch.look()
    app.flow.close("stripe", reason="up again")
    work(app, "refunds")
    clock.advance("5s")
    watch.look()  # still above, though the breaker is closed
    assert len(told) == 2
    work(app, "cards", "payouts")
    clock.advance("5s")
    watch.look()
    assert words(told)[2:] == [("resolved", "stripe")]
    assert set(told[2].affected) == {"queue cards", "queue refunds", "queue payouts"}

    pile("cards")  # the outage is over: this is of the queue itself
    clock.advance("5s")
    watch.look()
    assert words(told)[3:] == [("firing", "cards")]


def test_the_end_of_an_outage_that_the_receiver_refused_is_told_later_with_all_its_queues(
    app: App, clock: ManualClock, pile: Callable[..., None]
) -> None:
    told: list[Alert] = []
    refused: list[Alert] = []

    def tell(alert: Alert) -> None:
        if alert.state == "resolved" and not refused:
            refused.append(alert)
            raise NotSent("answered 503")
        told.append(alert)

    app.on("depth", tell, above=1, for_=0)
    watch = Watching(app, rules_of(app))
    app.flow.open("stripe", reason="down")
    pile("cards", "refunds")
    watch.look()
    work(app, "cards", "refunds")
    clock.advance("5s")
    watch.look()
    assert words(told) == [("firing", "stripe")] and words(refused) == [("resolved", "stripe")]
    clock.advance("1m")
    watch.look()
    assert words(told) == [("firing", "stripe"), ("resolved", "stripe")]
    assert told[1].affected == refused[0].affected == ("queue cards", "queue refunds")
    assert told[1].command == refused[0].command


def test_the_breaker_over_all_keys_is_that_of_the_dependency_and_those_of_single_keys_are_not(
    app: App, clock: ManualClock, pile: Callable[..., None]
) -> None:
    app.dependency("crm", per="group", parent=Breaker())
    app.task(name="push", queue="push", dependency="crm")(lambda: None)
    watch, told = watching(app)
    app.flow.open("crm", key="acme", reason="down")
    pile("push")
    watch.look()
    assert words(told) == [("firing", "push")]

    app.task(name="pull", queue="pull", dependency="crm")(lambda: None)
    app.flow.open("crm:all", reason="down")
    pile("pull")
    clock.advance("5s")
    watch.look()
    assert words(told)[1:] == [("firing", "crm")]


def test_what_fires_before_the_breaker_opens_goes_on_by_itself(
    app: App, clock: ManualClock, pile: Callable[..., None]
) -> None:
    watch, told = watching(app)
    pile("cards")
    watch.look()
    app.flow.open("stripe", reason="down")
    pile("refunds")
    clock.advance("5s")
    watch.look()
    assert words(told) == [("firing", "cards"), ("firing", "stripe")]
    assert told[1].affected == ("queue refunds",)
    work(app, "cards", "refunds")
    clock.advance("5s")
    watch.look()
    assert sorted(words(told)[2:]) == [("resolved", "cards"), ("resolved", "stripe")]


def test_a_group_fires_when_its_first_member_has_been_above_for_long_enough(
    app: App, clock: ManualClock, pile: Callable[..., None]
) -> None:
    told: list[Alert] = []
    app.on("depth", told.append, above=1, for_="1m")
    watch = Watching(app, rules_of(app))
    pile("cards")
    watch.look()
    clock.advance("50s")
    app.flow.open("stripe", reason="down")
    pile("refunds")
    watch.look()
    assert told == []
    clock.advance("10s")
    watch.look()
    assert words(told) == [("firing", "stripe")]


def test_an_outage_of_a_muted_dependency_is_not_told(app: App, clock: ManualClock, pile: Callable[..., None]) -> None:
    watch, told = watching(app)
    app.alerts.mute(dependency="stripe", for_="1h", reason="maintenance")
    app.flow.open("stripe", reason="maintenance")
    pile("cards", "refunds")
    watch.look()
    clock.advance("5s")
    watch.look()
    assert told == []


def test_another_process_knows_the_group_and_the_mute(app: App, clock: ManualClock, pile: Callable[..., None]) -> None:
    first, told = watching(app)
    app.flow.open("stripe", reason="down")
    pile("cards", "refunds")
    first.look()
    app.flow.close("stripe", reason="up again")
    second = Watching(app, rules_of(app))  # the first one was killed
    clock.advance("5s")
    second.look()
    assert words(told) == [("firing", "stripe")]
    work(app, "cards", "refunds")
    clock.advance("5s")
    second.look()
    assert words(told)[1:] == [("resolved", "stripe")]
