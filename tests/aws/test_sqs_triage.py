"""Triage of what died in SQS, whole: drained, grouped, planned, canaried, driven back through a real worker."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.aws.places import REGION, client

from redrive import App, AutoRedrive, Backoff, Retry
from redrive.aws.dead_letters import ingest as ingesting
from redrive.aws.dead_letters.move_tasks import DeadQueue
from redrive.aws.dead_letters.sources import ingest_of, source_of, sources, sqs_of
from redrive.errors import ConfigError, Refused, Unsupported
from redrive.message import Lane
from redrive.program.main import run as run_command
from redrive.testing.sqs import SqsServer

ONCE = Retry(max_attempts=1, backoff=Backoff.fixed("1s"))


class Shop:
    """A stand-in by the wall clock, and apps on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server = folder, SqsServer()
        self.seen: Counter[int] = Counter()
        self.up = False
        self.apps: list[App] = []

    def url(self, *, triage: bool = True, options: str = "") -> str:
        url = f"sqs://{REGION}/shop?create=true&poll=1&endpoint={self.server.url}{options}"
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
        """Receive all of it as often as its redrive policy lets, twice by now, and delete none."""
        url, policy = self.queue(name), "RedrivePolicy"
        before = self.boto.get_queue_attributes(QueueUrl=url, AttributeNames=[policy])["Attributes"]
        twice = json.dumps(json.loads(before[policy]) | {"maxReceiveCount": "2"})
        self.boto.set_queue_attributes(QueueUrl=url, Attributes={policy: twice})
        for _ in range(3):
            while self.boto.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=1).get("Messages"):
                pass
            threading.Event().wait(1.1)
        self.boto.set_queue_attributes(QueueUrl=url, Attributes=before)

    def end(self, app: App) -> None:
        self.apps.remove(app)
        app.store.close()

    def close(self) -> None:
        for app in [*self.apps]:
            self.end(app)


@pytest.fixture(autouse=True)
def empty_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingesting, "EMPTY_S", 0)  # the stand-in tells at once


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


def dead(shop: Shop, count: int, **words: Any) -> App:
    """An app of whose messages so many have died in the triage store, by its worker."""
    app = shop.app(**words)
    app.enqueue_many([app.tasks["crm.push"].draft(n) for n in range(count)])
    app.run_worker(burst=True)
    return app


def test_a_canary_that_fails_stops_the_run_and_each_death_is_one_row(shop: Shop) -> None:
    app = dead(shop, 12)
    assert shop.depth("shop-crm-dlq") == 0  # they died in the triage store itself
    run = app.dlq.select("queue:crm").plan(canary=4, stop_if="failed>50%").start(reason="perhaps", actor="ann")
    app.run_worker(burst=True)
    assert (run.state, run.counts["failed"], run.counts["skipped"]) == ("stopped", 4, 8)
    assert Counter(message.redrives for message in app.dlq) == {1: 4, 0: 8}
    assert {failure.error for failure in run.failures()} == {"ConnectionError"}
    assert {len(message.faults) for message in app.dlq} == {1, 2}


def test_what_has_not_left_yet_can_be_returned(shop: Shop) -> None:
    app = dead(shop, 6)
    run = app.dlq.select("queue:crm").plan(delay="1h", canary=0).start(reason="tonight", actor="ann")
    app.run_worker(burst=True)
    assert (run.counts["moved"], shop.depth("shop-crm")) == (6, 0)
    run.undo(reason="tomorrow", actor="ann")
    assert run.counts["moved"] == 0
    assert Counter(message.redrives for message in app.dlq) == {0: 6}


def test_a_retry_by_hand_is_in_sqs_when_it_returns(shop: Shop) -> None:
    app = dead(shop, 3)
    assert len(app.dlq.retry(all=True, reason="again", actor="ann").ids) == 3
    assert shop.depth("shop-crm") == 3
    shop.up = True
    app.run_worker(burst=True)
    assert shop.seen == Counter(range(3))


def test_a_worker_drains_dead_letter_queues_beside_its_work(shop: Shop) -> None:
    app = shop.app()
    app.store.sqs_queues.of("crm")  # type: ignore[attr-defined]  # makes the queues
    for n in range(3):
        shop.boto.send_message(QueueUrl=shop.queue("shop-crm-dlq"), MessageBody=json.dumps({"record_id": n}))

    there = threading.Event()
    app.subscribe(lambda events: there.set() if "ingested" in {getattr(e, "name", "") for e in events} else None)

    async def until_they_are_there() -> bool:
        async with app.worker(["crm"], ingest=True):
            return await asyncio.to_thread(there.wait, 30)

    assert asyncio.run(until_they_are_there())
    assert app.store.counts("crm").dead == 3
    assert shop.depth("shop-crm-dlq") == 0
    with pytest.raises(Unsupported, match="only an sqs:// store"):
        App("memory://").worker(["crm"], ingest=True)


def test_a_move_task_brings_all_back_for_a_fresh_life(shop: Shop) -> None:
    app = dead(shop, 23, triage=False)
    shop.up = True
    queue = DeadQueue(sqs_of(app.store), "crm")
    task = queue.begin(500)
    assert (task.source, task.to, task.per_s) == ("shop-crm-dlq", "shop-crm", 500)
    for _ in range(100):
        if queue.tasks()[0].status == "COMPLETED":
            break
        threading.Event().wait(0.05)
    app.run_worker(burst=True)
    assert shop.seen == Counter(range(23))
    assert shop.depth("shop-crm-dlq") == shop.depth("shop-crm") == 0


def test_a_move_task_is_refused_where_it_is_not_enough(shop: Shop) -> None:
    store = sqs_of(shop.app(triage=False).store)
    queue = DeadQueue(store, "crm")
    policy = store.sqs_queues.attributes(queue.queue.url, "RedrivePolicy")["RedrivePolicy"]
    shop.boto.create_queue(QueueName="billing", Attributes={"RedrivePolicy": policy})
    with pytest.raises(Refused, match="serves 2 queues"):
        queue.begin()
    with pytest.raises(ConfigError, match="--queue"):
        source_of(store, "billing", None)
    assert source_of(store, "shop-crm-dlq", None).queue == "crm"
    with pytest.raises(Refused, match="no move task"):
        queue.cancel()
    shop.boto.delete_queue(QueueUrl=shop.queue("billing"))
    for n in range(30):
        shop.boto.send_message(QueueUrl=queue.dead.url, MessageBody=str(n + 1))
    queue.begin(1)
    with pytest.raises(Refused, match="runs already"):
        queue.begin()
    assert queue.cancel().status == "CANCELLED"


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `redrive WORDS` on the URL; exit code, stdout and stderr."""

    def called(url: str, *words: str) -> tuple[int, str, str]:
        for name in [name for name in os.environ if name.startswith("REDRIVE_")]:
            monkeypatch.delenv(name)
        monkeypatch.chdir(shop.folder)
        monkeypatch.setenv("REDRIVE_URL", url)
        code, told = run_command(words), capsys.readouterr()
        return code, told.out, told.err

    return called


@pytest.mark.parametrize("words", ["dlq list", "dlq groups", "dlq audit", "dlq plan queue:crm", "dlq retry --all",
                                   "dlq ingest", "dlq auto", "run list", "run show x", "dlq show x"])  # fmt: skip
def test_commands_about_dead_letters_name_triage_where_the_url_has_none(shop: Shop, call: Call, words: str) -> None:
    code, _, said = call(shop.url(triage=False), *words.split())
    assert code == 4
    assert "triage=" in said


def test_dlq_ingest_counts_what_it_takes_and_leaves_all_where_the_store_is_out(shop: Shop, call: Call) -> None:
    shop.end(dead(shop, 12, triage=False))
    code, _, _ = call(shop.url(triage=False) + "&triage=postgresql://127.0.0.1:1/x", "dlq", "ingest")
    assert (code, shop.depth("shop-crm-dlq")) == (3, 12)
    code, _, said = call(shop.url(), "dlq", "groups")
    assert (code, "about 12 lie in dead-letter queues of SQS; take them in: " in said) == (0, True)
    code, _, said = call(shop.url(triage=False), "queue", "list", "-o", "jsonl")
    assert (code, "about 12 lie in dead-letter queues of SQS; to look at them name a store" in said) == (0, True)
    code, said, _ = call(shop.url(), "dlq", "ingest", "--queue", "crm", "-o", "jsonl")
    rows = {row["from"]: row for row in map(json.loads, said.splitlines())}
    assert (code, rows["shop-crm-dlq"]) == (
        0, {"queue": "crm", "from": "shop-crm-dlq", "received": 12, "written": 12, "known": 0, "left": 0},
    )  # fmt: skip
    code, said, _ = call(shop.url(), "dlq", "groups", "-o", "json")
    assert [group["count"] for group in json.loads(said)] == [12]
    code, said, _ = call(shop.url(), "dlq", "move", "crm", "-o", "json")
    assert (code, json.loads(said)["status"]) == (0, "completed")
    code, said, _ = call(shop.url(), "audit", "list", "-o", "jsonl")
    told = [(row["action"], row["about"], row["count"], row["text"]) for row in map(json.loads, said.splitlines())]
    assert (code, told[0][:2]) == (0, ("move", "queue/crm"))
    assert told[1] == ("ingest", "queue/crm", 12, "from shop-crm-dlq")
    code, _, said = call(shop.url(), "dlq", "ingest", "--from", "nowhere")
    assert (code, "nowhere" in said) == (2, True)
    code, _, said = call(f"sqlite:///{shop.folder / 'other.db'}", "dlq", "ingest")
    assert (code, "only an sqs:// store" in said) == (4, True)


def test_of_a_fifo_queue_the_dead_go_back_in_order_each_once(shop: Shop) -> None:
    app = shop.app()
    push = app.tasks["crm.push"]
    fifo = app.queue("crm.fifo")
    app.enqueue_many([push.using(queue="crm.fifo", group="g").draft(n) for n in range(12)])
    app.run_worker([fifo.name], burst=True)
    assert app.store.counts("crm.fifo").dead == 12
    ids = [message.id for message in app.dlq]
    assert len(app.dlq.retry(all=True, reason="again", actor="ann").ids) == 12
    queue = shop.server.account.queues["shop-crm.fifo"]
    sent = [*queue.messages.values()]
    assert [json.loads(message.body)["id"] for message in sent] == ids
    assert {message.group for message in sent} == {"g"}
    shop.up = True
    app.run_worker([fifo.name], burst=True)
    assert [*shop.seen] == [*range(12)]
    assert shop.depth("shop-crm.fifo") == 0


def test_what_came_by_a_topic_goes_back_to_its_own_queue_alone(shop: Shop) -> None:
    app = shop.app()
    for name in ("crm", "billing"):
        app.store.sqs_queues.of(name)  # type: ignore[attr-defined]
        note = {
            "Type": "Notification",
            "MessageId": "m1",
            "TopicArn": "arn:aws:sns:x:1:orders",
            "MessageAttributes": {},
        }
        body = json.dumps(note | {"Message": json.dumps({"record_id": 7})})
        shop.boto.send_message(QueueUrl=shop.queue(f"shop-{name}"), MessageBody=body)
    app.run_worker(["crm"], burst=True)
    [row] = app.dlq
    assert row.headers["aws-sns-topic"].endswith(":orders")
    shop.up = True
    app.dlq.retry([row.id], reason="again", actor="ann")
    assert (shop.depth("shop-crm"), shop.depth("shop-billing")) == (1, 1)
    app.run_worker(["crm"], burst=True)
    assert shop.seen == Counter([7])


def test_an_edited_message_takes_the_way_back_too(shop: Shop) -> None:
    app = dead(shop, 1)
    [row] = app.dlq
    shop.up = True
    edited = app.dlq.edit(row.id, args={"record_id": 99}, reason="typo", actor="ann")
    assert shop.depth("shop-crm") == 1
    app.run_worker(burst=True)
    assert shop.seen == Counter([99])
    assert app.store.find([row.id, edited.id]) == [None, None]


def test_auto_redrive_gives_up_as_poison_what_dies_after_its_last_redrive(shop: Shop) -> None:
    app = shop.app()
    app.queue("crm", foreign="crm.push", auto_redrive=AutoRedrive(base="1s", factor=1, max_redrives=2))
    app.tasks["crm.push"].enqueue(1)
    isolated = threading.Event()
    app.subscribe(
        lambda events: isolated.set() if "auto_isolated" in {getattr(e, "name", "") for e in events} else None
    )

    async def until_it_is_isolated() -> bool:
        async with app.worker(["crm"]):
            return await asyncio.to_thread(isolated.wait, 60)

    assert asyncio.run(until_it_is_isolated())
    [row] = app.store.peek(Lane.QUARANTINE).messages
    assert (row.redrives, len(row.faults)) == (2, 3)
    assert shop.depth("shop-crm") == 0


@pytest.mark.parametrize("words", ["deliver lines.jsonl --to http://ann:hunter2@127.0.0.1:9/hook", "demo"])
def test_what_must_look_up_what_waits_is_refused_with_a_store_that_can(
    shop: Shop, call: Call, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop.folder)
    (shop.folder / "lines.jsonl").write_text('{"n": 1}\n')
    code, _, said = call(shop.url(), *words.split(), "--url", shop.url())
    assert code == 4
    assert "cannot look up what waits" in said
    assert "SQLite" in said or "lines.jsonl --to 'http://ann:***@127.0.0.1:9/hook' --url sqlite:///redrive.db" in said


def test_what_is_held_for_a_person_and_a_merged_or_resolved_group_are_as_on_other_stores(shop: Shop) -> None:
    app = App(shop.url(), release="2.4")
    shop.apps.append(app)

    @app.task(name="crm.push", queue="crm", retry=Retry(max_attempts=1, on_exhausted="hold"))
    def push(record_id: int) -> None:
        raise ConnectionError("no answer") if record_id % 2 else ValueError("no number")

    app.enqueue_many([push.draft(n) for n in range(4)])
    app.run_worker(burst=True)
    ingest(app)
    held = [*app.dlq.select("reason:held")]
    assert len(held) == 4 and {message.faults[-1].release for message in held} == {"2.4"}
    assert any("4 messages are held for a person" in need.text for need in app.status().needs)
    one, two = (group.fingerprint for group in app.dlq.groups())
    app.dlq.merge(two, one, reason="the same")
    assert [group.count for group in app.dlq.groups()] == [4] and app.dlq.select(f"fingerprint:{one}").count() == 4
    app.dlq.resolve(one, release="2.4", reason="fixed")
    push.enqueue(1)
    app.run_worker(burst=True)
    ingest(app)
    assert app.dlq.annotations([one])[one].state.word == "regressed"
