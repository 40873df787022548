"""How a message leaves an SQS dead-letter queue: what is chosen for it, and that it is never lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.aws.places import Stand, client

from redrive.aws.redriver import steps as moving
from redrive.aws.redriver.settings import RedriverSettings, settings_of
from redrive.aws.redriver.steps import (
    ATTEMPT,
    FIRST,
    STATE,
    MoveStep,
    entry_of,
    next_step,
)
from redrive.aws.redriver.transfer import SqsCall, calls, hide, receive, send
from redrive.codec import Routes
from redrive.errors import ConfigError, StoreUnavailable
from redrive.flow.auto_redrive import AutoRedrive
from redrive.message import Isolate, Lane, Message
from redrive.stores.sqs import wire

AUTO = AutoRedrive()
NOW_MS = 1_750_000_000_000


def raw(body: str = "{}", **attributes: str) -> dict[str, Any]:
    told = {name.replace("_", "-"): {"DataType": "String", "StringValue": text} for name, text in attributes.items()}
    return {"MessageId": "m-1", "ReceiptHandle": "r-1", "Body": body, "MessageAttributes": told, "Attributes": {}}


def attributes_after(message: dict[str, Any], step: moving.RedriveStep, url: str = "q") -> dict[str, str]:
    found = entry_of(message, step, url, NOW_MS, AUTO).get("MessageAttributes", {})
    return {name: value["StringValue"] for name, value in found.items()}


@pytest.mark.parametrize("past, delay_s", [(0, 60), (1, 120), (2, 240), (3, 480), (4, 900)])
def test_the_nth_redrive_waits_60_seconds_doubled_up_to_15_minutes(past: int, delay_s: int) -> None:
    assert next_step(raw(x_redrive_attempt=str(past)), NOW_MS, AUTO) == MoveStep(delay_s, past + 1)


def test_after_five_redrives_it_is_poison() -> None:
    assert next_step(raw(x_redrive_attempt="5"), NOW_MS, AUTO) == Isolate("poison: dead again after 5 redrives")


@pytest.mark.parametrize("text", ["", "-1", "1.5", "²", "9" * 30, "many"])
def test_a_count_nobody_can_read_counts_as_never(text: str) -> None:
    assert next_step(raw(x_redrive_attempt=text), NOW_MS, AUTO) == MoveStep(60, 1)


def test_a_state_that_nests_too_deeply_is_that_of_another_program() -> None:
    assert next_step(raw(redrive='{"x":' + "[" * 100_000), NOW_MS, AUTO) == MoveStep(60, 1)


def test_its_attributes_stay_and_the_first_receive_is_kept_from_the_first_redrive_on() -> None:
    message = raw(tenant="7")
    message["Attributes"] = {"ApproximateFirstReceiveTimestamp": "1700000000000"}
    once = attributes_after(message, MoveStep(60, 1))
    assert once == {"tenant": "7", ATTEMPT: "1", FIRST: "1700000000000"}
    again = raw(**{name.replace("-", "_"): text for name, text in once.items()})
    again["Attributes"] = {"ApproximateFirstReceiveTimestamp": "1800000000000"}
    assert attributes_after(again, MoveStep(120, 2))[FIRST] == "1700000000000"


def test_what_has_no_room_for_its_count_is_isolated_as_it_is() -> None:
    full = raw(**{f"a{n}": "x" for n in range(10)})
    step = next_step(full, NOW_MS, AUTO)
    assert step == Isolate("it has 10 attributes: no room to count its redrives")
    assert len(attributes_after(full, step)) == 10
    nine = raw(**{f"a{n}": "x" for n in range(9)})
    assert isinstance(next_step(nine, NOW_MS, AUTO), MoveStep)
    assert len(attributes_after(nine, MoveStep(60, 1))) == 10
    assert isinstance(next_step(raw("x" * moving.BYTES_MAX), NOW_MS, AUTO), Isolate)
    assert isinstance(next_step(raw("x" * (moving.BYTES_MAX - 200)), NOW_MS, AUTO), MoveStep)


def test_a_message_of_redrives_own_begins_a_fresh_life_and_counts_every_redrive() -> None:
    kept = '{"attempt":8,"crashes":1,"redrives":2,"enqueued_ms":5,"reason":"exhausted","rested_ms":9,"deadline_ms":3}'
    message = raw(redrive=kept, reason="exhausted", error="ValueError")
    assert next_step(message, NOW_MS, AUTO) == MoveStep(240, 3)
    found = attributes_after(message, MoveStep(240, 3))
    assert "reason" not in found and "error" not in found
    assert msgspec.json.decode(found[STATE]) == {"redrives": 3, "enqueued_ms": 5, "life_ms": NOW_MS}
    first = raw('{"specversion":"1.0","source":"redrive://p/q","rdversion":1}')
    assert msgspec.json.decode(attributes_after(first, MoveStep(60, 1))[STATE]) == {"redrives": 1, "life_ms": NOW_MS}


def test_what_a_worker_reads_has_the_redrives_that_were_counted() -> None:
    message = Message(
        id="01975a2b-3c4d-7e5f-8a6b-9c0d1e2f3a4b", task="push", queue="q", body=b"[1]", correlation_id="c",
        lane=Lane.DEAD, attempt=8, redrives=1, reason="exhausted", enqueued_ms=5, rested_ms=9,
    )  # fmt: skip
    body, attributes = wire.write(message, prefix="p")
    dead = raw(body) | {"MessageAttributes": attributes}
    step = next_step(dead, NOW_MS, AUTO)
    assert step == MoveStep(120, 2)
    moved = dead | entry_of(dead, step, "q", NOW_MS, AUTO)
    found, kept = wire.read(moved, queue="q", routes=Routes())
    assert (found.id, found.redrives, found.attempt, found.life_ms, found.reason) == (message.id, 2, 0, NOW_MS, None)
    assert kept.redrives == 2


def test_a_strangers_message_that_dies_in_a_worker_keeps_its_count() -> None:
    moved = raw('{"order": 7}') | entry_of(raw('{"order": 7}'), MoveStep(480, 4), "q", NOW_MS, AUTO)
    found, _ = wire.read(moved, queue="q", routes=Routes())
    assert found.redrives == 4
    body, attributes = wire.write(replace(found, lane=Lane.DEAD, reason="exhausted"), prefix="p")
    assert moving.redrives(raw(body) | {"MessageAttributes": attributes}) == 4


def test_a_fifo_queue_gets_the_group_and_an_id_of_this_very_move_and_no_delay() -> None:
    message = raw()
    message["Attributes"] = {"MessageGroupId": "g"}
    entry = entry_of(message, MoveStep(60, 2), "q.fifo", NOW_MS, AUTO)
    assert (entry["MessageGroupId"], entry["MessageDeduplicationId"]) == ("g", "m-1/2")
    assert "DelaySeconds" not in entry
    poison = entry_of(message, Isolate("why"), "p.fifo", NOW_MS, AUTO)
    assert poison["MessageDeduplicationId"] == "m-1/poison"


def test_a_delay_beyond_what_sqs_can_is_waited_out_by_a_message_of_redrives_own() -> None:
    entry = entry_of(raw(redrive="{}"), MoveStep(3600, 1), "q", NOW_MS, AUTO)
    assert entry["DelaySeconds"] == 900
    assert msgspec.json.decode(entry["MessageAttributes"][STATE]["StringValue"])["due_ms"] == NOW_MS + 3_600_000


def test_settings_come_from_the_deployment() -> None:
    urls = {"REDRIVE_DLQ_URL": "d", "REDRIVE_QUEUE_URL": "q", "REDRIVE_POISON_URL": "p"}
    assert settings_of(urls) == RedriverSettings(dead="d", queue="q", poison="p")
    found = settings_of(urls | {"REDRIVE_MAX_REDRIVES": "3", "REDRIVE_BASE_S": "1", "REDRIVE_TABLE": "t"})
    assert found.auto == AutoRedrive(base=1, max_redrives=3) and found.cells == "dynamodb://t"
    with pytest.raises(ConfigError, match="REDRIVE_POISON_URL"):
        settings_of({name: url for name, url in urls.items() if "POISON" not in name})
    with pytest.raises(ConfigError, match="REDRIVE_CAP_S='soon'"):
        settings_of(urls | {"REDRIVE_CAP_S": "soon"})
    with pytest.raises(ConfigError, match="REDRIVE_DEPENDENCY='crm' is set without the cells"):
        settings_of(urls | {"REDRIVE_DEPENDENCY": "crm", "REDRIVE_TABLE": ""})
    assert settings_of(urls | {"REDRIVE_DEPENDENCY": "crm", "REDRIVE_CELLS": "dynamodb://t"}).dependency == "crm"


URLS = {"REDRIVE_DLQ_URL": "d", "REDRIVE_QUEUE_URL": "q", "REDRIVE_POISON_URL": "p"}


@pytest.mark.parametrize(
    "said, rate, jitter",
    [
        ({}, 10.0, 0.2),
        ({"REDRIVE_RATE": "", "REDRIVE_JITTER": ""}, 10.0, 0.2),
        ({"REDRIVE_RATE": "25", "REDRIVE_JITTER": "0"}, 25.0, 0.0),
        ({"REDRIVE_RATE": "2.5/s", "REDRIVE_JITTER": "0.5"}, 2.5, 0.5),
        ({"REDRIVE_RATE": "30/m", "REDRIVE_JITTER": "35%"}, 0.5, 0.35),
    ],
)
def test_the_pace_comes_from_the_deployment(said: dict[str, str], rate: float, jitter: float) -> None:
    found = settings_of(URLS | said).auto
    assert (found.rate, found.jitter) == (rate, jitter)


@pytest.mark.parametrize(
    "name, text, says",
    [
        ("REDRIVE_RATE", "fast", "REDRIVE_RATE 'fast' is refused: expected a number per unit of time"),
        ("REDRIVE_RATE", "0", "REDRIVE_RATE 0.0 is refused: expected more than 0 a second"),
        ("REDRIVE_JITTER", "20", "REDRIVE_JITTER='20'; expected a share from 0 to 1, such as 0.2 or 20%"),
        ("REDRIVE_JITTER", "-0.1", "REDRIVE_JITTER='-0.1'"),
        ("REDRIVE_JITTER", "101%", "REDRIVE_JITTER='101%'"),
        ("REDRIVE_HEALTH_URL", "crm-up", "REDRIVE_HEALTH_URL='crm-up'; expected an http or https URL"),
        ("REDRIVE_HEALTH_URL", "https://me:secret@crm/up", "has a user in its URL"),
    ],
)
def test_a_pace_or_a_health_url_that_cannot_be_meant_is_refused(name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        settings_of(URLS | {name: text})
    assert says in str(error.value)


def test_a_health_url_comes_from_the_deployment() -> None:
    found = settings_of(URLS | {"REDRIVE_HEALTH_URL": "https://crm.example.com/up"})
    assert found.auto.gates.health == "https://crm.example.com/up"
    assert settings_of(URLS | {"REDRIVE_HEALTH_URL": ""}).auto.gates.health is None


@pytest.fixture
def stand() -> Iterator[Stand]:
    with Stand() as stand:
        yield stand


class Queues:
    """A queue, its dead-letter queue and its poison queue."""

    def __init__(self, stand: Stand, fifo: bool = False) -> None:
        self.sqs = client("sqs", stand.url)
        end, more = (".fifo", {"FifoQueue": "true"}) if fifo else ("", {})
        names = [f"work{end}", f"work-dlq{end}", f"work-poison{end}"]
        urls = [self.sqs.create_queue(QueueName=name, Attributes=more)["QueueUrl"] for name in names]
        self.settings = RedriverSettings(queue=urls[0], dead=urls[1], poison=urls[2])
        self.call: SqsCall = calls(self.sqs)

    def dead(self, body: str, group: str | None = None, **attributes: str) -> None:
        told = {n.replace("_", "-"): {"DataType": "Number", "StringValue": text} for n, text in attributes.items()}
        fifo = {"MessageGroupId": group, "MessageDeduplicationId": body} if group else {}
        self.sqs.send_message(QueueUrl=self.settings.dead, MessageBody=body, MessageAttributes=told, **fifo)

    def steps(self, now_ms: int) -> list[tuple[moving.Raw, moving.RedriveStep]]:
        found = receive(self.call, self.settings.dead, 10, visibility_s=60, wait_s=0)
        return [(message, next_step(message, now_ms, AUTO)) for message in found]

    def bodies(self, url: str) -> list[str]:
        found = self.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=1)
        return sorted(message["Body"] for message in found.get("Messages", []))


def test_messages_are_moved_after_their_delay_or_isolated_and_leave_the_dead_letter_queue(stand: Stand) -> None:
    queues = Queues(stand)
    queues.dead("a")
    queues.dead("b", x_redrive_attempt="5")
    done = send(queues.call, queues.settings, queues.steps(stand.clock()), stand.clock())
    assert (done.redriven, done.isolated, done.failures) == (1, 1, ())
    assert queues.bodies(queues.settings.queue) == []
    stand.passes(60)
    assert (queues.bodies(queues.settings.queue), queues.bodies(queues.settings.poison)) == (["a"], ["b"])
    stand.passes(3600)
    assert queues.bodies(queues.settings.dead) == []


def test_what_cannot_be_sent_stays_and_comes_again(stand: Stand) -> None:
    queues = Queues(stand)
    queues.dead("a")

    def down(action: str, **parameters: Any) -> dict[str, Any]:
        if action == "SendMessageBatch":
            raise StoreUnavailable("down")
        return queues.call(action, **parameters)

    steps = queues.steps(stand.clock())
    done = send(down, queues.settings, steps, stand.clock())
    assert [(failure.why, failure.sent) for failure in done.failures] == [("down", False)]
    hide(queues.call, queues.settings.dead, [message for message, _ in steps], [0])
    assert queues.bodies(queues.settings.dead) == ["a"]


def test_a_failed_delete_is_told_apart_so_that_it_is_not_sent_twice(stand: Stand) -> None:
    queues = Queues(stand)
    queues.dead("a")

    def down(action: str, **parameters: Any) -> dict[str, Any]:
        if action == "DeleteMessageBatch":
            return {"Failed": [{"Id": "0", "Code": "InternalError", "Message": "try again", "SenderFault": False}]}
        return queues.call(action, **parameters)

    done = send(down, queues.settings, queues.steps(stand.clock()), stand.clock())
    assert [(failure.why, failure.sent) for failure in done.failures] == [
        ("DeleteMessageBatch: InternalError try again", True)
    ]


def test_what_its_queue_refuses_for_what_it_is_goes_to_the_poison_queue(stand: Stand) -> None:
    queues = Queues(stand)
    queues.dead("a")

    def strict(action: str, **parameters: Any) -> dict[str, Any]:
        if action == "SendMessageBatch" and parameters["QueueUrl"] == queues.settings.queue:
            return {"Failed": [{"Id": "0", "Code": "InvalidParameterValue", "Message": "no", "SenderFault": True}]}
        return queues.call(action, **parameters)

    done = send(strict, queues.settings, queues.steps(stand.clock()), stand.clock())
    assert (done.redriven, done.isolated, done.failures) == (0, 1, ())
    assert queues.bodies(queues.settings.poison) == ["a"]


def test_in_a_fifo_group_nothing_overtakes_what_was_left(stand: Stand) -> None:
    queues = Queues(stand, fifo=True)
    for body in ("a1", "a2", "b1"):
        queues.dead(body, group=body[0])

    def picky(action: str, **parameters: Any) -> dict[str, Any]:
        bodies = [entry.get("MessageBody") for entry in parameters["Entries"]]
        if action == "SendMessageBatch" and "a1" in bodies:
            parameters["Entries"] = [entry for entry in parameters["Entries"] if entry["MessageBody"] != "a1"]
            told = queues.call(action, **parameters) if parameters["Entries"] else {}
            failed = {"Id": str(bodies.index("a1")), "Code": "InternalError", "Message": "", "SenderFault": False}
            return told | {"Failed": [failed]}
        return queues.call(action, **parameters)

    done = send(picky, queues.settings, queues.steps(stand.clock()), stand.clock())
    assert [failure.raw["Body"] for failure in done.failures] == ["a1", "a2"]
    assert queues.bodies(queues.settings.queue) == ["b1"]


def test_a_repeated_move_to_a_fifo_queue_is_dropped_there(stand: Stand) -> None:
    queues = Queues(stand, fifo=True)
    queues.dead("a", group="g")
    steps = queues.steps(stand.clock())

    def forgetful(action: str, **parameters: Any) -> dict[str, Any]:
        return {} if action == "DeleteMessageBatch" else queues.call(action, **parameters)

    send(forgetful, queues.settings, steps, stand.clock())
    stand.passes(61)
    send(queues.call, queues.settings, queues.steps(stand.clock()), stand.clock())
    url = queues.settings.queue
    told = queues.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    assert told["Attributes"]["ApproximateNumberOfMessages"] == "1"
