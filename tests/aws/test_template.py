"""The template deploys, and what it deploys is what `sqs://REGION/PREFIX` and its users look for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from tests.support.aws.deployments import Deployed
from tests.support.aws.places import client

from redrive.aws.cloudformation.template import Settings

PUBLISHED = {"RunbookUrl": "https://docs.example.com/runbooks"}


def prefix() -> str:
    return f"shop-{uuid4().hex[:8]}"


@pytest.fixture
def stack(ministack: Any) -> Iterator[Deployed]:
    found = Deployed(ministack.url, Settings(prefix=prefix(), queues=("orders", "mails")), {})
    yield found
    found.delete()


def test_queues_table_and_topic_are_there_under_the_names_of_the_url(stack: Deployed) -> None:
    for name in ("orders", "orders-dlq", "orders-poison", "mails", "mails-dlq", "mails-poison"):
        url = stack.sqs.get_queue_url(QueueName=f"{stack.prefix}-{name}")["QueueUrl"]
        told = stack.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert (told["ReceiveMessageWaitTimeSeconds"], told["MessageRetentionPeriod"]) == ("20", str(14 * 86_400))
    told = stack.sqs.get_queue_attributes(QueueUrl=stack.outputs["OrdersQueueUrl"], AttributeNames=["All"])[
        "Attributes"
    ]
    assert told["VisibilityTimeout"] == "60"
    assert json.loads(told["RedrivePolicy"])["deadLetterTargetArn"] == stack.outputs["OrdersDlqArn"]
    table = client("dynamodb", stack.url).describe_table(TableName=stack.outputs["CellsTable"])["Table"]
    assert table["KeySchema"] == [{"AttributeName": "k", "KeyType": "HASH"}]
    assert stack.outputs["Url"] == f"sqs://eu-central-1/{stack.prefix}?cells=dynamodb://{stack.prefix}-cells"


def test_the_topic_delivers_raw_to_the_queue_that_is_meant_and_no_other(stack: Deployed) -> None:
    stack.publish({"n": 1}, queue="orders")
    stack.publish({"n": 2}, queue="mails", kind="x")
    stack.publish({"n": 3}, queue="nobody")
    [orders] = stack.receive("OrdersQueueUrl")
    [mails] = stack.receive("MailsQueueUrl")
    assert json.loads(orders["Body"]) == {"n": 1}
    assert json.loads(mails["Body"]) == {"n": 2} and set(mails["MessageAttributes"]) == {"queue", "kind"}


def test_alarms_ring_above_their_thresholds(stack: Deployed) -> None:
    assert stack.measured("OrdersDeepAlarm", 5000) == "OK"
    assert stack.measured("OrdersManyDeadAlarm", 101) == "ALARM"
    assert stack.measured("OrdersPoisonAlarm", 1) == "ALARM"
    assert stack.measured("OrdersDeadAlarm", 1) == "ALARM"
    assert stack.measured("OrdersRedriveFailedAlarm", 1) == "ALARM"
    assert stack.measured("OrdersSlowAlarm", 30_001) == "ALARM"


def test_dashboard_and_alarms_are_there_and_say_where_to_look(stack: Deployed) -> None:
    [name] = stack.ids("AWS::CloudWatch::Dashboard").values()
    body = json.loads(stack.cloudwatch.get_dashboard(DashboardName=name)["DashboardBody"])
    graphs = [widget["properties"] for widget in body["widgets"] if widget["type"] == "metric"]
    assert len(graphs) == 2 * 16 and {graph["region"] for graph in graphs} == {"eu-central-1"}
    assert "${" not in json.dumps(body) and f"{stack.prefix}-orders" in json.dumps(body)
    told = {alarm["AlarmName"]: alarm for alarm in stack.cloudwatch.describe_alarms()["MetricAlarms"]}
    slow = told[f"{stack.prefix}-orders.slow"]
    assert (slow["ExtendedStatistic"], slow["MetricName"], slow["Threshold"]) == ("p95", "RunTime", 30_000)
    assert slow["Dimensions"] == [{"Name": "Queue", "Value": f"{stack.prefix}-orders"}]
    assert slow["AlarmDescription"].endswith(" Runbook: docs/runbooks/slow.md")


def test_without_code_there_are_no_lambdas(stack: Deployed) -> None:
    assert not [name for name in stack.ids() if "Redriver" in name or "Consumer" in name]


def test_fifo_queues_and_topic(ministack: Any) -> None:
    stack = Deployed(ministack.url, Settings(prefix=prefix(), queues=("orders",), fifo=True), PUBLISHED)
    [slow] = stack.cloudwatch.describe_alarms(AlarmNames=[f"{stack.prefix}-orders.slow"])["MetricAlarms"]
    assert slow["AlarmDescription"].endswith(" Runbook: https://docs.example.com/runbooks/slow.html")
    assert stack.outputs["OrdersQueueUrl"].endswith("-orders.fifo") and stack.outputs["TopicArn"].endswith(".fifo")
    for n in range(2):
        stack.sns.publish(
            TopicArn=stack.outputs["TopicArn"],
            Message=str(n),
            MessageGroupId="g",
            MessageAttributes={"queue": {"DataType": "String", "StringValue": "orders"}},
        )
    found = stack.receive("OrdersQueueUrl")
    assert [m["Body"] for m in found] == ["0", "1"]
    stack.delete()
