"""Store the records of living processes as cells, and list them.

Each process writes a cell of its own, so no renewal meets another. Cells cannot be searched, so lists name them: 32
cells; a process is in one of them. It changes that list when it starts and when it ends, and takes out what has
expired. So if 200 processes start at once, each competes with about a dozen others at most. A process that loses TRIES
times, or is missing for another reason, enters at its next renewal.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from .. import message
from ..chance import uniform
from ..errors import Unsupported
from ..message import Cell, Swap, version_of
from ..store import Store
from .record import WorkerInfo, decode_info, is_asked

RENEW_S = 5.0
GONE_MS = 15_000  # ms without a report after which a process is `gone`
KEPT_MS = 300_000  # ms for which a process that is gone stays listed
SHARDS = 32
TRIES = 20
CELLS_AT_ONCE = 100
NOT_KEPT = "not kept: name cells= in the store's URL, and workers tell there who is alive"
_PAUSE_S = 0.005  # the longest pause after the first lost swap, in seconds; pauses are random and grow

_decode = msgspec.json.Decoder(list[str]).decode


class ProcessCell:
    """The cell of one process, and its entry in the lists. Used by one thread."""

    shard: str
    retries: int

    def __init__(self, store: Store) -> None:
        self._cells = store.cells
        self.token: str = secrets.token_hex(8)
        self._key, self.shard = _key(self.token), f"workers/{int(self.token, 16) % SHARDS}"
        self._is_written = False
        self.retries = 0  # number of swaps of a list that another process won

    def write(self, info: WorkerInfo) -> bool:
        """Write the report, and list it; return True if a person asked the process to drain. Raises StoreError."""
        for _ in range(2):  # the swap fails only if a request to drain was written since the read
            cell, shard = self._cells.read([self._key, self.shard])
            asked = is_asked(cell)
            self._is_written = True  # set also if the answer is lost, so that `remove` deletes the cell
            value = msgspec.json.encode(replace(info, drain_asked=True) if asked else info)
            if self._cells.swap([Swap(self._key, version_of(cell), value, KEPT_MS)], durable=False)[0]:
                break
        if self.token not in _tokens(shard):  # at the first write, or after others removed an expired entry
            self._change({self.token}, set())
        return asked

    def remove(self) -> None:
        """Delete the report, and the process from the list. Call it when the process ends. Raises StoreError."""
        if not self._is_written:
            return
        (cell,) = self._cells.read([self._key])
        if cell is not None:
            self._cells.swap([Swap(self._key, cell.version, None)], durable=False)
        self._change(set(), {self.token})

    def _change(self, more: set[str], fewer: set[str]) -> None:
        """Add and remove tokens in the process's list, and drop expired ones; give up after TRIES lost swaps."""
        for tried in range(TRIES):
            (cell,) = self._cells.read([self.shard])
            known = _tokens(cell)
            cells = self._cells.read([_key(token) for token in known]) if known else []
            living = {token for token, content in zip(known, cells, strict=True) if content is not None}
            tokens = sorted((living | more) - fewer)
            value = msgspec.json.encode(tokens) if tokens else None
            if value == (None if cell is None else cell.value):
                return
            if self._cells.swap([Swap(self.shard, version_of(cell), value)], durable=False)[0]:
                return
            self.retries += 1
            time.sleep(uniform(0, _PAUSE_S * (tried + 1)))


def read_workers(store: Store) -> tuple[WorkerInfo, ...]:
    """Return the workers and schedulers of a store by name, those that are gone last. Raises StoreError; Unsupported if
    the store keeps no cells."""
    return tuple(_with_messages(store, _mark_gone([info for _, _, info in _entries(store)], store.now_ms())))


def drain_swaps(store: Store, name: str) -> list[Swap]:
    """Return the swaps that ask the living worker of this name to drain: two if two workers of one process share the
    name, none if no such worker lives. Raises StoreError; Unsupported if the store keeps no cells."""
    listed = _entries(store)
    living = [info for info in _mark_gone([info for _, _, info in listed], store.now_ms()) if not info.gone]
    return [
        Swap(key, cell.version, msgspec.json.encode(replace(info, drain_asked=True)), KEPT_MS)
        for key, cell, info in listed
        if info.name == name and info.kind == "worker" and info in living
    ]


def _entries(store: Store) -> list[tuple[str, Cell, WorkerInfo]]:
    """Return (key of the cell, cell, record) for each listed process. Raises StoreError, Unsupported."""
    if not store.traits.cells:  # false on SQS without `cells=` in its URL
        raise Unsupported(NOT_KEPT)
    tokens = [token for cell in store.cells.read([f"workers/{n}" for n in range(SHARDS)]) for token in _tokens(cell)]
    entries: list[tuple[str, Cell, WorkerInfo]] = []
    for at in range(0, len(tokens), CELLS_AT_ONCE):
        keys = [_key(token) for token in tokens[at : at + CELLS_AT_ONCE]]
        for key, cell in zip(keys, store.cells.read(keys), strict=True):
            if cell is not None and (info := decode_info(cell)) is not None:
                entries.append((key, cell, info))
    return entries


def _mark_gone(infos: Sequence[WorkerInfo], now_ms: int) -> list[WorkerInfo]:
    """Return the records with `gone` set for a process without a recent report, or with a newer process of its name;
    sorted."""
    newest: dict[str, WorkerInfo] = {}
    for info in infos:
        known = newest.get(info.name)
        if known is None or info.started_ms > known.started_ms:
            newest[info.name] = info
    judged = [
        replace(info, gone=now_ms - info.seen_ms >= GONE_MS or _has_successor(info, newest[info.name]))
        for info in infos
    ]
    return sorted(judged, key=lambda info: (info.gone, info.name, -info.started_ms))


def _with_messages(store: Store, infos: Sequence[WorkerInfo]) -> Iterator[WorkerInfo]:
    """Yield the records; that of a gone process without the messages that others have claimed since, if the store can
    tell."""
    listed = [message.id for info in infos if info.gone for message in info.messages]
    known = store.find(listed) if listed and store.traits.finds else None
    held = {message.id: message.worker for message in known or () if message is not None}
    for info in infos:
        if not info.gone or known is None:
            yield info
            continue
        left = tuple(message for message in info.messages if held.get(message.id) == info.name)
        yield replace(info, messages=left, held=info.held - (len(info.messages) - len(left)))


def _has_successor(info: WorkerInfo, newest: WorkerInfo) -> bool:
    """Return True if a newer process has the same name; two workers of one process may share a name."""
    return info.started_ms < newest.started_ms and (info.host, info.pid) != (newest.host, newest.pid)


def _key(token: str) -> str:
    return f"worker/{token}"


def _tokens(cell: Cell | None) -> list[str]:
    return message.decoded(cell, _decode, [])
