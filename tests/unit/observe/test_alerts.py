"""Alerts: what happens together is told once, over all processes, and a deaf webhook costs the worker nothing."""

from __future__ import annotations

import shlex
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from tests.support.webhooks import Hook, hook  # noqa: F401
from tests.support.workers import PATIENCE_S, Watched

from redrive import App, Quarantine, Reject
from redrive.errors import ConfigError, StoreUnavailable
from redrive.events import DeliveryEvent, Event, Notice
from redrive.message import Cell, Swap
from redrive.observe.alerts import LISTED_MAX, NAMES, Alert, NotSent, Watch
from redrive.observe.webhook import Webhook, notify
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock

MINUTE_MS = 60_000


def poisoned(id: str, task: str = "image.resize", text: str = "killed by SIGKILL") -> DeliveryEvent:
    return DeliveryEvent(
        outcome="quarantined", id=id, task=task, queue="media", attempt=1, at_ms=1_700_000_000_000, text=text
    )


def died(id: str, fingerprint: str | None = "f1", **other: object) -> DeliveryEvent:
    event = DeliveryEvent(
        outcome="dead", id=id, task="crm.push", queue="crm", attempt=8, at_ms=1_700_000_000_000,
        reason="exhausted", error="ConnectionError", text="no route", fingerprint=fingerprint,
    )  # fmt: skip
    return msgspec.structs.replace(event, **other)


def opened(about: str = "stripe") -> Notice:
    return Notice(name="breaker_opened", about=about, text="12 of 20 failed", at_ms=1_700_000_000_000)


def watching(app: App, *names: str, every_ms: int = 10 * MINUTE_MS) -> tuple[Watch, list[Alert]]:
    told: list[Alert] = []
    names = names or NAMES
    return Watch(app, names, told.append, channel="c", every_ms=every_ms, gather_s=PATIENCE_S), told


def say(watch: Watch, *events: Event) -> None:
    """Hear of these, and tell what may be told."""
    watch(events)
    assert watch.flush(PATIENCE_S)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(clock: ManualClock) -> App:
    return App(store=MemoryStore(clock_ms=clock))


# -- what is told


def test_what_happens_together_is_told_once_with_its_count_and_at_most_five_ids(app: App) -> None:
    watch, told = watching(app)
    say(watch, *(poisoned(str(n)) for n in range(7)), poisoned("x", "other"), opened())
    assert [(a.name, a.task, a.about, a.count) for a in told] == [
        ("quarantined", "image.resize", None, 7),
        ("quarantined", "other", None, 1),
        ("breaker_opened", None, "stripe", 1),
    ]
    assert told[0].ids == ("0", "1", "2", "3", "4")
    assert told[0].text.startswith("7 messages were quarantined of task image.resize on queue media")


def test_an_alert_names_the_command_that_leads_on(app: App) -> None:
    watch, told = watching(app)
    say(watch, poisoned("1"))
    say(watch, poisoned("2", "a b"), poisoned("3", "a b"), opened("stripe/tenant 7"))
    assert [alert.command for alert in told] == [
        "redrive job show 1",
        "redrive dlq list --quarantine --task 'a b'",
        "redrive flow show stripe --key 'tenant 7'",
    ]


def test_a_watch_tells_only_what_it_was_asked_for(app: App) -> None:
    watch, told = watching(app, "breaker_opened")
    say(watch, poisoned("1"), opened(), Notice(name="breaker_closed", about="stripe"))
    assert [alert.name for alert in told] == ["breaker_opened"]


def test_what_dies_is_told_by_failure_and_queue_with_the_command_that_lists_it(app: App) -> None:
    watch, told = watching(app)
    say(watch, *(died(str(n)) for n in range(3)), died("3", queue="bulk"), died("4", "f2"), died("5", None))
    assert [(a.name, a.queue, a.about, a.count) for a in told] == [
        ("dead_growth", "crm", "f1", 3),
        ("dead_growth", "bulk", "f1", 1),
        ("dead_growth", "crm", "f2", 1),
        ("dead_growth", "crm", None, 1),
    ]
    assert (
        told[0].text == "3 messages of task crm.push died on queue crm; the last: exhausted: ConnectionError: no route"
    )
    assert told[0].command == "redrive dlq list 'queue:crm fingerprint:f1'"
    assert told[3].command == "redrive dlq list 'queue:crm task:crm.push -fingerprint:*'"


def test_a_failure_that_is_muted_is_not_told_of_until_its_time_is_over(app: App, clock: ManualClock) -> None:
    watch, told = watching(app)
    say(watch, died("1"))
    say(watch, died("2"))  # waits for its ten minutes
    app.dlq.mute("f1", "1h", reason="known", actor="ann")
    clock.advance(11 * 60)
    say(watch, died("3"), died("4", "f2"))
    assert [(alert.about, alert.ids) for alert in told] == [("f1", ("1",)), ("f2", ("4",))]
    clock.advance(50 * 60)
    say(watch, died("5"))
    assert [(alert.about, alert.ids) for alert in told[2:]] == [("f1", ("5",))]


def test_a_muted_queue_or_dependency_is_not_told_of_until_its_time_is_over(app: App, clock: ManualClock) -> None:
    @app.task(name="pay", queue="money", dependency="stripe")
    def pay() -> None: ...

    app.alerts.mute(dependency="stripe", for_="1h", reason="their maintenance")
    app.alerts.mute(queue="crm", for_="2h", reason="our maintenance")
    events = [opened("stripe/tenant 7"), opened("mailgun"), died("1"), died("2", task="pay", queue="money"),
              died("3", queue="bulk"), poisoned("4", "pay")]  # fmt: skip
    watch, told = watching(app)
    say(watch, *events)
    assert [(alert.name, alert.about or alert.queue) for alert in told] == [
        ("breaker_opened", "mailgun"), ("dead_growth", "f1"),
    ]  # fmt: skip
    clock.advance("61m")
    say(watch, *events)
    assert {(a.name, a.about, a.task) for a in told[2:]} == {
        ("breaker_opened", "mailgun", None), ("breaker_opened", "stripe/tenant 7", None),
        ("dead_growth", "f1", "pay"), ("dead_growth", "f1", "crm.push"), ("quarantined", None, "pay"),
    }  # fmt: skip
    assert [mute.queue for mute in app.alerts.list()] == ["crm"]
    app.alerts.unmute(queue="crm")
    say(watch, died("5"))
    assert (told[-1].queue, told[-1].ids) == ("crm", ("5",))


def test_failures_that_all_differ_are_told_together_beyond_twenty(app: App) -> None:
    watch, told = watching(app)
    say(watch, *(died(str(n), f"f{n}") for n in range(15)))
    say(watch, *(died(str(n), f"f{n}") for n in range(500)))
    assert len(told) == 21 and sum(alert.count for alert in told) == 15 + 485
    assert (told[-1].about, told[-1].count) == (None, 480)
    assert told[-1].text.startswith("480 messages died on queue crm; the last: ")
    assert told[-1].command == "redrive dlq groups queue:crm"


def test_what_auto_redrive_gives_up_as_poison_is_told_as_quarantined(app: App) -> None:
    watch, told = watching(app)
    text = "isolated 3 messages: poison: dead again after 5 redrives"
    say(watch, Notice(name="auto_isolated", about="queue/crm", text=text, count=3, at_ms=1_700_000_000_000))
    (alert,) = told
    assert (alert.name, alert.count) == ("quarantined", 3)
    assert alert.text == f"3 messages were quarantined by auto-redrive of queue/crm; the last: {text}"
    assert alert.command == "redrive dlq list --quarantine"


def test_a_redrive_that_its_canary_stops_is_told_to_who_listens() -> None:
    app = App("memory://")
    told: list[Alert] = []
    app.on("run_stopped", told.append)
    app.on("dead_growth", told.append)

    @app.task(name="bad")
    def bad(n: int) -> None:
        raise Reject("still broken")

    app.enqueue_many([bad.draft(n) for n in range(20)])
    app.run_worker(burst=True)
    run = app.dlq.select("task:bad").plan(canary=3).start(reason="is it mended?", actor="ann")
    app.run_worker(burst=True)
    growth, stopped = told
    assert (growth.name, growth.count) == ("dead_growth", 20)
    assert (stopped.name, stopped.about) == ("run_stopped", run.id)
    assert stopped.text.startswith(f"run {run.id} stopped itself: canary: 3 of 3 failed")


def test_a_run_that_stopped_itself_is_told_once_whoever_says_so(app: App) -> None:
    stopped = Notice(name="run_stopped", about="0199-r", text="5 of 5 failed in the canary", at_ms=1_700_000_000_000)
    watches = [watching(App(store=app.store)) for _ in range(2)]
    for watch, _ in watches:
        say(watch, stopped)
    assert [len(told) for _, told in watches] == [1, 0]
    (alert,) = watches[0][1]
    assert alert.text == "run 0199-r stopped itself: 5 of 5 failed in the canary"
    assert (alert.about, alert.command) == ("0199-r", "redrive run show 0199-r")


def test_what_a_worker_lets_die_is_told_with_the_selector_that_finds_it(app: App, clock: ManualClock) -> None:
    told: list[Alert] = []
    app.on("dead_growth", told.append)

    @app.task(name="bad", queue="a b")
    def bad(n: int) -> None:
        raise Reject(f"record {n} cannot exist")

    @app.task(name="late", queue="a b")
    def late() -> None: ...

    deadline = datetime.fromtimestamp((app.store.now_ms() + 1000) / 1000, UTC)
    app.enqueue_many([bad.draft(1), bad.draft(2), late.using(deadline=deadline).draft()])
    clock.advance(2)
    app.run_worker(burst=True)
    assert sorted((alert.task, alert.count) for alert in told) == [("bad", 2), ("late", 1)]
    for alert in told:
        (selector,) = shlex.split(alert.command)[3:]
        assert {m.id for m in app.dlq.select(selector)} == set(alert.ids)


def test_a_secret_in_a_fault_is_hidden(app: App) -> None:
    watch, told = watching(app)
    say(watch, poisoned("1", text="password=hunter2"))
    assert "hunter2" not in told[0].text and "***" in told[0].text


# -- how often


def test_the_same_is_told_again_only_after_every_and_with_all_that_happened_since(app: App, clock: ManualClock) -> None:
    watch, told = watching(app)
    say(watch, poisoned("1"))
    say(watch, poisoned("2"), poisoned("3"))
    clock.advance(9 * 60)
    say(watch, poisoned("4"))
    assert [alert.count for alert in told] == [1]
    clock.advance(60)
    say(watch, poisoned("5"))
    assert [(alert.count, alert.ids) for alert in told] == [(1, ("1",)), (4, ("2", "3", "4", "5"))]


def test_another_task_or_dependency_does_not_wait_for_the_first(app: App) -> None:
    watch, told = watching(app)
    say(watch, opened("stripe"))
    say(watch, opened("crm"))
    say(watch, opened("crm"))
    assert [alert.about for alert in told] == ["stripe", "crm"]


def test_processes_that_share_a_store_tell_once_between_them_and_lose_no_count(app: App, clock: ManualClock) -> None:
    others = [App(store=app.store) for _ in range(4)]
    watches = [watching(other) for other in others]
    for n, (watch, _) in enumerate(watches):
        say(watch, poisoned(str(n)))
    assert [len(told) for _, told in watches] == [1, 0, 0, 0]
    clock.advance(10 * 60)
    say(watches[3][0], poisoned("9"))
    assert [alert.count for alert in watches[3][1]] == [4]  # its own two, and those of the two in between
    say(watches[1][0], poisoned("10"))
    assert [len(told) for _, told in watches] == [1, 0, 0, 1]


def test_many_processes_at_once_tell_once_and_count_all(app: App, clock: ManualClock) -> None:
    watches = [watching(App(store=app.store)) for _ in range(8)]
    threads = [threading.Thread(target=say, args=(watch, *[poisoned("1")] * 5)) for watch, _ in watches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(told) for _, told in watches) == 1
    clock.advance(10 * 60)
    say(watches[0][0], poisoned("2"))
    assert sum(alert.count for _, told in watches for alert in told) == 41


def test_watches_of_two_channels_on_one_store_each_tell(app: App) -> None:
    one, two = [], []
    app.on("quarantined", one.append)
    app.on("quarantined", two.append)
    app.events.emit([poisoned("1"), Notice(name="stopped")])
    assert (len(one), len(two)) == (1, 1)


def test_what_waits_when_every_is_over_is_told_by_itself(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/work.db")
    watch, told = watching(app, every_ms=300)
    say(watch, opened())
    say(watch, opened(), opened())
    assert [alert.count for alert in told] == [1]
    wait_for(lambda: len(told) == 2)
    assert told[1].count == 2
    app.store.close()


# -- what a process leaves when it ends


def started(watch: Watch) -> Watch:
    watch([Notice(name="started")])
    return watch


def refusing(app: App, channel: str = "c") -> Watch:
    def refuse(alert: Alert) -> None:
        raise NotSent("answered 503")

    return Watch(app, NAMES, refuse, channel=channel, every_ms=10 * MINUTE_MS, gather_s=PATIENCE_S)


def test_what_a_receiver_refused_before_a_process_ended_another_one_sends(app: App, clock: ManualClock) -> None:
    say(refusing(app), opened(), died("1"), died("2"), poisoned("3"), Notice(name="stopped"))
    clock.advance(60)
    watch, told = watching(App(store=app.store))
    started(watch)
    wait_for(lambda: len(told) == 3)
    assert sorted((alert.name, alert.count) for alert in told) == [
        ("breaker_opened", 1), ("dead_growth", 2), ("quarantined", 1),
    ]  # fmt: skip
    clock.advance(60)
    again, told = watching(App(store=app.store))
    say(started(again), opened("other"))
    assert [alert.about for alert in told] == ["other"]  # the others are sent


def test_events_within_every_of_a_process_that_ended_another_one_sends(app: App, clock: ManualClock) -> None:
    watch, told = watching(app)
    say(watch, opened())
    say(watch, opened(), opened(), Notice(name="stopped"))
    clock.advance(10 * 60)
    other, told = watching(App(store=app.store))
    started(other)
    wait_for(lambda: told)
    assert [(alert.about, alert.count) for alert in told] == [("stripe", 2)]


def test_a_process_that_runs_on_finds_what_another_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.observe.alerts.AGAIN_S", 0.05)
    app = App(f"sqlite:///{tmp_path}/work.db")
    watch, told = watching(app, every_ms=100)
    started(watch)
    say(refusing(app), opened(), Notice(name="stopped"))
    wait_for(lambda: told)
    assert [(alert.about, alert.count) for alert in told] == [("stripe", 1)]
    watch([Notice(name="stopped")])
    app.store.close()


def test_a_watch_takes_up_only_what_its_channel_and_its_names_left(app: App, clock: ManualClock) -> None:
    say(refusing(app), opened(), poisoned("1"))
    say(refusing(app, "other"), opened("crm"))
    clock.advance(60)
    watch, told = watching(App(store=app.store), "breaker_opened")
    started(watch)
    wait_for(lambda: told)
    assert watch.flush(PATIENCE_S)
    assert [(alert.name, alert.about) for alert in told] == [("breaker_opened", "stripe")]


def test_the_list_of_subjects_is_bounded_and_keeps_the_latest(app: App) -> None:
    watch = refusing(app)
    for number in range(LISTED_MAX + 50):
        say(watch, opened(str(number)))
        say(watch, opened("0"))
    (cell,) = app.store.cells.read(["alert/c/list"])
    assert cell is not None
    abouts = [subject[3] for subject in msgspec.json.decode(cell.value)]
    assert len(abouts) == LISTED_MAX and {"0", str(LISTED_MAX + 49)} <= set(abouts)


# -- what goes wrong


class Deaf(MemoryStore):
    """A store whose cells are out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = self  # type: ignore[assignment]

    def read(self, keys: object) -> list[Cell | None]:
        raise StoreUnavailable("it is out")

    def swap(self, swaps: list[Swap]) -> list[bool]:
        raise StoreUnavailable("it is out")


def test_while_the_store_is_down_a_process_tells_by_itself_and_as_seldom() -> None:
    watch, told = watching(App(store=Deaf()))
    say(watch, opened())
    say(watch, opened())
    assert [alert.count for alert in told] == [1]


def test_a_function_that_raises_is_printed_and_the_next_alert_comes(
    app: App, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str | None] = []

    @app.on("breaker_opened")
    def page(alert: Alert) -> None:
        told.append(alert.about)
        raise RuntimeError("no pager")

    app.events.emit([opened("a"), Notice(name="stopped")])
    app.events.emit([opened("b"), Notice(name="stopped")])
    assert told == ["a", "b"]
    assert "no pager" in capsys.readouterr().err


def test_a_slow_listener_never_holds_up_who_emits(app: App) -> None:
    hold, told = threading.Event(), []
    watch = Watch(
        app, ["quarantined"], lambda alert: told.append(alert) or hold.wait(), channel="c", every_ms=0, gather_s=0
    )
    watch([poisoned("0")])
    wait_for(lambda: told)
    began_s = time.monotonic()
    for n in range(5000):
        watch([poisoned(str(n), f"task {n}")])
    assert time.monotonic() - began_s < PATIENCE_S / 2
    assert len(watch._piles) <= 1001  # and holds no more than it can
    hold.set()


def test_a_burst_has_told_what_it_saw_when_it_returns() -> None:
    app = App("memory://")
    told: list[Alert] = []
    app.on("quarantined", told.append)

    @app.task(name="bad")
    def bad() -> None:
        raise Quarantine("it smells")

    bad.enqueue()
    app.run_worker(burst=True)
    assert [(a.task, a.count, a.command.split()[:3]) for a in told] == [("bad", 1, ["redrive", "job", "show"])]


def test_a_coroutine_function_is_run(app: App) -> None:
    told: list[Alert] = []

    async def page(alert: Alert) -> None:
        told.append(alert)

    end = app.on("breaker_opened", page)
    app.events.emit([opened(), Notice(name="stopped")])
    end()
    app.events.emit([opened("other"), Notice(name="stopped")])
    assert [alert.about for alert in told] == ["stripe"]


def test_an_unknown_name_is_refused_with_the_known_ones(app: App) -> None:
    with pytest.raises(ConfigError, match=r"there is no alert 'quarantine'; did you mean 'quarantined'\? known"):
        app.on("quarantine", print)
    with pytest.raises(ConfigError, match="expected a function"):
        app.on("quarantined", "page")  # type: ignore[call-overload]


# -- webhooks


def test_a_webhook_gets_one_small_json_object(app: App, hook: Hook) -> None:
    watch = notify(app, hook.url, 600, "tasks:app")
    watch([poisoned("1"), poisoned("2")])
    assert watch.flush(PATIENCE_S)
    assert hook.bodies == [
        {
            "name": "quarantined",
            "text": "2 messages were quarantined of task image.resize on queue media; the last: killed by SIGKILL",
            "count": 2,
            "ids": ["1", "2"],
            "affected": [],
            "task": "image.resize",
            "queue": "media",
            "about": None,
            "app": "tasks:app",
            "since": "2023-11-14T22:13:20.000Z",
            "at": hook.bodies[0]["at"],
            "command": "redrive dlq list --quarantine --task image.resize --app tasks:app",
            "runbook": "quarantined",
            "page": None,
            "state": None,
            "value": None,
            "above": None,
        }
    ]
    assert hook.headers[0]["content-type"] == "application/json" and hook.headers[0]["path"] == hook.path


def test_a_webhook_that_fails_for_a_moment_is_tried_again(app: App, hook: Hook) -> None:
    hook.answers = [503]
    watch = notify(app, hook.url, 600)
    watch([opened()])
    assert watch.flush(PATIENCE_S)
    assert len(hook.bodies) == 2


def test_what_a_webhook_refuses_is_told_of_without_its_secrets_and_again_with_what_came_since(
    app: App, hook: Hook, clock: ManualClock
) -> None:
    hook.answers = [302]
    heard: list[Event] = []
    app.subscribe(heard.extend)
    watch = notify(app, hook.url, 600)
    watch([opened()])
    assert watch.flush(PATIENCE_S)
    (lost,) = [event for event in heard if isinstance(event, Notice)]
    assert lost.name == "alert_lost" and "answered 302" in lost.text
    assert "s3cret" not in lost.text and "k3y" not in lost.text
    clock.advance(60)
    watch([opened()])
    assert watch.flush(PATIENCE_S)
    assert [body["count"] for body in hook.bodies] == [1, 2]
    assert "/elsewhere" not in [headers["path"] for headers in hook.headers]


def test_user_and_password_of_a_webhook_travel_as_authorization(hook: Hook) -> None:
    alert = Alert(name="quarantined", text="t", count=1, since="s", at="a", command="c")
    Webhook(hook.url.replace("//127", "//ann:p%40w@127"))(alert)
    assert hook.headers[0]["authorization"] == "Basic YW5uOnBAdw=="
    assert "@" not in hook.headers[0]["host"]


def test_a_webhook_that_never_answers_costs_a_worker_nothing(tmp_path: Path) -> None:
    import socket

    app = App(store=Watched(tmp_path))

    @app.task(name="bad")
    def bad(n: int) -> None:
        raise Quarantine("it smells")

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        notify(app, f"http://127.0.0.1:{deaf.getsockname()[1]}/", 600)
        app.enqueue_many([bad.draft(n) for n in range(200)])
        app.run_worker(burst=True)  # waits at most two seconds for the webhook
        assert app.counts().quarantine == 200
    app.store.close()


def wait_for(condition: object) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end_s, "what was waited for did not come"
        time.sleep(0.005)
