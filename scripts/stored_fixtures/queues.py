"""SQS: what lies in its queues, in the triage store (SQLite) and in the cells (DynamoDB)."""

from __future__ import annotations

import time
from pathlib import Path

import boto3
import msgspec
from contents import AT_ONCE, FAILING, GONE
from tests.support.aws.places import Ministack

from redrive import App, Backoff, Idempotency, Retry
from redrive.testing.sqs import SqsServer
from redrive.triage.redrive.runner import Runner

REGION, TABLE = "eu-central-1", "cells"


def make_app(url: str) -> App:
    app = App(url)
    app.dependency("maps")

    @app.task(name="push", queue="crm", retry=Retry(max_attempts=1))
    def push(n: int) -> None:
        if n >= 50:
            raise ConnectionError("connection refused")

    @app.task(name="flaky", queue="crm", retry=Retry(max_attempts=8, backoff=Backoff.fixed("10m")))
    def flaky(n: int) -> None:
        raise ConnectionError("connection refused")

    @app.task(name="look-up", queue="maps", dependency="maps")
    def look_up(n: int) -> None: ...

    key = Idempotency(key=lambda order, cents: f"charge-{order}", keep="365d")

    @app.task(name="charge", queue="crm", retry=Retry(max_attempts=1), idempotency=key)
    def charge(order: int, cents: int) -> dict[str, int]:
        return {"receipt": 1000 + order}

    return app


def fill_sqs(folder: Path) -> tuple[dict, dict[str, bytes]]:
    """The manifest, and the files: the triage store, the queues and the table."""
    with SqsServer() as sqs, Ministack() as aws:
        cells = f"dynamodb://{TABLE}?region={REGION}%26endpoint={aws.url}%26create=true"
        options = f"create=true&poll=0&mode=requeue&track=true&triage=sqlite:///{folder / 'triage.db'}"
        app = make_app(f"sqs://{REGION}/shop?{options}&endpoint={sqs.url}&cells={cells}")
        names = _fill(app)
        manifest = msgspec.to_builtins({"names": names, **_read(app, names)})
        app.store.close()
        table = boto3.client("dynamodb", region_name=REGION, endpoint_url=aws.url)
        items = table.scan(TableName=TABLE, ConsistentRead=True)["Items"]
        described = table.describe_table(TableName=TABLE)["Table"]
        made = {name: described[name] for name in ("KeySchema", "AttributeDefinitions")}
        files = {
            "triage.db": (folder / "triage.db").read_bytes(),
            "queues.json": _json({name: _queue(queue) for name, queue in sqs.account.queues.items()}),
            "table.json": _json({"made": made, "items": items}),
        }
    return manifest, files


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value))


def _queue(queue) -> dict:
    now_ms = time.time_ns() // 1_000_000
    sent = [
        {"body": one.body, "attributes": one.attributes, "delay_s": max(0, one.hidden_until_ms - now_ms) // 1000}
        for one in queue.messages.values()
    ]
    return {"attributes": queue.attributes, "messages": sent}


def _fill(app: App) -> dict:
    tasks, names = app.tasks, {}
    names["charged"] = tasks["charge"].enqueue(1, 500).id
    names["flaky"] = tasks["flaky"].enqueue(1).id
    names["dead"] = [ref.id for ref in app.enqueue_many([tasks["push"].draft(n) for n in range(50, 60)])]
    while app.store.counts().dead < 10:
        app.run_worker(["crm"], burst=True)
    names["ready"] = [tasks["push"].enqueue(1).id, tasks["push"].using(key="two").enqueue(2).id]
    names["scheduled"] = tasks["push"].using(delay="10m").enqueue(3).id
    names["waiting_for_maps"] = tasks["look-up"].enqueue(4).id
    app.flow.open("maps", reason="maintenance", actor="ann")
    app.dlq.note(FAILING, "seen before", actor="ann")
    dead = [message.id for message in app.dlq]
    names["plan"] = app.dlq.select(" or ".join(f"id:{id}" for id in dead[:3])).plan().id
    half = app.dlq.select(" or ".join(f"id:{id}" for id in dead[3:8])).plan(rate="4/s", **AT_ONCE)
    run = half.start(reason="it is mended", actor="ann")
    runner = Runner(app.store, run.id, GONE, lambda *_, **__: None, app)
    while run.counts["moved"] < 2:
        runner.tick()
        time.sleep(0.05)
    names["run_half"], names["planned"] = run.id, dead[:3]
    assert app.flusher is not None
    app.flusher.flush()
    return names


def _read(app: App, names: dict) -> dict:
    dlq = app.dlq
    return {
        "now_ms": app.store.now_ms(),
        "messages": {message.id: message for message in dlq},
        "waiting": {id: app.job(id) for id in (*names["ready"], names["scheduled"], names["flaky"])},
        "annotations": dlq.annotations([FAILING]),
        "plans": {id: dlq.plan(id).plan for id in (names["plan"], names["run_half"])},
        "runs": {view.id: view for view in dlq.runs()},
        "audit": list(app.audit),
        "audit_head": app.audit.verify().head,
        "history": app.history().points,
        "flow": app.flow.show("maps"),
    }
