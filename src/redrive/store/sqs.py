"""The interface of a store on SQS, for features that work with its queues themselves: dead-letter queues, topics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from ..message import Lane
from . import Store


class SqsCaller(Protocol):
    """Calls SQS."""

    def call(self, action: str, **parameters: Any) -> dict[str, Any]:
        """Make the call; returns its response. Raises StoreUnavailable, StoreError, ConfigError."""
        ...


class SqsQueueNames(Protocol):
    """The names and the URL of a queue of SQS; `name` is redrive's."""

    @property
    def name(self) -> str: ...

    @property
    def sqs_name(self) -> str: ...

    @property
    def url(self) -> str: ...


class SqsDirectory(Protocol):
    """The queues under the prefix of a store. Its methods raise ConfigError for a queue that does not exist."""

    def of(self, queue: str) -> SqsQueueNames:
        """The queue of SQS with the waiting messages of this queue."""
        ...

    def resting(self, queue: str, lane: Lane) -> SqsQueueNames:
        """The queue of SQS with its messages at rest in this lane."""
        ...

    def all_resting(self, queue: str) -> Sequence[tuple[SqsQueueNames, Lane]]:
        """Every queue of SQS with messages of this one at rest: by the app, by its redrive policy, by name."""
        ...

    def by_policy(self, queue: str) -> SqsQueueNames | None:
        """The target of its redrive policy."""
        ...

    def name_of(self, sqs_name: str) -> str | None:
        """Redrive's name of a queue of SQS; None outside the prefix."""
        ...

    def names(self) -> list[str]: ...

    def attributes(self, url: str, *names: str) -> dict[str, str]: ...

    def counts(self, url: str) -> tuple[int, int, int]: ...


class SqsEngine(Store):
    """A store whose messages are in queues of SQS."""

    url: str
    prefix: str
    region: str
    triage_store: Store | None  # where dead letters go; None: they stay in SQS
    routes: Any  # `codec.Routes` of messages that redrive did not write
    sqs_queues: SqsDirectory

    @property
    @abstractmethod
    def sqs(self) -> SqsCaller:
        """The client of SQS."""

    @abstractmethod
    def own_triage(self) -> None:
        """Claim the triage store for this prefix. Raises ConfigError if it belongs to another, or has waiting messages
        of its own; Unsupported where there is none."""


def sqs_engine(store: Store) -> SqsEngine | None:
    """The store on SQS below encryption and blob storage; None if the messages are elsewhere."""
    engine = store.engine
    return engine if isinstance(engine, SqsEngine) else None
