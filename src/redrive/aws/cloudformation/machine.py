"""The state machine of one redrive queue, the Lambdas of its states, and the rule that starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...flow.auto_redrive import AutoRedrive
from ..stepfunctions.machine import BATCHES_MAX, TASKS, Machine, definition
from .alarms import any_above
from .lambdas import (
    GATE,
    PACE,
    WAITS,
    allow,
    environment,
    function,
    role,
    statements_of,
    when,
)
from .names import (
    Json,
    Named,
    Resources,
    att,
    either,
    ref,
    sub,
)

TIMEOUT_S = 60  # timeout of the functions in seconds, as stepfunctions/functions.py requires
_HANDLERS = "redrive.aws.stepfunctions"
_ROLES = {"CheckBreaker": "check_breaker", "Fetch": "fetch", "Redrive": "redrive", "Isolate": "isolate"}
_GOES_BY = {"CheckBreaker": (GATE,), "Fetch": (WAITS, PACE), "Redrive": (WAITS, GATE), "Isolate": (WAITS,)}
_DOES = {
    "CheckBreaker": "begins a turn of the state machine",
    "Fetch": "receives dead messages for the state machine",
    "Redrive": "sends a batch back",
    "Isolate": "sends a batch to the poison queue",
}


def machine(of: Named, approval: bool, partition: str) -> Resources:
    """Return the state machine of a queue, its functions with a role each, and the rule on the alarm that starts it.
    Only one execution works at a time: others end at once, since the first state takes a lock."""
    id = of.id
    # The page size bounds how many events an execution adds to its history. Deployments may change MaxRedrives, so its
    # largest value is assumed.
    chosen = Machine(auto=AutoRedrive(max_redrives=BATCHES_MAX), approval="sns" if approval else None)
    failed = ("AWS/States", "ExecutionsFailed", "StateMachineArn", f"{id}Machine")
    text = f"An execution of the state machine of {of.queue} failed: look at its history."
    return {
        **_functions(of, chosen),
        f"{id}MachineRole": role("HasCode", "states.amazonaws.com", _calls(of, approval)),
        f"{id}Machine": when("HasCode", "AWS::StepFunctions::StateMachine", _machine(of, chosen, partition)),
        **_start(of),
        **any_above(of, "MachineFailed", failed, text),
    }


def _functions(of: Named, chosen: Machine) -> Resources:
    asks, resources = dict[str, Any](), dict[str, Json]()
    if chosen.approval is not None:
        asks = {"REDRIVE_APPROVAL_S": chosen.environment["REDRIVE_APPROVAL_S"]}
        answers = [allow(("states:SendTaskSuccess",), _arn(of))]
        resources = _function(of, "Approve", "approve", "answers an execution that asks for approval", answers, {})
    for state in TASKS:
        statements = statements_of(_ROLES[state], of, approval=chosen.approval is not None)
        variables = environment(of, *_GOES_BY[state]) | (asks if state == "CheckBreaker" else {})
        resources |= _function(of, state, _ROLES[state], _DOES[state], statements, variables)
    return resources


def _function(
    of: Named, state: str, handler: str, does: str, statements: Sequence[Json], variables: Mapping[str, Any]
) -> Resources:
    name = f"Machine{state}"
    resources = function(of, name, "HasCode", f"{_HANDLERS}.{handler}", does, statements, variables)
    resources[f"{of.id}{name}"]["Properties"]["Timeout"] = TIMEOUT_S
    return resources


def _machine(of: Named, chosen: Machine, partition: str) -> Json:
    arns = {f"{state}Arn": att(f"{of.id}Machine{state}") for state in TASKS}
    asked = {} if chosen.approval is None else {"ApprovalTarget": ref("Alarms")}
    return {
        "StateMachineName": sub(_name(of)),
        "RoleArn": att(f"{of.id}MachineRole"),
        "Definition": definition(chosen, partition=partition),
        "DefinitionSubstitutions": arns | asked,
    }


def _start(of: Named) -> Resources:
    """Return the rule that starts the state machine when the alarm on dead messages goes off."""
    id = of.id
    target = {"Id": "machine", "Arn": ref(f"{id}Machine"), "RoleArn": att(f"{id}MachineStartRole"), "Input": "{}"}
    rule = {
        "Description": f"Starts the state machine of {of.queue} when messages are dead",
        "EventPattern": {
            "source": ["aws.cloudwatch"],
            "detail-type": ["CloudWatch Alarm State Change"],
            "resources": [att(f"{id}DeadAlarm")],
            "detail": {"state": {"value": ["ALARM"]}},
        },
        "State": either("RedriveByMachine", "ENABLED", "DISABLED"),
        "Targets": [target],
    }
    start = allow(("states:StartExecution",), ref(f"{id}Machine"))
    return {
        f"{id}MachineStartRole": role("HasCode", "events.amazonaws.com", [start]),
        f"{id}MachineStart": when("HasCode", "AWS::Events::Rule", rule),
    }


def _calls(of: Named, approval: bool) -> list[Json]:
    """Return the machine's own rights: call its functions, continue as a new execution, ask for approval."""
    functions = [att(f"{of.id}Machine{state}") for state in TASKS]
    calls = [allow(("lambda:InvokeFunction",), functions), allow(("states:StartExecution",), _arn(of))]
    return [*calls, allow(("sns:Publish",), ref("Alarms"))] if approval else calls


def _name(of: Named) -> str:
    return f"${{Prefix}}-{of.queue}-redrive"


def _arn(of: Named) -> Any:
    """Return the state machine's ARN as text, for places where a reference would be circular."""
    return sub(f"arn:${{AWS::Partition}}:states:${{AWS::Region}}:${{AWS::AccountId}}:stateMachine:{_name(of)}")
