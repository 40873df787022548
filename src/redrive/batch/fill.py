"""Fill a batch: put its members, a thousand in a commit, and seal it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from ..chain import RESULTS_HEADER, heir
from ..duration import Duration, milliseconds
from ..errors import ConfigError, Conflict
from ..ids import part_id
from ..message import Cell, Draft, labelled
from ..registry import Registry
from ..run_context import refuse_loop
from ..stores.validation import admit_batch, admit_width
from . import repeats
from .advance import Advance, advance
from .follow import follow
from .parts import PARTS_MAX, Part, Tolerance
from .read import need_counts, wholes
from .ref import BatchRef
from .state import KEPT_MS, BatchState, cell_of, id_of, state_in, swap_of
from .stop_if import StopIf

TRIES = 100  # how often a commit is tried again because a worker changed the batch's state meanwhile
COMMIT_MAX = 1000  # members that one commit puts
TX_MAX = 10_000  # members of a batch that is put in a transaction of the caller

Callbacks = tuple[Draft | None, Draft | None, Draft | None]  # on_success, on_complete and on_death


class Batch:
    """A batch that is being filled: `enqueue()` puts the drafts that it was given, a `with` block those that `add`
    gets. Made by `app.batch(…)`."""

    def __init__(self, app: Registry, drafts: Iterable[Draft | Batch], state: BatchState, key: str | None) -> None:
        self._app, self._drafts, self._key = app, drafts, key
        self._wanted = self._state = state
        self._cell: Cell | None = None
        self._buffer: list[Draft] = []
        self._skipped = 0  # drafts left out, as an earlier producer with the same key put them
        self._nested: set[str] = set()  # names of the nested batches that this producer gave
        self._unfilled: set[str] = set()  # those of them whose filling raised an error
        self._duplicate = False  # True if a sealed batch with the same key was there

    @property
    def ref(self) -> BatchRef:
        """A ref to the batch, also while it is filled."""
        return BatchRef(self._state.id, self._app.store, self._duplicate, self._app)

    # -- all drafts at once

    def enqueue(self, *, tx: Any = None) -> BatchRef:
        """Put all members, a thousand in a commit, and seal the batch; durable when it returns.

        Up to a thousand members are one commit. If this is cut off in between, the batch stays unsealed: call it again
        with the same `key=` and the same drafts, and it goes on where it stood. With `tx`, a connection or session of
        yours on the store's own database, up to 10,000 members are written in its transaction. Raises EnqueueError,
        StoreError, Conflict if another producer fills a batch of this key at the same time.
        """
        refuse_loop("batch.enqueue()", "await batch.aenqueue()")
        return self._enqueue(tx)

    async def aenqueue(self, *, tx: Any = None) -> BatchRef:
        """Do as `enqueue` does, without blocking the event loop. With `tx`, it is written on this thread."""
        return self._enqueue(tx) if tx is not None else await asyncio.to_thread(self._enqueue, None)

    def _enqueue(self, tx: Any) -> BatchRef:
        if tx is not None:
            self._begin()
            return self._enqueue_within(tx)
        self._open()
        return self.seal()

    def _open(self) -> None:
        self._begin()
        for member in self._drafts:  # one by one, as there may be more than fit in memory
            self._take(member)

    def _enqueue_within(self, tx: Any) -> BatchRef:
        if self._state.width:
            raise ConfigError(
                f"batch {self._state.name!r}: with tx= it has no width=, as a group's width is no part of it"
            )
        drafts = list[Draft]()
        for member in self._drafts:
            if isinstance(member, Batch):
                raise ConfigError(f"batch {self._state.name!r} has nested batches: enqueue it without tx=")
            drafts.append(self._need_draft(member))
        if len(drafts) > TX_MAX:
            raise ConfigError(f"batch {self._state.name!r} has {len(drafts)} members; with tx= at most {TX_MAX}")
        if self._state.filled:
            raise Conflict(f"batch {self._state.name!r} with key {self._key!r} was begun outside of a transaction")
        if not self._state.sealed:
            whole = len(drafts) - len(drafts) % COMMIT_MAX
            for at in range(0, whole, COMMIT_MAX):
                self._app.put(self._members(drafts[at : at + COMMIT_MAX], at), tx=tx)
            self._write(drafts[whole:], seal=True, before=whole, tx=tx)
        return self.ref

    # -- one after another

    def __enter__(self) -> Self:
        refuse_loop("with app.batch(…)", "async with app.batch(…)")
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Seal the batch. After an error it stays unsealed, with the members put so far."""
        if kind is None:
            self.seal()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if kind is None:
            await asyncio.to_thread(self.seal)

    def add(self, *members: Draft | Batch) -> None:
        """Add members. Every thousand are put in a commit, by this call; in asyncio code use `aadd`. A batch becomes a
        nested batch, which is filled and sealed by this call."""
        for member in members:
            self._take(member)

    async def aadd(self, *members: Draft | Batch) -> None:
        """Do as `add` does, without blocking the event loop."""
        if len(self._buffer) + len(members) >= COMMIT_MAX or any(isinstance(one, Batch) for one in members):
            await asyncio.to_thread(self.add, *members)
        else:
            self.add(*members)

    def seal(self) -> BatchRef:
        """Put what is left, and add no more. The callbacks of a batch without an open member are put at once. Raises as
        `enqueue`, and ConfigError while a nested batch is not filled because of an error: add it again."""
        if self._unfilled:
            names = ", ".join(sorted(self._unfilled))
            raise ConfigError(
                f"nested batches of {self._state.name!r} were not filled: {names}; add each again, or cancel the batch"
            )
        if not self._state.sealed:
            self._write(self._buffer, seal=True)
            self._skipped, self._buffer = self._state.filled, []
            follow(self._app, [self._state.id], raise_refused)
        return self.ref

    # -- writing

    def _begin(self) -> None:
        store = self._app.store
        need_counts(store, self._wanted)
        self._cell = self._read_cell()
        if self._cell is None and not store.traits.atomic_moves:  # a repeated put reads `created_ms` here
            store.cells.swap([swap_of(store, self._wanted, None)])
            self._cell = self._read_cell()
        self._state = state_in(store, self._wanted.id, self._cell) or self._wanted
        self._duplicate = self._state.sealed

    def _take(self, member: Draft | Batch) -> None:
        if isinstance(member, Batch):
            self._nest(member)
        else:
            self._take_draft(self._need_draft(member))

    def _need_draft(self, member: object) -> Draft:
        if isinstance(member, Draft):
            return member
        raise ConfigError(f"batch {self._state.name!r}: {member!r:.100} is no draft and no batch: give task.draft(…)")

    def _nest(self, batch: Batch) -> None:
        """Put what is buffered with the state that names the nested batch; then fill that."""
        name = batch._wanted.name
        known = {part.name: part for part in self._state.parts}
        if name in self._nested - self._unfilled or (name in known and not known[name].nested):
            raise ConfigError(f"batch {self._state.name!r} has two parts that are named {name!r}: name each its own")
        if "/" in name or len(known) >= PARTS_MAX:
            raise ConfigError(
                f"batch {name!r} in batch {self._state.name!r}: "
                + (f"a batch has at most {PARTS_MAX} parts" if "/" not in name else "the name of a part has no '/'")
            )
        self._nested.add(name)
        id = part_id(self._state.id, name)
        batch._wanted = batch._state = replace(batch._wanted, id=id)
        batch._key = name
        if self._duplicate:
            return
        self._refuse_sealed()
        if name in known and known[name].begun and self._app.store.cells.read([cell_of(id)])[0] is None:
            return  # an earlier producer filled it, and it is forgotten seven days after its end
        self._unfilled.add(name)
        if name not in known:
            self._flush((Part(name, nested=True),))
        batch._enqueue(None)
        self._unfilled.remove(name)

    def _flush(self, parts: tuple[Part, ...] = ()) -> None:
        self._write(self._buffer, parts=parts)
        self._skipped, self._buffer = self._skipped + len(self._buffer), []

    def _take_draft(self, draft: Draft) -> None:
        if self._duplicate or self._skipped < self._state.filled:
            self._skipped += 1
            return
        self._refuse_sealed()
        self._buffer.append(draft)
        if len(self._buffer) == COMMIT_MAX:
            self._flush()

    def _refuse_sealed(self) -> None:
        if self._state.sealed:
            raise ConfigError(f"batch {self._state.name!r} is sealed; only its own members may add more: ctx.batch.add")

    def _members(self, drafts: Sequence[Draft], before: int) -> list[Draft]:
        stamped = drafts if self._app.tracing is None else self._app.tracing.stamp(drafts)
        state = self._state
        drafts = [heir(replace(d, batch=state.id, group=d.group or state.group), state.passed) for d in stamped]
        return repeats.members(self._app.store, state, drafts, state.filled + before)

    def _widen(self, members: Sequence[Draft]) -> tuple[str, ...]:
        """Give the batch's group its width in the queues of these members; return all queues in which it has it."""
        group, queues = self._state.group, self._state.queues if self._state.ended_ms is None else ()
        for queue in dict.fromkeys(member.queue for member in members if group and member.group == group):
            if queue not in queues:
                self._app.store.configure_group(queue, group, width=self._state.width)
                queues = (*queues, queue)
        return queues

    def _write(
        self,
        drafts: Sequence[Draft],
        *,
        parts: tuple[Part, ...] = (),
        seal: bool = False,
        before: int = 0,
        tx: Any = None,
    ) -> None:
        """Put these members in one commit with the new state of the batch, which gets these new parts, and with
        callbacks that are due already."""
        for _ in range(TRIES):
            try:
                return self._try(drafts, parts, seal, before, tx)
            except Conflict:
                known, self._cell = self._state.filled, self._read_cell()
                found = state_in(self._app.store, self._state.id, self._cell)
                if tx is not None or found is None or found.sealed or found.filled != known:
                    break
                self._state = found  # a worker noted a death meanwhile
        raise Conflict(
            f"batch {self._state.name!r} with key {self._key!r} is filled by another producer, too; nothing of this "
            "part was written: call again, it goes on where that one stands"
        )

    def _try(self, drafts: Sequence[Draft], parts: tuple[Part, ...], seal: bool, before: int, tx: Any) -> None:
        store, named = self._app.store, {part.name for part in self._state.parts}
        parts = (*self._state.parts, *(part for part in parts if part.name not in named))
        filled = self._state.filled + before + len(drafts)
        members = self._members(drafts, before)
        queues = self._widen(members)  # before the members are there, so that no more of them ever run
        state = replace(
            self._state,
            filled=filled,
            filled_ms=store.now_ms(),
            sealed=seal,
            parts=parts,
            queues=queues,
            ended_ms=None,
        )
        made = Advance(state)
        if seal and not drafts and not before:
            (whole,) = wholes(store, [state.id])
            made = advance(state, whole.own, store.now_ms(), whole.parts)
        swap = swap_of(store, made.state, self._cell)
        callbacks = repeats.callbacks(store, self._state, made)
        self._app.put([*members, *callbacks], swaps=[swap], tx=tx)
        self._state = made.state
        if tx is None:
            self._cell = self._read_cell()

    def _read_cell(self) -> Cell | None:
        return self._app.store.cells.read([cell_of(self._state.id)])[0]


def batch(
    app: Registry,
    drafts: Iterable[Draft | Batch],
    *,
    name: str,
    key: str | None,
    callbacks: Callbacks,
    tolerate: int | str,
    results: bool | Duration,
    labels: Mapping[str, str] | None,
    stop_if: str | None,
    expect: Duration | None,
    width: int | None,
) -> Batch:
    """See `App.batch`."""
    admit_width(width, 1)
    state = replace(
        new_state(app, name, key, callbacks),
        tolerance=tolerance(tolerate),
        passed=labelled(_results(results), labels) or {},
        stop_if=None if stop_if is None else StopIf.parse(stop_if),
        expect_ms=0 if expect is None else milliseconds(expect, "expect"),
        width=width or 0,
    )
    return Batch(app, drafts, state, key)


def new_state(app: Registry, name: str, key: str | None, callbacks: Callbacks) -> BatchState:
    """Return the state of a new batch. Raises ConfigError for a name or a key that no store takes."""
    admit_batch(name, key)
    now_ms = app.store.now_ms()
    # served first, and with an id of its own each time it is due
    success, complete, death = (draft and replace(draft, priority=0, id=None) for draft in callbacks)
    return BatchState(id_of(name, key, now_ms), name, now_ms, success, complete, death)


def tolerance(said: int | str) -> Tolerance:
    """Parse `tolerate`: a number of members, or a share of them such as "5%"."""
    if isinstance(said, int) and not isinstance(said, bool) and said >= 0:
        return Tolerance(said)
    if isinstance(said, str) and said.endswith("%"):
        try:
            percent = float(said[:-1])
        except ValueError:
            percent = -1.0
        if 0 <= percent <= 100:
            return Tolerance(percent=percent)
    raise ConfigError(f"tolerate={said!r}: expected a number of members such as 10, or a share of them such as '5%'")


def _results(said: bool | Duration) -> dict[str, str]:
    """Return the header of members whose results are kept; none for False."""
    if said is False:
        return {}
    kept_ms = KEPT_MS if said is True else milliseconds(said, "results")
    if not kept_ms:
        raise ConfigError(f"results={said!r}: expected True, False, or for how long each is kept, such as '30d'")
    return {RESULTS_HEADER: str(kept_ms)}


def raise_refused(id: str, why: str) -> None:
    raise ConfigError(f"batch {id}: {why}")
