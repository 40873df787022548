"""Any value in any place of a store: whatever is changed there, looks and commands end in time and within their memory,
the others run once, and what does not run is there, or named by `store check`.

Each round brings back a store with some thirty messages of every state and cells of every kind, changes one place of it
by the seed, looks
at it in every way, lets a worker run, looks again and compares with the ledger (tests/support/attack/fuzz.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.attack.fuzz import Figures, fuzzed

ROUNDS = {"sqlite": 75, "redis": 75, "postgres": 50}
SOAKED = {"sqlite": 7_000, "redis": 7_000, "postgres": 6_000}


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("engine", ROUNDS)
def test_any_change_of_one_place_harms_that_place_alone(
    engine: str,
    tmp_path: Path,
    seed: int,
    soak: bool,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    place = str(tmp_path) if engine == "sqlite" else _own_server(request, engine)
    figures = fuzzed(engine, place, seed, (SOAKED if soak else ROUNDS)[engine])
    print(_told(engine, figures))
    for name in ("corruptions", "bystanders", "raised", "peak_mb", "slowest_s"):
        record_property(name, getattr(figures, name))
    assert figures.problems == []
    assert figures.bystanders > 10 * figures.corruptions and figures.raised == 0


def _own_server(request: pytest.FixtureRequest, engine: str) -> str:
    url: str = request.getfixturevalue(f"{engine}_server").url
    return url


def _told(engine: str, f: Figures) -> str:
    return (
        f"{engine}: {f.corruptions} corruptions ({f.refused} refused by the engine), {len(f.problems)} problems, "
        f"{f.bystanders} runs of bystanders with {f.raised} attempts raised, peak memory {f.peak_mb} MB, "
        f"slowest: {f.slowest}, {f.slowest_s:.2f} s"
    )
