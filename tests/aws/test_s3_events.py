"""Events of S3 reach a handler by its arguments' names, from a bucket's notifications to the run: on ministack."""

from __future__ import annotations

import uuid

import pytest
from tests.support.aws.places import REGION, Ministack, client

from redrive import App
from redrive.message import Counts


def test_a_handler_gets_the_object_that_was_put_into_a_bucket(
    ministack: Ministack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    bucket, prefix = f"b{uuid.uuid4().hex}", f"t{uuid.uuid4().hex[:8]}"
    app = App(f"sqs://{REGION}/{prefix}?endpoint={ministack.url}&create=true&poll=1")
    seen: list[tuple[str, str, int]] = []

    @app.task(name="index", queue="uploads")
    def index(bucket: str, key: str, size: int) -> None:
        seen.append((bucket, key, size))

    app.queue("uploads", foreign=index)
    app.run_worker(burst=True)  # makes the queue
    sqs, s3 = client("sqs", ministack.url), client("s3", ministack.url)
    url = sqs.get_queue_url(QueueName=f"{prefix}-uploads")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_bucket_notification_configuration(  # S3 sends its test event now
        Bucket=bucket,
        NotificationConfiguration={"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]},
    )
    s3.put_object(Bucket=bucket, Key="in/a b é.csv", Body=b"12345")

    app.run_worker(burst=True)

    assert seen == [(bucket, "in/a b é.csv", 5)]
    assert app.counts("uploads") == Counts()
    app.store.close()
