"""Events go to a topic, and each subscribed queue gets what it asked for: on ministack, from publish to handler."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.aws.places import REGION, Ministack, client

from redrive import App, Draft, context
from redrive.aws.dead_letters.sources import ingest_of, source_of, sqs_of
from redrive.aws.sns.subscriptions import filter_policy
from redrive.aws.sns.topic import BYTES_MAX, Event, Topic
from redrive.codec import Routes
from redrive.errors import ConfigError, EncodeError, EnqueueError, PublishFailed, TooLarge
from redrive.ids import is_id
from redrive.message import Message
from redrive.stores.sqs.wire import read
from redrive.stores.sqs.wire.envelope import copy_id

ARN = f"arn:aws:sns:{REGION}:000000000000:orders"


@pytest.fixture(scope="module", autouse=True)
def credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield


@pytest.fixture
def app(ministack: Ministack) -> App:
    prefix = f"t{uuid.uuid4().hex[:8]}"
    return App(f"sqs://{REGION}/{prefix}?endpoint={ministack.url}&create=true&poll=1")


class Consumer:
    """Reads a queue of the app's as a worker of ours would."""

    def __init__(self, app: App, queue: str, ministack: Ministack) -> None:
        self.queue, self.sqs = queue, client("sqs", ministack.url)
        prefix = str(app.url).partition(f"{REGION}/")[2].partition("?")[0]
        self.url = self.sqs.get_queue_url(QueueName=f"{prefix}-{queue}")["QueueUrl"]

    def raw(self, wait_s: int = 1) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            answer = self.sqs.receive_message(
                QueueUrl=self.url, MaxNumberOfMessages=10, WaitTimeSeconds=0 if found else wait_s,
                MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"],
            )  # fmt: skip
            if not answer.get("Messages"):
                return found
            found += answer["Messages"]

    def messages(self, routes: Routes | None = None) -> list[Message]:
        return [read(raw, queue=self.queue, routes=routes or Routes())[0] for raw in self.raw()]


# -- from the topic to the queue


def test_each_queue_gets_its_own_copy_of_what_its_filter_lets_through(app: App, ministack: Ministack) -> None:
    topic = app.topic("orders")
    topic.subscribe("crm")
    topic.subscribe("mail", filter={"tenant": ["t1", {"prefix": "eu-"}], "total": [{"numeric": [">", 100]}]})
    topic.subscribe("gold", filter={"customer": {"level": ["gold"]}}, scope="data")
    small = topic.publish("order.placed", {"order": 1, "customer": {"level": "gold"}}, attributes={"total": 10})
    large = topic.publish("order.placed", {"order": 2}, attributes={"tenant": "eu-7", "total": 500, "tags": ["a", 1]})

    crm, mail, gold = (Consumer(app, queue, ministack).messages() for queue in ("crm", "mail", "gold"))

    assert {message.causation_id for message in crm} == {small, large}
    assert [message.causation_id for message in mail] == [large]
    assert [message.causation_id for message in gold] == [small]
    (copy,) = mail
    assert (copy.id, copy.correlation_id) == (copy_id(large, "mail"), large)
    assert (copy.task, copy.queue, copy.body, copy.content) == ("order.placed", "mail", b'{"order":2}', "raw")
    assert copy.headers == {"tenant": "eu-7", "total": "500", "tags": '["a",1]', "aws-sns-topic": topic.name}
    assert len({message.id for message in [*crm, *mail, *gold]}) == 4


def test_workers_of_several_queues_each_run_a_task_of_their_own(ministack: Ministack) -> None:
    app = App(f"sqs://{REGION}/t{uuid.uuid4().hex[:8]}?endpoint={ministack.url}&create=true&poll=0")
    ran: list[tuple[str, Any, str | None]] = []

    @app.task(name="crm.push", queue="crm")
    def push(order: int) -> None:
        ran.append(("crm", order, context().message.causation_id))

    @app.task(name="mail.send", queue="mail")
    def mail(event: dict[str, Any]) -> None:
        ran.append(("mail", event, context().message.causation_id))

    app.queue("crm", foreign=push)
    app.queue("mail", foreign=mail)
    topic = app.topic("orders")
    topic.subscribe("crm")
    topic.subscribe("mail")
    id = topic.publish("order.placed", {"order": 7})
    app.run_worker(burst=True)
    assert sorted(ran, key=lambda each: each[0]) == [("crm", 7, id), ("mail", {"order": 7}, id)]
    topic.close()
    app.store.close()


def test_a_queue_leads_events_to_a_task_of_its_own(app: App, ministack: Ministack) -> None:
    topic = app.topic("orders")
    topic.subscribe("crm")
    topic.publish("order.placed", {"order": 1})
    routes = Routes()
    routes.add("crm", "crm.push")
    assert [message.task for message in Consumer(app, "crm", ministack).messages(routes)] == ["crm.push"]


def test_a_tasks_draft_is_an_event_with_its_arguments(app: App, ministack: Ministack) -> None:
    @app.task(name="crm.push")
    def push(order: int) -> None: ...

    topic = app.topic("orders")
    topic.subscribe("crm")
    topic.publish(push.using(headers={"tenant": "t1"}, group="g").draft(7))
    (copy,) = Consumer(app, "crm", ministack).messages()
    assert (copy.task, copy.body, copy.content, copy.group) == ("crm.push", b'{"order":7}', "json", "g")
    assert copy.headers["tenant"] == "t1"


def test_a_subscription_without_raw_delivery_brings_the_same_message(app: App, ministack: Ministack) -> None:
    topic = app.topic("orders")
    arn = topic.subscribe("crm")
    topic.client.set_subscription_attributes(
        SubscriptionArn=arn, AttributeName="RawMessageDelivery", AttributeValue="false"
    )
    id = topic.publish("order.placed", {"order": 1}, attributes={"tenant": "t1"})
    (raw,) = Consumer(app, "crm", ministack).raw()
    assert json.loads(raw["Body"])["Type"] == "Notification"
    copy, _ = read(raw, queue="crm", routes=Routes())
    assert (copy.id, copy.body, copy.headers["tenant"]) == (copy_id(id, "crm"), b'{"order":1}', "t1")


def test_what_others_publish_is_unwrapped_and_routed(app: App, ministack: Ministack) -> None:
    topic = app.topic("orders")
    arn = topic.subscribe("crm", filter={"kind": ["order"]}, scope="body")
    topic.client.set_subscription_attributes(
        SubscriptionArn=arn, AttributeName="RawMessageDelivery", AttributeValue="false"
    )
    topic.client.publish(TopicArn=topic.arn, Message='{"kind": "order", "n": 1}', Subject="hello")
    topic.client.publish(TopicArn=topic.arn, Message='{"kind": "other"}')
    routes = Routes()
    routes.add("crm", lambda body, attributes: f"crm.{body['kind']}")
    (copy,) = Consumer(app, "crm", ministack).messages(routes)
    assert (copy.task, copy.body) == ("crm.order", b'{"kind": "order", "n": 1}')
    assert copy.headers["aws-sns-subject"] == "hello"


def test_a_fifo_topic_keeps_the_order_of_a_group_and_recognises_an_id(app: App, ministack: Ministack) -> None:
    topic = app.topic("orders.fifo")
    topic.subscribe("crm.fifo")
    events = [Event("step", n, group="g") for n in range(12)]
    ids = topic.publish_many(events)
    topic.publish(Event("step", 0, group="g", id=ids[0]))
    copies = Consumer(app, "crm.fifo", ministack).messages()
    assert [copy.body for copy in copies] == [str(n).encode() for n in range(len(copies))]
    assert len(copies) >= 10
    assert {copy.group for copy in copies} == {"g"}


def test_a_subscription_has_a_dead_letter_queue_and_the_permissions_it_needs(app: App, ministack: Ministack) -> None:
    topic = app.topic("orders")
    arn = topic.subscribe("crm", filter={"a": ["b"]})
    consumer = Consumer(app, "crm", ministack)
    prefix = consumer.url.rpartition("/")[2].removesuffix("-crm")
    own = Consumer(app, f"crm-from-{prefix}-orders-dlq", ministack)
    attributes = topic.client.get_subscription_attributes(SubscriptionArn=arn)["Attributes"]
    assert attributes["RawMessageDelivery"] == "true"
    assert json.loads(attributes["RedrivePolicy"])["deadLetterTargetArn"].endswith(f":{own.url.rpartition('/')[2]}")
    for queue in (consumer, own):
        (statement,) = _policy(queue)["Statement"]
        assert statement["Action"] == "sqs:SendMessage"
        assert statement["Condition"] == {"ArnEquals": {"aws:SourceArn": topic.arn}}
        assert statement["Resource"].endswith(f":{queue.url.rpartition('/')[2]}")


def test_what_sns_could_not_deliver_is_ingested_and_redriven(ministack: Ministack, tmp_path: Path) -> None:
    prefix, triage = f"t{uuid.uuid4().hex[:8]}", f"sqlite:///{tmp_path / 'triage.db'}"
    app = App(f"sqs://{REGION}/{prefix}?endpoint={ministack.url}&create=true&poll=0&triage={triage}")
    ran: list[tuple[int, str | None]] = []

    @app.task(name="crm.push", queue="crm")
    def push(order: int) -> None:
        ran.append((order, context().message.causation_id))

    app.queue("crm", foreign=push)
    topic = app.topic("orders")
    topic.subscribe("crm")
    id = topic.publish("order.placed", {"order": 7})
    consumer, undelivered = Consumer(app, "crm", ministack), f"{prefix}-crm-from-{prefix}-orders-dlq"
    (raw,) = consumer.raw()
    consumer.sqs.delete_message(QueueUrl=consumer.url, ReceiptHandle=raw["ReceiptHandle"])
    url = consumer.sqs.get_queue_url(QueueName=undelivered)["QueueUrl"]  # where SNS puts it, in the same form
    consumer.sqs.send_message(QueueUrl=url, MessageBody=raw["Body"], MessageAttributes=raw["MessageAttributes"])

    store = sqs_of(app.store)
    assert ingest_of(store).drain(source_of(store, undelivered, "crm")).written == 1
    (dead,) = app.dlq
    assert dead.causation_id == id
    app.dlq.retry([dead.id], reason="SNS may send again")
    app.run_worker(burst=True)
    assert ran == [(7, id)]
    topic.close()
    app.store.close()


def test_to_subscribe_again_brings_the_subscription_to_what_is_asked(app: App, ministack: Ministack) -> None:
    topic = app.topic("orders")
    consumer_arn = topic.subscribe("crm", filter={"a": ["b"]})
    consumer = Consumer(app, "crm", ministack)
    policy = _policy(consumer)
    policy["Statement"].append({"Sid": "theirs", "Effect": "Deny", "Principal": "*", "Action": "sqs:*"})
    consumer.sqs.set_queue_attributes(QueueUrl=consumer.url, Attributes={"Policy": json.dumps(policy)})
    assert topic.subscribe("crm", filter={"a": ["c"]}) == consumer_arn
    attributes = topic.client.get_subscription_attributes(SubscriptionArn=consumer_arn)["Attributes"]
    assert json.loads(attributes["FilterPolicy"]) == {"a": ["c"]}
    assert sorted(each["Sid"] for each in _policy(consumer)["Statement"]) == sorted(
        each["Sid"] for each in policy["Statement"]
    )
    topic.subscribe("crm")
    topic.publish("any")
    assert len(consumer.messages()) == 1


def _policy(consumer: Consumer) -> dict[str, Any]:
    attributes = consumer.sqs.get_queue_attributes(QueueUrl=consumer.url, AttributeNames=["Policy"])["Attributes"]
    policy: dict[str, Any] = json.loads(attributes["Policy"])
    return policy


# -- batches and failures: SNS's answers are played, as no emulator gives them


class Answers:
    """Stands in for the network below a real boto3 client."""

    def __init__(self, topic: Topic, *failures: dict[int, tuple[str, bool]]) -> None:
        self.failures, self.calls = list(failures), list[list[dict[str, Any]]]()
        assert topic.client is topic.client
        topic.client.publish_batch = self.publish_batch

    def publish_batch(self, *, TopicArn: str, PublishBatchRequestEntries: list[dict[str, Any]]) -> dict[str, Any]:
        self.calls.append(PublishBatchRequestEntries)
        failing = self.failures.pop(0) if self.failures else {}
        return {
            "Failed": [
                {"Id": each["Id"], "Code": code, "Message": "said", "SenderFault": sender}
                for at, each in enumerate(PublishBatchRequestEntries)
                if at in failing
                for code, sender in [failing[at]]
            ]
        }


def test_events_go_out_in_tens() -> None:
    answers = Answers(topic := Topic(ARN))
    ids = topic.publish_many([Event("e", n) for n in range(23)])
    assert [len(call) for call in answers.calls] == [10, 10, 3]
    assert all(map(is_id, ids))
    assert len(set(ids)) == 23


def test_a_batch_stays_below_the_bytes_that_a_topic_takes() -> None:
    answers = Answers(topic := Topic(ARN))
    topic.publish_many([Event("e", "x" * 100_000) for _ in range(5)])
    assert [len(call) for call in answers.calls] == [2, 2, 1]
    with pytest.raises(TooLarge, match="MaximumMessageSize"):
        topic.publish("e", "x" * BYTES_MAX)
    Answers(topic := Topic(ARN, bytes_max=1024 * 1024))
    assert topic.publish("e", "x" * BYTES_MAX)


def test_what_failed_on_the_side_of_aws_is_tried_again_by_itself() -> None:
    answers = Answers(topic := Topic(ARN), {1: ("InternalError", False)}, {0: ("InternalError", False)})
    topic.publish_many([Event("e", n) for n in range(3)])
    assert [[each["Id"] for each in call] for call in answers.calls] == [["0", "1", "2"], ["1"], ["1"]]


def test_what_was_refused_is_named_and_the_others_are_published() -> None:
    answers = Answers(topic := Topic(ARN), {2: ("InvalidParameter", True)})
    with pytest.raises(PublishFailed, match="1 of 12 events were not published to orders: InvalidParameter: said") as e:
        topic.publish_many([Event("e", n) for n in range(12)])
    assert e.value.failed == {2: "InvalidParameter: said"}
    assert [len(call) for call in answers.calls] == [10, 2]


def test_on_a_fifo_topic_no_batch_goes_out_after_one_that_failed() -> None:
    answers = Answers(topic := Topic(f"{ARN}.fifo"), {2: ("InvalidParameter", True)})
    with pytest.raises(PublishFailed) as e:
        topic.publish_many([Event("e", n, group="g") for n in range(12)])
    assert e.value.failed == {2: "InvalidParameter: said", 10: "one before it failed", 11: "one before it failed"}
    assert len(answers.calls) == 1


def test_an_event_carries_what_it_comes_from(ministack: Ministack) -> None:
    app = App("memory://")
    answers = Answers(topic := app.topic(ARN))

    @app.task(name="place")
    def place() -> str:
        topic.publish("order.placed", {"order": 1})
        return context().message_id

    ref = place.enqueue()
    app.run_worker(burst=True)
    ((entry,),) = answers.calls
    assert json.loads(entry["Message"])["correlationid"] == ref.id
    assert json.loads(entry["Message"])["rdproducer"] == app.producer


def test_in_an_event_loop_a_thread_publishes() -> None:
    answers = Answers(topic := Topic(ARN))

    async def publish() -> None:
        with pytest.raises(RuntimeError, match="apublish"):
            topic.publish("e")
        assert is_id(await topic.apublish("e", 1, attributes={"a": "b"}))
        assert len(await topic.apublish_many([Event("e"), Event("f")])) == 2

    asyncio.run(publish())
    assert len(answers.calls) == 2


@pytest.mark.parametrize(
    ("event", "error", "why"),
    [
        (Event(""), EnqueueError, "needs a type"),
        (Event("e", object()), EncodeError, "cannot be written as JSON"),
        (Event("e", id="1"), EnqueueError, "not a UUIDv7"),
        (Event("e", attributes={f"a{n}": "x" for n in range(10)}), EnqueueError, "at most 9"),
        (Event("e", attributes={"type": "x"}), EnqueueError, "is its type"),
        (Event("e", attributes={"a b": "x"}), EnqueueError, "a name has letters"),
        (Event("e", attributes={"a": ""}), EnqueueError, "text that is not empty"),
        (Event("e", group="\0"), EnqueueError, "NUL"),
        (Draft(task="e", delay_ms=1), EnqueueError, "no delay and no unique key"),
        (Draft(task="e", key="k"), EnqueueError, "no delay and no unique key"),
    ],
)
def test_what_no_topic_takes_is_refused_before_anything_is_published(
    event: Event | Draft, error: type[Exception], why: str
) -> None:
    answers = Answers(topic := Topic(ARN))
    with pytest.raises(error, match=why):
        topic.publish_many([Event("fine"), event])
    assert answers.calls == []


def test_a_topic_is_named_by_its_arn_or_after_the_apps_prefix() -> None:
    with pytest.raises(ConfigError, match="expected an ARN"):
        Topic("orders")
    with pytest.raises(ConfigError, match="give its ARN"):
        App("memory://").topic("orders")
    with pytest.raises(ConfigError, match="has no queues"):
        App("memory://").topic(ARN).subscribe("crm")
    with pytest.raises(ConfigError, match="takes messages of"):
        Topic(ARN, bytes_max=2**21)
    with pytest.raises(ConfigError, match="takes all from the event"):
        Topic(ARN).publish(Event("e"), 1)


def test_a_topic_that_is_not_there_is_named(ministack: Ministack) -> None:
    topic = App(f"sqs://{REGION}/none?endpoint={ministack.url}").topic("missing")
    assert topic.name == "none-missing"
    assert topic.arn == f"arn:aws:sns:{REGION}:000000000000:none-missing"
    with pytest.raises(ConfigError, match="none-missing"):
        topic.publish("e")


# -- filters


@pytest.mark.parametrize(
    ("filter", "scope", "why"),
    [
        ({}, "attributes", "expected a mapping"),
        ({f"k{n}": ["v"] for n in range(6)}, "attributes", "has 6 keys (k0, k1, k2, k3, k4, k5); SNS takes at most 5"),
        (
            {"a": list("0123456789abcdef"), "b": list("0123456789")},
            "attributes",
            "160 combinations (16 of a × 10",
        ),
        ({"a": "b"}, "attributes", "expected a list of values"),
        ({"a": []}, "attributes", "expected a list of values"),
        ({"a": {"b": ["c"]}}, "attributes", "attributes have no fields"),
        ({"a": [None]}, "attributes", "no attribute is null"),
        ({"a": [{"pre": "x"}]}, "attributes", "is no matcher"),
        ({"a": [{"prefix": "x", "suffix": "y"}]}, "attributes", "by itself"),
        ({"a": [{"prefix": 1}]}, "attributes", "expected text"),
        ({"a": [{"numeric": [">"]}]}, "attributes", "expected such as"),
        ({"a": [{"numeric": ["=", "1"]}]}, "attributes", "is no number"),
        ({"a": [2_000_000_000]}, "attributes", "is no number from"),
        ({"a": [{"exists": 1}]}, "attributes", "expected true or false"),
        ({"$or": [{"a": ["b"]}]}, "attributes", "two filters or more"),
        ({"$or": [1, 2]}, "attributes", "filter '$or': 1 is no mapping"),
        ({"a": [["b"]]}, "body", "is no text, number"),
        ({"a": ["b"]}, "everything", "expected one of 'attributes', 'data', 'body'"),
        ({"a": {"b": {"c": [{"pre": "x"}]}}}, "data", "filter 'a.b.c'"),
    ],
)
def test_a_filter_that_sns_would_refuse_is_refused_with_the_reason(filter: Any, scope: str, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        filter_policy(filter, scope)
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("filter", "scope", "written"),
    [
        ({"a": ["b", 1, True]}, "attributes", {"a": ["b", 1, True]}),
        ({"a": [{"anything-but": ["x"]}, {"exists": False}]}, "attributes", None),
        ({"a": [{"numeric": [">=", 0, "<", 10.5]}], "b": [{"cidr": "10.0.0.0/8"}]}, "attributes", None),
        ({"$or": [{"a": ["b"]}, {"c": [{"suffix": "d"}]}]}, "attributes", None),
        ({"a": {"b": [None, {"wildcard": "x*"}]}}, "body", None),
        ({"a": {"b": ["c"]}}, "data", {"data": {"a": {"b": ["c"]}}}),
    ],
)
def test_a_filter_is_written_as_sns_reads_it(filter: Any, scope: str, written: Any) -> None:
    assert json.loads(filter_policy(filter, scope)) == (written or filter)
