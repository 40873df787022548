"""Something of everything that a store can hold, and what this version reads of it."""

from __future__ import annotations

import time

import msgspec
from declared import make_app, make_closed_app
from killed import kill_one

from redrive import App, Draft, Gates
from redrive.fault import Crash, Fault, Kind
from redrive.message import Ack, Ask, DeadLetter, Deferral, Quarantine, RetryAt, Settlement, Started, Where
from redrive.presence import Knowledge, waiting_tasks
from redrive.triage.pauses import pause, paused_by
from redrive.triage.redrive.records import recent_plans
from redrive.triage.redrive.run import Run
from redrive.triage.redrive.runner import Runner
from redrive.worker.redrive_outcome import with_redrive_outcome

GONE = "a-host/gone-0"
LEASE_MS = 30_000
HELD, FAILING = "fa" * 8, "fb" * 8  # fingerprints
AT_ONCE = {"canary": 0, "slow_start": False, "stop_if": "never"}


def fill(url: str) -> dict:
    """Fill the store; its manifest."""
    app = make_app(url)
    names: dict = {}
    _flow_and_keys(app, url, names)
    _schedules(app)
    _lanes(app, names)
    _groups(app, names)
    _runs(app, names)
    _words(app)
    assert app.flusher is not None
    app.flusher.flush()
    manifest = {"names": names, **read(app, names["plan"])}
    app.store.close()
    return msgspec.to_builtins(manifest)


# -- what workers leave


def _flow_and_keys(app: App, url: str, names: dict) -> None:
    """A breaker that opened, a cool-down, a budget that is spent, keys that are done and being worked on, an
    auto-redrive that waits, a killed worker."""
    tasks = app.tasks
    tasks["kills"].enqueue(1)
    kill_one(url, "kills")
    app.run_worker(["kills"], burst=True)
    assert app.history(task="kills").total.crashes
    names["closed"] = make_closed_app(url).tasks["closed"].enqueue(5).id
    app.enqueue_many([tasks["mail"].draft(n) for n in range(8)])
    names["mail"] = [m.id for m in _all(app.store, queue="mail")]
    app.enqueue_many([tasks["fails"].draft(n) for n in range(3)])
    app.enqueue_many([tasks["call"].draft(n) for n in range(4)])
    names["sms"] = tasks["sms"].enqueue(1).id
    names["charged"] = tasks["charge"].enqueue(1, 500).id
    app.run_worker(["mail", "auto", "charges", "api", "sms"], burst=True)
    assert app.flow.show("mail").breaker == "open", app.flow.show("mail")
    (names["cooling"],) = [m.id for m in _all(app.store, queue="api")]
    names["waiting_for_maps"] = tasks["look-up"].enqueue(1).id
    names["killing"] = tasks["charge"].enqueue(2, 700).id
    names["loading"] = tasks["load"].enqueue(1).id
    names["awaiting"] = _put(app.store, 27, queue="later", version=7)
    app.run_worker(["later"], burst=True)  # which leaves it to a worker of a later release
    kill_one(url, "charges")
    (worker,) = [info.name for info in app.workers() if "charges-worker" in info.name]
    app.drain_worker(worker, reason="it hangs", actor="ann")


def _schedules(app: App) -> None:
    app.schedules["quiet"].pause()
    with app.scheduler():
        time.sleep(4.5)
    assert app.schedules["pulse"].state.last_ms is not None


# -- by hand, lane by lane


def _put(store, *bodies: int, **of) -> list[str]:
    drafts = [Draft(**{"task": "work", "queue": "work", "body": b'{"n":%d}' % n, **of}) for n in bodies]
    return [put.id for put in store.put(drafts)]


def _claim(store, queue: str, limit: int, lease_ms: int = LEASE_MS):
    return store.exchange([], [Ask(queue, limit, lease_ms, worker=GONE)]).deliveries


def _settle(store, deliveries, decision, fault=None, result=None) -> None:
    now_ms = store.now_ms()
    settlements = [Settlement(d.receipt, decision, fault, result=result) for d in deliveries]
    store.exchange(
        [with_redrive_outcome(d.message, s, now_ms) for d, s in zip(deliveries, settlements, strict=True)], []
    )


def _fault(fingerprint: str = HELD, attempt: int = 1, text: str = "no route to Zürich") -> Fault:
    return Fault(
        Kind.TRANSIENT,
        "ConnectionError",
        text,
        fingerprint,
        traceback="Traceback (most recent call last):\n  …",
        errors=("ConnectionError", "OSError", "Exception"),
        retry_after_s=1.5,
        at_ms=time.time_ns() // 1_000_000,
        attempt=attempt,
        worker=GONE,
        delay_ms=2000,
    )


def _lanes(app: App, names: dict) -> None:
    store = app.store
    _dead(app, names)
    names["retrying"] = _put(store, 10)
    _settle(store, _claim(store, "work", 9), RetryAt(store.now_ms() + 600_000), _fault())
    names["deferred"] = _put(store, 11, queue="work")
    at_ms = store.now_ms() + 600_000
    put_off = RetryAt(at_ms, "limit", False, True, Deferral("limit", "maps", ("rate",), at_ms))
    _settle(store, _claim(store, "work", 9), put_off)
    names["done"] = _put(store, 12, keep_ms=365 * 86_400_000)
    _settle(store, _claim(store, "work", 9), Ack(keep_ms=365 * 86_400_000), result=b"12")
    names["degraded"] = _put(store, 13)
    _settle(store, _claim(store, "work", 9), Ack("no prices", 365 * 86_400_000), result=b"null")
    names["cancelled"] = _put(store, 14)
    assert app.cancel(*names["cancelled"]) == "cancelled"
    names["suspect"] = _put(store, 15)
    (one,) = _claim(store, "work", 9)
    crash = Fault(
        Kind.CRASHED, "WorkerDied", "by SIGKILL", "fc" * 8, worker=GONE, crash=Crash("signal", "SIGKILL", worker=GONE)
    )
    assert store.reclaim(GONE, [Started(one.message.id, one.message.fence)], fault=crash) == (0, 1)
    (one,) = _claim(store, "work", 9)
    assert one.message.suspect
    _settle(store, [one], RetryAt(store.now_ms() + 600_000, "crashed", crashed=True), crash)
    names["once_more"] = _dying(store, 16)
    app.dlq.retry(names["once_more"], attempts=2, delay="10m", reason="once more")
    names["holds_key"] = _put(store, 17, key="seventeen", delay_ms=3_600_000)
    names["held_key"] = _put(store, 18, key="eighteen", key_for_ms=86_400_000)
    _settle(store, _claim(store, "work", 9), Ack())
    names["leased"] = _put(store, 19)
    (one,) = _claim(store, "work", 9)
    assert store.checkpoint(one.receipt, b'{"page":3}')
    names["stopping"] = _put(store, 20)
    assert len(_claim(store, "work", 9)) == 1 and app.cancel(*names["stopping"]) == "requested"
    names["scheduled"] = _put(store, 21, delay_ms=3_600_000, priority=0)
    names["newer"] = _put(store, 22, version=7, delay_ms=3_600_000)
    full = {"headers": {"tenant": "Zürich", "x": "1"}, "correlation_id": "c-1", "causation_id": "c-0"}
    names["ready"] = [
        *_put(store, 23, priority=3, deadline_ms=store.now_ms() + 86_400_000),
        *_put(store, 24, producer="a-host:1", traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01", **full),
        *_put(store, 25, priority=0, keep_ms=365 * 86_400_000),
    ]
    names["paused"] = _put(store, 26, queue="paused")
    pause(store, "paused", reason="maintenance", actor="ann")


def _dead(app: App, names: dict) -> None:
    store = app.store
    names["dead"] = _put(store, *range(1, 5))
    for attempt in (1, 2):
        _settle(store, _claim(store, "work", 9), RetryAt(store.now_ms()), _fault(attempt=attempt))
    _settle(store, _claim(store, "work", 9), DeadLetter("exhausted", "3 attempts"), _fault(attempt=3))
    names["permanent"] = _dying(store, 5, 6, fingerprint=FAILING)
    names["quarantined"] = _put(store, 7)
    crash = Fault(Kind.CRASHED, "WorkerDied", "by SIGSEGV", "fd" * 8, crash=Crash("signal", "SIGSEGV", alone=True))
    _settle(store, _claim(store, "work", 9), Quarantine("it kills its process"), crash)


def _dying(store, *bodies: int, queue: str = "work", task: str = "work", fingerprint: str = HELD) -> list[str]:
    ids = _put(store, *bodies, queue=queue, task=task)
    left = len(ids)
    while left:
        claimed = _claim(store, queue, left)
        _settle(store, claimed, DeadLetter("permanent", "it is refused"), _fault(fingerprint))
        left -= len(claimed)
    return ids


def _groups(app: App, names: dict) -> None:
    """Of the strict queue: a line whose first is leased by who is gone, one that waits, one behind a dead message."""
    store = app.store
    names["blocked"] = _put(store, 1, 2, 3, queue="steps", task="step", group="c")
    _settle(store, _claim(store, "steps", 1), DeadLetter("permanent"), _fault("fe" * 8))
    names["begun"] = _put(store, 1, 2, 3, 4, queue="steps", task="step", group="a")
    assert [d.message.id for d in _claim(store, "steps", 9)] == names["begun"][:1]
    names["in_line"] = _put(store, 1, 2, 3, queue="steps", task="step", group="b")
    names["turns"] = _put(store, 1, 2, 3, 4, 5, queue="turns", group="x")
    assert len(_claim(store, "turns", 9)) == 2
    store.configure_group("turns", "wide", width=3)


# -- plans and runs


def _runs(app: App, names: dict) -> None:
    store, select = app.store, app.dlq.select
    for queue, count in (("redriven", 40), ("planned", 5), ("stopped", 4), ("over", 3), ("asked", 2), ("canary", 6)):
        names[queue] = _dying(store, *range(count), queue=queue, task="again", fingerprint=f"{count:02x}" * 8)
    plan = select("queue:planned").plan(rate="20/s", canary=1, stop_if="failed>50%", note="later")
    names["plan"] = plan.id
    names["run_over"] = _over(app)
    paused = select("queue:stopped").plan().start(reason="it is mended", actor="ann")
    paused.pause(reason="lunch", actor="bob")
    asked = select("queue:asked").plan(gates=Gates(approval="ann")).start(reason="may I", actor="bob")
    names |= {"run_paused": paused.id, "run_asked": asked.id, "run_half": _half(app), "run_canary": _canary(app)}


def _over(app: App) -> str:
    run = app.dlq.select("queue:over").plan(attempts=3, **AT_ONCE).start(reason="it is mended", actor="ann")
    runner = _runner(app, run)
    while not run.view().closed:
        runner.tick()
        _settle(app.store, _claim(app.store, "over", 9), Ack())
        time.sleep(0.05)
    return run.id


def _canary(app: App) -> str:
    """Of 6, which waits for its canary of two: one is done, the other has not run."""
    run = app.dlq.select("queue:canary").plan(canary=2, slow_start=False).start(reason="it is mended", actor="ann")
    runner = _runner(app, run)
    _moved(runner, run, 2)
    _settle(app.store, _claim(app.store, "canary", 1), Ack())
    while run.counts["done"] < 1:
        runner.tick()
        time.sleep(0.05)
    assert run.counts["moved"] == 2
    return run.id


def _half(app: App) -> str:
    """Of 40: some done, some failed and counted; some judged and not counted yet; some moved and leased; some moved;
    the others still dead. Who carried it is gone, and holds its lease."""
    store = app.store
    run = app.dlq.select("queue:redriven").plan(rate="20/s", **AT_ONCE).start(reason="it is mended", actor="ann")
    runner = _runner(app, run)
    _moved(runner, run, 6)
    _judge(store, 4, 1)
    _moved(runner, run, 14)
    assert run.counts["done"] == 4 and run.counts["failed"] == 1, run.counts
    _judge(store, 3, 2)
    assert len(_claim(store, "redriven", 2)) == 2
    assert run.counts["waiting"] > 5 and run.counts["moved"] < 30, run.counts
    return run.id


def _judge(store, done: int, failed: int) -> None:
    _settle(store, _claim(store, "redriven", done), Ack())
    _settle(store, _claim(store, "redriven", failed), DeadLetter("exhausted"), _fault(FAILING))


def _moved(runner: Runner, run: Run, count: int) -> None:
    while run.counts["moved"] < count:
        runner.tick()
        time.sleep(0.05)


def _runner(app: App, run: Run) -> Runner:
    return Runner(app.store, run.id, GONE, lambda *_, **__: None, app)


# -- what people say


def _words(app: App) -> None:
    dlq = app.dlq
    dlq.note(HELD, "the router in Zürich", actor="ann", reason="seen before")
    dlq.own(HELD, "ops", actor="ann")
    dlq.mute(HELD, "30d", actor="ann", reason="known")
    dlq.rule(HELD, "hold", actor="ann", reason="until the router is back")
    app.flow.open("maps", reason="maintenance", actor="ann")
    app.alerts.mute(queue="paused", for_="30d", reason="maintenance", actor="ann")


# -- what is read of it

HISTORIES = {"all": {}, "kills": {"task": "kills"}, "charges": {"queue": "charges", "step": "1m"}}


def read(app: App, planned: str) -> dict:
    store, dlq = app.store, app.dlq
    runs = [view.id for view in dlq.runs()]
    plans = [planned, *runs]
    return {
        "now_ms": store.now_ms(),
        "messages": {message.id: message for message in _all(store)},
        "counts": store.counts_by_queue(),
        "paused": sorted(store.paused()),
        "groups": {queue: store.groups(queue) for queue in ("steps", "turns")},
        "failure_groups": [msgspec.structs.replace(group, sample_id="") for group in dlq.groups()],
        "annotations": dlq.annotations([HELD, FAILING]),
        "rules": dlq.rules(),
        "plans": {id: dlq.plan(id).plan for id in plans},
        "frozen": {id: list(dlq.plan(id).handles()) for id in plans},
        "runs": {view.id: view for view in dlq.runs()},
        "stories": {id: dlq.run(id).story() for id in runs},
        "failures": {id: dlq.run(id).failures() for id in runs},
        "autos": dlq.auto(),
        "recent_plans": recent_plans(store.cells),
        "pauses": paused_by(store, ["paused"]),
        "mutes": app.alerts.list(),
        "audit": list(app.audit),
        "audit_head": app.audit.verify().head,
        "workers": app.workers(),
        "waits": waiting_tasks(store),
        "known_ms": _known_ms(store),
        "history": {name: app.history(**of).points for name, of in HISTORIES.items()},
        "schedules": {name: schedule.state for name, schedule in app.schedules.items()},
        "flow": {name: app.flow.show(name) for name in ("api", "mail", "maps", "sms")},
    }


def _known_ms(store) -> int | None:
    """When a worker was last alive that knows a task."""
    knowledge = Knowledge(store)
    knowledge.read()
    return knowledge.known_ms("charges", "charge", 1, ["order", "cents"])


def _all(store, queue: str | None = None):
    found, cursor = [], None
    while True:
        page = store.peek(None, where=Where(queue=queue), limit=500, cursor=cursor)
        found += page.messages
        if (cursor := page.cursor) is None:
            return sorted(found, key=lambda message: message.id)
