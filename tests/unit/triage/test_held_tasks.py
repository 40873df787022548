"""Which tasks the pauses of people hold."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from redrive import paused_task
from redrive.paused_task import PausedTask, held_tasks, pause_of

NOW = 1000
KNOWN = ["crm.push", "crm.pull", "mail", "crm.[ab]"]


def pauses(names: Iterable[str], until_ms: int | None = None) -> dict[str, PausedTask]:
    return {n: PausedTask(name=n, at_ms=0, by="ann", reason="r", until_ms=until_ms) for n in names}


@pytest.mark.parametrize("names", [["crm.*"], ["mail"], ["other"], ["crm.[ab]"], ["*"], ["crm.push", "crm.p*"], []])
@pytest.mark.parametrize("over", [["mail"], ["other.x", "*"], []])
def test_a_task_is_held_as_long_as_one_pause_holds_it(names: list[str], over: list[str]) -> None:
    standing = pauses(over, NOW) | pauses(names)
    held = held_tasks(standing, KNOWN, NOW)
    each = {*KNOWN, *(name for name in standing if not standing[name].is_pattern)}
    assert held == {task for task in each if pause_of(standing, task, NOW) is not None}


def test_names_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def compare(name: str, pattern: str) -> bool:
        compared.append(name)
        return False

    monkeypatch.setattr(paused_task, "fnmatchcase", compare)
    names = [f"task-{n}" for n in range(1000)]
    assert held_tasks(pauses(names), KNOWN, NOW) == {*names} and compared == []
    assert held_tasks(pauses(["a*", "b*"]), KNOWN, NOW) == set() and len(compared) == 2 * len(KNOWN)
