"""Where the processor time of a run goes: `--cpu` prints the seconds by folder and of the dearest files and tests.

It counts user and system time of each test with its fixtures and the processes that it waited for, so it says the same
on a busy machine. The servers that tests share count at the end of the run, and collection by itself.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from tests.support.turns import DEAR, DEAR_ALL_S, DEAR_S, dear, test_of

DEAREST = 40
COLLECTED, ENDED = "(collection)", "(start, end, shared servers)"


class Cpu:
    """The seconds of one process, and in the process that the run began in those of all."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        before = _spent()
        try:
            return (yield)
        finally:
            self.seconds[COLLECTED] += _spent() - before

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = _spent()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] += _spent() - before

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Once the fixtures of the session are gone, their servers were waited for."""
        self.seconds[ENDED] += _spent() - self.seconds.total()
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["cpu"] = dict(self.seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.seconds.update(getattr(node, "workeroutput", {}).get("cpu", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("processor time")
        for line in lines(self.seconds):
            terminalreporter.line(line)


def lines(seconds: Counter[str]) -> Iterator[str]:
    """The table: all, by folder, the dearest files, the dearest tests."""
    yield f"{seconds.total():8.1f} s in all"
    for depth in (2, 9):
        places: Counter[str] = Counter()
        for test, spent in seconds.items():
            places["/".join(test.partition("::")[0].split("/")[:depth])] += spent
        yield from _rows(places)
    yield from _rows(seconds)
    yield from ["", f"more than {DEAR_S} s a case or {DEAR_ALL_S:g} s in all, and not in {DEAR.name}:"]
    yield from _rows(_dear(seconds))


def _dear(seconds: Counter[str]) -> Counter[str]:
    cases = Counter(test_of(test) for test in seconds)
    spent = Counter[str]()
    for test, cost in seconds.items():
        spent[test_of(test)] += cost
    known = dear()
    return Counter(
        {
            test: cost
            for test, cost in spent.items()
            if (cost > DEAR_S * cases[test] or cost > DEAR_ALL_S) and "::" in test and test not in known
        }
    )


def _rows(spent: Counter[str]) -> Iterator[str]:
    yield ""
    for name, seconds in spent.most_common(DEAREST):
        yield f"{seconds:8.1f} s  {name}"


def _spent() -> float:
    return sum(os.times()[:4])
