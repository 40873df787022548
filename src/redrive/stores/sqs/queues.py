"""Find redrive's queues in SQS: their URLs and attributes. Creates missing queues if the store's URL says so.

A queue has the name that the app gives it (`app.queue(…, sqs=…)`), or `PREFIX-QUEUE`. Its dead-letter queue is the one
that the app names (`dlq=`), or else the one in its redrive policy, or else `…-dlq`.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct

from ...errors import ConfigError, Unsupported
from ...message import GroupOrder, Lane, OnDead
from .. import validation
from .client import Sqs
from .url import SqsUrl

FIFO = ".fifo"
DEAD, POISON = "-dlq", "-poison"
NAME_MAX = 80  # longest name of a queue in SQS
RETENTION_S = 14 * 24 * 3600
VISIBILITY_S = 300  # visibility timeout of new queues: enough for the default timeout of a task
DEFAULT_RETENTION_S = 4 * 24 * 3600  # the retention assumed if SQS does not report it
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")
COUNTED = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")


class QueueBounds(Struct, frozen=True):
    """After how many receives SQS moves a message away (None: never), and how long the queue keeps a message."""

    receives_max: int | None
    retention_ms: int


class SqsQueue(Struct, frozen=True):
    """A queue in SQS, with its name in redrive."""

    name: str  # the queue's name in redrive
    sqs_name: str
    url: str
    fifo: bool  # True if `sqs_name` ends with .fifo


class DeclaredNames(Struct, frozen=True):
    """The names in SQS that an app declares for a queue and its dead-letter queue; None: not declared."""

    sqs: str | None = None
    dlq: str | None = None


class QueueDirectory:
    """Finds queues in SQS, and creates missing ones if the store's URL says so."""

    def __init__(self, sqs: Sqs, at: SqsUrl) -> None:
        self._sqs, self._at = sqs, at
        self._given: dict[str, DeclaredNames] = {}  # what the app declares, by redrive's name without .fifo
        self._queues: dict[str, SqsQueue] = {}  # by redrive's name, with or without .fifo as callers give it
        self._resting: dict[tuple[str, Lane], SqsQueue] = {}
        self._bounds: dict[str, QueueBounds] = {}
        self._lock = threading.Lock()

    def give_names(self, queue: str, *, sqs: str | None, dlq: str | None) -> None:
        """Use these names in SQS for the queue and its dead-letter queue."""
        with self._lock:
            self._given[queue.removesuffix(FIFO)] = DeclaredNames(sqs, dlq)
            self._queues.clear()
            self._resting.clear()

    def of(self, queue: str) -> SqsQueue:
        """Return the SQS queue of this queue's messages. Raises ConfigError for an invalid name or a missing queue."""
        return self._queues.get(queue) or self._source(queue)

    def resting(self, queue: str, lane: Lane) -> SqsQueue:
        """Return the SQS queue for the dead or quarantined messages of a queue. Without a poison queue, quarantined
        ones go to the dead-letter queue. Raises ConfigError."""
        key = queue.removesuffix(FIFO), lane
        if key not in self._resting:
            self._resting[key] = self._dead(queue) if lane is Lane.DEAD else self._poison(queue)
        return self._resting[key]

    def all_resting(self, queue: str) -> list[tuple[SqsQueue, Lane]]:
        """Every SQS queue that may hold dead or quarantined messages of `queue`, with the lane: those of `resting`, the
        dead-letter queue of the redrive policy, and `…-dlq`. Raises ConfigError if `queue` does not exist."""
        source, by_url = self.of(queue), dict[str, tuple[SqsQueue, Lane]]()
        for lane in (Lane.DEAD, Lane.QUARANTINE):
            with suppress(ConfigError):
                rests = self.resting(queue, lane)
                by_url.setdefault(rests.url, (rests, lane))
        for also in (self.by_policy(queue), self._known(source, _suffixed(source.sqs_name, DEAD))):
            if also is not None:
                by_url.setdefault(also.url, (also, Lane.DEAD))
        return [*by_url.values()]

    def by_policy(self, queue: str) -> SqsQueue | None:
        """Return the dead-letter queue in the redrive policy of `queue`; None without a policy. Raises ConfigError."""
        source = self.of(queue)
        target = redrive_policy(self.attributes(source.url, "RedrivePolicy"))[0]
        return None if target is None else self._known(source, target)

    def declared_dead(self, queue: str) -> str | None:
        """The SQS name of the dead-letter queue that the app declares for `queue`; None if it declares none."""
        given = self._given.get(queue.removesuffix(FIFO), DeclaredNames())
        return None if given.dlq is None else _alike(given.dlq, self.of(queue))

    def name_of(self, sqs_name: str) -> str | None:
        """Return redrive's name of an SQS queue; None if that is neither declared nor under the prefix."""
        base, prefix = sqs_name.removesuffix(FIFO), f"{self._at.prefix}-"
        for queue, given in self._given.items():
            if given.sqs is not None and given.sqs.removesuffix(FIFO) == base:
                return queue
        return base.removeprefix(prefix) or None if base.startswith(prefix) else None

    def check_configuration(
        self, queue: str, group_width: int | None, group_order: GroupOrder | str | None, on_dead: OnDead | str | None
    ) -> None:
        """Raise Unsupported for group settings that differ from how SQS treats the groups of this queue."""
        order, dead = validation.admit_settings(queue, group_width, group_order, on_dead)
        fifo = order is not None and self.of(queue).fifo
        wide, blocks = group_width not in (None, 1), dead is OnDead.BLOCK
        if wide or blocks or (order is not None and fifo != (order is GroupOrder.STRICT)):
            raise Unsupported(
                f"queue {queue!r}: SQS serves the groups of a FIFO queue (its name ends in .fifo) one message at a "
                "time, in order, and skips a dead one; a standard queue has no order, and no width"
            )

    def _source(self, queue: str) -> SqsQueue:
        base = queue.removesuffix(FIFO)
        given = self._given.get(base, DeclaredNames()).sqs
        name = given or f"{self._at.prefix}-{base}"
        if given is None and (not _NAME.fullmatch(name) or len(name) + len(FIFO) > NAME_MAX):
            raise ConfigError(
                f"queue {base!r} cannot be one of SQS: {name!r} has to be letters, digits, '-' and '_', at most "
                f"{NAME_MAX - len(FIFO)}; give it another name"
            )
        fifo = name.endswith(FIFO) or (queue.endswith(FIFO) and given is None)
        name = name.removesuffix(FIFO)
        names = [name + FIFO] if fifo else [name, name + FIFO]
        with self._lock:
            url = next((url for one in names if (url := self._url(one)) is not None), None)
            self._queues[queue] = source = _queue(base, url or self._made_all(base, names[0]))
            return source

    def _dead(self, queue: str) -> SqsQueue:
        source, declared = self.of(queue), self.declared_dead(queue)
        if declared is not None:
            return self._known(source, declared) or self._added(source, declared)
        name = _suffixed(source.sqs_name, DEAD)
        return self.by_policy(queue) or self._known(source, name) or self._added(source, name)

    def _poison(self, queue: str) -> SqsQueue:
        source = self.of(queue)
        name = _suffixed(source.sqs_name, POISON)
        poison = self._known(source, name)
        if poison is None:
            poison = self._added(source, name) if self._at.create else self.resting(queue, Lane.DEAD)
        return poison

    def _known(self, source: SqsQueue, name: str) -> SqsQueue | None:
        url = self._url(name)
        return None if url is None else _queue(source.name, url)

    def _added(self, source: SqsQueue, name: str) -> SqsQueue:
        self._check_may_make(name)
        return _queue(source.name, self._made(name, _kept_long(name)))

    def _url(self, name: str) -> str | None:
        if len(name) > NAME_MAX:
            return None
        try:
            return str(self._sqs.call("GetQueueUrl", QueueName=name)["QueueUrl"])
        except ConfigError as error:
            if "does not exist" in str(error):
                return None
            raise

    def _made_all(self, base: str, name: str) -> str:
        """Create an SQS queue `name`, with its dead-letter and poison queues; returns the URL of the first."""
        self._check_may_make(name)
        declared = self._given.get(base, DeclaredNames()).dlq
        dead_name = _suffixed(name, DEAD) if declared is None else _alike(declared, _queue(base, name))
        dead = self._made(dead_name, _kept_long(dead_name))
        self._made(_suffixed(name, POISON), _kept_long(name))
        policy = {"deadLetterTargetArn": self._arn(dead), "maxReceiveCount": self._at.max_receives}
        attributes = _kept_long(name) | {"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": str(VISIBILITY_S)}
        return self._made(name, attributes | {"ReceiveMessageWaitTimeSeconds": str(self._at.poll_s)})

    def _check_may_make(self, name: str) -> None:
        if not self._at.create:
            raise ConfigError(
                f"SQS has no queue {name} in {self._at.region}; deploy it with `redrive aws template`, or let redrive "
                "make it while you develop: add create=true to the store's URL"
            )

    def _made(self, name: str, attributes: Mapping[str, str]) -> str:
        known = self._url(name)
        if known is not None:
            return known
        return str(self._sqs.call("CreateQueue", QueueName=name, Attributes=dict(attributes))["QueueUrl"])

    def bounds(self, queue: SqsQueue) -> QueueBounds:
        """Return the bounds of a queue. SQS is asked once for each queue."""
        if queue.url not in self._bounds:
            attributes = self.attributes(queue.url, "RedrivePolicy", "MessageRetentionPeriod")
            retention_s = int(attributes.get("MessageRetentionPeriod", DEFAULT_RETENTION_S))
            self._bounds[queue.url] = QueueBounds(redrive_policy(attributes)[1], retention_s * 1000)
        return self._bounds[queue.url]

    def _arn(self, url: str) -> str:
        return str(self.attributes(url, "QueueArn")["QueueArn"])

    def attributes(self, url: str, *names: str) -> dict[str, str]:
        """Read the attributes with these names of the queue with this URL; without names, read all."""
        answer = self._sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=list(names) or ["All"])
        values: dict[str, str] = answer.get("Attributes") or {}
        return values

    def counts(self, url: str) -> tuple[int, int, int]:
        """Return the approximate numbers of the queue's visible, in-flight and delayed messages."""
        attributes = self.attributes(url, *COUNTED)
        visible, flying, delayed = (int(attributes.get(name, 0)) for name in COUNTED)
        return visible, flying, delayed

    def names(self) -> list[str]:
        """Return redrive's names of all queues under the prefix, and of the app's other queues that exist."""
        prefix, names, token = f"{self._at.prefix}-", set[str](), None
        given = [text for each in self._given.values() for text in (each.sqs, each.dlq) if text is not None]
        elsewhere = {text.removesuffix(FIFO) for text in given}
        while True:
            more: dict[str, Any] = {"NextToken": token} if token else {}
            answer = self._sqs.call("ListQueues", QueueNamePrefix=prefix, MaxResults=1000, **more)
            for url in answer.get("QueueUrls") or ():
                base = url.rpartition("/")[2].removesuffix(FIFO)
                name = base.removeprefix(prefix)
                if not name.endswith((DEAD, POISON)) and base not in elsewhere:
                    names.add(name + FIFO if name + FIFO in self._queues else name)  # as a caller named it
            token = answer.get("NextToken")
            if not token:
                return sorted({*names, *self._declared_that_exist()})

    def _declared_that_exist(self) -> Iterator[str]:
        for queue, given in self._given.items():
            if given.sqs is not None and any(self._url(name) for name in (given.sqs, f"{given.sqs}{FIFO}")):
                yield queue


def redrive_policy(attributes: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Return the dead-letter queue's name and maxReceiveCount from a queue's attributes; None for what is missing."""
    policy = json.loads(attributes.get("RedrivePolicy") or "{}")
    target, most = policy.get("deadLetterTargetArn"), policy.get("maxReceiveCount")
    return (None if target is None else str(target).rpartition(":")[2]), (None if most is None else int(most))


def _queue(name: str, url: str) -> SqsQueue:
    sqs_name = url.rpartition("/")[2]
    return SqsQueue(name, sqs_name, url, sqs_name.endswith(FIFO))


def _alike(name: str, source: SqsQueue) -> str:
    """Return `name`, with .fifo if `source` is a FIFO queue, as SQS moves messages only between queues of one type."""
    return name + FIFO if source.fifo and not name.endswith(FIFO) else name


def _kept_long(name: str) -> dict[str, str]:
    """Return the attributes that every new queue with this name gets."""
    return {"MessageRetentionPeriod": str(RETENTION_S)} | ({"FifoQueue": "true"} if name.endswith(FIFO) else {})


def _suffixed(name: str, suffix: str) -> str:
    return name.removesuffix(FIFO) + suffix + (FIFO if name.endswith(FIFO) else "")
