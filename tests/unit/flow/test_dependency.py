"""What one dependency answers: the order of its controls, and what a message keeps of what it was granted."""

from __future__ import annotations

import math

import pytest

from redrive import Aimd, Breaker, Budget, Rate
from redrive.fault import Fault, Kind
from redrive.flow import calls, permits
from redrive.flow import dependency as flow
from redrive.flow.dependency import Dependency, DependencyState, PendingEvidence
from redrive.message import Deferral, Message

NOW = 1_700_000_000_000
BREAKER = Breaker(min_calls=4, open_for="10s", max_open="10s", probes=2)


def message(id: str = "m", attempt: int = 1, deferral: Deferral | None = None, body: bytes = b"{}") -> Message:
    return Message(id, "call", "q", body, id, attempt=attempt, fence=attempt, deferral=deferral)


def opened(d: Dependency) -> DependencyState:
    state = calls.apply(DependencyState(), d, PendingEvidence(failure=4), NOW)
    assert state.breaker.status == "open"
    return state


def test_without_controls_all_go() -> None:
    state, answers = permits.ask(DependencyState(), Dependency("shop"), [message(), message(attempt=9)], NOW)
    assert answers.refusals == [None, None]
    assert permits.allowance(state, Dependency("shop"), NOW).count == math.inf


def test_a_quiet_breaker_and_budget_change_nothing() -> None:
    state = DependencyState()
    after, answers = permits.ask(
        state, Dependency("shop", Budget(), BREAKER), [message(str(n)) for n in range(50)], NOW
    )
    assert after is state and answers.refusals == [None] * 50


def test_an_open_breaker_takes_no_token_and_no_slot() -> None:
    d = Dependency("shop", Budget(), BREAKER, Rate("10/s"))
    state = opened(d)
    after, answers = permits.ask(state, d, [message(attempt=2)], NOW)
    (refusal,) = answers.refusals
    assert refusal is not None and refusal.deferral.why == "breaker" and refusal.at_ms >= NOW + 8000
    assert (after.budget, after.tat_ms) == (state.budget, state.tat_ms)
    assert permits.allowance(state, d, NOW) == permits.ClaimAllowance(0, state.breaker.until_ms)


def test_probes_go_by_their_owner_and_the_others_wait() -> None:
    d = Dependency("shop", None, BREAKER)
    state, later = opened(d), NOW + 13_000
    state, answers = permits.ask(state, d, [message(str(n)) for n in range(3)], later)
    assert [refusal is None for refusal in answers.refusals] == [True, True, False]
    assert answers.probes == {"0 1", "1 1"}
    state = calls.apply(state, d, PendingEvidence(probes={"0 1": "success", "1 1": "ignored"}), later)
    assert state.breaker.status == "closed"


def test_a_probe_that_never_began_is_given_back() -> None:
    d = Dependency("shop", None, BREAKER)
    later = NOW + 13_000
    state, _ = permits.ask(opened(d), d, [message("0"), message("1")], later)
    state = calls.apply(state, d, PendingEvidence(probes={"0 1": ""}), later)
    state, answers = permits.ask(state, d, [message("2"), message("3")], later)
    assert state.breaker.status == "half_open" and answers.probes == {"2 1"}


def test_what_was_granted_for_a_time_is_good_then_and_not_long_after() -> None:
    d = Dependency("shop", rate=Rate("1/s"), per="group")
    state, answers = permits.ask(DependencyState(), d, [message("0"), message("1")], NOW)
    refusal = answers.refusals[1]
    assert refusal is not None and (refusal.at_ms, refusal.deferral.why) == (NOW + 1000, "limit")
    back = message("1", deferral=refusal.deferral)
    on_time, answers = permits.ask(state, d, [back], refusal.at_ms)
    assert answers.refusals == [None] and on_time is state
    late_ms = refusal.at_ms + permits.SLOT_LATE_MS + 1
    after, answers = permits.ask(state, d, [back], late_ms)
    assert answers.refusals == [None] and after.tat_ms > state.tat_ms  # it took another slot


def test_what_was_granted_for_a_time_is_no_good_long_before() -> None:
    """A person may make a message due at once: a reserved slot does not then go above the rate."""
    d = Dependency("shop", rate=Rate("1/s"), per="group")
    state, answers = permits.ask(DependencyState(), d, [message(str(n)) for n in range(9)], NOW)
    last = answers.refusals[-1]
    assert last is not None and last.at_ms == NOW + 8000
    after, answers = permits.ask(state, d, [message("8", deferral=last.deferral)], NOW + 1000)
    (refusal,) = answers.refusals
    assert refusal is not None and refusal.at_ms == NOW + 9000 and after.tat_ms > state.tat_ms


def test_as_many_may_be_claimed_as_there_are_slots_open() -> None:
    d = Dependency("shop", None, BREAKER, Rate("10/s", burst=3))
    assert permits.allowance(DependencyState(), d, NOW).count == 3
    state, taken = permits.take(DependencyState(), d, 9, NOW)
    assert taken == 3 and permits.allowance(state, d, NOW) == permits.ClaimAllowance(0, NOW + 100)
    assert permits.take(state, d, 1, NOW) == (state, 0)
    _, answers = permits.ask(state, d, [message(str(n)) for n in range(4)], NOW, tokens=3)
    assert answers.used == 3 and [r and r.at_ms - NOW for r in answers.refusals] == [None, None, None, 100]
    back = calls.apply(state, d, PendingEvidence(unused=2), NOW)
    assert permits.allowance(back, d, NOW).count == 2


def test_who_was_claimed_without_a_slot_closes_none_to_those_who_have_one() -> None:
    d, later = Dependency("shop", None, BREAKER, Rate("10/s", burst=3)), NOW + 13_000
    state, answers = permits.ask(DependencyState(), d, [message(str(n)) for n in range(9)], NOW)
    assert [r and r.at_ms - NOW for r in answers.refusals] == [None, None, None, 100, 200, 300, 400, 500, 600]
    assert permits.allowance(state, d, NOW + 200).count == 2  # at each of these times one may be claimed
    d = Dependency("shop", None, BREAKER)
    state, _ = permits.ask(opened(d), d, [message("0"), message("1")], later)
    state = calls.apply(state, d, PendingEvidence(probes={"0 1": "success", "1 1": "success"}), later)
    state, answers = permits.ask(state, d, [message(str(n)) for n in range(100)], later + 1000)
    times = [r.at_ms for r in answers.refusals if r is not None]
    assert times == sorted(times) and times[-1] > later + 10_000
    assert permits.allowance(state, d, later + 2000).count >= 1


def test_a_ramp_gives_its_slots_as_they_open_and_goes_on_while_somebody_waits() -> None:
    d, later = Dependency("shop", None, BREAKER), NOW + 13_000
    state, _ = permits.ask(opened(d), d, [message("0"), message("1")], later)
    state = calls.apply(state, d, PendingEvidence(probes={"0 1": "success", "1 1": "success"}), later)
    given = 0
    for at_ms in range(later, later + 30_000, 50):
        state, taken = permits.take(state, d, 100, at_ms)
        _, answers = permits.ask(state, d, [message(str(n)) for n in range(taken)], at_ms, tokens=taken)
        assert answers.refusals == [None] * taken and answers.used == taken
        state = calls.apply(state, d, PendingEvidence(waited=bool(taken)), at_ms)
        given += taken
    assert 195 <= given <= 205  # 2·10/ln 2·(2^3 − 1) = 202
    assert permits.calm(permits.take(state, d, 1, later + 45_000)[0], d, later + 45_000)  # nobody has waited for long


def test_a_retry_s_token_is_good_for_longer_than_a_slot() -> None:
    d = Dependency("shop", Budget(ratio=0, life="1s", floor=1))
    state, _ = permits.ask(DependencyState(), d, [message("0", attempt=2)], NOW)
    state, answers = permits.ask(state, d, [message("1", attempt=2)], NOW)
    (refusal,) = answers.refusals
    assert refusal is not None
    back, late_ms = message("1", 2, refusal.deferral), refusal.at_ms + permits.LATE_MS
    assert permits.ask(state, d, [back], late_ms)[0] is state
    assert permits.ask(state, d, [back], late_ms + 1)[0] is not state


def test_a_denied_retry_keeps_its_token_while_a_slot_holds_it_back() -> None:
    d = Dependency("shop", Budget(ratio=0, life="1s", floor=1), None, Rate("1/s"), per="group")
    state, _ = permits.ask(DependencyState(), d, [message("0", attempt=2)], NOW)  # takes the reserve and the slot
    state, answers = permits.ask(state, d, [message("1", attempt=2)], NOW)
    first = answers.refusals[0]
    assert first is not None and first.deferral.passes == ("budget shop",)
    spent = state.budget
    state = permits.ask(state, d, [message("2")], first.at_ms)[0]  # another one takes the slot
    state, answers = permits.ask(state, d, [message("1", attempt=2, deferral=first.deferral)], first.at_ms)
    second = answers.refusals[0]
    assert second is not None and second.deferral.passes == ("budget shop", "limit shop")
    assert state.budget is spent
    assert permits.ask(state, d, [message("1", 2, second.deferral)], second.at_ms)[1].refusals == [None]


def test_a_cool_down_lets_slots_go_and_keeps_tokens() -> None:
    d = Dependency("shop", Budget(), None, Rate("10/s"))
    state = calls.apply(DependencyState(), d, PendingEvidence(overloads=1, asked_s=60.0), NOW)
    held = Deferral("limit", "shop", ("budget shop", "limit shop"), NOW)
    _, answers = permits.ask(state, d, [message("1", 2, held)], NOW)
    (refusal,) = answers.refusals
    assert refusal is not None and refusal.deferral.why == "cool-down"
    assert refusal.deferral.passes == ("budget shop",)
    assert NOW + 60_000 <= refusal.at_ms <= NOW + 72_000


def test_who_finds_no_place_of_its_concurrency_comes_back_when_one_may_be_free() -> None:
    d = Dependency("shop", concurrency=Aimd(start=2))
    _, answers = permits.ask(DependencyState(), d, [message(str(n)) for n in range(6)], NOW, free=2, pace_ms=100)
    assert [r and r.at_ms - NOW for r in answers.refusals] == [None, None, 100, 100, 200, 200]


def test_only_what_the_dependency_did_is_counted_against_it() -> None:
    d = Dependency("shop", breaker=Breaker(slow_call="1s", slow_rate=0.5))
    said = {
        Kind.TRANSIENT: ("failure", 0.0),
        Kind.TIMEOUT: ("failure", 0.0),
        Kind.CRASHED: ("failure", 0.0),
        Kind.DEFAULT: ("failure", 0.0),
        Kind.PERMANENT: ("ignored", 0.0),
        Kind.THROTTLED: ("throttled", 0.0),
        Kind.QUOTA: ("throttled", 0.0),
        Kind.INTERRUPTED: ("", 0.0),
    }
    assert {kind: calls.seen_of(Fault(kind), 0.1, d) for kind in said} == said
    assert calls.seen_of(Fault(Kind.THROTTLED, retry_after_s=7.0, steer="retry_after"), 0.1, d) == ("throttled", 7.0)
    assert calls.seen_of(Fault(Kind.TRANSIENT, retry_after_s=7.0, steer="snooze"), 0.1, d) == ("ignored", 0.0)
    assert calls.seen_of(None, 2.0, d) == ("slow", 0.0)
    assert calls.seen_of(Fault(Kind.TIMEOUT), 2.0, d) == ("slow_failure", 0.0)


def test_a_key_is_read_from_the_group_or_the_arguments() -> None:
    by_argument = Dependency("shop", per="args.shop.id")
    assert flow.key_of(by_argument, message(body=b'{"shop": {"id": 7}}')) == "7"
    for body in (b"{}", b"[]", b"\xff", b'{"shop": 3}'):
        assert flow.key_of(by_argument, message(body=body)) == ""
    grouped = Message("m", "call", "q", b"", "m", group="eu")
    assert flow.key_of(Dependency("shop", per="group"), grouped) == "eu"
    assert flow.cell_of("shop", "7") == "flow/shop/7" and flow.cell_of("shop", "") == "flow/shop"


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"shop": ' * 100_000, b"1" * 5000])
def test_a_body_that_cannot_be_read_has_no_key(body: bytes) -> None:
    assert flow.key_of(Dependency("shop", per="args.shop"), message(body=body)) == ""


@pytest.mark.parametrize("key", ["a\0b", "\ud800", "k" * 100_000, "a\nb"])
def test_the_cell_of_an_odd_key_has_a_name_that_every_store_takes(key: str) -> None:
    cell = flow.cell_of("shop", key)
    assert cell.startswith("flow/shop/#") and len(cell) < 100 and cell.isascii() and cell.isprintable()


def test_a_window_kept_under_another_rule_is_begun_anew() -> None:
    short, long = Breaker(window="1s", min_calls=4), Breaker(window="10s", min_calls=4)
    state = calls.apply(DependencyState(), Dependency("shop", breaker=short), PendingEvidence(success=1000), NOW)
    d = Dependency("shop", breaker=long)
    state = calls.apply(state, d, PendingEvidence(success=1), NOW + 60_000)
    state = calls.apply(state, d, PendingEvidence(failure=9), NOW + 61_000)
    assert state.breaker.status == "open"


def test_a_state_survives_being_written_and_one_of_another_version_is_begun_anew() -> None:
    from redrive.message import Cell

    d = Dependency("shop", Budget(), BREAKER, Rate("10/s"), Aimd())
    state = calls.apply(opened(d), d, PendingEvidence(firsts=3, asked_s=1.0), NOW, "host/worker-0")
    assert flow.decode(Cell(1, flow.encode(state))) == state
    assert flow.decode(Cell(1, b"nonsense")) == DependencyState() == flow.decode(None)


def test_a_clock_that_was_set_back_holds_nothing_for_long() -> None:
    d, before = Dependency("shop", None, BREAKER, Rate("10/s")), NOW - 3_600_000
    state, _ = permits.take(DependencyState(), d, 1, NOW)
    assert permits.allowance(state, d, before + 200).count == 1
    assert permits.allowance(opened(d), d, before).count == BREAKER.probes


def test_a_rate_that_was_raised_does_not_wait_for_the_slots_of_the_old_one() -> None:
    state, _ = permits.take(DependencyState(), Dependency("shop", rate=Rate("1/h")), 1, NOW)
    assert permits.allowance(state, Dependency("shop", rate=Rate("10/s")), NOW + 200).count == 1


def test_a_worker_whose_runs_are_long_is_heard_again_in_time() -> None:
    d = Dependency("shop", concurrency=Aimd(start=4))
    state = calls.apply(DependencyState(), d, PendingEvidence(here=True), NOW, "one")
    state = calls.apply(state, d, PendingEvidence(here=True), NOW, "two")
    assert (flow.share(state, d, "one"), flow.share(state, d, "three")) == (2, 1)
    assert not flow.unheard(state, "one", NOW + 2000) and flow.unheard(state, "one", NOW + 3000)
    assert flow.unheard(state, "three", NOW) and PendingEvidence(here=True)
