"""Dead messages of many kinds, and selectors with the predicates they stand for, written apart from redrive's own."""

from __future__ import annotations

import json
import operator
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from redrive.fault import Fault, Kind
from redrive.message import (
    Ack,
    ClaimRequest,
    DeadLetter,
    Draft,
    Handle,
    Lane,
    Message,
    Quarantine,
    Redrive,
    RetryAt,
    Settlement,
)
from redrive.store import Store

TASKS, QUEUES = ("crm.push", "crm.pull", "mail"), ("crm", "bulk")
ERRORS = ("ValueError", "httpx.ReadTimeout", "httpx.ConnectTimeout")
LANES = (Lane.DEAD, Lane.QUARANTINE, Lane.DONE)
REASONS = ("exhausted", "permanent", "deadline", "of my own")
BODIES = (
    b'{"id": 7, "tags": ["vip", "eu"]}',
    b'{"id": 8.5, "who": {"name": "Ada"}}',
    b'{"id": "7", "who": null}',
    b"\xff",
    b"[]",
)


class One(NamedTuple):
    """A dead message and the fault that brought it to rest, if one did."""

    message: Message
    fault: Fault | None

    def __repr__(self) -> str:
        return f"One({self.message.id})"


class World(NamedTuple):
    """A store, and what is at rest in it now."""

    store: Store
    now_ms: int
    ones: list[One]

    def __repr__(self) -> str:
        return f"World({self.store.traits.name}, {len(self.ones)} at rest)"


def fill(store: Store, advance: Callable[[int], object], count: int = 60, seed: int = 7) -> World:
    """Let messages die, with and without a fault, some after retries, some again after a redrive; others wait."""
    draw = random.Random(seed)
    fates: dict[str, Fault | None] = {}
    for n in range(count):
        advance(draw.randrange(3) * 40_000)
        id = _put(store, draw, n)
        for _ in range(draw.choice([0, 0, 1])):
            _settle(store, RetryAt(store.now_ms()), _fault(draw))
            advance(1000)
        fates[id] = _die(store, draw)
        if draw.random() < 0.2:
            handle = next(Handle(id, m.redrives, m.lane) for m in store.find([id]) if m is not None)
            assert store.triage([handle], Redrive()) == [True]
            advance(1000)
            fates[id] = _die(store, draw)
    for n in range(count // 5):
        fates[_done(store, draw, n, advance)] = None
    store.put([Draft(task=TASKS[0], queue=QUEUES[0], key="waits")])
    found = [m for m in store.find(list(fates)) if m is not None]
    return World(store, store.now_ms(), [One(m, fates[m.id]) for m in found])


def _done(store: Store, draw: random.Random, n: int, advance: Callable[[int], object]) -> str:
    """One that is done and kept, at once or after a retry, or was cancelled."""
    advance(draw.randrange(3) * 40_000)
    id = _put(store, draw, -n)
    if n % 4 == 3:
        store.cancel([id])
        return id
    for _ in range(n % 2):
        _settle(store, RetryAt(store.now_ms()), _fault(draw))
        advance(1000)
    _settle(store, Ack(degraded="of my own" if n % 3 else None, keep_ms=10**9), None)
    return id


def _put(store: Store, draw: random.Random, n: int) -> str:
    draft = Draft(
        task=draw.choice(TASKS),
        queue=draw.choice(QUEUES),
        body=draw.choice(BODIES),
        key=draw.choice([None, f"order:{n}"]),
        group=draw.choice([None, "tenant-1", "tenant 2"]),
        correlation_id=f"order-{n % 3}",
        traceparent=TRACE if n % 2 else None,
    )
    return store.put([draft])[0].id


def _fault(draw: random.Random) -> Fault:
    error, number = draw.choice(ERRORS), draw.randrange(2)
    return Fault(Kind.DEFAULT, error, f"Timed out at step {number} * 2", f"{error[0]}{number}")


def _die(store: Store, draw: random.Random) -> Fault | None:
    fault = draw.choice([None, _fault(draw), _fault(draw)])
    reason = draw.choice(REASONS)
    _settle(store, Quarantine("poison", reason) if draw.random() < 0.2 else DeadLetter(reason), fault)
    return fault


def _settle(store: Store, decision: Any, fault: Fault | None) -> None:
    deliveries = store.exchange([], [ClaimRequest(queue, 1, 60_000) for queue in QUEUES]).deliveries
    assert len(deliveries) == 1
    store.exchange([Settlement(deliveries[0].receipt, decision, fault)], [])


# -- selectors and what they mean

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
Meaning = Callable[[One], bool]


class Asked(NamedTuple):
    """A selector, what it means, and what it means of quarantined and of done messages: only those that it names."""

    text: str
    means: Meaning
    names: Meaning


_OPS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq,
}  # fmt: skip


def _never(one: One) -> bool:
    return False


def _term(text: str, means: Meaning) -> Asked:
    return Asked(text, means, _never)


def _of_fault(name: str, fits: Callable[[str], bool]) -> Meaning:
    return lambda one: one.fault is not None and fits(getattr(one.fault, name))


def _body(one: One) -> Any:
    try:
        found = json.loads(one.message.body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _plain_terms() -> list[Asked]:
    found = [_term(f"task:{t}", lambda o, t=t: o.message.task == t) for t in TASKS]
    found += [_term(f"queue:{q}", lambda o, q=q: o.message.queue == q) for q in (*QUEUES, "none")]
    found += [_term(f'reason:"{r}"', lambda o, r=r: o.message.reason == r) for r in REASONS]
    found += [_term(f"error:{e}", _of_fault("error", lambda text, e=e: text == e)) for e in ERRORS]
    found += [
        _term(f"fingerprint:{f}", _of_fault("fingerprint", lambda text, f=f: text == f)) for f in ("V0", "h1", "x")
    ]
    return [
        *found,
        _term("error:*Timeout", _of_fault("error", lambda text: text.endswith("Timeout"))),
        _term(
            "error:(ValueError,httpx.R*)",
            _of_fault("error", lambda text: text[:1] == "V" or text.startswith("httpx.R")),
        ),
        _term("fingerprint:*", _of_fault("fingerprint", lambda text: True)),
        _term("task:crm.*", lambda o: o.message.task.startswith("crm.")),
        _term("reason:(exhausted,deadline)", lambda o: o.message.reason in ("exhausted", "deadline")),
        _term("key:*", lambda o: o.message.key is not None),
        _term("key:order:*2", lambda o: (o.message.key or "").endswith("2")),
        _term('group:"tenant 2"', lambda o: o.message.group == "tenant 2"),
        _term("correlation:order-1", lambda o: o.message.correlation_id == "order-1"),
        _term("trace:4bf9*", lambda o: o.message.traceparent is not None),
        _term('text:"STEP 1 * 2"', lambda o: any("step 1 * 2" in f.text for f in o.message.faults)),
        _term("text:timed*0", lambda o: any("step 0" in f.text for f in o.message.faults)),
        _term("redrives:>0", lambda o: o.message.redrives > 0),
        _term("attempt:(1,>=3)", lambda o: o.message.attempt == 1 or o.message.attempt >= 3),
        _term("crashes:0", lambda o: o.message.crashes == 0),
        _term("args.id:7", lambda o: _body(o).get("id") in (7, "7")),
        _term("args.id:>7", lambda o: _body(o).get("id") == 8.5),
        _term("args.id:=8.50", lambda o: _body(o).get("id") == 8.5),
        _term("args.tags:vip", lambda o: "tags" in _body(o)),
        _term("args.tags.1:eu", lambda o: "tags" in _body(o)),
        _term("args.who.name:Ad*", lambda o: isinstance(_body(o).get("who"), dict)),
        _term("args.who:null", lambda o: "who" in _body(o) and _body(o)["who"] is None),
        _term("args.who:*", lambda o: "who" in _body(o)),
        _lanes("lane:quarantine", Lane.QUARANTINE),
        _lanes("lane:(dead,quarantine)", Lane.DEAD, Lane.QUARANTINE),
        _lanes("lane:done", Lane.DONE),
        _lanes("lane:(done,dead)", Lane.DONE, Lane.DEAD),
        _term("lane:dead", lambda o: o.message.lane is Lane.DEAD),
    ]


def _lanes(text: str, *lanes: Lane) -> Asked:
    return Asked(text, lambda o: o.message.lane in lanes, lambda o: o.message.lane in lanes)


def _times(world: World) -> st.SearchStrategy[Asked]:
    def asked(drawn: tuple[str, str, bool, int, One]) -> Asked:
        field, op, point, off_ms, near = drawn

        def at(message: Message) -> Any:
            done = message.lane is Lane.DONE
            return message.enqueued_ms if field == "age" and not done else message.rested_ms

        edge_ms = at(near.message) + off_ms
        if point:
            text = f"{field}:{op}{_rfc3339(edge_ms)}"
            return _term(text, lambda o: _OPS[op](at(o.message), edge_ms))
        age_ms = max(0, world.now_ms - edge_ms)
        return _term(f"{field}:{op}{age_ms}ms", lambda o: _OPS[op](world.now_ms - at(o.message), age_ms))

    ops = st.sampled_from(["<", "<=", ">", ">="])
    drawn = st.tuples(
        st.sampled_from(["age", "failed"]), ops, st.booleans(), st.integers(-1, 1), st.sampled_from(world.ones)
    )
    return drawn.map(asked)


def _rfc3339(ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ms % 1000:03d}+00:00"


def _ids(world: World) -> st.SearchStrategy[Asked]:
    def asked(ones: list[One]) -> Asked:
        ids = [one.message.id for one in ones]
        return _term(f"id:({','.join(ids)})", lambda o: o.message.id in ids)

    return st.lists(st.sampled_from(world.ones), min_size=1, max_size=20).map(asked)


def _not(asked: Asked) -> Asked:
    return _term(f"-({asked.text})", lambda o: not asked.means(o))


def _and(many: list[Asked]) -> Asked:
    def means(o: One) -> bool:
        return all(a.means(o) for a in many)

    return Asked(f"({' '.join(a.text for a in many)})", means, lambda o: means(o) and any(a.names(o) for a in many))


def _or(many: list[Asked]) -> Asked:
    text = f"({' or '.join(a.text for a in many)})"
    return Asked(text, lambda o: any(a.means(o) for a in many), lambda o: any(a.names(o) for a in many))


def selectors(world: World) -> st.SearchStrategy[Asked]:
    """Any selector; conjunctions and times come often, as that is what indexes answer."""
    term = st.one_of(st.sampled_from(_plain_terms()), _times(world), _ids(world))

    def joined(inner: st.SearchStrategy[Asked]) -> st.SearchStrategy[Asked]:
        many = st.lists(inner, min_size=2, max_size=3)
        return many.map(_and) | many.map(_or) | inner.map(_not)

    return st.recursive(term, joined, max_leaves=6) | st.lists(term, min_size=1, max_size=4).map(_and) | _times(world)


def expected(world: World, asked: Asked) -> Sequence[One]:
    """By brute force, in the order of a listing."""
    ones = [o for o in world.ones if (asked.means if o.message.lane is Lane.DEAD else asked.names)(o)]
    ones = [o for o in ones if o.message.reason != "cancelled"]
    return sorted(ones, key=lambda o: (LANES.index(o.message.lane), o.message.rested_ms))
