"""What opens a breaker: first attempts decide, retries of what failed by its own nature say nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from redrive import Aimd, Breaker
from redrive.fault import Fault, Kind
from redrive.flow import calls, limits
from redrive.flow import dependency as flow
from redrive.flow.breaker import CallCounts, State, record, record_many
from redrive.flow.dependency import Dependency, PendingEvidence
from redrive.flow.evidence import repeats
from redrive.message import Message

NOW = 1_700_000_000_000
RULE = Breaker()  # 50 % of at least 20 calls in 10 s
OPENED, CLOSED = "open", "closed"


@pytest.mark.parametrize(
    ("calls", "status"),
    [
        # First attempts alone, as ever.
        (CallCounts(success=10, failure=9), CLOSED),
        (CallCounts(success=10, failure=10), OPENED),
        # Retries beside first attempts.
        (CallCounts(success=100, repeated=1_000), CLOSED),
        (CallCounts(success=100, retry_failure=99), CLOSED),
        (CallCounts(success=100, retry_failure=100), OPENED),
        (CallCounts(success=20, failure=1, retry_success=20, retry_failure=18, repeated=500), CLOSED),
        # Few first attempts, which fail: then whatever else fails counts too.
        (CallCounts(success=2, failure=3, repeated=15), OPENED),
        (CallCounts(success=3, failure=2, repeated=15), CLOSED),
        # Retries alone: nearly all must fail, and be evidence.
        (CallCounts(retry_failure=19), CLOSED),
        (CallCounts(retry_failure=20), OPENED),
        (CallCounts(retry_success=1, retry_failure=19), OPENED),
        (CallCounts(retry_success=2, retry_failure=20), CLOSED),
        (CallCounts(retry_success=50, retry_failure=50), CLOSED),
        (CallCounts(repeated=1_000), CLOSED),
        (CallCounts(retry_success=1, repeated=1_000), CLOSED),
        (CallCounts(failure=4, retry_failure=16), OPENED),
        (CallCounts(success=2, failure=2, retry_failure=16), CLOSED),
    ],
)
def test_what_opens_it(calls: CallCounts, status: str) -> None:
    assert record_many(State(), RULE, calls, NOW).status == status


@pytest.mark.parametrize(("rate", "needed"), [(0.1, 91), (0.5, 95), (0.9, 99), (1.0, 100)])
def test_of_retries_alone_nearly_all_must_have_failed(rate: float, needed: int) -> None:
    rule = Breaker(failure_rate=rate, min_calls=100)
    assert (
        record_many(State(), rule, CallCounts(retry_success=101 - needed, retry_failure=needed - 1), NOW).status
        == CLOSED
    )
    assert (
        record_many(State(), rule, CallCounts(retry_success=100 - needed, retry_failure=needed), NOW).status == OPENED
    )


def test_slow_calls_count_whoever_made_them() -> None:
    rule = Breaker(min_calls=4, slow_call="1s", slow_rate=0.5)
    d, seen = Dependency("d", breaker=rule), PendingEvidence()
    for attempt in (1, 1, 2, 3):
        calls.note(
            seen, flow.DependencyState(), d, failed_before(NOW - 1, attempt), "slow" if attempt > 1 else "success", NOW
        )
    assert calls.apply(flow.DependencyState(), d, seen, NOW).breaker.status == OPENED


def test_when_a_failure_is_the_messages_own() -> None:
    def own(failed_ms: int, well_ms: int, closed_ms: int = 0, now_ms: int = 70_000) -> bool:
        return repeats(failed_ms, well_ms, closed_ms, RULE, now_ms)

    assert own(10_000, 10_000) and own(10_000, 69_000)  # something succeeded after it failed
    assert not own(10_001, 10_000)  # nothing has since: that may be an outage
    assert not own(10_000, 20_000, closed_ms=10_001)  # it failed before or in an outage that is over
    assert own(5_000, 10_000) and not own(5_000, 9_999)  # the last success was a minute ago: that may be one too
    assert not own(5_000, 0)


def failed_before(at_ms: int, attempt: int = 2) -> Message:
    fault = Fault(kind=Kind.TRANSIENT, error="E", text="t", fingerprint="f", at_ms=at_ms)
    later = replace(fault, at_ms=at_ms + 1_000_000)
    return Message("m", "t", "q", b"{}", "m", attempt=attempt, life_ms=0, faults=(fault, later))


@dataclass(frozen=True)
class Case:
    word: str
    attempt: int
    counted: dict[str, Any]
    well_ms: int = 0


@pytest.mark.parametrize(
    "case",
    [
        Case("success", 1, {"success": 1, "well_ms": NOW}),
        Case("failure", 1, {"failure": 1}),
        Case("slow_failure", 1, {"slow_failure": 1}),
        Case("success", 2, {"retry_success": 1, "well_ms": NOW}),
        Case("failure", 2, {"retry_failure": 1}),
        Case("failure", 2, {"repeated": 1, "well_ms": NOW - 500}, well_ms=NOW - 500),
        Case("slow_failure", 2, {"repeated": 1, "well_ms": NOW - 500}, well_ms=NOW - 500),
        Case("slow_failure", 2, {"slow_failure": 1}),
        Case("throttled", 2, {}),
        Case("ignored", 2, {}),
    ],
)
def test_how_a_call_is_counted(case: Case) -> None:
    seen = PendingEvidence(well_ms=case.well_ms)
    message = failed_before(NOW - 1000, case.attempt)
    calls.note(seen, flow.DependencyState(), Dependency("d", breaker=RULE), message, case.word, NOW)
    assert seen == PendingEvidence(**case.counted)


def test_a_fault_of_an_earlier_life_or_of_a_crash_says_nothing_of_this_one() -> None:
    d, state = Dependency("d", breaker=RULE), flow.DependencyState(breaker=State(well_ms=NOW))
    for message in (
        replace(failed_before(NOW - 1000), life_ms=NOW - 999, faults=failed_before(NOW - 1000).faults[:1]),
        replace(failed_before(NOW - 1000), faults=()),
    ):
        seen = PendingEvidence()
        calls.note(seen, state, d, message, "failure", NOW)
        assert (seen.retry_failure, seen.repeated) == (1, 0)


def test_repeated_failures_do_not_make_a_ramp_fall_back() -> None:
    d, state = Dependency("d", breaker=RULE), State(status="half_open", since_ms=NOW)
    for _ in range(RULE.probes):
        state = record(state, RULE, "success", NOW)
    assert state.ramp is not None
    for seen, falls in ((PendingEvidence(repeated=50), False), (PendingEvidence(retry_failure=50), True)):
        after = calls.apply(flow.DependencyState(breaker=state), d, seen, NOW + 2_000).breaker
        assert (after.turn > state.turn) is falls


def test_a_concurrency_is_lowered_by_retries_that_are_evidence_and_not_by_those_that_repeat() -> None:
    d = Dependency("d", breaker=RULE, concurrency=Aimd(start=10, least=1, most=20))
    same, less = (
        limits.height(calls.apply(flow.DependencyState(), d, seen, NOW).aimd, d.concurrency)
        for seen in (PendingEvidence(repeated=5), PendingEvidence(retry_failure=5))
    )
    assert less < same == 10
