"""The stand-in for SQS and emulators play the same SQS: one suite of behaviours for all, known differences named.

A difference is expected, not skipped: where an emulator begins to do it right, the test says so.
"""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError
from tests.support.aws.places import Stand, client

from redrive.testing.sqs import SqsServer
from redrive.testing.sqs.server import HOST

MINISTACK = {  # what ministack does otherwise, as AWS-side facts say SQS does it
    "a delay of more than 900 s is refused": "it takes any",
    "a long poll of more than 20 s is refused": "it takes any",
    "twelve hours from the receive are the most": "it takes any",
    "more than ten attributes are refused": "it takes any",
    "an old handle deletes nothing and is no error": "it is an error there",
    "a move task moves back": "it has none",
    "sources of a dead-letter queue are listed": "it has none",
}


LOCALSTACK = {
    "a delay of more than 900 s is refused": "it takes any",
    "twelve hours from the receive are the most": "it takes any",
    "more than ten attributes are refused": "it takes any",
    "an old handle deletes nothing and is no error": "it deletes",
    "a moved message is a new one": "its receives are counted on",
}
DIFFERENT = {"stand-in": {}, "ministack": MINISTACK, "localstack": LOCALSTACK}


@pytest.fixture(params=["stand-in", "ministack", pytest.param("localstack", marks=pytest.mark.soak)])
def place(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param != "stand-in":
        yield request.getfixturevalue(request.param)
    else:
        with Stand() as stand:
            yield stand


@pytest.fixture
def sqs(place: Any) -> Any:
    return client("sqs", place.url)


def differs(place: Any, what: str) -> bool:
    return what in DIFFERENT[place.name]


def queue(sqs: Any, *, fifo: bool = False, **attributes: str) -> str:
    if fifo:
        attributes |= {"FifoQueue": "true"}
    return str(
        sqs.create_queue(QueueName=f"q-{uuid4().hex}{'.fifo' if fifo else ''}", Attributes=attributes)["QueueUrl"]
    )


def arn(sqs: Any, url: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"])


def with_dead(sqs: Any, times: int, **attributes: str) -> tuple[str, str]:
    dead = queue(sqs)
    policy = json.dumps({"deadLetterTargetArn": arn(sqs, dead), "maxReceiveCount": str(times)})
    return queue(sqs, RedrivePolicy=policy, **attributes), dead


def receive(sqs: Any, url: str, **words: Any) -> list[dict[str, Any]]:
    words = {
        "MaxNumberOfMessages": 10,
        "MessageSystemAttributeNames": ["All"],
        "MessageAttributeNames": ["All"],
    } | words
    return list(sqs.receive_message(QueueUrl=url, **words).get("Messages", ()))


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def refused(code: str) -> Any:
    return pytest.raises(ClientError, match=code)


def send(sqs: Any, url: str, *texts: str, **words: Any) -> list[str]:
    return [sqs.send_message(QueueUrl=url, MessageBody=text, **words)["MessageId"] for text in texts]


def test_what_is_sent_is_received_with_its_attributes_and_counts(place: Any, sqs: Any) -> None:
    url = queue(sqs)
    attributes = {
        "word": {"DataType": "String", "StringValue": "é"},
        "number": {"DataType": "Number", "StringValue": "1.5"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    [id] = send(sqs, url, "hello", MessageAttributes=attributes)
    [message] = receive(sqs, url)
    assert (message["MessageId"], message["Body"]) == (id, "hello")
    assert message["MessageAttributes"] == attributes
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    assert abs(int(message["Attributes"]["SentTimestamp"]) / 1000 - place.now_s()) < 60


def test_batches_of_ten_and_no_more(sqs: Any) -> None:
    url = queue(sqs)
    entries = [{"Id": str(n), "MessageBody": f"m{n}"} for n in range(11)]
    with refused("TooManyEntriesInBatchRequest"):
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries[:10])["Successful"]) == 10
    with refused("InvalidParameterValue"):
        receive(sqs, url, MaxNumberOfMessages=11)
    found = receive(sqs, url)
    assert sorted(bodies(found)) == [f"m{n}" for n in range(10)]
    gone = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(found)]
    assert len(sqs.delete_message_batch(QueueUrl=url, Entries=gone)["Successful"]) == 10
    assert receive(sqs, url) == []


def test_two_entries_of_one_id_are_refused(sqs: Any) -> None:
    url = queue(sqs)
    with refused("BatchEntryIdsNotDistinct"):
        sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "x"}, {"Id": "a", "MessageBody": "y"}])


def test_a_queue_that_is_not_there(sqs: Any) -> None:
    with refused("NonExistentQueue"):
        sqs.get_queue_url(QueueName=f"none-{uuid4().hex}")


def test_what_is_received_is_hidden_until_its_visibility_ends(place: Any, sqs: Any) -> None:
    url = queue(sqs)
    send(sqs, url, "x")
    first = receive(sqs, url, VisibilityTimeout=1)
    assert bodies(first) == ["x"] and receive(sqs, url) == []
    place.passes(1.05)
    again = receive(sqs, url)
    assert [m["Attributes"]["ApproximateReceiveCount"] for m in again] == ["2"]
    first_ms = first[0]["Attributes"]["ApproximateFirstReceiveTimestamp"]
    assert again[0]["Attributes"]["ApproximateFirstReceiveTimestamp"] == first_ms


def test_changing_the_visibility_brings_it_back_at_once_or_later(place: Any, sqs: Any) -> None:
    url = queue(sqs)
    send(sqs, url, "x")
    [message] = receive(sqs, url, VisibilityTimeout=100)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    [message] = receive(sqs, url, VisibilityTimeout=1)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=100)
    place.passes(1.05)
    assert receive(sqs, url) == []


def test_twelve_hours_from_the_receive_are_the_most(place: Any, sqs: Any) -> None:
    url = queue(sqs)
    send(sqs, url, "x")
    [message] = receive(sqs, url, VisibilityTimeout=60)
    place.passes(1.05)
    words = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 43_200}
    if differs(place, "twelve hours from the receive are the most"):
        sqs.change_message_visibility(**words)
        return
    with refused("Total VisibilityTimeout"):
        sqs.change_message_visibility(**words)
    sqs.change_message_visibility(**words | {"VisibilityTimeout": 43_190})


def test_a_message_with_a_delay_comes_after_it(place: Any, sqs: Any) -> None:
    url = queue(sqs)
    send(sqs, url, "late", DelaySeconds=1)
    assert receive(sqs, url) == []
    place.passes(1.05)
    assert bodies(receive(sqs, url)) == ["late"]


def test_a_delay_of_more_than_900_s_is_refused(place: Any, sqs: Any) -> None:
    url = queue(sqs)
    if differs(place, "a delay of more than 900 s is refused"):
        send(sqs, url, "x", DelaySeconds=901)
        return
    with refused("DelaySeconds"):
        send(sqs, url, "x", DelaySeconds=901)


def test_a_long_poll_of_more_than_20_s_is_refused(place: Any, sqs: Any) -> None:
    url = queue(sqs)
    send(sqs, url, "x")
    if differs(place, "a long poll of more than 20 s is refused"):
        assert bodies(receive(sqs, url, WaitTimeSeconds=21)) == ["x"]
        return
    with refused("WaitTimeSeconds"):
        receive(sqs, url, WaitTimeSeconds=21)


def test_an_old_handle_deletes_nothing_and_is_no_error(place: Any, sqs: Any) -> None:
    url = queue(sqs)
    send(sqs, url, "x")
    [old] = receive(sqs, url, VisibilityTimeout=0)
    [new] = receive(sqs, url, VisibilityTimeout=1)
    if differs(place, "an old handle deletes nothing and is no error"):
        return
    sqs.delete_message(QueueUrl=url, ReceiptHandle=old["ReceiptHandle"])
    place.passes(1.05)
    assert bodies(receive(sqs, url)) == ["x"] and new["ReceiptHandle"] != old["ReceiptHandle"]


def test_a_handle_of_no_queue_is_refused(sqs: Any) -> None:
    url = queue(sqs)
    with refused("ReceiptHandleIsInvalid|InvalidParameterValue"):
        sqs.delete_message(QueueUrl=url, ReceiptHandle="nonsense")


def test_what_was_received_too_often_goes_to_the_dead_letter_queue_with_its_id(place: Any, sqs: Any) -> None:
    url, dead = with_dead(sqs, 2)
    [id] = send(sqs, url, "poison", MessageAttributes={"a": {"DataType": "String", "StringValue": "b"}})
    for count in ("1", "2"):
        [message] = receive(sqs, url, VisibilityTimeout=0)
        assert message["Attributes"]["ApproximateReceiveCount"] == count
    assert receive(sqs, url) == []
    [message] = receive(sqs, dead)
    assert (message["MessageId"], message["Body"]) == (id, "poison")
    assert message["MessageAttributes"]["a"]["StringValue"] == "b"


def test_sources_of_a_dead_letter_queue_are_listed(place: Any, sqs: Any) -> None:
    url, dead = with_dead(sqs, 2)
    if differs(place, "sources of a dead-letter queue are listed"):
        return
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]


def test_a_move_task_moves_back(place: Any, sqs: Any) -> None:
    url, dead = with_dead(sqs, 1)
    send(sqs, url, *(f"m{n}" for n in range(5)))
    assert len(receive(sqs, url, VisibilityTimeout=0)) == 5
    assert receive(sqs, url) == []
    if differs(place, "a move task moves back"):
        with refused("InvalidAction"):
            sqs.start_message_move_task(SourceArn=arn(sqs, dead))
        return
    sqs.start_message_move_task(SourceArn=arn(sqs, dead), MaxNumberOfMessagesPerSecond=2)
    place.passes(1.05)
    moved = receive(sqs, url)
    if differs(place, "a moved message is a new one"):
        assert moved and "1" not in {m["Attributes"]["ApproximateReceiveCount"] for m in moved}
        return
    assert len(moved) == 2 and {m["Attributes"]["ApproximateReceiveCount"] for m in moved} == {"1"}
    with refused("already a task running"):
        sqs.start_message_move_task(SourceArn=arn(sqs, dead))
    place.passes(2)
    assert sqs.list_message_move_tasks(SourceArn=arn(sqs, dead))["Results"][0]["Status"] == "COMPLETED"


def test_fifo_keeps_the_order_of_a_group_and_holds_it_while_one_is_in_flight(sqs: Any) -> None:
    url = queue(sqs, fifo=True, ContentBasedDeduplication="true")
    for n in range(3):
        send(sqs, url, f"a{n}", MessageGroupId="a")
        send(sqs, url, f"b{n}", MessageGroupId="b")
    [first] = receive(sqs, url, MaxNumberOfMessages=1)
    assert first["Body"] == "a0"
    assert bodies(receive(sqs, url)) == ["b0", "b1", "b2"]
    assert receive(sqs, url) == []
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    [again] = receive(sqs, url, MaxNumberOfMessages=1)
    assert again["Body"] == "a0"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    assert bodies(receive(sqs, url)) == ["a1", "a2"]


def test_fifo_takes_a_duplicate_for_the_first_also_once_that_is_gone(sqs: Any) -> None:
    url = queue(sqs, fifo=True)
    words = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    [one] = send(sqs, url, "x", **words)
    [message] = receive(sqs, url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert send(sqs, url, "x", **words) == [one]
    assert receive(sqs, url) == []


def test_fifo_refuses_a_delay_of_one_message(sqs: Any) -> None:
    url = queue(sqs, fifo=True, ContentBasedDeduplication="true")
    with refused("DelaySeconds|InvalidParameterValue"):
        send(sqs, url, "x", MessageGroupId="g", DelaySeconds=1)


def test_a_megabyte_counted_in_bytes_is_the_most(sqs: Any) -> None:
    url = queue(sqs)
    send(sqs, url, "x" * 1024 * 1024)
    with refused("InvalidParameterValue|longer|shorter"):
        send(sqs, url, "é" * 600_000)


def test_characters_that_are_not_xml_are_refused(sqs: Any) -> None:
    with refused("InvalidMessageContents"):
        send(sqs, queue(sqs), "a\x00b")


def test_more_than_ten_attributes_are_refused(place: Any, sqs: Any) -> None:
    attributes = {f"a{n}": {"DataType": "String", "StringValue": "x"} for n in range(11)}
    url = queue(sqs)
    if differs(place, "more than ten attributes are refused"):
        send(sqs, url, "x", MessageAttributes=attributes)
        return
    with refused("exceeds the allowed maximum"):
        send(sqs, url, "x", MessageAttributes=attributes)


def test_the_counts_are_of_visible_in_flight_and_delayed_ones(sqs: Any) -> None:
    url = queue(sqs)
    send(sqs, url, *(f"m{n}" for n in range(9)))
    send(sqs, url, "later", DelaySeconds=100)
    assert len(receive(sqs, url, MaxNumberOfMessages=3)) == 3
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    names = (
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    )
    assert [told[name] for name in names] == ["6", "3", "1"]


class TestOnlyTheStandIn:
    """What no emulator can show: long times, caps, faults, a log of requests."""

    @pytest.fixture
    def stand(self) -> Iterator[Stand]:
        with Stand() as stand:
            yield stand

    def test_messages_expire_with_their_retention(self, stand: Stand) -> None:
        sqs = client("sqs", stand.url)
        url = queue(sqs, MessageRetentionPeriod="3600")
        send(sqs, url, "x")
        stand.passes(3599)
        assert len(receive(sqs, url, VisibilityTimeout=0)) == 1
        stand.passes(2)
        assert receive(sqs, url) == []

    def test_a_duplicate_is_taken_after_five_minutes(self, stand: Stand) -> None:
        sqs = client("sqs", stand.url)
        url = queue(sqs, fifo=True, ContentBasedDeduplication="true")
        [one] = send(sqs, url, "x", MessageGroupId="g")
        stand.passes(299)
        assert send(sqs, url, "x", MessageGroupId="g") == [one]
        stand.passes(2)
        assert send(sqs, url, "x", MessageGroupId="g") != [one]

    def test_at_the_in_flight_cap_a_short_poll_is_refused_and_a_long_one_finds_nothing(self, stand: Stand) -> None:
        sqs = client("sqs", stand.url)
        url = queue(sqs)
        stand.server.account.named(url.rpartition("/")[2]).in_flight_max = 5
        send(sqs, url, *(f"m{n}" for n in range(8)))
        assert len(receive(sqs, url)) == 5
        with refused("OverLimit"):
            receive(sqs, url)
        assert receive(sqs, url, WaitTimeSeconds=1) == []

    def test_a_long_poll_ends_when_something_is_sent(self, stand: Stand) -> None:
        import threading

        sqs = client("sqs", stand.url)
        url = queue(sqs)
        sender = threading.Timer(0.05, send, (client("sqs", stand.url), url, "x"))
        sender.start()
        while not (found := receive(sqs, url, WaitTimeSeconds=20)):
            pass
        assert bodies(found) == ["x"]
        sender.join()

    def test_faults_strike_the_next_calls_and_are_logged(self, stand: Stand) -> None:
        sqs, faults = client("sqs", stand.url), stand.server.faults
        url = queue(sqs)
        faults.throttle("SendMessage")
        with refused("RequestThrottled"):
            send(sqs, url, "x")
        faults.fail("SendMessage")
        with refused("InternalError"):
            send(sqs, url, "x")
        faults.fail_entries("SendMessageBatch", 1)
        answer = sqs.send_message_batch(
            QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "1"}, {"Id": "b", "MessageBody": "2"}]
        )
        assert [entry["Id"] for entry in answer["Failed"]] == ["a"] and len(answer["Successful"]) == 1
        assert [(r.action, r.entries, r.failed, r.status) for r in stand.server.log[1:]] == [
            ("SendMessage", 0, 0, 400), ("SendMessage", 0, 0, 500), ("SendMessageBatch", 2, 1, 200),
        ]  # fmt: skip

    def test_an_answer_may_be_lost_after_the_deed_and_a_call_before_it(self, stand: Stand) -> None:
        sqs, faults = client("sqs", stand.url), stand.server.faults
        url = queue(sqs)
        for lose, left in ((faults.lose_call, []), (faults.lose_answer, ["x"])):
            lose("SendMessage")
            with pytest.raises(Exception, match=r"[Cc]onnection"):
                send(sqs, url, "x")
            assert bodies(receive(sqs, url)) == left

    def test_its_end_closes_what_it_has_only_begun_to_accept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """asyncio loses a connection that it accepts while its server closes, or whose task has not begun."""
        unclosed: list[object] = []
        monkeypatch.setattr(sys, "unraisablehook", lambda said: unclosed.append(said.exc_value))
        for _ in range(10):
            with contextlib.ExitStack() as callers, SqsServer() as server:  # the server ends first
                port = int(server.url.rpartition(":")[2])
                for _ in range(3):
                    callers.enter_context(socket.create_connection((HOST, port)))
        gc.collect()
        assert unclosed == []
