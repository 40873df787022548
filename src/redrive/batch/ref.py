"""Follow a batch: its counts, its state, its members; wait for its end, or cancel it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct, json
from msgspec.structs import replace

from ..audit import Audit
from ..chain import NEXT_HEADER
from ..duration import Duration, pauses
from ..errors import BatchNotDone, ConfigError, Unreadable, Unsupported
from ..ids import part_id, root_of
from ..message import BatchCounts, Cancel, Filter, Lane, Message, Swap
from ..registry import Registry
from ..run_context import refuse_loop
from ..store import Store
from .parts import Part, Seen
from .read import PAGE, WholeBatch, peeked, wholes, with_nested, with_parts
from .state import BatchPhase, BatchState, swap_of

_AFTER_PARTS = "0"  # sorts above "/", which begins the name of a part, and below any other id


class PartInfo(Struct, frozen=True):
    """A part of a batch at one moment: a nested batch, or a step of a workflow, which begins after other steps.
    `state`: `waiting` for a step that has not begun, else as that of a batch."""

    id: str
    name: str
    state: BatchPhase
    counts: BatchCounts
    after: tuple[str, ...] = ()
    nested: bool = False


class BatchInfo(Struct, frozen=True):
    """A batch at one moment: `episode` is the number of the present episode, from 1; see `redrive.batch.advance`.
    `filled_ms` is when its producer last put members, `expected_ms` when the batch is expected to have ended (see
    `BatchState.expected_ms`), and `stopped` says that its `stop_if` cancelled members. `per_s` is how many members
    ended per second since the batch was begun, `eta_s` the seconds until the rest has ended at this rate. Both are None
    in later episodes, and `eta_s` unless the batch runs."""

    id: str
    name: str
    state: BatchPhase
    counts: BatchCounts
    created_ms: int
    episode: int
    ended_ms: int | None = None
    filled_ms: int = 0
    parts: tuple[PartInfo, ...] = ()
    expected_ms: int | None = None
    stopped: bool = False
    per_s: float | None = None
    eta_s: float | None = None

    @property
    def may_be_cancelled(self) -> bool:
        """True if a cancel changes the batch: it is neither done nor cancelled. A partial batch is then given up."""
        return self.state not in (BatchPhase.DONE, BatchPhase.CANCELLED)

    @property
    def waits_for_redrive(self) -> bool:
        """True if the batch is partial and a member is dead or in quarantine: a redrive of it lets the batch go on."""
        return self.state is BatchPhase.PARTIAL and self.counts.dead + self.counts.quarantine > 0


class BatchRef(Struct, frozen=True):
    """A ref to a batch. `duplicate`: a sealed batch with the same key was there, and the ref is to that one."""

    id: str
    store: Store
    duplicate: bool = False
    app: Registry | None = None  # its tasks decode results

    @property
    def counts(self) -> BatchCounts:
        """The members by what became of them, with those of its parts. Raises StoreError."""
        return wholes(self.store, [self.id])[0].counts

    @property
    def state(self) -> str:
        """The state: filling, running, done, partial or cancelled. Raises as `info`."""
        return self.info().state.value

    def info(self) -> BatchInfo:
        """Return the batch's name, state and counts. Raises StoreError, ConfigError for a batch that is unknown: no
        producer has begun it, or it ended more than seven days ago."""
        return _info(self._read(), self.store.now_ms())

    def _read(self) -> WholeBatch:
        (whole,) = wholes(self.store, [self.id])
        if whole.why:
            raise Unreadable(whole.why)
        if whole.state is None:
            raise ConfigError(f"batch {self.id} is unknown: it was never begun, or it ended more than 7 days ago")
        return whole

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
        stored unless their results are kept. Those of its parts are members, too. Raises StoreError."""
        yield from peeked(self.store, lane, Filter(batch=with_parts(self.store, [self.id])))

    def results(self) -> Iterator[tuple[Message, Any]]:
        """Yield each member that is done, the first one first, with what its handler returned, decoded by the return
        annotation of its task. Read page by page.

        A batch with `results=True` keeps a result for seven days from the end of its member, or as long as `results`
        says; another batch keeps those of messages with `keep_result=`. What is kept no longer is left out, and so are
        the steps of a chain before its last. Raises StoreError, Unreadable for a result that does not fit.
        """
        tasks = {} if self.app is None else self.app.tasks
        for member in self.members(Lane.DONE):
            if member.reason == "cancelled" or NEXT_HEADER in member.headers:
                continue
            task, written = tasks.get(member.task), member.result or b"null"
            yield member, json.decode(written) if task is None else task.codec.decode_result(written)

    def cancel(self, *, reason: str = "", actor: str | None = None) -> int:
        """End waiting members as cancelled and ask running ones to stop; return how many. A partial batch is given up:
        it counts as cancelled, its dead members stay. No effect on one that is done or cancelled. In the audit log,
        with one entry for the batch. If it is cut off in between, call it again. Raises StoreError, ConfigError for an
        unknown batch, Unsupported for one with open members in a store that lists none that wait."""
        info = self.info()
        if not info.may_be_cancelled:
            return 0
        if info.counts.open and not self.store.traits.finds:
            raise Unsupported(
                f"batch {self.id} cannot be cancelled now: {self.store.traits.name} lists no members that wait, and "
                f"{info.counts.open} are open; cancel it once nothing is open"
            )
        audit = Audit(self.store)
        entry = audit.by_hand("cancel", f"batch/{self.id}", actor, reason)

        def write(swaps: list[Swap]) -> None:
            read = [(whole.state, whole.cell) for whole in with_nested(self.store, [self.id])]
            states = [swap_of(self.store, replace(state, cancelled=True), cell) for state, cell in read if state]
            self.store.put([], swaps=[*swaps, *states])

        audit.commit(entry, write)
        lanes = (Lane.READY, Lane.LEASED) if self.store.traits.finds else ()
        words = [word for lane in lanes for word in cancel_all(self.store, list(self.members(lane)))]
        return sum(word in (Cancel.CANCELLED, Cancel.REQUESTED) for word in words)


def cancel_all(store: Store, messages: Sequence[Message]) -> list[str]:
    """Cancel these messages, page by page; return the words of the store. Raises StoreError."""
    ids = [message.id for message in messages]
    return [word for at in range(0, len(ids), PAGE) for word in store.cancel(ids[at : at + PAGE])]


def listed(store: Store, *, after: str = "", limit: int = 100) -> list[BatchInfo]:
    """Return the first batches of `every`. Raises StoreError."""
    return [*islice(every(store, after=after, page=limit), limit)]


def every(store: Store, *, after: str = "", page: int = PAGE) -> Iterator[BatchInfo]:
    """Yield batches with members, sorted by id, above `after`; those whose state is gone or unreadable are left out,
    and parts are shown with what they are a part of. Raises StoreError."""
    while ids := ids_above(store, after, page):
        yield from infos(store, ids)
        after = ids[-1]


def ids_above(store: Store, after: str, limit: int) -> list[str]:
    """Return ids of batches with members, sorted, above `after`, and not those of their parts. Only an empty list is
    the end: `limit` ids of parts are fewer batches."""
    return roots(store.batch_ids(after=after and after + _AFTER_PARTS, limit=limit))


def roots(ids: Iterable[str]) -> list[str]:
    """Return the batches that these are, or are parts of, each once."""
    return [*dict.fromkeys(map(root_of, ids))]


def infos(store: Store, ids: Sequence[str]) -> list[BatchInfo]:
    """Return these batches, in the order of `ids`; those whose state is gone or unreadable are left out. Raises
    StoreError."""
    now_ms = store.now_ms() if ids else 0
    return [_info(whole, now_ms) for whole in wholes(store, ids) if whole.state is not None]


def _info(whole: WholeBatch, now_ms: int) -> BatchInfo:
    state, counts = whole.state, whole.counts
    assert state is not None, "a batch without a state is left out"
    per_s = _per_s(state, counts, now_ms)
    return BatchInfo(
        state.id, state.name, whole.phase, counts, state.created_ms, state.episode, state.ended_ms, state.filled_ms,
        tuple(_part(state, part, whole.parts[part.name]) for part in state.parts), state.expected_ms, state.stopped,
        per_s, counts.open / per_s if per_s and counts.open and state.sealed else None,
    )  # fmt: skip


def _per_s(state: BatchState, counts: BatchCounts, now_ms: int) -> float | None:
    """Return how many members ended per second in the first episode; None once that is over, unless it was the only
    one."""
    ended = counts.total - counts.open - counts.duplicate
    until_ms = now_ms if not state.completions else state.ended_ms if state.completions == 1 else None
    if not ended or until_ms is None or until_ms <= state.created_ms:
        return None
    return ended * 1000 / (until_ms - state.created_ms)


def _part(whole: BatchState, part: Part, seen: Seen) -> PartInfo:
    if not part.nested and not part.begun:
        phase = BatchPhase.CANCELLED if whole.cancelled else BatchPhase.WAITING
    elif seen.counts.open or ((seen.open or part.feeds) and not whole.cancelled):
        phase = BatchPhase.RUNNING
    else:
        phase = BatchPhase.DONE if seen.done or part.done else BatchPhase.PARTIAL
    return PartInfo(part_id(whole.id, part.name), part.name, phase, seen.counts, part.after, part.nested)


def _refuse_ended(info: BatchInfo) -> None:
    if info.state in (BatchPhase.PARTIAL, BatchPhase.CANCELLED):
        raise BatchNotDone(info.id, info.name, info.state.value, info.counts.failed, info.counts.total)
