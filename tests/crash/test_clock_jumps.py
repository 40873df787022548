"""The clock of a machine is set by an hour under all the processes that share an SQLite file: nothing is early, an hour
late, lost or run twice. (On a server, whose clock is another, see test_clocks.)"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.crash.children import Child, balanced, fill, records, until
from tests.support.crash.clocks import clock
from tests.support.crash.ledger import Journal, database, handled, opened, produced
from tests.support.crash.programs import Plan, acknowledge, announce, drafts_of, make_app

from redrive.stores.sqlite.wake import wake_dir

pytestmark = [
    pytest.mark.slow,
    pytest.mark.turns(2),
    pytest.mark.linux,  # where a library that is loaded first may change what the clock says
    pytest.mark.parametrize("place", ["sqlite"], indirect=True),
]
LEASE_S = 3.0  # so long that no worker loses it where the machine is busy
MS = 0.002  # times are whole milliseconds


class Settable:
    """The wall clock of the processes that are given `environment`; `set_by` sets it under all of them at once."""

    def __init__(self, place: Path) -> None:
        self._file = place / "wall-clock"
        self.set_by("+0h")
        self.environment = clock("")
        del self.environment["FAKETIME"]
        self.environment |= {"FAKETIME_TIMESTAMP_FILE": str(self._file), "FAKETIME_NO_CACHE": "1"}

    def set_by(self, offset: str) -> None:
        new = self._file.with_name("wall-clock.new")
        new.write_text(offset + "\n")
        new.replace(self._file)


@pytest.mark.fault("the machine's clock is set by an hour")
@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_running_messages_stay_with_their_workers_when_the_clock_is_set(place: Path, offset: str) -> None:
    wall = Settable(place)
    ids = fill(place, ["hold", "hold_thread"] * 4)
    plan = Plan(place=str(place), concurrency=4, prefetch=0, lease=f"{LEASE_S:g}s", drain=False, told=True)
    with ExitStack() as ending:
        one, other = (ending.enter_context(Child("worker", plan, extra=wall.environment)) for _ in range(2))
        for worker in (one, other):
            until("it runs four", lambda worker=worker: worker.starts() == 4, child=worker)
        idle = ending.enter_context(Child("worker", plan, extra=wall.environment))  # it would take what it may
        until("it waits", lambda: len(list(wake_dir(database(place)).iterdir())) == 3, child=idle)
        for new in (offset, "+0h", offset):
            wall.set_by(new)
            time.sleep(LEASE_S * 0.7)
        (place / "go").touch()
        until("all end", lambda: len(records(place, "end", "ok")) == len(ids))
        for worker in (one, other, idle):
            worker.send(signal.SIGTERM)
            worker.ends_well()
    ledger = balanced(place)
    assert ledger.done == set(ids) and all(len(starts) == 1 for starts in ledger.starts.values())
    # A worker that a busy machine held up as it started has given back what it had not begun.
    assert {"done"} <= {r.note for r in records(place, "fate")} <= {"done", "released"}


@pytest.mark.fault("the machine's clock is set by an hour")
@pytest.mark.parametrize("offset", ["-1h", "+1h"])
def test_nothing_is_early_or_waits_for_the_clock_when_it_is_set(place: Path, offset: str) -> None:
    wall, delay_s = Settable(place), 4.0
    put_s = time.monotonic()
    later = _delayed(place, delay_s, 12)
    plan = Plan(place=str(place), concurrency=4, drain=False)
    made = Plan(place=str(place), count=12 + 30)
    with Child("worker", plan, extra=wall.environment) as worker:
        until("it works", lambda: len(records(place, "start")) > 0, child=worker)
        wall.set_by(offset)
        with Child("producer", made, extra=wall.environment) as producer:
            producer.ends_well()
        until("all is done or dead", lambda: _waiting(place) == 0, child=worker)
        worker.send(signal.SIGTERM)
        worker.ends_well()
    ledger = balanced(place)
    assert all(starts[0].at_s >= put_s + delay_s - MS for id, starts in ledger.starts.items() if id in later)
    retried = [starts for id, starts in ledger.starts.items() if ledger.kind[id] == "flaky"]
    ends = {(r.id, r.fence): r.at_s for r in records(place, "end")}
    assert retried and all(second.at_s >= ends[first.id, first.fence] + 0.03 - MS for first, second in retried)


def _delayed(place: Path, delay_s: float, count: int) -> set[str]:
    """Some that are due at once, and some later: the ids of these."""
    journal, other = Journal(produced(place)), Journal(handled(place))
    app = make_app(place, other)
    with closing(app.store) as store, closing(journal), closing(other):
        drafts = drafts_of(app, ["quick"] * (count + 1))
        drafts = drafts[:1] + [replace(draft, delay_ms=int(delay_s * 1000)) for draft in drafts[1:]]
        announce(journal, drafts, "delayed")
        store.put(drafts)
        acknowledge(journal, drafts)
    return {draft.id or "" for draft in drafts[1:]}


def _waiting(place: Path) -> int:
    with closing(opened(place)) as store:
        counts = store.counts()
    return counts.waiting + counts.leased
