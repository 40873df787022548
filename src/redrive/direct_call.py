"""Call a task directly, at most once for its idempotency key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import EncodeError, InProgress, KeyReused, LeaseLost, Unreadable
from .flow.idempotency import Busy, Finished, KeyRecord, Other
from .idempotency import NOT_COMMITTED, Claim, acquire, is_completed, key_request, read_all
from .run_context import Context
from .task import TaskSpec


class DirectCall:
    """A direct call of a task with an idempotency key: `begin`, then `end` or `fail`. Each blocks on the store."""

    finished: bool

    def __init__(self, task: TaskSpec, context: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._task, self._context, self._store = task, context, task.app.store
        hold_ms = int(task.policy.timeout_s * 1000)
        self._wanted = key_request(task, args, kwargs, f"call {context.message_id}", 1, hold_ms)
        self._claim: Claim | None = None
        self.finished = False
        self.result: Any = None

    def begin(self) -> None:
        """Claim the key; if an earlier call has completed it, set `finished` and `result`. Raises InProgress,
        KeyReused, Unreadable if no result is stored, StoreError."""
        store, task, key = self._store, self._task.name, self._wanted.key
        now_ms = store.now_ms()
        match acquire(store, [self._wanted], now_ms)[0]:
            case Claim() as claim:
                self._claim = self._context._claim = claim
            case Finished(record):
                self.finished, self.result = True, self._decode_result(record)
            case Busy(owner, until_ms):
                raise InProgress(task, key, owner, max(0, until_ms - now_ms) / 1000)
            case Other(record):
                raise KeyReused(task, key, record.owner)

    def _decode_result(self, record: KeyRecord) -> Any:
        if record.result is None:
            raise Unreadable(
                f"task {self._task.name!r}: idempotency key {self._wanted.key!r} is done, by {record.owner}, but what "
                "was returned then could not be stored: it was no JSON, or too long"
            )
        return self._task.codec.decode_result(record.result)

    def end(self, result: Any) -> None:
        """Complete the key with the handler's result. Raises LeaseLost if the call exceeded its timeout and another
        call has the key, RuntimeError if the transaction of `ctx.complete()` was not committed."""
        claim, extras = self._claim, self._context.end()
        assert claim is not None
        if claim.committed and self._is_done(claim):
            return
        kept = extras.partial if result is None and extras is not None else result
        degraded = None if extras is None else extras.degraded
        if claim.committed:
            raise RuntimeError(f"task {self._task.name!r}: {NOT_COMMITTED}")
        swap = claim.completing(self._encode(kept), degraded, self._store.now_ms())
        if not self._store.cells.swap([swap])[0]:
            raise LeaseLost(
                f"task {self._task.name!r}: idempotency key {claim.key!r} went to another call, as this one ran longer "
                f"than its timeout of {self._task.policy.timeout_s:g} s: its effect may be there twice"
            )

    def fail(self) -> None:
        """Release the key after a failure, unless it is completed or another call has claimed it."""
        if self._claim is not None:
            self._store.cells.swap([self._claim.releasing()])

    def _is_done(self, claim: Claim) -> bool:
        _, records = read_all(self._store, [claim.wanted.cell])
        return is_completed(claim, records[claim.wanted.cell])

    def _encode(self, result: Any) -> bytes | None:
        try:
            written = self._task.codec.encode_result(result)
        except EncodeError:
            return None
        return written if len(written) <= self._store.traits.state_bytes_max else None


def call(task: TaskSpec, context: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a sync handler, once for its idempotency key; return its result, or the stored one."""
    direct = DirectCall(task, context, args, kwargs)
    direct.begin()
    if direct.finished:
        return direct.result
    try:
        result = task.called(*_arguments(task, context, args), **kwargs)
        direct.end(result)
    except BaseException:
        direct.fail()
        raise
    return result


async def acall(task: TaskSpec, context: Context, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Do as `call` does for an async handler; the store is called in a thread."""
    direct = DirectCall(task, context, args, kwargs)
    try:
        await _in_thread(direct.begin)
        if direct.finished:
            return direct.result
        result = await task.called(*_arguments(task, context, args), **kwargs)
        await _in_thread(direct.end, result)
    except BaseException:
        await _in_thread(direct.fail)
        raise
    return result


def _arguments(task: TaskSpec, context: Context, args: Sequence[Any]) -> Sequence[Any]:
    return (context, *args) if task.takes_context else args


async def _in_thread(do: Callable[..., None], *args: Any) -> None:
    """Run `do` in a thread to its end, even if the caller is cancelled meanwhile, as a claim must not be lost."""
    import asyncio

    asked = asyncio.ensure_future(asyncio.to_thread(do, *args))
    try:
        await asyncio.shield(asked)
    except asyncio.CancelledError:
        await asyncio.wait([asked])
        raise
