"""`app.status()` on every engine: the same store contents give the same answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.servers import PostgresServer, RedisServer

from redrive import App, Breaker, Draft
from redrive.fault import classify
from redrive.flow import breaker as breakers
from redrive.flow import dependency as flow
from redrive.flow.dependency import DependencyState
from redrive.flow.gates import Gates
from redrive.message import Ack, ClaimRequest, DeadLetter, RetryAt, Settlement, Swap
from redrive.presence import GONE_MS, HeldMessage, ProcessCell, QueueWork, WorkerInfo, read_workers
from redrive.status import Reasons
from redrive.status import Status as Found
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock
from redrive.triage import pauses
from redrive.triage.redrive.gates import closed
from redrive.triage.redrive.records import RunState, RunStatus, read_state, state_cell

WORKER = "vm/worker-0"


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/work.db"}.get(request.param)
    if url is None:
        server: PostgresServer | RedisServer = request.getfixturevalue(f"{request.param}_server")
        own = "schema" if request.param == "postgres" else "namespace"
        url = f"{server.url}?{own}=status_{secrets.token_hex(4)}"
    app = App(url)

    @app.task(name="push", queue="crm", dependency="crm.example")
    def push() -> None: ...

    @app.periodic(every="1h", queue="night")
    @app.task(name="report", queue="night")
    def report() -> None: ...

    yield app
    app.store.close()


def put(app: App, queue: str, group: str | None = None, task: str = "push") -> str:
    """Put a message that has been due for a minute."""
    draft = Draft(task=task, queue=queue, group=group, due_ms=app.store.now_ms() - 60_000)
    return app.store.put([draft])[0].id


def kinds(app: App, id: str) -> list[str]:
    message = app.job(id)
    assert message is not None
    return [hold.kind for hold in Reasons(app.store, app).of(message)]


def queues(status: Found) -> dict[str, list[str]]:
    return {queue.name: [hold.kind for hold in queue.holds] for queue in status.queues}


def test_a_store_where_nothing_waits_needs_only_a_scheduler(app: App) -> None:
    assert [need.area for need in app.status().needs] == ["schedules"]
    app.scheduler().step()
    assert app.status().ok


def test_status_says_what_holds_each_queue_who_works_and_what_died(app: App) -> None:
    app.scheduler().step()
    store = app.store
    put(app, "crm", group="acme")
    second = put(app, "crm", group="acme")
    assert store.exchange([], [ClaimRequest("crm", 1, 60_000, worker=WORKER)]).deliveries
    alone, gone = put(app, "mail"), put(app, "old", task="gone")
    paused = put(app, "bulk")
    store.configure("bulk", paused=True)
    put(app, "dying")
    (delivery,) = store.exchange([], [ClaimRequest("dying", 1, 60_000)]).deliveries
    store.exchange(
        [Settlement(delivery.receipt, DeadLetter("permanent"), classify(ValueError("no such\naccount")))], []
    )

    status = app.status()
    assert queues(status) == {
        "bulk": ["pause"], "crm": ["group"], "dying": [], "mail": ["no_worker"], "night": [], "old": ["no_task"],
    }  # fmt: skip
    assert [kinds(app, id) for id in (second, alone, gone, paused)] == [
        ["group"],
        ["no_worker"],
        ["no_task"],
        ["pause"],
    ]
    assert [(worker.name, worker.state, worker.leased, worker.queues) for worker in status.workers] == [
        (WORKER, "silent", 1, {"crm": 1})
    ]
    assert [(group.count, group.text) for group in status.failures] == [(1, "no such\naccount")]
    assert sorted(need.area for need in status.needs) == ["failures", "held", "held", "held"]


def test_a_breaker_that_is_held_open_is_seen_with_and_without_messages(app: App) -> None:
    app.scheduler().step()
    app.flow.open("crm.example", reason="their status page", actor="ann")
    (hold,) = app.status().holds
    assert (hold.kind, hold.by, hold.count, hold.needs_person) == ("breaker", "crm.example", 0, False)
    assert "held open by" in hold.text and hold.text.endswith("their status page")
    id = put(app, "crm")
    (hold,) = app.status().holds
    assert (hold.kind, hold.count, hold.queue) == ("breaker", 1, "crm")
    assert kinds(app, id) == ["breaker"]


def test_a_partial_batch_is_a_need_of_its_own(app: App) -> None:
    app.scheduler().step()
    drafts = [app.tasks["push"].draft() for _ in range(3)]
    ref = app.batch(drafts, name="sync").enqueue()
    (one, *others) = app.store.exchange([], [ClaimRequest("crm", 3, 60_000, worker=WORKER)]).deliveries
    fault = classify(ValueError("no such account"))
    acks = [Settlement(each.receipt, Ack()) for each in others]
    app.store.exchange([Settlement(one.receipt, DeadLetter("permanent"), fault), *acks], [])
    failures, batches = app.status().needs
    assert (failures.area, batches.area) == ("failures", "batches")
    assert (
        batches.text.startswith("batch sync is partial: 1 of 3 members is dead; it waits for failure group ")
        and batches.about == f"batch/{ref.id}"
    )
    app.dlq.retry([one.message.id], reason="it is there now")
    assert app.status().ok


def test_workers_that_tell_are_seen_idle_running_and_gone(app: App) -> None:
    app.scheduler().step()
    store = app.store
    queues_ = tuple(QueueWork(name=name, concurrency=2) for name in ("crm", "mail"))

    def tell(name: str, held: int, ago_ms: int) -> None:
        now_ms = store.now_ms()
        told = WorkerInfo(name=name, started_ms=1, seen_ms=now_ms - ago_ms, queues=queues_, held=held)
        ProcessCell(store).write(told)

    put(app, "crm")
    assert store.exchange([], [ClaimRequest("crm", 1, 60_000, worker=WORKER)]).deliveries
    for name, held, ago_ms in ((WORKER, 1, 0), ("vm/worker-1", 0, 0), ("vm/worker-2", 7, GONE_MS)):
        tell(name, held, ago_ms)
    seen, left = put(app, "mail"), put(app, "bulk")
    status = app.status()
    assert status.tell
    assert [(w.name, w.state, w.leased, w.queues, w.report.held) for w in status.workers] == [
        (WORKER, "running", 1, {"crm": 1, "mail": 0}, 1),
        ("vm/worker-1", "idle", 0, {"crm": 0, "mail": 0}, 0),
        ("vm/worker-2", "gone", 0, {"crm": 0, "mail": 0}, 7),
    ]
    assert (kinds(app, seen), kinds(app, left)) == (["turn"], ["no_worker"])
    assert queues(status)["mail"] == [] and queues(status)["bulk"] == ["no_worker"]


def test_a_worker_that_is_gone_holds_no_more_what_others_took_over(app: App) -> None:
    store = app.store
    ids = [put(app, "crm") for _ in range(3)]
    taken = store.exchange([], [ClaimRequest("crm", 3, 60_000, worker=WORKER)]).deliveries
    listed = tuple(HeldMessage(id=id, task="push", since_ms=store.now_ms()) for id in ids)
    told = WorkerInfo(name=WORKER, started_ms=1, seen_ms=store.now_ms() - GONE_MS, held=3, messages=listed)
    ProcessCell(store).write(told)
    assert [(info.gone, info.held, len(info.messages)) for info in read_workers(store)] == [(True, 3, 3)]
    (need,) = [need for need in app.status().needs if need.area == "workers"]
    assert (need.severity, need.about) == ("ticket", f"worker/{WORKER}") and "3 of its messages" in need.text
    store.exchange([Settlement(delivery.receipt, RetryAt(0, "retry")) for delivery in taken[:2]], [])
    store.exchange([], [ClaimRequest("crm", 2, 60_000, worker="vm/worker-9")])
    (info,) = read_workers(store)
    assert (info.held, [message.id for message in info.messages]) == (1, [taken[2].message.id])


def test_what_needs_a_person_says_since_when_who_and_why_what_matters_most_first(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redrive.status.hold.FORCED_MS", 0)
    app.scheduler().step()
    app.dependency("bank", breaker=Breaker())
    app.flow.close("bank", reason="they say it is up", actor="ann")
    pauses.pause(app.store, "bulk", actor="bob", reason="until the import is over")
    app.pause_task("crm.*", reason="CRM migration", actor="eve")
    put(app, "mail")
    put(app, "dying")
    (delivery,) = app.store.exchange([], [ClaimRequest("dying", 1, 60_000)]).deliveries
    app.store.exchange([Settlement(delivery.receipt, DeadLetter("permanent"), classify(ValueError("no")))], [])
    needs = app.status().needs
    assert [(need.severity, need.area, need.about, need.place) for need in needs] == [
        ("page", "held", "queue/mail", ("queues", "mail")),
        ("ticket", "failures", "", ("groups",)),
        ("note", "held", "queue/bulk", ("queues", "bulk")),
        ("note", "held", "task/crm.*", ("policies",)),
        ("note", "held", "flow/bank", ("flow", "bank")),
    ]
    paused, held, closed = needs[2:]
    assert (held.text, held.next) == ("tasks crm.* are paused by eve: CRM migration", "task resume 'crm.*'")
    assert (paused.actor, paused.reason) == ("bob", "until the import is over")
    assert (closed.actor, closed.reason) == ("ann", "they say it is up")
    assert "held closed by ann: they say it is up" in closed.text and "--breaker auto" in closed.next
    now_ms = app.store.now_ms()
    assert all(need.since_ms is not None and now_ms - 60_000 < need.since_ms <= now_ms for need in (paused, closed))
    app.flow.auto("bank", reason="it is", actor="ann")
    pauses.resume(app.store, "bulk", actor="bob")
    app.resume_task("crm.*", actor="eve")
    assert [need.severity for need in app.status().needs] == ["page", "ticket"]


def test_an_open_breaker_is_a_need_with_how_many_wait_for_it(app: App) -> None:
    app.scheduler().step()
    now_ms = app.store.now_ms()
    state = DependencyState(
        breaker=breakers.State(status="open", since_ms=now_ms - 5000, until_ms=now_ms + 60_000, opened=1)
    )
    app.store.cells.swap([Swap(flow.cell_of("crm.example", ""), 0, flow.encode(state))])
    for _ in range(3):
        put(app, "crm")
    (need,) = [need for need in app.status().needs if need.about == "flow/crm.example"]
    assert (need.severity, need.place, need.since_ms) == ("ticket", ("flow", "crm.example"), now_ms - 5000)
    assert need.text == "the breaker of crm.example is open; 3 messages wait for it"


@pytest.mark.parametrize(("word", "after"), [("open", "half_open"), ("close", "closed")])
def test_a_hold_of_a_breaker_ends_by_itself(app: App, word: str, after: str) -> None:
    app.dependency("bank", breaker=Breaker())
    held = getattr(app.flow, word)("bank", reason="a look", actor="ann", for_="1s")
    assert held.breaker.startswith("forced") and held.until_ms == held.since_ms + 1000
    end_s = time.monotonic() + 30
    while app.flow.show("bank").breaker == held.breaker:
        assert time.monotonic() < end_s
        time.sleep(0.1)
    assert app.flow.show("bank").breaker == after
    assert app.store.now_ms() >= held.until_ms
    assert not [need for need in app.status().needs if need.about == "flow/bank"]


def force_pause(app: App, time: str | None) -> None:
    pauses.pause(app.store, "crm", reason="a look", actor="ann")


def force_task(app: App, time: str | None) -> None:
    app.pause_task("push", reason="a look", actor="ann", for_=time)


def force_open(app: App, time: str | None) -> None:
    app.flow.open("bank", reason="a look", actor="ann", for_=time)


def force_closed(app: App, time: str | None) -> None:
    app.flow.close("bank", reason="a look", actor="ann", for_=time)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("force", [force_pause, force_task, force_open, force_closed])
def test_what_a_person_forced_is_a_need_after_a_quarter_of_an_hour_unless_it_ends_by_itself(
    force: Callable[[App, str | None], None], waits: bool
) -> None:
    for span in (None,) if force is force_pause else (None, "2h"):
        clock = ManualClock()
        app = App(store=MemoryStore(clock))
        app.dependency("bank", breaker=Breaker())
        app.task(name="push", queue="crm", dependency="bank")(lambda: None)
        force(app, span)
        clock.advance(15 * 60 - 1)
        if waits:
            app.store.put([Draft(task="push", queue="crm")])
        assert app.status().ok
        clock.advance(1)
        needs = app.status().needs
        assert [(need.area, need.actor, need.reason) for need in needs] == [("held", "ann", "a look")] * (span is None)
        assert all("resume" in need.next or "--breaker auto" in need.next for need in needs)
        assert all("by ann: a look" in need.text and "; for 15m" in need.line(app.store.now_ms()) for need in needs)
        holds = [hold for hold in app.status().holds if hold.actor]
        assert [hold.needs_person for hold in holds] == [span is None] * (force is not force_closed)
        clock.advance(2 * 3600)
        assert span is None or [hold for hold in app.status().holds if hold.actor] == []


def test_a_run_that_stopped_or_waits_for_somebody_is_a_need(app: App) -> None:
    app.scheduler().step()
    for _ in range(7):
        put(app, "dying")
    taken = app.store.exchange([], [ClaimRequest("dying", 7, 60_000)]).deliveries
    app.store.exchange([Settlement(d.receipt, DeadLetter("permanent"), classify(ValueError("no"))) for d in taken], [])
    plan = app.dlq.select("queue:dying").plan()
    plan.start(reason="it is mended", actor="ann")
    (cell,) = app.store.cells.read([state_cell(plan.id)])
    assert cell is not None
    over = replace(
        read_state(cell) or RunState(), status=RunStatus.STOPPED, why="canary: 5 of 5 failed", closed=True,
        over_ms=app.store.now_ms(),
    )  # fmt: skip
    app.store.cells.swap([Swap(state_cell(plan.id), cell.version, msgspec.json.encode(over))])
    (need,) = [need for need in app.status().needs if need.area == "runs"]
    assert (need.about, need.place, need.next) == (f"run/{plan.id}", ("runs", plan.id), f"run show {plan.id}")
    assert need.text.endswith("stopped itself: canary: 5 of 5 failed")
    app.dlq.select("queue:dying").plan().start(reason="once more", actor="ann")
    assert not [need for need in app.status().needs if "stopped itself" in need.text]


def test_a_run_that_a_gate_stops_is_told_unless_it_waits_for_its_time_of_day(app: App) -> None:
    put(app, "dying")
    (taken,) = app.store.exchange([], [ClaimRequest("dying", 1, 30_000)]).deliveries
    app.store.exchange([Settlement(taken.receipt, DeadLetter("permanent"), classify(ValueError("no")))], [])
    plan = app.dlq.select("queue:dying").plan()
    plan.start(reason="it is mended", actor="ann")

    def needs(why: str, for_ms: int) -> list[str]:
        (cell,) = app.store.cells.read([state_cell(plan.id)])
        assert cell is not None
        now_ms = app.store.now_ms()
        held = replace(
            read_state(cell) or RunState(), why=why, phase="waiting", owner=WORKER, until_ms=now_ms + 60_000,
            still_ms=now_ms - for_ms,
        )  # fmt: skip
        app.store.cells.swap([Swap(state_cell(plan.id), cell.version, msgspec.json.encode(held))])
        return [need.text for need in app.status().needs if need.area == "runs"]

    why = "the breaker of crm.example is held open"
    assert needs(why, 20_000) == [f"redrive run {plan.id} moves nothing: {why}"]
    assert needs(why, 1000) == []
    outside = closed(Gates(window="00:00-00:01"), app, [], 12 * 3_600_000)
    assert outside is not None and needs(outside, 20_000) == []


def test_a_redrive_to_a_queue_that_no_worker_of_a_living_fleet_runs_is_told(app: App) -> None:
    def held(queue: str) -> list[str]:
        return [hold.text for hold in Reasons(app.store, app).of_redrive(["push"], [queue], ())]

    assert held("crm") == held("crn") == []  # workers may start later
    idle = WorkerInfo(name=WORKER, seen_ms=app.store.now_ms(), queues=(QueueWork(name="crm", concurrency=1),))
    ProcessCell(app.store).write(idle)
    assert (held("crm"), held("crn")) == ([], ["no worker that is alive runs queue crn"])


def test_failure_groups_that_are_muted_need_no_person_and_are_not_counted(app: App) -> None:
    app.scheduler().step()
    for failure in (ValueError("no account"), KeyError("tenant")):
        put(app, "dying")
        (delivery,) = app.store.exchange([], [ClaimRequest("dying", 1, 60_000)]).deliveries
        app.store.exchange([Settlement(delivery.receipt, DeadLetter("permanent"), classify(failure))], [])
    first, second = app.dlq.groups()
    assert [need.text for need in app.status().needs] == ["2 messages are dead, in 2 failure groups"]
    app.dlq.mute(first.fingerprint, "1h", reason="known")
    assert [need.text for need in app.status().needs] == [
        "1 message is dead, in 1 failure group; muted or under a rule: 1 more"
    ]
    app.dlq.mute(second.fingerprint, "1h", reason="known")
    assert app.status().ok
