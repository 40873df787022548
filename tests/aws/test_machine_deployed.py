"""The state machine as it is deployed: its definition run by ministack, its tasks as Lambdas in processes of their own,
its cells in DynamoDB. Waits take no time there."""

from __future__ import annotations

import io
import json
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.aws.places import REGION, Ministack, client
from tests.support.turns import in_turn

import redrive
from redrive.aws.redriver.steps import ATTEMPT
from redrive.aws.stepfunctions.machine import TASKS, Machine, batches_max, definition, events_of_turn
from redrive.flow import breaker, dependency
from redrive.flow.auto_redrive import AutoRedrive
from redrive.message import Swap, version_of
from redrive.stores import open_cells

HANDLERS = {"CheckBreaker": "check_breaker", "Fetch": "fetch", "Redrive": "redrive", "Isolate": "isolate"}
WITHIN_S = 90.0
ROLE = "arn:aws:iam::000000000000:role/any"
QUICK = AutoRedrive(batch=2, concurrency=2, rate="1000/s", jitter=0)  # waits are those of the table, to the second


def package() -> bytes:
    """A package that leads to the sources and dependencies of this environment."""
    paths = [str(Path(redrive.__file__).parents[1]), *(path for path in sys.path if path.endswith("site-packages"))]
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        lines = ["import sys", f"sys.path[:0] = {paths!r}"]
        names = ", ".join([*HANDLERS.values(), "approve"])
        file.writestr("handlers.py", "\n".join([*lines, f"from redrive.aws.stepfunctions import {names}", ""]))
    return data.getvalue()


class Deployed:
    """A machine of its own: `settle` waits for the end of an execution and of those that go on from it."""

    def __init__(
        self, server: Ministack, name: str, machine: Machine, turns: int | None = None, fifo: bool = False
    ) -> None:
        self.name, self.machine = name, machine
        self.sqs, self.sfn, self.awslambda = (client(s, server.url) for s in ("sqs", "stepfunctions", "lambda"))
        last, more = (".fifo", {"FifoQueue": "true"}) if fifo else ("", {})
        self.queue, self.dead, self.poison = (
            self.sqs.create_queue(QueueName=f"{name}{end}{last}", Attributes=more)["QueueUrl"]
            for end in ("", "-dlq", "-poison")
        )
        self.asked = self.sqs.create_queue(QueueName=f"{name}-approval")["QueueUrl"]
        self.cells = open_cells(f"dynamodb://{name}?region={REGION}&endpoint={server.url}&create=true")
        self.cells.read(["made"])
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": REGION}
        variables = keys | machine.environment | {
            "AWS_ENDPOINT_URL": server.url,
            "REDRIVE_QUEUE_URL": self.queue,
            "REDRIVE_DLQ_URL": self.dead,
            "REDRIVE_POISON_URL": self.poison,
            "REDRIVE_TABLE": name,
            "REDRIVE_DEPENDENCY": "crm",
        }  # fmt: skip
        self.definition = definition(
            machine,
            functions={task: self._function(HANDLERS[task], variables) for task in TASKS},
            ask=self.asked,
            partition="aws",
        )
        self.approves = self._function("approve", variables)
        if turns is not None:
            self.definition["States"]["BreakerAnswer"]["Choices"][1]["NumericGreaterThan"] = turns
        made = self.sfn.create_state_machine(name=name, definition=json.dumps(self.definition), roleArn=ROLE)
        self.arn = made["stateMachineArn"]

    def _function(self, handler: str, variables: dict[str, str]) -> str:
        made = self.awslambda.create_function(
            FunctionName=f"{self.name}-{handler}",
            Runtime="python3.11",
            Role=ROLE,
            Handler=f"handlers.{handler}",
            Code={"ZipFile": package()},
            Environment={"Variables": variables},
            Timeout=60,
        )
        return str(made["FunctionArn"])

    def put(self, *bodies: str, attempt: int = 0, group: str | None = None) -> None:
        told = {ATTEMPT: {"DataType": "Number", "StringValue": str(attempt)}} if attempt else {}
        for body in bodies:
            fifo = {"MessageGroupId": group, "MessageDeduplicationId": body} if group else {}
            self.sqs.send_message(QueueUrl=self.dead, MessageBody=body, MessageAttributes=told, **fifo)

    def bodies(self, url: str) -> list[str]:
        found: list[str] = []
        while True:
            answer = self.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=43_200)
            if not answer.get("Messages"):
                return sorted(found)
            found += [message["Body"] for message in answer["Messages"]]

    def start(self, given: Any = None) -> str:
        text = json.dumps(given or {"source": "aws.cloudwatch", "detail": {"state": {"value": "ALARM"}}})
        return str(
            self.sfn.start_execution(stateMachineArn=self.arn, name=f"e{time.time_ns()}", input=text)["executionArn"]
        )

    def settle(self, execution: str) -> list[dict[str, Any]]:
        """The executions of this machine, first one first, once none runs."""
        self.until(lambda: not self._found("RUNNING"))
        found = self._found()
        assert execution in [each["executionArn"] for each in found]
        told = [self.sfn.describe_execution(executionArn=each["executionArn"]) for each in found]
        return sorted(told, key=lambda each: each["startDate"])

    def _found(self, status: str | None = None) -> list[dict[str, Any]]:
        more = {"statusFilter": status} if status else {}
        found: list[dict[str, Any]] = self.sfn.list_executions(stateMachineArn=self.arn, **more)["executions"]
        return found

    def until(self, holds: Callable[[], Any]) -> Any:
        end_s = time.monotonic() + WITHIN_S
        while not (found := holds()):
            assert time.monotonic() < end_s, self._found()
            time.sleep(0.05)
        return found

    def history(self, execution: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        pages = self.sfn.get_paginator("get_execution_history").paginate(executionArn=execution)
        for page in pages:
            events += page["events"]
        return events

    def entered(self, execution: str) -> list[str]:
        """The states, in the order in which they were."""
        events = (event.get("stateEnteredEventDetails") for event in self.history(execution))
        return [event["name"] for event in events if event]

    def question(self) -> dict[str, Any]:
        """What a person is asked."""
        (asked,) = self.until(lambda: self.sqs.receive_message(QueueUrl=self.asked).get("Messages"))
        found: dict[str, Any] = json.loads(asked["Body"])
        return found

    def answer(self, question: dict[str, Any], *, approved: bool) -> dict[str, Any]:
        said = {"token": question["token"], "approved": approved, "actor": "ann", "reason": "fixed in 4.2"}
        told = self.awslambda.invoke(FunctionName=self.approves, Payload=json.dumps(said))
        found: dict[str, Any] = json.loads(told["Payload"].read())
        return found

    def attempts(self) -> dict[str, str]:
        """What those in the queue count, by the first letter of their bodies."""
        answer = self.sqs.receive_message(
            QueueUrl=self.queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"], VisibilityTimeout=0
        )
        return {m["Body"][0]: m["MessageAttributes"][ATTEMPT]["StringValue"] for m in answer["Messages"]}

    def breaks(self, status: breaker.BreakerStatus) -> None:
        key = dependency.cell_of("crm", "")
        state = dependency.DependencyState(breaker=breaker.State(status=status))
        swap = Swap(key, version_of(self.cells.read([key])[0]), dependency.encode(state))
        assert self.cells.swap([swap]) == [True]


def waits(history: list[dict[str, Any]]) -> set[int]:
    """How long the batches that went into the Map were to wait; ministack tells nothing of the states inside."""
    entered = [event.get("stateEnteredEventDetails", {}) for event in history]
    pages = [json.loads(each["input"])["batches"] for each in entered if each.get("name") == "Move"]
    return {batch["wait_s"] for page in pages for batch in page}


@pytest.fixture
def deploy(ministack: Ministack) -> Iterator[Callable[..., Deployed]]:
    made: list[Deployed] = []

    def one(machine: Machine, turns: int | None = None, fifo: bool = False) -> Deployed:
        made.append(Deployed(ministack, f"machine-{time.time_ns()}", machine, turns, fifo))
        return made[-1]

    yield one
    for each in made:
        each.cells.close()


Deploy = Callable[..., Deployed]


@in_turn(0, of=2)  # the other is that of the template, in test_pipeline
def test_it_waits_for_the_breaker_and_a_person_then_moves_and_isolates_in_pages_and_executions(deploy: Deploy) -> None:
    machine = Machine(auto=QUICK, approval="sqs")
    deployed = deploy(machine, turns=3)
    deployed.put(*(f"a{n}" for n in range(7)))
    deployed.put("b0", "b1", attempt=3)
    deployed.put("p0", "p1", "p2", attempt=5)
    deployed.breaks("forced_open")
    execution = deployed.start()
    deployed.until(lambda: "WaitForBreaker" in deployed.entered(execution))
    deployed.breaks("closed")
    question = deployed.question()
    assert question["dead"] == 12
    assert deployed.bodies(deployed.queue) == deployed.bodies(deployed.poison) == []
    assert deployed.answer(question, approved=True)["accepted"]
    executions = deployed.settle(execution)
    assert {each["status"] for each in executions} == {"SUCCEEDED"}
    end = json.loads(executions[-1]["output"])
    assert (end["redriven"], end["isolated"], end["failed"]) == (9, 3, 0)
    assert deployed.attempts() == {"a": "1", "b": "4"}
    assert deployed.bodies(deployed.queue) == [*(f"a{n}" for n in range(7)), "b0", "b1"]
    assert deployed.bodies(deployed.poison) == ["p0", "p1", "p2"]
    assert deployed.bodies(deployed.dead) == []
    histories = [deployed.history(each["executionArn"]) for each in executions]
    assert set().union(*map(waits, histories)) == {0, 60, 480}
    most = events_of_turn(deployed.definition, batches_max(machine.auto))
    assert len(histories) > 1 and all(len(history) <= 2 + 4 * most for history in histories)
    assert deployed.answer(question, approved=True)["accepted"] is False


@pytest.mark.soak
def test_an_open_breaker_is_waited_for_and_then_all_is_moved(deploy: Deploy) -> None:
    deployed = deploy(Machine(auto=QUICK))
    deployed.put("a")
    deployed.breaks("forced_open")
    execution = deployed.start()
    deployed.until(lambda: "WaitForBreaker" in deployed.entered(execution))
    assert deployed.bodies(deployed.queue) == []
    deployed.breaks("closed")
    assert json.loads(deployed.settle(execution)[-1]["output"])["redriven"] == 1
    assert deployed.bodies(deployed.queue) == ["a"]


@pytest.mark.soak
def test_a_breaker_that_stays_open_fails_it(deploy: Deploy) -> None:
    deployed = deploy(Machine(auto=QUICK, breaker_checks=2))
    deployed.put("a")
    deployed.breaks("forced_open")
    (failed,) = deployed.settle(deployed.start())
    assert (failed["status"], failed["error"]) == ("FAILED", "CircuitOpen")
    assert deployed.bodies(deployed.dead) == ["a"]


@pytest.mark.soak
def test_who_is_told_no_moves_nothing(deploy: Deploy) -> None:
    deployed = deploy(Machine(auto=QUICK, approval="sqs"))
    deployed.put("a")
    execution = deployed.start()
    question = deployed.question()
    assert question["execution"] == execution
    assert deployed.answer(question, approved=False)["accepted"]
    (ended,) = deployed.settle(execution)
    assert (ended["status"], ended["error"]) == ("FAILED", "NotApproved")
    assert deployed.bodies(deployed.dead) == ["a"]


@pytest.mark.soak
def test_137_dead_messages_are_all_redriven_or_isolated_and_none_is_left_waiting(deploy: Deploy) -> None:
    deployed = deploy(Machine())
    for attempt in range(6):
        deployed.put(*(f"{attempt}-{n}" for n in range(22 if attempt == 5 else 23)), attempt=attempt)
    end = json.loads(deployed.settle(deployed.start())[-1]["output"])
    assert (end["redriven"], end["isolated"], end["failed"]) == (115, 22, 0)
    assert deployed.bodies(deployed.queue) == sorted(f"{attempt}-{n}" for attempt in range(5) for n in range(23))
    assert deployed.bodies(deployed.poison) == sorted(f"5-{n}" for n in range(22))
    assert deployed.bodies(deployed.dead) == []


@pytest.mark.soak
def test_fifo_groups_keep_their_order(deploy: Deploy) -> None:
    deployed = deploy(Machine(), fifo=True)
    for n in range(12):
        for group in "abc":
            deployed.put(f"{group}{n:02}", group=group, attempt=n % 3)
    deployed.put("p", group="p", attempt=5)
    end = json.loads(deployed.settle(deployed.start())[-1]["output"])
    assert (end["redriven"], end["isolated"], end["failed"]) == (36, 1, 0)
    found: list[str] = []
    while answer := deployed.sqs.receive_message(QueueUrl=deployed.queue, MaxNumberOfMessages=10).get("Messages"):
        for message in answer:
            found.append(message["Body"])
            deployed.sqs.delete_message(QueueUrl=deployed.queue, ReceiptHandle=message["ReceiptHandle"])
    for group in "abc":
        assert [body for body in found if body[0] == group] == [f"{group}{n:02}" for n in range(12)]
