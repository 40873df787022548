"""Triage of what died in SQS, whole: drained, grouped, planned, canaried, driven back through a real worker."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redrive import App, Backoff, Retry
from redrive.aws.sources import ingest_of, sources, sqs_of
from redrive.testing.sqs import SqsServer

from .places import REGION, client

ONCE = Retry(max_attempts=1, backoff=Backoff.fixed("1s"))


class Shop:
    """A stand-in by the wall clock, and apps on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server = folder, SqsServer()
        self.seen: Counter[int] = Counter()
        self.up = False
        self.apps: list[App] = []

    def url(self, *, triage: bool = True, options: str = "") -> str:
        url = f"sqs://{REGION}/shop?create=true&poll=1&max_receives=2&endpoint={self.server.url}{options}"
        return f"{url}&triage=sqlite:///{self.folder / 'triage.db'}" if triage else url

    def app(self, **words: Any) -> App:
        app = App(self.url(**words))
        self.apps.append(app)

        @app.task(name="crm.push", queue="crm", retry=ONCE)
        def push(record_id: int) -> None:
            if not self.up:
                raise ConnectionError("the CRM does not answer")
            self.seen[record_id] += 1

        app.queue("crm", foreign=push)
        return app

    @property
    def boto(self) -> Any:
        return client("sqs", self.server.url)

    def queue(self, name: str) -> str:
        return f"{self.server.url}/000000000000/{name}"

    def depth(self, name: str) -> int:
        """How many messages a queue of SQS holds, visible or not."""
        queue = self.server.account.queues[name]
        return len(queue.messages)

    def wear_out(self, name: str) -> None:
        """Receive all of it as often as its redrive policy lets, and delete none."""
        for _ in range(3):
            while self.boto.receive_message(
                QueueUrl=self.queue(name), MaxNumberOfMessages=10, VisibilityTimeout=1, WaitTimeSeconds=0
            ).get("Messages"):
                pass
            threading.Event().wait(1.1)

    def end(self, app: App) -> None:
        self.apps.remove(app)
        app.store.close()

    def close(self) -> None:
        for app in [*self.apps]:
            self.end(app)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    with shop.server:
        yield shop
        shop.close()


def ingest(app: App) -> int:
    store = sqs_of(app.store)
    return sum(ingest_of(store).drain(source).written for source in sources(store, ["crm"]))


@pytest.mark.slow
def test_of_137_dead_messages_each_is_grouped_planned_driven_back_and_done(shop: Shop) -> None:
    before = shop.app(triage=False)  # what dies goes to the dead-letter queue
    push = before.tasks["crm.push"]
    before.enqueue_many([push.draft(n) for n in range(100)])
    before.run_worker(burst=True)
    assert shop.depth("shop-crm-dlq") == 100
    before.enqueue_many([push.draft(n) for n in range(100, 130)])
    for n in range(130, 137):
        shop.boto.send_message(QueueUrl=shop.queue("shop-crm"), MessageBody=json.dumps({"record_id": n}))
    shop.end(before)
    shop.wear_out("shop-crm")  # by a consumer that crashes
    assert shop.depth("shop-crm-dlq") == 137

    app = shop.app()
    assert ingest(app) == 137
    assert (shop.depth("shop-crm-dlq"), shop.depth("shop-crm")) == (0, 0)
    groups = app.dlq.groups()
    assert sum(group.count for group in groups) == 137
    assert [(group.count, group.error) for group in groups] == [(100, "ConnectionError"), (37, "ReceivedTooOften")]
    ids = {message.id for message in app.dlq}
    plan = app.dlq.select("queue:crm").plan(rate="500/s", canary=5, stop_if="failed>20%")
    assert plan.total == len(ids) == 137
    shop.up = True
    run = plan.start(reason="the CRM is back", actor="ann")
    app.run_worker(burst=True)
    view = run.wait(timeout=60) if run.state not in ("done",) else run.view()
    assert view is not None
    assert run.counts == {
        "planned": 137, "moved": 137, "done": 137, "failed": 0, "skipped": 0, "changed": 0, "waiting": 0,
    }  # fmt: skip
    assert shop.seen == Counter(range(137))
    assert (shop.depth("shop-crm"), shop.depth("shop-crm-dlq")) == (0, 0)
    assert not any(app.store.find(sorted(ids)))
    told = "\n".join(line.text for line in run.story())
    assert "canary: 5 of 5 done" in told
