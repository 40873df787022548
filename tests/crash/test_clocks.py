"""A machine whose clock is an hour wrong beside one whose clock is right: the store's clock decides, and nothing is
early, lost or run twice. (On an SQLite file all processes share the clock of their one machine.)"""

from __future__ import annotations

import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.crash.children import SERVER_ENGINES, Child, balanced, fill, records, until
from tests.support.crash.clocks import clock
from tests.support.crash.ledger import Journal, Record, handled, opened, produced, read
from tests.support.crash.programs import Plan, acknowledge, announce, drafts_of, make_app

pytestmark = [
    pytest.mark.slow,
    pytest.mark.turns(2),
    pytest.mark.linux,  # where a library that is loaded first may change what the clock says
    pytest.mark.parametrize("place", SERVER_ENGINES, indirect=True),
]
FAST, SLOW = "+1h", "-1h"
LEASE_S = 3.0  # so long that nobody loses it where the machine is busy
MS = 0.002  # times are whole milliseconds


@pytest.mark.fault("a worker's clock is an hour wrong")
@pytest.mark.parametrize("wrong", [FAST, pytest.param(SLOW, marks=pytest.mark.soak)])
def test_worker_whose_clock_is_wrong_keeps_its_leases_and_takes_nobodys(place: Path, wrong: str) -> None:
    ids = fill(place, ["hold", "hold_thread"] * 4)
    plan = Plan(place=str(place), concurrency=4, prefetch=0, lease=f"{LEASE_S:g}s", drain=False, told=True)
    with Child("worker", plan, extra=clock(wrong)) as skewed, Child("worker", plan) as right:
        for worker in (skewed, right):
            until("it runs four", lambda worker=worker: worker.starts() == 4, child=worker)
        time.sleep(LEASE_S * 1.5)
        (place / "go").touch()
        until("all end", lambda: len(records(place, "end", "ok")) == len(ids))
        for worker in (skewed, right):
            worker.send(signal.SIGTERM)
            worker.ends_well()
    ledger = balanced(place)
    assert ledger.done == set(ids) and all(len(starts) == 1 for starts in ledger.starts.values())
    assert {r.note for r in records(place, "fate")} == {"done"}


@pytest.mark.fault("a worker's clock is an hour wrong")
@pytest.mark.parametrize("wrong", [SLOW, pytest.param(FAST, marks=pytest.mark.soak)])
def test_worker_and_producer_whose_clocks_are_wrong_run_nothing_early_and_nothing_an_hour_late(
    place: Path, wrong: str
) -> None:
    delay_s = 1.5
    put_s = time.monotonic()
    later = _delayed(place, delay_s, 12)
    plan = Plan(place=str(place), concurrency=4, drain=False)
    made = Plan(place=str(place), count=12 + 30)
    with Child("worker", plan, extra=clock(wrong)) as skewed, Child("producer", made, extra=clock(wrong)) as producer:
        producer.ends_well()
        until("all is done or dead", lambda: _waiting(place) == 0, child=skewed)
        skewed.send(signal.SIGTERM)
        skewed.ends_well()
    ledger = balanced(place)
    assert all(starts[0].at_s >= put_s + delay_s - MS for id, starts in ledger.starts.items() if id in later)
    retried = [starts for id, starts in ledger.starts.items() if ledger.kind[id] == "flaky"]
    assert retried and all(second.at_s >= _end_s(place, first) + 0.03 - MS for first, second in retried)


def _delayed(place: Path, delay_s: float, count: int) -> set[str]:
    journal, other = Journal(produced(place)), Journal(handled(place))
    app = make_app(place, other)
    with closing(app.store) as store, closing(journal), closing(other):
        drafts = [replace(draft, delay_ms=int(delay_s * 1000)) for draft in drafts_of(app, ["quick"] * count)]
        announce(journal, drafts, "delayed")
        store.put(drafts)
        acknowledge(journal, drafts)
    return {draft.id or "" for draft in drafts}


def _waiting(place: Path) -> int:
    with closing(opened(place)) as store:
        counts = store.counts()
    return counts.waiting + counts.leased


def _end_s(place: Path, start: Record) -> float:
    return next(r.at_s for r in read(handled(place)) if r.what == "end" and (r.id, r.fence) == (start.id, start.fence))
