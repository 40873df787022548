"""A plan: the exact messages that a redrive would move, drawn up and kept, with nothing moved.

It lies in cells. `run/ID/plan` is the plan, `run/ID/c/N` its chunk N: at most 1,000 messages as they were seen. The run
that carries it out has its id, and its cells beside these (`run/ID`, …). Chunks are written as they are found and the
plan last, so that one which is cut off was never there: its chunks expire.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..errors import PlanRefused
from ..ids import new_id
from ..message import Handle, Message, Swap
from ..store import Cells, Store
from .settings import Settings, estimate_s

if TYPE_CHECKING:
    from ..app import App

CHUNK = 1000  # messages in one cell
KEPT_MS = 7 * 24 * 3_600_000  # a plan that nobody applies
AGES = (("<1h", 3_600), ("<6h", 21_600), ("<1d", 86_400), ("<7d", 604_800), ("<30d", 2_592_000))  # at rest, in s
OLDEST = ">=30d"


class Plan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run would do, and to how many.

    `selector` chose them when the clock of the store was `made_ms`. `by_age` tells how long they have been at rest:
    each age without what is under the one before it. `excluded` were left out, by why. `eta_s` is an estimate of how
    long the run takes. `dependencies` are those that the tasks of the messages call, where the app was known. `digest`
    is of all of it and of every chunk.
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


def run_cell(id: str) -> str:
    """Where the run that carries it out lies; a plan that has one was applied."""
    return f"run/{id}"


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
        raise PlanRefused(f"chunk {n} of plan {id} is not there", "it was altered, or has expired", "altered")
    try:
        return msgspec.json.decode(cell.value, type=list[Handle])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanRefused(f"chunk {n} of plan {id} cannot be read: it was altered", f"{error}", "altered") from error


# -- drawing up


def draw_up(
    store: Store,
    messages: Iterable[Message],
    selector: str,
    settings: Settings,
    *,
    app: App | None = None,
    excluded: Mapping[str, int] | None = None,
) -> Plan:
    """Freeze these resting messages in a plan, and keep it. Memory holds a chunk of them, however many they are.

    `excluded`, read once all of them were had, tells how many are not among them, by why. Raises StoreError.
    """
    made_ms = store.now_ms()
    id, digest, total, chunks = new_id(made_ms), hashlib.sha256(), 0, 0
    seen = _Seen(made_ms)
    for some in _chunks(messages):
        value = msgspec.json.encode([Handle(m.id, m.redrives, m.lane) for m in some])
        store.cells.swap([Swap(chunk_cell(id, chunks), 0, value, KEPT_MS)])
        digest.update(value)
        seen.add(some)
        total, chunks = total + len(some), chunks + 1
    plan = Plan(
        id=id,
        selector=selector,
        made_ms=made_ms,
        settings=settings,
        total=total,
        chunks=chunks,
        by_queue=_largest(seen.queues),
        by_task=_largest(seen.tasks),
        by_age={age: seen.ages[age] for age in (*(name for name, _ in AGES), OLDEST) if seen.ages[age]},
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
        self.ages: Counter[str] = Counter()

    def add(self, messages: Sequence[Message]) -> None:
        self.queues.update(m.queue for m in messages)
        self.tasks.update(m.task for m in messages)
        self.ages.update(_age(self.now_ms - (m.rested_ms or self.now_ms)) for m in messages)


def _age(ms: int) -> str:
    return next((name for name, end_s in AGES if ms < end_s * 1000), OLDEST)


def _chunks(messages: Iterable[Message]) -> Iterator[list[Message]]:
    rest = iter(messages)
    while some := list(islice(rest, CHUNK)):
        yield some


def _largest(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _dependencies(app: App | None, tasks: Iterable[str]) -> dict[str, str]:
    known = {} if app is None else app.tasks
    named = {name: known[name].dependency for name in sorted(tasks) if name in known}
    return {task: dependency for task, dependency in named.items() if dependency is not None}


def _sealed(chunks: hashlib._Hash, plan: Plan) -> str:
    """The digest of a plan and of its chunks, whose bytes went into the hash one after another."""
    whole = chunks.copy()
    whole.update(msgspec.json.encode(replace(plan, digest="")))
    return whole.hexdigest()
