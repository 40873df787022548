"""Gauges of batches by name, never by id; `prometheus.py` describes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from ..batch import BatchInfo, BatchPhase, infos, roots
from ..counters import OTHER
from ..store import Store

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily, Metric

READ_MAX = 5_000  # most batches whose counts one read looks at, and the most with failed members or with news
NAMES_MAX = 100  # most names; batches of further ones are `(other)`
PAGE = 1_000
STATES, MEMBERS = ("running", "partial", "filling"), ("open", "dead", "quarantine")


class BatchGauges(Struct, frozen=True, kw_only=True):
    """Batches that are not over: how many by (name, state), their members by (name, count), and by name for how long a
    producer has added no member to one that it did not seal. `unread`: there may be more than were read."""

    batches: Mapping[tuple[str, str], int] = {}
    members: Mapping[tuple[str, str], int] = {}
    unsealed_s: Mapping[str, float] = {}
    unread: bool = False


def read_batch_gauges(store: Store) -> BatchGauges:
    """Read the gauges now; one call of the store if there are no batches. Raises StoreError."""
    ids = store.batch_ids(limit=READ_MAX)
    if not ids:
        return BatchGauges()
    failed = store.batch_ids(failed=True, limit=READ_MAX)
    news = {*store.changed_batches(limit=READ_MAX)}  # also those that were never sealed and have nothing open
    found = [*dict.fromkeys([*ids, *failed, *news])]
    now_ms, live, shown = store.now_ms(), list[BatchInfo](), list[str]()
    for at in range(0, len(found), PAGE):
        page = found[at : at + PAGE]
        counts = zip(page, store.batch_counts(page), strict=True)
        shown += [id for id, n in counts if n.open + n.dead + n.quarantine or id in news]
    whole = roots(shown)
    for at in range(0, len(whole), PAGE):
        live += infos(store, whole[at : at + PAGE])
    batches, members, unsealed_s = Counter[tuple[str, str]](), Counter[tuple[str, str]](), dict[str, float]()
    names = {*[name for name, _ in Counter(batch.name for batch in live).most_common(NAMES_MAX)]}
    for batch in live:
        name = batch.name if batch.name in names else OTHER
        if batch.state.value in STATES and (batch.state is not BatchPhase.PARTIAL or batch.waits_for_redrive):
            batches[name, batch.state.value] += 1
            members.update({(name, count): getattr(batch.counts, count) for count in MEMBERS})
        if batch.state is BatchPhase.FILLING:
            unsealed_s[name] = max(unsealed_s.get(name, 0.0), (now_ms - batch.filled_ms) / 1000)
    unread = READ_MAX in (len(ids), len(failed), len(news))
    return BatchGauges(batches=batches, members=members, unsealed_s=unsealed_s, unread=unread)


def gauges(of: BatchGauges, family: type[GaugeMetricFamily], label: Callable[[str], str]) -> Iterator[Metric]:
    """Yield the gauges as families of prometheus_client; `label` makes a name safe for a label."""
    for name, help, values in (
        ("redrive_batches", "Batches that are not over.", of.batches),
        ("redrive_batch_members", "Members of batches that are not over.", of.members),
    ):
        counted = family(name, help, labels=("name", "state"))
        for (batch, state), count in sorted(values.items()):
            counted.add_metric((label(batch), state), count)
        yield counted
    unsealed = family("redrive_batch_unsealed_seconds", "How long nothing was added to it.", labels=("name",))
    for batch, unsealed_s in sorted(of.unsealed_s.items()):
        unsealed.add_metric((label(batch),), unsealed_s)
    yield unsealed
    yield family("redrive_batches_unread", "1 where there may be more batches than were read.", value=float(of.unread))
