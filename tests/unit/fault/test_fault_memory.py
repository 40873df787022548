"""What classifying remembers of classes, stacks and texts makes it fast; none of it may change what a fault says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redrive.fault import Kind, classify
from redrive.fault.fingerprints import _steps
from redrive.fault.inspection import Looks
from redrive.fault.stack import STACKS_MAX, _stacks, stack_of


def raised_at(line: int, name: str = "run", filename: str = "/srv/shop/sync.py") -> ValueError:
    scope: dict[str, Any] = {}
    exec(compile("\n" * (line - 2) + f"def {name}():\n    raise ValueError('x')\n", filename, "exec"), scope)
    try:
        scope[name]()
    except ValueError as error:
        return error
    raise AssertionError


# Classes


def throttled_by_property(cls: type[Exception]) -> None:
    cls.status_code = property(lambda self: 429)  # type: ignore[attr-defined]


def throttled_by_getattr(cls: type[Exception]) -> None:
    cls.__getattr__ = lambda self, name: 429 if name == "status" else None  # type: ignore[attr-defined]


@pytest.mark.parametrize("change", [throttled_by_property, throttled_by_getattr])
@pytest.mark.parametrize("base", [False, True])
def test_attribute_that_a_class_gets_after_its_first_fault_is_read(
    change: Callable[[type[Exception]], None], base: bool
) -> None:
    class Base(Exception):
        pass

    class Boom(Base):
        pass

    assert classify(Boom("x")).kind is Kind.DEFAULT
    change(Base if base else Boom)
    assert classify(Boom("x")).kind is Kind.THROTTLED


def test_instances_of_one_class_are_told_apart_by_their_own_attributes() -> None:
    class Boom(Exception):
        pass

    silent, other, telling = Boom("x"), Boom("x"), Boom("x")
    other.order = 7  # type: ignore[attr-defined]
    telling.response = SimpleNamespace(status_code=503)  # type: ignore[attr-defined]
    kinds = [classify(each).kind for each in (silent, telling, other, silent)]
    assert kinds == [Kind.DEFAULT, Kind.TRANSIENT, Kind.DEFAULT, Kind.DEFAULT]


@pytest.mark.parametrize("name", ["status", "http_status", "code", "status_code"])
def test_slots_and_mixins_are_read_like_any_attribute(name: str) -> None:
    slotted: Any = type("Slotted", (Exception,), {"__slots__": (name,)})("x")
    assert classify(slotted).kind is Kind.DEFAULT
    setattr(slotted, name, 503)
    assert classify(slotted).kind is Kind.TRANSIENT
    mixed = type("Mixed", (Exception, type("Mixin", (), {name: 503})), {})("x")
    assert classify(mixed).kind is Kind.TRANSIENT


def test_attributes_kept_in_a_dict_that_hides_them_are_read() -> None:
    class Hides(dict[str, object]):
        def __iter__(self) -> Iterator[str]:
            return iter(())

    error = ValueError("x")
    error.__dict__ = Hides(status=503)
    assert classify(error).kind is Kind.TRANSIENT


# Texts


def test_text_is_asked_for_once_for_the_verdict_the_traceback_and_the_fingerprint() -> None:
    class Counts(Exception):
        asked = 0

        def __str__(self) -> str:
            self.asked += 1
            return f"asked {self.asked} times"

    cause, member, outer = Counts(), Counts(), ExceptionGroup("both", [error := Counts()])
    error.__cause__, error.__context__, outer.__cause__ = cause, ValueError("x"), member
    text = classify(outer).traceback
    assert [each.asked for each in (cause, member, error)] == [1, 1, 1]
    assert text.count("asked 1 times") == 3


PIECES = (
    *"aAfX09 ':\"`/\\.-+@,()=é٣",
    *("<v>", "e-", "to a", ":12", "a.com", "://", "0x", "localhost", "3fa85f64", "-5717", "-4562b3fc2c96", "Jan 5"),
)


@given(st.lists(st.sampled_from(PIECES)).map("".join))
@example("at 3fa85f64-5717-4562-b3fc-2c963f66afa6")
@example("to redis:63 or [::1]:80")
@example("on a.com")
@example("on a.b:1")
@example("at -5 of 1-2")
def test_guard_of_a_pattern_is_found_wherever_the_pattern_changes_something(text: str) -> None:
    for sign, guard, pattern, replacement in _steps(False):
        if sign in text and pattern.sub(replacement, text) != text:
            assert guard is None or guard.search(text)


# Stacks


def test_stacks_of_the_same_code_at_another_line_and_of_other_code_at_the_same_line_are_told_apart() -> None:
    errors = [raised_at(7), raised_at(9), raised_at(7, "other"), raised_at(7, filename="/srv/shop/billing.py")]
    for _ in range(2):  # the second time out of memory
        texts = [classify(each).traceback for each in errors]
        assert ["line 7, in run" in each for each in texts] == [True, False, False, True]
        assert ["line 9, in run" in each for each in texts] == [False, True, False, False]
        assert ["in other" in each for each in texts] == [False, False, True, False]
        assert ["billing.py" in each for each in texts] == [False, False, False, True]


def test_lines_of_one_function_are_told_apart() -> None:
    def run(first: bool) -> None:
        if first:
            raise ValueError("x")
        raise ValueError("x")

    texts = set()
    for first in (True, False, True, False):
        with pytest.raises(ValueError) as caught:
            run(first)
        texts.add(classify(caught.value).traceback)
    assert len(texts) == 2


def test_stack_remembered_is_dropped_with_its_code_and_never_taken_for_a_later_one() -> None:
    for number in range(STACKS_MAX + 50):  # code objects come and go, and with them their ids
        assert f"run_{number}\nValueError: x" in classify(raised_at(3, f"run_{number}")).traceback
        assert len(_stacks) <= STACKS_MAX


def test_one_stack_is_walked_to_the_same_value_again() -> None:
    error = raised_at(5)
    assert stack_of(error) is stack_of(error)
    assert stack_of(error) is not stack_of(raised_at(5))


def test_looks_at_more_exceptions_than_are_remembered_stay_right() -> None:
    looks, errors = Looks(None), [ValueError(str(number)) for number in range(400)]
    assert [looks.at(each).text for each in errors * 2] == [str(number) for number in range(400)] * 2
