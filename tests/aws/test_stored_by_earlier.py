"""What an earlier version left in SQS, in a triage store beside it and in DynamoDB, this one reads and works on.

The files were made by the commit that their folder is named for (scripts/stored_fixtures).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from tests.support.aws.places import REGION, Ministack, client
from tests.support.stored import Clock, as_known, files, lasting

from redrive import App, Backoff, Idempotency, Retry
from redrive.stores.dynamodb.store import DynamoCells
from redrive.stores.sqlite.store import SqliteStore
from redrive.stores.sqs.store import SqsStore
from redrive.testing.sqs import SqsServer


class Stored:
    """The saved queues, triage store and table, loaded and opened; `ran` are the arguments that tasks were called
    with."""

    def __init__(self, folder: Path, aws: Ministack, sqs: SqsServer, clock: Clock) -> None:
        self.known: dict[str, Any] = json.loads(files("sqs")["manifest.json"])
        self.names: dict[str, Any] = self.known["names"]
        self.clock, self.ran = clock, defaultdict[str, list[int]](list)
        (folder / "triage.db").write_bytes(files("sqs")["triage.db"])
        fill_queues(sqs)
        table = f"stored-{uuid4().hex}"
        fill_table(aws, table)
        self.store = SqsStore(
            f"sqs://{REGION}/shop?poll=0&mode=requeue&track=true&endpoint={sqs.url}",
            clock_ms=clock,
            triage=SqliteStore(folder / "triage.db", clock_ms=clock),
            cells=DynamoCells(f"dynamodb://{table}?region={REGION}&endpoint={aws.url}", clock_ms=clock),
        )
        self.app = self._app()

    def _app(self) -> App:
        app, ran = App(store=self.store), self.ran
        app.dependency("maps")

        def declare(name: str, queue: str, **how: Any) -> None:
            def handler(n: int) -> None:
                ran[name].append(n)

            app.task(name=name, queue=queue, **how)(handler)

        declare("push", "crm", retry=Retry(max_attempts=1))
        declare("flaky", "crm", retry=Retry(max_attempts=8, backoff=Backoff.fixed("10m")))
        declare("look-up", "maps", dependency="maps")
        key = Idempotency(key=lambda order, cents: f"charge-{order}", keep="365d")

        @app.task(name="charge", queue="crm", retry=Retry(max_attempts=1), idempotency=key)
        def charge(order: int, cents: int) -> dict[str, int]:
            ran["charge"].append(order)
            return {"receipt": 2000 + order}

        return app


def fill_queues(sqs: SqsServer) -> None:
    boto, saved = client("sqs", sqs.url), json.loads(files("sqs")["queues.json"])
    for name, queue in saved.items():  # dead-letter queues were made first
        url = boto.create_queue(QueueName=name, Attributes=queue["attributes"])["QueueUrl"]
        for sent in queue["messages"]:
            attributes = sent["attributes"]
            boto.send_message(
                QueueUrl=url, MessageBody=sent["body"], MessageAttributes=attributes, DelaySeconds=sent["delay_s"]
            )


def fill_table(aws: Ministack, name: str) -> None:
    """Without its time to live, by which what was saved long ago would go."""
    boto, saved = client("dynamodb", aws.url), json.loads(files("sqs")["table.json"])
    boto.create_table(TableName=name, BillingMode="PAY_PER_REQUEST", **saved["made"])
    for item in saved["items"]:
        decoded = {k: {"B": msgspec.convert(v["B"], bytes)} if "B" in v else v for k, v in item.items()}
        boto.put_item(TableName=name, Item=decoded)


@pytest.fixture
def stored(ministack: Ministack, tmp_path: Path) -> Iterator[Stored]:
    clock = Clock(json.loads(files("sqs")["manifest.json"])["now_ms"])
    with SqsServer(clock) as sqs:
        clock.go()
        opened = Stored(tmp_path, ministack, sqs, clock)
        yield opened
        opened.store.close()


def test_everything_is_read_as_it_was(stored: Stored) -> None:
    app, known, dlq = stored.app, stored.known, stored.app.dlq
    found = {
        "messages": {message.id: message for message in dlq},
        "waiting": {id: app.job(id) for id in known["waiting"]},
        "annotations": dlq.annotations(["fb" * 8]),
        "plans": {id: dlq.plan(id).plan for id in known["plans"]},
        "runs": {view.id: view for view in dlq.runs()},
        "audit": list(app.audit),
        "audit_head": app.audit.verify().head,
        "history": app.history().points,
        "flow": app.flow.show("maps"),
    }
    now = lasting(json.loads(msgspec.json.encode(found)))
    then = lasting(known)
    for what, value in then.items():
        assert as_known(now[what], value) == value, what


def test_what_waits_is_worked_with_its_history_and_its_key(stored: Stored) -> None:
    app, names, ran = stored.app, stored.names, stored.ran
    push = app.tasks["push"]
    assert push.using(key="two").enqueue(2).id == names["ready"][1], "the key is held"
    app.run_worker(["crm", "maps"], burst=True)
    assert {1, 2} <= {*ran["push"]} and 3 not in ran["push"] and not ran["flaky"]
    stored.clock.advance(601)
    seen: list[int] = []
    app.subscribe(lambda events: seen.extend(getattr(event, "attempt", 0) for event in events))
    app.run_worker(["crm", "maps"], burst=True)
    assert ran["push"].count(3) == 1 and ran["flaky"] == [1]
    assert 2 in seen, "its second attempt"
    assert not ran["look-up"], "its breaker is held open"
    app.flow.close("maps", reason="it is over")
    stored.clock.advance(900)  # the longest that SQS hides what was put off
    app.run_worker(["maps"], burst=True)
    assert ran["look-up"] == [4]


def test_what_a_key_of_idempotency_gave_is_given_again(stored: Stored) -> None:
    charge = stored.app.tasks["charge"]
    assert charge(1, 500) == {"receipt": 1001}, "what the version before returned"
    charge.enqueue(1, 500)
    stored.app.run_worker(["crm"], burst=True)
    assert stored.ran["charge"] == []


def test_a_run_half_done_goes_on_and_a_plan_is_applied(stored: Stored) -> None:
    app, names = stored.app, stored.names
    runs = [app.dlq.run(names["run_half"]), app.dlq.plan(names["plan"]).start(reason="it is mended")]
    assert [run.counts["moved"] for run in runs] == [2, 0]
    stored.clock.advance(6)  # the lease of who carried it
    while not all(run.view().closed for run in runs):
        app.run_worker(["crm"], burst=True)
    assert [(run.state, run.counts["moved"], run.counts["done"]) for run in runs] == [("done", 5, 5), ("done", 3, 3)]
    redriven = [n for n in stored.ran["push"] if n >= 50]
    assert len(redriven) == len({*redriven}) == 8
    assert app.counts().dead == 2
