"""Each benchmark measures something at tiny sizes, and a run that is worth nothing is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchmarks import floors
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.engines import ENGINES
from benchmarks.harness import ROOT, Broken, Child, Reading, interleaved, need_all_once, ratio, table
from benchmarks.tasks import Boom
from benchmarks.throughput import need_evidence
from tests.support.turns import in_turn

from redrive.fault import Fault, classify

TINY = "--rounds 1 --messages 50 --delayed 20 --within-s 0.4 --steady 10 --backlog 100 --memory 1500 --idle-s 0.2 "
TINY += "--waiting 100 --dead 300 --suspects 20x50ms --crowd 12 --browsers 5 --old 2 --new 1"
TINY += " --freezes 1 --seconds 1 --workers 2"

LONG = ("sqs-requests", "aws-calls", "poison", "rollout", "rollout-sqs")


@pytest.mark.parametrize(
    "name",  # what a message costs on SQS stands in tests/aws/test_sqs_requests.py
    [
        pytest.param(name, marks=pytest.mark.soak if name in LONG else in_turn(n % 5, of=5))
        for n, name in enumerate(BENCHMARKS)
    ],
)
def test_benchmark_tells_its_figures_and_cleans_up(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "out.json"
    places = ["--folder", str(tmp_path), "--json", str(kept), "--before", str(ROOT)]
    assert main([name, *TINY.split(), "--starts", "1", *places]) == 0
    readings, shown = json.loads(kept.read_text())["readings"], capsys.readouterr().out
    assert readings
    for reading in readings:
        assert reading["values"] and reading["name"] in shown
        may_be_nothing = reading["unit"] in (
            "ms",
            "messages",
            "% of a core",
            "processes",
            "crashes",
            "visits",
            "µs more",
        )
        may_be_nothing |= reading["name"] == "the others, per second of freezes"  # there is one second
        assert may_be_nothing or reading["median"] > 0
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.soak
@pytest.mark.parametrize("store", ["redis", "postgres"])
def test_benchmarks_run_on_a_server_and_count_its_time(store: str, tmp_path: Path) -> None:
    kept = tmp_path / "out.json"
    assert main(["failing", "backlog", "--store", store, *TINY.split(), "--json", str(kept)]) == 0
    readings = {reading["name"]: reading["median"] for reading in json.loads(kept.read_text())["readings"]}
    assert readings["20 % fail once, server CPU"] > 0 and readings["a delayed message"] > 0
    assert readings["faults with all evidence"] > 0


@pytest.mark.parametrize("name", ["sqlite", "redis", "postgres"])
def test_floor_runs_every_job_once_on_each_engine(name: str, tmp_path: Path) -> None:
    with ENGINES[name](None) as engine:
        floors.make(engine.url(tmp_path), 50)
        done: list[Any] = []
        ran: list[bytes] = []
        with floors.exchange_on(engine.url(tmp_path)) as exchange:
            while jobs := exchange(done, 20):
                done = [key for key, _ in jobs]
                ran += [body for _, body in jobs]
        assert sorted(ran) == sorted(b'{"i":%d}' % i for i in range(50))


@pytest.mark.parametrize("ended", [[0], [0, 0, 1], [0, 2], [0, -2]])
def test_run_that_lost_or_repeated_a_message_is_refused(ended: list[int]) -> None:
    need_all_once([(1, 0.0), (-1, 0.0), (0, 0.0)], 2)
    with pytest.raises(Broken):
        need_all_once([(index, 0.0) for index in ended], 2)


def test_fault_without_its_evidence_is_refused() -> None:
    kept = _fault(at_ms=1, attempt=1)
    need_evidence({0: [kept]}, 1, 1)
    for found, faults_each in (
        ({}, 1),
        ({0: [kept]}, 2),
        ({5: [kept]}, 1),  # another message's text
        ({0: [_fault(at_ms=1, attempt=1, traceback="")]}, 1),
        ({0: [_fault(at_ms=1, attempt=1, traceback="raise Boom" * 1000)]}, 1),
        ({0: [_fault(at_ms=1, attempt=1, fingerprint="")]}, 1),
        ({0: [_fault(at_ms=1, attempt=2)]}, 1),
    ):
        with pytest.raises(Broken):
            need_evidence(found, 1, faults_each)


def _fault(**changed: object) -> Fault:
    try:
        raise Boom("message 0 fails")
    except Boom as error:
        return msgspec.structs.replace(classify(error), **changed)


def test_child_that_dies_ends_the_run_with_its_last_words(tmp_path: Path) -> None:
    child = Child(tmp_path, "sleeper", tmp_path / "missing", tmp_path / "no" / "folder")
    with child, pytest.raises(Broken, match="FileNotFoundError"):
        child.await_records(0)


def test_ratio_is_taken_within_each_round() -> None:
    doubled = ratio("double", [2.0, 20.0, 200.0], [1.0, 10.0, 100.0], "≥ 2")
    assert doubled.values == [2.0, 2.0, 2.0] and doubled.met


def test_bound_is_held_against_the_median() -> None:
    assert Reading("late", "ms", [1.0, 9.0, 50.0], "≤ 10").met is True
    assert Reading("late", "ms", [1.0, 11.0, 50.0], "≤ 10").met is False
    assert Reading("told", "ms", [1.0]).met is None


def test_rounds_alternate_their_order() -> None:
    order: list[str] = []
    interleaved(2, {"a": lambda: order.append("a"), "b": lambda: order.append("b")})
    assert order == ["a", "b", "b", "a"]


def test_table_has_a_row_per_reading() -> None:
    lines = table([("x", Reading("r", "ms", [1.0, 3.0], "≤ 1")), ("x", Reading("s", "MiB", [12345.6]))]).splitlines()
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]] == [
        ["x", "r", "2", "1 – 3", "ms", "≤ 1", "NO"],
        ["x", "s", "12,346", "12,346 – 12,346", "MiB", "", ""],
    ]
