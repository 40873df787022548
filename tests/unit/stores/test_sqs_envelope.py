"""Messages as they lie in SQS: a valid CloudEvent, of characters that SQS takes, and back the same."""

from __future__ import annotations

import gzip
import json
import re
from datetime import datetime
from importlib.resources import as_file, files
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from redrive.codec import Routes
from redrive.demo.plan import DATA
from redrive.fault import Fault, Kind
from redrive.ids import is_id, new_id
from redrive.message import ClaimRequest, Deferral, Lane, Message
from redrive.stores.sqs.wire import MessageState, claimed, read, unclaimed, write
from redrive.stores.sqs.wire.envelope import (
    ANY_BODY_MAX,
    BYTES_MAX,
    ENVELOPE_BYTES,
    own,
    size_of,
)
from redrive.stores.sqs.wire.message import FRESH
from redrive.testing.sqs.messages import check_body

NOW_MS = 1_800_000_000_123
ID = "0191f3a0-1c2b-7d3e-8f40-5a6b7c8d9e0f"
ROUTES = Routes()
READY = Message(
    ID, "crm.push", "crm", b'{"id": 42}', ID, due_ms=NOW_MS, enqueued_ms=NOW_MS, life_ms=NOW_MS, producer="host:1"
)
_ATTRIBUTE = re.compile(r"[a-z0-9]{1,20}")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_STRING = re.compile("[^\0-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]*")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
counts = st.integers(0, 2**31 - 1)
times = st.integers(1, 253_402_300_000_000)
bodies = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=100).map(lambda text: text.encode(errors="surrogatepass")),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=12,
    ).flatmap(
        lambda value: st.sampled_from([json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)]).map(
            lambda text: text.encode(errors="surrogatepass")
        )
    ),
)
faults = st.builds(Fault, kind=st.sampled_from(Kind), error=texts, text=texts, traceback=texts, at_ms=times)
messages = st.builds(
    Message,
    id=st.just(ID),
    task=texts,
    queue=texts,
    body=bodies,
    content=st.sampled_from(["json", "raw", "blob+json"]) | texts,
    correlation_id=texts,
    causation_id=st.none() | texts,
    traceparent=st.none() | texts,
    producer=st.none() | texts,
    key=st.none() | texts,
    group=st.none() | texts,
    headers=st.dictionaries(texts, texts, max_size=3),
    priority=st.sampled_from([0, 1, 2, 3]),
    version=st.integers(1, 2**62),
    keep_ms=st.integers(0, 2**62),
    deadline_ms=st.none() | st.integers(0, 2**62),
    enqueued_ms=times,
    life_ms=times,
    due_ms=st.none() | times,
    attempt=counts,
    crashes=counts,
    fence=counts,
    redrives=counts,
    suspect=st.booleans(),
    held_ms=counts,
    attempts_allowed=st.none() | counts,
    run=st.none() | texts,
    reason=st.none() | texts,
    rested_ms=st.none() | times,
    progress=st.none() | st.binary(max_size=20),
    deferral=st.none() | st.builds(Deferral, why=texts),
    faults=st.lists(faults, max_size=3).map(tuple),
)


def received(body: str, attributes: dict[str, Any], **system: str) -> dict[str, Any]:
    return {"MessageId": "m-1", "Body": body, "MessageAttributes": attributes, "Attributes": system}


def back(message: Message) -> Message:
    body, attributes = write(message, prefix="shop")
    check_body(body, attributes)  # raises for what SQS refuses: characters, more than 10 attributes, empty ones
    return read(received(body, attributes), queue=message.queue, routes=ROUTES)[0]


def event_of(message: Message) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(write(message, prefix="shop")[0])
    return event


def test_the_senders_trace_is_an_attribute_too_where_other_programs_look_for_it() -> None:
    sent = Message(ID, "push", "crm", b"{}", ID, traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert write(sent, prefix="shop")[1]["traceparent"] == {"DataType": "String", "StringValue": sent.traceparent}
    assert "traceparent" not in write(sent, prefix="shop", topic="events")[1]  # a subscriber's filter reads those


@settings(max_examples=40, deadline=None)
@given(messages)
def test_any_message_comes_back_as_it_was_written(message: Message) -> None:
    assert back(message) == message


@settings(max_examples=25, deadline=None)
@given(messages)
def test_every_envelope_is_a_valid_event(message: Message) -> None:
    event = event_of(message)
    assert event["specversion"] == "1.0"
    for name in ("id", "source", "type"):
        assert isinstance(event[name], str)
        assert event[name]
    assert re.fullmatch(r"redrive://shop/[\w.~%-]+", event["source"], re.ASCII)
    assert _RFC3339.fullmatch(event["time"])
    assert not ("data" in event and "data_base64" in event)
    for name, value in event.items():
        if name in ("data", "data_base64"):
            continue
        assert _ATTRIBUTE.fullmatch(name)
        assert isinstance(value, str | int)
        assert isinstance(value, str) or -(2**31) <= value < 2**31
        assert isinstance(value, int) or _STRING.fullmatch(value)


@settings(max_examples=80, deadline=None)
@given(bodies)
@example(b"")
@example(b"\0")
@example(b'"\xef\xbf\xbe"')
@example(b'"\xef\xbf\xbf"')
@example(b'"\\ud800"')
@example(b' {"a": 1}')
@example(b'{"a": 1}\n')
@example(b'{"a": 1, "a": 2}')
@example(b'1, "type": "other"')
@example(b'1}, {"id": 2')
@example(b'"\x7f\xc2\x85"')
@example(b"1e999")
@example(b"\xff\xfe")
@example(b"[" * 900 + b"]" * 900)
@example(b"[" * 100_000)
def test_a_body_arrives_byte_for_byte(body: bytes) -> None:
    for content in ("json", "raw"):
        message = replace(READY, body=body, content=content)
        assert back(message) == message


def test_a_body_of_json_stands_in_the_event_as_it_is() -> None:
    body = write(replace(READY, body=b'{"id":  42.00, "id":"\xc3\xa9"}'), prefix="shop")[0]
    assert '"data":{"id":  42.00, "id":"é"}' in body
    assert '"datacontenttype":"application/json"' in body


def test_real_webhooks_travel_as_they_are() -> None:
    with as_file(files("redrive.demo") / DATA) as path, gzip.open(path) as lines:
        bodies = [line.rstrip(b"\n") for line in lines]
    assert len(bodies) > 50
    for body in bodies:
        message = replace(READY, body=body)
        assert back(message) == message
        assert '"data_base64"' not in write(message, prefix="shop")[0]


def test_a_body_of_a_mebibyte_comes_back() -> None:
    message = replace(READY, body=b'"' + b"x" * (BYTES_MAX - ENVELOPE_BYTES) + b'"')
    assert back(message) == message


def test_any_body_up_to_its_bound_fits_with_the_longest_history() -> None:
    faults = tuple(Fault(Kind.DEFAULT, traceback="x" * 16_000, at_ms=n) for n in range(20))
    message = replace(READY, body=b"\0" * ANY_BODY_MAX, attempt=20, fence=20, faults=faults, headers={"a": "b" * 8000})
    assert size_of(*write(message, prefix="shop")) <= BYTES_MAX


def test_the_size_is_the_one_that_sqs_counts() -> None:
    message = replace(READY, body='"größer"'.encode(), attempt=1, fence=1, task="tür")
    body, attributes = write(message, prefix="shop")
    assert size_of(body, attributes) == check_body(body, attributes)


def test_a_fresh_message_needs_its_task_only_in_attributes() -> None:
    body, attributes = write(READY, prefix="shop")
    assert attributes == {"task": {"DataType": "String", "StringValue": "crm.push"}}
    assert read(received(body, attributes), queue="crm", routes=ROUTES) == (READY, FRESH)
    event = json.loads(body)
    assert datetime.fromisoformat(event.pop("time")).timestamp() == NOW_MS / 1000
    assert event == {
        "specversion": "1.0",
        "id": ID,
        "source": "redrive://shop/crm",
        "type": "crm.push",
        "rdversion": 1,
        "datacontenttype": "application/json",
        "rdproducer": "host:1",
        "data": {"id": 42},
    }


@pytest.mark.parametrize(
    "field", [name for name in MessageState.__struct_fields__ if hasattr(READY, name) and name != "id"]
)
def test_each_part_of_the_state_travels_by_itself(field: str) -> None:
    values = {
        "suspect": True, "run": "r", "reason": "r", "progress": b"", "deferral": Deferral("budget"),
        "faults": (Fault(Kind.DEFAULT),),
    }  # fmt: skip
    message = replace(READY, **{field: values.get(field, 7)})
    assert back(message) == message


def test_a_dead_message_says_why_in_attributes() -> None:
    fault = Fault(Kind.PERMANENT, error="ValueError", fingerprint="0011223344556677")
    dead = replace(READY, lane=Lane.DEAD, reason="permanent", rested_ms=NOW_MS, due_ms=None, faults=(fault,))
    attributes = write(dead, prefix="shop")[1]
    said = {name: value["StringValue"] for name, value in attributes.items()}
    assert said.keys() == {"task", "redrive", "reason", "error", "fingerprint"}
    assert (said["reason"], said["error"], said["fingerprint"]) == ("permanent", "ValueError", "0011223344556677")


def test_a_message_without_a_task_comes_back_without_one() -> None:
    assert back(replace(READY, task="")).task == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "1"},
        {"rdpriority": 9},
        {"rdversion": 0},
        {"rdversion": "x"},
        {"rddeadline": "-1"},
        {"rdkeep": "9" * 30},
        {"rdheaders": "[]"},
        {"rdheaders": '{"a": "\\u0000"}'},
        {"data_base64": "AA=="},
        {"specversion": "2.0"},
        {"time": "yesterday"},
        {"rdgroup": "\0"},
    ],
)
def test_an_envelope_that_is_not_quite_ours_is_kept_whole(changed: dict[str, Any]) -> None:
    body = json.dumps(json.loads(write(READY, prefix="shop")[0]) | changed)
    assert own(body, "crm") is None
    message, kept = read(received(body, {}, SentTimestamp="1800000000000"), queue="crm", routes=ROUTES)
    assert kept == FRESH
    assert is_id(message.id)
    assert message.content == "raw"


@pytest.mark.parametrize("state", ["", "{", '{"attempt": -1}', '{"attempt": "x"}', '{"reason": "\\u0000"}', "[]"])
def test_a_state_that_no_store_could_keep_is_left_out(state: str) -> None:
    body, _ = write(READY, prefix="shop")
    attributes = {"redrive": {"DataType": "String", "StringValue": state}}
    assert read(received(body, attributes), queue="crm", routes=ROUTES) == (READY, FRESH)


def test_fields_of_a_later_version_do_no_harm() -> None:
    body = json.dumps(json.loads(write(READY, prefix="shop")[0]) | {"rdlater": "x"})
    assert own(body, "crm") == replace(READY, body=b'{"id": 42}')


def test_each_queue_has_a_copy_of_its_own_of_what_a_topic_sent() -> None:
    body, _ = write(READY, prefix="shop", topic="orders")
    crm, mail = own(body, "crm"), own(body, "mail")
    assert crm is not None
    assert mail is not None
    assert own(body, "crm") == crm
    assert is_id(crm.id)
    assert len({crm.id, mail.id, ID}) == 3
    assert (crm.causation_id, crm.correlation_id) == (ID, ID)
    assert crm.id < new_id(NOW_MS + 1)


def test_odd_names_stay_readable_in_the_event() -> None:
    event = event_of(replace(READY, task="a\nb", group="g\x85"))
    assert (event["type"], event["rdgroup"]) == ("a\ufffdb", "g\ufffd")
    assert msgspec.json.decode(event["rdexact"]) == {"type": "a\nb", "rdgroup": "g\x85"}


@pytest.mark.parametrize("receives", [1, 2, 3, 5])
@pytest.mark.parametrize("alone", [0, 4])
def test_the_claim_after_a_receive_that_was_given_back_is_as_that_one_would_have_been(
    receives: int, alone: int
) -> None:
    """So no crash before it is forgotten, and no fence is given twice."""
    message, ask = Message("i", "t", "q", b"1", "c"), ClaimRequest("q", 1, 30_000)
    state = MessageState(attempt=1, crashes=1, crashes_alone=1, fence=7, receives=1, alone=alone)
    there = claimed(message, state, ask, receives=receives, counts_all=False, until_ms=9)
    after = unclaimed(state, receives)
    assert claimed(message, after, ask, receives=receives + 1, counts_all=False, until_ms=9) == there
    assert unclaimed(after, receives) == after
