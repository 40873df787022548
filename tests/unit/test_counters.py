"""One function says what an event counts, and each of its counters has a name in what is published."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import counters
from redrive.aws.cloudwatch import NAMES, UNITS
from redrive.counters import AFTER_RETRIES, DONE, FIRST_TRY, CountKey, bounded, counts_of
from redrive.events import DeliveryEvent
from redrive.message import REASONS
from redrive.observe.tally import SHAPES


def event(outcome: str, **of: Any) -> DeliveryEvent:
    return DeliveryEvent(**{"outcome": outcome, "id": "1", "task": "t", "queue": "q", "attempt": 2} | of)


@pytest.mark.parametrize(
    "given, counts",
    [
        (event("done", attempt=1, age_ms=7), {DONE: 1, ("attempts", "done"): 1, FIRST_TRY: 7}),
        (event("done", age_ms=7, run_ms=1.5), {("attempts", "done"): 2, AFTER_RETRIES: 7, ("run_ms", ""): 1.5}),
        (event("done", attempt=1, crashes=1, causes=("", "exit")), {("crashes", "unknown"): 1, ("crashes", "exit"): 1}),
        (event("done", degraded="a", duplicate_of="b"), {("degraded", ""): 1, ("duplicates", ""): 1}),
        (event("retry", delay_ms=9, fault="timeout"), {("retry_delay_ms", ""): 9, ("faults", "timeout"): 1}),
        (event("held", delay_ms=9, deferral="limit"), {("deferral_ms", "limit"): 9}),
        (event("dead", reason="exhausted", verdict="failed"), {("dead", "exhausted"): 1, ("redriven", "failed"): 1}),
        (event("quarantined", reason="crashed"), {("quarantined", "crashed"): 1, ("attempts", "quarantined"): 2}),
        (event("cancelled", reason="exhausted"), {("attempts", "cancelled"): 2}),
    ],
)  # fmt: skip
def test_an_event_counts_its_outcome_and_its_details(given: DeliveryEvent, counts: dict[CountKey, float]) -> None:
    counted = dict(counts_of(given))
    assert counted["deliveries", given.outcome] == 1
    assert counts.items() <= counted.items()


@pytest.mark.parametrize(
    "given",
    [
        event("held", delay_ms=9),
        event("snoozed", delay_ms=9),
        event("stale", delay_ms=9, reason="exhausted", degraded="a", duplicate_of="b", deferral="limit"),
    ],
)
def test_a_delivery_that_ends_no_life_counts_nothing_but_its_outcome(given: DeliveryEvent) -> None:
    assert counts_of(given) == [(("deliveries", given.outcome), 1)]


def test_words_from_outside_are_replaced_and_own_words_are_kept() -> None:
    assert bounded(("dead", "because of 7")) == ("dead", "(other)")
    assert bounded(("crashes", "because of 7")) == ("crashes", "unknown")
    assert [bounded(("dead", reason))[1] for reason in REASONS] == [*REASONS]
    assert bounded(("redriven", "failed")) == ("redriven", "failed")


def test_each_counter_is_a_metric_and_each_name_of_cloudwatch_has_a_unit() -> None:
    names = {value for name, value in vars(counters).items() if name.isupper() and isinstance(value, str)}
    assert names - {counters.OTHER, counters.UNKNOWN} <= SHAPES.keys()
    assert {name for each in NAMES.values() for name in each} <= UNITS.keys()
