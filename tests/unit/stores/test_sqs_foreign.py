"""What others send to SQS: it becomes a message all the same, led to a task, its bytes as they came."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive import App, Draft, Idempotency, Retry
from redrive.codec import UNROUTED, Codec, Route, Routes
from redrive.errors import ConfigError, Unreadable
from redrive.fault import Fault, Kind
from redrive.ids import is_id
from redrive.message import Counts, Message
from redrive.stores.sqs.store import SqsStore
from redrive.stores.sqs.wire import read, write
from redrive.stores.validation import unstorable

SENT_MS = 1_800_000_000_123
S3_EVENT = {
    "Records": [
        {
            "eventVersion": "2.1",
            "eventSource": "aws:s3",
            "awsRegion": "eu-central-1",
            "eventTime": "2026-11-21T18:00:00.000Z",
            "eventName": "ObjectCreated:Put",
            "s3": {
                "s3SchemaVersion": "1.0",
                "bucket": {"name": "uploads", "arn": "arn:aws:s3:::uploads"},
                "object": {"key": "in/a+b%C3%A9.csv", "size": 1024, "eTag": "d41d8", "sequencer": "0A1B"},
            },
        }
    ]
}


def text(value: str) -> dict[str, Any]:
    return {"DataType": "String", "StringValue": value}


def received(body: str, attributes: Mapping[str, Any] | None = None, **system: Any) -> dict[str, Any]:
    system = {"SentTimestamp": str(SENT_MS), "ApproximateReceiveCount": "1"} | system
    return {"MessageId": "m-1", "Body": body, "MessageAttributes": attributes or {}, "Attributes": system}


def taken(raw: Mapping[str, Any], route: str | Route | None = None, queue: str = "orders") -> Message:
    routes = Routes()
    if route is not None:
        routes.add("orders", route)
    return read(raw, queue=queue, routes=routes)[0]


def wrapped(message: str, **attributes: str) -> str:
    note = {
        "Type": "Notification",
        "MessageId": "sns-1",
        "TopicArn": "arn:aws:sns:eu-central-1:000000000000:orders",
        "Subject": "new",
        "Message": message,
        "Timestamp": "2026-11-21T18:00:00.000Z",
        "MessageAttributes": {name: {"Type": "String", "Value": value} for name, value in attributes.items()},
    }
    return json.dumps(note)


# -- what becomes of it


def test_plain_json_keeps_its_bytes_and_takes_the_route_of_its_queue() -> None:
    message = taken(received('{ "order":  7}', {"tenant": text("t1")}), "orders.place")
    assert (message.task, message.queue, message.content) == ("orders.place", "orders", "raw")
    assert message.body == b'{ "order":  7}'
    assert message.enqueued_ms == message.life_ms == message.due_ms == SENT_MS
    assert message.headers == {"tenant": "t1", "aws-message-id": "m-1"}


def test_the_same_message_has_the_same_id_at_every_delivery() -> None:
    once, again = received("x"), received("x", ApproximateReceiveCount="2")
    assert taken(once).id == taken(again).id
    assert is_id(taken(once).id)
    assert taken(once | {"MessageId": "m-2"}).id != taken(once).id
    assert taken(once).id[:13].replace("-", "") == f"{SENT_MS:012x}"


def test_a_message_that_came_before_says_how_often_and_since_when() -> None:
    raw = received("x", ApproximateReceiveCount="3", ApproximateFirstReceiveTimestamp=str(SENT_MS + 1000))
    headers = taken(raw).headers
    assert headers["aws-receive-count"] == "3"
    assert headers["aws-first-received"] == "2027-01-15T08:00:01.123+00:00"


def test_a_group_a_correlation_and_a_trace_are_taken_over() -> None:
    given = {"correlation_id": text("c-1"), "traceparent": text("00-a-b-01")}
    message = taken(received("x", given, MessageGroupId="tenant-7"))
    assert (message.group, message.correlation_id, message.traceparent) == ("tenant-7", "c-1", "00-a-b-01")


def test_a_binary_attribute_becomes_base64() -> None:
    assert taken(received("x", {"raw": {"DataType": "Binary", "BinaryValue": b"\0\xff"}})).headers["raw"] == "AP8="


def test_what_a_topic_wrapped_is_unwrapped() -> None:
    message = taken(received(wrapped('{"order": 7}', tenant="t1")), "orders.place")
    assert message.body == b'{"order": 7}'
    assert message.headers["tenant"] == "t1"
    assert message.headers["aws-sns-topic"].endswith(":orders")
    assert (message.headers["aws-sns-subject"], message.headers["aws-sns-message-id"]) == ("new", "sns-1")


def test_our_own_envelope_is_found_inside_what_a_topic_wrapped() -> None:
    id = "0191f3a0-1c2b-7d3e-8f40-5a6b7c8d9e0f"
    ours = Message(
        id, "crm.push", "crm", b'{"a":1}', id, due_ms=SENT_MS, enqueued_ms=SENT_MS, life_ms=SENT_MS, headers={"h": "v"}
    )
    body, _ = write(ours, prefix="shop")
    assert taken(received(wrapped(body, task="other")), "orders.place", queue="crm") == ours


def test_an_event_of_others_names_its_task_by_its_type_and_gives_its_data() -> None:
    event = {"specversion": "1.0", "id": "e-1", "source": "/shop", "type": "order.placed", "data": {"order": 7}}
    message = taken(received(json.dumps(event)))
    assert (message.task, message.body, message.content) == ("order.placed", b'{"order": 7}', "raw")
    assert (message.causation_id, message.correlation_id) == ("e-1", "e-1")
    assert message.headers == {
        "ce-id": "e-1", "ce-source": "/shop", "ce-type": "order.placed", "aws-message-id": "m-1",
    }  # fmt: skip
    assert taken(received(json.dumps(event)), "orders.place").task == "orders.place"


def test_an_event_that_is_sent_twice_is_one_message_in_a_queue_and_another_in_the_next() -> None:
    event = {"specversion": "1.0", "id": "e-1", "source": "/shop", "type": "t", "time": "2026-11-21T18:00:00Z"}
    first, second = received(json.dumps(event)), received(json.dumps(event)) | {"MessageId": "m-2"}
    second["Attributes"]["SentTimestamp"] = str(SENT_MS + 5000)
    assert taken(first).id == taken(second).id
    assert taken(first, queue="mail").id != taken(first).id


# -- routes


@pytest.mark.parametrize(
    ("route", "attributes", "task"),
    [
        (None, {}, ""),
        (None, {"task": text("named")}, "named"),
        ("routed", {}, "routed"),
        ("routed", {"task": text("named")}, "routed"),
        (("routed", "named"), {"task": text("named")}, "named"),
        (("routed", "named"), {"task": text("other")}, "routed"),
        (lambda body, attributes: f"kind.{body['kind']}", {}, "kind.a"),
        (lambda body, attributes: attributes["tenant"], {"tenant": text("t1"), "task": text("named")}, "t1"),
        (lambda body, attributes: None, {"task": text("named")}, "named"),
        (lambda body, attributes: None, {}, ""),
    ],
)
def test_a_route_leads_to_a_task(route: Any, attributes: dict[str, Any], task: str) -> None:
    assert taken(received('{"kind": "a"}', attributes), route).task == task


@pytest.mark.parametrize(
    ("route", "why"),
    [
        (lambda body, attributes: body["missing"], "KeyError: 'missing'"),
        (lambda body, attributes: 7, "the route of queue 'orders' returned int, expected a task's name or None"),
    ],
)
def test_a_route_that_fails_says_so_in_a_header(route: Route, why: str) -> None:
    message = taken(received("{}"), route)
    assert (message.task, message.headers[UNROUTED]) == ("", why)


@pytest.mark.parametrize(("body", "seen"), [('{"a": 1}', {"a": 1}), ("text", "text"), ("[", "[")])
def test_a_routing_function_sees_json_as_its_value_and_other_text_as_text(body: str, seen: Any) -> None:
    found: list[Any] = []
    taken(received(body), lambda given, attributes: found.append(given))
    assert found == [seen]


def test_the_app_leads_foreign_messages_of_a_queue_to_a_task() -> None:
    app = App("memory://")

    @app.task(name="orders.place")
    def place(event: dict[str, Any]) -> None: ...

    assert app.queue("orders", foreign=place).foreign == "orders.place"
    assert app.queue("orders", foreign="other").foreign == "other"
    with pytest.raises(ConfigError, match="expected a task or its name, a tuple of them, or a function"):
        app.queue("orders", foreign=7)  # type: ignore[arg-type]


def test_a_store_that_others_send_to_is_told_of_the_routes() -> None:
    app = App("memory://")
    app.queue("orders", foreign="orders.place")
    store = SqsStore("sqs://eu-central-1/shop?endpoint=http://127.0.0.1:9")
    app.queues["orders"].apply(store)
    assert store.routes.task_of("orders", {}, {}) == ("orders.place", None)
    store.close()


anything = st.one_of(
    st.text(),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["Type", "Message", "data", "id"]), inner),
        max_leaves=5,
    ).map(json.dumps),
    st.text().map(wrapped),
)


@settings(max_examples=80, deadline=None)
@given(anything, st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5).map(text), max_size=2))
def test_anything_is_read_and_can_be_stored_and_sent_again(body: str, attributes: dict[str, Any]) -> None:
    message = taken(received(body, attributes))
    assert unstorable(message) is None
    again, sent = write(message, prefix="shop")
    assert read(received(again, sent), queue="orders", routes=Routes())[0] == message


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"Body": None},
        {"Body": "x", "Attributes": None, "MessageAttributes": None},
        received("x", SentTimestamp="soon", ApproximateReceiveCount="-", ApproximateFirstReceiveTimestamp="9" * 30),
        received("[" * 100_000),
        received('"\\ud800"'),
        received("\ud800\udc80 lone", {"a": text("\udfff")}),
        received(wrapped("\0", tenant="\0")),
        received(json.dumps({"specversion": "1.0", "id": "\0", "source": "\0", "type": "\0", "data": 1})),
        received(json.dumps({"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data_base64": "?"})),
    ],
)
def test_no_body_is_too_odd_to_be_kept(raw: dict[str, Any]) -> None:
    message = taken(raw)
    assert is_id(message.id)
    assert unstorable(message) is None


# -- arguments


def _codec(handler: Callable[..., Any]) -> Codec:
    return Codec(handler, "t")


def takes_event(event: dict[str, Any]) -> None: ...
def takes_any(body: Any) -> None: ...
def takes_text(body: str) -> None: ...
def takes_bytes(body: bytes) -> None: ...
def takes_object(bucket: str, key: str, *, size: int = 0, event_name: str = "") -> None: ...
def takes_name(order: int) -> None: ...


@pytest.mark.parametrize(
    ("handler", "body", "argument"),
    [
        (takes_event, b'{"order": 7, "event": {}}', {"order": 7, "event": {}}),
        (takes_event, b'{"event": {"order": 7}}', {"order": 7}),
        (takes_any, b"[1, 2]", [1, 2]),
        (takes_any, b"plain text", "plain text"),
        (takes_any, b"\xff\xfe", b"\xff\xfe"),
        (takes_text, b'{"a": 1}', '{"a": 1}'),
        (takes_text, b"plain", "plain"),
        (takes_bytes, b"\xff{}", b"\xff{}"),
        (takes_name, b'{"order": 7}', 7),
    ],
)
def test_one_argument_called_body_or_event_takes_all_of_it(
    handler: Callable[..., Any], body: bytes, argument: Any
) -> None:
    args, kwargs = _codec(handler).decode(body, 1, raw=True)
    assert [*args, *kwargs.values()] == [argument]


@pytest.mark.parametrize(
    ("handler", "body"),
    [
        (takes_event, b"[1]"),
        (takes_event, b'{"event": 7}'),
        (takes_text, b"\xff"),
        (takes_name, b"[7]"),
        (takes_name, b'{"order": 7, "more": 1}'),
        (takes_object, json.dumps({"Records": S3_EVENT["Records"] * 2}).encode()),
        (takes_object, b'{"Records": []}'),
        (takes_name, json.dumps(S3_EVENT).encode()),
    ],
)
def test_what_does_not_fit_is_unreadable_as_ever(handler: Callable[..., Any], body: bytes) -> None:
    with pytest.raises(Unreadable):
        _codec(handler).decode(body, 1, raw=True)


def test_a_body_of_our_own_is_never_taken_whole() -> None:
    with pytest.raises(Unreadable):
        _codec(takes_event).decode(b'{"payload": {}}', 1)


def test_an_event_of_s3_gives_a_handler_what_it_asks_for_by_name() -> None:
    args, kwargs = _codec(takes_object).decode(json.dumps(S3_EVENT).encode(), 1, raw=True)
    assert (args, kwargs) == (
        (), {"bucket": "uploads", "key": "in/a bé.csv", "size": 1024, "event_name": "ObjectCreated:Put"},
    )  # fmt: skip
    assert _codec(takes_event).decode(json.dumps(S3_EVENT).encode(), 1, raw=True) == ((), {"event": S3_EVENT})


S3_TEST = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "uploads"}).encode()


@pytest.mark.parametrize("options", [{}, {"idempotency": Idempotency(key=lambda bucket, key: key)}])
def test_the_test_event_of_s3_is_done_without_a_run(options: dict[str, Any]) -> None:
    app = App("memory://")
    seen: list[str] = []

    @app.task(name="index", **options)
    def index(bucket: str, key: str) -> None:
        seen.append(key)

    bodies = [S3_TEST, json.dumps(S3_EVENT).encode()]
    app.store.put([Draft(task="index", body=body, content="raw") for body in bodies])
    app.run_worker(burst=True)
    assert seen == ["in/a bé.csv"]
    assert app.counts() == Counts()


def test_only_s3_itself_sends_the_test_event() -> None:
    assert _codec(takes_object).has_nothing(S3_TEST)
    assert not _codec(takes_event).has_nothing(S3_TEST)
    for body in (b'{"Event": "s3:TestEvent"}', b'"s3:TestEvent"', json.dumps(S3_EVENT).encode()):
        assert not _codec(takes_object).has_nothing(body)


def test_a_worker_gives_a_whole_foreign_body_to_its_handler() -> None:
    app = App("memory://")
    seen: list[Any] = []

    @app.task(name="orders.place")
    def place(event: dict[str, Any]) -> None:
        seen.append(event)

    app.store.put([Draft(task="orders.place", body=b'{"order": 7}', content="raw")])
    app.store.put([Draft(task="orders.place", body=b'{"order": 8}')])
    app.run_worker(burst=True)
    assert seen == [{"order": 7}]
    (dead,) = app.dlq.list().messages
    assert isinstance(dead.faults[-1], Fault)
    assert dead.faults[-1].kind is Kind.UNREADABLE


def test_a_whole_foreign_body_can_be_edited_and_is_still_taken_whole() -> None:
    app = App("memory://")
    seen: list[Any] = []

    @app.task(name="orders.place", retry=Retry(max_attempts=1))
    def place(event: dict[str, Any]) -> None:
        seen.append(event)
        if event["order"] == 7:
            raise ValueError("no such order")

    (put,) = app.store.put([Draft(task="orders.place", body=b'{"order": 7}', content="raw")])
    app.run_worker(burst=True)
    app.dlq.edit(put.id, body='{"order": 8}', reason="a typing error", actor="me")
    app.run_worker(burst=True)
    assert seen == [{"order": 7}, {"order": 8}]
