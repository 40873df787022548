"""What the bridge needs of a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Taken(NamedTuple):
    """A message of the broker's: the envelope, and what the broker knows it by."""

    raw: bytes
    handle: str | bytes


class BrokerSource(Protocol):
    """The queues of a broker. Every method raises StoreUnavailable where it cannot be reached, and StoreError."""

    where: str  # for people

    def take(self, queue: str, most: int) -> list[Taken]:
        """Some messages, the oldest first. They stay with the broker, unseen by Celery's workers, until `remove`, or
        are taken again."""
        ...

    def remove(self, queue: str, taken: Sequence[Taken]) -> None:
        """Forget messages that are in the app's store."""
        ...

    def refuse(self, queue: str, taken: Taken) -> str:
        """Set aside a message that the app's store does not take; returns where."""
        ...

    def take_held(self, queues: Sequence[str], older_s: float) -> int:
        """Take over what Celery's workers have held for that long; returns how many. Raises Unsupported."""
        ...

    def close(self) -> None: ...
