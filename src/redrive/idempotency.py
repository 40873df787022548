"""Acquire and release idempotency keys in the store's cells. The rules are pure functions in `flow/idempotency.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from .errors import Unreadable
from .flow.idempotency import (
    HASH_BYTES,
    Busy,
    Finished,
    Granted,
    KeyRecord,
    KeyWish,
    Other,
    cell_of,
    claim,
    claimed,
    completed,
    completing,
    held_by,
    payload_of,
    read,
    releasing,
    taking,
)
from .message import ENVELOPE, Swap, version_of
from .store import Store
from .task import TaskSpec

TRIES = 5  # the most attempts at a claim while others change the cell
AGAIN_MS = 1_000
LOST = "another claim"  # the owner to report if another claim won, and has ended since
_RESULT = "result of key", ""
NOT_COMMITTED = "ctx.complete() was called, and its transaction not committed when the handler returned"


class KeyRequest(Struct, frozen=True):
    """A request for an idempotency key of a task: its cell, who wants it, and for how long to hold the claim and keep
    the result."""

    key: str
    cell: str
    wish: KeyWish
    hold_ms: int
    keep_ms: int


class Claim(Struct, eq=False):
    """An idempotency key that this process holds: its cell, the cell's version and the record. `committed`: the handler
    has completed the key in a transaction of its own, which may have been rolled back."""

    wanted: KeyRequest
    version: int
    record: KeyRecord
    committed: bool = False
    done: KeyRecord | None = None  # the cell's record of the completed key, read after the run
    box: Any = None  # the `crypto.Box` that encrypts the result before it is stored

    @property
    def key(self) -> str:
        return self.wanted.key

    def completing(self, result: bytes | None, degraded: str | None, now_ms: int) -> Swap:
        if self.box is not None and result is not None:
            result = self.box.seal(result, *_RESULT, self.wanted.cell, "")
        done = completed(self.record, result, degraded, now_ms)
        return completing(self.wanted.cell, self.version, done, self.wanted.keep_ms)

    def releasing(self) -> Swap:
        return releasing(self.wanted.cell, self.version)


ClaimAnswer = Claim | Busy | Finished | Other


def key_request(
    task: TaskSpec, args: Sequence[Any], kwargs: Mapping[str, Any], owner: str, fence: int, hold_ms: int
) -> KeyRequest:
    """Return the request for the idempotency key of a run with these arguments. Raises the key function's errors,
    TypeError, EncodeError."""
    rule = task.idempotency
    assert rule is not None
    key = rule.key_of(tuple(args), dict(kwargs))
    canonical, box = task.codec.canonical(args, kwargs), task.app.store.box
    payload = payload_of(canonical) if box is None else box.digest(canonical, HASH_BYTES)
    wish = KeyWish(owner, fence, payload, task.version)
    return KeyRequest(key, cell_of(task.name, key), wish, hold_ms, rule.keep_ms)


def acquire(store: Store, wishes: Sequence[KeyRequest], now_ms: int) -> list[ClaimAnswer]:
    """Claim the keys that are free; return for each request a Claim, or why the key was not claimed. Of several
    requests for one key the first wins.

    Most keys are new, so they are written before they are read: one write and one read for all. Raises StoreError; then
    some keys may have been claimed, and the same owners get them again.
    """
    durable = not store.traits.one_machine  # on one machine, a power cut that undoes a claim also ends its owner
    claims: list[ClaimAnswer] = [Busy(LOST, now_ms + AGAIN_MS)] * len(wishes)
    # Reversed, so that of several requests for a cell the first one is written.
    taken = {w.cell: (0, claimed(w.wish, now_ms, w.hold_ms)) for w in reversed(wishes)}
    left = list(range(len(wishes)))
    for _ in range(TRIES):
        store.cells.swap([taking(cell, v, record, now_ms) for cell, (v, record) in taken.items()], durable=durable)
        versions, records = read_all(store, list(dict.fromkeys(wishes[n].cell for n in left)))
        mine, taken, again = taken, {}, []
        for n in left:
            w = wishes[n]
            record = records[w.cell]
            if record is not None and w.cell in mine and record == mine[w.cell][1] and w.wish.owner == record.owner:
                claims[n] = Claim(w, versions[w.cell], record, box=store.box)
            elif isinstance(answer := claim(record, w.wish, now_ms, w.hold_ms), Granted):
                taken[w.cell] = (versions[w.cell], answer.record)
                records[w.cell] = answer.record  # so that later requests for this cell find it claimed
                again.append(n)
            else:
                claims[n] = answer
        if not again:
            break
        left = again
    return claims


def read_all(store: Store, names: Sequence[str]) -> tuple[dict[str, int], dict[str, KeyRecord | None]]:
    """Return the versions (0: no cell) and the records of these cells, by name. Raises StoreError."""
    pairs = list(zip(names, store.cells.read(names), strict=True))
    records = {name: read(None if cell is None else cell.value) for name, cell in pairs}
    for name, record in records.items():
        if record is not None and record.result is not None and record.result.startswith(ENVELOPE):
            records[name] = replace(record, result=_open(store, name, record.result))
    return {name: version_of(cell) for name, cell in pairs}, records


def _open(store: Store, cell: str, result: bytes) -> bytes | None:
    """Return the stored result in `cell` decrypted; None if that fails, as if no result had been stored."""
    box = store.box
    try:
        return None if box is None else box.open(result, *_RESULT, cell, "")
    except Unreadable:
        return None


def is_completed(claim: Claim, record: KeyRecord | None) -> bool:
    """Return True if the record shows that the owner of this claim completed the key."""
    return record is not None and record.done and held_by(record, claim.record.owner, claim.record.fence)
