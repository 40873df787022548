"""Read the history of a store: counts of the last day by the minute, of the last 35 days by the hour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ..duration import Duration, milliseconds, show
from ..errors import ConfigError, Unsupported
from ..store import Store
from .chunk import FIVES, HOUR_MS, HOURS, MINUTE_MS, MINUTES, ChunkKind, read_chunk, slots_of
from .names import EVERYTHING, id_of, read_names
from .recorder import SeriesName
from .tally import Tally, TallyCounts, is_histogram, tally_of
from .writer import SHARDS

NOT_KEPT = "not kept: name cells= in the store's URL, and workers write there what they counted"
READ_MAX = 1000  # the most cells that are read in one call
_DAY_MS = 24 * HOUR_MS
#: The default step by the age of the oldest point: (age up to, step), in ms.
_STEPS = ((3 * HOUR_MS, 5 * MINUTE_MS), (2 * _DAY_MS, HOUR_MS), (HOURS.kept_ms, _DAY_MS))


class Point(Struct, frozen=True):
    """The counts of the step that began at `at_ms`."""

    at_ms: int
    tally: Tally


class History(Struct, frozen=True, kw_only=True):
    """The history of a queue, a task, or all (None): `total` from `since_ms` to `until_ms`, and `points` for each step
    of `step_ms` with any activity. Times are ms of the store's clock; steps begin at multiples of `step_ms` since the
    epoch, and the first and last may be partial.

    Counts go back a day by the minute, and 35 days by the hour. Histograms go back three hours by five minutes, and 35
    days by the hour: each is in the point in which its five minutes or hour began.
    """

    queue: str | None
    task: str | None
    since_ms: int
    until_ms: int
    step_ms: int
    total: Tally
    points: tuple[Point, ...]


def read_history(
    store: Store,
    queue: str | None = None,
    task: str | None = None,
    since: Duration = "24h",
    step: Duration | None = None,
    *,
    until_ms: int | None = None,
) -> History:
    """Return the history of a store, a queue, a task, or a task in a queue, for the last time `since`, or for that time
    before `until_ms`. Raises ConfigError, StoreError; Unsupported if the store keeps no history."""
    back_ms = milliseconds(since, "since")
    step_ms = _default_step(back_ms) if step is None else milliseconds(step, "step")
    _check(back_ms, step_ms)
    if not store.traits.cells:
        raise Unsupported(NOT_KEPT)
    now_ms = store.now_ms()
    end_ms = now_ms if until_ms is None else min(until_ms, now_ms)
    since_ms = end_ms - back_ms
    _check(now_ms - since_ms, step_ms)
    since_ms -= since_ms % step_ms
    total: TallyCounts = {}
    steps: dict[int, TallyCounts] = {}
    for at_ms, key, count in counts_of(store, _names(store, queue, task), since_ms, now_ms, step_ms, until_ms):
        total[key] = total.get(key, 0) + count
        of = steps.setdefault(at_ms - at_ms % step_ms, {})
        of[key] = of.get(key, 0) + count
    points = tuple(Point(at_ms, tally_of(counts)) for at_ms, counts in sorted(steps.items()))
    return History(
        queue=queue,
        task=task,
        since_ms=since_ms,
        until_ms=end_ms,
        step_ms=step_ms,
        total=tally_of(total),
        points=points,
    )


def counts_of(
    store: Store,
    names: Sequence[SeriesName],
    since_ms: int,
    now_ms: int,
    step_ms: int = MINUTE_MS,
    until_ms: int | None = None,
) -> Iterator[tuple[int, str, int]]:
    """Yield (start of the slot, key, count) for the slots that began since `since_ms` and before `until_ms`: hourly
    slots if the step is whole hours, else the finest ones that are kept. Raises StoreError."""
    before_ms = now_ms + 1 if until_ms is None else min(until_ms, now_ms + 1)
    if step_ms % HOUR_MS == 0:
        yield from read_slots(store, names, HOURS, since_ms, before_ms)
        return
    yield from read_slots(store, names, MINUTES, since_ms, before_ms)
    fine_ms = max(since_ms, now_ms - now_ms % HOUR_MS - FIVES.kept_ms)
    yield from read_slots(store, names, FIVES, fine_ms, before_ms)
    for at_ms, key, count in read_slots(store, names, HOURS, since_ms, min(fine_ms, before_ms)):
        if is_histogram(key):
            yield at_ms, key, count


def read_slots(
    store: Store, names: Sequence[SeriesName], kind: ChunkKind, from_ms: int, before_ms: int
) -> Iterator[tuple[int, str, int]]:
    """Yield the counts in chunks of one kind, for slots that began from `from_ms` on and before `before_ms`."""
    starts = range(from_ms - from_ms % kind.span_ms, before_ms, kind.span_ms)
    places = [
        (start_ms, f"history/{id_of(name)}/{kind.letter}/{start_ms // kind.span_ms}/{shard}")
        for name in names
        for start_ms in starts
        for shard in range(SHARDS)
    ]
    for at in range(0, len(places), READ_MAX):
        some = places[at : at + READ_MAX]
        for (start_ms, _), cell in zip(some, store.cells.read([key for _, key in some]), strict=True):
            if cell is not None:
                for at_ms, key, count in slots_of(kind, read_chunk(cell.value), start_ms):
                    if from_ms <= at_ms < before_ms:
                        yield at_ms, key, count


def _names(store: Store, queue: str | None, task: str | None) -> Sequence[SeriesName]:
    if queue is None and task is None:
        return [EVERYTHING]
    if queue is not None and task is not None:
        return [(queue, task)]
    return [name for name in sorted(read_names(store)) if queue in (None, name[0]) and task in (None, name[1])]


def _default_step(back_ms: int) -> int:
    return next((step_ms for up_to_ms, step_ms in _STEPS if back_ms <= up_to_ms), _DAY_MS)


def _check(back_ms: int, step_ms: int) -> None:
    if not 0 < back_ms <= HOURS.kept_ms:
        raise ConfigError(f"since={show(back_ms / 1000)}: expected a time up to 35d, which is how long history is kept")
    if step_ms < MINUTE_MS or step_ms % MINUTE_MS:
        raise ConfigError(f"step={show(step_ms / 1000)}: expected whole minutes, such as 1m, 5m or 1h")
    if back_ms > MINUTES.kept_ms and step_ms % HOUR_MS:
        raise ConfigError(
            f"step={show(step_ms / 1000)} with since={show(back_ms / 1000)}: minutes are kept for 24h; "
            "expected a step of whole hours, or since=24h at most"
        )
