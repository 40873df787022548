"""What calls the re-driver."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redrive.aws.redriver.triggers import trigger_of


def alarm(state: str) -> str:
    return json.dumps({"AlarmName": "dlq", "NewStateValue": state})


@pytest.mark.parametrize(
    ("event", "acts", "work"),
    [
        ({"Records": [{"EventSource": "aws:sns", "Sns": {"Message": alarm("ALARM")}}]}, True, False),
        ({"Records": [{"EventSource": "aws:sns", "Sns": {"Message": alarm("OK")}}]}, False, False),
        ({"Records": [{"EventSource": "aws:sns", "Sns": {"Message": "look!"}}]}, True, False),
        ({"source": "aws.events", "detail-type": "Scheduled Event"}, True, False),
        ({"source": "aws.cloudwatch", "detail": {"alarmName": "d", "state": {"value": "ALARM"}}}, True, False),
        ({"source": "aws.cloudwatch", "detail": {"alarmName": "d", "state": {"value": "OK"}}}, False, False),
        ({"Records": [{"eventSource": "aws:sqs", "body": '{"redrive": "go on"}'}]}, True, True),
        ({"Records": [{"eventSource": "aws:sqs", "body": alarm("OK")}]}, False, True),
        ({"Records": [{"eventSource": "aws:sqs", "body": json.dumps({"Message": alarm("ALARM")})}]}, True, True),
        ({}, True, False),
        (None, True, False),
        ({"Records": []}, True, False),
        ({"Records": [{"eventSource": "aws:sqs", "body": None}]}, True, True),
    ],
)
def test_what_calls_the_redriver(event: Any, acts: bool, work: bool) -> None:
    trigger = trigger_of(event)
    assert (trigger.acts, trigger.work) == (acts, work)
