"""A plan: the exact messages that a redrive would move, drawn up and kept, with nothing moved.

It lies in cells. `run/ID/plan` is the plan, `run/ID/c/N` its chunk N: at most 1,000 messages as they were seen. The run
that carries it out has its id, and its cells beside these (`run/ID`, …). Chunks are written as they are found and the
plan last, so that one which is cut off was never there: its chunks expire.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...errors import PlanRefused
from ...ids import new_id
from ...message import Handle, Message, Swap
from ...registry import Registry
from ...store import Cells, Store
from .settings import Settings, estimate_s

CHUNK = 1000  # messages in one cell
NAMES_MAX, OTHERS = 1000, "…"  # queues, or tasks, that are counted by name
AT_ONCE = 10  # cells that are read at once
KEPT_MS = 7 * 24 * 3_600_000  # a plan that nobody applies
AGES = ("<1h", "<6h", "<1d", "<7d", "<30d", ">=30d")  # at rest
_AGES_MS = [hours * 3_600_000 for hours in (1, 6, 24, 7 * 24, 30 * 24)]


class Plan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run would do, and to how many.

    `selector` chose them when the clock of the store was `made_ms`. Beyond a thousand queues, or tasks, the others
    are counted together. `by_age` tells how long they have been at rest: each age without what is under the one before
    it. `excluded` were left out, by why. `eta_s` is an estimate of how long the run takes. `dependencies` are those
    that the tasks of the messages call, where the app was known. `digest` is of all of it and of every chunk.
    """

    id: str
    selector: str
    made_ms: int
    settings: Settings = Settings()
    total: int = 0
    chunks: int = 0
    by_queue: Mapping[str, int] = {}
    by_task: Mapping[str, int] = {}
    by_age: Mapping[str, int] = {}
    excluded: Mapping[str, int] = {}
    eta_s: float = 0.0
    dependencies: Mapping[str, str] = {}
    digest: str = ""


# -- the cells


def plan_cell(id: str) -> str:
    """Where the plan lies."""
    return f"run/{id}/plan"


def chunk_cell(id: str, n: int) -> str:
    """Where its chunk n lies, from 0."""
    return f"run/{id}/c/{n}"


def read_plan(cells: Cells, id: str) -> Plan | None:
    """The plan of this id; None if there is none, or none any more. Raises PlanRefused where it cannot be read."""
    (cell,) = cells.read([plan_cell(id)])
    if cell is None:
        return None
    try:
        return msgspec.json.decode(cell.value, type=Plan)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanRefused(f"plan {id} cannot be read: it was altered", f"{error}", "altered") from error


def read_chunk(cells: Cells, id: str, n: int) -> list[Handle]:
    """The messages of its chunk n. Raises PlanRefused where it is not there, or was altered beyond reading."""
    (cell,) = cells.read([chunk_cell(id, n)])
    if cell is None:
        raise _no_chunk(id, n)
    try:
        return msgspec.json.decode(cell.value, type=list[Handle])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanRefused(f"chunk {n} of plan {id} cannot be read: it was altered", f"{error}", "altered") from error


def _no_chunk(id: str, n: int) -> PlanRefused:
    return PlanRefused(f"chunk {n} of plan {id} is not there", "it was altered, or has expired", "altered")


def check(cells: Cells, plan: Plan) -> None:
    """Raises PlanRefused unless the plan and all of its chunks are as they were drawn up."""
    digest = hashlib.sha256()
    for some in batched(plan):
        for n, cell in zip(some, cells.read([chunk_cell(plan.id, n) for n in some]), strict=True):
            if cell is None:
                raise _no_chunk(plan.id, n)
            digest.update(cell.value)
    if _sealed(digest, plan) != plan.digest:
        raise PlanRefused(f"plan {plan.id} was altered since it was drawn up", "draw up another", "altered")


def keep(cells: Cells, plan: Plan, for_ms: int) -> None:
    """Keep the plan and its chunks that long from now on. Raises PlanRefused where one is gone."""
    gone = prolong(cells, [plan_cell(plan.id)], for_ms)
    for some in batched(plan):
        gone += prolong(cells, [chunk_cell(plan.id, n) for n in some], for_ms)
    if gone:
        raise PlanRefused(f"{gone[0]} of plan {plan.id} is not there", "it was altered, or has expired", "altered")


def prolong(cells: Cells, keys: Sequence[str], for_ms: int) -> list[str]:
    """Keep these cells that long from now on; those that are not there."""
    found = [*zip(keys, cells.read(keys), strict=True)]
    # who swapped one meanwhile keeps it as well
    cells.swap([Swap(key, cell.version, cell.value, for_ms) for key, cell in found if cell is not None])
    return [key for key, cell in found if cell is None]


def batched(plan: Plan) -> Iterator[range]:
    """The numbers of its chunks, as many at a time as are read in one go."""
    for at in range(0, plan.chunks, AT_ONCE):
        yield range(at, min(plan.chunks, at + AT_ONCE))


# -- drawing up


def draw_up(
    store: Store,
    messages: Iterable[Message],
    selector: str,
    settings: Settings,
    *,
    app: Registry | None = None,
    excluded: Mapping[str, int] | None = None,
) -> Plan:
    """Freeze these resting messages in a plan, and keep it. Memory holds a chunk of them, however many they are.

    `excluded`, read once all of them were had, tells how many are not among them, by why. Raises StoreError.
    """
    made_ms = store.now_ms()
    id, digest, total, count = new_id(made_ms), hashlib.sha256(), 0, 0
    seen = _Seen(made_ms)
    for some in chunks(messages):
        value = msgspec.json.encode([m.handle for m in some])
        store.cells.swap([Swap(chunk_cell(id, count), 0, value, KEPT_MS)])
        digest.update(value)
        seen.add(some)
        total, count = total + len(some), count + 1
    plan = Plan(
        id=id,
        selector=selector,
        made_ms=made_ms,
        settings=settings,
        total=total,
        chunks=count,
        by_queue=_largest(seen.queues),
        by_task=_largest(seen.tasks),
        by_age={age: seen.ages[n] for n, age in enumerate(AGES) if seen.ages[n]},
        excluded={why: count for why, count in (excluded or {}).items() if count},
        eta_s=estimate_s(settings, total),
        dependencies=_dependencies(app, seen.tasks),
    )
    plan = replace(plan, digest=_sealed(digest, plan))
    store.cells.swap([Swap(plan_cell(id), 0, msgspec.json.encode(plan), KEPT_MS)])
    return plan


class _Seen:
    """What is counted of the messages of a plan."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.queues: Counter[str] = Counter()
        self.tasks: Counter[str] = Counter()
        self.ages: Counter[int] = Counter()  # by place in AGES

    def add(self, messages: Sequence[Message]) -> None:
        self.queues.update(m.queue for m in messages)
        self.tasks.update(m.task for m in messages)
        now_ms = self.now_ms
        self.ages.update(bisect_right(_AGES_MS, now_ms - (m.rested_ms or now_ms)) for m in messages)


def chunks(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """The messages, as many at a time as a chunk holds."""
    rest = iter(messages)
    while some := list(islice(rest, CHUNK)):
        yield some


def _largest(counts: Counter[str]) -> dict[str, int]:
    """The most first; beyond NAMES_MAX names the others together, as what is kept of a plan is bounded."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    others = sum(count for _, count in ranked[NAMES_MAX:])
    return dict(ranked[:NAMES_MAX]) | ({OTHERS: others} if others else {})


def _dependencies(app: Registry | None, tasks: Iterable[str]) -> dict[str, str]:
    """A task that names none has the one of its own name, where the app declares that."""
    if app is None:
        return {}
    named = {name: app.tasks[name].dependency or name for name in sorted(tasks) if name in app.tasks}
    return {task: d for task, d in named.items() if app.tasks[task].dependency == d or d in app.dependencies}


def _sealed(chunks: hashlib._Hash, plan: Plan) -> str:
    """The digest of a plan and of its chunks, whose bytes went into the hash one after another."""
    whole = chunks.copy()
    whole.update(msgspec.json.encode(replace(plan, digest="")))
    return whole.hexdigest()
