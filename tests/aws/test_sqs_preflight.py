"""What a store on SQS finds out about its queues before a worker starts, and its doctor afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.aws.places import REGION, Stand, client

from redrive import App, Backoff, Idempotency, Retry
from redrive.errors import ConfigError, Refused
from redrive.stores.sqs.store import SqsStore
from redrive.worker.preflight import advice

FORTNIGHT = "1209600"


@pytest.fixture
def stand() -> Iterator[Stand]:
    with Stand() as stand:
        yield stand


@pytest.fixture
def sqs(stand: Stand) -> Any:
    return client("sqs", stand.url)


def made(sqs: Any, receives: int = 100, *, suffix: str = "", **changed: str) -> str:
    """The queue shop-crm with its dead-letter and poison queues, as a template would deploy it."""
    more = {"MessageRetentionPeriod": FORTNIGHT} | ({"FifoQueue": "true"} if suffix else {})
    dead = sqs.create_queue(QueueName=f"shop-crm-dlq{suffix}", Attributes=more)["QueueUrl"]
    sqs.create_queue(QueueName=f"shop-crm-poison{suffix}", Attributes=more)
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives})
    attributes = more | {"VisibilityTimeout": "300", "RedrivePolicy": policy} | changed
    return str(sqs.create_queue(QueueName=f"shop-crm{suffix}", Attributes=attributes)["QueueUrl"])


def app_on(stand: Stand, options: str = "", **task: Any) -> App:
    app = App(f"sqs://{REGION}/shop?endpoint={stand.url}{options}")

    @app.task(name="crm.push", queue="crm", **{"retry": Retry(max_attempts=5), **task})
    def push(n: int) -> None: ...

    return app


def starts(app: App) -> None:
    app.worker()
    app.store.close()


def refusal(app: App) -> str:
    with pytest.raises(Refused) as error:
        app.worker()
    app.store.close()
    return str(error.value)


def findings(app: App) -> list[str]:
    found = app.store.doctor()
    app.store.close()
    return found


def test_a_worker_starts_on_a_sound_queue_of_which_the_doctor_knows_nothing(stand: Stand, sqs: Any) -> None:
    made(sqs)
    app = app_on(stand)
    app.worker()
    assert findings(app) == []


def test_of_queues_that_redrive_made_the_doctor_of_their_app_knows_nothing(stand: Stand) -> None:
    app = app_on(stand, "&create=true")
    app.worker()
    assert advice(app, app.store) == [] and findings(app) == []


def test_a_queue_that_is_not_there_is_said_at_start(stand: Stand) -> None:
    app = app_on(stand)
    with pytest.raises(ConfigError, match="shop-crm"):
        app.worker()
    app.store.close()


def test_five_attempts_against_three_receives_are_refused_at_start(stand: Stand, sqs: Any) -> None:
    made(sqs, 3)
    told = refusal(app_on(stand))
    assert "maxReceiveCount is 3" in told and "5 attempts + 3 crashes" in told


def test_fifty_attempts_in_requeue_mode_start_against_three_receives(stand: Stand, sqs: Any) -> None:
    made(sqs, 3)
    starts(app_on(stand, "&mode=requeue", retry=Retry(max_attempts=50)))


def test_what_the_queue_would_delete_first_is_refused(stand: Stand, sqs: Any) -> None:
    made(sqs, MessageRetentionPeriod="3600")
    told = refusal(app_on(stand, retry=Retry(max_attempts=3, backoff=Backoff.fixed("2h"), max_retry_after="1s")))
    assert "keeps messages for 1h" in told and "may wait 2h" in told


def test_requeue_on_fifo_is_refused(stand: Stand, sqs: Any) -> None:
    made(sqs, suffix=".fifo")
    assert "mode=visibility" in refusal(app_on(stand, "&mode=requeue"))


def test_idempotency_without_cells_is_refused(stand: Stand, sqs: Any) -> None:
    made(sqs)
    assert "cells=" in refusal(app_on(stand, idempotency=Idempotency(key=str)))


def test_dead_letters_without_a_place_are_refused(stand: Stand, sqs: Any, tmp_path: Path) -> None:
    sqs.create_queue(QueueName="shop-crm", Attributes={"MessageRetentionPeriod": FORTNIGHT})
    assert "shop-crm-dlq does not exist" in refusal(app_on(stand))
    starts(app_on(stand, f"&triage=sqlite:///{tmp_path}/dead.db"))


def test_the_doctor_sees_the_dead_letter_queue_and_who_else_uses_it(stand: Stand, sqs: Any) -> None:
    url = made(sqs)
    policy = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]["RedrivePolicy"]
    sqs.create_queue(QueueName="other", Attributes={"RedrivePolicy": policy})
    dead = sqs.get_queue_url(QueueName="shop-crm-dlq")["QueueUrl"]
    sns = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage"}
    changed = {"MessageRetentionPeriod": "345600", "Policy": json.dumps({"Statement": [sns]})}
    sqs.set_queue_attributes(QueueUrl=dead, Attributes=changed)
    short, shared = findings(app_on(stand))
    assert "keeps messages for 4d, less than the 14d" in short
    assert "also takes those of other and SNS" in shared


def test_the_doctor_sends_and_receives_nothing(stand: Stand, sqs: Any) -> None:
    url = made(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    findings(app_on(stand))
    words = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"]}
    [message] = sqs.receive_message(QueueUrl=url, **words)["Messages"]
    assert (message["Body"], message["Attributes"]["ApproximateReceiveCount"]) == ("x", "1")


def test_a_missing_right_is_named(stand: Stand, sqs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made(sqs)
    app = app_on(stand)
    assert isinstance(app.store, SqsStore)
    call = app.store._sqs.call

    def denying(action: str, **parameters: Any) -> Any:
        if action == "DeleteMessageBatch":
            raise ConfigError("SQS DeleteMessageBatch shop-crm: AWS refuses it: not authorized")
        return call(action, **parameters)

    monkeypatch.setattr(app.store._sqs, "call", denying)
    [line] = findings(app)
    assert "may not DeleteMessage: redrive needs sqs:DeleteMessage on" in line


def test_the_doctor_of_an_app_looks_at_its_tasks(stand: Stand, sqs: Any) -> None:
    made(sqs, 3, VisibilityTimeout="30")
    app = app_on(stand)
    refused, timing = advice(app, app.store)
    assert "5 attempts + 3 crashes" in refused and "visibility timeout is 30 s" in timing
    app.store.close()


def test_ministack_is_looked_at_alike_and_left_as_it_was(ministack: Any) -> None:
    app = App(f"sqs://{REGION}/preflight?create=true&endpoint={ministack.url}")

    @app.task(name="t", queue="crm")
    def t() -> None: ...

    app.worker()
    assert isinstance(app.store, SqsStore)
    assert app.store.preflight([], advise=True) == [] and app.store.doctor() == []
    url = app.store.sqs_queues.of("crm").url
    assert "Messages" not in client("sqs", ministack.url).receive_message(QueueUrl=url, WaitTimeSeconds=1)
    app.store.close()
