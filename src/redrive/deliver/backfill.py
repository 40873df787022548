"""`redrive enqueue FILE`: enqueue a message for each line of a file, once, as a delivery does."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from ..duration import parse_time, seconds
from ..errors import EnqueueError, StoreError
from ..ids import is_id
from ..message import NORMAL, Draft, Swap, labelled
from ..registry import Registry
from ..store import Store
from ..stores.validation import admit
from .ingest import FileRecord, Ledger, LineIngest
from .lines import FileLine

MakeDraft = Callable[[str, Any, dict[str, Any]], Draft]  # arguments: task, its arguments, options; raises ValueError


class Fields(msgspec.Struct, forbid_unknown_fields=True):
    """The fields that a line may have."""

    task: str
    args: dict[str, Any] | list[Any] = {}
    id: str | None = None
    queue: str | None = None
    key: str | None = None
    key_for: str | float | None = None
    group: str | None = None
    priority: int = NORMAL
    delay: str | float | None = None
    at: str | None = None
    deadline: str | None = None
    headers: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    correlation_id: str | None = None


_fields = msgspec.json.Decoder(Fields).decode
_arguments = msgspec.json.Decoder(dict[str, Any] | list[Any]).decode


class Drafts:
    """Makes messages from lines. `task`: the task of all lines, which then hold only arguments; `queue`: the default
    queue."""

    task: str | None
    queue: str | None

    def __init__(self, store: Store, make: MakeDraft, *, task: str | None = None, queue: str | None = None) -> None:
        self._traits, self._make, self.task, self.queue = store.traits, make, task, queue

    def of(self, body: bytes) -> Draft:
        """Return the message of a line. Raises ValueError, EnqueueError or Unsupported if the line is invalid."""
        line = _fields(body) if self.task is None else Fields(self.task, _arguments(body))
        if line.id is not None and not is_id(line.id):
            raise ValueError(f"id {line.id!r} is not a UUIDv7; give an identity of your own as key")
        options: dict[str, Any] = {
            "queue": line.queue or self.queue,
            "key": line.key,
            "key_for": _seconds(line.key_for, "key_for"),
            "group": line.group,
            "priority": line.priority,
            "delay": _seconds(line.delay, "delay"),
            "at": _time(line.at),
            "deadline": _time(line.deadline),
            "headers": labelled(line.headers, line.labels),
            "correlation_id": line.correlation_id,
        }
        draft = msgspec.structs.replace(self._make(line.task, line.args, options), id=line.id)
        admit([draft], self._traits)
        return draft

    def why_bad(self, body: bytes) -> str | None:
        """Return why a line cannot be enqueued; None if it can."""
        try:
            self.of(body)
        except (ValueError, EnqueueError, StoreError) as error:
            unknown = "unknown field" in str(error)
            return f"{error}; known: {', '.join(Fields.__struct_fields__)}" if unknown else str(error)
        return None

    def ledger(self, store: Store, digest: str) -> Ledger:
        """Return the ledger of these lines, whose key contains the digest of their file."""
        text = "\n".join([digest, self.task or "", self.queue or ""])
        key = "enqueue:" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return Ledger(store, key) if store.traits.cells else _Unkept(store, key)


class Backfill(LineIngest):
    """Enqueues the lines that the ledger's record does not count as done. `known` counts the lines that were not
    enqueued: the store has, or an earlier line had, a message with the same id or the same held key."""

    known: int = 0

    def __init__(self, drafts: Drafts, app: Registry, ledger: Ledger, *read: Any) -> None:
        super().__init__(app, ledger, *read)
        self._drafts = drafts
        self.queues: set[str] = set()

    def write(self, batch: Sequence[FileLine], swap: Swap) -> None:
        drafts = self._unknown([self._drafts.of(line.body) for line in batch])
        puts = self.app.put(drafts, swaps=[swap] if self.app.store.traits.cells else [])
        self.queues.update(draft.queue for draft in drafts)
        self.known += len(batch) - len(drafts) + sum(put.duplicate for put in puts)

    def _unknown(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the drafts without an id, and those with an id that neither the store nor an earlier line has."""
        ids = list(dict.fromkeys(draft.id for draft in drafts if draft.id is not None))
        taken = {message.id for message in self.app.store.find(ids) if message is not None} if ids else set[str]()
        unknown: list[Draft] = []
        for draft in drafts:
            if draft.id not in taken:
                unknown.append(draft)
            if draft.id is not None:
                taken.add(draft.id)
        return unknown


class _Unkept(Ledger):
    """A ledger for a store without cells: the record lasts as long as the command."""

    def __init__(self, store: Store, key: str) -> None:
        self.next: FileRecord | None = None
        super().__init__(store, key)

    def read(self) -> None:
        self.record = self.next

    def swap(self, record: FileRecord | None) -> Swap:
        self.next = record  # `read` returns this record once the batch is put
        return Swap("", 0, None)

    def write(self, record: FileRecord | None) -> None:
        self.record = self.next = record


def _seconds(value: str | float | None, name: str) -> float | None:
    return None if value is None else seconds(value, name)


def _time(text: str | None) -> datetime | None:
    return None if text is None else parse_time(text)
