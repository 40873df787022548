"""Match a message against a selector: True, False, or None if more data is needed to decide."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec

from ...crypto import key_of_text, keys_in
from ...errors import SelectorError
from ...fault import Fault
from ...ids import wholes_of
from ...message import BLOB, SEALED, Lane, Message
from .terms import (
    ARGS,
    HEADER,
    NUMBERS,
    SINCE,
    TIMES,
    WORD,
    Age,
    And,
    Node,
    Not,
    Number,
    Or,
    Pattern,
    PointInTime,
    Term,
    TermValue,
)

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}


class Unknown(Enum):
    """Data that may decide a match and that the message alone does not contain."""

    FAULT = "which fault it died of"
    BODY = "its body"


class Candidate:
    """A message to match. `fault` is the fault that the message died of; None if it died without one. `hosts` has the
    hosts of workers by their names."""

    message: Message
    now_ms: int

    __slots__ = ("_decoded", "body", "fault", "hosts", "message", "now_ms")

    def __init__(
        self,
        message: Message,
        now_ms: int,
        fault: Fault | Unknown | None = Unknown.FAULT,
        body: bytes | Unknown = Unknown.BODY,
        hosts: Mapping[str, str] = {},
    ) -> None:
        self.hosts: Mapping[str, str] = hosts
        self.message, self.now_ms, self._decoded = message, now_ms, False
        self.fault: Fault | Unknown | None = fault if message.faults else None
        self.body: Any = message.body if message.content != BLOB else body

    def args(self, field: str = "args") -> Any:
        """The body as JSON; None for another body. Unknown.BODY if the body is in a blob that was not read."""
        if self.message.content.startswith(SEALED):
            raise _encrypted(field, "bodies", self.message)
        if not self._decoded and not isinstance(self.body, Unknown):
            self._decoded = True
            try:
                self.body = msgspec.json.decode(self.body)
            except (ValueError, RecursionError):
                self.body = None
        return self.body


def matches(node: Node, seen: Candidate) -> bool | None:
    """Return whether the message matches; None if that depends on data that is unknown."""
    match node:
        case Term():
            return _fits(node, seen)
        case Not(inner):
            answer = matches(inner, seen)
            return None if answer is None else not answer
        case And(nodes):
            return _first(nodes, seen, False)
        case Or(nodes):
            return _first(nodes, seen, True)


def _first(nodes: Iterable[Node], seen: Candidate, decides: bool) -> bool | None:
    """Return `decides` if a node matches so; otherwise None if a node is undecided; otherwise the opposite."""
    known = True
    for node in nodes:
        answer = matches(node, seen)
        if answer is decides:
            return decides
        known = known and answer is not None
    return not decides if known else None


def _fits(term: Term, seen: Candidate) -> bool | None:
    field, message = term.field, seen.message
    if field in ("fingerprint", "error"):
        return _fault_fits(term, seen)
    if field.startswith(ARGS):
        body = seen.args()
        return None if body is Unknown.BODY else _argument_fits(body, field.split(".")[1:], term.values)
    if field == "text":
        return any(_within(term.values, text) for text in _texts(message, "text"))
    if field == WORD:
        return _word_fits(term.values, seen)
    if field == "due":
        return message.lane is Lane.READY and any(_due_fits(v, message.due_ms, seen.now_ms) for v in term.values)
    if field in TIMES or field == SINCE:
        enqueued = field == "age" or (field == SINCE and message.rested_ms is None)
        at_ms = message.enqueued_ms if enqueued else _failed_ms(message)
        return at_ms is not None and any(_time_fits(value, at_ms, seen.now_ms) for value in term.values)
    if field.startswith(HEADER):
        name = field.removeprefix(HEADER)
        return any(
            _text_fits(term.values, message.headers[n]) for n in (name, f"sender:{name}") if n in message.headers
        )
    if field == "host":
        crashes = [fault.crash.host for fault in message.faults if fault.crash is not None]
        return any(_text_fits(term.values, host) for host in (*crashes, seen.hosts.get(message.worker or "")) if host)
    if field == "lane":
        return _text_fits(term.values, message.state_at(seen.now_ms))
    if field == "correlation":
        return _text_fits(term.values, message.correlation_id)
    if field == "label":
        return any(_text_fits(term.values, f"{name}={value}") for name, value in message.labels.items())
    if field == "trace":
        return message.traceparent is not None and _text_fits(term.values, _trace_id(message.traceparent))
    if field in ("batch", "step"):
        whole, _, step = (message.batch or "").rpartition("/")
        names = [step] if field == "step" else wholes_of(message.batch or "")
        return any(_text_fits(term.values, name) for name in names if whole or field == "batch")
    attribute = getattr(message, field)
    if field in NUMBERS:
        return any(_number_fits(value, attribute) for value in term.values)
    return attribute is not None and _text_fits(term.values, str(attribute))


def _failed_ms(message: Message) -> int | None:
    """Return when the message came to rest or, while it waits or runs, failed last; None if it has not failed."""
    if message.rested_ms is not None:
        return message.rested_ms
    return message.faults[-1].at_ms if message.faults else None


def _texts(message: Message, field: str) -> Iterator[str]:
    """Yield the texts of the message's faults. Raises SelectorError if they are encrypted."""
    for fault in message.faults:
        if key_of_text(fault.text) is not None:
            raise _encrypted(field, "texts", message)
        yield fault.text


def _within(values: Iterable[TermValue], text: str) -> bool:
    return any(value.within(text) for value in values if isinstance(value, Pattern))


def _word_fits(values: tuple[TermValue, ...], seen: Candidate) -> bool | None:
    """Search a word in the texts that people know a message by, in those of its faults, and in its arguments."""
    message = seen.message
    known = (message.id, message.correlation_id, message.key or "", *(fault.error for fault in message.faults))
    if any(_within(values, text) for text in known):
        return True
    if any(_within(values, text) for text in _texts(message, "a word")):
        return True
    body = seen.args("a word")
    return None if body is Unknown.BODY else any(_within(values, text) for text in _leaves(body))


def _leaves(body: Any) -> Iterator[str]:
    """Yield the values in a body as text, without the names of fields."""
    left = [body]
    while left:
        match left.pop():
            case dict() as fields:
                left += fields.values()
            case list() as items:
                left += items
            case str() as text:
                yield text
            case None:
                pass
            case value:
                yield msgspec.json.encode(value).decode()


def _due_fits(value: TermValue, due_ms: int | None, now_ms: int) -> bool:
    if due_ms is None:
        return False
    if isinstance(value, Age):
        return _COMPARE[value.op](due_ms - now_ms, value.ms)
    return _time_fits(value, due_ms, now_ms)


def _trace_id(traceparent: str) -> str:
    """Return the id of the trace in W3C's VERSION-TRACE-PARENT-FLAGS."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) > 1 else traceparent


def _encrypted(field: str, part: str, message: Message) -> SelectorError:
    keys = " and ".join(sorted({repr(key) for of, key in keys_in(message) if of == part}))
    what = "its body is" if part == "bodies" else "the text of a fault is"
    return SelectorError(
        f"cannot select by {field}: in message {message.id} {what} encrypted with key {keys}, which is not known here",
        "expected the keys, by the app's encrypt= or REDRIVE_KEYS; select by task, error or fingerprint without them",
    )


def _text_fits(values: Iterable[TermValue], text: str) -> bool:
    return any(isinstance(value, Pattern) and value.fits(text) for value in values)


def _number_fits(value: TermValue, number: int | Decimal) -> bool:
    return isinstance(value, Number) and _COMPARE[value.op](number, value.amount)


def _time_fits(value: TermValue, at_ms: int, now_ms: int) -> bool:
    if isinstance(value, Age):
        return _COMPARE[value.op](now_ms - at_ms, value.ms)
    return isinstance(value, PointInTime) and _COMPARE[value.op](at_ms, value.ms)


def _fault_fits(term: Term, seen: Candidate) -> bool | None:
    """Match a term with the fault that the message died of. If that is unknown, the last fault can only rule it out."""
    fault = seen.message.faults[-1] if seen.fault is Unknown.FAULT else seen.fault
    if not isinstance(fault, Fault) or not _text_fits(term.values, getattr(fault, term.field)):
        return False
    return None if seen.fault is Unknown.FAULT else True


def _argument_fits(body: Any, path: list[str], values: tuple[TermValue, ...]) -> bool:
    part = body
    for name in path:
        if isinstance(part, dict) and name in part:
            part = part[name]
        elif isinstance(part, list) and name.isdecimal() and len(name) < 10 and int(name) < len(part):
            part = part[int(name)]
        else:
            return False
    return any(_json_fits(value, part) for value in values)


def _json_fits(value: TermValue, content: Any) -> bool:
    """True if the content fits the value. A list fits if one of its items does; `*` fits anything."""
    if isinstance(content, list) and any(_json_fits(value, item) for item in content if not isinstance(item, list)):
        return True
    if isinstance(value, Number):
        number = isinstance(content, int | float) and not isinstance(content, bool)
        return number and _number_fits(value, content if isinstance(content, int) else Decimal(repr(content)))
    if isinstance(content, dict | list):
        return value == Pattern(("", ""))
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    return _text_fits((value,), text)
