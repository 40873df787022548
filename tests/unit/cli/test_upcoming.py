"""What comes due, as `app.upcoming()` and `redrive upcoming` tell it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from redrive import App
from redrive.message import ClaimRequest, Draft, DueCount, RetryAt, Settlement
from redrive.status.upcoming import Wave, read_upcoming
from redrive.stores.memory.store import MemoryStore
from redrive.testing import ManualClock


def test_each_span_has_what_comes_due_until_its_end_by_retry_and_first_run() -> None:
    clock = ManualClock()
    store, now_ms = MemoryStore(clock_ms=clock), clock()
    store.put([Draft(task="push", queue="crm")])
    (failed,) = store.exchange([], [ClaimRequest("crm", 1, 60_000)]).deliveries
    store.exchange([Settlement(failed.receipt, RetryAt(now_ms + 61_000))], [])
    ahead_s = (-5, 0, 10, 11, 600, 601, 3600, 7201, 24 * 3600, 24 * 3600 + 1)
    store.put(
        [Draft(task="push", queue=("crm", "erp")[n % 2], due_ms=now_ms + s * 1000) for n, s in enumerate(ahead_s)]
    )

    found = read_upcoming(store)

    some = {
        spans: {n: (wave.first, wave.retries) for n, wave in enumerate(waves) if wave != Wave()}
        for spans, waves in (("tens", found.tens), ("minutes", found.minutes), ("hours", found.hours))
    }
    assert some["tens"] == {0: (1, 0), 1: (1, 0), 6: (0, 1), 59: (1, 0)}
    assert some["minutes"] == {0: (2, 0), 1: (0, 1), 9: (1, 0), 10: (1, 0), 59: (1, 0)}
    assert some["hours"] == {0: (5, 1), 2: (1, 0), 23: (1, 0)}
    assert (found.within(10), found.within(600), found.within(3600), found.within(86_400)) == (1, 4, 6, 8)
    assert sum(wave.all for wave in read_upcoming(store, "erp").hours) == 3


class Guessing(MemoryStore):
    """It estimates what comes due in more than ten minutes."""

    def due_counts(self, queue: str, bounds_ms: Sequence[int]) -> list[DueCount]:
        edge_ms = bounds_ms[0] + 600_000
        found = super().due_counts(queue, bounds_ms)
        return [count._replace(exact=end_ms <= edge_ms) for count, end_ms in zip(found, bounds_ms[1:], strict=True)]


def test_a_span_is_exact_where_all_of_it_was_counted() -> None:
    store = Guessing(clock_ms=ManualClock())
    store.put([Draft(task="push", delay_ms=5000)])
    found = read_upcoming(store)
    assert all(wave.exact for wave in found.tens)
    assert [n for n, wave in enumerate(found.minutes) if not wave.exact] == [*range(10, 60)]
    assert not any(wave.exact for wave in found.hours)


def test_the_command_shows_the_wave_of_retries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from redrive.program.main import run

    url = f"sqlite:///{tmp_path}/work.db"
    store = App(url).store
    store.put([Draft(task="push", queue="crm")] * 3)
    failed = store.exchange([], [ClaimRequest("crm", 2, 60_000)]).deliveries
    store.exchange([Settlement(one.receipt, RetryAt(store.now_ms() + 115_000)) for one in failed], [])
    store.close()

    assert run(["upcoming", "crm", "--url", url, "-o", "table"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("2m "))
    assert line.split()[:4] == ["2m", "0", "2", "2"] and line.endswith("▒" * 40)
    assert run(["upcoming", "--url", url, "-o", "table"]) == 0
    told = capsys.readouterr()
    assert [line.split()[0] for line in told.out.splitlines()[1:]] == ["1m", "2m"], "no row of zeros after the last"
    assert told.err.splitlines()[-1] == "nothing more is scheduled within a day"
    assert run(["upcoming", "erp", "--url", url, "-o", "table"]) == 0
    told = capsys.readouterr()
    assert told.out == "" and told.err.splitlines()[-1] == "nothing is scheduled within a day"
    assert run(["upcoming", "--url", url, "-o", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["upcoming"]) == 60 + 60 + 24
    assert [step for step in record["upcoming"] if step["span"] == "1m" and step["retries"]] == [
        {"span": "1m", "from_s": 60, "to_s": 120, "first": 0, "retries": 2, "exact": True}
    ]
