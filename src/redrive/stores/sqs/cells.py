"""The stores beside SQS: the triage store for dead letters, and the cells for shared state."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from ...errors import ConfigError, Conflict, Unsupported
from ...message import Cell, Swap, version_of
from ...store import Cells, OpenCells, Store, Traits
from ..cells import CellsOfStore
from ..url import REDIS_GROUPS_BY, engine_of
from .url import Mode, SqsUrl
from .wire import ANY_BODY_MAX, PROGRESS_BYTES_MAX

# Prefixes of cells that must change in one commit with the dead letters: runs, plans, annotations, the audit log.
WITH_TRIAGE = ("run/", "runs", "group/", "rules", "audit", "auto")
NO_TRIAGE = (
    "SQS can show nothing of what lies in it; name a store for the dead letters in the URL, triage=sqlite:///dead.db "
    "or a PostgreSQL or Redis of its own, and `redrive dlq ingest` fills it"
)
NO_EDIT = "SQS cannot change a message that was sent; with track=true, `redrive job cancel` ends one that waits"
NO_HASTE = "SQS cannot change the delay of a message that was sent: it comes at its time, and not before"
NO_CELLS = (
    "SQS keeps no shared state; name what does in the store's URL: cells=dynamodb://TABLE, or a Redis, PostgreSQL or "
    "SQLite URL"
)

Resting = TypeVar("Resting")


class NoCells:
    """The cells of a store that has no place for them: `read` finds none, and `swap` raises Unsupported."""

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        return [None] * len(keys)

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        if swaps:
            raise Unsupported(NO_CELLS)
        return []


class SplitCells:
    """Cells in two places: those with a key in WITH_TRIAGE are beside the dead letters, all others in `shared`."""

    def __init__(self, shared: Cells, triage: Cells) -> None:
        self._shared, self._triage = shared, triage

    @property
    def requests(self) -> Counter[str]:
        """The number of calls to the shared cells by action; empty if those cells are not billed by the request."""
        counter = getattr(self._shared, "requests", None)
        return counter if isinstance(counter, Counter) else Counter()

    def _of(self, key: str) -> Cells:
        return self._triage if key.startswith(WITH_TRIAGE) else self._shared

    def read(self, keys: Sequence[str]) -> list[Cell | None]:
        by_key: dict[str, Cell | None] = {}
        for cells in (self._shared, self._triage):
            mine = [key for key in keys if self._of(key) is cells]
            if mine:
                by_key.update(zip(mine, cells.read(mine), strict=True))
        return [by_key[key] for key in keys]

    def swap(self, swaps: Sequence[Swap], *, durable: bool = True) -> list[bool]:
        results: dict[int, bool] = {}
        for cells in (self._triage, self._shared):
            mine = [at for at, swap in enumerate(swaps) if self._of(swap.key) is cells]
            if mine:
                results.update(zip(mine, cells.swap([swaps[at] for at in mine], durable=durable), strict=True))
        return [results[at] for at in range(len(swaps))]


def need(triage: Resting | None) -> Resting:
    """Return `triage`, the triage store or a part of it. Raises Unsupported if it is None."""
    if triage is None:
        raise Unsupported(NO_TRIAGE)
    return triage


def check_swaps(cells: Cells, swaps: Sequence[Swap]) -> None:
    """Raise Conflict if a swap would not apply now. For use before messages are sent, as SQS has no shared commit."""
    if not swaps:
        return
    current = cells.read([swap.key for swap in swaps])
    for swap, cell in zip(swaps, current, strict=True):
        if version_of(cell) != swap.version:
            raise Conflict(f"cell {swap.key!r} has another version than {swap.version}; nothing was written")


def apply_swaps(cells: Cells, swaps: Sequence[Swap]) -> None:
    """Apply the swaps, those of the audit log last. Raises Conflict if one fails; others may be applied then."""
    audit_swaps = [swap for swap in swaps if swap.key.startswith("audit")]
    for some in ([swap for swap in swaps if not swap.key.startswith("audit")], audit_swaps):
        if some and not all(cells.swap(some)):
            raise Conflict("a cell was changed meanwhile; what was sent stays sent, as SQS commits nothing with it")


# -- the stores that the URL names

StoreOpener = Callable[[str], Store]


class BesideStores:
    """The triage store and the cells of a store on SQS: `triage` and `cells` if given, else those that the URL names.

    `open_store` and `open_cells` open those of the URL. Without cells, `cells` is always empty and `some_cells` None.
    """

    def __init__(
        self,
        at: SqsUrl,
        triage: Store | None,
        cells: OpenCells | None,
        open_store: StoreOpener | None,
        open_cells: Callable[[str], OpenCells] | None,
    ) -> None:
        if ((at.triage and triage is None) or (at.cells and cells is None)) and not (open_store and open_cells):
            raise ConfigError(
                f"store URL {at.shown!r}: what its triage= and cells= name is opened by stores.open_store"
            )
        self.triage, self._own = triage, cells
        if open_store is not None and open_cells is not None:
            self.triage = triage or (open_store(at.triage) if at.triage else None)
            self._own = cells or (_open_cells(at.cells, at.region, open_store, open_cells) if at.cells else None)
        self.some_cells: Cells | None = self._own or (self.triage.cells if self.triage is not None else None)
        if self._own is not None and self.triage is not None:
            self.some_cells = SplitCells(self._own, self.triage.cells)
        self.cells: Cells = self.some_cells or NoCells()
        if at.track and self.some_cells is None:
            raise ConfigError(f"store URL {at.shown!r}: track=true needs a place for its records. {NO_CELLS}")

    def commits(self, swaps: Sequence[Swap]) -> bool:
        """True if the triage store holds the cells of all `swaps`, and so can write them in one commit."""
        return self.triage is not None and (
            self._own is None or all(swap.key.startswith(WITH_TRIAGE) for swap in swaps)
        )

    def open(self) -> None:
        """Connect the triage store and the cells now, not at first use. Raises the errors of connecting."""
        for part in (self.triage, self._own):
            if part is not None:
                part.connect()

    def requests(self) -> Counter[str]:
        """Return the calls to the cells by action; empty if there are none, or they are the triage store's."""
        return Counter() if self._own is None else Counter(self._own.requests)

    def doctor(self) -> list[str]:
        return [line for part in (self.triage, self._own) if part is not None for line in part.doctor()]

    def close(self) -> None:
        for part in (self.triage, self._own):
            if part is not None:
                part.close()


def _open_cells(url: str, region: str, open_store: StoreOpener, open_cells: Callable[[str], OpenCells]) -> OpenCells:
    """Open the cells of a URL. A DynamoDB table is in the queues' `region` unless its URL names another."""
    if not url.startswith("dynamodb://"):
        return CellsOfStore(open_store(url))
    if "region=" not in url:
        url += f"{'&' if '?' in url else '?'}region={region}"
    return open_cells(url)


# -- pauses

PAUSES = "sqs/paused"  # key of the cell that lists the paused queues, as SQS cannot pause a queue
PAUSES_EVERY_S = 1.0  # how long a list of paused queues is used before its cell is read again


class QueuePauses:
    """Pauses the queues of one store, by a list in a cell. Without cells no queue can be paused."""

    def __init__(self, cells: Cells | None) -> None:
        self._cells = cells
        self.seen: tuple[float, frozenset[str]] = (-math.inf, frozenset())  # when the cell was read, and its queues

    def queues(self) -> frozenset[str]:
        """Return the names of the paused queues, as they were at most PAUSES_EVERY_S ago."""
        if self._cells is None:
            return frozenset()
        looked_s, names = self.seen
        if time.monotonic() - looked_s >= PAUSES_EVERY_S:
            cell = self._cells.read([PAUSES])[0]
            names = frozenset(json.loads(cell.value)) if cell else frozenset()
            self.seen = time.monotonic(), names
        return names

    def set(self, queue: str, paused: bool) -> None:
        """Pause the queue, or resume it if `paused` is False. Raises Unsupported without cells."""
        if self._cells is None:
            raise Unsupported(f"queue {queue!r} cannot be paused. {NO_CELLS}")
        while True:
            cell = self._cells.read([PAUSES])[0]
            names = set(json.loads(cell.value)) if cell else set()
            names = names | {queue} if paused else names - {queue}
            value = json.dumps(sorted(names)).encode() if names else None
            if self._cells.swap([Swap(PAUSES, version_of(cell), value)])[0]:
                self.seen = time.monotonic(), frozenset(names)
                return


def traits_of(at: SqsUrl, *, cells: bool, triage: bool) -> Traits:
    """The traits of a store on SQS with this URL; `cells`, `triage`: True if the store has them."""
    return Traits(
        name="sqs",
        body_bytes_max=ANY_BODY_MAX,
        names_bytes_max=1000,
        fenced=False,
        atomic_moves=False,
        unique=at.track,
        exact_counts=False,
        counts_crashes=cells or at.mode is Mode.REQUEUE,
        cells=cells,
        batches=cells,
        finds=False,
        cancels=at.track,
        triages=triage,
        groups_by=REDIS_GROUPS_BY if at.triage is not None and engine_of(at.triage) == "redis" else None,
        keeps_done=False,
        priorities=False,
        skips=False,
        widths=False,
        releases=False,
        kept_bytes_max=PROGRESS_BYTES_MAX,
        tick_ms=1000,
    )
