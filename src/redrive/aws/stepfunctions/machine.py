"""The Step Functions machine that redrives dead messages, as a definition in the Amazon States Language (JSONPath).

    CheckBreaker ──open──▶ WaitForBreaker ─▶ CheckBreaker
         │ ──not approved──▶ Approve ─▶ Approved ─▶ CheckBreaker
         ▼
       Fetch ──nothing──▶ Done          ──held──▶ WaitForHeld ─▶ CheckBreaker
         ▼
       Move  (Map) each batch:  Step ──isolate──▶ Isolate
         │                        └──redrive──▶ Wait ─▶ Redrive         a task that fails ─▶ Failed
         ▼
    CheckBreaker … until nothing is left, or the history grows long: then ContinueAsNew

Little data passes through it: a batch is a key, under which `fetch` stored the messages (pages.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from ...duration import Duration, milliseconds, show
from ...errors import ConfigError
from ...flow.auto_redrive import AutoRedrive
from ..redriver import health_of

EVENTS_MAX = 25_000  # Step Functions' limit of events in the history of one execution
EVENTS_USED = 20_000  # events after which an execution ends, and another continues
CONCURRENCY_MAX = 40  # most concurrent iterations of an inline Map
BATCHES_MAX = 100  # most batches of a page: about 20 KB of the 256 KiB that pass between states
RETRIES = 3  # retries of a task whose function failed
TASK_S = 90  # timeout of a task in seconds
WAIT_MAX_S = 99_999_999  # longest Wait of Step Functions, in seconds
APPROVAL_MAX_S = 30 * 86_400
TASKS = ("CheckBreaker", "Fetch", "Redrive", "Isolate")
_RETRY: Final = (
    {"ErrorEquals": ["ConfigError"], "MaxAttempts": 0},
    {"ErrorEquals": ["States.ALL"], "IntervalSeconds": 2, "BackoffRate": 2, "MaxAttempts": RETRIES},
)

# Retry the task that asks for approval after all errors except a timeout, which means that no answer came.
_ASK_AGAIN: Final = {
    "ErrorEquals": ["States.TaskFailed"],
    "IntervalSeconds": 30,
    "BackoffRate": 2,
    "MaxAttempts": RETRIES,
}
_STARTED = "StepFunctions.ExecutionAlreadyExistsException"  # an earlier attempt started this execution, which has ended

Definition = dict[str, Any]


class Machine(Struct, frozen=True, kw_only=True):
    """The settings of a state machine.

    - `auto`: the waits, the redrives before a message is poison, the messages of a batch, the batches moved at once
      (its `concurrency`, up to 40), and their total rate. Its jitter is applied per batch. Of its `gates` only a health
      URL is checked.
    - `breaker_checks`: after this many checks in a row with the breaker open or the health URL down, the execution
      fails as CircuitOpen. None: it keeps waiting.
    - `approval`: a person is asked through an SNS topic or an SQS queue before messages are moved; no answer within
      `approval_within` (up to 30 days) means no.

    Raises ConfigError, ValueError or TypeError.
    """

    auto: AutoRedrive = AutoRedrive()
    breaker_checks: int | None = None
    approval: Literal["sns", "sqs"] | None = None
    approval_within: Duration = "1d"

    def __post_init__(self) -> None:
        health_of(self.auto)
        if self.auto.concurrency > CONCURRENCY_MAX:
            raise ConfigError(
                f"state machine: concurrency {self.auto.concurrency}; Step Functions works no more than "
                f"{CONCURRENCY_MAX} at once"
            )
        if self.breaker_checks is not None and (type(self.breaker_checks) is not int or self.breaker_checks < 1):
            raise ConfigError(f"state machine: breaker_checks={self.breaker_checks!r}; expected 1 or more, or None")
        if self.approval not in (None, "sns", "sqs"):
            raise ConfigError(f"state machine: approval={self.approval!r}; expected 'sns', 'sqs' or None")
        if not 1 <= self.approval_s <= APPROVAL_MAX_S:
            raise ConfigError(f"state machine: approval_within={show(self.approval_s)}; expected 1s to 30d")

    @property
    def approval_s(self) -> int:
        return -(-milliseconds(self.approval_within, "approval_within") // 1000)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables, beside the URLs, that give these settings to the Lambda functions."""
        auto = self.auto
        variables = {
            "REDRIVE_BASE_S": f"{auto.base:g}",
            "REDRIVE_FACTOR": f"{auto.factor:g}",
            "REDRIVE_CAP_S": f"{auto.cap:g}",
            "REDRIVE_MAX_REDRIVES": str(auto.max_redrives),
            "REDRIVE_BATCH": str(auto.batch),
            "REDRIVE_CONCURRENCY": str(auto.concurrency),
            "REDRIVE_RATE": f"{auto.rate:.9f}/s",
            "REDRIVE_JITTER": f"{auto.jitter:.6f}",
        }
        if auto.gates.health is not None:
            variables["REDRIVE_HEALTH_URL"] = auto.gates.health
        if auto.attempts is not None:
            variables["REDRIVE_ATTEMPTS"] = str(auto.attempts)
        if self.approval is not None:
            variables["REDRIVE_APPROVAL_S"] = str(self.approval_s)
        return variables


def batches_max(auto: AutoRedrive) -> int:
    """Return the most batches of a page: those moved at once, plus one for each length of wait."""
    return min(auto.concurrency + auto.max_redrives + 1, BATCHES_MAX)


def definition(
    machine: Machine = Machine(),  # noqa: B008  # frozen
    *,
    functions: Mapping[str, str] | None = None,
    ask: str = "${ApprovalTarget}",
    partition: str = "aws",
) -> Definition:
    """Return the machine's definition: a dict, for a template's `Definition` or, as JSON, for `create_state_machine`.

    `functions`: the ARNs of the functions of CheckBreaker, Fetch, Redrive and Isolate; `ask`: the ARN of the topic, or
    the URL of the queue, of an approval. Missing ones become placeholders (DefinitionSubstitutions):
    ${CheckBreakerArn}, ${FetchArn}, ${RedriveArn}, ${IsolateArn}, ${ApprovalTarget}. `partition` is aws-cn in China,
    and aws-us-gov for the US government.
    """
    arns = {name: f"${{{name}Arn}}" for name in TASKS} | dict(functions or {})
    states = {**_head(machine, arns, partition), **_body(machine, arns, partition), **_ends(machine, partition)}
    if machine.approval is not None:
        states |= _approval(machine, machine.approval, ask, partition)
    machine_definition = {
        "Comment": "redrive: drives dead messages back, or isolates them as poison",
        "StartAt": "CheckBreaker",
        "States": states,
    }
    most = (EVENTS_USED - 2) // events_of_turn(machine_definition, batches_max(machine.auto))
    states["BreakerAnswer"]["Choices"][1]["NumericGreaterThan"] = most
    return machine_definition


def events_of_turn(definition: Definition, items: int) -> int:
    """Return the most events that one turn, from one CheckBreaker to the next, adds to the history: it passes every
    state, each task fails until its last retry, and the Map has `items` items."""
    return _events(definition["States"], items)


def _events(states: Mapping[str, Any], items: int) -> int:
    return sum(_events_of(state, items) for state in states.values())


def _events_of(state: Mapping[str, Any], items: int) -> int:
    entered = 2  # events StateEntered and StateExited
    if state["Type"] == "Map":  # events MapStateStarted and -Succeeded, and two for each iteration
        return entered + 2 + items * (2 + _events(state["ItemProcessor"]["States"], 0))
    if state["Type"] == "Task":  # Scheduled, Started, Submitted, Succeeded or Failed
        tries = 1 + sum(int(retry["MaxAttempts"]) for retry in state.get("Retry", ()))
        return entered + 4 * tries
    return entered


def _head(machine: Machine, arns: Mapping[str, str], partition: str) -> dict[str, Any]:
    """Return the states that decide if the execution continues."""
    payload = {"state.$": "$", "execution.$": "$$.Execution.Id"}
    answers: list[dict[str, Any]] = [
        {"Variable": "$.busy", "BooleanEquals": True, "Next": "AlreadyRunning"},
        {"Variable": "$.turns", "NumericGreaterThan": 0, "Next": "ContinueAsNew"},
    ]
    if machine.breaker_checks is not None:
        too_often = [
            {"Variable": "$.open", "BooleanEquals": True},
            {"Variable": "$.checks", "NumericGreaterThanEquals": machine.breaker_checks},
        ]
        answers.append({"And": too_often, "Next": "CircuitOpen"})
    answers.append({"Variable": "$.open", "BooleanEquals": True, "Next": "WaitForBreaker"})
    if machine.approval is not None:
        answers.append({"Variable": "$.approved", "BooleanEquals": False, "Next": "Approve"})
    return {
        "CheckBreaker": {**_task(arns["CheckBreaker"], partition, payload), "Next": "BreakerAnswer"},
        "BreakerAnswer": {"Type": "Choice", "Choices": answers, "Default": "Fetch"},
        "WaitForBreaker": {"Type": "Wait", "SecondsPath": "$.wait_s", "Next": "CheckBreaker"},
    }


def _body(machine: Machine, arns: Mapping[str, str], partition: str) -> dict[str, Any]:
    """Return the states that fetch a page and move its batches."""
    return {
        "Fetch": {**_task(arns["Fetch"], partition, {"state.$": "$"}), "Next": "FetchAnswer"},
        "FetchAnswer": {
            "Type": "Choice",
            "Choices": [
                {"Variable": "$.count", "NumericGreaterThan": 0, "Next": "Move"},
                {"Variable": "$.wait_s", "NumericGreaterThan": 0, "Next": "WaitForHeld"},
            ],
            "Default": "Done",
        },
        "WaitForHeld": {"Type": "Wait", "SecondsPath": "$.wait_s", "Next": "CheckBreaker"},
        "Move": {
            "Type": "Map",
            "ItemsPath": "$.batches",
            "MaxConcurrency": machine.auto.concurrency,
            "ItemProcessor": {
                "ProcessorConfig": {"Mode": "INLINE"},
                "StartAt": "Step",
                "States": _of_batch(arns, partition),
            },
            "ResultPath": "$.results",
            "Next": "CheckBreaker",
        },
    }


def _of_batch(arns: Mapping[str, str], partition: str) -> dict[str, Any]:
    """Return the states that one batch passes in the Map."""
    catch = [{"ErrorEquals": ["States.ALL"], "ResultPath": "$.error", "Next": "Failed"}]
    return {
        "Step": {
            "Type": "Choice",
            "Choices": [
                {"Variable": "$.step", "StringEquals": "isolate", "Next": "Isolate"},
                {"Variable": "$.step", "StringEquals": "redrive", "Next": "Wait"},
            ],
            "Default": "Failed",
        },
        "Wait": {"Type": "Wait", "SecondsPath": "$.wait_s", "Next": "Redrive"},
        "Redrive": {**_task(arns["Redrive"], partition), "Catch": catch, "End": True},
        "Isolate": {**_task(arns["Isolate"], partition), "Catch": catch, "End": True},
        "Failed": {"Type": "Pass", "Parameters": {"key.$": "$.key", "failed.$": "$.count"}, "End": True},
    }


def _approval(machine: Machine, by: Literal["sns", "sqs"], ask: str, partition: str) -> dict[str, Any]:
    words = (
        "States.Format('{} dead messages wait to be driven back. Execution: {}. Token of the approval: {}', "
        "$.dead, $$.Execution.Id, $$.Task.Token)"
    )
    body = {"token.$": "$$.Task.Token", "execution.$": "$$.Execution.Id", "dead.$": "$.dead"}
    action, given = {
        "sns": ("sns:publish", {"TopicArn": ask, "Subject": "redrive: approval is asked for", "Message.$": words}),
        "sqs": ("sqs:sendMessage", {"QueueUrl": ask, "MessageBody": body}),
    }[by]
    yes = [{"Variable": "$.approval.approved", "IsPresent": True},
           {"Variable": "$.approval.approved", "BooleanEquals": True}]  # fmt: skip
    return {
        "Approve": {
            "Type": "Task",
            "Resource": f"arn:{partition}:states:::{action}.waitForTaskToken",
            "Parameters": given,
            "TimeoutSeconds": machine.approval_s,
            "Retry": [dict(_ASK_AGAIN)],
            "ResultPath": "$.approval",
            "Catch": [
                {"ErrorEquals": ["States.Timeout"], "ResultPath": "$.error", "Next": "ApprovalTimedOut"},
                {"ErrorEquals": ["States.ALL"], "ResultPath": "$.error", "Next": "ApprovalFailed"},
            ],
            "Next": "ApprovalAnswer",
        },
        "ApprovalAnswer": {"Type": "Choice", "Choices": [{"And": yes, "Next": "Approved"}], "Default": "NotApproved"},
        "Approved": {"Type": "Pass", "Result": True, "ResultPath": "$.approved", "Next": "CheckBreaker"},
        "ApprovalTimedOut": {"Type": "Fail", "Error": "ApprovalTimedOut", "Cause": "There was no answer in time"},
        "NotApproved": {"Type": "Fail", "Error": "NotApproved", "Cause": "The redrive was not approved"},
        "ApprovalFailed": {"Type": "Fail", "Error": "ApprovalFailed", "Cause": "The question could not be asked"},
    }


def _ends(machine: Machine, partition: str) -> dict[str, Any]:
    # The name of the next execution is a hash of this one's, so retries of the task start only one.
    carried = ("chain", "approved", "checks", "idle", "held_until_ms", "redriven", "isolated", "failed")
    parameters = {
        "StateMachineArn.$": "$$.StateMachine.Id",
        "Name.$": "States.Hash($$.Execution.Id, 'SHA-256')",
        "Input": {f"{name}.$": f"$.{name}" for name in carried}
        | {"AWS_STEP_FUNCTIONS_STARTED_BY_EXECUTION_ID.$": "$$.Execution.Id"},
    }
    ends: dict[str, Any] = {
        "ContinueAsNew": {
            "Type": "Task",
            "Resource": f"arn:{partition}:states:::states:startExecution",
            "Parameters": parameters,
            "Retry": [{"ErrorEquals": [_STARTED], "MaxAttempts": 0}, dict(_RETRY[1])],
            "Catch": [{"ErrorEquals": [_STARTED], "ResultPath": "$.error", "Next": "Continued"}],
            "ResultPath": "$.continued",
            "Next": "Continued",
        },
        "Continued": {"Type": "Succeed"},
        "AlreadyRunning": {"Type": "Succeed"},
        "Done": {"Type": "Succeed"},
    }
    if machine.breaker_checks is not None:
        cause = f"The circuit breaker was open, or health failed, at {machine.breaker_checks} checks in a row"
        ends["CircuitOpen"] = {"Type": "Fail", "Error": "CircuitOpen", "Cause": cause}
    return ends


def _task(function: str, partition: str, payload: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the state that calls a Lambda function, whose result replaces the state machine's data."""
    given = {"Payload.$": "$"} if payload is None else {"Payload": dict(payload)}
    return {
        "Type": "Task",
        "Resource": f"arn:{partition}:states:::lambda:invoke",
        "Parameters": {"FunctionName": function, **given},
        "TimeoutSeconds": TASK_S,
        "Retry": [dict(retry) for retry in _RETRY],
        "OutputPath": "$.Payload",
    }
