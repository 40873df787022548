"""Publish events to a topic of SNS, which sends each subscribed queue a copy.

A topic is for events that several services need. Each queue works, retries and dead-letters its own copy. A redrive
puts a copy back into its queue, never into the topic, where all other queues would get it again.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from ...awsapi import client as aws
from ...codec import to_json
from ...errors import ConfigError, EnqueueError, PublishFailed, TooLarge
from ...ids import is_id, new_id
from ...message import RAW, Draft, Message
from ...registry import Queue, Registry
from ...run_context import current, refuse_loop
from ...store import Traits
from ...store.sqs import sqs_engine
from ...stores.sqs.queues import FIFO
from ...stores.sqs.url import SqsUrl
from ...stores.sqs.wire import attribute, body_of, size_of
from ...stores.validation import admit
from .subscriptions import FilterPolicy, Publisher, filter_policy, subscribe

ENTRIES_MAX = 10
BYTES_MAX, BYTES_MOST = 256 * 1024, 1024 * 1024  # limits in bytes of a message and of a batch: default and maximum
ATTRIBUTES_MAX = 9  # the tenth attribute is the event's type; raw delivery drops a message with more than ten
TRIES, PAUSE_S = 4, 0.05  # attempts for an entry that failed on AWS's side; pause before the second, then doubled
TYPE = "type"  # the message attribute with the event's type
_ARN = re.compile(r"arn:aws[a-z-]*:sns:([a-z0-9-]+):(\d{12}):([A-Za-z0-9_-]{1,256}(?:\.fifo)?)")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_TRAITS = Traits(name="sns", body_bytes_max=BYTES_MOST)

AttributeValue = str | int | float | bool | Sequence[str | int | float | bool | None]


class Event(Struct, frozen=True):
    """Something that happened, for all subscribers.

    `type` names it, such as "order.placed"; `data` is passed to a queue's handler, any value that JSON can hold.
    `attributes` are matched by filters of subscriptions: text, numbers or lists of them, at most nine; handlers find
    them in `context().message.headers`. `group` keeps the order in FIFO topics and queues. `id`, a UUIDv7, is made if
    None; publish again under the same id after a failure, so that a FIFO topic recognises it.
    """

    type: str
    data: Any = None
    attributes: Mapping[str, AttributeValue] = {}
    group: str | None = None
    id: str | None = None
    correlation_id: str | None = None


class Topic:
    """A topic of SNS: `app.topic("orders")`, or by its ARN.

    Safe to use from many threads. `bytes_max` is the topic's own bound on a message (its attribute
    `MaximumMessageSize`, 256 KiB unless set, 1 MiB at most).
    """

    endpoint: str | None
    at: SqsUrl | None

    def __init__(
        self,
        name: str,
        *,
        endpoint: str | None = None,
        bytes_max: int = BYTES_MAX,
        at: SqsUrl | None = None,
        producer: str | None = None,
        queues: Mapping[str, Queue] | None = None,
    ) -> None:
        match = _ARN.fullmatch(name)
        if match is None and at is None:
            raise ConfigError(f"topic {name!r}: expected an ARN, such as arn:aws:sns:eu-central-1:123456789012:orders")
        if not 1024 <= bytes_max <= BYTES_MOST:
            raise ConfigError(f"bytes_max={bytes_max!r}: a topic takes messages of 1,024 to {BYTES_MOST} bytes")
        self.name: str | Any = match[3] if match else name
        self.region: str | Any = match[1] if match else at.region if at else ""
        self.endpoint, self.at = endpoint, at  # `at`: where the app's queues are, if they are in SQS
        self._arn, self._queues = name if match else None, {} if queues is None else queues
        self._producer, self._bytes_max = producer, bytes_max
        self._lock = threading.Lock()
        self._made: Any = None

    @property
    def arn(self) -> str:
        """The topic's ARN; if only the topic's name was given, in the account of the credentials, for which AWS is
        asked once. Raises ConfigError, StoreUnavailable."""
        if self._arn is None and self.at is not None:
            self._arn = _arn_of(self.name, self.at, self.client)
        return self._arn or ""

    @property
    def client(self) -> Any:
        """The boto3 client, made at first use."""
        with self._lock:
            if self._made is None:
                self._made = aws.client("sns", region=self.region, endpoint=self.endpoint)
            return self._made

    @property
    def is_fifo(self) -> bool:
        return self.name.endswith(FIFO)

    def __repr__(self) -> str:
        return f"Topic({self._arn or self.name!r})"

    # -- publishing

    def publish(
        self,
        event: str | Event | Draft,
        data: Any = None,
        *,
        attributes: Mapping[str, AttributeValue] | None = None,
        group: str | None = None,
    ) -> str:
        """Publish one event, by its type and data, as an Event, or as a task's draft; returns its id.

        Every queue's copy has an id of its own, always the same for the same event, with this one as `causation_id`.
        Raises EnqueueError, TooLarge or EncodeError for an event that no topic accepts, PublishFailed, ConfigError (no
        such topic, no permission), RuntimeError inside a running event loop: use `apublish` there.
        """
        refuse_loop("publish()", "await ….apublish(…)")
        return self._publish([_event(event, data, attributes, group)])[0]

    async def apublish(
        self,
        event: str | Event | Draft,
        data: Any = None,
        *,
        attributes: Mapping[str, AttributeValue] | None = None,
        group: str | None = None,
    ) -> str:
        """Like `publish`, for asyncio code, in a thread."""
        import asyncio

        return (await asyncio.to_thread(self._publish, [_event(event, data, attributes, group)]))[0]

    def publish_many(self, events: Iterable[Event | Draft]) -> list[str]:
        """Publish events in batches of ten; returns their ids, in order. If some fail, PublishFailed lists them; the
        others are published. A FIFO topic gets them in order, and no batch after one with a failure."""
        refuse_loop("publish_many()", "await ….apublish_many(…)")
        return self._publish(list(events))

    async def apublish_many(self, events: Iterable[Event | Draft]) -> list[str]:
        """Like `publish_many`, for asyncio code, in a thread."""
        import asyncio

        return await asyncio.to_thread(self._publish, list(events))

    def _publish(self, events: Sequence[Event | Draft]) -> list[str]:
        entries = [self._entry(event) for event in events]
        failed: dict[int, str] = {}
        for batch in self._batches(entries):
            failed |= self._send(entries, batch)
            if failed and self.is_fifo:
                failed |= dict.fromkeys(range(batch.stop, len(entries)), "one before it failed")
                break
        if failed:
            first = next(iter(failed.values()))
            raise PublishFailed(
                f"{len(failed)} of {len(entries)} events were not published to {self.name}: {first}", failed
            )
        return [entry.id for entry in entries]

    def _send(self, entries: Sequence[_Entry], batch: range) -> dict[int, str]:
        """Send one batch, with retries of failures on AWS's side; return the reasons by failed entry."""
        refused: dict[int, str] = {}
        open: dict[int, str] = dict.fromkeys(batch, "")
        for turn in range(TRIES):
            if turn:
                time.sleep(PAUSE_S * 2 ** (turn - 1))
            wanted = [{"Id": str(at), **entries[at].wanted} for at in open]
            try:
                answer = self.client.publish_batch(TopicArn=self.arn, PublishBatchRequestEntries=wanted)
            except aws.errors() as error:
                raised = aws.failure(error, f"SNS PublishBatch {self.name}")
                if isinstance(raised, ConfigError):
                    raise raised from error
                return refused | dict.fromkeys(open, str(raised))
            failures = {int(failure["Id"]): failure for failure in answer.get("Failed") or ()}
            refused |= {at: _failure_text(failure) for at, failure in failures.items() if failure.get("SenderFault")}
            open = {at: _failure_text(failure) for at, failure in failures.items() if not failure.get("SenderFault")}
            if not open or (refused and self.is_fifo):
                break
        return refused | open

    def _batches(self, entries: Sequence[_Entry]) -> Iterator[range]:
        begin = size = 0
        for at, entry in enumerate(entries):
            if at - begin == ENTRIES_MAX or (at > begin and size + entry.size > self._bytes_max):
                yield range(begin, at)
                begin, size = at, 0
            size += entry.size
        if begin < len(entries):
            yield range(begin, len(entries))

    def _entry(self, event: Event | Draft) -> _Entry:
        message, attributes = self._message(event)
        body = body_of(message, prefix=self.at.prefix if self.at else "sns", topic=self.name)
        written = {name: _attribute(name, value) for name, value in attributes.items()}
        written[TYPE] = attribute(message.task)
        size = size_of(body, written)
        if size > self._bytes_max:
            raise TooLarge(
                f"event {message.task!r} has {size} bytes with its envelope; topic {self.name} takes "
                f"{self._bytes_max}: raise its attribute MaximumMessageSize, and bytes_max= here, to as much as "
                f"{BYTES_MOST}, or publish where the data lies; nothing was published"
            )
        wanted: dict[str, Any] = {"Message": body, "MessageAttributes": written}
        if self.is_fifo:
            wanted |= {"MessageGroupId": message.group or message.id, "MessageDeduplicationId": message.id}
        return _Entry(message.id, wanted, size)

    def _message(self, event: Event | Draft) -> tuple[Message, Mapping[str, AttributeValue]]:
        now_ms, parent = int(time.time() * 1000), current()
        if isinstance(event, Event):
            draft = Draft(
                task=event.type,
                queue=self.name,
                body=to_json(event.data, f"event {event.type!r}: its data"),
                content=RAW,  # not encoded as arguments: a handler may take the whole body
                id=event.id,
                group=event.group,
                headers={name: _header(value) for name, value in event.attributes.items()},
                correlation_id=event.correlation_id or (parent.correlation_id if parent else None),
                producer=self._producer,
            )
            attributes = event.attributes
        else:
            draft, attributes = event, event.headers or {}
        _check(draft, attributes)
        id = draft.id or new_id(now_ms)
        message = Message(
            id, draft.task, self.name, draft.body, draft.correlation_id or id,
            content=draft.content, priority=draft.priority, enqueued_ms=now_ms, deadline_ms=draft.deadline_ms,
            version=draft.version, group=draft.group, headers=dict(draft.headers or {}), keep_ms=draft.keep_ms,
            producer=draft.producer, traceparent=draft.traceparent,
        )  # fmt: skip
        return message, attributes

    # -- subscribing

    def subscribe(
        self,
        queue: str,
        *,
        filter: FilterPolicy | None = None,
        scope: Literal["attributes", "data", "body"] = "attributes",
    ) -> str:
        """Subscribe the app's queue of this name to the topic; returns the subscription's ARN.

        Makes, or brings to this state: the subscription with raw delivery, a dead-letter queue of its own for
        undeliverable messages (`PREFIX-QUEUE-from-TOPIC-dlq`), and the permission for the topic in both queues'
        policies. Meant for deployments and development; `redrive aws template` writes the same for production.

        `filter` selects messages, such as `{"tenant": ["t1", {"prefix": "eu-"}]}`. `scope` is what it matches: the
        message's attributes, the event's data, or the whole body (of other publishers' messages). Raises ConfigError
        for a filter that SNS would refuse, or a missing queue.
        """
        if filter is not None:
            filter_policy(filter, scope)  # raises for an invalid filter before any call of AWS
        if self.at is None:
            raise ConfigError(
                f"{self!r} has no queues: subscribe with app.topic(…) of an app on SQS, whose queues have the prefix"
            )
        names = {name: (of.sqs, of.dlq) for name, of in self._queues.items() if of.sqs or of.dlq}
        publisher = Publisher(self.name, self.arn, self.region, self.endpoint, self.client, self.at, names)
        return subscribe(publisher, queue, filter, scope)

    def close(self) -> None:
        """Close the client's connections. The topic may be used again."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            made.close()


def topic_of(app: Registry, name: str, bytes_max: int) -> Topic:
    """Like `App.topic`."""
    url = app.url
    if url is None:
        engine = sqs_engine(app.store)
        url = engine.url if engine else ""
    at = SqsUrl.parse(url) if url.startswith("sqs://") else None
    endpoint = at.endpoint if at else None
    if not name.startswith("arn:"):
        if at is None:
            raise ConfigError(f"topic {name!r}: give its ARN, as the app's store is not on SQS, which would say where")
        name = f"{at.prefix}-{name}"
    return Topic(name, endpoint=endpoint, bytes_max=bytes_max, at=at, producer=app.producer, queues=app.queues)


def _arn_of(name: str, at: SqsUrl, client: Any) -> str:
    """Return the ARN of this topic in the credentials' account; create the topic if the app's URL allows it."""
    try:
        if at.create:
            attributes = {"FifoTopic": "true"} if name.endswith(FIFO) else {}
            return str(client.create_topic(Name=name, Attributes=attributes)["TopicArn"])
        me = aws.client("sts", region=at.region, endpoint=at.endpoint).get_caller_identity()
    except aws.errors() as error:
        raise aws.failure(error, f"topic {name}") from error
    return f"arn:{me['Arn'].split(':')[1]}:sns:{at.region}:{me['Account']}:{name}"


class _Entry(Struct, frozen=True):
    id: str
    wanted: dict[str, Any]
    size: int


def _event(
    event: str | Event | Draft, data: Any, attributes: Mapping[str, AttributeValue] | None, group: str | None
) -> Event | Draft:
    if isinstance(event, str):
        return Event(event, data, attributes or {}, group)
    if data is not None or attributes is not None or group is not None:
        raise ConfigError("publish(event) takes all from the event; give data, attributes and group with a type only")
    return event


def _check(draft: Draft, attributes: Mapping[str, AttributeValue]) -> None:
    if not draft.task:
        raise EnqueueError("an event needs a type, such as 'order.placed'; nothing was published")
    if draft.id is not None and not is_id(draft.id):
        raise EnqueueError(f"event {draft.task!r}: id {draft.id!r} is not a UUIDv7; nothing was published")
    if draft.delay_ms or draft.due_ms is not None or draft.key is not None:
        raise EnqueueError(f"event {draft.task!r}: a topic knows no delay and no unique key; nothing was published")
    if len(attributes) > ATTRIBUTES_MAX or TYPE in attributes:
        raise EnqueueError(
            f"event {draft.task!r} has the attributes {', '.join(sorted(attributes))}; at most {ATTRIBUTES_MAX} go "
            f"with an event, and {TYPE!r} is its type; nothing was published"
        )
    admit([draft], _TRAITS)


def _attribute(name: str, value: AttributeValue) -> dict[str, str]:
    if not _NAME.fullmatch(name) or name.startswith(".") or name.endswith(".") or ".." in name:
        raise EnqueueError(f"attribute {name!r}: a name has letters, digits, '-', '_' and '.', at most 256")
    if isinstance(value, str) and value:
        return attribute(value)
    if isinstance(value, bool):
        return attribute("true" if value else "false")
    if isinstance(value, int | float):
        return {"DataType": "Number", "StringValue": _header(value)}
    if isinstance(value, list | tuple):
        return {"DataType": "String.Array", "StringValue": _header(value)}
    raise EnqueueError(f"attribute {name!r} is {value!r}; expected text that is not empty, a number, or a list of them")


def _header(value: AttributeValue) -> str:
    return value if isinstance(value, str) else to_json(value, "an attribute").decode()


def _failure_text(failure: Mapping[str, Any]) -> str:
    return f"{failure.get('Code')}: {failure.get('Message') or 'no reason given'}"
