"""Each test that takes turns has one, and the list of the dear ones names tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.turns import DEAR_OF, dear, give_turns

ROOT = Path(__file__).resolve().parent.parent


class Case:
    """What `give_turns` asks a test for."""

    def __init__(self, nodeid: str, turns: int = 0) -> None:
        self.nodeid = nodeid
        self.callspec = SimpleNamespace(id=nodeid.partition("[")[2].rstrip("]"))
        self.marks = [pytest.mark.turns(turns).mark] if turns else []

    def get_closest_marker(self, name: str) -> object:
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.mark)


def chosen(monkeypatch: pytest.MonkeyPatch, seed: int, *cases: tuple[str, int]) -> set[str]:
    monkeypatch.setenv("TEST_SEED", str(seed))
    made = [Case(*case) for case in cases]
    give_turns(made)  # type: ignore[arg-type]
    return {case.nodeid for case in made if not case.get_closest_marker("soak")}


def test_the_list_names_tests() -> None:
    texts = {path: (ROOT / path).read_text() for path in {name.partition("::")[0] for name in dear()}}
    gone = [name for name in dear() if not any(part in texts[name.partition("::")[0]] for part in name.split("::")[1:])]
    assert not gone, "rename them in tests/data/dear.txt, or take them out"


def test_cases_of_one_engine_run_and_in_three_runs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        (f"tests/x/test_a.py::test_it[{n}-{engine}]", 0) for engine in ("sqlite", "postgres", "redis") for n in "12"
    ]
    runs = [chosen(monkeypatch, seed, *cases) for seed in range(3)]
    assert [len(run) for run in runs] == [2, 2, 2] and set.union(*runs) == {name for name, _ in cases}
    assert all(len({name.partition("-")[2] for name in run}) == 1 for run in runs)


def test_dear_tests_of_a_folder_share_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    some = sorted(name for name in dear() if name.startswith("tests/e2e/"))[: 2 * DEAR_OF]
    runs = [chosen(monkeypatch, seed, *((name, 0) for name in some)) for seed in range(DEAR_OF)]
    assert [len(run) for run in runs] == [2] * DEAR_OF and set.union(*runs) == {*some}


def test_a_mark_says_how_many_and_the_suites_of_an_engine_run_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(chosen(monkeypatch, 1, ("tests/x/test_a.py::test_it", 3))) == 1, "one of one: each time"
    cases = [(f"tests/stores/x/test_a.py::test_it[{engine}]", 0) for engine in ("postgres", "redis")]
    assert chosen(monkeypatch, 1, *cases) == {name for name, _ in cases}
    assert len(chosen(monkeypatch, 1, *((name, 2) for name, _ in cases))) == 1
