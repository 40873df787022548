"""The whole way through the deployed template, with the code that is deployed: topic, filter, queue, worker, retry,
dead-letter queue, alarm, re-driver, queue or poison queue; and the state machine.

ministack publishes no metrics of SQS itself, so the test puts them, and its alarms tell SNS but not EventBridge, so the
test does what the rule says. It enforces neither roles nor policies: those are held to what is called in test_access.
"""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.aws.deployments import Deployed
from tests.support.aws.places import REGION, client
from tests.support.turns import in_turn

import redrive
from redrive import App, Backoff, Reject, Retry
from redrive.aws.cloudformation.template import Settings

WITHIN_S = 120.0
pytestmark = pytest.mark.slow


def code() -> bytes:
    """The package, as it is deployed; what it depends on the emulator's Python has."""
    root, found = Path(redrive.__file__).parent, io.BytesIO()
    with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in root.rglob("*"):
            if path.suffix in (".py", ".sql", ".lua"):
                archive.write(path, path.relative_to(root.parent))
    return found.getvalue()


@pytest.fixture
def stack(ministack: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    for name, value in {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_ENDPOINT_URL", ministack.url)
    bucket, s3 = f"code-{uuid4().hex[:8]}", client("s3", ministack.url)
    s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_object(Bucket=bucket, Key="redrive.zip", Body=code())
    parameters = {"CodeBucket": bucket, "MaxRedrives": "1", "RedriveBase": "0"}
    found = Deployed(
        ministack.url, Settings(prefix=f"shop-{uuid4().hex[:8]}", queues=("orders",), machine=True), parameters
    )
    yield found
    found.delete()


def becomes(look: Callable[[], Any], wanted: Any, why: Callable[[], str] = lambda: "") -> None:
    end_s = time.monotonic() + WITHIN_S
    while (found := look()) != wanted:
        assert time.monotonic() < end_s, f"{found}, not {wanted}\n{why()}"
        time.sleep(0.1)


def test_from_the_topic_over_retries_and_the_redriver_to_done_or_poison(stack: Deployed) -> None:
    app = App(f"{stack.outputs['Url']}&poll=1")
    runs: Counter[int] = Counter()
    fixed: list[bool] = []

    @app.task(name="order.placed", queue="orders", retry=Retry(max_attempts=3, backoff=Backoff.fixed(0)))
    def placed(n: int) -> None:
        runs[n] += 1
        if n == 2 and runs[n] == 1:
            raise ConnectionError("not now")
        if n == 4 or (n == 3 and not fixed):
            raise Reject("the price is missing")

    def counts() -> list[int]:
        return [stack.count(f"Orders{kind}Url") for kind in ("Queue", "Dlq", "Poison")]

    topic = app.topic("events")
    for n in (1, 2, 3, 4):
        topic.publish("order.placed", {"n": n}, attributes={"queue": "orders"})
    topic.publish("order.placed", {"n": 5}, attributes={"queue": "somebody else's"})
    topic.close()
    app.run_worker(burst=True)
    assert runs == {1: 1, 2: 2, 3: 1, 4: 1} and counts() == [0, 2, 0]

    def redriven(wanted: list[int]) -> None:
        becomes(counts, wanted, lambda: stack.said("OrdersRedriver"))

    assert stack.measured("OrdersDeadAlarm", 2) == "ALARM"  # SNS calls the re-driver
    redriven([2, 0, 0])
    fixed.append(True)

    def ran() -> Counter[int]:
        app.run_worker(burst=True)
        return runs

    # The re-driver's rate delays some by a second or more. The last one is dead again, and it may see that one, too.
    becomes(ran, {1: 1, 2: 2, 3: 2, 4: 2})

    stack.rests("OrdersDeadAlarm")
    assert stack.measured("OrdersDeadAlarm", 1) == "ALARM"
    redriven([0, 0, 1])  # one redrive is what it may have
    [poison] = stack.receive("OrdersPoisonUrl")
    assert json.loads(poison["Body"])["data"] == {"n": 4}
    app.store.close()


@in_turn(1, of=2)  # the other, in test_machine_deployed, waits for a breaker and a person too
def test_the_state_machine_moves_and_isolates_what_is_dead(stack: Deployed) -> None:
    url = stack.outputs["OrdersDlqUrl"]
    for n in range(12):
        stack.sqs.send_message(QueueUrl=url, MessageBody=str(n))
    once = {"x-redrive-attempt": {"DataType": "Number", "StringValue": "1"}}
    stack.sqs.send_message(QueueUrl=url, MessageBody="poison", MessageAttributes=once)
    events, machines = client("events", stack.url), client("stepfunctions", stack.url)
    rule = events.describe_rule(Name=stack.ids()["OrdersMachineStart"])
    alarm = {"source": "aws.cloudwatch", "detail-type": "CloudWatch Alarm State Change", "id": "1", "account": "0"}
    alarm |= {
        "time": "2026-01-01T00:00:00Z",
        "region": REGION,
        "resources": json.loads(rule["EventPattern"])["resources"],
    }
    for state, wanted in (("ALARM", True), ("OK", False)):
        event = json.dumps(alarm | {"detail": {"state": {"value": state}}})
        assert events.test_event_pattern(EventPattern=rule["EventPattern"], Event=event)["Result"] is wanted
    [target] = events.list_targets_by_rule(Rule=rule["Name"])["Targets"]
    started = machines.start_execution(stateMachineArn=target["Arn"], input=target["Input"])["executionArn"]

    def status() -> str:
        return str(machines.describe_execution(executionArn=started)["status"])

    becomes(status, "SUCCEEDED")
    assert [stack.count(f"Orders{kind}Url") for kind in ("Queue", "Dlq", "Poison")] == [12, 0, 1]
    output = json.loads(machines.describe_execution(executionArn=started)["output"])
    assert (output["redriven"], output["isolated"], output["failed"]) == (12, 1, 0)
