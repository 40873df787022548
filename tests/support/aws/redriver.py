"""The re-driver and its queues, deployed on the stand-in."""

from __future__ import annotations

import json
from functools import cache
from itertools import count
from typing import Any

from tests.support.aws.places import REGION, Stand

from redrive.aws.lambda_handlers import redrive
from redrive.aws.redriver.run import Continuation
from redrive.aws.redriver.settings import RedriverSettings
from redrive.aws.redriver.transfer import SqsCall, calls
from redrive.awsapi.client import client
from redrive.flow.auto_redrive import AutoRedrive
from redrive.stores.memory.store import MemoryStore

ALARM = {"Records": [{"EventSource": "aws:sns", "Sns": {"Message": json.dumps({"NewStateValue": "ALARM"})}}]}


WORK = {"Records": [{"eventSource": "aws:sqs", "body": '{"redrive": "go on"}'}]}


DEFAULT = AutoRedrive()


NUMBERS = count(1)


@cache
def client_of(url: str) -> SqsCall:
    """Making a client of boto3 takes longer than all the calls of a test."""
    return calls(client("sqs", region=REGION, endpoint=url))


class Deployment:
    """Queues as the template makes them, and a Lambda service that calls the re-driver for each work message."""

    def __init__(self, stand: Stand, *, fifo: bool = False, auto: AutoRedrive = DEFAULT, **more: Any) -> None:
        self.stand, self.sqs_call = stand, client_of(stand.url)
        name, end = f"p{next(NUMBERS)}", ".fifo" if fifo else ""
        kind = {"FifoQueue": "true"} if fifo else {}
        self.poison, self.dead = self._made(f"{name}-poison{end}", **kind), self._made(f"{name}-dlq{end}", **kind)
        arn = self.sqs_call("GetQueueAttributes", QueueUrl=self.dead, AttributeNames=["QueueArn"])
        policy = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": 1}
        self.main = self._made(f"{name}{end}", RedrivePolicy=json.dumps(policy), VisibilityTimeout="5", **kind)
        self.work = self._made(f"{name}-work", VisibilityTimeout="900")
        self.settings = RedriverSettings(queue=self.main, dead=self.dead, poison=self.poison, auto=auto, **more)
        self.work_on_it = Continuation(self.work)
        self.cells = MemoryStore(stand.clock).cells
        self.calls = 0

    def _made(self, name: str, **attributes: str) -> str:
        return str(self.sqs_call("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"])

    def send(self, url: str, *entries: dict[str, Any]) -> None:
        for at in range(0, len(entries), 10):
            batch = [{"Id": str(n), **entry} for n, entry in enumerate(entries[at : at + 10])]
            assert not self.sqs_call("SendMessageBatch", QueueUrl=url, Entries=batch).get("Failed")

    def counts(self, url: str) -> dict[str, int]:
        told = self.sqs_call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
        return {name: int(told[f"ApproximateNumberOfMessages{name}"]) for name in ("", "NotVisible", "Delayed")}

    def total(self, url: str) -> int:
        return sum(self.counts(url).values())

    def take(self, url: str, *, delete: bool = True) -> list[dict[str, Any]]:
        """All that is visible there."""
        taken: list[dict[str, Any]] = []
        while True:
            found = self.sqs_call(
                "ReceiveMessage",
                QueueUrl=url,
                MaxNumberOfMessages=10,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            ).get("Messages")
            if not found:
                return taken
            taken += found
            if delete:
                handles = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(found)]
                self.sqs_call("DeleteMessageBatch", QueueUrl=url, Entries=handles)

    def call(self, event: Any, *, batches: int = 1000, by: SqsCall | None = None) -> dict[str, Any]:
        """One invocation, which has time for so many batches."""
        self.calls += 1
        asked = [0]

        def left_s() -> float:
            asked[0] += 1
            return 1.0 if asked[0] <= batches else -1.0

        return redrive(event, by or self.sqs_call, self.settings, self.work_on_it, self.cells, left_s, self.stand.clock)

    def work_on(self, *, batches: int = 1000, most: int = 100) -> None:
        """As Lambda's poller: a call for each work message, until none is left, whatever it has to wait."""
        for _ in range(most):
            self._poll(batches)
            if not self.total(self.work):
                return
            self.stand.passes(15)
        raise AssertionError(f"still work after {most} looks: {self.counts(self.work)}")

    def calls_by_minute(self, minutes: int) -> list[int]:
        """How many calls are made in each minute, where the rule calls every five of them."""
        made = []
        for minute in range(minutes):
            before = self.calls
            if minute % 5 == 0:
                self.call(ALARM)
            for _ in range(4):
                self._poll()
                self.stand.passes(15)
            made.append(self.calls - before)
        return made

    def _poll(self, batches: int = 1000) -> None:
        for message in self.take(self.work, delete=False):
            self.call({"Records": [{"eventSource": "aws:sqs", "body": message["Body"]}]}, batches=batches)
            handles = [{"Id": "0", "ReceiptHandle": message["ReceiptHandle"]}]
            self.sqs_call("DeleteMessageBatch", QueueUrl=self.work, Entries=handles)
