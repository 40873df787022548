"""Alerts on thresholds: when they fire and end, what they look at, and who tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import SLO, App, Draft, Reject
from redrive.errors import ConfigError, StoreUnavailable
from redrive.history import read_history
from redrive.observe.alert import Alert
from redrive.observe.alerts import NotSent
from redrive.presence import ProcessCell, QueueWork, WorkerInfo
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.thresholds import KINDS, AlertRule, Watched, Watching, rule, rules_of
from redrive.thresholds.machine import AlertState, step
from redrive.thresholds.measure import RUNS_MIN, Figures, FigureSubject

MINUTE_MS = 60_000


def told(rule: AlertRule, values: list[float | None], each_ms: int = 5000) -> list[str | None]:
    """What a rule tells while it is looked at every `each_ms`."""
    state, words = AlertState(), []
    for number, value in enumerate(values):
        after, word = step(rule, state, value, 1_000_000 + number * each_ms)
        words.append(word)
        state = after or AlertState()
    return words


DEPTH = AlertRule(name="depth", above=10, for_ms=10_000, every_ms=30_000)


def test_it_fires_once_it_has_been_above_that_long_is_told_again_and_resolved_once_it_has_been_below() -> None:
    assert told(DEPTH, [11, 11, 11, 12, 5, 5, 5, 5]) == [None, None, "firing", None, None, None, "resolved", None]
    again = told(DEPTH, [11] * 16)
    assert [n for n, word in enumerate(again) if word == "firing"] == [2, 8, 14]


def test_what_flaps_within_that_time_tells_nothing() -> None:
    assert told(DEPTH, [11, 9, 11, 11, 9, 11, None, 11]) == [None] * 8
    firing = told(DEPTH, [11, 11, 11, 9, 11, 9, 11, 9, 11])
    assert [word for word in firing if word] == ["firing", "firing"]  # told again after `every`, not resolved between


def test_a_subject_that_is_gone_is_below_and_the_threshold_itself_is_not_above() -> None:
    assert told(DEPTH, [11, 11, 11, None, None, None]) == [None, None, "firing", None, None, "resolved"]
    assert told(DEPTH, [10] * 10) == [None] * 10


@given(st.lists(st.one_of(st.none(), st.floats(0, 20)), max_size=60))
def test_it_is_resolved_only_after_it_has_fired_and_then_remembers_nothing(values: list[float | None]) -> None:
    firing = False
    for word in told(DEPTH, values):
        assert not (word == "resolved" and not firing)
        firing = word == "firing" or (firing and word is None)
    assert step(DEPTH, AlertState(), None, 5) == (None, None)


# -- what it looks at


def make(clock: ManualClock | None = None) -> tuple[App, MemoryStore]:
    store = MemoryStore(clock or ManualClock())
    return App(store=store), store


def figures(app: App, name: str, **options: Any) -> dict[FigureSubject, float]:
    return Figures(app.store, app).of(rule(name, **options))


def test_depth_dead_and_age_are_those_of_each_queue() -> None:
    clock = ManualClock()
    app, store = make(clock)

    @app.task(name="push", queue="crm")
    def push() -> None:
        raise Reject("no")

    store.put([Draft(task="push", queue="crm")])
    app.run_worker(["crm"], burst=True)
    store.put([Draft(task="push", queue="crm"), Draft(task="push", queue="mail"), Draft(task="push", queue="mail")])
    clock.advance("20s")
    assert figures(app, "depth") == {FigureSubject("crm"): 1, FigureSubject("mail"): 2}
    assert figures(app, "depth", queue="mail") == {FigureSubject("mail"): 2}
    assert figures(app, "dead") == {FigureSubject("crm"): 1, FigureSubject("mail"): 0}
    assert figures(app, "age")[FigureSubject("mail")] == 20


def test_a_queue_with_messages_and_no_living_worker_has_none() -> None:
    clock = ManualClock()
    app, store = make(clock)
    store.put([Draft(task="push", queue="crm"), Draft(task="push", queue="mail"), Draft(task="push", queue="paused")])
    app.queue("idle")
    store.configure("paused", paused=True)
    work = (QueueWork(name="crm", concurrency=1),)
    ProcessCell(store).write(WorkerInfo(name="w", started_ms=clock(), seen_ms=clock(), queues=work))
    assert figures(app, "no_workers") == {FigureSubject("mail"): 1}
    clock.advance("16s")
    assert figures(app, "no_workers") == {FigureSubject("crm"): 1, FigureSubject("mail"): 1}


def test_error_rates_percentiles_and_burn_rates_are_read_from_the_history() -> None:
    app, _ = make()

    @app.task(name="push", queue="crm", slo=SLO("99% within 1m"))
    async def push(n: int) -> None:
        if n % 2:
            raise Reject("no")

    async def run(count: int) -> None:
        await app.aenqueue_many([push.draft(n) for n in range(count)])
        async with app.worker(["crm"], burst=True) as worker:
            await worker.wait()

    asyncio.run(run(RUNS_MIN - 2))
    app.flusher.flush()  # type: ignore[union-attr]
    assert figures(app, "error_rate") == {}  # too few for a share
    asyncio.run(run(2))
    app.flusher.flush()  # type: ignore[union-attr]
    assert figures(app, "error_rate") == {FigureSubject("crm", "push"): 0.5}
    assert figures(app, "error_rate", task="other") == {}
    p95_ms = read_history(app.store, "crm", "push", "15m").total.run.percentile(0.95)
    assert p95_ms is not None and figures(app, "p95", above="1s") == {FigureSubject("crm", "push"): p95_ms / 1000}
    assert p95_ms >= 1  # the first bucket ends there
    assert figures(app, "slo_burn") == {FigureSubject(task="push"): pytest.approx(50)}
    assert figures(app, "slo_burn", above=10) == {FigureSubject(task="push"): pytest.approx(50)}


def test_a_schedule_that_nothing_runs_is_late() -> None:
    clock = ManualClock()
    app, _ = make(clock)

    @app.periodic(every="1m")
    @app.task(name="tick")
    def tick() -> None: ...

    assert figures(app, "schedule_late") == {}
    app.scheduler().step()
    clock.advance("10m")
    ((subject, late_s),) = figures(app, "schedule_late").items()
    assert subject == FigureSubject(about="tick") and late_s > 400


def test_batches_that_wait_for_a_person_are_looked_at_by_name() -> None:
    clock = ManualClock()
    app, _ = make(clock)

    @app.task(name="push", queue="crm")
    def push(n: int) -> None:
        if n < 0:
            raise Reject("no")

    assert figures(app, "batch_partial") == figures(app, "batch_unsealed") == {}
    alerts: list[Alert] = []
    watch = Watching(app, [Watched(rule(name), alerts.append, "test") for name in ("batch_partial", "batch_unsealed")])

    def told() -> list[tuple[str, str | None, str | None, str]]:
        alerts.clear()
        clock.advance("5s")
        watch.look()
        return [(alert.name, alert.state, alert.about, alert.text) for alert in alerts]

    refs = [app.batch([push.draft(1), push.draft(-1)], name=name).enqueue() for name in ("crm", "crm", "mail")]
    app.batch([push.draft(1)], name="fine").enqueue()
    assert told() == []  # they run
    app.run_worker(["crm"], burst=True)
    assert figures(app, "batch_partial") == {FigureSubject(about="crm"): 2, FigureSubject(about="mail"): 1}
    assert told() == [
        ("batch_partial", "firing", "crm", "2 batches named crm wait for a redrive"),
        ("batch_partial", "firing", "mail", "1 batch named mail waits for a redrive"),
    ]
    assert (alerts[0].runbook, alerts[0].command) == ("batch-partial", "redrive batch list --name crm --state partial")
    refs[0].cancel(reason="given up")
    app.dlq.discard(ids=[message.id for message in refs[2].members("dead")], reason="not wanted")
    assert [line[1:3] for line in told()] == [("resolved", "mail")]
    app.dlq.retry(ids=[message.id for message in refs[1].members("dead")])
    assert [line[1:3] for line in told()] == [("resolved", "crm")]

    for key, wait in (("one", "20m"), ("two", "1h")):
        app.batch(name="crawl", key=key).__enter__().add(*(push.draft(1) for _ in range(1000)))
        clock.advance(wait)
    assert figures(app, "batch_unsealed") == {FigureSubject(about="crawl"): 4800}
    assert told() == [
        (
            "batch_unsealed",
            "firing",
            "crawl",
            "a batch named crawl is not sealed, and nothing was added to it for 1h20m; the threshold is 1h",
        )
    ]
    assert alerts[0].command == "redrive batch list --name crawl --state filling"
    with app.batch(name="crawl", key="one") as batch:
        batch.add(*(push.draft(1) for _ in range(1000)))
    assert told() == []  # the other one is not sealed
    app.batch([push.draft(1) for _ in range(1000)], name="crawl", key="two").enqueue()
    assert [line[1:3] for line in told()] == [("resolved", "crawl")]


# -- who tells


def watched(app: App, tell: Callable[[Alert], object], **options: Any) -> list[Watched]:
    return [Watched(rule("depth", **({"above": 1, "for_": "5s", "every": "10m"} | options)), tell, "test")]


def test_of_several_processes_one_tells() -> None:
    clock = ManualClock()
    app, store = make(clock)
    store.put([Draft(task="push", queue="crm")] * 3)
    alerts: list[Alert] = []
    watches = [Watching(app, watched(app, alerts.append)) for _ in range(3)]
    for _ in range(3):
        clock.advance("5s")
        for watch in watches:
            watch.look()
    assert [(a.name, a.state, a.queue, a.value, a.above, a.runbook) for a in alerts] == [
        ("depth", "firing", "crm", 3, 1.0, "backlog")
    ]
    assert alerts[0].text == "3 messages wait on queue crm; the threshold is 1"
    for id in [m.id for m in store.peek("ready").messages]:
        app.cancel(id, reason="done with it")
    for _ in range(3):
        clock.advance("5s")
        for watch in watches:
            watch.look()
    assert [a.state for a in alerts] == ["firing", "resolved"]
    assert alerts[1].text.startswith("resolved after 15s: ")


def test_a_process_that_is_killed_leaves_the_states_to_the_others() -> None:
    clock = ManualClock()
    app, store = make(clock)
    store.put([Draft(task="push", queue="crm")] * 3)
    alerts: list[Alert] = []
    Watching(app, watched(app, alerts.append, for_="20s")).look()
    clock.advance("20s")
    Watching(app, watched(app, alerts.append, for_="20s")).look()  # another one
    assert [a.state for a in alerts] == ["firing"]


class Receiver:
    """Refuses alerts while it is down, and keeps what it accepts."""

    def __init__(self) -> None:
        self.down, self.tries = True, 0
        self.alerts: list[Alert] = []

    def __call__(self, alert: Alert) -> None:
        self.tries += 1
        if self.down:
            raise NotSent("hooks.example answered 503")
        self.alerts.append(alert)

    @property
    def states(self) -> list[str | None]:
        return [alert.state for alert in self.alerts]


def looks(clock: ManualClock, watch: Watching, count: int) -> None:
    for _ in range(count):
        clock.advance("5s")
        watch.look()


def empty(app: App) -> None:
    for message in app.store.peek("ready").messages:
        app.cancel(message.id, reason="done with it")


def test_a_receiver_that_is_down_is_tried_once_a_minute_and_each_refusal_is_reported() -> None:
    clock, receiver = ManualClock(), Receiver()
    app, store = make(clock)
    notices: list[Any] = []
    app.subscribe(notices.extend)
    store.put([Draft(task="push", queue="crm")] * 3)
    watch = Watching(app, watched(app, receiver, for_="0s"))
    looks(clock, watch, 24)
    assert receiver.tries == 2
    assert [notice.name for notice in notices] == ["alert_lost"] * 2
    assert notices[0].text == "alert depth could not be sent, and is sent again in 60 s: hooks.example answered 503"
    receiver.down = False
    looks(clock, watch, 24)
    assert receiver.states == ["firing"]  # and again only after `every`


def test_what_a_process_could_not_send_another_one_sends() -> None:
    clock, receiver = ManualClock(), Receiver()
    app, store = make(clock)
    store.put([Draft(task="push", queue="crm")] * 3)
    Watching(app, watched(app, receiver, for_="0s")).look()  # and then this process ends
    receiver.down = False
    looks(clock, Watching(app, watched(app, receiver, for_="0s")), 12)
    assert receiver.states == ["firing"]


@pytest.mark.parametrize("for_", ["0s", "10s", "2m"])
def test_a_firing_alert_that_was_refused_never_follows_its_resolved_alert(for_: str) -> None:
    clock, receiver = ManualClock(), Receiver()
    app, store = make(clock)
    store.put([Draft(task="push", queue="crm")] * 3)
    one, two = (Watching(app, watched(app, receiver, for_=for_)) for _ in range(2))
    while not receiver.tries:
        looks(clock, one, 1)
    empty(app)
    receiver.down = False
    looks(clock, two, 30)
    looks(clock, one, 150)
    assert receiver.states == ["resolved"]


@pytest.mark.parametrize("for_", ["0s", "10s", "2m"])
def test_a_resolved_alert_that_was_refused_is_sent_a_minute_later_also_by_another_process(for_: str) -> None:
    clock, receiver = ManualClock(), Receiver()
    app, store = make(clock)
    store.put([Draft(task="push", queue="crm")] * 3)
    receiver.down = False
    one, two = (Watching(app, watched(app, receiver, for_=for_)) for _ in range(2))
    while not receiver.tries:
        looks(clock, one, 1)
    empty(app)
    receiver.down = True
    while receiver.tries < 2:
        looks(clock, one, 1)
    receiver.down = False
    looks(clock, two, 11)
    assert receiver.states == ["firing"]
    looks(clock, two, 60)
    assert receiver.states == ["firing", "resolved"]


def test_what_fires_again_before_its_resolved_alert_was_accepted_is_told_as_firing() -> None:
    clock, receiver = ManualClock(), Receiver()
    app, store = make(clock)
    store.put([Draft(task="push", queue="crm")] * 3)
    receiver.down = False
    watch = Watching(app, watched(app, receiver, for_="0s"))
    watch.look()
    empty(app)
    receiver.down = True
    looks(clock, watch, 1)
    receiver.down = False
    store.put([Draft(task="push", queue="crm")] * 3)
    looks(clock, watch, 13)
    assert receiver.states == ["firing", "firing"]
    empty(app)
    looks(clock, watch, 1)
    assert receiver.states == ["firing", "firing", "resolved"]


def test_while_refusals_take_long_the_other_alerts_wait_for_the_next_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.thresholds.watch.REFUSED_S", 0.0)  # each takes too long
    clock, receiver = ManualClock(), Receiver()
    app, store = make(clock)
    for number in range(4):
        store.put([Draft(task="push", queue=f"queue {number}")] * 3)
    watch = Watching(app, watched(app, receiver, for_="0s"))
    watch.look()
    assert receiver.tries == 1
    receiver.down = False
    looks(clock, watch, 1)
    assert [alert.queue for alert in receiver.alerts] == ["queue 1", "queue 2", "queue 3"]
    looks(clock, watch, 11)
    assert [alert.queue for alert in receiver.alerts][3:] == ["queue 0"]


def test_a_refused_alert_is_sent_again_though_the_store_failed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, receiver = ManualClock(), Receiver()
    app, store = make(clock)
    store.put([Draft(task="push", queue="crm")] * 3)

    def refuse(alert: Alert) -> None:
        if receiver.down:
            monkeypatch.setattr(store.cells, "read", out)
        receiver(alert)

    def out(keys: object) -> None:
        raise StoreUnavailable("out")

    watch = Watching(app, watched(app, refuse, for_="0s"))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            watch.look()
        clock.advance("5s")
    monkeypatch.undo()
    receiver.down = False
    looks(clock, watch, 12)
    assert receiver.states == ["firing"]


def test_a_receiver_that_fails_and_a_store_that_is_out_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    app, store = make()
    store.put([Draft(task="push", queue="crm")] * 3)

    def tell(alert: Alert) -> None:
        raise ZeroDivisionError

    watch = Watching(app, watched(app, tell, for_="0s"))
    watch.look()
    assert "ZeroDivisionError" in capsys.readouterr().err

    def out() -> None:
        raise StoreUnavailable("out")

    store.counts_by_queue = out  # type: ignore[assignment, method-assign]
    store._clock_ms = None  # type: ignore[attr-defined]


# -- app.on


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("dept", {}, "did you mean 'depth'"),
        ("p95", {}, "give above="),
        ("no_workers", {"above": 1}, "it has no threshold"),
        ("depth", {"above": "many"}, "expected a number of messages"),
        ("depth", {"above": True}, "expected a number of messages"),
        ("age", {"above": "soon"}, "expected a duration"),
        ("error_rate", {"above": 30}, "expected a share from 0 to 1"),
        ("depth", {"task": "push"}, "this alert is not by task"),
        ("schedule_late", {"queue": "crm"}, "this alert is not by queue"),
        ("batch_partial", {"queue": "crm"}, "this alert is not by queue"),
        ("batch_partial", {"above": "many"}, "expected a number of batches such as 10"),
        ("dead_growth", {"above": 5}, "this alert is on an event"),
    ],
)
def test_an_alert_that_makes_no_sense_is_refused(name: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        App("memory://").on(name, print, **options)


def test_each_alert_with_a_default_needs_nothing_else_and_is_undone_by_what_on_returns() -> None:
    app = App("memory://")
    undo = [app.on(name, print) for name, kind in KINDS.items() if kind.above is not None]
    assert len(rules_of(app)) == len(undo) == len(KINDS) - 1
    for end in undo:
        end()
    assert rules_of(app) == []


def test_a_worker_looks_at_the_rules_of_its_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.thresholds.watch.LOOK_S", 0.05)
    app = App("memory://")
    got = asyncio.Event()
    alerts: list[Alert] = []

    @app.task(name="push", queue="crm")
    async def push() -> None:
        await got.wait()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        @app.on("depth", above=1, for_="0s", queue="other")
        def full(alert: Alert) -> None:
            alerts.append(alert)
            loop.call_soon_threadsafe(got.set)

        await app.aenqueue_many([Draft(task="push", queue="other")] * 2 + [push.draft()])
        async with app.worker(["crm"]):
            await asyncio.wait_for(got.wait(), 30)

    asyncio.run(main())
    assert [(alert.name, alert.state, alert.queue) for alert in alerts] == [("depth", "firing", "other")]
