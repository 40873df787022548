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
    """Blob storage for bodies over `traits.blob_threshold`. Methods raise StoreError if it is unreachable."""

    def deposit(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Write the large bodies to blobs; returns the drafts to store, or `drafts` itself if no body is large."""
        ...

    def body(self, message: Message) -> bytes:
        """The message's body, from its blob if it has one. Raises Unreadable if the blob is missing or damaged."""
        ...

    def complains(self) -> bool:
        """True if a problem of the blob storage should be reported now; the next minute's calls then return False."""
        ...

    def remove(self, settled: Sequence[Message]) -> None:
        """Remove the blobs of those settled messages that the store no longer holds."""
        ...

    def collect(self, older_than_ms: int) -> int:
        """Remove blobs older than `older_than_ms` that no stored message refers to; returns the number removed."""
        ...

    def collect_if_due(self) -> int | None:
        """Call `collect` and return its result, or None if a process called it within the last hour."""
        ...

    def stored(self) -> Any:
        """Return the blob storage without decryption: reads and lists then yield the stored bytes."""
        ...


class Usage(NamedTuple):
    """Calls by action to a service that bills by the request, and how many messages this process settled for good."""

    requests: Mapping[str, int]
    processed: int


class StoreBase(ABC):
    """Attributes of every store. A store sets at least `traits` and `cells`."""

    traits: Traits
    cells: Cells
    lock_file: Path | None = None  # the file that a writer locks, if only one process at a time can write to the store
    state_dir: Path | None = None  # directory for the identities of this machine's workers; None: no identities
    box: Any = None  # the `crypto.Box` that encrypts payloads; None: payloads are not encrypted
    large_bodies: LargeBodies | None = None  # None: no blob storage
    blobs_place: str | None = None  # this store's prefix in a shared blob storage; None: it is in a cell
    adopts: bool = False  # True if `adopt` takes messages that a service received for this process
    drive: Callable[[Callable[[], bool], float | None], None] | None = None  # tests: works until the function is true

    def usage(self) -> Usage | None:
        """Return the calls so far to a service that bills by the request; None if the store uses no such service."""
        return None

    def connect(self) -> None:
        """Connect now, not at first use. Raises the errors of opening the store."""
        return None

    @abstractmethod
    def now_ms(self) -> int:
        """The store's clock, in ms: the only wall clock that redrive uses.

        With a server, the time is an estimate from the server's replies, and never before the time at which this handle
        last settled or triaged messages.
        """

    @abstractmethod
    def close(self) -> None:
        """Close files, sockets and threads. The store cannot be used afterwards."""
