"""What a store on SQS is made of by its URL: stores and cells of other engines, and what it can do with these."""

from __future__ import annotations

from typing import cast

from ...store import Cells, OpenCells, Store, Traits
from .. import engine_of, open_cells, open_store
from ..cells import CellsOfStore
from ..lazy import Later
from .dead_letters import NoCells, SplitCells
from .envelope import ANY_BODY_MAX
from .message_state import PROGRESS_BYTES_MAX
from .url import Mode, SqsUrl


def opened_store(url: str) -> Store:
    """One on a server is opened when it is needed: who only enqueues goes on while it cannot be reached."""
    return cast(Store, Later(url)) if engine_of(url) in ("postgres", "redis") else open_store(url)


def opened_cells(url: str | None, region: str) -> OpenCells | None:
    """A table is in the queues' region where its URL names none."""
    if url is None:
        return None
    if not url.startswith("dynamodb://"):
        return CellsOfStore(opened_store(url))
    if "region=" not in url:
        url += f"{'&' if '?' in url else '?'}region={region}"
    return open_cells(url)


def cells_of(own: Cells | None, triage: Store | None) -> Cells:
    """Those named in the URL, those of the triage store, or each for its part."""
    if own is not None and triage is not None:
        return SplitCells(own, triage.cells)
    return own or (triage.cells if triage is not None else NoCells())


def traits_of(at: SqsUrl, *, cells: bool, triage: bool) -> Traits:
    """`cells`, `triage`: whether the store has them."""
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
        finds=False,
        cancels=at.track,
        triages=triage,
        keeps_done=False,
        priorities=False,
        skips=False,
        widths=False,
        releases=False,
        kept_bytes_max=PROGRESS_BYTES_MAX,
        tick_ms=1000,
    )
