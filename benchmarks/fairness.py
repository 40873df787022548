"""How long nine small tenants wait beside a large one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from .harness import (
    PUT_AT_ONCE,
    Child,
    Options,
    Reading,
    fresh,
    interleaved,
    need_all_once,
    percentile,
    ratio,
    worker,
)
from .tasks import make_app

CONCURRENCY = 10
WIDTHS = (1, CONCURRENCY)
SMALL, EACH = tuple(f"small-{n}" for n in range(9)), 10
UNDER_WAY = 5 * CONCURRENCY  # messages of the large tenant that ran before the small ones come
WANTED = "≤ 3"


def fairness(options: Options) -> list[Reading]:
    """Nine tenants with ten messages each, alone and beside one with 10,000: from enqueue to the first line."""
    runs: dict[str, Callable[[], float]] = {
        f"{who}, {width}": partial(_p99_ms, options, width, beside)
        for width in WIDTHS
        for who, beside in (("alone", 0), ("beside", options.waiting))
    }
    found = interleaved(options.rounds, runs)
    readings = []
    for width in WIDTHS:
        alone, beside = found[f"alone, {width}"], found[f"beside, {width}"]
        of = f"width {width} of {CONCURRENCY}"
        readings += [
            Reading(f"p99 wait alone, {of}", "ms", alone),
            Reading(f"p99 wait beside the large one, {of}", "ms", beside),
            ratio(f"beside / alone, {of}", beside, alone, WANTED),
        ]
    starved = [_p99_ms(options, None, options.waiting)]
    return [*readings, ratio("beside / alone, without groups", starved, found[f"alone, {CONCURRENCY}"][:1])]


def _p99_ms(options: Options, width: int | None, waiting: int) -> float:
    """The 99th percentile of the small tenants' waits; with `width` None nothing is in a group."""
    place = fresh(options, "fairness")
    app = make_app(place.url)
    if width is not None:
        app.store.configure("default", group_width=width)
    brief = app.tasks["brief"]
    of = {name: brief.using(group=None if width is None else name) for name in ("large", *SMALL)}
    large = [of["large"].draft(-1 - i) for i in range(waiting)]
    for at in range(0, len(large), PUT_AT_ONCE):
        app.enqueue_many(large[at : at + PUT_AT_ONCE])
    small = [of[name].draft(EACH * number + i) for i in range(EACH) for number, name in enumerate(SMALL)]
    with worker(place, concurrency=CONCURRENCY) as child:
        if waiting:
            child.await_records(min(UNDER_WAY, waiting))
        else:
            child.rest()
        app.enqueue_many(small)
        put_s = time.time()
        app.store.close()
        records = _until_started(child, len(small))
    need_all_once(records, len(small))
    return percentile([at_s - put_s for index, at_s in records if index >= 0], 0.99) * 1000


def _until_started(child: Child, count: int) -> list[tuple[int, float]]:
    """The records, once the small tenants' messages have all started."""
    while True:
        seen, records = child.count(), child.read()
        if sum(index >= 0 for index, _ in records) >= count:
            return records
        child.await_records(seen + 1)
