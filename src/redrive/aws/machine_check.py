"""Whether a definition in the Amazon States Language (JSONPath) holds together, without AWS.

Linters of templates look at the outer states only: a `Next` that names no state inside a Map passes them, deploys, and
fails when it is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

NAME_MAX = 80  # characters of a state's name
WAIT_MAX_S = 99_999_999

_ANY = {"Type", "Comment"}
_IN_OUT = {"InputPath", "OutputPath"}
_GOES_ON = {"Next", "End"}
_RESULT = {"Parameters", "ResultSelector", "ResultPath"}
_ERRORS = {"Retry", "Catch"}
_FIELDS = {
    "Task": _ANY | _IN_OUT | _GOES_ON | _RESULT | _ERRORS | {
        "Resource", "TimeoutSeconds", "TimeoutSecondsPath", "HeartbeatSeconds", "HeartbeatSecondsPath", "Credentials"},
    "Pass": _ANY | _IN_OUT | _GOES_ON | {"Parameters", "ResultPath", "Result"},
    "Wait": _ANY | _IN_OUT | _GOES_ON | {"Seconds", "SecondsPath", "Timestamp", "TimestampPath"},
    "Choice": _ANY | _IN_OUT | {"Choices", "Default"},
    "Succeed": _ANY | _IN_OUT,
    "Fail": _ANY | {"Error", "ErrorPath", "Cause", "CausePath"},
    "Map": _ANY | _IN_OUT | _GOES_ON | _ERRORS | {
        "ItemsPath", "ItemSelector", "ItemProcessor", "MaxConcurrency", "MaxConcurrencyPath", "ResultSelector",
        "ResultPath", "ItemReader", "ItemBatcher", "ResultWriter", "Label",
        "ToleratedFailureCount", "ToleratedFailurePercentage"},
    "Parallel": _ANY | _IN_OUT | _GOES_ON | _RESULT | _ERRORS | {"Branches"},
}  # fmt: skip
_NEEDED = {"Task": ("Resource",), "Map": ("ItemProcessor",), "Parallel": ("Branches",), "Choice": ("Choices",)}
_MACHINE = {"Comment", "StartAt", "States", "Version", "TimeoutSeconds", "QueryLanguage"}
_PROCESSOR = {"Comment", "StartAt", "States", "ProcessorConfig"}
_BRANCH = {"Comment", "StartAt", "States"}
_RETRIER = {
    "ErrorEquals",
    "IntervalSeconds",
    "MaxAttempts",
    "BackoffRate",
    "MaxDelaySeconds",
    "JitterStrategy",
    "Comment",
}
_CATCHER = {"ErrorEquals", "Next", "ResultPath", "Comment"}
_PATHS = ("InputPath", "OutputPath", "ResultPath", "ItemsPath", "SecondsPath", "TimestampPath", "TimeoutSecondsPath",
          "HeartbeatSecondsPath", "MaxConcurrencyPath", "ErrorPath", "CausePath")  # fmt: skip
_ORDERS = ("Equals", "LessThan", "GreaterThan", "LessThanEquals", "GreaterThanEquals")
_OPERANDS: dict[str, type | tuple[type, ...]] = {
    **{f"String{order}": str for order in _ORDERS},
    **{f"Numeric{order}": (int, float) for order in _ORDERS},
    **{f"Timestamp{order}": str for order in _ORDERS},
    "BooleanEquals": bool,
    "StringMatches": str,
    **dict.fromkeys(("IsNull", "IsPresent", "IsNumeric", "IsString", "IsBoolean", "IsTimestamp"), bool),
}
_BY_PATH = {f"{name}Path" for name in _OPERANDS if not name.startswith("Is") and name != "StringMatches"}


def check_machine(definition: Any) -> list[str]:
    """What is wrong with a state machine's definition, a line each with the place first; empty where nothing is.

    In each scope (the machine, a Map's ItemProcessor, a Parallel's branches): StartAt, Next, Default and Catch name
    states of that very scope; every state is reached, and can reach an end; every Choice has a Default and comparisons
    that are one; every state has what its type needs, and no field that it does not know; paths and `.$` keys are
    paths; no ResultPath is null, which some templates cannot carry; names are unique in the machine. A token of a task
    is used where it is waited for, and nowhere else. Never raises.
    """
    if not isinstance(definition, Mapping):
        return [f"machine: expected an object, not {type(definition).__name__}"]
    found = list(_scope(definition, "machine", _MACHINE))
    names = list(_names(definition))
    return found + [
        f"machine: two states are called {name!r}; expected names unique in the machine"
        for name in sorted({name for name in names if names.count(name) > 1})
    ]


def _scope(scope: Mapping[str, Any], place: str, known: set[str]) -> Iterator[str]:
    yield from _unknown(scope, known, place)
    states = scope.get("States")
    if not isinstance(states, Mapping) or not states:
        yield f"{place}: it has no States"
        return
    for name, state in states.items():
        at = f"{place}.{name}"
        if len(str(name)) > NAME_MAX:
            yield f"{at}: a name has {NAME_MAX} characters at most"
        if not isinstance(state, Mapping):
            yield f"{at}: expected an object, not {type(state).__name__}"
        else:
            yield from _state(state, at)
    yield from _ways(scope.get("StartAt"), {n: s for n, s in states.items() if isinstance(s, Mapping)}, place)


def _ways(start: Any, states: Mapping[str, Mapping[str, Any]], place: str) -> Iterator[str]:
    """The transitions: they exist, reach all, and end."""
    ways = {name: list(_targets(state)) for name, state in states.items()}
    for where, target in [(f"{place}: StartAt", start)] + [
        (f"{place}.{name}: {field}", target) for name, targets in ways.items() for field, target in targets
    ]:
        if not isinstance(target, str) or target not in states:
            yield f"{where} names {target!r}, which is no state of its scope"
    leads = {name: {target for _, target in targets if isinstance(target, str)} for name, targets in ways.items()}
    reached = _closure({start} & set(states) if isinstance(start, str) else set(), leads)
    yield from (f"{place}.{name}: it is never reached" for name in states if name not in reached)
    back: dict[str, set[str]] = {name: {n for n, targets in leads.items() if name in targets} for name in states}
    ending = _closure({name for name, state in states.items() if _ends(state)}, back)
    yield from (f"{place}.{name}: no end is reached from it" for name in states if name not in ending)


def _targets(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for field in ("Next", "Default"):
        if field in state:
            yield field, state[field]
    for field in ("Choices", "Catch"):
        for n, entry in enumerate(_list(state.get(field))):
            if isinstance(entry, Mapping) and "Next" in entry:
                yield f"{field}[{n}]", entry["Next"]


def _closure(found: set[str], leads: Mapping[str, set[str]]) -> set[str]:
    found, edge = set(found), list(found)
    while edge:
        fresh = leads.get(edge.pop(), set()) - found
        found |= fresh
        edge += fresh
    return found


def _ends(state: Mapping[str, Any]) -> bool:
    return state.get("Type") in ("Succeed", "Fail") or state.get("End") is True


def _state(state: Mapping[str, Any], at: str) -> Iterator[str]:
    kind = state.get("Type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        yield f"{at}: Type {kind!r}; known: {', '.join(_FIELDS)}"
        return
    yield from _unknown(state, _FIELDS[kind], at)
    yield from (f"{at}: a {kind} needs {field}" for field in _NEEDED.get(kind, ()) if field not in state)
    if "Next" in _FIELDS[kind] and ("Next" in state) == (state.get("End") is True):
        yield f"{at}: expected either Next, or End that is true"
    yield from _paths(state, at)
    yield from _token(state, at)
    yield from _catching(state, at)
    match kind:
        case "Choice":
            yield from _choice(state, at)
        case "Wait":
            yield from _wait(state, at)
        case "Map" if isinstance(state.get("ItemProcessor"), Mapping):
            yield from _scope(state["ItemProcessor"], f"{at}.ItemProcessor", _PROCESSOR)
        case "Parallel":
            for n, branch in enumerate(_list(state.get("Branches"))):
                if isinstance(branch, Mapping):
                    yield from _scope(branch, f"{at}.Branches[{n}]", _BRANCH)
        case _:
            pass


def _paths(state: Mapping[str, Any], at: str) -> Iterator[str]:
    for field in _PATHS:
        if field not in state:
            continue
        path = state[field]
        if path is None:
            yield f"{at}: {field} is null, which not every template can carry; expected a path"
        elif not isinstance(path, str) or not path.startswith(("$", "States.")):
            yield f"{at}: {field} {path!r} is no path; expected one such as $.name"
    for field in ("Parameters", "ResultSelector", "ItemSelector"):
        yield from _template(state.get(field), f"{at}: {field}")


def _template(value: Any, at: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            text = isinstance(inner, str)
            if str(key).endswith(".$") and not (text and inner.startswith(("$", "States."))):
                yield f"{at}.{key}: {inner!r} is no path"
            elif not str(key).endswith(".$") and text and inner.startswith(("$.", "$$.", "States.")):
                yield f"{at}.{key}: {inner!r} would be taken as text; name it {key}.$"
            else:
                yield from _template(inner, f"{at}.{key}")
    for n, inner in enumerate(_list(value)):
        yield from _template(inner, f"{at}[{n}]")


def _token(state: Mapping[str, Any], at: str) -> Iterator[str]:
    waits = str(state.get("Resource", "")).endswith(".waitForTaskToken")
    used = "$$.Task.Token" in str(state.get("Parameters", ""))
    if waits and not used:
        yield f"{at}: it waits for a token that nobody is given; expected $$.Task.Token among its Parameters"
    if used and not waits:
        yield f"{at}: its token is given away, and not waited for; expected a Resource with .waitForTaskToken"


def _catching(state: Mapping[str, Any], at: str) -> Iterator[str]:
    for field, known in (("Retry", _RETRIER), ("Catch", _CATCHER)):
        entries = state.get(field, [])
        if not isinstance(entries, list):
            yield f"{at}: {field} is no list"
        for n, entry in enumerate(_list(entries)):
            place = f"{at}: {field}[{n}]"
            if not isinstance(entry, Mapping):
                yield f"{place} is no object"
                continue
            yield from _unknown(entry, known, place)
            errors = entry.get("ErrorEquals")
            if not isinstance(errors, list) or not errors:
                yield f"{place}: ErrorEquals names no error"
            elif "States.ALL" in errors and (len(errors) > 1 or n < len(entries) - 1):
                yield f"{place}: States.ALL stands alone, and last"
            if field == "Catch" and "Next" not in entry:
                yield f"{place}: it has no Next"
            if "ResultPath" in entry and not str(entry["ResultPath"]).startswith("$"):
                yield f"{place}: ResultPath {entry['ResultPath']!r} is no path"


def _choice(state: Mapping[str, Any], at: str) -> Iterator[str]:
    choices = state.get("Choices")
    if not isinstance(choices, list) or not choices:
        yield f"{at}: it has no Choices"
    if "Default" not in state:
        yield f"{at}: it has no Default: what fits no choice would fail the execution"
    for n, rule in enumerate(_list(choices)):
        place = f"{at}: Choices[{n}]"
        if isinstance(rule, Mapping) and "Next" not in rule:
            yield f"{place}: it has no Next"
        yield from _rule(rule, place, top=True)


def _rule(rule: Any, at: str, *, top: bool = False) -> Iterator[str]:
    if not isinstance(rule, Mapping):
        yield f"{at} is no object"
        return
    fields = set(rule) - {"Comment"} - ({"Next"} if top else set())
    inner = fields & {"And", "Or", "Not"}
    if inner:
        if len(fields) > 1:
            yield f"{at}: expected one of And, Or and Not, and nothing beside it"
        for name in sorted(inner):
            rules = rule[name] if name != "Not" else [rule[name]]
            if not isinstance(rules, list) or not rules:
                yield f"{at}.{name}: expected a list of rules"
            for n, each in enumerate(_list(rules)):
                yield from _rule(each, f"{at}.{name}[{n}]")
        return
    operators = fields - {"Variable"}
    if "Variable" not in rule or not str(rule["Variable"]).startswith("$"):
        yield f"{at}: Variable {rule.get('Variable')!r} is no path"
    if len(operators) != 1:
        yield f"{at}: expected one comparison, found {', '.join(sorted(operators)) or 'none'}"
    for operator in sorted(operators):
        yield from _operand(operator, rule[operator], at)


def _operand(operator: str, operand: Any, at: str) -> Iterator[str]:
    if operator in _BY_PATH:
        if not isinstance(operand, str) or not operand.startswith("$"):
            yield f"{at}: {operator} {operand!r} is no path"
    elif operator not in _OPERANDS:
        yield f"{at}: comparison {operator!r} is not known"
    elif not isinstance(operand, _OPERANDS[operator]) or (
        _OPERANDS[operator] is not bool and isinstance(operand, bool)
    ):
        yield f"{at}: {operator} {operand!r} is of the wrong type"


def _wait(state: Mapping[str, Any], at: str) -> Iterator[str]:
    given = [field for field in ("Seconds", "SecondsPath", "Timestamp", "TimestampPath") if field in state]
    if len(given) != 1:
        yield f"{at}: expected one of Seconds, SecondsPath, Timestamp and TimestampPath"
    seconds = state.get("Seconds", 0)
    if type(seconds) is not int or not 0 <= seconds <= WAIT_MAX_S:
        yield f"{at}: Seconds {seconds!r}; expected a whole number up to {WAIT_MAX_S:,}"


def _unknown(found: Mapping[str, Any], known: set[str], at: str) -> Iterator[str]:
    yield from (f"{at}: field {field!r} is not known there" for field in found if field not in known)


def _names(scope: Any) -> Iterator[str]:
    """The names of all states, of inner scopes too."""
    states = scope.get("States") if isinstance(scope, Mapping) else None
    for name, state in states.items() if isinstance(states, Mapping) else ():
        yield str(name)
        if isinstance(state, Mapping):
            yield from _names(state.get("ItemProcessor"))
            for branch in _list(state.get("Branches")):
                yield from _names(branch)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
