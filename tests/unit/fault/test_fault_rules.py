"""Rules are checked where they are declared: at a failure, a malformed one is passed over."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import pytest

from redrive.errors import ConfigError
from redrive.fault import Kind, check_rules, classify


class Mixin:
    pass


class AnswersLater:
    async def __call__(self, error: BaseException) -> bool:
        return True


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


async def answers_later(error: BaseException) -> bool:
    return True


def answers_many(error: BaseException) -> Iterator[bool]:
    yield True


def takes_nothing() -> bool:
    return True


def takes_two(error: BaseException, other: object) -> bool:
    return True


def takes_one_and_an_option(error: BaseException, *, strict: bool = False) -> bool:
    return True


GOOD: list[Any] = [
    (ValueError, "permanent"),
    [OSError, Kind.QUOTA],
    (KeyboardInterrupt, "default"),
    ("card declined", "quota"),
    (re.compile(r"card \w+"), "timeout"),
    (lambda error: True, "throttled"),
    (takes_one_and_an_option, "transient"),
    (functools.partial(takes_two, other=1), "transient"),
    (callable, "transient"),
    ({ValueError}.__contains__, "transient"),
]


@pytest.mark.parametrize("rule", GOOD)
def test_rule_that_can_work_is_kept_with_its_kind(rule: Any) -> None:
    assert check_rules([rule]) == ((rule[0], Kind(rule[1])),)


def test_rules_keep_their_order_and_may_come_from_an_iterator() -> None:
    rules = check_rules(iter([(LookupError, "quota"), (KeyError, "permanent")]))
    assert classify(KeyError("x"), rules).kind is Kind.QUOTA
    assert check_rules(()) == ()


BAD: list[tuple[Any, str]] = [
    ((), "expected a pair"),
    (None, "expected a pair"),
    ((ValueError,), "expected a pair"),
    ((ValueError, "permanent", 3), "expected a pair"),
    ("ab", "expected a pair"),
    (ValueError, "expected a pair"),
    ((ValueError, "permanant"), "did you mean 'permanent'?"),
    ((ValueError, "PERMANENT"), "did you mean 'permanent'?"),
    ((ValueError, "zzz"), "one of transient, throttled, quota, timeout, permanent, default"),
    ((ValueError, None), "None is no kind"),
    (("permanent", ValueError), r"expected \(matcher, kind\)"),
    ((ValueError, "crashed"), "only the worker gives the kind 'crashed'"),
    ((ValueError, Kind.INTERRUPTED), "only the worker gives the kind 'interrupted'"),
    ((Mixin, "permanent"), r"Mixin is no exception class.*isinstance\(e, Mixin\)"),
    (("", "permanent"), "blank"),
    ((" ", "permanent"), "blank"),
    ((re.compile(b"card"), "permanent"), "bytes"),
    ((7, "permanent"), "7 cannot match; expected an exception class"),
    ((ValueError("x"), "permanent"), "cannot match"),
    (((ValueError, KeyError), "permanent"), "cannot match"),
    ((answers_later, "permanent"), "coroutine"),
    ((AnswersLater(), "permanent"), "coroutine"),
    ((answers_many, "permanent"), "generator"),
    ((takes_nothing, "permanent"), r"with the exception alone \(too many positional arguments\)"),
    ((takes_two, "permanent"), r"with the exception alone \(missing a required argument: 'other'\)"),
    ((Unprintable(), "permanent"), "cannot match"),
]


@pytest.mark.parametrize(("rule", "why"), BAD)
def test_malformed_rule_is_refused_by_its_number_and_says_what_was_expected(rule: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^rules of task 'sync': rule 2 .*: .*{why}") as caught:
        check_rules([(ValueError, "permanent"), rule, (KeyError, "zzz")], "rules of task 'sync'")
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("rules", [None, 7, "permanent", b"x", {ValueError: "permanent"}, {(ValueError, "quota")}])
def test_what_is_no_list_of_rules_is_refused(rules: Any) -> None:
    with pytest.raises(ConfigError, match=r"^rules .*: expected a list of pairs \[\(matcher, kind\), …\]"):
        check_rules(rules)


def test_one_rule_without_its_list_is_refused() -> None:
    one: Any = (ValueError, "permanent")
    with pytest.raises(ConfigError, match=r"rule 1 <class 'ValueError'>: expected a pair in a list, such as \[\("):
        check_rules(one)


def test_huge_rule_does_not_fill_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        check_rules([("x" * 1_000_000, "zzz")])
    assert len(str(caught.value)) < 400
