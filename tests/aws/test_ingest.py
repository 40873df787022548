"""Dead-letter queues of SQS are drained into a triage store: written first, deleted after, whoever filled them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from botocore import xform_name
from msgspec.structs import replace
from tests.support.aws.places import REGION, Stand, client

from redrive.aws.dead_letters.ingest import HIDDEN_S, DeadLetterIngest, DeadLetterSource, IngestCounts
from redrive.awsapi import client as aws
from redrive.codec import Routes
from redrive.errors import StoreFull, StoreUnavailable
from redrive.fault import Fault, Kind
from redrive.ids import new_id
from redrive.message import Draft, Lane, Message, Redrive, Swap
from redrive.store import Store
from redrive.stores.lifecycle import enqueued
from redrive.stores.sqlite.store import SqliteStore
from redrive.stores.sqs.outbox import UNROUTED, Outbox
from redrive.stores.sqs.wire import SOURCE, VERBATIM, MessageState, encode, read, write
from redrive.worker import redrive_outcome

BAD = Fault(Kind.TRANSIENT, "ConnectionError", "refused", "f-bad", ("ConnectionError",))


class Calls:
    """SQS by boto3."""

    def __init__(self, url: str) -> None:
        self._client = aws.client("sqs", region=REGION, endpoint=url)

    def call(self, action: str, **parameters: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self._client, xform_name(action))(**parameters)
        except aws.errors() as error:
            raise aws.failure(error, action) from error
        return answer

    def close(self) -> None:
        self._client.close()


class Scene:
    """A queue with its DLQ on the stand-in, and a triage store, both on the test's clock."""

    def __init__(self, stand: Stand, folder: Path) -> None:
        self.stand, self.boto = stand, client("sqs", stand.url)
        self.dead = self._made("shop-crm-dlq")
        arn = self.attribute(self.dead, "QueueArn")
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "3"})
        self.queue = self._made("shop-crm", RedrivePolicy=policy)
        self.triage = SqliteStore(folder / "triage.db", clock_ms=stand.clock)
        self.sqs = Calls(stand.url)
        self.routes = Routes()
        self.source = DeadLetterSource("crm", self.dead)

    def _made(self, name: str, **attributes: str) -> str:
        return str(self.boto.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def attribute(self, url: str, name: str) -> str:
        found = self.boto.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"]
        return str(found[name])

    def close(self) -> None:
        self.triage.close()
        self.sqs.close()

    def left(self, url: str | None = None) -> int:
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        return sum(int(self.attribute(url or self.dead, name)) for name in names)

    def send(self, url: str, body: str, attributes: dict[str, Any] | None = None) -> None:
        self.boto.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes or {})

    def send_message(self, url: str, message: Message) -> None:
        self.send(url, *write(message, prefix="shop"))

    def dies_of_receives(self) -> None:
        """All that lies in the queue, by a consumer that never deletes."""
        for _ in range(4):
            while self.boto.receive_message(
                QueueUrl=self.queue, MaxNumberOfMessages=10, VisibilityTimeout=1, WaitTimeSeconds=0
            ).get("Messages"):
                pass
            self.stand.passes(2)

    def ingest(self, triage: Store | None = None) -> IngestCounts:
        return DeadLetterIngest(self.sqs, triage or self.triage, self.routes, self.triage.cells).drain(self.source)

    def rows(self, lane: Lane = Lane.DEAD) -> list[Message]:
        return self.triage.peek(lane, limit=1000).messages

    def fresh(self, **words: Any) -> Message:
        now_ms = self.stand.clock()
        draft = Draft(task="push", queue="crm", body=b'{"record_id":1}', correlation_id="c-1", headers={"h": "v"})
        return replace(enqueued(draft, new_id(now_ms), now_ms), **words)

    def dead_one(self, **words: Any) -> Message:
        died = {"lane": Lane.DEAD, "reason": "permanent", "due_ms": None, "attempt": 2, "fence": 2, "faults": (BAD,)}
        return self.fresh(**(died | {"rested_ms": self.stand.clock()} | words))

    def raws(self, url: str) -> list[dict[str, Any]]:
        found = self.boto.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"]
        )
        return list(found.get("Messages", ()))

    def send_back(self, messages: Sequence[Message]) -> list[None]:
        for message in messages:
            self.send_message(self.queue, message)
        return [None] * len(messages)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Stand() as stand:
        scene = Scene(stand, tmp_path)
        yield scene
        scene.close()


def test_our_dead_letters_come_with_all_they_carried(scene: Scene) -> None:
    sent = [scene.dead_one(redrives=1, run="r1") for _ in range(23)]
    for message in sent:
        scene.send_message(scene.dead, message)
    assert scene.ingest() == IngestCounts(23, 23)
    assert scene.left() == 0
    rows = {row.id: row for row in scene.rows()}
    assert rows.keys() == {message.id for message in sent}
    row = rows[sent[0].id]
    assert (row.task, row.queue, row.reason, row.attempt, row.redrives) == ("push", "crm", "permanent", 2, 1)
    assert (row.body, dict(row.headers), row.correlation_id) == (b'{"record_id":1}', {"h": "v"}, "c-1")
    assert (row.faults, row.enqueued_ms, row.rested_ms) == ((BAD,), sent[0].enqueued_ms, sent[0].rested_ms)
    assert [(g.fingerprint, g.count) for g in scene.triage.failure_groups()] == [("f-bad", 23)]


def test_the_same_message_twice_is_one_row_and_a_later_death_replaces_it(scene: Scene) -> None:
    message = scene.dead_one()
    scene.send_message(scene.dead, message)
    scene.send_message(scene.dead, message)
    counts = scene.ingest()
    assert (counts.received, counts.written, counts.known, counts.left) == (2, 1, 1, 0)
    scene.send_message(scene.dead, replace(message, redrives=1, reason="exhausted"))
    scene.send_message(scene.dead, message)  # a straggler of the first life
    assert scene.ingest().left == 0
    [row] = scene.rows()
    assert (row.redrives, row.reason, scene.left()) == (1, "exhausted", 0)


def test_what_the_redrive_policy_moved_says_how_often_when_first_and_from_where(scene: Scene) -> None:
    first_ms = scene.stand.clock()
    ours = scene.fresh()
    scene.send_message(scene.queue, ours)
    scene.dies_of_receives()
    assert scene.ingest().written == 1
    [row] = scene.rows()
    assert (row.id, row.task, row.reason, row.attempt, row.faults[-1].kind) == (
        ours.id, "push", "exhausted", 3, Kind.CRASHED,
    )  # fmt: skip
    text = row.faults[-1].text
    assert "queue shop-crm delivered it 3 times" in text
    assert "no consumer deleted it; the first time at 2025-06-15T" in text
    assert row.enqueued_ms == first_ms
    assert (row.body, row.correlation_id) == (ours.body, "c-1")


def test_what_other_consumers_left_is_kept_whole_and_grouped_by_its_queue(scene: Scene) -> None:
    attributes = {
        "shop": {"DataType": "String", "StringValue": "eu"},
        "size": {"DataType": "Number", "StringValue": "7"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\0\1"},
    }
    for n in range(12):
        scene.send(scene.queue, f'{{ "order": {n} }}', attributes)
    scene.send(scene.queue, "no JSON at all ☃")
    scene.dies_of_receives()
    assert scene.ingest().written == 13
    rows = scene.rows()
    assert {row.task for row in rows} == {UNROUTED}
    assert {row.reason for row in rows} == {"exhausted"}
    assert {row.attempt for row in rows} == {3}
    assert b'{ "order": 4 }' in {row.body for row in rows}
    assert "no JSON at all ☃".encode() in {row.body for row in rows}
    headers = next(row.headers for row in rows if row.headers.get("size"))
    assert headers["shop"] == "eu"
    assert headers[SOURCE].endswith(":shop-crm")
    assert headers["aws-first-received"].startswith("2025-06-15T")
    [group] = scene.triage.failure_groups()
    assert (group.count, group.error) == (13, "ReceivedTooOften")


def test_a_strangers_message_goes_back_as_it_came_and_stays_the_same_message(scene: Scene) -> None:
    attributes = {
        "size": {"DataType": "Number", "StringValue": "7"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\0\1"},
    }
    wrapped = json.dumps(
        {"Type": "Notification", "MessageId": "m", "TopicArn": "arn:t", "Message": '{"a": 1}', "MessageAttributes": {}}
    )
    bodies = {'{ "order": 1 }', wrapped}
    scene.send(scene.queue, '{ "order": 1 }', attributes)
    scene.send(scene.queue, wrapped)
    scene.dies_of_receives()
    scene.ingest()
    rows = scene.rows()
    assert all(scene.triage.triage([row.handle for row in rows], Redrive(run="r1", attempts=2)))
    assert Outbox(scene.triage, scene.send_back).pump(10) == 2
    raws = scene.raws(scene.queue)
    assert {raw["Body"] for raw in raws} == bodies
    plain = next(raw for raw in raws if raw["Body"] != wrapped)
    sent = {name: value for name, value in plain["MessageAttributes"].items() if name != "redrive"}
    assert sent == attributes
    scene.routes.add("crm", "orders.new")
    for raw in raws:  # a worker of ours knows it again
        message, kept = read(raw, queue="crm", routes=scene.routes)
        assert message.id in {row.id for row in rows}
        assert message.correlation_id == message.id
        assert (message.task, kept.redrives, kept.run, kept.attempts_allowed) == ("orders.new", 1, "r1", 2)
        assert VERBATIM not in message.headers
    scene.stand.passes(60)
    scene.dies_of_receives()
    assert scene.ingest().written == 2
    again = scene.rows()
    assert {row.id for row in again} == {row.id for row in rows}
    assert {row.redrives for row in again} == {1}
    assert {row.body.decode() for row in again} == bodies


def test_what_lambda_says_of_its_failure_is_the_fault(scene: Scene) -> None:
    scene.send(
        scene.dead,
        "{}",
        {
            "ErrorCode": {"DataType": "Number", "StringValue": "200"},
            "ErrorMessage": {"DataType": "String", "StringValue": "Task timed out"},
        },
    )
    scene.send(scene.dead, "{}")
    scene.ingest()
    assert {(row.faults[-1].error, row.faults[-1].text) for row in scene.rows()} == {
        ("200", "Task timed out"),
        ("DeadLettered", "a program put it into the dead-letter queue, and says not why"),
    }


def test_a_record_of_its_retries_comes_along(scene: Scene) -> None:
    message = scene.fresh()
    scene.send_message(scene.queue, message)
    [raw] = scene.raws(scene.queue)
    kept = MessageState(attempt=1, enqueued_ms=message.enqueued_ms, receives=1, faults=(BAD,), redrives=2)
    scene.triage.cells.swap([Swap("sqs/m/" + raw["MessageId"], 0, encode(kept))])
    scene.stand.passes(40)
    scene.dies_of_receives()
    scene.ingest()
    [row] = scene.rows()
    assert (row.redrives, row.attempt, [fault.error for fault in row.faults]) == (
        2, 3, ["ConnectionError", "ReceivedTooOften"],
    )  # fmt: skip


def test_a_run_hears_of_what_died_without_a_worker(scene: Scene) -> None:
    scene.send_message(scene.queue, scene.fresh(run="r1", redrives=1))
    told = scene.fresh(run="r1", redrives=1, attempt=1, faults=(BAD,), fence=1)
    scene.send_message(scene.queue, told)
    scene.dies_of_receives()
    scene.ingest()
    cells = scene.triage.cells.read([redrive_outcome.cell_of("r1", row.id) for row in scene.rows()])
    words = {row.id: cell and redrive_outcome.decode(cell.value) for row, cell in zip(scene.rows(), cells, strict=True)}
    assert words.pop(told.id) is None  # its first run had a verdict of its own
    [first] = words.values()
    assert first is not None
    assert (first.outcome, first.error) == ("failed", "ReceivedTooOften")


def test_poison_goes_to_quarantine(scene: Scene) -> None:
    scene.send_message(scene.dead, scene.dead_one(lane=Lane.QUARANTINE, reason="crashed"))
    scene.source = DeadLetterSource("crm", scene.dead, Lane.QUARANTINE)
    scene.ingest()
    [row] = scene.rows(Lane.QUARANTINE)
    assert row.reason == "crashed"


class Full:
    """A store whose disk is full."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def restore(self, messages: object) -> list[bool]:
        raise StoreFull("out of space; nothing was written")


def test_nothing_is_deleted_where_the_store_is_full_and_all_comes_once_it_has_room(scene: Scene) -> None:
    for _ in range(25):
        scene.send_message(scene.dead, scene.dead_one())
    full: Any = Full(scene.triage)
    with pytest.raises(StoreFull):
        scene.ingest(full)
    assert (scene.left(), scene.rows()) == (25, [])
    assert scene.ingest() == IngestCounts(25, 25)


def test_a_kill_between_write_and_delete_leaves_one_row(scene: Scene) -> None:
    for _ in range(10):
        scene.send_message(scene.dead, scene.dead_one())
    scene.stand.server.faults.fail("DeleteMessageBatch", times=3)  # all tries of one call
    with pytest.raises(StoreUnavailable):
        DeadLetterIngest(scene.sqs, scene.triage, scene.routes).once(scene.source)
    assert (len(scene.rows()), scene.left()) == (10, 10)
    scene.stand.passes(HIDDEN_S + 1)
    assert scene.ingest() == IngestCounts(10, 0, 10)
    assert (len(scene.rows()), scene.left()) == (10, 0)
