"""Whoever may only send to a queue gets nothing of redrive's own by it, and stops nobody else.

Readers of foreign bytes are given whatever a sender can write: messages of SQS and notifications of SNS, events of
CloudEvents, envelopes of Celery, records of Lambda, exported lines. Each answers with a message or its one refusal.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.aws.sqs_world import FAULT, World, claim, settle

from redrive import App, Retry
from redrive.aws.dead_letters.message import dead_letter
from redrive.aws.lambda_.events import is_whole, raw_of, records_of
from redrive.codec import Codec, Routes
from redrive.contrib.celery import CeleryBridge
from redrive.contrib.celery.envelope import CeleryTask, CeleryUnsupported, key_of, read
from redrive.contrib.celery.source import Taken
from redrive.decide import tried_ms
from redrive.errors import ConfigError, EnqueueError, Unreadable
from redrive.fault import Kind
from redrive.message import ClaimRequest, DeadLetter, Draft, Lane, Message, Redrive
from redrive.stores.memory.store import MemoryStore
from redrive.stores.sqs.wire import MessageState, claimed
from redrive.stores.sqs.wire import read as read_sqs
from redrive.stores.sqs.wire import write as write_sqs
from redrive.stores.validation import unstorable
from redrive.triage.export import import_lines, write_line

texts = st.text(max_size=30) | st.sampled_from(
    ["", "a\0b", "\ud800", "1" * 400, "aws-verbatim", "redrive-x", "celery-next"]
)
numbers = st.integers() | st.floats() | st.sampled_from([10**400, -(10**18), 10**18, 2**31 - 1, -1])
odd = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with world.server:
        yield world
        for store in world.stores:
            store.close()


# -- SQS, SNS, CloudEvents


def sent(world: World, body: str, **attributes: str) -> None:
    given = {name.replace("_", "-"): {"DataType": "String", "StringValue": text} for name, text in attributes.items()}
    world.stores[0].sqs.call(
        "SendMessage", QueueUrl=world.stores[0].sqs_queues.of("default").url, MessageBody=body, MessageAttributes=given
    )


def died(world: World, store: Any, count: int) -> list[Message]:
    """Claim so many, let each die, and bring them into the triage store."""
    for delivery in claim(store, count):
        settle(store, delivery, DeadLetter("rejected", "no"), fault=FAULT)
    return list(store.peek(Lane.DEAD).messages)


@pytest.mark.parametrize("attributes", [{"aws_verbatim": "{"}, {"aws_verbatim": '{"a": 1}'}, {"aws_message_id": "x"}])
def test_an_attribute_named_like_redrives_own_header_stops_neither_the_outbox_nor_its_neighbours(
    world: World, attributes: dict[str, str]
) -> None:
    store = world.open(triage=True)
    store.route("default", "push")
    sent(world, "hostile", **attributes)
    sent(world, "innocent")
    dead = died(world, store, 2)
    assert len(dead) == 2
    assert store.triage([message.handle for message in dead], Redrive()) == [True, True]
    back = claim(store)
    assert sorted(delivery.message.body for delivery in back) == [b"hostile", b"innocent"]
    assert store.counts().dead == 0


def test_a_dead_letter_of_another_consumer_goes_back_with_the_attributes_that_it_had(world: World) -> None:
    given = {name: {"DataType": "String", "StringValue": "x"} for name in ("aws-verbatim", "Redrive-Dead-Id", "plain")}
    raw = {"MessageId": "m", "ReceiptHandle": "r", "Body": "b", "Attributes": {}, "MessageAttributes": given}
    letter = dead_letter(raw, queue="q", lane=Lane.DEAD, routes=Routes(), now_ms=1).message
    assert {name for name in letter.headers if name.startswith("sender:")} == {
        "sender:aws-verbatim",
        "sender:Redrive-Dead-Id",
    }
    body, attributes = write_sqs(letter, prefix="shop")
    assert body == "b" and {name: attributes[name] for name in given} == given


def test_an_exception_of_one_message_in_the_outbox_is_that_messages(world: World, monkeypatch: Any) -> None:
    store = world.open(triage=True)
    store.put([Draft(task="push", body=body) for body in (b"1", b"2", b"3")])
    dead = died(world, store, 3)
    sender, whole = store._sender, type(store._sender)._written

    def written(self: Any, message: Message) -> Any:
        if message.body == b"2":
            raise ArithmeticError("a bug")
        return whole(self, message)

    monkeypatch.setattr(type(sender), "_written", written)
    store.triage([message.handle for message in dead], Redrive())
    assert sorted(delivery.message.body for delivery in claim(store)) == [b"1", b"3"]
    [left] = store.peek(Lane.DEAD).messages
    assert left.body == b"2" and "ArithmeticError: a bug" in left.faults[-1].text


def test_status_counts_what_waits_in_the_outbox_and_asks_for_a_person_when_it_stays(world: World) -> None:
    store = world.open(triage=True)
    store.put([Draft(task="push", body=body) for body in (b"1", b"2", b"3")])
    dead = died(world, store, 3)
    app = App(store=store)
    assert not [hold for hold in app.status().holds if hold.kind == "outbox"]
    world.server.faults.fail_entries("SendMessageBatch", 100)
    store.triage([message.handle for message in dead], Redrive())
    [hold] = [hold for hold in app.status().holds if hold.kind == "outbox"]
    assert (hold.count, hold.queue, hold.needs_person) == (3, "default", False)
    world.clock.advance("2m")
    [need] = [need for need in app.status().needs if "outbox" in need.text]
    assert "queue default wait in the outbox to be sent back; the queue takes nothing" in need.text


@pytest.mark.parametrize(
    ("foreign", "task"),
    [
        ("safe", "safe"),
        (("safe", "other"), "safe"),
        (("safe", "danger"), "danger"),
        (lambda body, attributes: "safe", "safe"),
    ],
)
def test_the_task_of_a_foreign_message_is_one_that_foreign_names(world: World, foreign: Any, task: str) -> None:
    store = world.open()
    store.route("default", foreign)
    sent(world, "{}", task="danger")
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "danger", "data": {}}
    sent(world, json.dumps(event))
    assert [delivery.message.task for delivery in claim(store)] == [task, task]


def test_a_forged_envelope_runs_no_other_task_than_foreign_names(world: World) -> None:
    store = world.open()
    written, _ = write_sqs(store_message("danger", {"x": "y"}), prefix="shop")
    forged = json.loads(written) | {"rdheaders": json.dumps({"aws-verbatim": "{", "x": "y"})}
    store.route("default", "safe")
    sent(world, json.dumps(forged))
    [delivery] = claim(store)
    assert delivery.message.task == "" and "takes 'safe' only" in delivery.message.headers["redrive-unrouted"]
    assert "aws-verbatim" not in delivery.message.headers and delivery.message.headers["x"] == "y"
    with pytest.raises(EnqueueError, match=r"takes 'safe' only.*foreign=\(…\)"):
        store.put([Draft(task="danger")])
    store.put([Draft(task="safe")])


@pytest.mark.parametrize("foreign", [None, lambda body, attributes: "safe"], ids=["no foreign=", "a function"])
def test_a_forged_envelope_names_its_task_where_foreign_names_none(world: World, foreign: Any) -> None:
    store = world.open()
    if foreign is not None:
        store.route("default", foreign)
    sent(world, write_sqs(store_message("danger", {}), prefix="shop")[0])
    assert [delivery.message.task for delivery in claim(store)] == ["danger"]


def store_message(task: str, headers: dict[str, str]) -> Message:
    id = "01890000-0000-7000-8000-000000000001"
    return Message(id, task, "default", b"{}", id, headers=headers, due_ms=1, enqueued_ms=1, life_ms=1)


@pytest.mark.parametrize(
    "body",
    [
        {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "time": "2026-01-31T12:00:00"},
        json.loads(write_sqs(store_message("t", {}), prefix="shop")[0]) | {"time": "2026-01-31T12:00:00"},
    ],
    ids=["an event", "an envelope"],
)
@pytest.mark.parametrize("topic", [False, True])
def test_an_event_whose_time_has_no_zone_stops_no_claim(world: World, body: dict[str, Any], topic: bool) -> None:
    store = world.open()
    note = {"Type": "Notification", "MessageId": "n", "TopicArn": "arn", "Message": json.dumps(body)}
    sent(world, json.dumps(note if topic else body))
    store.put([Draft(task="push")])
    assert sorted(delivery.message.task for delivery in claim(store)) == ["push", "t"]


@pytest.mark.parametrize(
    "state",
    [
        {"due_ms": 10**400},
        {"due_ms": -1},
        {"receives": 10**400},
        {"receives": -(10**400)},
        {"alone": 10**400},
        {"attempt": 10**4200},
        {"faults": [{"kind": "transient", "at_ms": 10**400}]},
        {"faults": [{"kind": "transient", "retry_after_s": 1e308}]},
        {"faults": [{"kind": "crashed", "crash": {"peak_bytes": 10**400}}]},
        {"deferral": {"why": "limit", "at_ms": 10**400}},
    ],
    ids=lambda state: json.dumps(state)[:40],
)
def test_a_forged_state_with_a_number_that_no_store_holds_counts_for_nothing(
    world: World, state: dict[str, Any]
) -> None:
    store = world.open(triage=True)
    store.route("default", "push")
    sent(world, "forged", redrive=json.dumps(state | {"attempt": state.get("attempt", 3)}))
    store.put([Draft(task="push")])
    deliveries = claim(store)
    assert sorted((d.message.body, d.message.attempt, d.message.crashes) for d in deliveries) == [
        (b"forged", 1, 0), (b"{}", 1, 0),
    ]  # fmt: skip
    for delivery in deliveries:
        settle(store, delivery, DeadLetter("rejected", "no"), fault=FAULT)
    assert store.counts().dead == 2


attribute = st.fixed_dictionaries(
    {}, optional={"DataType": texts, "StringValue": texts, "BinaryValue": st.binary() | texts}
)
fates = st.fixed_dictionaries(
    {"kind": st.sampled_from(Kind)},
    optional=dict.fromkeys(("error", "text", "fingerprint", "errors", "worker"), odd)
    | dict.fromkeys(("retry_after_s", "at_ms", "attempt", "delay_ms", "ran_ms", "tried_ms", "due_ms"), numbers),
)
states = st.fixed_dictionaries(
    {},
    optional={
        name: numbers | odd | (st.lists(fates, max_size=2) if name == "faults" else st.nothing())
        for name in MessageState.__struct_fields__
    },
)
raws = st.fixed_dictionaries(
    {"MessageId": texts, "ReceiptHandle": texts},
    optional={
        "Body": texts | odd.map(lambda value: json.dumps(value)),
        "Attributes": st.dictionaries(
            st.sampled_from(["SentTimestamp", "ApproximateReceiveCount", "MessageGroupId"]), texts
        ),
        "MessageAttributes": st.dictionaries(
            texts | st.sampled_from(["redrive", "task", "traceparent"]), attribute, max_size=4
        ),
    },
)
notes = st.fixed_dictionaries(
    {"Type": st.just("Notification"), "MessageId": texts, "TopicArn": texts, "Message": texts},
    optional={"Subject": odd, "MessageAttributes": odd},
)
events = st.fixed_dictionaries(
    {"specversion": st.sampled_from(["1.0", "1.x", "2"]), "id": texts, "source": texts, "type": texts},
    optional={"data": odd, "data_base64": texts,
              "time": texts | st.datetimes().map(lambda time: time.isoformat())
              | st.sampled_from(["9999-12-31T23:59:59.9999999Z", "0001-01-01T00:00:00+12:00"]),
              "rdversion": odd, "rdheaders": texts, "rddeadline": texts, "traceparent": texts},
)  # fmt: skip


@given(raws, st.none() | notes | events, st.none() | states)
def test_whatever_a_queue_of_sqs_holds_is_read(raw: dict[str, Any], body: Any, state: Any) -> None:
    if body is not None:
        raw["Body"] = json.dumps(body)
    if state is not None:
        raw.setdefault("MessageAttributes", {})["redrive"] = {"StringValue": json.dumps(state)}
    message, kept = read_sqs(raw, queue="q", routes=Routes())
    assert not any("\0" in text for text in (*message.headers, *message.headers.values()))
    assert unstorable(message) is None and 0 <= kept.receives < 2**31
    ask = ClaimRequest("q", 1, 1000)
    claimed(message, kept, ask, receives=1, counts_all=False, until_ms=1)
    tried_ms(message, FAULT, Retry(), 1)
    letter = dead_letter(raw, queue="q", lane=Lane.DEAD, routes=Routes(), now_ms=1).message
    write_sqs(letter, prefix="shop")


HANDLERS: list[Any] = [
    lambda body: None,
    lambda event: None,
    lambda bucket, key, size=0: None,
    lambda number, text="": None,
]
HANDLERS[1].__annotations__ = {"event": dict[str, int]}
HANDLERS[3].__annotations__ = {"number": int, "text": str}
bodies = st.binary(max_size=60) | odd.map(lambda value: json.dumps(value).encode())
s3 = st.fixed_dictionaries({"bucket": odd, "object": odd}).map(lambda s3: {"Records": [{"s3": s3}]})


@given(bodies | (odd | s3).map(lambda value: json.dumps(value).encode()), st.sampled_from(HANDLERS))
@example(b"[" * 10**5, HANDLERS[0])
@example(b'{"key": ' * 10**4 + b"1" + b"}" * 10**4, HANDLERS[2])
def test_any_body_of_a_foreign_message_is_arguments_or_unreadable(body: bytes, handler: Any) -> None:
    codec = Codec(handler, "push")
    codec.has_nothing(body)
    with contextlib.suppress(Unreadable):
        codec.decode(body, 1, raw=True)


# -- Lambda

records = st.fixed_dictionaries(
    {"eventSource": st.just("aws:sqs"), "messageId": texts.filter(bool)},
    optional=dict.fromkeys(("receiptHandle", "body", "attributes", "messageAttributes", "eventSourceARN"), odd),
)


@given(st.lists(records | odd, max_size=4))
def test_odd_records_of_lambda_fail_alone(some: list[Any]) -> None:
    try:
        taken = records_of({"Records": some})
    except ConfigError:
        return
    for record in taken:
        if is_whole(record):
            read_sqs(raw_of(record), queue="q", routes=Routes())


# -- Celery

ODD_FIELDS: list[dict[str, Any]] = [
    {"headers": {"retries": 1e400}},
    {"properties": {"priority": float("inf")}},
    {"headers": {"eta": 10**18}},
    {"embed": {"chain": {}}},
    {"embed": {"chain": [{}]}},
    {"embed": {"callbacks": [{"task": "ok", "options": {"countdown": 1e400}}]}},
    {"embed": {"chain": [{"task": "ok", "options": {"countdown": 10**18}}]}},
    {"embed": {"chain": [{"task": "ok", "options": {"expires": -(10**18)}}]}},
    {"args": [{"__type__": "uuid", "__value__": 5}]},
    {"properties": [1]},
    {"headers": {"id": "\ud800"}},
]


TAGS = count()


def envelope(changes: dict[str, Any] | None = None, **headers: Any) -> bytes:
    changes = changes or {}
    body = [changes.get("args", []), changes.get("kwargs", {}), changes.get("embed", {})]
    properties: Any = {"body_encoding": "base64", "delivery_tag": f"tag {next(TAGS)}"}
    if isinstance(more := changes.get("properties", {}), dict):
        properties |= more
    else:
        properties = more
    written = {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-type": "application/json",
        "headers": {"task": "ok", "id": "one", **changes.get("headers", {}), **headers},
        "properties": properties,
    }
    return json.dumps(written).encode()


class Held:
    """A broker that holds these until they are removed, as the bridge's own place on Redis does."""

    where = "here"

    def __init__(self, raws: list[bytes]) -> None:
        self.taken = [Taken(raw, str(at)) for at, raw in enumerate(raws)]

    def take(self, queue: str, most: int) -> list[Taken]:
        return self.taken[:most]

    def remove(self, queue: str, taken: list[Taken]) -> None:
        self.taken = [each for each in self.taken if each not in taken]

    def refuse(self, queue: str, taken: Taken) -> str:
        self.taken.remove(taken)
        return "aside"

    def close(self) -> None: ...


class Port:
    """An app with a bridge to messages that lie there."""

    def __init__(self, folder: Path) -> None:
        self.app = App(f"sqlite:///{folder / 'work.db'}")
        self.ran: list[str] = []

        @self.app.task(name="ok")
        def ok(canary: str = "") -> None:
            self.ran.append("ok")

        @self.app.task(name="wipe")
        def wipe(*, canary: str) -> None:
            self.ran.append(f"wipe {canary}")

        self.wipe, self.ok = wipe, ok
        self.bridge = CeleryBridge(self.app, "redis://127.0.0.1:1/0")

    def move(self, raws: list[bytes]) -> Any:
        self.bridge._source = Held(raws)  # type: ignore[assignment]
        return self.bridge.run(burst=True)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Port]:
    made = Port(tmp_path)
    yield made
    made.app.store.close()


def test_no_message_of_celerys_stops_those_behind_it(port: Port) -> None:
    moved = port.move([*(envelope(changes) for changes in ODD_FIELDS), b"\xff", b"[" * 10**5, envelope(id="last")])
    assert moved.taken == len(ODD_FIELDS) + 3 and moved.refused == 0
    port.app.run_worker(burst=True)
    assert port.ran.count("ok") == moved.taken - moved.parked
    assert port.app.counts().dead == moved.parked >= len(ODD_FIELDS) - 1


celery_changes = st.fixed_dictionaries(
    {},
    optional={
        "args": odd,
        "kwargs": odd,
        "embed": odd | st.fixed_dictionaries({}, optional=dict.fromkeys(("callbacks", "chain", "errbacks"), odd)),
        "headers": st.dictionaries(texts | st.sampled_from(["retries", "eta", "expires", "root_id"]), odd, max_size=4),
        "properties": odd,
    },
)


@given(celery_changes)
@example({"headers": {"retries": 1e400}})
def test_any_envelope_of_celerys_is_read_or_unsupported(changes: dict[str, Any]) -> None:
    raw = envelope(changes)
    assert key_of(raw).startswith("celery:")
    with contextlib.suppress(CeleryUnsupported):
        assert isinstance(read(raw), CeleryTask)


@given(st.binary(max_size=200))
def test_any_bytes_from_a_broker_are_read_or_unsupported(raw: bytes) -> None:
    key_of(raw)
    with pytest.raises(CeleryUnsupported):
        read(raw)


NEXT = json.dumps({"callbacks": [{"task": "wipe", "kwargs": {"canary": "CANARY"}}]})


def test_a_header_that_names_what_runs_next_is_followed_only_with_the_bridges_proof(port: Port) -> None:
    port.ok.using(headers={"celery-next": NEXT, "celery-id": "one"}).enqueue()
    forged = "0" * 64 + ":" + NEXT
    port.ok.using(headers={"celery-next": forged}).enqueue()
    port.move([envelope({}, **{"celery-next": NEXT})])  # a header of a producer's
    port.app.run_worker(burst=True)
    assert port.ran == ["ok"] * 3
    assert ["no bridge of this store wrote" in m.faults[-1].text for m in port.app.store.peek(Lane.DEAD).messages] == [
        True,
        True,
    ]


def test_a_proof_counts_for_its_own_message_only(port: Port) -> None:
    chained = envelope({"embed": {"callbacks": [{"task": "wipe", "kwargs": {"canary": "1"}, "immutable": True}]}})
    port.move([chained])
    [moved] = port.app.store.peek(Lane.READY).messages
    copied = dict(moved.headers) | {"celery-id": "two"}
    port.ok.using(headers=copied).enqueue()
    port.app.run_worker(drain=True)
    assert port.ran.count("wipe 1") == 1 and port.app.counts().dead == 1


# -- exports


LINE = write_line(replace(store_message("push", {}), lane=Lane.DEAD, reason="rejected", rested_ms=2, due_ms=None))
FIELDS = sorted(json.loads(LINE))


@given(st.dictionaries(st.sampled_from(FIELDS) | texts, odd, max_size=3), st.binary(max_size=20))
def test_any_exported_line_is_imported_or_refused_alone(changes: dict[str, Any], more: bytes) -> None:
    other = json.loads(LINE) | {"id": "01890000-0000-7000-8000-000000000002"} | changes
    file = io.BytesIO(json.dumps(other).encode() + b"\n" + more.replace(b"\n", b"") + b"\n" + LINE)
    store = MemoryStore()
    done = import_lines(store, file, actor="ann", reason="test", skip_damaged=True)
    assert json.loads(LINE)["id"] in (*done.ids, *done.held)
