"""What becomes of a message in a dead-letter queue, before anything is sent; and what calls the re-driver."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redrive.aws.moves import ATTEMPT, BYTES_MAX, FIRST, Settings, move_of, settings_of, size_of
from redrive.aws.triggers import trigger_of
from redrive.errors import ConfigError

NOW_MS = 1_750_000_000_000
CHOSEN = Settings(queue_url="http://x/1/shop-orders", dlq_url="http://x/1/shop-orders-dlq", poison_url="http://x/1/p")
FIFO = Settings(queue_url="http://x/1/o.fifo", dlq_url="http://x/1/o-dlq.fifo", poison_url="http://x/1/p.fifo")


def raw(redrives: int | str | None = None, *, body: str = "{}", others: int = 0, **system: str) -> dict[str, Any]:
    attributes = {f"a{n}": {"DataType": "String", "StringValue": "v"} for n in range(others)}
    if redrives is not None:
        attributes[ATTEMPT] = {"DataType": "Number", "StringValue": str(redrives)}
    return {
        "MessageId": "m-1",
        "ReceiptHandle": "r-1",
        "Body": body,
        "Attributes": {"ApproximateFirstReceiveTimestamp": "123", "SentTimestamp": str(NOW_MS), **system},
        "MessageAttributes": attributes,
    }


@pytest.mark.parametrize(("before", "wait_s"), [(None, 60), (0, 60), (1, 120), (2, 240), (3, 480), (4, 900)])
def test_each_redrive_waits_twice_as_long_up_to_what_sqs_delays(before: int | None, wait_s: int) -> None:
    move = move_of(raw(before), CHOSEN, NOW_MS)
    assert (move.isolated, move.entry["DelaySeconds"]) == ("", wait_s)
    assert move.entry["MessageAttributes"][ATTEMPT]["StringValue"] == str((before or 0) + 1)


@pytest.mark.parametrize("before", [5, 6, 99])
def test_after_five_redrives_it_is_poison_and_stays_as_it_is(before: int) -> None:
    dead = raw(before, body="as it was", others=2)
    move = move_of(dead, CHOSEN, NOW_MS)
    assert move.isolated == f"it died again after {before} redrives"
    assert move.entry == {"MessageBody": "as it was", "MessageAttributes": dead["MessageAttributes"]}


def test_the_first_receive_is_noted_once() -> None:
    once = move_of(raw(), CHOSEN, NOW_MS)
    assert once.entry["MessageAttributes"][FIRST]["StringValue"] == "123"
    again = raw() | {"MessageAttributes": once.entry["MessageAttributes"]}
    again["Attributes"]["ApproximateFirstReceiveTimestamp"] = "456"
    assert move_of(again, CHOSEN, NOW_MS).entry["MessageAttributes"][FIRST]["StringValue"] == "123"


def test_body_attributes_group_and_trace_stay_as_they_are() -> None:
    dead = raw(body="\u00e9 not json", others=3, MessageGroupId="tenant-7", AWSTraceHeader="Root=1-2")
    dead["MessageAttributes"]["b"] = {"DataType": "Binary.png", "BinaryValue": b"\x00\xff", "StringListValues": []}
    entry = move_of(dead, CHOSEN, NOW_MS).entry
    assert (entry["MessageBody"], entry["MessageGroupId"]) == ("\u00e9 not json", "tenant-7")
    assert entry["MessageAttributes"]["b"] == {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"}
    assert {"a0", "a1", "a2", "b", ATTEMPT, FIRST} == entry["MessageAttributes"].keys()
    assert entry["MessageSystemAttributes"]["AWSTraceHeader"]["StringValue"] == "Root=1-2"


@pytest.mark.parametrize(("others", "isolated"), [(8, False), (9, False), (10, True)])
def test_whose_redrives_cannot_be_counted_is_not_driven_back_for_ever(others: int, isolated: bool) -> None:
    move = move_of(raw(others=others), CHOSEN, NOW_MS)
    assert bool(move.isolated) is isolated
    assert len(move.entry["MessageAttributes"]) == 10
    assert (FIRST in move.entry["MessageAttributes"]) is (others == 8)


def test_a_message_with_ten_attributes_that_counts_already_goes_on() -> None:
    dead = raw(1, others=8)
    dead["MessageAttributes"][FIRST] = {"DataType": "Number", "StringValue": "5"}
    move = move_of(dead, CHOSEN, NOW_MS)
    assert (move.isolated, move.redrive) == ("", 2)


def test_one_that_is_as_large_as_can_be_is_kept_whole() -> None:
    dead = raw(body="x" * BYTES_MAX)
    move = move_of(dead, CHOSEN, NOW_MS)
    assert "no room" in move.isolated and move.size == BYTES_MAX
    room = BYTES_MAX - size_of("", move_of(raw(), CHOSEN, NOW_MS).entry["MessageAttributes"])
    assert not move_of(raw(body="x" * room), CHOSEN, NOW_MS).isolated
    assert move_of(raw(body="x" * (room + 1)), CHOSEN, NOW_MS).isolated


@pytest.mark.parametrize("odd", ["", "-1", "many", "\u00b2", "1.5", "9" * 30])
def test_a_count_that_is_no_number_counts_as_none(odd: str) -> None:
    assert move_of(raw(odd), CHOSEN, NOW_MS).redrive == 1


def test_fifo_waits_in_the_dead_letter_queue_and_each_redrive_has_its_own_dedup_id() -> None:
    dead = raw(2, SequenceNumber="1", MessageGroupId="g", MessageDeduplicationId="m-1")
    move = move_of(dead, FIFO, NOW_MS + 30_000)
    assert (move.wait_s, "DelaySeconds" in move.entry) == (210, False)
    assert (move.entry["MessageGroupId"], move.entry["MessageDeduplicationId"]) == ("g", "m-1/3")
    assert move_of(dead, FIFO, NOW_MS + 240_000).wait_s == 0
    assert move_of(dead, FIFO, NOW_MS + 239_001).wait_s == 1


def test_settings_come_from_the_deployment() -> None:
    told = {"REDRIVE_QUEUE_URL": "q", "REDRIVE_DLQ_URL": "d", "REDRIVE_POISON_URL": "p"}
    assert settings_of(told) == Settings(queue_url="q", dlq_url="d", poison_url="p")
    more = {"REDRIVE_TABLE": "cells", "REDRIVE_MAX_REDRIVES": "2", "REDRIVE_DEPENDENCY": "stripe"}
    chosen = settings_of(told | more)
    assert (chosen.cells, chosen.max_redrives, chosen.dependency) == ("dynamodb://cells", 2, "stripe")
    with pytest.raises(ConfigError, match="REDRIVE_DLQ_URL"):
        settings_of({"REDRIVE_QUEUE_URL": "q"})
    with pytest.raises(ConfigError, match="REDRIVE_BASE_S"):
        settings_of(told | {"REDRIVE_BASE_S": "1m"})
    with pytest.raises(ConfigError, match="900"):
        settings_of(told | {"REDRIVE_CAP_S": "901"})


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
