"""The template, deployed on ministack; what the stack then says of itself."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from botocore.exceptions import ClientError
from tests.support.aws.places import REGION, client

from redrive.aws.cloudformation.template import Settings, template, text

READY_WITHIN_S = 60.0
NO_METRIC_MATH = {"ErrorRateAlarm": "off"}  # ministack refuses alarms on metric math; AWS and cfn-lint take this one


class Deployed:
    """A stack, and clients of what it made."""

    def __init__(self, url: str, settings: Settings, parameters: Mapping[str, str]) -> None:
        self.url, self.prefix = url, settings.prefix
        self.sqs, self.sns = client("sqs", url), client("sns", url)
        self._stacks = client("cloudformation", url)
        given = [{"ParameterKey": k, "ParameterValue": v} for k, v in (NO_METRIC_MATH | dict(parameters)).items()]
        self._stacks.create_stack(
            StackName=self.prefix,
            TemplateURL=self._uploaded(text(template(settings))),
            Parameters=given,
            Capabilities=["CAPABILITY_IAM"],
        )
        end_s = time.monotonic() + READY_WITHIN_S
        while (stack := self._stack())["StackStatus"] == "CREATE_IN_PROGRESS" and time.monotonic() < end_s:
            time.sleep(0.05)
        if stack["StackStatus"] != "CREATE_COMPLETE":
            raise AssertionError(f"{stack['StackStatus']}: {self.failures()}")
        self.outputs = {o["OutputKey"]: o["OutputValue"] for o in stack.get("Outputs", ())}
        for alarm in self.ids("AWS::CloudWatch::Alarm"):
            self.rests(alarm)  # ministack measures a new one by any queue's metrics, also those of another test

    def _uploaded(self, written: str) -> str:
        """Its URL: a template of more than 51,200 bytes cannot be given as text."""
        s3 = client("s3", self.url)
        s3.create_bucket(Bucket=self.prefix, CreateBucketConfiguration={"LocationConstraint": REGION})
        s3.put_object(Bucket=self.prefix, Key="template", Body=written.encode())
        return f"{self.url}/{self.prefix}/template"

    def upload(self, key: str, content: bytes) -> None:
        client("s3", self.url).put_object(Bucket=self.prefix, Key=key, Body=content)

    def failures(self) -> list[str]:
        told = self._stacks.describe_stack_events(StackName=self.prefix)["StackEvents"]
        failed = (e for e in told if "FAILED" in e["ResourceStatus"])
        return [f"{e['LogicalResourceId']}: {e['ResourceStatusReason']}" for e in failed]

    def ids(self, type: str | None = None) -> dict[str, str]:
        """Physical names by logical ones, of all resources or those of a type."""
        found = self._stacks.describe_stack_resources(StackName=self.prefix)["StackResources"]
        return {r["LogicalResourceId"]: r["PhysicalResourceId"] for r in found if type in (None, r["ResourceType"])}

    def delete(self) -> None:
        self._stacks.delete_stack(StackName=self.prefix)

    def _stack(self) -> dict[str, Any]:
        [stack] = self._stacks.describe_stacks(StackName=self.prefix)["Stacks"]
        return dict(stack)

    @cached_property
    def cloudwatch(self) -> Any:
        return client("cloudwatch", self.url)

    # -- its functions

    def repeat(self, function: str) -> None:
        """What the stack's rule does every five minutes while the alarm rings."""
        rule = json.dumps({"source": "aws.events", "detail-type": "Scheduled Event"})
        functions = client("lambda", self.url)
        functions.invoke(FunctionName=self.ids()[function], InvocationType="Event", Payload=rule.encode())

    def said(self, function: str) -> str:
        """The end of its log."""
        try:
            told = client("logs", self.url).filter_log_events(logGroupName=f"/aws/lambda/{self.ids()[function]}")
        except ClientError as error:
            return f"it has no log: {error}"
        return "\n".join(event["message"].rstrip() for event in told["events"][-50:])

    # -- looking at queues

    def count(self, output: str) -> int:
        """Messages in a queue, seen or not."""
        names = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
        told = self.sqs.get_queue_attributes(QueueUrl=self.outputs[output], AttributeNames=names)["Attributes"]
        return sum(int(told[name]) for name in names)

    def receive(self, output: str, **words: Any) -> list[dict[str, Any]]:
        words = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"], "WaitTimeSeconds": 1} | words
        return list(self.sqs.receive_message(QueueUrl=self.outputs[output], **words).get("Messages", ()))

    def publish(self, body: Any, **attributes: str) -> None:
        given = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
        self.sns.publish(TopicArn=self.outputs["TopicArn"], Message=json.dumps(body), MessageAttributes=given)

    def rests(self, alarm: str) -> None:
        """It is over, so that it can begin again."""
        self.cloudwatch.set_alarm_state(AlarmName=self.ids()[alarm], StateValue="OK", StateReason="over")

    def measured(self, alarm: str, value: float) -> str:
        """Put the metric that an alarm looks at; ministack publishes none itself, and evaluates at each. Its state."""
        name = self.ids()[alarm]
        [told] = self.cloudwatch.describe_alarms(AlarmNames=[name])["MetricAlarms"]
        datum = {"MetricName": told["MetricName"], "Dimensions": told["Dimensions"], "Value": value}
        self.cloudwatch.put_metric_data(Namespace=told["Namespace"], MetricData=[datum])
        [told] = self.cloudwatch.describe_alarms(AlarmNames=[name])["MetricAlarms"]
        return str(told["StateValue"])
