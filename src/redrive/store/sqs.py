"""The interface of a store on SQS, for features that work with its queues themselves: dead-letter queues, topics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from ..message import Lane, Message
from . import Store


class SqsCaller(Protocol):
    """The client with which a store calls SQS."""

    def call(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Call SQS with the action; returns the response. Raises StoreUnavailable, StoreError, ConfigError."""
        ...


class SqsQueueNames(Protocol):
    """A queue in SQS: the queue's `name` in redrive, its name in SQS, and its URL."""

    @property
    def name(self) -> str: ...

    @property
    def sqs_name(self) -> str: ...

    @property
    def url(self) -> str: ...


class SqsDirectory(Protocol):
    """The SQS queues under the prefix of a store. Methods raise ConfigError for an SQS queue that does not exist."""

    def of(self, queue: str) -> SqsQueueNames:
        """Return the SQS queue that holds the waiting messages of `queue`."""
        ...

    def resting(self, queue: str, lane: Lane) -> SqsQueueNames:
        """Return the SQS queue that holds the messages of `queue` at rest in the lane."""
        ...

    def all_resting(self, queue: str) -> Sequence[tuple[SqsQueueNames, Lane]]:
        """Return the SQS queues with messages of `queue` at rest: those the app names, that of the policy, `…-dlq`."""
        ...

    def by_policy(self, queue: str) -> SqsQueueNames | None:
        """Return the SQS queue that is the target of the redrive policy of `queue`; None if there is no such policy."""
        ...

    def name_of(self, sqs_name: str) -> str | None:
        """Return redrive's name for an SQS queue; None if the SQS queue is outside the prefix."""
        ...

    def names(self) -> list[str]: ...

    def attributes(self, url: str, *names: str) -> dict[str, str]: ...

    def counts(self, url: str) -> tuple[int, int, int]: ...


class SqsEngine(Store):
    """A store whose messages are in SQS queues."""

    url: str
    prefix: str
    region: str
    triage_store: Store | None  # the store for dead messages; None: they stay in SQS
    routes: Any  # the `codec.Routes` for messages that redrive did not write
    sqs_queues: SqsDirectory

    @property
    @abstractmethod
    def sqs(self) -> SqsCaller:
        """The client with which this store calls SQS."""

    @abstractmethod
    def own_triage(self) -> None:
        """Claim the triage store for this store's prefix. Raises ConfigError if the triage store belongs to another
        prefix or has waiting messages of its own; Unsupported if there is no triage store."""

    @abstractmethod
    def count_dead(self, messages: Sequence[Message]) -> None:
        """Count dead letters from SQS in their batches. May be repeated. Raises StoreError."""


def sqs_engine(store: Store) -> SqsEngine | None:
    """Return the store on SQS below layers of encryption and blob storage; None if the messages are not in SQS."""
    engine = store.engine
    return engine if isinstance(engine, SqsEngine) else None
