"""Consumers of SQS beside ours, each in a process of its own: the naive one of the tutorial, a plain boto3 loop in
batches of ten, and libraries at the settings their documentation gives for throughput.

A message is `{"order": i}`. With `failing` every fifth fails once; each consumer retries it by its own means.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from redrive import App, Backoff, Context, Retry

from .tasks import FAIL_EVERY, Boom, Records

REGION = "eu-central-1"
KEYS = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
NAIVE = Path(__file__).parent.parent / "examples" / "sqs_consumer"


def ours_at(endpoint: str, queue: str, mode: str) -> str:
    """The URL of our store, with no cells: the tasks share nothing."""
    return f"sqs://{REGION}/{queue}?mode={mode}&endpoint={endpoint}&create=true"


def our_app(url: str, add: Callable[[int], None] = lambda index: None) -> App:
    """Tasks `noop`, and `failing`, which raises once for every fifth message."""
    app = App(url)

    @app.task(name="noop")
    async def noop(i: int) -> None:
        add(i)

    @app.task(name="failing", ctx=True, retry=Retry(max_attempts=2, backoff=Backoff.fixed(0)))
    async def failing(ctx: Context, i: int) -> None:
        if i % FAIL_EVERY == 0 and ctx.attempt == 1:
            add(-1 - i)
            raise Boom(f"message {i} fails")
        add(i)

    return app


def ours(url: str, concurrency: str, records: str) -> None:
    """A worker of ours, until SIGTERM."""
    our_app(url, Records(Path(records)).add).run_worker(queues={"default": int(concurrency)})


def client(endpoint: str) -> Any:
    """As boto3 makes it when told nothing."""
    import boto3

    return boto3.client("sqs", endpoint_url=endpoint, region_name=REGION, **KEYS)


def send_ten(endpoint: str, queue: str, indexes: Sequence[int]) -> None:
    """Fill a queue in batches of ten."""
    sqs = client(endpoint)
    url = sqs.create_queue(QueueName=queue)["QueueUrl"]
    for at in range(0, len(indexes), 10):
        entries = [{"Id": str(i), "MessageBody": json.dumps({"order": i})} for i in indexes[at : at + 10]]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    sqs.close()


def send_one_by_one(endpoint: str, queue: str, indexes: Sequence[int]) -> None:
    """As the naive consumer's producer does."""
    sqs, send = client(endpoint), _naive().send
    url = sqs.create_queue(QueueName=queue)["QueueUrl"]
    for i in indexes:
        send(sqs, url, {"order": i})
    sqs.close()


def send_jobs(endpoint: str, queue: str, indexes: Sequence[int]) -> None:
    """Fill a queue for sqs-workers, with its own batches."""
    client(endpoint).create_queue(QueueName=queue)
    env = _workers_env(endpoint)
    jobs = env.queue(queue)
    with jobs.add_batch():
        for i in indexes:
            jobs.add_job("noop", order=i)


def naive(endpoint: str, queue: str, records: str, failing: str = "") -> None:
    """The tutorial's own code."""
    sqs = client(endpoint)
    _naive().consume(sqs, _url(sqs, queue), _handler(records, failing), base_s=0, quiet_s=3600.0)


def plain(endpoint: str, queue: str, records: str, failing: str = "") -> None:
    """The least that boto3 can do in batches: what fails is left to its visibility."""
    sqs, handle = client(endpoint), _handler(records, failing)
    url = _url(sqs, queue)
    while True:
        done = []
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=20)
        for n, message in enumerate(answer.get("Messages", ())):
            handle(json.loads(message["Body"])["order"])
            done.append({"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]})
        if done:
            sqs.delete_message_batch(QueueUrl=url, Entries=done)


def sqs_workers(endpoint: str, queue: str, records: str, failing: str = "") -> None:
    """Receives and deletes in tens; what fails comes back at once."""
    handle = _handler(records, failing)
    jobs = _workers_env(endpoint).queue(queue)

    @jobs.processor("noop")  # type: ignore[untyped-decorator]
    def noop(order: int) -> None:
        handle(order)

    jobs.process_queue(wait_second=20)


def aws_sqs_consumer(endpoint: str, queue: str, records: str, failing: str = "") -> None:
    """Its batch handler, ten at a time: all of a batch or none of it."""
    from aws_sqs_consumer import Consumer

    handle = _handler(records, failing)

    class Batches(Consumer):  # type: ignore[misc]
        def handle_message_batch(self, messages: Sequence[Any]) -> None:
            for message in messages:
                handle(json.loads(message.Body)["order"])

    sqs = client(endpoint)
    Batches(_url(sqs, queue), region=REGION, sqs_client=sqs, batch_size=10, wait_time_seconds=20).start()


def _handler(records: str, failing: str) -> Callable[[int], None]:
    add, failed = Records(Path(records)).add, set[int]()

    def handle(i: int) -> None:
        if failing and i % FAIL_EVERY == 0 and i not in failed:
            failed.add(i)
            add(-1 - i)
            raise Boom(f"message {i} fails")
        add(i)

    return handle


def _url(sqs: Any, queue: str) -> str:
    return str(sqs.get_queue_url(QueueName=queue)["QueueUrl"])


def _naive() -> Any:
    """The module of the examples, which is no package."""
    if str(NAIVE) not in sys.path:
        sys.path.insert(0, str(NAIVE))
    import naive

    return naive


def _workers_env(endpoint: str) -> Any:
    import boto3
    from sqs_workers import IMMEDIATE_RETURN, SQSEnv

    session = boto3.Session(region_name=REGION, **KEYS)
    made = {"sqs_client": client(endpoint), "sqs_resource": session.resource("sqs", endpoint_url=endpoint)}
    return SQSEnv(session=session, codec="json", backoff_policy=IMMEDIATE_RETURN, **made)


ROLES: dict[str, Callable[..., None]] = {f.__name__: f for f in (ours, naive, plain, sqs_workers, aws_sqs_consumer)}
