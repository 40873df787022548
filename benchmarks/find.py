"""What it costs to find waiting messages where very many wait."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from redrive.message import Draft
from redrive.store import Store
from redrive.stores import open_store
from redrive.stores.postgres.store import PostgresStore
from redrive.triage.selection import Selection

from .dead import vacuum
from .harness import PUT_AT_ONCE, Options, Reading, fresh

QUEUES, TASKS, GROUPS, TENANTS, DAY_MS = 20, 50, 1_000, 200_000, 24 * 3_600_000
SHOWN = 50  # messages of a first page
INDEXED = ("by id", "by queue")


def find(options: Options) -> list[Reading]:
    """First pages, and counts, of what waits among `backlog` messages: p50 and p95 in ms, by what is asked for."""
    store = open_store(fresh(options, "find").url)
    ids = _fill(store, options.backlog)
    if isinstance(store, PostgresStore):  # as the server does by itself, a minute after so many came
        vacuum(store)
    draw, found = random.Random(5), list[Reading]()
    for name, selector in _asked(ids).items():
        wanted = "≤ 100" if name in INDEXED else None
        found += _read(f"{name}, page", options.rounds, lambda s=selector: _page(store, s(draw)), wanted)  # type: ignore[misc]
        found += _read(f"{name}, count", options.rounds, lambda s=selector: _count(store, s(draw)), None)  # type: ignore[misc]
    store.close()
    return found


def _asked(ids: list[str]) -> dict[str, Callable[[random.Random], str]]:
    return {
        "by id": lambda draw: f"id:{draw.choice(ids)}",
        "by queue": lambda draw: f"queue:q{draw.randrange(QUEUES)}",
        "by lane": lambda draw: "lane:scheduled",
        "in line in groups": lambda draw: "lane:parked",
        "by queue and task": lambda draw: f"queue:q{draw.randrange(QUEUES)} task:t{draw.randrange(TASKS)}",
        "by group": lambda draw: f"group:g{draw.randrange(GROUPS)}",
        "by key": lambda draw: f"key:k{draw.randrange(10**6)}",
        "by due time": lambda draw: "lane:scheduled due:<10m",
        "by argument": lambda draw: f"args.tenant:acme-{draw.randrange(TENANTS)}",
        "by a bare word": lambda draw: f"acme-{draw.randrange(TENANTS)}",
    }


def _page(store: Store, selector: str) -> str:
    selection = Selection(store, selector, every=True).bounded()
    shown = len(list(selection.messages(SHOWN)))
    return f"{shown} shown" + (f", looked at the first {selection.looked:,}" if selection.cut else "")


def _count(store: Store, selector: str) -> str:
    return str(Selection(store, selector, every=True).counted())


def _read(name: str, rounds: int, ask: Callable[[], str], wanted: str | None) -> list[Reading]:
    took_ms, said = list[float](), ""
    for _ in range(max(5, rounds)):
        begun = time.perf_counter()
        said = ask()
        took_ms.append((time.perf_counter() - begun) * 1000)
    p95 = statistics.quantiles(took_ms, n=20, method="inclusive")[-1]
    print(f"{name:30} p50 {statistics.median(took_ms):8.1f} ms  p95 {p95:8.1f} ms  {said}", flush=True)
    return [Reading(name, "ms", took_ms, wanted)]


def _fill(store: Store, count: int) -> list[str]:
    """Put so many: half of them in groups, a tenth with a key, due now or within a day. Return the id of each 100th."""
    draw, now_ms, ids = random.Random(3), store.now_ms(), list[str]()
    for at in range(0, count, PUT_AT_ONCE):
        some = range(at, min(count, at + PUT_AT_ONCE))
        puts = store.put([_draft(n, now_ms, draw) for n in some])
        ids += [put.id for n, put in zip(some, puts, strict=True) if n % 100 == 0]
    assert store.counts().waiting == count
    return ids


def _draft(n: int, now_ms: int, draw: random.Random) -> Draft:
    due_ms = now_ms + draw.randrange(DAY_MS) if draw.random() < 0.75 else None
    return Draft(
        task=f"t{n % TASKS}",
        queue=f"q{n % QUEUES}",
        body=b'{"tenant":"acme-%d","total":%d}' % (n % TENANTS, n),
        due_ms=due_ms,
        group=f"g{n % GROUPS}" if n % 2 else None,
        key=f"k{n}" if n % 10 == 0 else None,
    )
