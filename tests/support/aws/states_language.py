"""An interpreter of the Amazon States Language, as far as redrive's machine uses it: JSONPath, and the clock of a test.

It counts the events of an execution's history and refuses, as Step Functions does, more than 25,000 of them and more
than 256 KiB between states. Items of a Map run side by side in the clock's time, as many as it says at once.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Generator, Mapping
from typing import Any

from redrive.testing.clock import ManualClock

EVENTS_MAX = 25_000
BYTES_MAX = 256 * 1024

Json = Any
Task = Callable[[Json], Json]
Steps = Generator[int, None, Json]  # yields seconds to wait


class Failed(Exception):
    """A state failed: `error` by its name in the States Language."""

    def __init__(self, error: str, cause: str = "") -> None:
        super().__init__(f"{error}: {cause}")
        self.error, self.cause = error, cause


class Execution:
    """A run of a definition. `functions` by ARN; `ask(parameters)` answers a task that waits for a token, or raises
    Failed; `started` are the inputs of executions that it began."""

    def __init__(
        self, definition: Json, functions: Mapping[str, Task], clock: ManualClock, ask: Task | None = None
    ) -> None:
        self._definition, self._functions, self._clock, self._ask = definition, functions, clock, ask
        self.id = f"arn:aws:states:eu-central-1:000000000000:execution:m:{id(self)}"
        self.events = 0
        self.path: list[str] = []
        self.waits: list[tuple[str, int]] = []
        self.started: list[Json] = []
        self.bytes = 0
        self.starts: Task | None = None  # called before an execution is started

    def run(self, given: Json) -> Json:
        """The output. Raises Failed."""
        self._count(2)
        steps = self._machine(self._definition, given)
        while True:
            try:
                self._clock.advance(next(steps))
            except StopIteration as end:
                return end.value

    def _count(self, events: int) -> None:
        self.events += events
        if self.events > EVENTS_MAX:
            raise Failed("States.Runtime", "the history has more than 25,000 events")

    def _passed(self, value: Json) -> Json:
        size = len(json.dumps(value))
        self.bytes = max(self.bytes, size)
        if size > BYTES_MAX:
            raise Failed("States.DataLimitExceeded", f"{size} bytes")
        return value

    def _machine(self, machine: Json, value: Json) -> Steps:
        name = machine["StartAt"]
        while True:
            state = machine["States"][name]
            self._count(2)
            self.path.append(name)
            value, following = yield from self._state(name, state, self._passed(value))
            self._passed(value)
            if following is None:
                return value
            name = following

    def _state(self, name: str, state: Json, value: Json) -> Generator[int, None, tuple[Json, str | None]]:
        following = state.get("Next")
        match state["Type"]:
            case "Choice":
                for rule in state["Choices"]:
                    if self._holds(rule, value):
                        return value, rule["Next"]
                return value, state["Default"]
            case "Wait":
                seconds = self._read(state["SecondsPath"], value)
                assert type(seconds) is int and seconds >= 0
                self.waits.append((name, seconds))
                yield seconds
                return value, following
            case "Pass":
                result = state["Result"] if "Result" in state else self._given(state, value)
                return self._put(state, value, result), following
            case "Succeed":
                return value, None
            case "Fail":
                raise Failed(state["Error"], state["Cause"])
            case "Map":
                return self._put(state, value, self._map(state, value)), following
            case "Task":
                return (yield from self._task(state, value))
        raise AssertionError(state["Type"])

    def _map(self, state: Json, value: Json) -> Json:
        items = self._read(state["ItemsPath"], value)
        results: list[Json] = [None] * len(items)
        waiting = list(enumerate(items))[::-1]
        running: list[tuple[int, int, Steps]] = []
        self._count(2)
        while waiting or running:
            while waiting and len(running) < state["MaxConcurrency"]:
                n, item = waiting.pop()
                self._count(2)
                heapq.heappush(running, (self._clock(), n, self._machine(state["ItemProcessor"], item)))
            at_ms, n, steps = heapq.heappop(running)
            self._clock.advance(max(0, at_ms - self._clock()) / 1000)
            try:
                heapq.heappush(running, (self._clock() + 1000 * next(steps), n, steps))
            except StopIteration as end:
                results[n] = end.value
        return results

    def _task(self, state: Json, value: Json) -> Generator[int, None, tuple[Json, str | None]]:
        tries = [0] * len(state.get("Retry", ()))
        while True:
            self._count(3)
            try:
                result = self._passed(self._call(state["Resource"], self._given(state, value)))
                return self._put(state, value, result), None if state.get("End") else state["Next"]
            except Failed as failed:
                n = next((n for n, r in enumerate(state.get("Retry", ())) if _covers(r, failed)), None)
                if n is not None and tries[n] < state["Retry"][n]["MaxAttempts"]:
                    retry = state["Retry"][n]
                    yield int(retry["IntervalSeconds"] * retry["BackoffRate"] ** tries[n])
                    tries[n] += 1
                    continue
                for catch in state.get("Catch", ()):
                    if _covers(catch, failed):
                        return self._put(catch, value, {"Error": failed.error, "Cause": failed.cause}), catch["Next"]
                raise

    def _call(self, resource: str, given: Json) -> Json:
        if resource.endswith(":::lambda:invoke"):
            try:
                payload = json.loads(json.dumps(given["Payload"]))
                return {
                    "StatusCode": 200,
                    "Payload": json.loads(json.dumps(self._functions[given["FunctionName"]](payload))),
                }
            except Exception as error:
                raise Failed(type(error).__name__, str(error)) from error
        if resource.endswith(":::states:startExecution"):
            if self.starts is not None:
                self.starts(given)
            self.started.append(given)
            return {"ExecutionArn": given["Name"]}
        assert resource.endswith(".waitForTaskToken") and self._ask is not None
        return self._ask(given)

    def _given(self, state: Json, value: Json) -> Json:
        return self._template(state["Parameters"], value) if "Parameters" in state else value

    def _template(self, template: Json, value: Json) -> Json:
        if not isinstance(template, dict):
            return template
        return {
            key.removesuffix(".$"): self._read(inner, value) if key.endswith(".$") else self._template(inner, value)
            for key, inner in template.items()
        }

    def _read(self, path: str, value: Json) -> Json:
        if path.startswith("States."):
            name, _, rest = path.partition("(")
            parts = [part.strip() for part in rest.removesuffix(")").split(", ")]
            args = [part.strip("'") if part[0] == "'" else self._read(part, value) for part in parts]
            if name == "States.Hash":
                assert args[1] == "SHA-256"
                return hashlib.sha256(args[0].encode()).hexdigest()
            assert name == "States.Format"
            return args[0].replace("{}", "%s") % tuple(args[1:])
        if path.startswith("$$"):
            context = {
                "Execution": {"Id": self.id}, "StateMachine": {"Id": "machine"}, "Task": {"Token": "token"},
            }  # fmt: skip
            return self._read(path[1:], context)
        for name in path.split(".")[1:]:
            if name not in value:
                raise Failed("States.ParameterPathFailure", path)
            value = value[name]
        return value

    def _put(self, state: Json, value: Json, result: Json) -> Json:
        path = state.get("ResultPath", "$")
        if path == "$":
            value = result
        else:
            assert path.count(".") == 1
            value = value | {path[2:]: result}
        return self._read(state.get("OutputPath", "$"), value)

    def _holds(self, rule: Json, value: Json) -> bool:
        if "And" in rule:
            return all(self._holds(each, value) for each in rule["And"])
        if "IsPresent" in rule:
            try:
                self._read(rule["Variable"], value)
            except Failed:
                return not rule["IsPresent"]
            return bool(rule["IsPresent"])
        found = self._read(rule["Variable"], value)
        match next(name for name in rule if name not in ("Variable", "Next")):
            case "BooleanEquals":
                return found is rule["BooleanEquals"]
            case "StringEquals":
                return isinstance(found, str) and found == rule["StringEquals"]
            case "NumericGreaterThan":
                return isinstance(found, int) and found > rule["NumericGreaterThan"]
            case "NumericGreaterThanEquals":
                return isinstance(found, int) and found >= rule["NumericGreaterThanEquals"]
        raise AssertionError(rule)


def _covers(entry: Json, failed: Failed) -> bool:
    errors = entry["ErrorEquals"]
    return (
        failed.error in errors
        or "States.ALL" in errors
        or ("States.TaskFailed" in errors and failed.error != "States.Timeout")
    )
