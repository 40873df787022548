"""Least privilege: what the template grants each role is what its program was seen to call, no more and no less."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from tests.support.aws.places import REGION, Stand, client
from tests.support.aws.recorder import PREFIX, QUEUE, Used, granted, recorded
from tests.support.turns import in_turn

import redrive
from redrive import App, Backoff, Quarantine, Reject, Retry
from redrive.aws import lambda_handlers
from redrive.aws.cloudformation.access import EVENT_SOURCE
from redrive.aws.dead_letters.move_tasks import DeadQueue
from redrive.aws.dead_letters.sources import ingest_of, sources, sqs_of
from redrive.aws.sns.topic import Topic
from redrive.aws.stepfunctions import handlers
from redrive.testing.sqs import EventSource, SqsServer

fifo_in_turn = pytest.mark.parametrize(
    "fifo", [pytest.param(False, marks=in_turn(0, of=2)), pytest.param(True, marks=in_turn(1, of=2))]
)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):  # both, as in a Lambda
        monkeypatch.setenv(name, REGION)
    for name, value in {"AWS_ACCESS_KEY_ID": "t", "AWS_SECRET_ACCESS_KEY": "t"}.items():
        monkeypatch.setenv(name, value)
    with Stand() as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", found.url)
        yield found


POISON = {"MessageGroupId": "poison"}  # its own: what shares a group goes together


def make(stand: Stand, *, fifo: bool) -> dict[str, str]:
    """The queues of one redrive queue, by suffix."""
    sqs, end = client("sqs", stand.url), ".fifo" if fifo else ""
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"} if fifo else {}
    return {
        suffix: sqs.create_queue(QueueName=f"{PREFIX}-{QUEUE}{suffix}{end}", Attributes=attributes)["QueueUrl"]
        for suffix in ("", "-dlq", "-poison")
    } | {"-work": sqs.create_queue(QueueName=f"{PREFIX}-{QUEUE}-work")["QueueUrl"]}


def environment(monkeypatch: pytest.MonkeyPatch, urls: dict[str, str]) -> None:
    names = {"": "QUEUE", "-dlq": "DLQ", "-poison": "POISON", "-work": "WORK_QUEUE"}
    for suffix, name in names.items():
        monkeypatch.setenv(f"REDRIVE_{name}_URL", urls[suffix])


def kill(sqs: Any, urls: dict[str, str], count: int) -> None:
    """So many dead messages, and one that was redriven often enough."""
    group = {"MessageGroupId": "g"} if urls["-dlq"].endswith(".fifo") else {}
    for at in range(0, count, 10):
        entries = [{"Id": str(n), "MessageBody": str(n), **group} for n in range(at, min(at + 10, count))]
        sqs.send_message_batch(QueueUrl=urls["-dlq"], Entries=entries)
    often = {"x-redrive-attempt": {"DataType": "Number", "StringValue": "5"}}
    sqs.send_message(QueueUrl=urls["-dlq"], MessageBody="poison", MessageAttributes=often, **group and POISON)


def context(seconds: float = 60) -> Any:
    return SimpleNamespace(get_remaining_time_in_millis=lambda: int(seconds * 1000))


@fifo_in_turn
def test_the_redriver(stand: Stand, ministack: Any, monkeypatch: pytest.MonkeyPatch, fifo: bool) -> None:
    urls, sqs = make(stand, fifo=fifo), client("sqs", stand.url)  # this client is not looked at
    environment(monkeypatch, urls)
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", ministack.url)
    monkeypatch.setenv("REDRIVE_TABLE", make_table(ministack))
    monkeypatch.setenv("REDRIVE_DEPENDENCY", "crm")
    monkeypatch.setenv("REDRIVE_RATE", "200/s")  # on a clock that stands still FIFO queues get a second's worth
    monkeypatch.setattr(lambda_handlers, "_now_ms", lambda: int(stand.now_s() * 1000))
    lambda_handlers._call.cache_clear()
    with recorded(fifo=fifo) as used:
        kill(sqs, urls, 120)
        told = [lambda_handlers.redriver({}, context())]
        if fifo:  # they waited where they died
            stand.passes(1000)
            told.append(lambda_handlers.redriver({}, context()))
        kill(sqs, urls, 1)
        lambda_handlers.redriver({}, context(0))  # has no time, and calls another
    lambda_handlers._call.cache_clear()
    assert [sum(one[what] for one in told) for what in ("redriven", "isolated", "failed")] == [120, 1, 0]
    by_lambda = {("work", action) for action in EVENT_SOURCE}  # to poll the work queue for it
    assert used | by_lambda == granted("OrdersRedriverRole", fifo=fifo)


def make_table(ministack: Any) -> str:
    name = f"cells-{uuid4().hex}"
    client("dynamodb", ministack.url).create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    return name


@pytest.mark.parametrize(
    "fifo, approval",
    [pytest.param(False, False, marks=in_turn(0, of=2)), pytest.param(True, True, marks=in_turn(1, of=2))],
)
def test_the_states_of_the_machine(
    stand: Stand, ministack: Any, monkeypatch: pytest.MonkeyPatch, fifo: bool, approval: bool
) -> None:
    urls, sqs = make(stand, fifo=fifo), client("sqs", stand.url)
    sqs.set_queue_attributes(QueueUrl=urls[""], Attributes={"MaximumMessageSize": "1024"})
    environment(monkeypatch, urls)
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", ministack.url)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SFN", ministack.url)
    monkeypatch.setenv("REDRIVE_TABLE", make_table(ministack))
    monkeypatch.setenv("REDRIVE_APPROVAL_S", "60" if approval else "0")
    kill(sqs, urls, 3)
    group = {"MessageGroupId": "large"} if fifo else {}
    sqs.send_message(QueueUrl=urls["-dlq"], MessageBody="x" * 2000, **group)  # its queue refuses it: it is poison
    used: dict[str, Used] = defaultdict(set)

    def call(name: str, event: Any) -> Any:
        forget()
        with recorded(fifo=fifo) as seen:
            answer = getattr(handlers, name)(event, None)
        used[name] |= seen
        return answer

    state = call("check_breaker", {"execution": "e"})
    if approval:
        assert call("approve", {"token": "t", "actor": "Ada", "reason": "fixed"})["accepted"] is False
    state = call("fetch", {"state": state})
    state["results"] = [call(batch["step"], batch) for batch in state["batches"]]
    state = call("check_breaker", {"state": state})
    assert (state["redriven"], state["isolated"], state["failed"]) == (3, 2, 0)
    call("fetch", {"state": state})  # nothing is left
    forget()
    names = ("check_breaker", "fetch", "redrive", "isolate", *(("approve",) if approval else ()))
    wanted = {name: granted(role_of(name), fifo=fifo, approval=approval) for name in names}
    assert dict(used) == wanted


def role_of(handler: str) -> str:
    return f"OrdersMachine{''.join(word.capitalize() for word in handler.split('_'))}Role"


def forget() -> None:
    """The handlers make their clients anew."""
    handlers._client.cache_clear()
    handlers._tasks.cache_clear()


# -- programs that run on the store


@pytest.fixture
def running(ministack: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The stand-in on the wall clock, as workers wait by it; cells and topics on ministack."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, REGION)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "t")
    for name in ("DYNAMODB", "SNS", "STS"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{name}", ministack.url)
    with SqsServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", server.url)
        yield SimpleNamespace(url=server.url, sqs=client("sqs", server.url))


def with_policy(running: SimpleNamespace, *, fifo: bool) -> dict[str, str]:
    """The queues, with the redrive policy of the template."""
    urls = make(running, fifo=fifo)
    told = running.sqs.get_queue_attributes(QueueUrl=urls["-dlq"], AttributeNames=["QueueArn"])
    policy = {"deadLetterTargetArn": told["Attributes"]["QueueArn"], "maxReceiveCount": "100"}
    running.sqs.set_queue_attributes(QueueUrl=urls[""], Attributes={"RedrivePolicy": json.dumps(policy)})
    return urls


def app_with_task(url: str) -> tuple[App, Any]:
    app = App(url)
    failed: list[str] = []

    @app.task(name="work", queue=QUEUE, retry=Retry(max_attempts=3, backoff=Backoff.fixed(0)))
    def work(what: str) -> None:
        match what:
            case "flaky" if not failed:
                failed.append(what)
                raise ConnectionError("not now")
            case "dead":
                raise Reject("never")
            case "poison":
                raise Quarantine("poison")
            case "slow":
                time.sleep(1.5)  # longer than a lease: it is renewed
            case "follow":
                redrive.context().enqueue(work, "ok")

    return app, work


@fifo_in_turn
def test_producers_and_workers(running: SimpleNamespace, ministack: Any, fifo: bool) -> None:
    urls = with_policy(running, fifo=fifo)
    url = f"sqs://{REGION}/{PREFIX}?poll=1&cells=dynamodb://{make_table(ministack)}"
    arn = client("sns", ministack.url).create_topic(Name=f"{PREFIX}-{uuid4().hex}")["TopicArn"]
    with recorded(fifo=fifo) as used:
        app, work = app_with_task(url)
        for what in ("ok", "flaky", "dead", "poison", "slow", "follow"):
            work.enqueue(what)
        topic = Topic(arn)
        topic.publish("order.placed", {"n": 1}, attributes={"queue": QUEUE})
        topic.close()
        app.store.close()
    assert used == granted("ProducerAccess", fifo=fifo)
    with recorded(fifo=fifo) as used:
        app, _ = app_with_task(url)
        app.run_worker(burst=True, lease="1s")
        app.store.close()
    counts = [
        running.sqs.get_queue_attributes(QueueUrl=urls[at], AttributeNames=["ApproximateNumberOfMessages"])
        for at in ("", "-dlq", "-poison")
    ]
    assert [told["Attributes"]["ApproximateNumberOfMessages"] for told in counts] == ["0", "1", "1"]
    assert used == granted("WorkerAccess", fifo=fifo)


@fifo_in_turn
def test_a_function_that_works_a_queue(running: SimpleNamespace, ministack: Any, fifo: bool) -> None:
    urls = with_policy(running, fifo=fifo)
    url = f"sqs://{REGION}/{PREFIX}?poll=0&cells=dynamodb://{make_table(ministack)}"
    app, work = app_with_task(url)
    for what in ("ok", "flaky", "dead", "poison", "follow"):
        work.enqueue(what)
    app.store.close()
    source = EventSource(running.sqs, urls[""], visibility=2)
    source.receive()  # a function that dies: they come again as suspects
    time.sleep(2.1)
    with recorded(fifo=fifo) as used:
        app, _ = app_with_task(url)
        handler = app.lambda_handler(metrics=False)
        while app.counts(QUEUE).leased or app.counts(QUEUE).ready:
            source.deliver(handler, seconds=20)
        handler.close()
        app.store.close()
    by_lambda = {("queue", action) for action in EVENT_SOURCE}  # to poll the queue for it
    assert used | by_lambda == granted("OrdersConsumerRole", fifo=fifo)


@pytest.mark.parametrize("fifo", [False, True])
def test_triage(running: SimpleNamespace, tmp_path: Path, fifo: bool) -> None:
    urls = with_policy(running, fifo=fifo)
    kill(running.sqs, urls, 2)
    group = {"MessageGroupId": "g"} if fifo else {}
    running.sqs.send_message(QueueUrl=urls["-poison"], MessageBody="p", **group)
    with recorded(fifo=fifo) as used:
        app, _ = app_with_task(f"sqs://{REGION}/{PREFIX}?poll=1&triage=sqlite:///{tmp_path}/dead.db")
        store = sqs_of(app.store)
        work = ingest_of(store)
        drained = [work.once(source, 0) for source in sources(store, [QUEUE])]
        assert sum(one.written for one in drained) == 4
        app.dlq.retry(all=True, reason="fixed")
        store.outbox.pump(10)
        kill(running.sqs, urls, 20)
        running.sqs.send_message(QueueUrl=urls["-poison"], MessageBody="q", **group)
        for source in sources(store, [QUEUE]):
            work.once(source, 0, wanted=lambda: False)  # ended meanwhile: what was received is shown again
        dead = DeadQueue(store, QUEUE)
        dead.begin(1)
        dead.cancel()
        app.store.close()
    assert used == granted("TriageAccess", fifo=fifo)
