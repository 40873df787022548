"""A selector as a tree: terms over the fields of a message, joined by and, or and not. `str` returns its text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal

from msgspec import Struct

from ...duration import rfc3339
from ...errors import near_miss
from ...message import REASONS, RESTING, Filter, Lane

TEXTS = (
    "task", "queue", "error", "reason", "fingerprint", "key", "group", "batch", "step", "label", "id", "text",
    "correlation", "trace", "worker", "host",
)  # fmt: skip
NUMBERS = ("attempt", "redrives", "crashes")
TIMES = ("age", "failed", "due")
ARGS = "args."  # prefix of a path into the body
HEADER = "header."  # prefix of a header's name
FIELDS = (*TEXTS, *NUMBERS, *TIMES, "lane", "header", "args")
WORD = "word"  # the field of a bare word
SINCE = "since"  # when a message came to rest or, while it waits or runs, was enqueued; options alone ask for it
JOINS = ("or", "and", "not")  # words of the language
_PLAIN = re.compile(r"[A-Za-z0-9_.:@/+][A-Za-z0-9_.:@/+=-]*")
_UNITS = (("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


class Pattern(Struct, frozen=True):
    """A text with `*` between neighbouring parts; a pattern of one part matches exactly that text."""

    parts: tuple[str, ...]

    def fits(self, text: str) -> bool:
        """True if the whole text matches the pattern; case-sensitive."""
        first, *rest = self.parts
        if not rest:
            return text == first
        *middle, last = rest
        if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
            return False
        at, end = len(first), len(text) - len(last)
        for part in middle:
            index = text.find(part, at, end)
            if index < 0:
                return False
            at = index + len(part)
        return True

    def within(self, text: str) -> bool:
        """True if some part of the text matches the pattern; case-insensitive."""
        return Pattern(("", *(part.casefold() for part in self.parts), "")).fits(text.casefold())

    def __str__(self) -> str:
        return "*".join(_quoted(part) if part else "" for part in self.parts) if any(self.parts) else self._empty()

    def _empty(self) -> str:
        return "*" if len(self.parts) > 1 else '""'


class Number(Struct, frozen=True):
    """A comparison with a number, such as >3: an operator and the number."""

    op: str
    amount: Decimal

    def __str__(self) -> str:
        return f"{self.op}{self.amount:f}"


class Age(Struct, frozen=True):
    """A comparison with the time since an event, such as <6h: an operator and the time."""

    op: str
    ms: int

    def __str__(self) -> str:
        left, text = self.ms, ""
        for unit, unit_ms in _UNITS:
            count, left = divmod(left, unit_ms)
            text += f"{count}{unit}" if count else ""
        return f"{self.op}{text or '0s'}"


class PointInTime(Struct, frozen=True):
    """A comparison with the time of an event, such as >=2026-01-31T15:04:05Z."""

    op: str
    ms: int

    def __str__(self) -> str:
        return self.op + rfc3339(self.ms)


TermValue = Pattern | Number | Age | PointInTime


class Term(Struct, frozen=True):
    """Matches messages whose field has one of these values."""

    field: str
    values: tuple[TermValue, ...]

    def __str__(self) -> str:
        if self.field == WORD:
            return "*".join(map(_word, self.values[0].parts)) if isinstance(self.values[0], Pattern) else ""
        texts = [self._text(value) for value in self.values]
        return f"{self.field}:{texts[0] if len(texts) == 1 else '(' + ','.join(texts) + ')'}"

    def _text(self, value: TermValue) -> str:
        """Return the text of a value in a selector. Only known reasons are unquoted, so that a typo is an error."""
        if self.field in NUMBERS:
            return str(value).removeprefix("=")
        if self.field == "reason" and isinstance(value, Pattern) and len(value.parts) == 1:
            return value.parts[0] if value.parts[0] in REASONS else _in_quotes(value.parts[0])
        return str(value)


class Not(Struct, frozen=True):
    """Matches messages that the node does not match."""

    node: Node

    def __str__(self) -> str:
        return f"-{_grouped(self.node)}"


class And(Struct, frozen=True):
    """Matches messages that all nodes match; every message if there are none."""

    nodes: tuple[Node, ...] = ()

    def __str__(self) -> str:
        return " ".join(f"({node})" if isinstance(node, Or) else str(node) for node in self.nodes)


class Or(Struct, frozen=True):
    """Matches messages that any node matches; no message if there are none."""

    nodes: tuple[Node, ...] = ()

    def __str__(self) -> str:
        return " or ".join(str(node) for node in self.nodes)


Node = Term | Not | And | Or
ALL, NONE = And(), Or()
LANES = (*RESTING, Lane.DONE)  # the lanes of messages at rest
WAITING = ("scheduled", "ready", "parked")  # the names of the ready lane, by what its messages wait for
LANE_NAMES = (*(lane.value for lane in LANES), *WAITING, Lane.LEASED.value)  # what a selector calls the lanes


def both(nodes: Iterable[Node]) -> Node:
    """Return a node for messages that all of these nodes match, simplified."""
    flat: list[Node] = []
    for node in nodes:
        flat += node.nodes if isinstance(node, And) else [node]
    if NONE in flat:
        return NONE
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def either(nodes: Iterable[Node]) -> Node:
    """Return a node for messages that any of these nodes matches, simplified."""
    flat: list[Node] = []
    for node in nodes:
        flat += node.nodes if isinstance(node, Or) else [node]
    if ALL in flat:
        return ALL
    return flat[0] if len(flat) == 1 else Or(tuple(flat))


def opposite(node: Node) -> Node:
    """Return a node for messages that this node does not match, simplified."""
    return NONE if node == ALL else ALL if node == NONE else Not(node)


def exactly(field: str, *names: str) -> Term:
    """Return a term that matches exactly these names, including special characters."""
    return Term(field, tuple(Pattern((name,)) for name in names))


def as_node(where: Filter = Filter(), lane: Lane = Lane.DEAD) -> Node:
    """Return the selector for the same messages as this filter in this lane."""
    fields = {"queue": where.queue, "task": where.task, "reason": where.reason}
    fields |= {"fingerprint": where.fingerprint, "error": where.error, "batch": where.batch}
    terms: list[Node] = [
        exactly(field, *((said,) if isinstance(said, str) else said))
        for field, said in fields.items()
        if said is not None
    ]
    if where.ids is not None:
        terms.append(exactly("id", *where.ids))
    bounds = ((">=", where.since_ms), ("<", where.until_ms))
    terms += [Term("failed", (PointInTime(op, ms),)) for op, ms in bounds if ms is not None]
    if lane is not Lane.DEAD:
        terms.append(exactly("lane", lane.value))
    return both(terms)


def _grouped(node: Node) -> str:
    return f"({node})" if isinstance(node, And | Or) else str(node)


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else _in_quotes(text)


def _word(text: str) -> str:
    return _in_quotes(text) if ":" in text or "=" in text or text.lower() in JOINS else _quoted(text) if text else ""


def _in_quotes(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def fields_of(node: Node) -> Iterator[str]:
    """Yield the field of each term in a selector."""
    match node:
        case Term():
            yield node.field
        case Not():
            yield from fields_of(node.node)
        case _:
            for each in node.nodes:
                yield from fields_of(each)


def _words_of(node: Node) -> Iterator[str]:
    """Yield the text of each bare word in a selector."""
    match node:
        case Term(field, (Pattern(parts),)) if field == WORD:
            yield "*".join(parts)
        case Term():
            pass
        case Not():
            yield from _words_of(node.node)
        case _:
            for each in node.nodes:
                yield from _words_of(each)


def hint(node: Node) -> str | None:
    """Return a text about the first bare word of a selector that looks like the name of a field; None if none does."""
    for word in _words_of(node):
        if near := near_miss(word, FIELDS, 0.75):
            return f"'{word}' was searched as a word; did you mean {near}:… ?"
    return None
