from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from statistics import fmean
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigError
from redrive.fault import Fault, Kind, classify
from redrive.policy import (
    CENTURY_S,
    KINDS,
    YEAR_S,
    Backoff,
    Jitter,
    Retry,
    draw,
    presets,
    preview,
)

JITTERS: tuple[Jitter, ...] = get_args(Jitter)
HUGE_N = (1023, 1024, 1025, 10**6, 10**9, 10**400)


class Flaky(ConnectionError):
    """A class of this module, under three builtin ones."""


FLAKY = f"{__name__}.Flaky"
FLAKY_LINE = (FLAKY, "ConnectionError", "OSError", "Exception", "BaseException")


def fault(kind: str = "default", *errors: str) -> Fault:
    return Fault(kind=Kind(kind), error=errors[0] if errors else "", errors=errors)


def never_called(n: int, fault: Fault | None) -> float:
    raise AssertionError("not called")


# Closed forms


@pytest.mark.parametrize(
    ("backoff", "terms"),
    [
        (Backoff(jitter="none"), [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]),
        (Backoff(base="2s", factor=3, cap="60s", jitter="none"), [2, 6, 18, 54, 60, 60]),
        (Backoff(base="500ms", factor=1.5, cap="1s", jitter="none"), [0.5, 0.75, 1, 1]),
        (Backoff(base="2s", cap="2s", jitter="none"), [2, 2]),
        (Backoff(base=0, jitter="none"), [0, 0, 0]),
        (Backoff.fixed("60s"), [60, 60, 60]),
        (Backoff.fixed("800d"), [800 * 86_400] * 3),
        (Backoff.linear("5s", step="5s"), [5, 10, 15, 20]),
        (Backoff.linear("5s"), [5, 10, 15, 20]),
        (Backoff.linear("5s", step="2s", cap="8s"), [5, 7, 8, 8]),
        (Backoff.linear("5s", step=0), [5, 5, 5]),
        (Backoff.custom(lambda n, fault: n * n), [0, 1, 4, 9]),
        (Backoff.custom(lambda n, fault: n * n, cap="5s"), [0, 1, 4, 5, 5]),
    ],
)
def test_each_kind_of_backoff_follows_its_closed_form(backoff: Backoff, terms: list[float]) -> None:
    for u in (0.0, 0.3, 0.999):
        assert [backoff.seconds(n, u) for n in range(len(terms))] == terms


CLOSED_FORMS: dict[str, Callable[[float, float, float], float]] = {
    "none": lambda d, u, share: d,
    "additive": lambda d, u, share: d + u * share * d,
    "symmetric": lambda d, u, share: d - share * d + u * 2 * share * d,
    "full": lambda d, u, share: u * d,
    "equal": lambda d, u, share: d / 2 + u * d / 2,
}


@pytest.mark.parametrize("jitter", CLOSED_FORMS)
@pytest.mark.parametrize("make", [
    lambda **how: (Backoff("2s", 3, "60s", **how), lambda n: min(60, 2 * 3**n)),
    lambda **how: (Backoff.fixed("7s", **how), lambda n: 7),
    lambda **how: (Backoff.linear("5s", step="3s", cap="30s", **how), lambda n: min(30, 5 + 3 * n)),
    lambda **how: (Backoff.custom(lambda n, fault: 1.5**n, cap="9s", **how), lambda n: min(9, 1.5**n)),
], ids=["exponential", "fixed", "linear", "custom"])  # fmt: skip
def test_each_jitter_follows_its_closed_form_on_each_kind(jitter: str, make: Callable[..., Any]) -> None:
    backoff, term = make(jitter=jitter, share=0.25)
    for n in (0, 1, 2, 3, 4, 5, 20):
        for u in (0.0, 0.1, 0.5, 0.999999):
            assert backoff.seconds(n, u) == pytest.approx(CLOSED_FORMS[jitter](term(n), u, 0.25), rel=1e-12)
        low, high = CLOSED_FORMS[jitter](term(n), 0, 0.25), CLOSED_FORMS[jitter](term(n), 1, 0.25)
        assert backoff.range(n) == pytest.approx((low, high), rel=1e-12)


def test_decorrelated_jitter_draws_between_base_and_three_times_the_last_delay() -> None:
    backoff = Backoff(base="2s", cap="60s", jitter="decorrelated")
    assert backoff.seconds(0, 0.5) == 4  # U(2, 6)
    assert backoff.seconds(1, 0.5, previous=4) == 7  # U(2, 12)
    assert backoff.seconds(9, 0.5, previous=20) == 31  # U(2, 60): 3 * 20 is just the cap
    assert backoff.seconds(9, 0.5, previous=50) == 31  # U(2, 60)
    assert backoff.seconds(9, 0.5, previous=0) == 2  # never below the base
    assert [backoff.range(n) for n in range(5)] == [(2, 6), (2, 18), (2, 54), (2, 60), (2, 60)]


@pytest.mark.parametrize("backoff", [
    Backoff.fixed("2s", jitter="decorrelated"),
    Backoff.linear("2s", step="9s", jitter="decorrelated"),
    Backoff.custom(lambda n, fault: 2, jitter="decorrelated"),
], ids=["fixed", "linear", "custom"])  # fmt: skip
def test_decorrelated_jitter_works_on_every_kind(backoff: Backoff) -> None:
    assert backoff.seconds(0, 0.5) == 4
    assert backoff.seconds(3, 0.5, previous=4) == 7


@pytest.mark.parametrize("previous", [math.nan, math.inf, -math.inf, -5.0, 1e308])
def test_a_senseless_previous_delay_leaves_decorrelated_jitter_within_its_bounds(previous: float) -> None:
    assert 2 <= Backoff(base="2s", cap="60s", jitter="decorrelated").seconds(3, 0.9, previous=previous) <= 60


# Bounds


@pytest.mark.parametrize("jitter", ["additive", "symmetric", "full", "equal", "decorrelated"])
def test_cap_is_applied_before_jitter_so_capped_retries_stay_spread(jitter: Jitter) -> None:
    backoff = Backoff(base="2s", factor=3, cap="60s", jitter=jitter, share=0.1)
    for n in (4, 5, 50, 10**6):
        delays = [backoff.seconds(n, i / 100, previous=60.0) for i in range(100)]
        assert len(set(delays)) == 100
        assert max(delays) - min(delays) >= 0.98 * {"additive": 6, "symmetric": 12, "full": 60, "equal": 30}.get(
            jitter, 58
        )


@pytest.mark.parametrize("jitter", JITTERS)
@pytest.mark.parametrize("base", [0, 5e-324, 1e-9, 2, 1e9, 1e300, sys.float_info.max])
@pytest.mark.parametrize("cap", [0, 1, 3600, sys.float_info.max, None])
def test_no_attempt_number_and_no_base_overflows(jitter: Jitter, base: float, cap: float | None) -> None:
    base = min(base, YEAR_S if cap is None else cap)  # no base is above its cap
    for backoff in (
        Backoff(base, 2, cap, jitter, 1.0),
        Backoff(base, 1e300, cap, jitter, 1.0),
        Backoff(base, 1 + 1e-15, cap, jitter, 1.0),
        Backoff.fixed(base, jitter=jitter, share=1.0),
        Backoff.linear(base, step=base, cap=cap, jitter=jitter, share=1.0),
    ):
        for n in (0, *HUGE_N):
            for u in (0.0, 0.5, 1 - 2**-53):
                for previous in (None, sys.float_info.max):
                    assert 0 <= backoff.seconds(n, u, previous) <= 2 * CENTURY_S
            low, high = backoff.range(n)
            assert 0 <= low <= high <= 2 * CENTURY_S


def test_the_term_stays_exact_where_the_power_alone_would_overflow() -> None:
    assert Backoff(1e-305, 2, "1h", "none").seconds(1024, 0) == pytest.approx(1e-305 * 2.0**1000 * 2.0**24, rel=1e-9)
    assert Backoff(1e-305, 2, "1h", "none").seconds(1100, 0) == 3600


positive = st.floats(0.001, 1e12)
any_backoff = st.one_of(
    st.builds(
        lambda ends, factor, jitter, share: Backoff(min(ends), factor, max(ends), jitter, share),
        st.tuples(positive, positive), st.floats(1, 100), st.sampled_from(JITTERS), st.floats(0, 1),
    ),
    st.builds(
        lambda delay, jitter, share: Backoff.fixed(delay, jitter=jitter, share=share),
        positive, st.sampled_from(JITTERS), st.floats(0, 1),
    ),
    st.builds(
        lambda ends, step, jitter, share: Backoff.linear(min(ends), step, cap=max(ends), jitter=jitter, share=share),
        st.tuples(positive, positive), positive, st.sampled_from(JITTERS), st.floats(0, 1),
    ),
)  # fmt: skip
draws = st.floats(0, 1, exclude_max=True)
indices = st.integers(0, 200) | st.integers(0, 10**12)


@given(any_backoff, indices, draws)
def test_no_delay_leaves_the_bound_of_its_jitter(backoff: Backoff, n: int, u: float) -> None:
    delay = backoff.seconds(n, u)
    most = {"additive": 1 + backoff.share, "symmetric": 1 + backoff.share}.get(backoff.jitter, 1.0)
    assert 0 <= delay <= backoff.cap * most * (1 + 1e-12)
    low, high = backoff.range(n)
    assert low <= delay <= high


@given(any_backoff, st.integers(0, 2000))
def test_ranges_only_grow(backoff: Backoff, n: int) -> None:
    (low, high), (next_low, next_high) = backoff.range(n), backoff.range(n + 1)
    assert low <= next_low * (1 + 1e-12)
    assert high <= next_high * (1 + 1e-12)


@given(any_backoff, indices, draws, draws)
def test_a_greater_draw_gives_no_lesser_delay(backoff: Backoff, n: int, u: float, v: float) -> None:
    low, high = sorted((u, v))
    assert backoff.seconds(n, low) <= backoff.seconds(n, high)


@given(st.lists(draws, min_size=1, max_size=40))
def test_a_decorrelated_walk_stays_within_its_ranges(walk: list[float]) -> None:
    backoff = Backoff(base="2s", cap="10m", jitter="decorrelated")
    previous = None
    for n, u in enumerate(walk):
        previous = backoff.seconds(n, u, previous)
        low, high = backoff.range(n)
        assert low <= previous <= high


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (-1, 0.0), (-math.inf, 0.0), (math.nan, 9.0), (math.inf, 9.0), (10**400, 9.0), (3, 3.0), (True, 1.0),
        (timedelta(seconds=4), 4.0), (timedelta(seconds=-4), 0.0),
    ],
)  # fmt: skip
def test_a_custom_function_cannot_leave_zero_to_cap(answer: Any, expected: float) -> None:
    assert Backoff.custom(lambda n, fault: answer, cap="9s").seconds(0, 0.5) == expected


def test_without_a_cap_a_custom_delay_ends_at_a_year() -> None:
    assert Backoff.custom(lambda n, fault: math.inf).seconds(0, 0.5) == YEAR_S
    assert Backoff.linear("1d").seconds(10**6, 0.5) == YEAR_S


def test_a_custom_function_gets_the_index_and_the_fault_and_its_errors_pass() -> None:
    seen: list[tuple[int, Fault | None]] = []
    failed = fault("quota")

    def fn(n: int, fault: Fault | None) -> float:
        seen.append((n, fault))
        return 1.0

    Backoff.custom(fn).seconds(4, 0.5, fault=failed)
    assert seen == [(4, failed)]
    with pytest.raises(AssertionError, match="not called"):
        Backoff.custom(never_called).seconds(0, 0.5)
    with pytest.raises(TypeError, match=r"None for retry 3; expected seconds"):
        Backoff.custom(lambda n, fault: None).seconds(3, 0.5)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("u", [-0.1, 1.1, math.nan])
def test_a_draw_outside_its_range_is_refused(u: float) -> None:
    with pytest.raises(ValueError, match="draw"):
        Backoff().seconds(0, u)


def test_a_negative_index_is_refused() -> None:
    with pytest.raises(ValueError, match="first retry is 0"):
        Backoff().seconds(-1, 0.5)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Backoff(base="2"), ValueError, "backoff base '2'"),
        (lambda: Backoff(base=-1), ValueError, "backoff base -1"),
        (lambda: Backoff(cap="1y"), ValueError, "backoff cap '1y'"),
        (lambda: Backoff(cap=True), TypeError, "backoff cap True"),
        (lambda: Backoff(base="5s", cap="2s"), ConfigError, "base 5s is above its cap 2s, so every delay would be the cap"),
        (lambda: Backoff(cap="1s"), ConfigError, "base 2s is above its cap 1s"),
        (lambda: Backoff(base="800d", cap=None), ConfigError, "base 800d is above its cap 365d"),
        (lambda: Backoff.linear("5s", cap="2s"), ConfigError, "base 5s is above its cap 2s"),
        (lambda: Backoff(factor=0.5), ValueError, "backoff factor 0.5"),
        (lambda: Backoff(factor=math.nan), ValueError, "backoff factor nan"),
        (lambda: Backoff(factor=10**400), ValueError, "backoff factor"),
        (lambda: Backoff(factor="2"), TypeError, "backoff factor '2'"),  # type: ignore[arg-type]
        (lambda: Backoff(jitter="ful"), ValueError, "known: none, additive"),  # type: ignore[arg-type]
        (lambda: Backoff(share=1.5), ValueError, "backoff share 1.5"),
        (lambda: Backoff(share=-0.1), ValueError, "backoff share -0.1"),
        (lambda: Backoff.linear("5s", step="x"), ValueError, "backoff step 'x'"),
        (lambda: Backoff.custom(3), TypeError, "fn(n, fault)"),  # type: ignore[arg-type]
        (lambda: Retry(max_attempts=0), ValueError, "max_attempts 0"),
        (lambda: Retry(max_attempts=True), ValueError, "max_attempts True"),
        (lambda: Retry(max_attempts=2.0), ValueError, "max_attempts 2.0"),  # type: ignore[arg-type]
        (lambda: Retry(max_elapsed="soon"), ValueError, "max_elapsed 'soon'"),
        (lambda: Retry(max_retry_after=-1), ValueError, "max_retry_after -1"),
        (lambda: Retry(backoff="2s"), TypeError, "expected a Backoff"),  # type: ignore[arg-type]
        (lambda: Retry(override=3), TypeError, "override 3"),  # type: ignore[arg-type]
        (lambda: Retry(on=["quota"]), TypeError, "expected a mapping"),  # type: ignore[arg-type]
        (lambda: Retry(on={"qouta": Backoff()}), ValueError, "'qouta' is unknown; known kinds: crashed, default"),
        (lambda: Retry(on={"int": Backoff()}), ValueError, "'int' is unknown"),
        (lambda: Retry(on={int: Backoff()}), TypeError, "expected a fault kind"),
        (lambda: Retry(on={404: Backoff()}), TypeError, "on key 404"),
        (lambda: Retry(on={"quota": "60s"}), TypeError, "on['quota'] '60s'"),  # type: ignore[dict-item]
        (lambda: Retry(on={ValueError: Backoff(), "ValueError": Backoff()}), ValueError, "'ValueError' twice"),
        (lambda: Retry(on={"quota": Retry(max_retry_after="1h")}), ValueError, "on['quota'] sets"),
        (lambda: Retry(on={"quota": Retry(override=lambda m, f, d: None)}), ValueError, "on['quota'] sets"),
        (lambda: Retry(never=ValueError), TypeError, "expected a sequence"),  # type: ignore[arg-type]
        (lambda: Retry(only="quota"), TypeError, "expected a sequence"),
        (lambda: Retry(never=(None,)), TypeError, "never key None"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(make: Callable[[], object], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        make()
    assert says in str(caught.value)


# Values


def test_policies_are_frozen_values() -> None:
    first, second = (Retry(on={Flaky: Backoff.fixed("1s")}, never=(ValueError, "quota")) for _ in range(2))
    assert first == second and hash(first) == hash(second) and len({first, second, Retry()}) == 2
    assert first != Retry(on={Flaky: Backoff.fixed("2s")}, never=(ValueError, "quota"))
    with pytest.raises(AttributeError):
        first.max_attempts = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        first.backoff.cap = 3.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        first.on["quota"] = Backoff()  # type: ignore[index]
    with pytest.raises(TypeError):
        presets["mine"] = first  # type: ignore[index]
    assert not hasattr(first, "__dict__") and not hasattr(first.backoff, "__dict__")


def test_answers_remembered_by_a_policy_are_no_part_of_its_value() -> None:
    used, fresh = Retry(on={"quota": Backoff.fixed(1)}), Retry(on={"quota": Backoff.fixed(1)})
    used.choose(fault("quota"))
    assert used == fresh and hash(used) == hash(fresh) and repr(used) == repr(fresh)


def test_policies_survive_pickle_copy_and_replace() -> None:
    retry = Retry(7, None, Backoff("1s"), {Flaky: Retry(2)}, never=("quota",), max_retry_after="1h")
    assert pickle.loads(pickle.dumps(retry)) == retry == copy.deepcopy(retry)
    longer = dataclasses.replace(retry, max_elapsed=7200.0, backoff=dataclasses.replace(retry.backoff, cap=300.0))
    assert (longer.max_elapsed, longer.backoff.cap, longer.max_attempts, longer.on) == (7200, 300, 7, retry.on)
    linear = Backoff.linear("5s", step="3s")
    assert dataclasses.replace(linear, cap=6.0).seconds(9, 0.5) == 6
    assert pickle.loads(pickle.dumps(linear)) == linear


def test_a_policy_does_not_follow_later_changes_of_the_mapping_it_was_given() -> None:
    entries = {"quota": Backoff.fixed(1)}
    retry = Retry(on=entries)
    entries["throttled"] = Backoff.fixed(2)
    assert dict(retry.on) == {"quota": Backoff.fixed(1)}


# Choosing


def test_kinds_are_those_of_faults() -> None:
    assert set(Kind) == KINDS


def test_the_most_special_class_wins_over_wider_ones_and_over_the_kind() -> None:
    wide, special, kind = Backoff.fixed("3s"), Backoff.fixed("2s"), Backoff.fixed("1s")
    failed = fault("transient", *FLAKY_LINE)
    entries: dict[Any, Backoff] = {OSError: wide, Flaky: special, "transient": kind}
    for on in (entries, dict(reversed(entries.items()))):
        assert Retry(on=on).choose(failed).backoff is special
    assert Retry(on={OSError: wide, "transient": kind}).choose(failed).backoff is wide
    assert Retry(on={"transient": kind}).choose(failed).backoff is kind
    assert Retry(on={"quota": kind}).choose(failed).backoff == Backoff()


@pytest.mark.parametrize(
    "key", [Flaky, FLAKY, OSError, "OSError", "builtins.OSError", "IOError", "transient", Kind("transient")]
)
def test_entries_are_found_by_class_qualified_name_and_kind(key: Any) -> None:
    chosen = Retry(on={key: Backoff.fixed("2s")}).choose(fault("transient", *FLAKY_LINE))
    assert chosen.backoff == Backoff.fixed("2s")
    assert chosen.why.startswith("on ")


def test_choosing_agrees_with_what_classify_says_of_a_raised_exception() -> None:
    retry = Retry(on={Flaky: Backoff.fixed("2s"), ConnectionError: Backoff.fixed("3s")})
    assert retry.choose(classify(Flaky("down"))).backoff == Backoff.fixed("2s")
    assert retry.choose(classify(ConnectionResetError("reset"))).backoff == Backoff.fixed("3s")
    assert retry.choose(classify(ValueError("bad"))).backoff == Backoff()


def test_an_entry_is_not_clipped_by_a_smaller_global_cap() -> None:
    retry = Retry(backoff=Backoff(cap="10s", jitter="none"), on={"quota": Backoff("120s", 2, "600s", "none")})
    backoff = retry.choose(fault("quota")).backoff
    assert [backoff.seconds(n, 0) for n in range(4)] == [120, 240, 480, 600]


def test_an_entry_that_is_a_retry_replaces_the_bounds_too() -> None:
    inner = Retry(3, "5m", Backoff.fixed("9s"), on={"quota": Backoff.fixed("8s")}, never=("ZeroDivisionError",))
    retry = Retry(50, "1h", on={Flaky: inner, "quota": Backoff.fixed("7s")})
    chosen = retry.choose(fault("transient", *FLAKY_LINE))
    assert (chosen.backoff, chosen.max_attempts, chosen.max_elapsed_s) == (Backoff.fixed("9s"), 3, 300)
    assert retry.choose(fault("quota", *FLAKY_LINE)).backoff == Backoff.fixed("8s")  # the entry's own entries count
    other = retry.choose(fault("quota"))
    assert (other.backoff, other.max_attempts, other.max_elapsed_s) == (Backoff.fixed("7s"), 50, 3600)
    assert not retry.choose(fault("default", FLAKY, "ZeroDivisionError")).retryable  # so does its never


def test_no_bound_on_elapsed_time_is_kept_as_none() -> None:
    assert Retry(max_elapsed=None).choose(fault()).max_elapsed_s is None


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_only_permanent_unreadable_and_unroutable_faults_are_not_retried(kind: str) -> None:
    chosen = Retry().choose(fault(kind))
    assert chosen.retryable == (kind not in {"permanent", "unreadable", "unroutable"})
    assert chosen.retryable or kind in chosen.why


@pytest.mark.parametrize(
    ("key", "retried"),
    [
        ("permanent", True),
        (Flaky, True),
        (OSError, True),
        (Exception, False),
        (BaseException, False),
        ("default", False),
    ],
)
@pytest.mark.parametrize("entry", [Backoff.fixed("1s"), Retry(2)])
def test_a_permanent_fault_is_retried_only_if_an_entry_names_it(
    key: Any, retried: bool, entry: Backoff | Retry
) -> None:
    assert Retry(on={key: entry}).choose(fault("permanent", *FLAKY_LINE)).retryable is retried


@pytest.mark.parametrize("key", [Flaky, OSError, "transient", Exception])
def test_never_wins_over_everything(key: Any) -> None:
    chosen = Retry(on={Flaky: Retry(9)}, never=(key,), only=(Flaky,)).choose(fault("transient", *FLAKY_LINE))
    assert not chosen.retryable
    assert "never" in chosen.why


def test_never_leaves_what_it_does_not_match() -> None:
    assert Retry(never=(ValueError, "quota")).choose(fault("transient", *FLAKY_LINE)).retryable


def test_with_only_nothing_else_is_retried() -> None:
    retry = Retry(only=(OSError, "throttled"), on={"quota": Backoff.fixed(1)})
    assert retry.choose(fault("default", *FLAKY_LINE)).retryable
    assert retry.choose(fault("throttled", "ValueError")).retryable
    assert not retry.choose(fault("default", "ValueError")).retryable
    assert not retry.choose(fault("quota")).retryable
    assert "OSError, throttled" in retry.choose(fault("quota")).why


def test_a_remembered_answer_is_the_right_one_and_the_memory_is_bounded() -> None:
    retry = Retry(on={f"made.C{i}": Backoff.fixed(i) for i in range(1000)})
    for _ in range(2):
        for i in range(1000):
            assert retry.choose(fault("default", f"made.C{i}")).backoff.base == i
    assert len(retry._cache) <= 256
    assert retry.choose(fault("quota", "made.C1")) == retry.choose(fault("quota", "made.C1"))
    assert retry.choose(fault("permanent", "x.Y")).retryable != retry.choose(fault("quota", "x.Y")).retryable


def test_override_and_retry_after_are_carried() -> None:
    def override(message: object, fault: object, delay_s: float) -> None:
        return None

    assert Retry(override=override).override is override
    assert Retry().override is None
    assert Retry().max_retry_after == Retry().max_retry_after_s == 21_600
    assert Retry(max_retry_after="90s").max_retry_after_s == 90


# Draw


def test_the_draw_is_pinned_for_ever() -> None:
    drawn = [draw("0192f0c1-7b1e-7cc3-98c4-dc0c0c07398f", 0, fence) for fence in (1, 2, 3)]
    assert drawn == [0.46744251814141435, 0.8144643731620202, 0.43105701520672823]


def test_the_draw_is_the_same_in_another_process() -> None:
    code = "from redrive.policy import draw; print(draw('abc', 1, 2))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert outputs == {f"{draw('abc', 1, 2)}\n"}


@pytest.mark.parametrize(
    "sample",
    [
        [draw(f"id-{i}", 0, 1) for i in range(4000)],
        [draw("one-id", 0, fence) for fence in range(4000)],
        [draw("one-id", redrives, 1) for redrives in range(4000)],
    ],
    ids=["over ids", "over fences", "over redrives"],
)
def test_draws_are_uniform(sample: list[float]) -> None:
    assert all(0 <= u < 1 for u in sample)
    tenths = [sum(int(u * 10) == tenth for u in sample) for tenth in range(10)]
    chi_squared = sum((count - 400) ** 2 / 400 for count in tenths)
    assert chi_squared < 33.7  # nine degrees of freedom: one sample in 10,000 lies above, and these are fixed


def test_draws_are_independent_over_ids_and_fences() -> None:
    for pairs in (
        [(draw(f"id-{i}", 0, 1), draw(f"id-{i + 1}", 0, 1)) for i in range(4000)],
        [(draw(f"id-{i}", 0, 1), draw(f"id-{i}", 0, 2)) for i in range(4000)],
        [(draw(f"id-{i}", 0, 1), draw(f"id-{i}", 1, 1)) for i in range(4000)],
    ):
        covariance = fmean(a * b for a, b in pairs) - fmean(a for a, _ in pairs) * fmean(b for _, b in pairs)
        assert abs(covariance * 12) < 4 / math.sqrt(4000)  # four sigma


def test_two_messages_that_collide_once_do_not_collide_for_ever() -> None:
    by_first: dict[int, str] = {}
    for i in range(10_000):
        name = f"id-{i}"
        other = by_first.setdefault(int(draw(name, 0, 1) * 1000), name)
        if other != name:
            assert any(abs(draw(name, 0, fence) - draw(other, 0, fence)) > 0.01 for fence in (2, 3, 4, 5))


def test_no_two_triples_share_a_draw_by_running_into_each_other() -> None:
    triples = [("1", 1, 1), ("", 1, 11), ("1", 11, 1), ("1", 1, 11), ("1/1", 1, 1), ("11", 1, 1)]
    assert len({draw(*triple) for triple in triples}) == len(triples)


def test_a_draw_takes_any_id() -> None:
    assert 0 <= draw("\ud800", 0, 0) < 1


# Defaults, presets, previews


def test_the_default_policy_is_the_one_promised() -> None:
    assert Retry() == Retry(25, "24h", Backoff("2s", 2, "1h", "full"))
    shown = preview(Retry())
    assert (shown.retries, shown.ends) == (24, "attempts")
    assert shown.total_s == pytest.approx(7 * 3600, rel=0.02)
    # 2 s * (2**11 - 1) up to the cap, then 13 h at it; full jitter halves it
    assert shown.total_s == (2 * (2**11 - 1) + 13 * 3600) / 2


def api(base: str, cap: str) -> Backoff:
    return Backoff(base=base, factor=3, cap=cap, jitter="additive", share=0.1)


EXPECTED_PRESETS = {
    "standard_api": Retry(
        max_attempts=50, max_elapsed="500s", backoff=api("2s", "60s"),
        on={
            "throttled": api("60s", "300s"), "quota": api("120s", "600s"),
            "transient": api("2s", "60s"), "default": api("2s", "60s"),
        },
    ),
    "high_volume": Retry(max_attempts=10, backoff=Backoff(factor=2, cap="30s")),
    "critical": Retry(
        max_attempts=5, backoff=Backoff(factor=2, cap="10s", jitter="additive", share=0.2),
        on=dict.fromkeys(
            ("transient", "default"), Backoff(base="1s", factor=2, cap="5s", jitter="additive", share=0.2)
        ),
    ),
    "webhooks": Retry(max_attempts=6, backoff=Backoff(base="5s", factor=2, jitter="symmetric", share=0.1)),
    "emails": Retry(max_attempts=4, backoff=Backoff(base="2s", factor=2, jitter="symmetric", share=0.1)),
    "payments": Retry(max_attempts=3, backoff=Backoff.fixed("60s")),
    "orchestration": Retry(max_attempts=5, backoff=Backoff(base="0.5s", factor=2, jitter="symmetric", share=0.3)),
}  # fmt: skip


def test_there_are_seven_presets_in_order() -> None:
    assert list(presets) == list(EXPECTED_PRESETS)


@pytest.mark.parametrize("name", EXPECTED_PRESETS)
def test_presets_are_exact_field_by_field(name: str) -> None:
    for each in dataclasses.fields(Retry):
        if each.compare:
            assert getattr(presets[name], each.name) == getattr(EXPECTED_PRESETS[name], each.name), each.name


@pytest.mark.parametrize(
    ("name", "kind", "ranges"),
    [
        ("standard_api", "default", [(2, 2.2), (6, 6.6), (18, 19.8), (54, 59.4), (60, 66)]),
        ("standard_api", "timeout", [(2, 2.2), (6, 6.6), (18, 19.8), (54, 59.4), (60, 66)]),
        ("standard_api", "throttled", [(60, 66), (180, 198)]),
        ("standard_api", "quota", [(120, 132), (360, 396)]),
        ("high_volume", "default", [(0, 2), (0, 4), (0, 8), (0, 16), *[(0, 30)] * 5]),
        ("critical", "transient", [(1, 1.2), (2, 2.4), (4, 4.8), (5, 6)]),
        ("critical", "throttled", [(2, 2.4), (4, 4.8), (8, 9.6), (10, 12)]),
        ("webhooks", "default", [(4.5, 5.5), (9, 11), (18, 22), (36, 44), (72, 88)]),
        ("emails", "default", [(1.8, 2.2), (3.6, 4.4), (7.2, 8.8)]),
        ("payments", "default", [(60, 60), (60, 60)]),
        ("orchestration", "default", [(0.35, 0.65), (0.7, 1.3), (1.4, 2.6), (2.8, 5.2)]),
    ],
)
def test_presets_have_these_delays(name: str, kind: str, ranges: list[tuple[float, float]]) -> None:
    steps = preview(presets[name], kind=kind).steps[: len(ranges)]
    assert [low for low, _ in ranges] == pytest.approx([step.low_s for step in steps])
    assert [high for _, high in ranges] == pytest.approx([step.high_s for step in steps])
    if presets[name].max_attempts < 50:
        assert len(preview(presets[name], kind=kind).steps) == presets[name].max_attempts - 1


def test_standard_api_ends_by_500_seconds_after_about_11_retries() -> None:
    shown = preview(presets["standard_api"])
    assert (shown.ends, shown.retries_least, shown.retries, shown.retries_most) == ("elapsed", 10, 10, 11)
    assert shown.total_s <= shown.horizon_s == 500


@pytest.mark.parametrize(("kind", "lows"), [("quota", [120, 360]), ("throttled", [60, 180])])
def test_the_quota_and_throttled_caps_of_standard_api_are_never_reached(kind: str, lows: list[float]) -> None:
    shown = preview(presets["standard_api"], kind=kind)
    assert [step.low_s for step in shown.steps] == lows
    entry = presets["standard_api"].on[kind]
    assert isinstance(entry, Backoff)
    assert entry.range(len(lows))[0] + sum(lows) > 500


def test_a_preview_adds_up_its_delays() -> None:
    shown = preview(Retry(4, backoff=Backoff("8s", 2, "16s", "equal")))
    assert [(step.n, step.low_s, step.mean_s, step.high_s) for step in shown.steps] == [
        (0, 4, 6, 8),
        (1, 8, 12, 16),
        (2, 8, 12, 16),
    ]
    assert [(step.at_low_s, step.at_mean_s, step.at_high_s) for step in shown.steps] == [
        (4, 6, 8),
        (12, 18, 24),
        (20, 30, 40),
    ]
    assert (shown.retries, shown.total_s, shown.horizon_s, shown.ends) == (3, 30, 40, "attempts")


def test_a_preview_ends_where_a_retry_would_start_later_than_max_elapsed() -> None:
    retry = Retry(100, "60s", Backoff.fixed("20s"))
    shown = preview(retry)
    assert (shown.retries, shown.total_s, shown.ends) == (3, 60, "elapsed")  # a start at 60 s is not later than 60 s
    assert preview(dataclasses.replace(retry, max_elapsed=59.9)).retries == 2


def test_a_preview_shows_the_entry_of_a_class() -> None:
    retry = Retry(on={OSError: Retry(2, backoff=Backoff.fixed("9s")), "quota": Backoff.fixed("8s")})
    assert preview(retry, kind="quota").steps[0].mean_s == 8
    for error in (Flaky, "OSError"):
        shown = preview(retry, kind="quota", error=error)
        assert ([step.mean_s for step in shown.steps], shown.chosen.why) == ([9], "on OSError: default backoff")


def test_a_preview_of_what_is_not_retried_is_empty() -> None:
    shown = preview(Retry(), kind="permanent")
    assert (shown.steps, shown.retries, shown.total_s, shown.horizon_s, shown.ends) == ((), 0, 0, 0, "refused")
    assert preview(Retry(1)).ends == "attempts"


def test_a_preview_is_bounded() -> None:
    shown = preview(Retry(10**9, None))
    assert (len(shown.steps), shown.ends) == (1000, "limit")
    assert len(preview(Retry(10**9, None), limit=5).steps) == 5


def test_a_preview_of_an_unknown_kind_or_class_is_refused() -> None:
    with pytest.raises(ValueError, match="kind 'transiet' is unknown"):
        preview(Retry(), kind="transiet")
    with pytest.raises(ValueError, match="error 'Eror' is unknown"):
        preview(Retry(), error="Eror")


def test_the_mean_of_a_preview_is_that_of_the_draws() -> None:
    for jitter in JITTERS:
        retry = Retry(6, None, Backoff("2s", 2, None, jitter, 0.3))
        totals = [walk_s(retry.backoff, f"id-{i}") for i in range(3000)]
        assert fmean(totals) == pytest.approx(preview(retry).total_s, rel=0.05), jitter


def walk_s(backoff: Backoff, message_id: str) -> float:
    total_s, previous = 0.0, None
    for n in range(5):
        previous = backoff.seconds(n, draw(message_id, 0, n + 1), previous)
        total_s += previous
    return total_s
