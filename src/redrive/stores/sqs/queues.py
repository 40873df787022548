"""Find redrive's queues in SQS by name: their URLs and attributes. Missing ones are made where the URL says so."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ...errors import ConfigError, Unsupported
from ...message import GroupOrder, Lane, OnDead
from .. import validation
from .client import Sqs
from .url import SqsUrl

FIFO = ".fifo"
DEAD, POISON = "-dlq", "-poison"
NAME_MAX = 80  # of a queue in SQS
RETENTION_S = 14 * 24 * 3600
VISIBILITY_S = 300  # the default timeout of a task
DEFAULT_RETENTION_S = 4 * 24 * 3600  # where SQS does not say
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")
COUNTED = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")


class Bounds(Struct, frozen=True):
    """How often SQS delivers a message before it moves it away (None: without end), and how long it keeps one."""

    receives_max: int | None
    retention_ms: int


class SqsQueue(Struct, frozen=True):
    """A queue of SQS, and the name that redrive has for it."""

    name: str  # redrive's name
    sqs_name: str
    url: str
    fifo: bool  # by its name


class Queues:
    """Finds queues, and makes those that are missing where the URL says so."""

    def __init__(self, sqs: Sqs, at: SqsUrl) -> None:
        self._sqs, self._at = sqs, at
        self._queues: dict[str, SqsQueue] = {}  # by SQS's name without .fifo
        self._bounds: dict[str, Bounds] = {}
        self._lock = threading.Lock()

    def of(self, queue: str) -> SqsQueue:
        """The queue of SQS with this queue's messages. Raises ConfigError for a name that SQS cannot have, and for a
        queue that does not exist."""
        return self._queues.get(queue) or self._found(queue, queue.removesuffix(FIFO), "")

    def resting(self, queue: str, lane: Lane) -> SqsQueue:
        """The queue of SQS for the dead or quarantined messages of a queue. Raises ConfigError."""
        suffix = DEAD if lane is Lane.DEAD else POISON
        key = queue.removesuffix(FIFO) + suffix
        return self._queues.get(key) or self._found(key, key, suffix, fifo=self.of(queue).fifo)

    def check_configuration(
        self, queue: str, group_width: int | None, group_order: GroupOrder | str | None, on_dead: OnDead | str | None
    ) -> None:
        """Raises Unsupported for settings of groups that are not what SQS does anyway."""
        validation.admit_width(group_width, 1)
        order = validation.word(GroupOrder, group_order, "group_order")
        dead = validation.word(OnDead, on_dead, "on_dead")
        fifo = order is not None and self.of(queue).fifo
        wide, blocks = group_width not in (None, 1), dead is OnDead.BLOCK
        if wide or blocks or (order is not None and fifo != (order is GroupOrder.STRICT)):
            raise Unsupported(
                f"queue {queue!r}: SQS serves the groups of a FIFO queue (its name ends in .fifo) one message at a "
                "time, in order, and skips a dead one; a standard queue has no order, and no width"
            )

    def _found(self, key: str, base: str, suffix: str, fifo: bool | None = None) -> SqsQueue:
        name = f"{self._at.prefix}-{base}"
        if not _NAME.fullmatch(name) or len(name) + len(FIFO) > NAME_MAX:
            raise ConfigError(
                f"queue {base!r} cannot be one of SQS: {name!r} has to be letters, digits, '-' and '_', at most "
                f"{NAME_MAX - len(FIFO)}; give it another name"
            )
        if fifo is None and key.endswith(FIFO):
            fifo = True
        names = [name, name + FIFO] if fifo is None else [name + FIFO if fifo else name]
        with self._lock:
            url = next((url for name in names if (url := self._url(name)) is not None), None)
            if url is None:
                url = self._missing(names[0], suffix)
            name = url.rpartition("/")[2]
            queue = SqsQueue(base.removesuffix(suffix) if suffix else base, name, url, name.endswith(FIFO))
            self._queues[key] = queue
            return queue

    def _url(self, name: str) -> str | None:
        try:
            return str(self._sqs.call("GetQueueUrl", QueueName=name)["QueueUrl"])
        except ConfigError as error:
            if "does not exist" in str(error):
                return None
            raise

    def _missing(self, name: str, suffix: str) -> str:
        if not self._at.create:
            raise ConfigError(
                f"SQS has no queue {name} in {self._at.region}; deploy it with `redrive aws template`, or let redrive "
                "make it while you develop: add create=true to the store's URL"
            )
        attributes: dict[str, str] = {"MessageRetentionPeriod": str(RETENTION_S)}
        if name.endswith(FIFO):
            attributes["FifoQueue"] = "true"
        if not suffix:
            dead = self._made(_suffixed(name, DEAD), attributes)
            self._made(_suffixed(name, POISON), attributes)
            policy = {"deadLetterTargetArn": self._arn(dead), "maxReceiveCount": self._at.max_receives}
            attributes = attributes | {"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": str(VISIBILITY_S)}
            attributes["ReceiveMessageWaitTimeSeconds"] = str(self._at.poll_s)
        return self._made(name, attributes)

    def _made(self, name: str, attributes: Mapping[str, str]) -> str:
        known = self._url(name)
        if known is not None:
            return known
        return str(self._sqs.call("CreateQueue", QueueName=name, Attributes=dict(attributes))["QueueUrl"])

    def bounds(self, queue: SqsQueue) -> Bounds:
        """The bounds of a queue, read once."""
        if queue.url not in self._bounds:
            found = self.attributes(queue.url, "RedrivePolicy", "MessageRetentionPeriod")
            policy = json.loads(found.get("RedrivePolicy") or "{}")
            most = policy.get("maxReceiveCount")
            retention_s = int(found.get("MessageRetentionPeriod", DEFAULT_RETENTION_S))
            self._bounds[queue.url] = Bounds(None if most is None else int(most), retention_s * 1000)
        return self._bounds[queue.url]

    def _arn(self, url: str) -> str:
        return str(self.attributes(url, "QueueArn")["QueueArn"])

    def attributes(self, url: str, *names: str) -> dict[str, str]:
        """The queue's attributes of these names, or all."""
        answer = self._sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=list(names) or ["All"])
        found: dict[str, str] = answer.get("Attributes") or {}
        return found

    def counts(self, url: str) -> tuple[int, int, int]:
        """About how many messages of it are visible, in flight and delayed."""
        found = self.attributes(url, *COUNTED)
        visible, flying, delayed = (int(found.get(name, 0)) for name in COUNTED)
        return visible, flying, delayed

    def names(self) -> list[str]:
        """Redrive's names of all queues under the prefix."""
        prefix, names, token = f"{self._at.prefix}-", set[str](), None
        while True:
            more: dict[str, Any] = {"NextToken": token} if token else {}
            answer = self._sqs.call("ListQueues", QueueNamePrefix=prefix, MaxResults=1000, **more)
            for url in answer.get("QueueUrls") or ():
                name = url.rpartition("/")[2].removeprefix(prefix).removesuffix(FIFO)
                if not name.endswith((DEAD, POISON)):
                    names.add(name + FIFO if name + FIFO in self._queues else name)  # as it was asked for
            token = answer.get("NextToken")
            if not token:
                return sorted(names)


def _suffixed(name: str, suffix: str) -> str:
    return name.removesuffix(FIFO) + suffix + (FIFO if name.endswith(FIFO) else "")
