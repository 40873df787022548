"""PostgreSQL counts what comes due soon one by one, and estimates what is beyond where there is much."""

from __future__ import annotations

import pytest
from tests.support.schemas import (
    schema,  # noqa: F401
)

from redrive.message import Draft, DueCount
from redrive.stores.postgres import search
from redrive.stores.postgres.store import PostgresStore
from redrive.testing import ManualClock

SPANS, EACH = 10, 1000


def test_beyond_what_it_counts_it_estimates_and_says_so(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    store, now_ms = PostgresStore(schema, clock_ms=clock), clock()
    bounds_ms = [now_ms + 10_000 * n for n in range(SPANS + 1)]
    for first in range(0, EACH, 100):  # spread over the blocks
        store.put(
            [Draft(task="push", due_ms=end_ms - n) for n in range(first, first + 100) for end_ms in bounds_ms[1:]]
        )
    store.put([Draft(task="push", queue="small", due_ms=bounds_ms[5])])
    (blocks,) = store._look("blocks")[0]

    assert store.due_counts("default", bounds_ms) == [DueCount(EACH, 0)] * SPANS  # a small table is counted

    monkeypatch.setattr(search, "SAMPLED_BLOCKS", blocks // 2 - 1)
    monkeypatch.setattr(search, "DUE_EXACT", 3 * EACH)
    store._sampled = (), 0.0, {}
    found = store.due_counts("default", bounds_ms)
    near = [count for count in found if count.exact]
    assert 1 <= len(near) <= 5 and near == [DueCount(EACH, 0)] * len(near)
    assert [count.exact for count in found] == sorted([count.exact for count in found], reverse=True)
    assert all(EACH / 2 < count.all < EACH * 2 for count in found)
    assert store.due_counts("small", bounds_ms) == [DueCount(int(n == 4), 0) for n in range(SPANS)]
    store.close()
