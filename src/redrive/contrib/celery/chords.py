"""Wait for the tasks of a chord's header: they are the members of a batch, whose callback runs the body.

A producer of Celery sends these tasks one by one, and says nowhere in them how many they are. So the batch is created
by whichever of them a bridge moves first, and is sealed by the commit that puts the last one. Beside the state of the
batch, a second cell lists the members that were put, so that none is counted twice.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...app import App
from ...batch import BatchRef, follow
from ...batch.state import KEPT_MS, BatchState, cell_of, id_of, state_in, swap_of
from ...errors import Conflict, Reject, StoreUnavailable
from ...message import Cell, Draft, Lane, Swap, version_of
from .canvas import arranged, leaf
from .envelope import ChordEnd
from .redis_queue import session

AT = "celery-at"  # the header of a message whose result a chord waits for: its place in the list that the body gets
TRIES = 100  # how often a commit is tried again because other processes change the same batch
SIZE = "celery-taskset-meta-{}.s"  # Celery's key on Redis with the size of a chord
KNOWN = "known"
log: logging.Logger = logging.getLogger("redrive.celery")


class Arrival(Struct, frozen=True):
    """A member of a chord's batch. `key` is the same for each delivery of one send; `results` is how many of the
    results that the chord waits for are its own, or those of its chain."""

    id: str
    key: str
    results: int
    draft: Draft | None = None


class ChordLedger(Struct, omit_defaults=True):
    """The members of a chord's batch that have arrived, with their keys, both as hashes."""

    size: int | None = None
    results: int = 0
    members: dict[str, str] = {}


class Sizes:
    """The sizes of chords in Celery's result backend on Redis. `prefix` is the backend's `global_keyprefix`."""

    def __init__(self, url: str, prefix: str) -> None:
        self._link = session(url)
        self._prefix = f"{prefix}_" if prefix and prefix[-1] not in ":_-." else prefix

    def of(self, group: str) -> int | None:
        """Return the size; None if Celery's producer has not sent the last task yet, or if it expired."""
        written: bytes | None = self._link.command("GET", self._prefix + SIZE.format(group))
        return None if written is None else int(written)

    def close(self) -> None:
        self._link.close()


class Chords:
    """The batches of chords in the store of an app."""

    sizes: Sizes | None

    def __init__(self, app: App, sizes: Sizes | None) -> None:
        self._app, self.sizes = app, sizes

    def begin(self, end: ChordEnd, size: int, arrived: int, name: str, callbacks: Sequence[Draft]) -> None:
        """Create the batch of a chord whose header this process puts, unless it exists. It is sealed if `arrived`, how
        many results are those of members that are put with it, is `size`. Raises StoreError."""
        store, id = self._app.store, batch_of(end)
        state = _new(id, name, store.now_ms(), callbacks)
        ledger = ChordLedger(size, arrived)
        swaps = [swap_of(store, replace(state, filled=arrived, sealed=arrived >= size), None)]
        if arrived < size:
            swaps.append(Swap(_ledger(id), 0, msgspec.json.encode(ledger)))
        try:
            self._app.put([], swaps=swaps)
        except Conflict:
            if not store.cells.read([cell_of(id)])[0]:
                raise

    def arrive(self, end: ChordEnd, arrivals: Sequence[Arrival], callbacks: Sequence[Draft] = ()) -> list[str]:
        """Put members, or none, in one commit, seal the batch if they are the last ones, and create it with these
        callbacks if it does not exist. Returns for each member an empty text, KNOWN if it was put before, or why it was
        not put. Raises EnqueueError, StoreError."""
        store, id = self._app.store, batch_of(end)
        for _ in range(TRIES):
            cell, listed = store.cells.read([cell_of(id), _ledger(id)])
            state = state_in(store, id, cell)
            if state is None:
                if end.body is None:
                    raise Reject(f"batch {id} of its chord is gone")
                state = _new(id, f"chord {leaf(end.body)}", store.now_ms(), callbacks)
            before = _decoded(listed)
            said, state, ledger = self._counted(end, arrivals, state, before)
            if all(said) and cell is not None and ledger.size == before.size:
                return said
            drafts = [one.draft for one, why in zip(arrivals, said, strict=True) if not why and one.draft is not None]
            swaps = [
                swap_of(store, state, cell),
                Swap(_ledger(id), version_of(listed), msgspec.json.encode(ledger), KEPT_MS if state.sealed else None),
            ]
            try:
                self._app.put([replace(draft, batch=id) for draft in drafts], swaps=swaps)
            except Conflict:
                continue
            if state.sealed:
                follow(self._app, [id], lambda id, why: log.error("batch %s: %s", id, why))
            return said
        raise StoreUnavailable(f"batch {id} is changed by other processes all the time; the next try goes on")

    def _counted(
        self, end: ChordEnd, arrivals: Sequence[Arrival], state: BatchState, ledger: ChordLedger
    ) -> tuple[list[str], BatchState, ChordLedger]:
        said = list[str]()
        members, count = dict(ledger.members), ledger.results
        for one in arrivals:
            known = members.get(_hash(one.id, 12))
            if known == _hash(one.key, 6):
                said.append(KNOWN)
            elif known is not None or state.sealed:
                why = f"task {one.id} of group {end.group} came before" if known else f"group {end.group} is complete"
                said.append(f"{why}: the chord was sent again with the ids of its first time, which is not run again")
            else:
                members[_hash(one.id, 12)] = _hash(one.key, 6)
                count += one.results
                said.append("")
        size = ledger.size or end.size
        if size is None and self.sizes is not None and not state.sealed:
            size = self.sizes.of(end.group)
        sealed = state.sealed or (size is not None and count >= size)
        state = replace(state, filled=count, filled_ms=self._app.store.now_ms(), sealed=sealed)
        return said, state, ChordLedger(size, count, members)

    def save(self, id: str) -> None:
        """Keep the results so far without an end, as the dead members may be redriven much later. Raises StoreError."""
        store = self._app.store
        (state,) = [state_in(store, id, cell) for cell in store.cells.read([cell_of(id)])]
        if state is not None and not state.succeeded:
            found, cell = self._found(id)
            swap = Swap(_saved(id), version_of(cell), msgspec.json.encode(found))
            if not store.cells.swap([swap])[0]:
                raise StoreUnavailable(f"another process saves the results of batch {id}; the next try goes on")

    def results(self, id: str) -> list[Any]:
        """Return the results of a batch that succeeded, in the order of the chord's header. Raises Reject if some are
        gone, StoreError."""
        store = self._app.store
        found, cell = self._found(id)
        state = state_in(store, id, store.cells.read([cell_of(id)])[0])
        if state is None or len(found) < state.filled:
            count = "some" if state is None else f"{state.filled - len(found)} of {state.filled}"
            raise Reject(
                f"{count} results of its chord are gone: members were discarded, replayed, or done more than 7 days "
                "before the others were"
            )
        if cell is not None:
            store.cells.swap([Swap(_saved(id), cell.version, cell.value, KEPT_MS)])
        return arranged({place: msgspec.json.decode(value) for place, value in found.items()})

    def _found(self, id: str) -> tuple[dict[str, msgspec.Raw], Cell | None]:
        (cell,) = self._app.store.cells.read([_saved(id)])
        found = {} if cell is None else msgspec.json.decode(cell.value, type=dict[str, msgspec.Raw])
        for member in BatchRef(id, self._app.store).members(Lane.DONE):
            if AT in member.headers and member.reason != "cancelled":
                found[member.headers[AT]] = msgspec.Raw(member.result or b"null")
        return found, cell


def batch_of(end: ChordEnd) -> str:
    """Return the id of the batch of a chord."""
    return id_of("celery.chord", end.group, 0)


def _new(id: str, name: str, now_ms: int, callbacks: Sequence[Draft]) -> BatchState:
    on_success, on_complete = callbacks
    return BatchState(id, name, now_ms, on_success=on_success, on_complete=on_complete)


def _ledger(id: str) -> str:
    return f"celery/chord/{id}"


def _saved(id: str) -> str:
    return f"celery/results/{id}"


def _decoded(cell: Cell | None) -> ChordLedger:
    return ChordLedger() if cell is None else msgspec.json.decode(cell.value, type=ChordLedger)


def _hash(text: str, length: int) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:length]
