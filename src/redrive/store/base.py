"""What all stores have: traits, cells, a clock, and defaults for optional features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..message import Draft, Message
from .cells import Cells
from .traits import Traits


class LargeBodies(Protocol):
    """Blob storage beside a store, for bodies over `traits.blob_threshold`. Raises StoreError if it is unreachable."""

    def deposit(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Write the large bodies to blobs; returns the drafts to store, or the same object if no body is large."""
        ...

    def body(self, message: Message) -> bytes:
        """The message's body, from its blob if it has one. Raises Unreadable if the blob is gone or damaged."""
        ...

    def complains(self) -> bool:
        """True if a problem of the storage should be reported now: at most once a minute."""
        ...

    def remove(self, settled: Sequence[Message]) -> None:
        """Remove the blobs of those messages that are no longer stored."""
        ...

    def collect(self, older_than_ms: int) -> int:
        """Remove every blob that is older and that no message refers to; returns the number removed."""
        ...

    def collect_if_due(self) -> int | None:
        """Call `collect`, unless a process did so within the last hour: then None."""
        ...

    def stored(self) -> Any:
        """The blob storage without decryption: it reads and lists the stored bytes."""
        ...


class Usage(NamedTuple):
    """Calls by action, and the number of messages that this process settled for good with them."""

    requests: Mapping[str, int]
    processed: int


class StoreBase(ABC):
    """Attributes of every store. A store sets at least `traits` and `cells`."""

    traits: Traits
    cells: Cells
    lock_file: Path | None = None  # file that a writer locks, if only one process can write at a time
    state_dir: Path | None = None  # directory for the identities of workers on this machine; None: workers have none
    box: Any = None  # the `crypto.Box` that encrypts payloads; None: no encryption
    large_bodies: LargeBodies | None = None  # None: no blob storage
    blobs_place: str | None = None  # prefix in a shared blob storage; None: the store keeps the name in a cell
    adopts: bool = False  # whether `adopt` takes messages that a service received for this process
    drive: Callable[[Callable[[], bool], float | None], None] | None = None  # in tests: works until true

    def usage(self) -> Usage | None:
        """The calls so far to a service that bills by the request; None if there is no such service."""
        return None

    def connect(self) -> None:
        """Connect now, not at first use. Raises the errors of opening."""
        return None

    @abstractmethod
    def now_ms(self) -> int:
        """The store's clock, in ms: the only wall clock that redrive uses.

        With a server, it is an estimate from its replies: never before the time at which this handle last settled or
        triaged messages.
        """

    @abstractmethod
    def close(self) -> None:
        """Close files, sockets and threads. The store cannot be used afterwards."""
