"""The interface of a broker for the bridge to Celery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Taken(NamedTuple):
    """A message taken from a broker: `raw` is its envelope, `handle` identifies it to the broker."""

    raw: bytes
    handle: str | bytes


class BrokerSource(Protocol):
    """The queues of a broker. Every method raises StoreError, and StoreUnavailable if the broker cannot be reached."""

    where: str  # the broker's address, for display

    def take(self, queue: str, most: int) -> list[Taken]:
        """Return at most `most` messages of the queue, the oldest first. Until `remove`, they stay with the broker,
        hidden from Celery's workers, and may be taken again."""
        ...

    def remove(self, queue: str, taken: Sequence[Taken]) -> None:
        """Delete taken messages from the broker, once they are in the app's store."""
        ...

    def refuse(self, queue: str, taken: Taken) -> str:
        """Set aside a message that the app's store refuses; return where it is kept."""
        ...

    def take_held(self, queues: Sequence[str], older_s: float) -> int:
        """Take over messages that Celery's workers took at least `older_s` seconds ago and did not acknowledge; return
        their number. Raises Unsupported."""
        ...

    def close(self) -> None: ...
