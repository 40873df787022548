"""Claim, complete and release idempotency keys: one effect per key.

A key is free, claimed by an owner (`KeyRecord`, not done) or done. A caller asks `claim`; the owner ends with
`completed`, or by deleting the cell. Everything is pure. The caller writes by compare-and-set on the version that it
read. So if two claim at once one wins, and an owner that was overtaken can neither complete nor release.

An owner is a message, or a direct call, and a fence that rises with each claim of it. A message that is claimed again
takes over from its own earlier run at once, whose receipt is stale. Others wait until the claim's time is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, overload

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..duration import Duration, milliseconds, seconds
from ..message import Deferral, Swap

PREFIX = "idem/"
HASH_BYTES = 16
CELL_MAX = 200  # longest name of a cell with its key written out; longer names are hashed
WAIT_MS = (1_000, 60_000)  # shortest and longest wait before a deferred duplicate checks again


@dataclass(frozen=True, slots=True)
class Idempotency:
    """Runs a task once for each key: `@app.task(idempotency=Idempotency(key=lambda order, cents: f"charge-{order}"))`.

    `key` is called with the arguments and returns text that is not empty; keys of different tasks are separate, and a
    key must depend only on the arguments. `keep` is how long a key is remembered once it is done, with the result.
    Within that time another message, or a direct call, with the same key gets the stored result and is not run; it
    makes no follow-ups again. While a run holds the key, a duplicate message is deferred; one with other arguments is
    dead-lettered, and a direct call refused. A run that fails frees the key. Raises TypeError or ValueError.
    """

    key: Callable[..., str]
    keep: Duration = "28d"
    keep_ms: int = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:  # a checker takes the parameters of a lambda from a type that counts them, and not from `...`

        @overload
        def __init__(self, key: Callable[[Any], str], keep: Duration = "28d") -> None: ...
        @overload
        def __init__(self, key: Callable[[Any, Any], str], keep: Duration = "28d") -> None: ...
        @overload
        def __init__(self, key: Callable[[Any, Any, Any], str], keep: Duration = "28d") -> None: ...
        @overload
        def __init__(  # type: ignore[overload-cannot-match] # mypy, for which `...` is any number
            self, key: Callable[..., str], keep: Duration = "28d"
        ) -> None: ...
        def __init__(self, key: Callable[..., str], keep: Duration = "28d") -> None: ...

    def __post_init__(self) -> None:
        if not callable(self.key):
            raise TypeError(
                f"idempotency key {self.key!r} is not callable; expected a function of the task's arguments, such as "
                "key=lambda order_id: f'charge-{order_id}'"
            )
        keep_s = seconds(self.keep, "idempotency keep")
        if keep_s <= 0:
            raise ValueError(f"idempotency keep {self.keep!r} is refused: expected more than 0")
        object.__setattr__(self, "keep", keep_s)
        object.__setattr__(self, "keep_ms", milliseconds(keep_s))

    def key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the key of a call. Raises TypeError or ValueError for an invalid key, and the errors of `key`."""
        key: object = self.key(*args, **kwargs)
        if not isinstance(key, str):
            raise TypeError(f"the idempotency key is {key!r}; expected text, such as f'charge-{{order_id}}'")
        if not key:
            raise ValueError("the idempotency key is empty, which would make all such calls one; expected text")
        return key


class KeyRecord(Struct, frozen=True, array_like=True, gc=False):
    """The stored record of a key. `until_ms` is when the claim ends or, if the key is `done`, when it was completed.

    `payload` is the hash of the arguments for `version` of the task; hashes of other versions cannot be compared.
    """

    owner: str
    fence: int
    until_ms: int
    payload: bytes
    version: int = 1
    done: bool = False
    result: bytes | None = None  # as JSON; None: the result could not be kept
    degraded: str | None = None


class KeyWish(Struct, frozen=True):
    """A request for a key: the owner that asks for it, and the hash of the arguments."""

    owner: str
    fence: int
    payload: bytes
    version: int = 1


# The possible answers to a request for a key.


class Granted(Struct, frozen=True):
    """The owner has the key once `record` is written over the version of the cell that was read (0: no cell)."""

    record: KeyRecord


class Busy(Struct, frozen=True):
    """Another owner has claimed the key, at most until `until_ms`."""

    owner: str
    until_ms: int


class Finished(Struct, frozen=True):
    """The key is done; `record` has the result."""

    record: KeyRecord


class Other(Struct, frozen=True):
    """The key was used with other arguments."""

    record: KeyRecord


Answer = Granted | Busy | Finished | Other

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(KeyRecord).decode
_UNREADABLE = KeyRecord("a newer redrive", 0, 2**62, b"")


def cell_of(task: str, key: str) -> str:
    """Return the name of the key's cell: task and key if short and printable ASCII, otherwise a hash."""
    name = f"{PREFIX}{task}/{key}"
    if name.isascii() and name.isprintable() and len(name) <= CELL_MAX and "/" not in task:
        return name
    return PREFIX + hashed(f"{len(task)}/{task}/{key}".encode(errors="surrogatepass")).hex()


def payload_of(canonical: bytes) -> bytes:
    """Return a hash that stands for the arguments in comparisons, from their canonical bytes."""
    return hashed(canonical)


@cache
def _hasher() -> Callable[..., Any]:
    from hashlib import blake2b  # imported late: it loads OpenSSL

    return blake2b


def hashed(content: bytes) -> bytes:
    digest: bytes = _hasher()(content, digest_size=HASH_BYTES).digest()
    return digest


def read(value: bytes | None) -> KeyRecord | None:
    """Decode the value of a cell; None without a cell. Undecodable bytes count as a claim that never ends."""
    if value is None:
        return None
    try:
        return _decode(value)
    except msgspec.MsgspecError:
        return _UNREADABLE


def written(record: KeyRecord) -> bytes:
    return _encode(record)


def claimed(wish: KeyWish, now_ms: int, hold_ms: int) -> KeyRecord:
    """Return the record of a claim that lasts `hold_ms` from now."""
    return KeyRecord(wish.owner, wish.fence, now_ms + hold_ms, wish.payload, wish.version)


def claim(record: KeyRecord | None, wish: KeyWish, now_ms: int, hold_ms: int) -> Answer:
    """Answer a request for a key, given the stored record of the key. A granted claim lasts `hold_ms`."""
    granted = Granted(claimed(wish, now_ms, hold_ms))
    if record is None:
        return granted
    own = record.owner == wish.owner
    if record.done:
        return Finished(record) if own or _same(record, wish) else Other(record)
    if own:
        return granted if record.fence <= wish.fence else Busy(record.owner, record.until_ms)
    if record.until_ms <= now_ms:
        return granted
    return Busy(record.owner, record.until_ms) if _same(record, wish) else Other(record)


def _same(record: KeyRecord, wish: KeyWish) -> bool:
    """True if record and request have the same arguments, or hashes that cannot be compared: hashes made with different
    encryption keys, or with and without one, differ in their suffix."""
    was, now = record.payload, wish.payload
    if not was or record.version != wish.version or was[HASH_BYTES:] != now[HASH_BYTES:]:
        return True
    return was == now


def prolonged(record: KeyRecord, now_ms: int, hold_ms: int) -> KeyRecord:
    """Return the record with the claim extended to `hold_ms` from now."""
    return replace(record, until_ms=now_ms + hold_ms)


def completed(record: KeyRecord, result: bytes | None, degraded: str | None, now_ms: int) -> KeyRecord:
    """Return the record of a key that its owner has now completed."""
    return replace(record, until_ms=now_ms, done=True, result=result, degraded=degraded)


def held_by(record: KeyRecord | None, owner: str, fence: int) -> bool:
    """True if this owner's claim with this fence wrote the record, or completed the key."""
    return record is not None and record.owner == owner and record.fence == fence


def taking(cell: str, version: int, record: KeyRecord, now_ms: int) -> Swap:
    """Return the swap that claims a key by writing the record; the cell expires with the claim."""
    return Swap(cell, version, written(record), max(1, record.until_ms - now_ms))


def completing(cell: str, version: int, done: KeyRecord, keep_ms: int) -> Swap:
    """Return the swap that completes a key by writing the record `done`, kept for `keep_ms`."""
    return Swap(cell, version, written(done), keep_ms)


def releasing(cell: str, version: int) -> Swap:
    """Return the swap that frees a key by deleting its cell."""
    return Swap(cell, version, None)


def look_again_ms(busy: Busy, held_ms: int, now_ms: int) -> int:
    """Return when a duplicate checks again: after half of the time `held_ms` for which it was deferred so far, but
    within WAIT_MS and not after the end of the claim."""
    wait_ms = min(max(WAIT_MS[0], held_ms // 2), WAIT_MS[1])
    return max(now_ms + 1, min(busy.until_ms, now_ms + wait_ms))


def deferral(busy: Busy, task: str) -> Deferral:
    """Return the deferral of a duplicate, which names the owner of the claim."""
    return Deferral("idempotency", f"{task}: {busy.owner}")
