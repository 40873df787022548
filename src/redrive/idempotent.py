"""Holding the key of a task with `idempotency=`: claiming it in the store's cells, and the direct call that does so for
itself. What may follow from what stands in `flow/idempotency.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from .errors import EncodeError, InProgress, KeyReused, LeaseLost, Unreadable
from .flow.idempotency import (
    HASH_BYTES,
    Busy,
    Finished,
    Granted,
    Other,
    Record,
    Wish,
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
from .store import Store, box_of

if TYPE_CHECKING:
    from .run_context import Context
    from .task import Task

TRIES = 5  # of a claim that others move in between
AGAIN_MS = 1_000
LOST = "another claim"  # the owner, where somebody was quicker by less than could be seen
_RESULT = "result of key", ""
NOT_COMMITTED = "ctx.complete() was called, and its transaction not committed when the handler returned"


class Wanted(Struct, frozen=True):
    """A key of a task that somebody wants, and for how long."""

    key: str
    cell: str
    wish: Wish
    hold_ms: int
    keep_ms: int


class Claim(Struct, eq=False):
    """A key that is held: its cell, at which version, and what it says. `committed`: the handler has completed it in a
    transaction of its own, which may have come to nothing."""

    wanted: Wanted
    version: int
    record: Record
    committed: bool = False
    done: Record | None = None  # what the cell said of that, once the run was over
    box: Any = None  # what encrypts the result that it keeps

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


Found = Claim | Busy | Finished | Other


def wanted(
    task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any], owner: str, fence: int, hold_ms: int
) -> Wanted:
    """What a run with these arguments asks for. Raises what the key's function raises, TypeError, EncodeError."""
    rule = task.idempotency
    assert rule is not None
    key = rule.key_of(tuple(args), dict(kwargs))
    canonical, box = task.codec.canonical(args, kwargs), box_of(task.app.store)
    payload = payload_of(canonical) if box is None else box.digest(canonical, HASH_BYTES)
    wish = Wish(owner, fence, payload, task.version)
    return Wanted(key, cell_of(task.name, key), wish, hold_ms, rule.keep_ms)


def acquire(store: Store, wishes: Sequence[Wanted], now_ms: int) -> list[Found]:
    """Claim what is free, for each a Claim or why not; of several for one key the first one's turn it is.

    Most keys are new, so they are claimed unseen, and what came of it is read: one write and one read for all. Raises
    StoreError: then some may be held, by these very owners, to whom they are granted again.
    """
    durable = not store.traits.one_machine  # else a power cut that takes a claim back ends the claimant too
    found: list[Found] = [Busy(LOST, now_ms + AGAIN_MS)] * len(wishes)
    taken = {w.cell: (0, claimed(w.wish, now_ms, w.hold_ms)) for w in reversed(wishes)}  # the first one's stays
    left = list(range(len(wishes)))
    for _ in range(TRIES):
        store.cells.swap([taking(cell, v, record, now_ms) for cell, (v, record) in taken.items()], durable=durable)
        versions, records = read_all(store, list(dict.fromkeys(wishes[n].cell for n in left)))
        mine, taken, again = taken, {}, []
        for n in left:
            w = wishes[n]
            record = records[w.cell]
            if record is not None and w.cell in mine and record == mine[w.cell][1] and w.wish.owner == record.owner:
                found[n] = Claim(w, versions[w.cell], record, box=box_of(store))
            elif isinstance(answer := claim(record, w.wish, now_ms, w.hold_ms), Granted):
                taken[w.cell] = (versions[w.cell], answer.record)
                records[w.cell] = answer.record  # so that those after it find it busy
                again.append(n)
            else:
                found[n] = answer
        if not again:
            break
        left = again
    return found


def read_all(store: Store, names: Sequence[str]) -> tuple[dict[str, int], dict[str, Record | None]]:
    """The versions of these cells (0: there is none) and their records, by name. Raises StoreError."""
    pairs = list(zip(names, store.cells.read(names), strict=True))
    records = {name: read(None if cell is None else cell.value) for name, cell in pairs}
    for name, record in records.items():
        if record is not None and record.result is not None and record.result.startswith(ENVELOPE):
            records[name] = replace(record, result=_opened(store, name, record.result))
    return {name: version_of(cell) for name, cell in pairs}, records


def _opened(store: Store, cell: str, result: bytes) -> bytes | None:
    """None where it cannot be opened: then it is as one that could not be kept."""
    box = box_of(store)
    try:
        return None if box is None else box.open(result, *_RESULT, cell, "")
    except Unreadable:
        return None


# -- direct calls


class DirectCall:
    """A call of the task here and now: `begin`, and then `end` or `fail`, each of which blocks on the store."""

    def __init__(self, task: Task[Any, Any], context: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._task, self._context, self._store = task, context, task.app.store
        hold_ms = int(task.policy.timeout_s * 1000)
        self._wanted = wanted(task, args, kwargs, f"call {context.message_id}", 1, hold_ms)
        self._claim: Claim | None = None
        self.finished = False
        self.result: Any = None

    def begin(self) -> None:
        """Claim the key; or, where it is done, set `finished` and the stored result. Raises InProgress, KeyReused,
        Unreadable where no result is stored, StoreError."""
        store, task, key = self._store, self._task.name, self._wanted.key
        now_ms = store.now_ms()
        match acquire(store, [self._wanted], now_ms)[0]:
            case Claim() as found:
                self._claim = self._context._claim = found
            case Finished(record):
                self.finished, self.result = True, self._stored(record)
            case Busy(owner, until_ms):
                raise InProgress(task, key, owner, max(0, until_ms - now_ms) / 1000)
            case Other(record):
                raise KeyReused(task, key, record.owner)

    def _stored(self, record: Record) -> Any:
        if record.result is None:
            raise Unreadable(
                f"task {self._task.name!r}: idempotency key {self._wanted.key!r} is done, by {record.owner}, but what "
                "was returned then could not be stored: it was no JSON, or too long"
            )
        return self._task.codec.decode_result(record.result)

    def end(self, result: Any) -> None:
        """The handler returned. Raises LeaseLost where it ran past its timeout and another one has taken the key,
        RuntimeError where it was to be completed in a transaction that was not committed."""
        claim, extras = self._claim, self._context.end()
        assert claim is not None
        if claim.committed and self._is_done(claim):
            return
        kept = extras.partial if result is None and extras is not None else result
        degraded = None if extras is None else extras.degraded
        if claim.committed:
            raise RuntimeError(f"task {self._task.name!r}: {NOT_COMMITTED}")
        swap = claim.completing(self._encoded(kept), degraded, self._store.now_ms())
        if not self._store.cells.swap([swap])[0]:
            raise LeaseLost(
                f"task {self._task.name!r}: idempotency key {claim.key!r} went to another call, as this one ran longer "
                f"than its timeout of {self._task.policy.timeout_s:g} s: its effect may be there twice"
            )

    def fail(self) -> None:
        """The handler failed: the key is free again, unless it was completed, or taken by another one."""
        if self._claim is not None:
            self._store.cells.swap([self._claim.releasing()])

    def _is_done(self, claim: Claim) -> bool:
        _, records = read_all(self._store, [claim.wanted.cell])
        return is_completed(claim, records[claim.wanted.cell])

    def _encoded(self, result: Any) -> bytes | None:
        try:
            written = self._task.codec.encode_result(result)
        except EncodeError:
            return None
        return written if len(written) <= self._store.traits.state_bytes_max else None


def call(task: Task[Any, Any], context: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a sync handler, once for its key."""
    direct = DirectCall(task, context, args, kwargs)
    direct.begin()
    if direct.finished:
        return direct.result
    try:
        result = task.handler(*task._with_context(args), **kwargs)
        direct.end(result)
    except BaseException:
        direct.fail()
        raise
    return result


async def acall(task: Task[Any, Any], context: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """As `call`, for an async handler: the store is asked in a thread."""
    direct = DirectCall(task, context, args, kwargs)
    try:
        await _in_thread(direct.begin)
        if direct.finished:
            return direct.result
        result = await task.handler(*task._with_context(args), **kwargs)
        await _in_thread(direct.end, result)
    except BaseException:
        await _in_thread(direct.fail)
        raise
    return result


async def _in_thread(do: Callable[..., None], *args: Any) -> None:
    """To its end, also where the caller is cancelled meanwhile: what was begun with a key must be known."""
    import asyncio

    asked = asyncio.ensure_future(asyncio.to_thread(do, *args))
    try:
        await asyncio.shield(asked)
    except asyncio.CancelledError:
        await asyncio.wait([asked])
        raise


def is_completed(claim: Claim, record: Record | None) -> bool:
    """Whether the cell says that this claim's owner has completed it."""
    return record is not None and record.done and held_by(record, claim.record.owner, claim.record.fence)
