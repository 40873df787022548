"""`app.status()` on every engine: the same store contents give the same answer."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.servers import PostgresServer, RedisServer

from redrive import App, Draft
from redrive.fault import classify
from redrive.message import Ask, DeadLetter, Settlement
from redrive.presence import GONE_MS, Entry, QueueWork, WorkerInfo
from redrive.status import Reasons, Status

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


def queues(status: Status) -> dict[str, list[str]]:
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
    assert store.exchange([], [Ask("crm", 1, 60_000, worker=WORKER)]).deliveries
    alone, gone = put(app, "mail"), put(app, "old", task="gone")
    paused = put(app, "bulk")
    store.configure("bulk", paused=True)
    put(app, "dying")
    (delivery,) = store.exchange([], [Ask("dying", 1, 60_000)]).deliveries
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
    assert (hold.kind, hold.by, hold.count, hold.needs_person) == ("breaker", "crm.example", 0, True)
    assert "held open by" in hold.text and hold.text.endswith("their status page")
    id = put(app, "crm")
    (hold,) = app.status().holds
    assert (hold.kind, hold.count, hold.queue) == ("breaker", 1, "crm")
    assert kinds(app, id) == ["breaker"]


def test_workers_that_tell_are_seen_idle_running_and_gone(app: App) -> None:
    app.scheduler().step()
    store = app.store
    queues_ = tuple(QueueWork(name=name, concurrency=2) for name in ("crm", "mail"))

    def tell(name: str, held: int, ago_ms: int) -> None:
        now_ms = store.now_ms()
        told = WorkerInfo(name=name, started_ms=1, seen_ms=now_ms - ago_ms, queues=queues_, held=held)
        Entry(store).write(told)

    put(app, "crm")
    assert store.exchange([], [Ask("crm", 1, 60_000, worker=WORKER)]).deliveries
    for name, held, ago_ms in ((WORKER, 1, 0), ("vm/worker-1", 0, 0), ("vm/worker-2", 7, GONE_MS)):
        tell(name, held, ago_ms)
    seen, left = put(app, "mail"), put(app, "bulk")
    status = app.status()
    assert status.tell
    assert [(w.name, w.state, w.leased, w.queues, w.held) for w in status.workers] == [
        (WORKER, "running", 1, {"crm": 1, "mail": 0}, 1),
        ("vm/worker-1", "idle", 0, {"crm": 0, "mail": 0}, 0),
        ("vm/worker-2", "gone", 0, {"crm": 0, "mail": 0}, 7),
    ]
    assert (kinds(app, seen), kinds(app, left)) == (["turn"], ["no_worker"])
    assert queues(status)["mail"] == [] and queues(status)["bulk"] == ["no_worker"]


def test_a_redrive_to_a_queue_that_no_worker_of_a_living_fleet_runs_is_told(app: App) -> None:
    def held(queue: str) -> list[str]:
        return [hold.text for hold in Reasons(app.store, app).of_redrive(["push"], [queue], ())]

    assert held("crm") == held("crn") == []  # workers may start later
    idle = WorkerInfo(name=WORKER, seen_ms=app.store.now_ms(), queues=(QueueWork(name="crm", concurrency=1),))
    Entry(app.store).write(idle)
    assert (held("crm"), held("crn")) == ([], ["no worker that is alive runs queue crn"])


def test_failure_groups_that_are_muted_need_no_person_and_are_not_counted(app: App) -> None:
    app.scheduler().step()
    for failure in (ValueError("no account"), KeyError("tenant")):
        put(app, "dying")
        (delivery,) = app.store.exchange([], [Ask("dying", 1, 60_000)]).deliveries
        app.store.exchange([Settlement(delivery.receipt, DeadLetter("permanent"), classify(failure))], [])
    first, second = app.dlq.groups()
    assert [need.text for need in app.status().needs] == ["2 messages are dead, in 2 failure groups"]
    app.dlq.mute(first.fingerprint, "1h", reason="known")
    assert [need.text for need in app.status().needs] == [
        "1 message is dead, in 1 failure group; muted or under a rule: 1 more"
    ]
    app.dlq.mute(second.fingerprint, "1h", reason="known")
    assert app.status().ok
