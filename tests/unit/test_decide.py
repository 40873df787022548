"""`admit` and `decide` as tables, and what holds for every message by properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redrive.decide import RUN, Policy, Signals, admit, decide, tried_ms, with_fate
from redrive.errors import Snooze
from redrive.fault import Crash, Fault, Kind, classify, crash_fault
from redrive.message import REASON_MAX, DeadLetter, Decision, Lane, Message, Quarantine, RetryAt
from redrive.policy import Backoff, Retry
from redrive.stores.lifecycle import decided

NOW = 1_700_000_000_000
HOUR = 3_600_000
ID = "018bcfe5-6800-7000-8000-000000000001"
FIXED = Policy(retry=Retry(max_attempts=3, max_elapsed="1h", backoff=Backoff.fixed("10s")))


def message(**fields: Any) -> Message:
    defaults: dict[str, Any] = {"lane": Lane.LEASED, "fence": 1, "attempt": 1, "enqueued_ms": NOW, "life_ms": NOW}
    return Message(ID, "t", "q", b"{}", ID, **{**defaults, **fields})


def fault(kind: str = "default", **fields: Any) -> Fault:
    return Fault(Kind(kind), **fields)


ADMITTED = [
    ("nothing speaks against it", {}, Signals(), RUN),
    ("cancelled", {"cancel": True}, Signals(), RetryAt(NOW, "cancelled", counts=False)),
    ("no such task", {}, Signals(unroutable="w"), DeadLetter("unroutable", "w", counts=False)),
    ("unreadable body", {}, Signals(unreadable="w"), DeadLetter("unreadable", "w", counts=False)),
    ("deadline ahead", {"deadline_ms": NOW + 1}, Signals(), RUN),
    ("two crashes alone", {"crashes": 2, "crashes_alone": 2}, Signals(), RUN),
    ("nine crashes in company", {"crashes": 9}, Signals(), RUN),
]


@pytest.mark.parametrize(
    ("fields", "signals", "expected"), [row[1:] for row in ADMITTED], ids=[row[0] for row in ADMITTED]
)
def test_admit(fields: dict[str, Any], signals: Signals, expected: object) -> None:
    assert admit(message(**fields), FIXED, signals, NOW) == expected


def test_a_message_past_its_deadline_dies_unrun() -> None:
    verdict = admit(message(deadline_ms=NOW), FIXED, Signals(), NOW)
    assert isinstance(verdict, DeadLetter)
    assert (verdict.reason, verdict.counts) == ("deadline", False)


@pytest.mark.parametrize("fields", [{"crashes": 3, "crashes_alone": 3}, {"crashes": 10}])
def test_too_many_crashes_convict(fields: dict[str, Any]) -> None:
    verdict = admit(message(**fields), FIXED, Signals(), NOW)
    assert isinstance(verdict, Quarantine)
    assert verdict.counts is False


KILLED = crash_fault(Crash(cause="signal", signal="SIGKILL", alone=True))
HOUR_MS = 3_600_000


def crashed(*ago_ms: int, alone: bool = True, **fields: Any) -> Message:
    """A message whose crashes were that long ago, and its evidence."""
    faults = tuple(crash_fault(Crash(alone=alone), NOW - ago) for ago in ago_ms)
    counts = {"crashes": len(faults), "crashes_alone": len(faults) if alone else 0}
    return message(faults=faults, **{"life_ms": NOW - 10**9, **counts, **fields})


CRASHED = [
    ("the first", message(), FIXED, RetryAt(NOW + 10_000, "crashed", crashed=True)),
    ("the second", crashed(1), FIXED, RetryAt(NOW + 10_000, "crashed", crashed=True)),
    ("the third convicts", crashed(2, 1), FIXED, None),
    ("one in company counts little", crashed(2, 1, alone=False), FIXED, RetryAt(NOW + 10_000, "crashed", crashed=True)),
    ("the tenth of all convicts", message(crashes=9), FIXED, None),
    (
        "the last attempt is not lost to a crash",
        message(attempt=3),
        FIXED,
        RetryAt(NOW + 10_000, "crashed", crashed=True),
    ),
    ("one is enough", message(), replace(FIXED, crashes_alone_max=1), None),
    ("never retried", message(), Policy(retry=Retry(never=["crashed"])), None),
    (
        "a backoff of its own",
        crashed(1),
        Policy(retry=Retry(on={"crashed": Backoff(base="7s", factor=2, jitter="none")})),
        RetryAt(NOW + 14_000, "crashed", crashed=True),
    ),
    ("an override is not asked", message(), Policy(retry=Retry(override=lambda m, f, d: RetryAt(0))), "crashed"),
    ("in the window", crashed(HOUR_MS, 1), replace(FIXED, crashes_within_s=3600.0), None),
    ("one before the window", crashed(HOUR_MS + 1, 1), replace(FIXED, crashes_within_s=3600.0), "crashed"),
    ("of an earlier life", crashed(9, 8, crashes=0, crashes_alone=0, life_ms=NOW - 5), FIXED, "crashed"),
    ("without evidence, as if now", crashed(crashes=2, crashes_alone=2), replace(FIXED, crashes_within_s=1.0), None),
]


@pytest.mark.parametrize(
    ("waiting", "policy", "expected"), [row[1:] for row in CRASHED], ids=[row[0] for row in CRASHED]
)
def test_a_crash_alone_is_retried_free_of_charge_until_it_convicts(
    waiting: Message, policy: Policy, expected: object
) -> None:
    answer = decide(waiting, KILLED, policy, NOW)
    if expected is None:
        assert isinstance(answer, Quarantine) and answer.reason == "crashed" and answer.crashed
        assert KILLED.text in answer.why and "alone" in answer.why
    elif expected == "crashed":
        assert isinstance(answer, RetryAt) and answer.crashed
    else:
        assert answer == expected


@pytest.mark.parametrize("policy", [FIXED, replace(FIXED, crashes_alone_max=1), Policy(retry=Retry(never=["crashed"]))])
def test_a_crash_in_company_convicts_no_message_and_is_retried_before_what_was_enqueued_later(policy: Policy) -> None:
    killed = crash_fault(Crash(cause="signal", signal="SIGKILL", started_count=4))
    for crashes in (0, 3, 8):
        waiting = message(crashes=crashes, life_ms=NOW - 5000)
        assert decide(waiting, killed, policy, NOW) == RetryAt(NOW - 5000, "crashed", crashed=True, in_company=True)
    assert decide(message(life_ms=NOW + 5000), killed, policy, NOW) == RetryAt(
        NOW, "crashed", crashed=True, in_company=True
    )


def test_the_tenth_crash_convicts_whatever_the_company_was() -> None:
    killed = crash_fault(Crash(cause="signal", signal="SIGKILL", started_count=4))
    verdict = decide(message(crashes=9, crashes_alone=2), killed, FIXED, NOW)
    assert isinstance(verdict, Quarantine) and (verdict.crashed, verdict.in_company) == (True, True)
    assert verdict.why.startswith("its process died 10 times while running it, 2 of them while it ran alone")


WINDOWED = [
    ("all within", crashed(HOUR_MS, 2, 1), Quarantine),
    ("the first too long ago", crashed(HOUR_MS + 1, 2, 1), type(RUN)),
    ("those in company do not count", crashed(3, 2, 1, alone=False), type(RUN)),
    ("ten of one life all the same", crashed(*[HOUR_MS * 9] * 10), Quarantine),
]


@pytest.mark.parametrize(("waiting", "expected"), [row[1:] for row in WINDOWED], ids=[row[0] for row in WINDOWED])
def test_a_window_counts_what_lies_in_it_when_a_lost_lease_is_claimed(waiting: Message, expected: type) -> None:
    policy = replace(FIXED, crashes_within_s=3600.0)
    assert type(admit(waiting, policy, Signals(), NOW)) is expected


def test_who_is_quarantined_unrun_is_told_how_its_process_died() -> None:
    waiting = replace(crashed(2, 1), faults=(KILLED, fault()), crashes=4, crashes_alone=3)
    verdict = admit(waiting, FIXED, Signals(), NOW)
    assert isinstance(verdict, Quarantine)
    assert verdict.why == (
        "its process died 4 times while running it, 3 of them while it ran alone; "
        "the last: killed by SIGKILL; alone in its process"
    )


def test_an_exception_that_a_rule_calls_crashed_is_a_failure_like_others() -> None:
    assert decide(message(), fault("crashed"), FIXED, NOW) == RetryAt(NOW + 10_000, "crashed")


MINUTES_5 = Signals(unroutable="w", park_ms=300_000)


def parked(at_ms: int, **fields: Any) -> Message:
    return message(faults=(fault("transient", at_ms=NOW), fault("unroutable", at_ms=at_ms)), **fields)


PARKED = [
    ("first seen", message(), MINUTES_5, 500),
    ("first seen, for a moment", message(), Signals(unroutable="w", park_ms=300), 300),
    ("first seen, for no time", message(), Signals(unroutable="w"), None),
    ("seen half a second ago", parked(NOW - 500), MINUTES_5, 500),
    ("seen eight seconds ago", parked(NOW - 8000), MINUTES_5, 4000),
    ("seen a minute ago", parked(NOW - 60_000), MINUTES_5, 10_000),
    ("known until two seconds ago", parked(NOW - 900_000), replace(MINUTES_5, known_ms=NOW - 2000), 1000),
    ("known for the last time too long ago", parked(NOW - 900_000), replace(MINUTES_5, known_ms=NOW - 300_000), None),
    ("four seconds are left", parked(NOW - 296_000), MINUTES_5, 4_000),
    ("one millisecond is left", parked(NOW - 299_999), MINUTES_5, 1),
    ("the wait is over", parked(NOW - 300_000), MINUTES_5, None),
    ("seen in an earlier life", parked(NOW - 300_000, life_ms=NOW - 299_000), MINUTES_5, 500),
    ("a run failed since", message(faults=(*parked(NOW - 300_000).faults, fault())), MINUTES_5, 500),
]


@pytest.mark.parametrize(
    ("waiting", "signals", "wait_ms"),
    [(row[1] if row[1].life_ms < NOW else replace(row[1], life_ms=NOW - 10**6), *row[2:]) for row in PARKED],
    ids=[row[0] for row in PARKED],
)
def test_what_nobody_here_knows_is_parked_and_then_dead(
    waiting: Message, signals: Signals, wait_ms: int | None
) -> None:
    expected: object = DeadLetter("unroutable", "w", counts=False)
    if wait_ms is not None:
        expected = RetryAt(NOW + wait_ms, "parked", counts=False, held=True)
    assert admit(waiting, FIXED, signals, NOW) == expected


def test_what_a_living_worker_knows_goes_back_to_it_however_long_it_waits() -> None:
    for waiting in (message(), parked(NOW - 10**6, life_ms=NOW - 10**7)):
        for park_ms in (0, 300_000):
            signals = Signals(unroutable="w", park_ms=park_ms, known_ms=NOW, again_ms=NOW - 7)
            assert admit(waiting, FIXED, signals, NOW) == RetryAt(NOW - 7, "newer", counts=False, held=True)


def test_a_deadline_ends_the_wait_of_a_parked_message() -> None:
    verdict = admit(message(deadline_ms=NOW), FIXED, MINUTES_5, NOW)
    assert isinstance(verdict, DeadLetter) and verdict.reason == "deadline"


def test_what_was_asked_before_a_message_was_parked_still_holds() -> None:
    hours_6 = 6 * 3_600_000
    waiting = message(faults=(*asked(15).faults, fault("unroutable", at_ms=NOW + hours_6, delay_ms=10_000)))
    assert admit(waiting, FIXED, Signals(), NOW + hours_6) == RetryAt(NOW + 2 * hours_6, "asked", counts=False)


def test_cancel_comes_before_everything_else() -> None:
    doomed = message(cancel=True, deadline_ms=NOW - 1, crashes=10)
    assert admit(doomed, FIXED, Signals(unreadable="x", unroutable="y"), NOW) == RetryAt(NOW, "cancelled", counts=False)


def asked(hours: float, **fields: Any) -> Message:
    return message(faults=(fault("throttled", retry_after_s=hours * 3600, at_ms=NOW),), **fields)


def test_more_than_the_clamp_was_asked_so_it_waits_on_free_of_charge() -> None:
    six_hours = 6 * 3_600_000
    assert admit(asked(15), FIXED, Signals(), NOW + six_hours) == RetryAt(NOW + 2 * six_hours, "asked", counts=False)
    assert admit(asked(15), FIXED, Signals(), NOW + 2 * six_hours) == RetryAt(
        NOW + 15 * 3_600_000, "asked", counts=False
    )
    assert admit(asked(15), FIXED, Signals(), NOW + 15 * 3_600_000) is RUN
    assert (
        admit(asked(6), FIXED, Signals(), NOW + 1) is RUN
    )  # within the clamp: the retry's own due time has seen to it
    assert admit(asked(15, life_ms=NOW + 5), FIXED, Signals(), NOW + 5) is RUN  # a redrive begins anew


DECIDED = [
    ("retried at its backoff", {}, fault(), RetryAt(NOW + 10_000, "default")),
    ("the last attempt", {"attempt": 3}, fault(), DeadLetter("exhausted", "failed 3 of 3 allowed attempts")),
    (
        "a redrive allows one",
        {"attempts_allowed": 1},
        fault(),
        DeadLetter("exhausted", "failed 1 of 1 allowed attempts"),
    ),
    ("a redrive allows five", {"attempt": 4, "attempts_allowed": 5}, fault(), RetryAt(NOW + 10_000, "default")),
    ("interrupted is free", {"attempt": 3}, fault("interrupted"), RetryAt(NOW, "interrupted", counts=False)),
    (
        "snoozed is free",
        {"attempt": 3},
        fault(steer="snooze", retry_after_s=1.5),
        RetryAt(NOW + 1500, "snooze", counts=False),
    ),
    ("rejected", {}, fault("permanent", steer="reject", text="no"), DeadLetter("rejected", "no")),
    ("quarantined", {}, fault(steer="quarantine", text="bad"), Quarantine("bad", reason="rejected")),
    ("asked less than the backoff", {}, fault("throttled", retry_after_s=2.0), RetryAt(NOW + 10_000, "throttled")),
]


@pytest.mark.parametrize(("fields", "seen", "expected"), [row[1:] for row in DECIDED], ids=[row[0] for row in DECIDED])
def test_decide(fields: dict[str, Any], seen: Fault, expected: object) -> None:
    assert decide(message(**fields), seen, FIXED, NOW) == expected


@pytest.mark.parametrize("kind", ["permanent", "unreadable", "unroutable"])
def test_permanent_kinds_die_at_once(kind: str) -> None:
    verdict = decide(message(), fault(kind), FIXED, NOW)
    assert isinstance(verdict, DeadLetter)
    assert verdict.reason == "permanent"


TRYING = Policy(retry=Retry(max_attempts=99, max_elapsed="1m", backoff=Backoff.fixed("10s")))


def failed(tried_ms: int, ago_ms: int = 1000, delay_ms: int | None = 10_000, **parts: Any) -> Fault:
    """A fault as it was kept."""
    return fault(at_ms=NOW - ago_ms, delay_ms=delay_ms, tried_ms=tried_ms, **parts)


ELAPSED = [  # life, faults before, this one: whether its next attempt, 10 s later, starts within a minute of trying
    ("a life of a day that was claimed now", {"attempt": 1}, (), {}, True),
    ("a first run that took all but the delay", {"attempt": 1}, (), {"ran_ms": 50_000}, True),
    ("a first run that took more", {"attempt": 1}, (), {"ran_ms": 50_001}, False),
    ("tried before, the delay and this run", {}, (failed(20_000),), {"ran_ms": 20_000}, True),
    ("a millisecond more of them", {}, (failed(20_001),), {"ran_ms": 20_000}, False),
    ("only the last sum counts", {}, (failed(39_000, 9000), failed(39_999)), {}, True),
    ("a wait for a newer worker", {}, (failed(39_999, 9000), failed(0, 8000, kind=Kind.UNROUTABLE)), {}, True),
    ("a worker that died", {}, (failed(39_999, 9000), failed(0, 8000, None, crash=Crash())), {}, True),
    ("an earlier life", {"life_ms": NOW - 500}, (failed(59_000),), {}, True),
    ("no history: as if all had failed like this one", {"attempt": 5, "fence": 5}, (), {"ran_ms": 2000}, True),
    ("and a millisecond more", {"attempt": 5, "fence": 5}, (), {"ran_ms": 2001}, False),
    ("but no longer than it is there", {"attempt": 9, "fence": 9, "life_ms": NOW - 50_000}, (), {}, True),
    ("which is too long", {"attempt": 9, "fence": 9, "life_ms": NOW - 50_001}, (), {}, False),
    ("unless it was held", {"attempt": 9, "fence": 9, "life_ms": NOW - 50_001, "held_ms": 1}, (), {}, True),
]


@pytest.mark.parametrize(("fields", "before", "now", "goes_on"), [r[1:] for r in ELAPSED], ids=[r[0] for r in ELAPSED])
def test_elapsed_counts_runs_and_delays_up_to_the_start_of_the_next_attempt(
    fields: dict[str, Any], before: tuple[Fault, ...], now: dict[str, Any], goes_on: bool
) -> None:
    tried = message(faults=before, **{"life_ms": NOW - 86_400_000, "attempt": 1 + len(before), **fields})
    decision = decide(tried, fault(**now), TRYING, NOW)
    assert isinstance(decision, RetryAt) if goes_on else getattr(decision, "reason", "") == "elapsed"


def test_a_wait_that_was_asked_for_counts_whole_where_it_is_waited_for_in_pieces() -> None:
    policy = Policy(retry=Retry(max_attempts=99, max_elapsed="10h", backoff=Backoff.fixed("10s")))
    asked = failed(0, 9 * HOUR, 6 * HOUR, retry_after_s=9 * 3600.0)
    waited = message(attempt=2, life_ms=NOW - 86_400_000, faults=(asked,))
    assert isinstance(decide(waited, fault(ran_ms=HOUR - 10_000), policy, NOW), RetryAt)
    assert isinstance(decide(waited, fault(ran_ms=HOUR - 9_999), policy, NOW), DeadLetter)


def test_without_a_history_the_delays_are_worked_out_again_as_they_were_drawn() -> None:
    policy = Policy(retry=Retry(max_attempts=99, max_elapsed="1d", backoff=Backoff("2s", 3, "1m", "decorrelated")))
    at_ms, previous = NOW, ()
    for n in range(1, 9):
        claimed = message(attempt=n, fence=n, faults=previous, life_ms=NOW - HOUR)
        decision = decide(claimed, fault(), policy, at_ms)
        assert isinstance(decision, RetryAt)
        bare = replace(claimed, faults=(), life_ms=NOW - HOUR)
        assert tried_ms(bare, fault(), policy.retry, at_ms) == at_ms - NOW
        previous, at_ms = (with_fate(fault(), claimed, decision, at_ms, "w"),), decision.at_ms


def test_a_kept_fault_sums_up_what_was_tried_also_when_the_middle_of_a_history_is_lost() -> None:
    waiting, seen = message(life_ms=NOW - 3_600_000), fault(ran_ms=100)
    for n in range(60):
        sum_ms = tried_ms(waiting, seen, TRYING.retry, NOW + n)
        assert sum_ms == 100 + n * 600
        kept = with_fate(replace(seen, tried_ms=sum_ms), waiting, RetryAt(NOW + n + 500), NOW + n, "w")
        faults = (*waiting.faults, kept)
        waiting = replace(waiting, attempt=n + 2, faults=faults if len(faults) <= 20 else (*faults[:10], *faults[-10:]))
    assert waiting.faults[-1].tried_ms == 100 + 59 * 600


def test_what_was_asked_is_a_floor_spread_over_a_fifth_more() -> None:
    delays = {decide(message(fence=n), fault("throttled", retry_after_s=100.0), FIXED, NOW) for n in range(200)}
    waits = sorted(d.at_ms - NOW for d in delays if isinstance(d, RetryAt))
    assert 100_000 <= waits[0] < 103_000
    assert 117_000 < waits[-1] <= 120_001
    assert len(waits) > 190


def test_what_was_asked_is_clamped() -> None:
    policy = Policy(retry=Retry(max_elapsed=None, max_retry_after="1h"))
    verdict = decide(message(), fault("throttled", retry_after_s=1e6), policy, NOW)
    assert isinstance(verdict, RetryAt)
    assert 3_600_000 <= verdict.at_ms - NOW <= 1.2 * 3_600_000 + 1


def test_override_has_the_last_word_also_on_permanent_faults() -> None:
    def again(m: Message, f: Fault, delay_s: float) -> RetryAt | None:
        return RetryAt(NOW + 7, "mine") if f.kind is Kind.PERMANENT else None

    policy = Policy(retry=Retry(max_attempts=1, override=again))
    assert decide(message(), fault("permanent"), policy, NOW) == RetryAt(NOW + 7, "mine")
    assert isinstance(decide(message(), fault(), policy, NOW), DeadLetter)


@given(
    kind=st.sampled_from(list(Kind)),
    attempt=st.integers(1, 10**6),
    fence=st.integers(1, 10**9),
    asked_s=st.none() | st.floats(0, 1e9),
    base=st.floats(0, 86_400),
    factor=st.floats(1, 100),
    jitter=st.sampled_from(["none", "additive", "symmetric", "full", "equal", "decorrelated"]),
)
def test_every_retry_lies_ahead_and_every_death_has_a_reason(
    kind: Kind, attempt: int, fence: int, asked_s: float | None, base: float, factor: float, jitter: Any
) -> None:
    policy = Policy(retry=Retry(max_attempts=10**6, max_elapsed=None, backoff=Backoff(base, factor, "1d", jitter)))
    verdict = decide(message(attempt=attempt, fence=fence), Fault(kind, retry_after_s=asked_s), policy, NOW)
    if isinstance(verdict, RetryAt):
        assert verdict.at_ms >= NOW
        if verdict.counts and asked_s is not None:
            assert verdict.at_ms - NOW >= min(asked_s, 6 * 3600) * 1000 - 1
    else:
        assert isinstance(verdict, DeadLetter)
        assert verdict.reason in {"exhausted", "permanent", "elapsed"}


def test_the_same_claim_is_always_decided_alike_and_the_next_one_otherwise() -> None:
    policy = Policy()
    one, again, other = (decide(message(fence=n, attempt=5), fault(), policy, NOW) for n in (1, 1, 2))
    assert one == again != other


def test_a_kept_fault_says_when_by_whom_and_what_followed() -> None:
    kept = with_fate(classify(ValueError("x")), message(attempt=2), RetryAt(NOW + 9, "default"), NOW, "w")
    assert (kept.at_ms, kept.attempt, kept.worker, kept.delay_ms) == (NOW, 2, "w", 9)
    assert with_fate(kept, message(), DeadLetter("exhausted"), NOW, "w").delay_ms is None


@pytest.mark.parametrize(
    "free",
    [
        RetryAt(NOW + 9, "crashed", crashed=True),
        RetryAt(NOW + 9, "parked", counts=False),
        DeadLetter("unroutable", counts=False),
        Quarantine("poison", counts=False),
        Quarantine("poison", crashed=True),
    ],
)
def test_a_kept_fault_and_its_message_say_the_same_attempt(free: Decision) -> None:
    kept = with_fate(KILLED, message(attempt=2), free, NOW, "w")
    assert kept.attempt == decided(message(attempt=2), free, kept, NOW).attempt == 1


@pytest.mark.parametrize("asked, waited_ms", [(0, 100), ("1ms", 100), ("100ms", 100), ("101ms", 101), ("5s", 5000)])
def test_a_snooze_lasts_a_tenth_of_a_second_at_least(asked: float | str, waited_ms: int) -> None:
    decision = decide(message(), classify(Snooze(asked)), Policy(), NOW)
    assert decision == RetryAt(NOW + waited_ms, "snooze", counts=False)


@pytest.mark.parametrize("asked_s", [1e16, 1e300])
def test_a_wait_without_end_stays_a_time_that_stores_can_keep(asked_s: float) -> None:
    snoozed = classify(Snooze(asked_s))
    decision = decide(message(), snoozed, Policy(), NOW)
    assert isinstance(decision, RetryAt) and NOW < decision.at_ms <= 2**62


@pytest.mark.parametrize("end", [DeadLetter("x" * 300, "y" * 300), Quarantine("y" * 300, reason="x" * 300)])
def test_a_long_reason_of_an_override_is_cut_and_its_decision_holds(end: DeadLetter | Quarantine) -> None:
    policy = Policy(Retry(override=lambda message, fault, delay_s: end))
    decision = decide(message(), classify(ValueError("x")), policy, NOW)
    assert decision == replace(end, reason="x" * REASON_MAX) and len(decision.why) == 300


@pytest.mark.parametrize(
    "wrong",
    [5, RetryAt, RetryAt(1.5), RetryAt(2**70), RetryAt(-1), DeadLetter(7), DeadLetter("\ud800"), Quarantine(None)],
)
def test_an_override_that_returns_no_decision_a_store_could_keep_is_told_so(wrong: Any) -> None:
    policy = Policy(Retry(override=lambda message, fault, delay_s: wrong))
    with pytest.raises((TypeError, ValueError)):  # and the worker goes by the default policy then
        decide(message(), classify(ValueError("x")), policy, NOW)
