"""Names in the template: functions of CloudFormation, and the names of one queue's resources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from ...errors import ConfigError

Json = dict[str, Any]
Resources = dict[str, Json]
PREFIX_MAX = 40
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SQS_NAME_MAX = 80
SUFFIXES = ("-dlq", "-poison", "-undelivered", "-work")
_FIFO = ".fifo"
_SPARE = _SQS_NAME_MAX - len("-") - len(f"-undelivered{_FIFO}")  # characters left for prefix and queue


class Named(Struct, frozen=True):
    """One redrive queue in the template. The logical names of its resources begin with `id`."""

    queue: str
    fifo: bool
    filter: Mapping[str, Any]
    filter_scope: str

    @property
    def id(self) -> str:
        """The queue's name in letters and digits, as logical names require.

        >>> Named("bulk-orders_2", False, {}, "").id
        'BulkOrders2'
        """
        return "".join(part[:1].upper() + part[1:] for part in re.split(r"[_-]+", self.queue))

    def sqs(self, suffix: str = "", *, fifo: bool | None = None) -> str:
        """Return the name of the queue's SQS queue with this suffix, as text for `Fn::Sub`."""
        return f"${{Prefix}}-{self.queue}{suffix}" + (".fifo" if (self.fifo if fifo is None else fifo) else "")

    def arn(self, suffix: str = "", *, fifo: bool | None = None) -> Any:
        """Return the ARN of the queue's SQS queue with this suffix as text, where a reference would be circular."""
        return sub(f"arn:${{AWS::Partition}}:sqs:${{AWS::Region}}:${{AWS::AccountId}}:{self.sqs(suffix, fifo=fifo)}")


def named(queues: Sequence[str], fifo: bool, filters: Mapping[str, Mapping[str, Any]], scope: str) -> list[Named]:
    """Validate the names of the queues, and return a `Named` for each. Raises ConfigError."""
    if not fifo and any(queue.endswith(_FIFO) for queue in queues):
        raise ConfigError(f"queues {list(queues)}: with a FIFO queue all are, and their topic is; say so by --fifo")
    plain = [queue.removesuffix(_FIFO) for queue in queues]
    of = {queue.removesuffix(_FIFO): (filter, scope) for queue, filter in filters.items()}
    result = [Named(name, fifo, *of.get(name, ({"queue": [name]}, "attributes"))) for name in plain]
    for one in result:
        if not _NAME.fullmatch(one.queue) or prefix_max([one]) < 1:
            raise ConfigError(f"queue {one.queue!r}: expected 1 to {_SPARE - 1} of the characters A-Z a-z 0-9 _ -")
    ids = [one.id for one in result]
    for n, id in enumerate(ids):
        if not id or id in ids[:n]:
            raise ConfigError(f"queues {list(queues)}: {queues[n]!r} and another have the same logical name {id!r}")
    if not result:
        raise ConfigError("no queue is named; expected one at least")
    names = {one.queue for one in result}
    for one in result:
        if taken := [suffix for suffix in SUFFIXES if f"{one.queue}{suffix}" in names]:
            raise ConfigError(f"queue '{one.queue}{taken[0]}' would be called as what belongs to queue {one.queue!r}")
    return result


def prefix_max(queues: Sequence[Named]) -> int:
    """Return the length of the longest prefix with which all SQS names are valid."""
    return min(PREFIX_MAX, _SPARE - max(len(one.queue) for one in queues))


def ref(name: str) -> Json:
    return {"Ref": name}


def att(name: str, attribute: str = "Arn") -> Json:
    return {"Fn::GetAtt": [name, attribute]}


def sub(text: str) -> Any:
    """Return a Fn::Sub of the text if it contains `${…}`, otherwise the text."""
    return {"Fn::Sub": text} if "${" in text else text


def either(condition: str, this: Any, that: Any) -> Json:
    return {"Fn::If": [condition, this, that]}


NOTHING = ref("AWS::NoValue")


def with_key(value: Any, other: Any = NOTHING) -> Json:
    """Return a Fn::If: `value` if the stack has its own KMS key, otherwise `other`."""
    return either("HasKmsKey", value, other)


def tls_only(actions: str, resource: Any) -> Json:
    """Return a statement that denies these actions on the resource to calls without TLS."""
    return {
        "Sid": "TlsOnly",
        "Effect": "Deny",
        "Principal": "*",
        "Action": actions,
        "Resource": resource,
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
