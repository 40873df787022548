"""What the machine draws: a small world, so that random calls meet, and intentions that become calls when made.

Hypothesis takes long over each draw, and a draft alone would take ten. So the intentions are made beforehand, in pools
of whole batches, the same in every run, the simplest first: one draw takes one, and a failure shrinks to simple ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from redrive.fault import Fault, Kind
from redrive.message import (
    Ack,
    DeadLetter,
    Decision,
    Deferral,
    Discard,
    Edit,
    Filter,
    GroupOrder,
    Hasten,
    Isolate,
    Keep,
    Lane,
    OnDead,
    Postpone,
    Quarantine,
    Readmit,
    Redrive,
    RetryAt,
    Return,
    Verdict,
    WaitFields,
)

QUEUES, TASKS, WORKERS, CELLS = ("q", "r"), ("a", "b"), ("w1", "w2"), ("x", "y")
BATCHES = ("b", "c", "d")
BATCH_OF = (None, "b", "b", "c", "b", None, "c", "b", None, "d", "b")  # of one draft after the other, counted round
FAULTS = tuple(
    Fault(Kind.DEFAULT, f"Error{name}", f"text {name}", name * 16, (f"Error{name}", "Exception")) for name in "xy"
)
KILLED = Fault(Kind.CRASHED, "ProcessDied", "killed by SIGKILL", "k" * 16)
DEFERRALS = (Deferral("breaker", "stripe", ("ramp 3",)), Deferral("limit"), Deferral("budget", 'it\'s "mine" é'))
POOL = 500
T = TypeVar("T")


@dataclass(frozen=True)
class Sent:
    """A draft to be: times are from now."""

    task: str = "a"
    queue: str = "q"
    priority: int = 2
    delay_ms: int = 0
    due_in_ms: int | None = None
    key: str | None = None
    key_for_ms: int = 0
    deadline_in_ms: int | None = None
    keep_ms: int = 0
    group: str | None = None
    own_id: bool = True  # else the store makes one
    used_id: int | None = None  # the id of a message that was stored

    @classmethod
    def some(cls, rng: random.Random) -> Sent:
        return cls(
            task=rng.choice((*TASKS, TASKS[0])),
            queue=_often(rng, *QUEUES),
            priority=rng.choice((2, 2, 0, 1, 3)),
            delay_ms=_often(rng, 0, 1, 1500, 20_000),
            due_in_ms=_often(rng, None, -500, 0, 700),
            key=rng.choice((None, None, None, "k", "k", "k", "l")),
            key_for_ms=rng.choice((0, 2000, 600_000)),
            deadline_in_ms=_often(rng, None, 1000),
            keep_ms=_often(rng, 0, 1000),
            group=rng.choice((None, None, None, "g", "g", "g", "h")),
            own_id=rng.random() < 0.7,
            used_id=rng.choice((0, 1, 2)) if rng.random() < 0.04 else None,
        )


@dataclass(frozen=True)
class Exchanged:
    """A swap to be, of the version that is there (`right`) or another."""

    key: str = "x"
    right: bool = True
    value: bytes | None = b"1"
    ttl_ms: int | None = None

    @classmethod
    def some(cls, rng: random.Random) -> Exchanged:
        return cls(
            rng.choice(CELLS), rng.random() < 0.85, rng.choice((b"1", b"2", None)), rng.choice((None, None, 1000))
        )


@dataclass(frozen=True)
class Ended:
    """A settlement to be, of one of the last deliveries."""

    which: int = 0
    decision: str = "ack"
    delay_ms: int = 0
    fault: Fault | None = None
    follow_ups: tuple[Sent, ...] = ()
    swaps: tuple[Exchanged, ...] = ()

    @classmethod
    def some(cls, rng: random.Random) -> Ended:
        return cls(
            which=rng.randrange(16),
            decision=rng.choice(DECISIONS),
            delay_ms=rng.choice((0, 0, 700, 20_000, -1000)),
            fault=rng.choice((*FAULTS, *FAULTS, None)),
            follow_ups=_few(Sent.some, rng),
            swaps=_few(Exchanged.some, rng),
        )

    def decide(self, now: int) -> Decision:
        at_ms, counts = now + self.delay_ms, not self.decision.endswith("free")
        match self.decision.split()[0]:
            case "ack":
                return Ack()
            case "done":
                return Ack("no cache" if self.fault else None, None if self.delay_ms == 0 else abs(self.delay_ms))
            case "retry":
                return RetryAt(at_ms, counts=counts)
            case "hold":
                return RetryAt(at_ms, counts=counts, held=True)
            case "defer":
                return RetryAt(at_ms, "limit", counts=counts, held=True, deferral=DEFERRALS[self.which % 3])
            case "crash":
                return RetryAt(at_ms, "crashed", counts=counts, crashed=True, in_company=self.which % 2 > 0)
            case "convict":
                return Quarantine("poison", counts=counts, crashed=True, in_company=self.which % 2 > 0)
            case "dead":
                return DeadLetter("exhausted" if counts else "deadline", counts=counts)
            case _:
                return Quarantine("poison", counts=counts)


DECISIONS = (
    *("ack", "ack", "done", "retry", "retry", "retry free", "hold", "hold free"),
    *("defer free", "defer free", "defer", "crash", "crash free"),
    *("dead", "dead", "convict", "dead free", "quarantine", "quarantine free"),
)


@dataclass(frozen=True)
class Marked:
    """A mark to be, of one of the batches there are: with its counts, or with others in one field."""

    which: int = 0
    wrong: str | None = None
    keep_ms: int | None = None

    @classmethod
    def some(cls, rng: random.Random) -> Marked:
        return cls(
            which=rng.randrange(6),
            wrong=_often(rng, None, "opened", "died", "done", "open", "discarded"),
            keep_ms=rng.choice((None, 1000, 30_000)),
        )


@dataclass(frozen=True)
class Wanted:
    """An ask to be."""

    queue: str = "q"
    limit: int = 10
    lease_ms: int = 1000
    skip: str | None = None
    worker: str = "w1"

    @classmethod
    def some(cls, rng: random.Random) -> Wanted:
        return cls(
            queue=rng.choice(QUEUES),
            limit=_often(rng, 10, 1, 2, 0),
            lease_ms=_often(rng, 1000, 30_000),
            skip=_often(rng, None, *TASKS),
            worker=rng.choice(WORKERS),
        )


class Pool(Generic[T]):
    """What can be drawn, the simplest first. `strategy` is for whoever draws by Hypothesis."""

    def __init__(self, items: Iterable[T]) -> None:
        self.items = tuple(items)
        self.strategy: Any = None


def _often(rng: random.Random, usual: Any, *others: Any) -> Any:
    """`usual` three times in four."""
    return usual if rng.random() < 0.75 else rng.choice(others)


def _few(make: Callable[[random.Random], T], rng: random.Random) -> tuple[T, ...]:
    """Mostly none."""
    return tuple(make(rng) for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 1, 2))))


def _batches(kind: type[Any], least: int, most: int) -> Pool[tuple[Any, ...]]:
    rng = random.Random(kind.__name__)
    pool = [tuple(kind.some(rng) for _ in range(rng.randint(least, most))) for _ in range(POOL)]
    return Pool(sorted(pool, key=_effort))


def _effort(batch: tuple[Any, ...]) -> int:
    """How many parts of it are not what they are by default."""
    return sum(5 + sum(getattr(one, part.name) != part.default for part in fields(one)) for one in batch)


several_sent: Pool[tuple[Sent, ...]] = _batches(Sent, 1, 3)
several_ended: Pool[tuple[Ended, ...]] = _batches(Ended, 1, 3)
several_wanted: Pool[tuple[Wanted, ...]] = _batches(Wanted, 1, 2)
several_marked: Pool[tuple[Marked, ...]] = _batches(Marked, 1, 2)
several_exchanged: Pool[tuple[Exchanged, ...]] = _batches(Exchanged, 1, 2)
_none: tuple[Exchanged, ...] = ()
outer_swaps = Pool([_none] * 7 + [(Exchanged(),), (Exchanged("y"), Exchanged(right=False))])

queues, workers = Pool(QUEUES), Pool(WORKERS)
leases = Pool((1000, 30_000))
limits = Pool((50, 1, 2, 3))
_STRICT = {"group_order": GroupOrder.STRICT, "group_width": 1}
_TURNS = {"group_order": GroupOrder.TURNS, "on_dead": OnDead.SKIP}
settings: Pool[dict[str, Any]] = Pool(
    (
        *({"paused": False}, {"paused": True}, {"paused": None}, {"paused": False}),
        *({"group_width": 2}, {"group_width": 1}, {"group_width": 3}, {"group_width": 0}),
        *(_STRICT, _STRICT, {**_STRICT, "on_dead": OnDead.BLOCK}, {"group_order": GroupOrder.STRICT}),
        *(_TURNS, _TURNS, {**_TURNS, "group_width": 2}),
        *({"group_order": GroupOrder.TURNS}, {"on_dead": OnDead.BLOCK}, {"on_dead": OnDead.SKIP}),
    )
)
starts: Pool[dict[str, Any]] = Pool(
    ({}, {**_STRICT, "on_dead": OnDead.BLOCK}, {"group_width": 2}, _STRICT)
)  # how a world's first queue begins
groups = Pool(("g", "g", "h", None))
widths = Pool((None, None, 0, 1, 2, 3, -1))
resumes = Pool((True, False))
states = Pool((b"", b"half\x00\xff"))
ordinal = Pool(range(16))  # which of those there are; counted round
ordinals = Pool([(n,) for n in range(12)] + [(n, m % 16, 2 * m % 16) for m in range(20) for n in range(4)])
few = Pool([(n,) for n in range(6)] + [(0, 2), (1, 1)])
BEFORE = 3
started = Pool((None, (), (0,), (1,), (0, 2), (BEFORE,)))  # of what the worker had
alone = Pool((False, False, True))
deaths = Pool((None, KILLED))  # how a worker died
durable = Pool((True, False))
twice = Pool((False, True))
stale = Pool((None, None, None, "redrives", "lane"))
verdicts: Pool[Verdict] = Pool(
    (
        Redrive(),
        Redrive(),
        Redrive(attempts=3, run="run-1"),
        Redrive(to_queue="r", delay_ms=300),
        Redrive(keep_deadline=True, delay_ms=1),
        Discard("no"),
        Discard("no", waive=True),
        Isolate("poison"),
        Isolate("poison"),
        Redrive(run="run-1", delay_ms=700),
        Redrive(run="run-2", to_queue="r"),
        Redrive(run="run-2", delays_ms=(0, 700, 1)),
        Redrive(run="replay"),
        Redrive(run="replay", attempts=2),
        *(Return(run) for run in ("run-1", "run-1", "run-2", "replay", "replay")),
        *(Hasten(), Hasten(), Hasten("run-1"), Hasten("run-1")),
        # the due times become times from now, one for each message
        *(Postpone("run-2", (700,)), Postpone("run-1", (300,), back=True), Postpone("run-1", (-1,), back=True)),
        # their times become times from now, as they are for each message
        *(Edit("run-1", (WaitFields(priority=0),)), Edit("run-2", (WaitFields("r", 1, 900, 300),))),
        *(Edit("run-1", (WaitFields(deadline_ms=0),)), Edit("run-1", cancel=True), Edit("run-2@-", cancel=True)),
        *(Edit("run-1", (WaitFields("q", 2, 0),), back=True), Edit("run-2", (WaitFields(due_ms=1),), back=True)),
        *(Edit(run, (WaitFields(due_ms=300),), True, True) for run in ("run-1", "run-1", "run-2")),
        *(Readmit("mended"), Readmit("mended"), Readmit("mended")),
    )
)
lanes = Pool((None, None, None, *Lane))
# The time in a filter becomes that of some message when it is used.
filters = Pool(
    (
        Filter(),
        Filter(queue="q"),
        Filter(task="a"),
        Filter(reason="exhausted"),
        Filter(error="Errorx"),
        Filter(fingerprint="y" * 16),
        Filter(since_ms=0),
        Filter(until_ms=0),
        Filter(task="b", queue="q", since_ms=0),
        Filter(queue=("q", "other"), reason=("exhausted", "poison")),
        Filter(error=("Errorx", "Errory"), task=("a", "b")),
        Filter(redrives=1),
        Filter(run="run-1"),
        Filter(batch="b"),
        Filter(batch=("c", "d"), queue="q"),
    )
)
# How far the clock goes: to what comes due next, or just not so far, or by milliseconds.
advances = Pool(("next", "next", "just before", 1, 1500, 31_000, 61_000))
keeps = Pool([Keep(), Keep(1), Keep(1), Keep(1, 30_000), Keep(0, 0), Keep(None, 1000)])
