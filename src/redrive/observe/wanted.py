"""Compute how many workers a queue wants: the signal for an autoscaler."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..history import counts_of
from ..history.chunk import FIVES, MINUTE_MS
from ..history.names import read_names
from ..history.tally import ENQUEUED, OUTCOME, RUN
from ..message import Counts
from ..presence import WorkerInfo
from ..registry import DEFAULT_CONCURRENCY, Registry
from ..store import Store

WINDOW_MS = 15 * MINUTE_MS  # ms over which the arrival rate and the service time are measured
CATCH_UP_S = 60.0  # seconds in which the wanted workers process the messages that are due now
_RAN = frozenset(f"{OUTCOME}{band}{outcome}" for outcome in ("done", "retry", "dead", "crashed") for band in range(6))


class Load(Struct, frozen=True, kw_only=True):
    """The load of a queue: `arrivals_per_s`, new messages and retries; `service_s`, the mean time of a run; `due`, the
    number of due messages; `concurrency`, how many messages one worker runs at once."""

    arrivals_per_s: float
    service_s: float
    due: int
    concurrency: int


def wanted_workers(load: Load, catch_up_s: float = CATCH_UP_S) -> int:
    """Return how many workers process new messages as they arrive, and the due ones within `catch_up_s`.

    By Little's law (L = λ × W: Little, "A proof for the queuing formula", Operations Research 9, 1961) λ × W messages
    are in service at once, for an arrival rate λ and a service time W. Due messages add due / catch_up_s to λ. The
    result is at least 1 while messages are due or arrive, else 0.

    >>> wanted_workers(Load(arrivals_per_s=100, service_s=0.5, due=6000, concurrency=10))
    10
    """
    rate = load.arrivals_per_s + load.due / catch_up_s
    in_service = rate * load.service_s
    return max(1 if rate > 0 else 0, math.ceil(round(in_service / max(1, load.concurrency), 9)))


def read_wanted(
    store: Store, app: Registry | None, counts: Mapping[str, Counts], workers: Sequence[WorkerInfo]
) -> dict[str, int]:
    """Return how many workers each queue wants that has messages or had activity since yesterday. Raises StoreError."""
    now_ms = store.now_ms()
    names = [name for name, day in read_names(store).items() if now_ms // 86_400_000 - day <= 1]
    wanted: dict[str, int] = {}
    declared = _declared(app)
    for queue in sorted({*counts, *(queue for queue, _ in names)}):
        of = [name for name in names if name[0] == queue]
        enqueued = runs = timed = 0
        sum_ms = 0
        for _, key, count in counts_of(store, of, now_ms - WINDOW_MS, now_ms) if of else ():
            if key == ENQUEUED:
                enqueued += count
            elif key in _RAN:
                runs += count
            elif key == f"{RUN}+":
                sum_ms += count
            elif key[0] == RUN:
                timed += count
        arrivals = max(enqueued, runs) / (WINDOW_MS / 1000)
        due = counts[queue].ready if queue in counts else 0
        service_s = sum_ms / timed / 1000 if timed else 0.0
        concurrency = _concurrency(queue, declared, workers)
        load = Load(arrivals_per_s=arrivals, service_s=service_s, due=due, concurrency=concurrency)
        wanted[queue] = wanted_workers(load)
    return wanted


def _declared(app: Registry | None) -> dict[str, int]:
    """Return how many messages of each queue one worker of the app runs at once."""
    if app is None:
        return {}
    gathers = app.gathers
    return {queue.name: queue.concurrency * gathers.get(queue.name, 1) for queue in app.queues_of(None)}


def _concurrency(queue: str, declared: Mapping[str, int], workers: Sequence[WorkerInfo]) -> int:
    """Return how many messages of the queue one worker runs at once: as living workers report, or else as declared."""
    limits = [each.concurrency for info in workers if not info.gone for each in info.queues if each.name == queue]
    return max(limits) if limits else declared.get(queue, DEFAULT_CONCURRENCY)


assert WINDOW_MS % FIVES.slot_ms == 0  # so that the window consists of whole slots of the histograms
