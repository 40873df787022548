"""Whether a message is what a selector says: yes, no, or None while what that hangs on is not known."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec

from ...crypto import key_of_text, keys_in
from ...errors import SelectorError
from ...fault import Fault
from ...message import BLOB, SEALED, Message, Where
from .terms import (
    ARGS,
    NUMBERS,
    TIMES,
    Age,
    And,
    Node,
    Not,
    Number,
    Or,
    Pattern,
    Point,
    Term,
    Value,
    both,
)

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}
_END_MS = 2**62
_INDEXED = ("queue", "task", "reason", "fingerprint", "error")


class Unknown(Enum):
    """What a look at the message alone does not say."""

    FAULT = "which fault it died of"
    BODY = "its body"


class Seen:
    """A message as a selector sees it. `fault` is the one that brought it to rest, as some deaths come without one."""

    __slots__ = ("_decoded", "body", "fault", "message", "now_ms")

    def __init__(
        self,
        message: Message,
        now_ms: int,
        fault: Fault | Unknown | None = Unknown.FAULT,
        body: bytes | Unknown = Unknown.BODY,
    ) -> None:
        self.message, self.now_ms, self._decoded = message, now_ms, False
        self.fault = fault if message.faults else None
        self.body: Any = message.body if message.content != BLOB else body

    def args(self) -> Any:
        """The body as JSON: None where it is none. Unknown.BODY where it lies in a blob that was not read."""
        if self.message.content.startswith(SEALED):
            raise _encrypted("args", "bodies", self.message)
        if not self._decoded and not isinstance(self.body, Unknown):
            self._decoded = True
            try:
                self.body = msgspec.json.decode(self.body)
            except (ValueError, RecursionError):
                self.body = None
        return self.body


def judge(node: Node, seen: Seen) -> bool | None:
    """Whether the message matches; None where that hangs on what is unknown of it."""
    match node:
        case Term():
            return _fits(node, seen)
        case Not(inner):
            found = judge(inner, seen)
            return None if found is None else not found
        case And(nodes):
            return _first(nodes, seen, False)
        case Or(nodes):
            return _first(nodes, seen, True)


def _first(nodes: Iterable[Node], seen: Seen, decides: bool) -> bool | None:
    """`decides` if a node says so, else None if one does not know, else the other."""
    known = True
    for node in nodes:
        found = judge(node, seen)
        if found is decides:
            return decides
        known = known and found is not None
    return not decides if known else None


def _fits(term: Term, seen: Seen) -> bool | None:
    field, message = term.field, seen.message
    if field in ("fingerprint", "error"):
        return _fault_fits(term, seen)
    if field.startswith(ARGS):
        body = seen.args()
        return None if body is Unknown.BODY else _argument_fits(body, field.split(".")[1:], term.values)
    if field == "text":
        if any(key_of_text(f.text) is not None for f in message.faults):
            raise _encrypted("text", "texts", message)
        return any(value.within(f.text) for f in message.faults for value in term.values if isinstance(value, Pattern))
    if field in TIMES:
        at_ms = message.enqueued_ms if field == "age" or message.rested_ms is None else message.rested_ms
        return any(_time_fits(value, at_ms, seen.now_ms) for value in term.values)
    found = getattr(message, field)
    if field in NUMBERS:
        return any(_number_fits(value, found) for value in term.values)
    return found is not None and _text_fits(term.values, str(found))


def _encrypted(field: str, part: str, message: Message) -> SelectorError:
    keys = " and ".join(sorted({repr(key) for of, key in keys_in(message) if of == part}))
    what = "its body is" if part == "bodies" else "the text of a fault is"
    return SelectorError(
        f"{field} cannot be selected by: of message {message.id} {what} encrypted with key {keys}, which does not "
        "open it here",
        "expected the keys, by the app's encrypt= or REDRIVE_KEYS; select by task, error or fingerprint without them",
    )


def _text_fits(values: Iterable[Value], text: str) -> bool:
    return any(isinstance(value, Pattern) and value.fits(text) for value in values)


def _number_fits(value: Value, found: int | Decimal) -> bool:
    return isinstance(value, Number) and _COMPARE[value.op](found, value.amount)


def _time_fits(value: Value, at_ms: int, now_ms: int) -> bool:
    if isinstance(value, Age):
        return _COMPARE[value.op](now_ms - at_ms, value.ms)
    return isinstance(value, Point) and _COMPARE[value.op](at_ms, value.ms)


def _fault_fits(term: Term, seen: Seen) -> bool | None:
    """Of the fault that it died of: the last one kept, or none."""
    fault = seen.message.faults[-1] if seen.fault is Unknown.FAULT else seen.fault
    if not isinstance(fault, Fault) or not _text_fits(term.values, getattr(fault, term.field)):
        return False
    return None if seen.fault is Unknown.FAULT else True


def _argument_fits(body: Any, path: list[str], values: tuple[Value, ...]) -> bool:
    found = body
    for name in path:
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and len(name) < 10 and int(name) < len(found):
            found = found[int(name)]
        else:
            return False
    return any(_json_fits(value, found) for value in values)


def _json_fits(value: Value, found: Any) -> bool:
    """A list fits if one of its items does; `*` fits whatever is there."""
    if isinstance(found, list) and any(_json_fits(value, item) for item in found if not isinstance(item, list)):
        return True
    if isinstance(value, Number):
        number = isinstance(found, int | float) and not isinstance(found, bool)
        return number and _number_fits(value, found if isinstance(found, int) else Decimal(repr(found)))
    if isinstance(found, dict | list):
        return value == Pattern(("", ""))
    text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    return _text_fits((value,), text)


# -- what a store finds by itself


def split(node: Node, until_ms: int, now_ms: int) -> tuple[Where, Node]:
    """What of it a store can answer of messages that came to rest before `until_ms`, and what is left to judge."""
    found: dict[str, Any] = {}
    since_ms = 0
    left: list[Node] = []
    for term in node.nodes if isinstance(node, And) else (node,):
        match term:
            case Term("failed", (Age() | Point() as value,)):
                begin_ms, end_ms = _bounds(value, now_ms)
                since_ms, until_ms = max(since_ms, begin_ms), min(until_ms, end_ms)
            case Term("id", values) if "ids" not in found and all(map(_is_exact, values)):
                found["ids"] = _texts(values)
            case Term(field, values) if field in _INDEXED and field not in found and all(map(_is_exact, values)):
                texts = _texts(values)
                found[field] = texts[0] if len(texts) == 1 else texts
            case _:
                left.append(term)
    return Where(**found, since_ms=since_ms or None, until_ms=max(0, until_ms)), both(left)


def _texts(values: tuple[Value, ...]) -> tuple[str, ...]:
    return tuple(value.parts[0] for value in values if isinstance(value, Pattern))


def _is_exact(value: Value) -> bool:
    return isinstance(value, Pattern) and len(value.parts) == 1


def _bounds(value: Age | Point, now_ms: int) -> tuple[int, int]:
    """From when, and before when, a message came to rest that fits."""
    at_ms = now_ms - value.ms if isinstance(value, Age) else value.ms
    later = value.op[0] == ("<" if isinstance(value, Age) else ">")
    with_it = value.op.endswith("=")
    return (at_ms + (not with_it), _END_MS) if later else (0, at_ms + with_it)
