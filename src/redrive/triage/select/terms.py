"""What a selector says, as values: terms over a message's fields, joined by and, or and not. `str` gives its text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from msgspec import Struct

from ...duration import rfc3339
from ...message import RESTING, Lane

REASONS = (
    "exhausted", "permanent", "elapsed", "deadline", "budget", "rejected", "unreadable", "unroutable", "crashed",
)  # fmt: skip
TEXTS = ("task", "queue", "error", "reason", "fingerprint", "key", "group", "id", "text")
NUMBERS = ("attempt", "redrives", "crashes")
TIMES = ("age", "failed")
ARGS = "args."  # and a path into the body
FIELDS = (*TEXTS, *NUMBERS, *TIMES, "lane", "args")
_PLAIN = re.compile(r"[A-Za-z0-9_.:@/+][A-Za-z0-9_.:@/+-]*")
_UNITS = (("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


class Pattern(Struct, frozen=True):
    """Text in which any text may stand between two parts; of one part it is exact."""

    parts: tuple[str, ...]

    def fits(self, text: str) -> bool:
        """Whether all of the text is as the pattern says, upper and lower case apart."""
        first, *rest = self.parts
        if not rest:
            return text == first
        *middle, last = rest
        if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
            return False
        at, end = len(first), len(text) - len(last)
        for part in middle:
            found = text.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True

    def within(self, text: str) -> bool:
        """Whether it is found somewhere in the text, upper and lower case alike."""
        return Pattern(("", *(part.casefold() for part in self.parts), "")).fits(text.casefold())

    def __str__(self) -> str:
        return "*".join(_quoted(part) if part else "" for part in self.parts) if any(self.parts) else self._empty()

    def _empty(self) -> str:
        return "*" if len(self.parts) > 1 else '""'


class Number(Struct, frozen=True):
    """Compared with a number, such as >3."""

    op: str
    amount: Decimal

    def __str__(self) -> str:
        return f"{self.op}{self.amount:f}"


class Age(Struct, frozen=True):
    """Compared with how long ago something was, such as <6h."""

    op: str
    ms: int

    def __str__(self) -> str:
        left, text = self.ms, ""
        for unit, unit_ms in _UNITS:
            count, left = divmod(left, unit_ms)
            text += f"{count}{unit}" if count else ""
        return f"{self.op}{text or '0s'}"


class Point(Struct, frozen=True):
    """Compared with when something was, such as >=2026-01-31T15:04:05Z."""

    op: str
    ms: int

    def __str__(self) -> str:
        return self.op + rfc3339(self.ms)


Value = Pattern | Number | Age | Point


class Term(Struct, frozen=True):
    """A field that has one of these values."""

    field: str
    values: tuple[Value, ...]

    def __str__(self) -> str:
        texts = [self._text(value) for value in self.values]
        return f"{self.field}:{texts[0] if len(texts) == 1 else '(' + ','.join(texts) + ')'}"

    def _text(self, value: Value) -> str:
        """A reason that nobody knows is quoted, as a slip of the pen is not."""
        if self.field in NUMBERS:
            return str(value).removeprefix("=")
        if self.field == "reason" and isinstance(value, Pattern) and len(value.parts) == 1:
            return value.parts[0] if value.parts[0] in REASONS else _in_quotes(value.parts[0])
        return str(value)


class Not(Struct, frozen=True):
    """What the node does not match."""

    node: Node

    def __str__(self) -> str:
        return f"-{_grouped(self.node)}"


class And(Struct, frozen=True):
    """What all nodes match; without nodes everything."""

    nodes: tuple[Node, ...] = ()

    def __str__(self) -> str:
        return " ".join(f"({node})" if isinstance(node, Or) else str(node) for node in self.nodes)


class Or(Struct, frozen=True):
    """What any of the nodes matches; without nodes nothing."""

    nodes: tuple[Node, ...] = ()

    def __str__(self) -> str:
        return " or ".join(str(node) for node in self.nodes)


Node = Term | Not | And | Or
ALL, NONE = And(), Or()
LANES = (*RESTING, Lane.DONE)  # those that can be named
_NOT_CANCELLED = Not(Term("reason", (Pattern(("cancelled",)),)))


def both(nodes: Iterable[Node]) -> Node:
    """All of these, in the simplest form."""
    flat: list[Node] = []
    for node in nodes:
        flat += node.nodes if isinstance(node, And) else [node]
    if NONE in flat:
        return NONE
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def either(nodes: Iterable[Node]) -> Node:
    """Any of these, in the simplest form."""
    flat: list[Node] = []
    for node in nodes:
        flat += node.nodes if isinstance(node, Or) else [node]
    if ALL in flat:
        return ALL
    return flat[0] if len(flat) == 1 else Or(tuple(flat))


def opposite(node: Node) -> Node:
    """What this one does not match."""
    return NONE if node == ALL else ALL if node == NONE else Not(node)


def of_lane(node: Node, lane: Lane) -> Node:
    """What it says of messages in this lane, without a word of lanes. Of quarantined and of done ones it means only
    those that it names by `lane:quarantine` or `lane:done`, outside of any not; cancelled ones are never meant."""
    if lane is Lane.DEAD:
        return _settled(node, lane)
    meant = _settled(_naming(node, lane), lane)
    return both((_of_done(meant), _NOT_CANCELLED)) if lane is Lane.DONE else meant


def unnamed(node: Node, lane: Lane) -> Node:
    """What `of_lane` would say if it named the lane, or `NONE` where it does, or names others."""
    return NONE if of_lane(node, lane) != NONE else _settled(node, lane)


def _naming(node: Node, lane: Lane) -> Node:
    match node:
        case Term("lane", values):
            return node if Pattern((lane.value,)) in values else NONE
        case Term() | Not():
            return NONE
        case And(nodes):
            return both((*nodes, either(_naming(n, lane) for n in nodes)))
        case Or(nodes):
            return either(_naming(n, lane) for n in nodes)


def _of_done(node: Node) -> Node:
    """What was done died of no fault; its age is counted from when it was done, as `failed` is of what died."""
    match node:
        case Term("error" | "fingerprint"):
            return NONE
        case Term("age", values):
            return Term("failed", values)
        case Term():
            return node
        case Not(inner):
            return opposite(_of_done(inner))
        case And(nodes):
            return both(_of_done(n) for n in nodes)
        case Or(nodes):
            return either(_of_done(n) for n in nodes)


def _settled(node: Node, lane: Lane) -> Node:
    match node:
        case Term("lane", values):
            return ALL if Pattern((lane.value,)) in values else NONE
        case Term():
            return node
        case Not(inner):
            return opposite(_settled(inner, lane))
        case And(nodes):
            return both(_settled(n, lane) for n in nodes)
        case Or(nodes):
            return either(_settled(n, lane) for n in nodes)


def _grouped(node: Node) -> str:
    return f"({node})" if isinstance(node, And | Or) else str(node)


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else _in_quotes(text)


def _in_quotes(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
