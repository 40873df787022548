"""Subscribe a queue to a topic, with a filter, a dead-letter queue of its own, and the policies of both queues."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ...awsapi import client as aws
from ...errors import ConfigError
from ...stores.sqs.client import Sqs
from ...stores.sqs.queues import FIFO, NAME_MAX, RETENTION_S, QueueDirectory
from ...stores.sqs.url import SqsUrl

FilterPolicy = Mapping[str, Any]
KEYS_MAX, COMBINATIONS_MAX, FILTER_BYTES_MAX = 5, 150, 256 * 1024
NUMBER_MAX = 1_000_000_000  # largest number that SNS accepts in a filter
SCOPES = {"attributes": "MessageAttributes", "data": "MessageBody", "body": "MessageBody"}
_MATCHERS = ("prefix", "suffix", "anything-but", "numeric", "exists", "equals-ignore-case", "cidr", "wildcard")
_SIGNS = ("=", "<", "<=", ">", ">=")


def filter_policy(filter: Any, scope: str = "attributes") -> str:
    """Return the filter policy as JSON for SNS. Raises ConfigError for a filter that SNS would refuse: more than five
    keys, more than 150 combinations of values, an unknown matcher."""
    if scope not in SCOPES:
        raise ConfigError(f"scope={scope!r}; expected one of {', '.join(map(repr, SCOPES))}")
    if not isinstance(filter, Mapping) or not filter:
        raise ConfigError(f"filter={filter!r}: expected a mapping of names to lists of values, such as {{'a': ['b']}}")
    if len(filter) > KEYS_MAX:
        raise ConfigError(f"the filter has {len(filter)} keys ({', '.join(filter)}); SNS takes at most {KEYS_MAX}")
    arrays = list(_arrays(filter, scope != "attributes", ""))
    combinations = math.prod(len(values) for _, values in arrays)
    if combinations > COMBINATIONS_MAX:
        factors = " × ".join(f"{len(values)} of {key}" for key, values in arrays)
        raise ConfigError(f"the filter has {combinations} combinations ({factors}); SNS takes {COMBINATIONS_MAX}")
    try:
        written = json.dumps({"data": dict(filter)} if scope == "data" else dict(filter), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the filter cannot be written as JSON: {error}") from None
    if len(written) > FILTER_BYTES_MAX:
        raise ConfigError(f"the filter has {len(written)} bytes; SNS takes {FILTER_BYTES_MAX}")
    return written


def _arrays(filter: Any, nested: bool, above: str) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield every list of values with its path. Raises ConfigError for an invalid filter."""
    if not isinstance(filter, Mapping):
        raise ConfigError(f"filter {above.rstrip('.')!r}: {filter!r} is no mapping of names to lists of values")
    for key, value in filter.items():
        where = f"{above}{key}"
        if not isinstance(key, str) or not key:
            raise ConfigError(f"filter key {key!r}: expected the name of an attribute or a field")
        if key == "$or":
            for each in value if isinstance(value, list | tuple) else ():
                list(_arrays(each, nested, f"{where}."))  # validates each list; SNS counts combinations in its own way
            if not isinstance(value, list | tuple) or len(value) < 2:
                raise ConfigError(f"filter {where!r}: expected a list of two filters or more")
        elif isinstance(value, Mapping):
            if not nested:
                raise ConfigError(f"filter {where!r}: attributes have no fields; filter with scope='data' instead")
            yield from _arrays(value, nested, f"{where}.")
        elif isinstance(value, list | tuple) and value:
            for each in value:
                _check(where, each, nested)
            yield where, value
        else:
            raise ConfigError(f"filter {where!r} is {value!r}; expected a list of values, such as ['a', 'b']")


def _check(where: str, value: Any, nested: bool) -> None:
    if isinstance(value, Mapping):
        if len(value) != 1 or next(iter(value)) not in _MATCHERS:
            known = ", ".join(_MATCHERS)
            raise ConfigError(f"filter {where!r}: {dict(value)!r} is no matcher; expected one of {known}, by itself")
        matcher, operand = next(iter(value.items()))
        if matcher == "numeric":
            _check_numbers(where, operand)
        elif matcher == "exists" and not isinstance(operand, bool):
            raise ConfigError(f"filter {where!r}: exists is {operand!r}; expected true or false")
        elif matcher in ("prefix", "suffix", "equals-ignore-case", "cidr", "wildcard") and not isinstance(operand, str):
            raise ConfigError(f"filter {where!r}: {matcher} is {operand!r}; expected text")
    elif value is None and not nested:
        raise ConfigError(f"filter {where!r}: no attribute is null; use {{'exists': False}} for one that is not there")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(where, value)
    elif not isinstance(value, str | bool | None):
        raise ConfigError(f"filter {where!r}: {value!r} is no text, number, true, false, null or matcher")


def _check_numbers(where: str, operand: Any) -> None:
    pairs = list(zip(operand[::2], operand[1::2], strict=False)) if isinstance(operand, list | tuple) else []
    if not 1 <= len(pairs) <= 2 or len(operand) % 2 or any(sign not in _SIGNS for sign, _ in pairs):
        raise ConfigError(f"filter {where!r}: numeric is {operand!r}; expected such as ['>=', 0, '<', 100]")
    for _, number in pairs:
        _check_number(where, number)


def _check_number(where: str, number: Any) -> None:
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= NUMBER_MAX:
        raise ConfigError(f"filter {where!r}: {number!r} is no number from -{NUMBER_MAX} to {NUMBER_MAX}")


# -- subscribing


class Publisher(Struct, frozen=True):
    """A topic of SNS that publishes to the queues at `at`, with its boto3 client. `names`: the SQS names that the app
    gives queues and their dead-letter queues."""

    name: str
    arn: str
    region: str
    endpoint: str | None
    client: Any
    at: SqsUrl
    names: Mapping[str, tuple[str | None, str | None]]

    @property
    def is_fifo(self) -> bool:
        return self.name.endswith(FIFO)


def subscribe(topic: Publisher, queue: str, filter: FilterPolicy | None, scope: str) -> str:
    """Like `Topic.subscribe`."""
    attributes = {"RawMessageDelivery": "true"}
    if filter is not None:
        attributes |= {"FilterPolicyScope": SCOPES.get(scope, ""), "FilterPolicy": filter_policy(filter, scope)}
    sqs = Sqs(topic.region, topic.endpoint)
    try:
        at = _Queues(sqs, topic)
        url = at.queues.of(queue).url
        arn = at.arn(url)
        at.allow(url, arn)
        attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": at.dead_letters(queue, arn)})
    finally:
        sqs.close()
    return _subscribed(topic, arn, attributes)


class _Queues:
    """The SQS queues of one subscription; sets the attributes and policies that the topic requires."""

    def __init__(self, sqs: Sqs, topic: Publisher) -> None:
        self._sqs, self._topic, self._prefix = sqs, topic, topic.at.prefix
        self.queues = QueueDirectory(sqs, topic.at)
        for queue, (name, dead) in topic.names.items():
            self.queues.give_names(queue, sqs=name, dlq=dead)

    def arn(self, url: str) -> str:
        return self.queues.attributes(url, "QueueArn")["QueueArn"]

    def dead_letters(self, queue: str, queue_arn: str) -> str:
        """Return the ARN of the subscription's queue for undeliverable messages; create that queue if needed."""
        fifo = FIFO if self._topic.is_fifo else ""
        name = f"{self._prefix}-{queue.removesuffix(FIFO)}-from-{self._topic.name.removesuffix(FIFO)}-dlq{fifo}"
        if len(name) > NAME_MAX:
            raise ConfigError(f"queue {name!r} would have more than the {NAME_MAX} characters that SQS takes")
        attributes = {"MessageRetentionPeriod": str(RETENTION_S)} | ({"FifoQueue": "true"} if fifo else {})
        try:
            url = self._sqs.call("GetQueueUrl", QueueName=name)["QueueUrl"]
        except ConfigError as error:
            if "does not exist" not in str(error):
                raise
            url = self._sqs.call("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"]
        arn = self.arn(url)
        self.allow(url, arn)
        return arn

    def allow(self, url: str, arn: str) -> None:
        """Let the topic send to the queue. Other statements of the queue's policy are kept."""
        document = self.queues.attributes(url, "Policy").get("Policy")
        policy: dict[str, Any] = json.loads(document) if document else {"Version": "2012-10-17", "Statement": []}
        sid = f"redrive-{self._topic.name.removesuffix(FIFO)}".replace("_", "-").replace("-", "")[:100]
        statement = {
            "Sid": sid,
            "Effect": "Allow",
            "Principal": {"Service": "sns.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": arn,
            "Condition": {"ArnEquals": {"aws:SourceArn": self._topic.arn}},
        }
        statements = policy["Statement"] if isinstance(policy["Statement"], list) else [policy["Statement"]]
        if statement in statements:
            return
        policy["Statement"] = [each for each in statements if each.get("Sid") != sid] + [statement]
        self._sqs.call("SetQueueAttributes", QueueUrl=url, Attributes={"Policy": json.dumps(policy)})


def _subscribed(topic: Publisher, arn: str, attributes: Mapping[str, str]) -> str:
    """Create the queue's subscription to the topic, or update its attributes; return the subscription's ARN."""
    known = _known(topic, arn)
    if known is None:
        answer = _call(
            topic, "Subscribe", "subscribe", TopicArn=topic.arn, Protocol="sqs", Endpoint=arn,
            Attributes=dict(attributes), ReturnSubscriptionArn=True,
        )  # fmt: skip
        return str(answer["SubscriptionArn"])
    unfiltered = {"FilterPolicy": "{}"} if "FilterPolicy" not in attributes else {}
    for name, value in {**attributes, **unfiltered}.items():
        _call(
            topic, "SetSubscriptionAttributes", "set_subscription_attributes",
            SubscriptionArn=known, AttributeName=name, AttributeValue=value,
        )  # fmt: skip
    return known


def _known(topic: Publisher, arn: str) -> str | None:
    more: dict[str, str] = {}
    while True:
        answer = _call(topic, "ListSubscriptionsByTopic", "list_subscriptions_by_topic", TopicArn=topic.arn, **more)
        for each in answer.get("Subscriptions") or ():
            if each["Endpoint"] == arn and each["Protocol"] == "sqs":
                return str(each["SubscriptionArn"])
        if not answer.get("NextToken"):
            return None
        more = {"NextToken": answer["NextToken"]}


def _call(topic: Publisher, action: str, method: str, **parameters: Any) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = getattr(topic.client, method)(**parameters)
    except aws.errors() as error:
        raise aws.failure(error, f"SNS {action} {topic.name}") from error
    return answer
