"""Batches that need a person: partial ones, those that run longer than expected, and those that were never sealed
though nothing fills them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ..batch import BatchInfo, BatchPhase, infos, roots, with_parts
from ..message import Filter, Lane
from ..store import Store
from .hold import words
from .record import Need

READ_MAX = 300  # most batches of each kind that are read for one status: failed ones, changed ones, the first ones
NAMED_MAX = 20  # partial batches that have a need of their own; one more need counts the rest
PEEKED = 100  # dead members of a batch that are read to find the largest failure group
IDLE_MS = 3_600_000  # ms for which a producer adds no member before that is a need


class Cause(NamedTuple):
    """The largest failure group among the dead members of a batch. `only`: every member that was read is in it."""

    fingerprint: str
    error: str
    only: bool = True


class ReadBatches(NamedTuple):
    """Batches as read; `unread`: there may be more that need a person."""

    found: Sequence[BatchInfo] = ()
    unread: bool = False


def read_batches(store: Store) -> ReadBatches:
    """Read the first READ_MAX batches. If there are more, also up to READ_MAX with a failed member, and up to READ_MAX
    with news, as has any batch that was never sealed and has nothing open. One call of the store if there are no
    batches. Raises StoreError."""
    ids, unread = store.batch_ids(limit=READ_MAX + 1), False
    if len(ids) > READ_MAX:
        failed, changed = store.batch_ids(failed=True, limit=READ_MAX), store.changed_batches(limit=READ_MAX)
        unread = READ_MAX in (len(failed), len(changed))
        ids = [*ids[:READ_MAX], *failed, *changed]
    return ReadBatches(infos(store, roots(ids)), unread)


def batch_causes(store: Store, found: Sequence[BatchInfo]) -> dict[str, Cause]:
    """Return by id why members died of those of these batches that are needs: up to PEEKED dead ones of each are read,
    and none if none is dead. Raises StoreError."""
    return dict(_causes(store, found))


def _causes(store: Store, found: Sequence[BatchInfo]) -> Iterator[tuple[str, Cause]]:
    if not any(batch.counts.dead for batch in found):
        return
    late, partial = _late(found, store.now_ms()), _partials(found)
    for batch in (*late[:NAMED_MAX], *partial[:NAMED_MAX]):
        of_batch = Filter(batch=with_parts(store, [batch.id]) if batch.parts else batch.id)
        dead = store.peek(Lane.DEAD, where=of_batch, limit=PEEKED).messages if batch.counts.dead else []
        faults = Counter((m.faults[-1].fingerprint, m.faults[-1].error) for m in dead if m.faults)
        for (fingerprint, error), _ in faults.most_common(1):
            of_it = replace(of_batch, fingerprint=fingerprint, ids=tuple(message.id for message in dead))
            died = store.peek(Lane.DEAD, where=of_it, limit=PEEKED).messages  # not of a fault before its last run
            if died:
                yield batch.id, Cause(fingerprint, error, len(died) == len(dead))


def batch_needs(batches: Sequence[BatchInfo], now_ms: int, causes: Mapping[str, Cause] = {}) -> Iterator[Need]:
    """Yield the needs of these batches: of those that wait for a redrive, of those that run longer than expected, and
    of those whose producer is gone. Pure."""
    for batch in batches:
        if batch.state is BatchPhase.FILLING and now_ms - batch.filled_ms >= IDLE_MS:
            yield _unsealed(batch)
    late, partial = _late(batches, now_ms), _partials(batches)
    yield from (_overdue(batch, causes.get(batch.id)) for batch in late[:NAMED_MAX])
    yield from (_partial(batch, causes.get(batch.id)) for batch in partial[:NAMED_MAX])
    for some, verbs, what, state in (
        (late, ("runs", "run"), "longer than expected", "running"),
        (partial, ("is", "are"), "partial", "partial"),
    ):
        if (more := len(some) - NAMED_MAX) > 0:
            text = f"{more:,} more batch{'es' * (more > 1)} {verbs[more > 1]} {what}"
            next = words("batch", "list", "--state", state)
            yield Need(area="batches", text=text, next=next, place=("batches",), query={"state": state})


def _late(batches: Sequence[BatchInfo], now_ms: int) -> list[BatchInfo]:
    """Return the batches that run longer than expected, the oldest first."""
    running = [batch for batch in batches if batch.state is BatchPhase.RUNNING and batch.expected_ms is not None]
    return sorted((b for b in running if now_ms >= (b.expected_ms or 0)), key=lambda batch: batch.created_ms)


def _partials(batches: Sequence[BatchInfo]) -> list[BatchInfo]:
    """Return the partial batches that a redrive lets go on, the oldest first."""
    return sorted((batch for batch in batches if batch.waits_for_redrive), key=lambda batch: batch.created_ms)


def _failed(batch: BatchInfo) -> int:
    return batch.counts.dead + batch.counts.quarantine


def _waits_for(cause: Cause | None) -> str:
    if cause is None:
        return ""
    return f"; it waits for failure group {cause.fingerprint} ({cause.error})" + ("" if cause.only else " and others")


def _overdue(batch: BatchInfo, cause: Cause | None) -> Need:
    counts = batch.counts
    text = f"batch {batch.name} runs longer than expected: {counts.open:,} of {counts.total:,} members "
    text += f"{'is' if counts.open == 1 else 'are'} open" + (f", {_failed(batch):,} dead" if _failed(batch) else "")
    return _need(batch, text + _waits_for(cause), words("batch", "show", batch.id), batch.expected_ms)


def _partial(batch: BatchInfo, cause: Cause | None) -> Need:
    dead, quarantine = batch.counts.dead, batch.counts.quarantine
    text = f"batch {batch.name} {'was stopped by its stop_if, and ' if batch.stopped else ''}is partial: "
    text += f"{dead or quarantine:,} of {batch.counts.total:,} members "
    text += f"{'is' if (dead or quarantine) == 1 else 'are'} {'dead' if dead else 'in quarantine'}"
    text += f", {quarantine:,} in quarantine" if dead and quarantine else ""
    lane = () if dead else ("lane:quarantine",)
    return _need(batch, text + _waits_for(cause), words("dlq", "list", f"batch:{batch.id}", *lane))


def _unsealed(batch: BatchInfo) -> Need:
    total = batch.counts.total
    text = f"batch {batch.name} is not sealed after {total:,} member{'s' * (total != 1)}, and its producer adds no more"
    return _need(batch, text, words("batch", "show", batch.id), batch.filled_ms)


def _need(batch: BatchInfo, text: str, next: str, since_ms: int | None = None) -> Need:
    about, place = f"batch/{batch.id}", ("batches", batch.id)
    return Need(area="batches", text=text, next=next, about=about, place=place, since_ms=since_ms)
