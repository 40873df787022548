"""What every store has: its traits, cells and clock, and what only some stores have, with defaults for the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..message import Draft, Message
from .cells import Cells
from .traits import Traits


class LargeBodies(Protocol):
    """Blob storage beside a store, for bodies over `traits.blob_threshold`. Every method raises StoreError where the
    storage cannot be reached."""

    def deposit(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Write the large bodies to blobs; the drafts as they go to the store, or the same object if none is large."""
        ...

    def body(self, message: Message) -> bytes:
        """The message's body, from its blob if it has one. Raises Unreadable if the blob is gone or damaged."""
        ...

    def complains(self) -> bool:
        """Whether to report trouble with the storage now: once a minute is enough."""
        ...

    def remove(self, settled: Sequence[Message]) -> None:
        """Remove the blobs of those of these messages that are not stored any more."""
        ...

    def collect(self, older_than_ms: int) -> int:
        """Remove every older blob that no message refers to; returns how many."""
        ...

    def collect_if_due(self) -> int | None:
        """`collect`, unless a process did so in the last hour: then None."""
        ...

    def stored(self) -> Any:
        """The blob storage with the bytes as they are stored: encrypted ones are not decrypted."""
        ...


class Usage(NamedTuple):
    """Calls by action, and how many messages this process settled for good with them."""

    requests: Mapping[str, int]
    processed: int


class StoreBase(ABC):
    """Attributes that callers read on any store. A store sets `traits` and `cells`, and others where it has them."""

    traits: Traits
    cells: Cells
    lock_file: Path | None = None  # which a process locks while it writes, if no other can write meanwhile
    state_dir: Path | None = None  # where workers on this machine keep their identities; None: they keep none
    box: Any = None  # the `crypto.Box` that encrypts payloads; None: they are not encrypted
    large_bodies: LargeBodies | None = None  # None: there is no blob storage
    blobs_place: str | None = None  # its part of a blob storage that it shares; None: the name is kept in a cell
    adopts: bool = False  # whether `adopt` takes messages that a service received for this process
    drive: Callable[[Callable[[], bool], float | None], None] | None = None  # a test kit's: work until this is true

    def usage(self) -> Usage | None:
        """The calls so far of a service that bills by the request; None where there is none."""
        return None

    def connect(self) -> None:
        """Open now what is otherwise opened at first use. Raises what opening raises."""
        return None

    @abstractmethod
    def now_ms(self) -> int:
        """The store's clock, the only wall clock that redrive goes by.

        Where a server has it, an estimate by its replies: never before what it showed when this handle settled or
        triaged messages.
        """

    @abstractmethod
    def close(self) -> None:
        """Close files, sockets and threads. The store cannot be used afterwards."""
