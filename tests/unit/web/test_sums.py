"""Sums are made once for all who ask, shown with their age, and again after a change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from redrive.web.sums import KEPT_MAX, LEAST_SHARE, OLD_S, KeptValue, Sums


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Sum:
    """A sum that takes a time of the clock, and says how often it was made."""

    def __init__(self, clock: Clock, cost_s: float) -> None:
        self.clock, self.cost_s, self.made = clock, cost_s, 0

    def __call__(self) -> int:
        self.clock.now += self.cost_s
        self.made += 1
        return self.made


def joined(sums: Sums) -> None:
    """Wait until no thread makes a sum."""
    for thread in threading.enumerate():
        if thread.name == "redrive-sums":
            thread.join(30)


def test_a_fresh_sum_is_kept_and_a_cheap_old_one_is_made_again_before_it_is_shown() -> None:
    clock = Clock()
    sums, read = Sums(clock), Sum(clock, 0.0)
    assert sums.get("a", read) == KeptValue(1, 0.0)
    clock.now += 0.9
    assert sums.get("a", read).value == 1 and read.made == 1
    clock.now += 0.2
    assert sums.get("a", read) == KeptValue(2, 0.0)


def test_an_old_sum_that_takes_a_while_is_shown_with_its_age_and_made_again_behind() -> None:
    clock = Clock()
    sums, read = Sums(clock), Sum(clock, 0.1)
    sums.get("a", read)
    clock.now += 600
    old = sums.get("a", read)
    assert old.value == 1 and old.age_s >= 600
    joined(sums)
    assert sums.get("a", read).value == 2


def test_a_dear_sum_takes_a_quarter_of_the_time_at_most() -> None:
    clock = Clock()
    sums, read = Sums(clock), Sum(clock, 2.0)
    sums.get("a", read)
    clock.now += LEAST_SHARE * 2 - 0.1
    assert sums.get("a", read).value == 1 and read.made == 1
    clock.now += 0.2
    sums.get("a", read)
    joined(sums)
    assert read.made == 2


def test_nobody_waits_for_a_dear_sum_that_is_not_made_again_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = Clock(), list[float]()
    sums, read = Sums(clock), Sum(clock, 2.0)
    sums.get("a", read, 10.0)
    clock.now += OLD_S + 1.0
    monkeypatch.setattr("redrive.web.sums.wait", waiting(clock, waits))
    assert sums.get("a", read, 10.0) == KeptValue(1, OLD_S + 1.0)
    assert sums.within(0.03, "a", read) == KeptValue(1, OLD_S + 1.0)
    assert waits == [] and read.made == 1


def test_a_sum_that_is_not_made_in_time_is_returned_with_its_age_after_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, waits, goes_on = Clock(), list[float](), threading.Event()
    sums = Sums(clock)

    def read() -> int:
        if sums.peek("a") is not None:
            goes_on.wait(30)
        clock.now += 2.0
        return 1

    sums.get("a", read)
    clock.now += 60
    monkeypatch.setattr("redrive.web.sums.wait", waiting(clock, waits))
    assert sums.get("a", read, 10.0) == KeptValue(1, 70.0)
    assert waits == [10.0]
    goes_on.set()
    joined(sums)


def waiting(clock: Clock, waits: list[float]) -> Callable[..., object]:
    """A wait whose futures do not end in time."""

    def wait(futures: list[Future[object]], seconds: float) -> SimpleNamespace:
        waits.append(seconds)
        clock.now += seconds
        return SimpleNamespace(done=set())

    return wait


def test_after_a_change_a_cheap_sum_is_made_before_it_is_shown_and_a_dear_one_behind() -> None:
    clock = Clock()
    sums, cheap, dear = Sums(clock), Sum(clock, 0.1), Sum(clock, 5.0)
    assert (sums.get("cheap", cheap).value, sums.get("dear", dear).value) == (1, 1)
    sums.spoil()
    assert sums.get("cheap", cheap) == KeptValue(2, 0.0)
    assert sums.get("dear", dear).value == 1
    joined(sums)
    assert sums.get("dear", dear).value == 2


def test_a_sum_that_was_begun_before_a_change_is_stale() -> None:
    clock = Clock()
    sums = Sums(clock)

    def changed_meanwhile() -> str:
        sums.spoil()
        return "before"

    assert sums.get("a", changed_meanwhile).value == "before"
    assert sums.get("a", lambda: "after").value == "after"


def at_once(count: int, ask: Callable[[], object]) -> list[object]:
    begin = threading.Barrier(count)

    def asking() -> object:
        begin.wait(30)
        return ask()

    with ThreadPoolExecutor(count) as pool:
        return [each.result(60) for each in [pool.submit(asking) for _ in range(count)]]


def test_fifty_who_ask_at_once_cost_one_sum() -> None:
    sums, made, may_end = Sums(), [], threading.Event()

    def read() -> int:
        made.append(1)
        may_end.wait(30)
        return len(made)

    threading.Timer(0.2, may_end.set).start()
    assert {kept.value for kept in at_once(50, lambda: sums.get("a", read))} == {1}  # type: ignore[attr-defined]
    assert made == [1]


def test_what_a_sum_raises_each_who_waits_gets_and_the_next_tries_again() -> None:
    sums = Sums()

    def failing() -> int:
        raise OSError("the server is gone")

    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            sums.get("a", failing)
    assert sums.get("a", lambda: 3).value == 3


def test_old_numbers_are_not_shown_once_they_cannot_be_read_again() -> None:
    clock = Clock()
    sums = Sums(clock)

    def failing() -> int:
        raise OSError("the server is gone")

    assert sums.get("a", Sum(clock, 0.1)).value == 1
    clock.now += 60
    assert sums.get("a", failing).age_s >= 60
    joined(sums)
    with pytest.raises(OSError, match="gone"):
        sums.get("a", failing)


def test_sums_are_bounded() -> None:
    sums = Sums()
    for n in range(KEPT_MAX + 100):
        sums.get(str(n), lambda: 1)
    assert len(sums._sums) == KEPT_MAX and sums._making == {}


def test_a_sum_that_is_not_there_in_time_is_none_and_there_for_the_next_who_asks() -> None:
    sums, go = Sums(), threading.Event()

    def slow() -> int:
        go.wait(30)
        return 3

    assert sums.within(0.01, "a", slow) is None
    go.set()
    assert sums.within(30, "a", slow) == KeptValue(3, 0.0)
    joined(sums)
    assert sums.get("a", lambda: 4).value == 3
