"""Follow a batch: its counts, its state, its members; wait for its end, or cancel it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ..audit import Audit
from ..duration import Duration, pauses
from ..errors import BatchNotDone, ConfigError, Unreadable
from ..message import BatchCounts, Cancel, Cell, Filter, Lane, Message, Swap
from ..run_context import refuse_loop
from ..store import Store
from .state import BatchPhase, BatchState, cell_of, state_in, swap_of

PAGE = 500


class BatchInfo(Struct, frozen=True):
    """A batch at one moment: `episode` is the number of the present episode, from 1; see `redrive.batch.advance`.
    `filled_ms` is when its producer last put members."""

    id: str
    name: str
    state: BatchPhase
    counts: BatchCounts
    created_ms: int
    episode: int
    ended_ms: int | None = None
    filled_ms: int = 0

    @property
    def may_be_cancelled(self) -> bool:
        """True if a cancel changes the batch: it is neither done nor cancelled. A partial batch is then given up."""
        return self.state not in (BatchPhase.DONE, BatchPhase.CANCELLED)


class BatchRef(Struct, frozen=True):
    """A ref to a batch. `duplicate`: a sealed batch with the same key was there, and the ref is to that one."""

    id: str
    store: Store
    duplicate: bool = False

    @property
    def counts(self) -> BatchCounts:
        """The members by what became of them. Raises StoreError."""
        return self.store.batch_counts([self.id])[0]

    @property
    def state(self) -> str:
        """The state: filling, running, done, partial or cancelled. Raises as `info`."""
        return self.info().state.value

    def info(self) -> BatchInfo:
        """Return the batch's name, state and counts. Raises StoreError, ConfigError for a batch that is unknown: no
        producer has begun it, or it ended more than seven days ago."""
        _, state = self._read()
        return _info(state, self.counts)

    def _read(self) -> tuple[Cell | None, BatchState]:
        (cell,) = self.store.cells.read([cell_of(self.id)])
        state = state_in(self.store, self.id, cell)
        if state is None:
            raise ConfigError(f"batch {self.id} is unknown: it was never begun, or it ended more than 7 days ago")
        return cell, state

    def wait(self, timeout: Duration | None = None) -> BatchCounts:
        """Wait until the batch is done, and return its counts. Raises BatchNotDone once nothing is open and it is not
        done (a redrive of its dead members may still end it well), TimeoutError after `timeout`, RuntimeError inside a
        running event loop: use `await_` there."""
        refuse_loop("ref.wait()", "await ref.await_(…)")
        looks = pauses(timeout, f"batch {self.id}")
        while (info := self.info()).state is not BatchPhase.DONE:
            _refuse_ended(info)
            time.sleep(next(looks))
        return info.counts

    async def await_(self, timeout: Duration | None = None) -> BatchCounts:
        """Do as `wait` does, in asyncio code."""
        looks = pauses(timeout, f"batch {self.id}")
        while (info := await asyncio.to_thread(self.info)).state is not BatchPhase.DONE:
            _refuse_ended(info)
            await asyncio.sleep(next(looks))
        return info.counts

    def members(self, lane: Lane | str | None = Lane.DEAD) -> Iterator[Message]:
        """Yield the stored members in this lane (None: in every lane), oldest first. Members that are done are not
        stored unless their results are kept. Raises StoreError."""
        cursor: str | None = ""
        while cursor is not None:
            page = self.store.peek(lane, where=Filter(batch=self.id), limit=PAGE, cursor=cursor or None)
            yield from page.messages
            cursor = page.cursor

    def cancel(self, *, reason: str = "", actor: str | None = None) -> int:
        """End waiting members as cancelled and ask running ones to stop; return how many. A partial batch is given up:
        it counts as cancelled, its dead members stay. No effect on one that is done or cancelled. In the audit log,
        with one entry for the batch. If it is cut off in between, call it again. Raises StoreError, ConfigError for an
        unknown batch."""
        if not self.info().may_be_cancelled:
            return 0
        audit = Audit(self.store)
        entry = audit.by_hand("cancel", f"batch/{self.id}", actor, reason)

        def write(swaps: list[Swap]) -> None:
            cell, state = self._read()
            self.store.put([], swaps=[*swaps, swap_of(self.store, replace(state, cancelled=True), cell)])

        audit.commit(entry, write)
        ended = 0
        for lane in (Lane.READY, Lane.LEASED):
            ids = [message.id for message in self.members(lane)]
            for at in range(0, len(ids), PAGE):
                words = self.store.cancel(ids[at : at + PAGE])
                ended += sum(word in (Cancel.CANCELLED, Cancel.REQUESTED) for word in words)
        return ended


def listed(store: Store, *, after: str = "", limit: int = 100) -> list[BatchInfo]:
    """Return batches with members, sorted by id, above `after`; those whose state is gone or unreadable are left out.
    Raises StoreError."""
    return infos(store, store.batch_ids(after=after, limit=limit))


def infos(store: Store, ids: Sequence[str]) -> list[BatchInfo]:
    """Return these batches, in the order of `ids`; those whose state is gone or unreadable are left out. Raises
    StoreError."""
    if not ids:
        return []
    cells, found = store.cells.read([cell_of(id) for id in ids]), list[BatchInfo]()
    for id, cell, counts in zip(ids, cells, store.batch_counts(ids), strict=True):
        with contextlib.suppress(Unreadable):
            state = state_in(store, id, cell)
            if state is not None:
                found.append(_info(state, counts))
    return found


def _info(state: BatchState, counts: BatchCounts) -> BatchInfo:
    return BatchInfo(
        state.id, state.name, state.phase(counts), counts, state.created_ms, state.episode, state.ended_ms,
        state.filled_ms,
    )  # fmt: skip


def _refuse_ended(info: BatchInfo) -> None:
    if info.state in (BatchPhase.PARTIAL, BatchPhase.CANCELLED):
        raise BatchNotDone(info.id, info.name, info.state.value, info.counts.failed, info.counts.total)
