"""Prometheus metrics: what is counted, under which names, and that nobody from outside can make series without end."""

import io
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.support.redrives import Scene, dies, works
from tests.support.workers import SOON

from redrive import App, Reject, Retry, Snooze
from redrive.errors import ConfigError, Refused, StoreUnavailable
from redrive.events import DeliveryEvent, Notice
from redrive.message import Counts, Exchange
from redrive.observe import batch_gauges, prometheus, shared_tally
from redrive.observe.logs import JsonLog, TextLog
from redrive.observe.prometheus import Depths, Metrics
from redrive.observe.shared_tally import SharedCounting, read
from redrive.observe.tally import ATTEMPT_BOUNDS, DELAY_S, DONE_S, RUN_S, SHAPES, EventCounter, MetricSeries
from redrive.presence import GONE_MS, HeldMessage, ProcessCell, QueueWork, WorkerInfo
from redrive.store import Usage
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.triage.redrive.records import RunStatus
from redrive.worker.maintenance import RequestMeter

LABELS = {
    "queue",
    "task",
    "outcome",
    "retried",
    "kind",
    "reason",
    "attempt",
    "lane",
    "notice",
    "cause",
    "action",
    "verdict",
    "status",
    "state",
    "le",
}


class Scrape:
    """One scrape of a registry, as Prometheus reads it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.families: dict[str, Metric] = {f.name: f for f in _parsed(generate_latest(registry).decode())}

    def value(self, name: str, **labels: str) -> float | None:
        found = [s.value for f in self.families.values() for s in f.samples if s.name == name and s.labels == labels]
        assert len(found) <= 1, found
        return found[0] if found else None

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(s.labels) for f in self.families.values() for s in f.samples if s.name == name]


def _parsed(text: str) -> Iterator[Metric]:
    return text_string_to_metric_families(text)  # type: ignore[no-any-return, no-untyped-call]


class Watched(MemoryStore):
    """A store that counts how often it is asked, and can be out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.looks, self.down = 0, False

    def counts_by_queue(self) -> dict[str, Counts]:
        self.looks += 1
        if self.down:
            raise StoreUnavailable("it is out")
        return super().counts_by_queue()


def event(outcome: str = "done", **more: object) -> DeliveryEvent:
    fields: dict[str, object] = {"id": "1", "task": "t", "queue": "q", "attempt": 1, "outcome": outcome, **more}
    return DeliveryEvent(**fields)  # type: ignore[arg-type]


def counted(*events: DeliveryEvent | Notice, tasks: Sequence[str] = ("t",)) -> MetricSeries:
    counting = EventCounter(dict.fromkeys(tasks))
    counting(events)
    return counting.copy()


def seen(*events: DeliveryEvent | Notice) -> Scrape:
    """What a scrape shows of these."""
    app, registry = App("memory://"), CollectorRegistry()

    @app.task(name="t", queue="q")
    def t() -> None: ...

    Metrics(app, store=False).register(registry)
    app.events.emit(events)
    return Scrape(registry)


# -- what workers did


def test_a_worker_s_deliveries_are_counted_by_what_became_of_them() -> None:
    app, registry = App("memory://"), CollectorRegistry()
    naps: list[int] = []

    @app.task(name="well", queue="a")
    def well() -> None: ...

    @app.task(name="twice", queue="a", retry=SOON)
    async def twice() -> None:
        if naps.append(1) or len(naps) == 1:
            raise ValueError("once")

    @app.task(name="no", queue="b")
    def no() -> None:
        raise Reject("never")

    @app.task(name="nap", queue="b")
    def nap() -> None:
        if naps.append(1) or len(naps) < 4:
            raise Snooze("1ms")

    Metrics(app).register(registry)
    for task in (well, well, twice, no):
        task.enqueue()
    app.run_worker(drain=True)
    nap.enqueue()
    app.run_worker(drain=True)

    found = Scrape(registry)
    assert found.value("redrive_deliveries_total", queue="a", task="well", outcome="done") == 2
    assert found.value("redrive_deliveries_total", queue="a", task="twice", outcome="retry") == 1
    assert found.value("redrive_deliveries_total", queue="b", task="nap", outcome="snoozed") == 1
    assert found.value("redrive_done_total", queue="a", task="well", attempt="1") == 2
    assert found.value("redrive_done_total", queue="a", task="twice", attempt="1") == 0
    assert found.value("redrive_done_total", queue="a", task="twice", attempt="2") == 1
    assert found.value("redrive_time_to_done_seconds_count", queue="a", task="twice", retried="true") == 1
    assert found.value("redrive_time_to_done_seconds_count", queue="a", task="twice", retried="false") == 0
    assert found.value("redrive_time_to_done_seconds_count", queue="b", task="nap", retried="false") == 1
    assert found.value("redrive_retry_delay_seconds_bucket", queue="a", task="twice", le="0.1") == 1
    assert found.value("redrive_run_seconds_count", queue="a", task="twice") == 2
    assert found.value("redrive_faults_total", queue="a", task="twice", kind="default") == 1
    assert found.value("redrive_faults_total", queue="b", task="nap", kind="default") is None
    assert found.value("redrive_dead_total", queue="b", task="no", reason="rejected") == 1
    assert found.value("redrive_attempts_count", queue="b", task="no", outcome="dead") == 1
    assert found.value("redrive_worker_notices_total", notice="stopped") == 2
    assert found.value("redrive_queue_messages", queue="b", lane="dead") == 1


@pytest.mark.parametrize(
    "attempt, bucket", [(1, "1"), (2, "2"), (5, "5"), (6, "6-10"), (10, "6-10"), (11, "11+"), (10**6, "11+")]
)
def test_success_is_counted_by_attempt_number_in_seven_buckets(attempt: int, bucket: str) -> None:
    found = seen(event(attempt=attempt))
    of = {"queue": "q", "task": "t"}
    assert found.value("redrive_done_total", **of, attempt=bucket) == 1
    assert sum(found.value(s, **labels) or 0 for s in ["redrive_done_total"] for labels in found.labels(s)) == 1
    assert len(found.labels("redrive_done_total")) == 7


def test_what_crashed_before_it_was_done_is_not_a_first_try() -> None:
    found = seen(event(attempt=1, crashes=2, age_ms=400))
    assert found.value("redrive_time_to_done_seconds_count", queue="q", task="t", retried="true") == 1
    assert found.value("redrive_time_to_done_seconds_sum", queue="q", task="t", retried="true") == 0.4
    assert found.value("redrive_time_to_done_seconds_count", queue="q", task="t", retried="false") == 0


def test_crashes_are_counted_once_by_cause_though_each_event_tells_of_them() -> None:
    ended = event("done", attempt=2, crashes=4, causes=("signal", "memory", "signal", ""))
    found = seen(event("retry", crashes=4, delay_ms=10, fault="transient"), ended)
    of = {"queue": "q", "task": "t"}
    assert found.value("redrive_crashes_total", **of, cause="signal") == 2
    assert found.value("redrive_crashes_total", **of, cause="memory") == 1
    assert found.value("redrive_crashes_total", **of, cause="unknown") == 1


def test_quarantine_degraded_lost_and_stale_are_seen() -> None:
    found = seen(
        event("quarantined", reason="crashed", crashes=3),
        event(degraded="no prices"),
        event(duplicate_of="2"),
        event("lost"),
        event("stale", run_ms=3.0, reason="exhausted", fault="transient"),
    )
    of = {"queue": "q", "task": "t"}
    assert found.value("redrive_quarantined_total", **of, reason="crashed") == 1
    assert found.value("redrive_degraded_total", **of) == 1
    assert found.value("redrive_duplicates_total", **of) == 1
    assert found.value("redrive_deliveries_total", **of, outcome="lost") == 1
    assert found.value("redrive_deliveries_total", **of, outcome="stale") == 1
    assert found.labels("redrive_dead_total") == []  # what a stale receipt decided did not happen


def test_redriven_messages_are_counted_once_by_what_their_first_run_came_to() -> None:
    app, registry = App("memory://"), CollectorRegistry()
    up: list[int] = []

    @app.task(name="t", queue="q", retry=SOON)
    def t(n: int) -> None:
        if not up or n < 0:
            raise ValueError("not yet")

    Metrics(app).register(registry)
    app.enqueue_many([t.draft(1), t.draft(2), t.draft(-1)])
    app.run_worker(drain=True)
    assert len(app.dlq.retry(all=True)) == 3
    assert Scrape(registry).labels("redrive_redriven_total") == []
    up.append(1)
    app.run_worker(drain=True)
    found = Scrape(registry)
    assert found.value("redrive_redriven_total", queue="q", task="t", verdict="done") == 2
    assert found.value("redrive_redriven_total", queue="q", task="t", verdict="failed") == 1


def test_isolated_messages_are_counted_from_zero() -> None:
    assert seen().value("redrive_isolated_total") == 0
    assert (
        seen(Notice(name="auto_isolated", count=3), Notice(name="auto_isolated")).value("redrive_isolated_total") == 4
    )


def test_what_flow_control_put_off_is_seen_by_reason_and_how_long() -> None:
    held = [event("held", deferral=why, by="stripe", delay_ms=400) for why in ("budget", "budget", "limit", "odd")]
    found = seen(*held, event("held"))
    of = {"queue": "q", "task": "t"}
    assert found.value("redrive_deferral_seconds_count", **of, reason="budget") == 2
    assert found.value("redrive_deferral_seconds_sum", **of, reason="budget") == 0.8
    assert found.value("redrive_deferral_seconds_bucket", **of, reason="limit", le="0.1") == 0
    assert found.value("redrive_deferral_seconds_count", **of, reason="(other)") == 1


def test_an_app_s_tasks_begin_at_zero_so_that_a_rate_sees_the_first_failure() -> None:
    found = seen()
    for outcome in ("done", "retry", "dead"):
        assert found.value("redrive_deliveries_total", queue="q", task="t", outcome=outcome) == 0


# -- names and labels


def test_names_and_labels_are_ours_and_counters_end_in_total() -> None:
    events = [event(), event("dead", fault="permanent", reason="permanent"), Notice(name="started")]
    families = {**seen(*events).families, **Scrape(_with_depths(Watched())).families}
    for family in families.values():
        assert family.name.startswith("redrive_"), family.name
        assert family.documentation, family.name
        assert "_ms" not in family.name
        for sample in family.samples:
            assert set(sample.labels) <= LABELS, sample
            assert family.type != "counter" or sample.name.endswith("_total")


def _with_depths(store: MemoryStore) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Depths(lambda: store))
    return registry


def test_words_from_outside_never_become_labels() -> None:
    events = [
        event("dead", task=f"crm.push-{n}", id=f"{n}", reason=f"because of {n}", fault=f"kind {n}") for n in range(100)
    ]
    series = counted(*events)
    assert series["redrive_deliveries"] == {("q", "(other)", "dead"): [100]}
    assert series["redrive_dead"] == {("q", "(other)", "(other)"): [100]}
    assert series["redrive_faults"] == {("q", "(other)", "(other)"): [100]}


@pytest.mark.parametrize("bounds", [RUN_S, DONE_S, DELAY_S, ATTEMPT_BOUNDS])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


def test_a_value_on_a_bound_lies_under_it_and_one_above_all_in_infinity() -> None:
    found = seen(event(run_ms=1.0), event(run_ms=1.0001), event(run_ms=1e9))
    of = {"queue": "q", "task": "t"}
    assert found.value("redrive_run_seconds_bucket", **of, le="0.001") == 1
    assert found.value("redrive_run_seconds_bucket", **of, le="0.005") == 2
    assert found.value("redrive_run_seconds_bucket", **of, le="3600.0") == 2
    assert found.value("redrive_run_seconds_bucket", **of, le="+Inf") == 3
    assert found.value("redrive_run_seconds_count", **of) == 3


# -- the store


def test_depths_are_by_queue_and_lane_with_the_oldest_age() -> None:
    app, registry = App(store=Watched()), CollectorRegistry()

    @app.task(name="t", queue="q")
    def t() -> None: ...

    t.enqueue()
    t.using(delay="1h").enqueue()
    t.using(queue="z", delay="1h").enqueue()
    app.store.configure("z", paused=True)
    Metrics(app).register(registry)
    found = Scrape(registry)
    assert found.value("redrive_store_up") == 1
    assert found.value("redrive_queue_messages", queue="q", lane="ready") == 1
    assert found.value("redrive_queue_messages", queue="q", lane="scheduled") == 1
    assert found.value("redrive_queue_messages", queue="z", lane="scheduled") == 1
    assert found.value("redrive_queue_paused", queue="z") == 1
    assert found.value("redrive_queue_paused", queue="q") == 0


def test_workers_are_counted_by_queue_and_state_with_the_worst_of_what_they_tell() -> None:
    clock = ManualClock()
    store, registry = MemoryStore(clock), CollectorRegistry()
    registry.register(Depths(lambda: store, App(store=store)))

    def tell(name: str, queue: str, *, ago_ms: int = 0, **more: Any) -> None:
        queues = (QueueWork(name=queue, concurrency=1),)
        ProcessCell(store).write(WorkerInfo(name=name, seen_ms=store.now_ms() - ago_ms, queues=queues, **more))

    runs = HeldMessage(id="1", task="t", since_ms=store.now_ms() - 90_000)
    tell("a", "crm", held=1, messages=(runs,), loop_lag_ms=20.0, clock_ahead_ms=40)
    tell("b", "crm", loop_lag_ms=1500.0, clock_ahead_ms=-2500)
    tell("c", "mail", draining=True)
    tell("d", "mail", ago_ms=GONE_MS, loop_lag_ms=9000.0, clock_ahead_ms=9000)
    found = Scrape(registry)
    assert {
        (sample["queue"], sample["state"]): found.value("redrive_workers", **sample)
        for sample in found.labels("redrive_workers")
    } == {
        ("crm", "running"): 1, ("crm", "idle"): 1, ("crm", "draining"): 0, ("crm", "hung"): 0, ("crm", "gone"): 0,
        ("mail", "running"): 0, ("mail", "idle"): 0, ("mail", "draining"): 1, ("mail", "hung"): 0, ("mail", "gone"): 1,
        ("default", "running"): 0, ("default", "idle"): 0, ("default", "draining"): 0, ("default", "hung"): 0,
        ("default", "gone"): 0,
    }  # fmt: skip
    assert found.value("redrive_worker_longest_run_seconds") == 90
    assert found.value("redrive_worker_clock_ahead_seconds") == -2.5
    assert found.value("redrive_worker_loop_lag_seconds") == 1.5
    assert found.value("redrive_worker_hung_seconds") == 0


def test_batches_that_are_not_over_are_counted_by_name_and_never_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, registry = ManualClock(), CollectorRegistry()
    app = App(store=MemoryStore(clock))
    registry.register(Depths(lambda: app.store, app, clock=lambda: clock() / 1000))

    @app.task(name="push", retry=Retry(max_attempts=1))
    def push(n: int) -> None:
        if n < 0:
            raise ValueError("no room")

    def found(metric: str) -> dict[tuple[str, ...], float]:
        clock.advance("1m")
        return {tuple(s.labels.values()): s.value for s in Scrape(registry).families[metric].samples}

    assert found("redrive_batches") == {} and found("redrive_batches_unread") == {(): 0}
    refs = [app.batch([push.draft(1), push.draft(-1)], name="crm").enqueue() for _ in range(3)]
    app.batch([push.draft(1)], name="fine").enqueue()
    assert found("redrive_batches") == {("crm", "running"): 3, ("fine", "running"): 1}
    app.run_worker(drain=True)
    app.batch([push.draft(1), push.using(delay="1d").draft(1)], name="crm").enqueue()
    app.batch(name="crawl", key="k").__enter__().add(*(push.draft(1) for _ in range(1000)))
    app.dlq.discard(ids=[message.id for message in refs[0].members("dead")], reason="not wanted")
    app.dlq.quarantine(ids=[message.id for message in refs[1].members("dead")], reason="odd")
    assert found("redrive_batches") == {("crawl", "filling"): 1, ("crm", "partial"): 2, ("crm", "running"): 1}
    assert found("redrive_batch_members") == {
        ("crawl", "open"): 1000, ("crawl", "dead"): 0, ("crawl", "quarantine"): 0,
        ("crm", "open"): 2, ("crm", "dead"): 1, ("crm", "quarantine"): 1,
    }  # fmt: skip
    assert found("redrive_batch_unsealed_seconds") == {("crawl",): 180}
    app.run_worker(burst=True)  # nothing of "crawl" is open now
    assert found("redrive_batches")["crawl", "filling"] == 1
    monkeypatch.setattr(batch_gauges, "NAMES_MAX", 1)
    assert found("redrive_batches") == {("crm", "partial"): 2, ("crm", "running"): 1, ("(other)", "filling"): 1}
    monkeypatch.setattr(batch_gauges, "READ_MAX", 2)
    assert found("redrive_batches_unread") == {(): 1}
    assert found("redrive_batches")["crm", "partial"] == 2


def test_redrive_runs_are_shown_by_status_and_the_messages_of_open_ones_by_what_became_of_them() -> None:
    scene = Scene()

    def shown(name: str, label: str) -> dict[str, float | None]:
        registry = CollectorRegistry()
        registry.register(Depths(lambda: scene.store))
        found = Scrape(registry)
        return {labels[label]: found.value(name, **labels) for labels in found.labels(name)}

    assert shown("redrive_runs", "status") == dict.fromkeys(RunStatus, 0)
    scene.bury(7)
    run = scene.start(canary=3)
    scene.over(run, dies)
    assert run.state == "stopped"
    scene.start(rate=1.0)
    scene.tick(works, times=2)
    assert shown("redrive_runs", "status") == {**dict.fromkeys(RunStatus, 0), "running": 1, "stopped": 1}
    messages = shown("redrive_run_messages", "state")
    assert messages["planned"] in (7, 14)  # the first is open until all of it is written down
    assert messages["moved"] and messages.keys() == run.counts.keys()


def test_the_longest_dead_message_of_each_queue_tells_how_long_it_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    app, registry = App(store=MemoryStore(clock_ms=clock)), CollectorRegistry()

    @app.task(name="t")
    def t(n: int) -> None:
        raise Reject("no")

    app.enqueue_many([t.using(queue=queue).draft(n) for n, queue in enumerate("aab")])
    app.run_worker(["a"], burst=True)
    clock.advance(60)
    app.run_worker(["b"], burst=True)
    t.using(queue="a").enqueue(4)
    app.run_worker(["a"], burst=True)
    clock.advance(5)
    Metrics(app).register(registry)
    found = Scrape(registry)
    assert found.value("redrive_queue_oldest_dead_age_seconds", queue="a") == 65
    assert found.value("redrive_queue_oldest_dead_age_seconds", queue="b") == 5
    monkeypatch.setattr(prometheus, "OLDEST_QUEUES", 1)
    again = CollectorRegistry()
    again.register(Depths(lambda: app.store))
    assert Scrape(again).labels("redrive_queue_oldest_dead_age_seconds") == [{"queue": "a"}]
    assert (found.value("redrive_queue_oldest_age_seconds", queue="q") or 0) >= 0


def test_scrapes_within_a_second_share_one_look_at_the_store() -> None:
    store, now = Watched(), [100.0]
    depths = Depths(lambda: store, clock=lambda: now[0])
    for _ in range(3):
        list(depths.collect())
    now[0] += 0.99
    list(depths.collect())
    assert store.looks == 1
    now[0] += 0.02
    list(depths.collect())
    assert store.looks == 2


def test_a_store_that_answers_slowly_is_asked_less_often() -> None:
    store, now = Watched(), [0.0]

    def slow() -> MemoryStore:
        now[0] += 0.5
        return store

    depths = Depths(slow, clock=lambda: now[0])
    list(depths.collect())
    now[0] += 9.9
    list(depths.collect())
    assert store.looks == 1  # 20 × 0.5 s is not over
    now[0] += 0.2
    list(depths.collect())
    assert store.looks == 2


def test_a_store_out_of_reach_is_told_and_hides_nothing_else() -> None:
    store = Watched()
    app, registry = App(store=store), CollectorRegistry()

    @app.task(name="t", queue="q")
    def t() -> None: ...

    t.enqueue()
    Metrics(app).register(registry)
    app.events.emit([event()])
    store.down = True
    found = Scrape(registry)
    assert found.value("redrive_store_up") == 0
    assert found.labels("redrive_queue_messages") == []  # no old depth that looks like a new one
    assert found.value("redrive_deliveries_total", queue="q", task="t", outcome="done") == 1


# -- registering


def test_registering_asks_no_store_and_unregistering_ends_it() -> None:
    store, registry = Watched(), CollectorRegistry()
    app = App(store=store)
    metrics = Metrics(app).register(registry)
    assert store.looks == 0
    assert bool(app.events)
    with pytest.raises(ConfigError, match="registered already"):
        metrics.register(CollectorRegistry())
    metrics.unregister()
    assert not app.events
    assert list(registry.collect()) == []
    Metrics(app).register(registry)


def test_the_default_registry_is_prometheus_client_s() -> None:
    metrics = Metrics(App("memory://")).register()
    try:
        assert prometheus_client.REGISTRY.get_sample_value("redrive_store_up") == 1
    finally:
        metrics.unregister()


def test_two_metrics_of_one_name_cannot_share_a_registry_and_the_second_counts_nothing() -> None:
    registry, app = CollectorRegistry(), App("memory://")
    Metrics(App("memory://")).register(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Metrics(app).register(registry)
    assert not app.events


# -- several processes


@pytest.fixture
def processes(tmp_path: Path) -> Iterator["Processes"]:
    started = Processes(tmp_path / "metrics")
    yield started
    started.end()


class Processes:
    """Stand-ins for worker processes: each has its own counting and its own lock, as flock counts open files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._alive: list[SharedCounting] = []

    def start(self) -> SharedCounting:
        self._alive.append(SharedCounting(EventCounter({"t": None}), self.directory))
        return self._alive[-1]

    def kill(self, shared: SharedCounting) -> None:
        shared.close()
        self._alive.remove(shared)

    def end(self) -> None:
        for shared in list(self._alive):
            self.kill(shared)

    def done(self) -> float:
        return read(self.directory)["redrive_deliveries"].get(("q", "t", "done"), [0])[0]


def test_what_processes_count_adds_up(processes: Processes) -> None:
    first, second = processes.start(), processes.start()
    first([event(run_ms=2.0), event()])
    second([event(run_ms=4.0)])
    first.write()
    second.write()
    assert processes.done() == 3
    assert read(processes.directory)["redrive_run_seconds"]["q", "t"][-1] == pytest.approx(0.006)


def test_a_replaced_process_counts_on_so_that_no_counter_falls(processes: Processes) -> None:
    first = processes.start()
    first([event(), event()])
    first.write()
    processes.kill(first)
    second = processes.start()
    assert processes.done() == 2
    second([event()])
    second.write()
    assert processes.done() == 3
    assert len(list(processes.directory.glob("*.json"))) == 1


def test_a_worker_that_stops_has_written_what_it_counted(processes: Processes) -> None:
    processes.start()([event(), Notice(name="stopped")])
    assert processes.done() == 1


def test_what_is_counted_is_written_soon_without_being_asked(processes: Processes) -> None:
    processes.start()([event()])
    wait = threading.Event()
    for _ in range(600):
        if processes.done():
            return
        wait.wait(0.05)
    raise AssertionError("nothing was written")


@pytest.mark.parametrize("damage", [b"", b"{", b'{"redrive_deliveries": 3}', b'{"redrive_deliveries": [[["q"], [7]]]}'])
def test_a_damaged_file_counts_from_zero_and_harms_nobody(processes: Processes, damage: bytes) -> None:
    first = processes.start()
    first([event()])
    first.write()
    (processes.directory / "1.json").write_bytes(damage)
    assert processes.done() == 1
    second = processes.start()
    second([event()])
    second.write()
    assert processes.done() == 2


def test_numbers_of_another_version_s_shape_are_left_out(processes: Processes) -> None:
    processes.directory.mkdir()
    (processes.directory / "0.json").write_bytes(
        b'{"redrive_run_seconds": [[["q","t"],[1,2,3]]], "gone": [[["x"],[1]]]}'
    )
    assert read(processes.directory) == {shape.name: {} for shape in SHAPES.values()}


def test_a_directory_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "nowhere") == {shape.name: {} for shape in SHAPES.values()}


def test_more_processes_than_files_is_refused(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_tally, "PROCESSES_MAX", 1)
    processes.start()
    with pytest.raises(Refused, match="taken"):
        processes.start()


class Metered(MemoryStore):
    """A store that bills by the request."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()
        self.processed = 0

    def usage(self) -> Usage:
        return Usage(self.requests, self.processed)

    def exchange(self, settlements: Any, asks: Any, **rest: Any) -> Exchange:
        self.requests["Receive"] += 1
        self.requests["Delete"] += bool(settlements)
        self.processed += len(settlements)
        return super().exchange(settlements, asks, **rest)


def test_requests_to_aws_are_counted_by_action_and_left_out_of_logs() -> None:
    app, log, notices = App(store=(store := Metered())), io.StringIO(), list[Notice]()
    app.subscribe(JsonLog(log))
    app.subscribe(TextLog(log))
    app.subscribe(
        lambda events: notices.extend(e for e in events if isinstance(e, Notice) and e.name == "aws_requests")
    )
    registry = CollectorRegistry()
    metrics = Metrics(app, store=False).register(registry)

    @app.task(name="t")
    def t() -> None: ...

    app.enqueue_many([t.draft() for _ in range(4)])
    app.run_worker(burst=True)
    scrape = Scrape(registry)
    for action in ("Receive", "Delete"):
        assert scrape.value("redrive_aws_requests_total", action=action) == store.requests[action] > 0
    assert sum(n.count for n in notices) == store.requests.total() and "for each of 4 messages" in notices[-1].text
    assert log.getvalue() and "aws_requests" not in log.getvalue()
    metrics.unregister()


def test_a_store_that_bills_nothing_tells_nothing() -> None:
    told: list[str] = []
    meter = RequestMeter(MemoryStore(), lambda name, text, about="", /, count=1: told.append(name))
    meter.look()
    meter.close()
    assert told == []
