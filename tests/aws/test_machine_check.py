"""The machine's own definition holds together, and every planted mistake is found."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from redrive.aws.machine import EVENTS_MAX, Machine, batches_max, definition, events_of_turn
from redrive.aws.machine_check import check_machine
from redrive.errors import ConfigError
from redrive.triage.auto import AutoRedrive

MACHINES = [
    Machine(),
    Machine(breaker_checks=3, approval="sns"),
    Machine(approval="sqs", approval_within="30d"),
    Machine(auto=AutoRedrive(base="1h", cap=None, max_redrives=1000, batch=250, concurrency=40)),
]


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_generated_holds_together_and_is_json_without_nulls(machine: Machine) -> None:
    found = definition(machine)
    assert check_machine(found) == []
    text = json.dumps(found)
    assert json.loads(text) == found and "null" not in text


@pytest.mark.parametrize("machine", MACHINES)
def test_an_execution_ends_long_before_its_history_is_full(machine: Machine) -> None:
    found = definition(machine)
    turns = found["States"]["BreakerAnswer"]["Choices"][1]["NumericGreaterThan"]
    most = events_of_turn(found, batches_max(machine.auto))
    assert turns >= 2
    assert 2 + (turns + 1) * most < EVENTS_MAX


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="concurrency 41; Step Functions works no more than 40"):
        Machine(auto=AutoRedrive(concurrency=41))
    with pytest.raises(ConfigError, match="breaker_checks=0"):
        Machine(breaker_checks=0)
    with pytest.raises(ConfigError, match="approval_within=31d"):
        Machine(approval="sns", approval_within="31d")


Plant = Callable[[dict[str, Any]], Any]


def inner(d: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = d["States"]["Move"]["ItemProcessor"]["States"]
    return found


def into(states: dict[str, Any], name: str, **fields: Any) -> None:
    states[name].update(fields)


PLANTED: list[tuple[Plant, str]] = [
    (lambda d: d.update(StartAt="Nope"), "machine: StartAt names 'Nope', which is no state of its scope"),
    (lambda d: into(d["States"], "Fetch", Next="Nope"), "machine.Fetch: Next names 'Nope'"),
    (lambda d: into(inner(d), "Wait", Next="Nope"), "machine.Move.ItemProcessor.Wait: Next names 'Nope'"),
    (lambda d: into(inner(d), "Wait", Next="Fetch"), "machine.Move.ItemProcessor.Wait: Next names 'Fetch'"),
    (lambda d: into(d["States"], "Fetch", Next="Wait"), "machine.Fetch: Next names 'Wait'"),
    (lambda d: into(inner(d), "Step", Default="Nope"), "Step: Default names 'Nope'"),
    (lambda d: inner(d)["Redrive"]["Catch"][0].update(Next="Nope"), "Redrive: Catch[0] names 'Nope'"),
    (lambda d: inner(d)["Step"]["Choices"][1].update(Next="Nope"), "Step: Choices[1] names 'Nope'"),
    (lambda d: d["States"]["Move"]["ItemProcessor"].update(StartAt="Nope"), "ItemProcessor: StartAt names 'Nope'"),
    (lambda d: d["States"].update(Lost={"Type": "Succeed"}), "machine.Lost: it is never reached"),
    (lambda d: inner(d).update(Lost={"Type": "Pass", "End": True}), "ItemProcessor.Lost: it is never reached"),
    (lambda d: into(d["States"], "Continued", Type="Pass", Next="Continued"), "Continued: no end is reached from it"),
    (lambda d: inner(d)["Step"].pop("Default"), "Step: it has no Default"),
    (lambda d: d["States"]["FetchAnswer"].pop("Choices"), "FetchAnswer: a Choice needs Choices"),
    (lambda d: d["States"]["FetchAnswer"]["Choices"][0].pop("Variable"), "Choices[0]: Variable None is no path"),
    (lambda d: d["States"]["FetchAnswer"]["Choices"][0].update(NumericLessThan=3), "expected one comparison, found"),
    (
        lambda d: d["States"]["FetchAnswer"]["Choices"][0].update(NumericGreaterThan="0"),
        "NumericGreaterThan '0' is of the wrong type",
    ),
    (
        lambda d: d["States"]["FetchAnswer"]["Choices"][0].update(NumericGreaterThan=True),
        "NumericGreaterThan True is of the wrong type",
    ),
    (lambda d: d["States"]["FetchAnswer"]["Choices"][0].pop("Next"), "Choices[0]: it has no Next"),
    (lambda d: d["States"]["BreakerAnswer"]["Choices"][2].update(And=[]), "And: expected a list of rules"),
    (lambda d: d["States"]["BreakerAnswer"]["Choices"][2]["And"][0].update(Next="Fetch"), "expected one comparison"),
    (lambda d: into(d["States"], "Move", ItemPath="$.batches"), "Move: field 'ItemPath' is not known there"),
    (lambda d: d.update(Timeout=3), "machine: field 'Timeout' is not known there"),
    (lambda d: inner(d)["Redrive"]["Retry"][0].update(Max=3), "Retry[0]: field 'Max' is not known there"),
    (lambda d: inner(d)["Redrive"]["Retry"].reverse(), "Retry[0]: States.ALL stands alone, and last"),
    (lambda d: inner(d)["Redrive"]["Catch"][0].pop("ErrorEquals"), "Catch[0]: ErrorEquals names no error"),
    (lambda d: into(d["States"], "Move", ResultPath=None), "Move: ResultPath is null"),
    (lambda d: into(d["States"], "Move", ItemsPath="batches"), "Move: ItemsPath 'batches' is no path"),
    (lambda d: into(inner(d), "Wait", Seconds=3), "Wait: expected one of Seconds, SecondsPath"),
    (lambda d: inner(d)["Wait"].pop("SecondsPath"), "Wait: expected one of Seconds, SecondsPath"),
    (lambda d: inner(d)["Redrive"].pop("End"), "Redrive: expected either Next, or End that is true"),
    (lambda d: into(inner(d), "Redrive", Next="Failed"), "Redrive: expected either Next, or End that is true"),
    (lambda d: inner(d)["Redrive"].pop("Resource"), "Redrive: a Task needs Resource"),
    (lambda d: into(inner(d), "Redrive", Type="Tsk"), "Redrive: Type 'Tsk'; known: Task"),
    (
        lambda d: inner(d)["Failed"]["Parameters"].update(why="$.error"),
        "Parameters.why: '$.error' would be taken as text; name it why.$",
    ),
    (lambda d: inner(d)["Failed"]["Parameters"].update({"why.$": "error"}), "Parameters.why.$: 'error' is no path"),
    (
        lambda d: d["States"]["Approve"]["Parameters"].pop("Message.$"),
        "Approve: it waits for a token that nobody is given",
    ),
    (
        lambda d: into(d["States"], "Approve", Resource="arn:aws:states:::sns:publish"),
        "Approve: its token is given away",
    ),
    (lambda d: inner(d).update(Fetch={"Type": "Pass", "End": True}), "two states are called 'Fetch'"),
    (lambda d: inner(d).update(Step="Wait"), "ItemProcessor.Step: expected an object, not str"),
    (lambda d: d.update(States={}), "machine: it has no States"),
]


@pytest.mark.parametrize("plant, finding", PLANTED, ids=[finding for _, finding in PLANTED])
def test_a_planted_mistake_is_found(plant: Plant, finding: str) -> None:
    found = copy.deepcopy(definition(Machine(breaker_checks=3, approval="sns")))
    plant(found)
    findings = check_machine(found)
    assert any(finding in each for each in findings), findings


@pytest.mark.parametrize(
    "odd", [None, [], "x", {}, {"States": {"a": None}}, {"StartAt": [], "States": {"a": {"Type": {}}}}]
)
def test_whatever_is_given_is_judged_and_never_raises(odd: Any) -> None:
    assert check_machine(odd)
    found = definition()
    for name in list(found["States"]):
        for field in list(found["States"][name]):
            for value in (None, [], {}, 3, "x", [None], [[]]):
                broken = copy.deepcopy(found)
                broken["States"][name][field] = value
                check_machine(broken)
