"""Split a selector by lane: what it means in each lane, and which part of that the store answers as a `Filter`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import SelectorError
from ..message import Filter, Lane, Narrowing
from .select.terms import (
    ALL,
    LANES,
    NONE,
    WAITING,
    Age,
    And,
    Node,
    Not,
    Or,
    Pattern,
    PointInTime,
    Term,
    TermValue,
    both,
    either,
    opposite,
)

_END_MS = 2**62
_INDEXED = ("queue", "task", "reason", "fingerprint", "error", "batch")
_NOT_CANCELLED = Not(Term("reason", (Pattern(("cancelled",)),)))
LIVE = (Lane.LEASED, Lane.READY)  # the lanes of messages that run or wait


def of_lane(node: Node, lane: Lane) -> Node:
    """Return the selector for messages of this lane, with its terms about lanes resolved. Only dead ones need no name:
    it matches others only if it names them, as `lane:quarantine` does, outside of any `not`; never cancelled ones. Of
    the ready lane, terms remain that tell scheduled, ready and parked messages apart."""
    if lane is Lane.DEAD:
        return _resolved(node, lane)
    if (named := _naming(node, lane)) == NONE:
        return NONE
    meant = _resolved(named, lane)
    return both((_of_done(meant), _NOT_CANCELLED)) if lane is Lane.DONE else meant


def in_lane(node: Node, lane: Lane) -> Node:
    """Return the selector for messages of this lane, where a selector that names no lane means all lanes."""
    return _resolved(node, lane)


def at_rest(node: Node) -> Node:
    """Return the selector. Raises SelectorError if it names a lane of messages that wait or run."""
    for lane in LIVE:
        if of_lane(node, lane) != NONE:
            raise SelectorError(
                f"lane:{_names(lane)[0]} names no dead letters",
                "expected lane:dead, lane:quarantine or lane:done; `redrive job list` and app.select find what waits",
            )
    return node


def of_waiting(node: Node) -> frozenset[str]:
    """Return the lanes of waiting messages that a plan of this selector is of: scheduled, ready, parked; empty for one
    of messages at rest. Raises SelectorError if it names both, or the lane of what runs."""
    lanes = [lane for lane in (*LANES, *LIVE) if of_lane(node, lane) != NONE]
    if not {*lanes} & {*LIVE}:
        return frozenset()
    names = {name for lane in lanes for name in _names(lane)} & {*_lanes_in(node)}
    if lanes == [Lane.READY]:
        return frozenset(names)
    raise SelectorError(
        f"a plan cannot be of the lanes {', '.join(sorted(names | {'dead'} if Lane.DEAD in lanes else names))}",
        "expected lane:scheduled alone, to make it due; lanes of what waits, to change it; or lanes of what is at rest",
    )


def _lanes_in(node: Node) -> Iterator[str]:
    match node:
        case Term("lane", values):
            yield from (value.parts[0] for value in values if isinstance(value, Pattern))
        case Term():
            pass
        case Not(inner):
            yield from _lanes_in(inner)
        case And(nodes) | Or(nodes):
            for each in nodes:
                yield from _lanes_in(each)


def unnamed(node: Node, lane: Lane) -> Node:
    """Return the selector for the lane as if it named the lane; `NONE` if it already does."""
    return NONE if of_lane(node, lane) != NONE else _resolved(node, lane)


def _naming(node: Node, lane: Lane) -> Node:
    match node:
        case Term("lane"):
            return node if _named(node, lane) else NONE
        case Term() | Not():
            return NONE
        case And(nodes):
            return both((*nodes, either(_naming(n, lane) for n in nodes)))
        case Or(nodes):
            return either(_naming(n, lane) for n in nodes)


def _names(lane: Lane) -> tuple[str, ...]:
    """Return the names of a lane in selectors: those of the ready lane say for what its messages wait."""
    return WAITING if lane is Lane.READY else (lane.value,)


def _named(term: Term, lane: Lane) -> tuple[TermValue, ...]:
    names = [Pattern((name,)) for name in _names(lane)]
    return tuple(value for value in term.values if value in names)


def _of_done(node: Node) -> Node:
    """Adapt the selector to done messages, which died of no fault. For them `age` counts from the time they were done,
    as `failed` does for dead messages from their death."""
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


def _resolved(node: Node, lane: Lane) -> Node:
    match node:
        case Term("lane"):
            named = _named(node, lane)
            return NONE if not named else ALL if len(named) == len(_names(lane)) else Term("lane", named)
        case Term():
            return node
        case Not(inner):
            return opposite(_resolved(inner, lane))
        case And(nodes):
            return both(_resolved(n, lane) for n in nodes)
        case Or(nodes):
            return either(_resolved(n, lane) for n in nodes)


# -- what the store answers


def split(node: Node, until_ms: int, now_ms: int) -> tuple[Filter, Node]:
    """Split a selector into the store's filter, for messages that died before `until_ms`, and the rest."""
    fields: dict[str, Any] = {}
    since_ms = 0
    left: list[Node] = []
    for term in node.nodes if isinstance(node, And) else (node,):
        match term:
            case Term("failed" | "since", (Age() | PointInTime() as value,)):
                begin_ms, end_ms = _bounds(value, now_ms)
                since_ms, until_ms = max(since_ms, begin_ms), min(until_ms, end_ms)
            case Term("id", values) if "ids" not in fields and all(map(_is_exact, values)):
                fields["ids"] = _texts(values)
            case Term(field, values) if field in _INDEXED and field not in fields and all(map(_is_exact, values)):
                texts = _texts(values)
                fields[field] = texts[0] if len(texts) == 1 else texts
            case _:
                left.append(term)
    return Filter(**fields, since_ms=since_ms or None, until_ms=max(0, until_ms)), both(left)


def split_live(node: Node, lane: Lane, now_ms: int) -> tuple[Filter, Node]:
    """Split a selector for messages that run or wait into the store's filter and the rest. Of these, indexes find only
    ids and queues; a range of due times, and what is in line in its group, also narrow what is read for the rest."""
    fields: dict[str, Any] = {}
    left: list[Node] = []
    for term in node.nodes if isinstance(node, And) else (node,):
        match term:
            case Term("id" | "queue" as field, values) if field not in fields and all(map(_is_exact, values)):
                fields[field] = _texts(values)
            case _:
                left.append(term)
    narrowing = _narrowing(left, now_ms) if lane is Lane.READY and "id" not in fields else None
    return Filter(queue=fields.get("queue"), ids=fields.get("id"), narrowing=narrowing), both(dict.fromkeys(left))


def _narrowing(terms: list[Node], now_ms: int) -> Narrowing | None:
    """Return what all of these terms let a store leave unread among waiting messages; None if that is little."""
    parked, group, low_ms, high_ms = None, None, 0, _END_MS
    for term in terms:
        match term:
            case Term("lane", (Pattern(("parked",)),)):
                parked = True
            case Term("lane", values) if Pattern(("parked",)) not in values:
                parked = False
                if values == (Pattern(("ready",)),):
                    high_ms = min(high_ms, now_ms)
                elif values == (Pattern(("scheduled",)),):
                    low_ms = max(low_ms, now_ms)
            case Term("group", (Pattern((name,)),)):
                group = name
            case Term("due", (Age() | PointInTime() as value,)):
                at_ms = now_ms + value.ms if isinstance(value, Age) else value.ms
                low_ms, high_ms = (low_ms, min(high_ms, at_ms)) if value.op[0] == "<" else (max(low_ms, at_ms), high_ms)
            case _:
                pass
    due_ms = (low_ms, high_ms) if high_ms < _END_MS else None  # else it is most of them
    return Narrowing(parked, group, due_ms) if parked or due_ms else None


def _texts(values: tuple[TermValue, ...]) -> tuple[str, ...]:
    return tuple(value.parts[0] for value in values if isinstance(value, Pattern))


def _is_exact(value: TermValue) -> bool:
    return isinstance(value, Pattern) and len(value.parts) == 1


def _bounds(value: Age | PointInTime, now_ms: int) -> tuple[int, int]:
    """Return the range of times at which a matching message died; the second time is excluded."""
    at_ms = now_ms - value.ms if isinstance(value, Age) else value.ms
    later = value.op[0] == ("<" if isinstance(value, Age) else ">")
    with_it = value.op.endswith("=")
    return (at_ms + (not with_it), _END_MS) if later else (0, at_ms + with_it)
