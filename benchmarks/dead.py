"""What it costs to look at many dead letters, and to judge them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

from redrive.fault import Fault, Kind
from redrive.ids import new_id
from redrive.message import Discard, Filter, Handle, Lane, Message, Redrive, Return
from redrive.store import Store
from redrive.stores import open_store
from redrive.stores.postgres.store import PostgresStore

from .harness import PUT_AT_ONCE, Options, Reading, fresh

QUEUES, TASKS, FAULTS, ERRORS, RARE = 20, 50, 500, 30, 5_000
REASONS = ("exhausted", "permanent", "elapsed", "deadline", "rejected")
PAGES = {
    "queue:": Filter(queue="q1"),
    "task:": Filter(task="t1"),
    "reason:": Filter(reason="exhausted"),
    "error:": Filter(error="Error1"),
    "fingerprint:": Filter(fingerprint="print1"),
    "queue:(a,b,c)": Filter(queue=("q1", "q2", "q3")),
    "a rare reason": Filter(reason="rare"),
    "a rare error of a task": Filter(error="RareError", task="t1"),
    "a reason that none has": Filter(reason="none"),
    "a queue and a task that never meet": Filter(queue="q1", task="t2"),
}


def dead(options: Options) -> list[Reading]:
    """First pages by each field among `dead` dead messages, their failure groups, and verdicts on batches of them."""
    store = open_store(fresh(options, "dead").url + _waiting(options))
    fill(store, options.dead)
    if isinstance(store, PostgresStore):  # as the server does by itself, a minute after so many came
        vacuum(store)
    times = partial(_times, options.rounds)
    soon, at_once = ("≤ 1", "≤ 100") if options.engine.name != "redis" else (None, None)  # which has no such indexes
    found = [
        Reading("failure groups", "s", times(store.failure_groups), soon),
        Reading("with their trend", "s", times(lambda: store.failure_groups(trend=True)), soon),
    ]
    for name, where in PAGES.items():
        took_s = times(partial(store.peek, Lane.DEAD, where=where, limit=100))
        found.append(Reading(f"first page, {name}", "ms", [s * 1000 for s in took_s], at_once))
    tenth = options.dead // 10
    found.append(Reading(f"read {tenth:,} page by page", "s", times(lambda: _read(store, tenth))))
    found += _verdicts(store, options.rounds)
    store.close()
    return found


def fill(store: Store, count: int) -> None:
    """So many dead messages of many kinds, one after the other within the last month."""
    now_ms, each_ms = store.now_ms(), 30 * 24 * 3_600_000 // count
    for first in range(0, count, PUT_AT_ONCE):
        some = range(first, min(count, first + PUT_AT_ONCE))
        store.restore([_died(n, now_ms - (count - n) * each_ms) for n in some])


def _died(n: int, rested_ms: int) -> Message:
    id, kind = new_id(rested_ms), n * 7919  # which deals kinds out anew in each round of the queues
    error = "RareError" if n % RARE == 7 else f"Error{kind % ERRORS}"
    trace = 'File "app.py", line 7, in push\n' * 12
    fault = Fault(Kind.DEFAULT, error, f"order {n} was refused", f"print{kind % FAULTS}", traceback=trace)
    return Message(
        id,
        f"t{kind % TASKS}",
        f"q{n % QUEUES}",
        b'{"args":[%d],"tenant":"acme"}' % n,
        id,
        Lane.DEAD,
        attempt=3,
        fence=3,
        enqueued_ms=rested_ms - 60_000,
        life_ms=rested_ms - 60_000,
        reason="rare" if n % RARE == 9 else REASONS[n // 7 % len(REASONS)],
        rested_ms=rested_ms,
        faults=(fault,),
    )


def _times(rounds: int, do: Callable[[], object]) -> list[float]:
    """In seconds; the first time is for nothing."""
    do()
    took: list[float] = []
    for _ in range(rounds):
        begun = time.perf_counter()
        do()
        took.append(time.perf_counter() - begun)
    return took


def _read(store: Store, count: int) -> None:
    cursor = None
    while count > 0:
        page = store.peek(Lane.DEAD, limit=500, cursor=cursor)
        count, cursor = count - len(page.messages), page.cursor
        if cursor is None:
            return


def _verdicts(store: Store, rounds: int) -> list[Reading]:
    """On a thousand at a time."""
    took: dict[str, list[float]] = {"redriven by a run": [], "returned": [], "discarded": []}
    for _ in range(rounds):
        dead = [Handle(m.id, m.redrives, Lane.DEAD) for m in store.peek(Lane.DEAD, limit=1000).messages]
        ready = [Handle(id, redrives + 1, Lane.READY) for id, redrives, _ in dead]
        judged = ((dead, Redrive(run="r")), (ready, Return("r")), (dead, Discard("measured")))
        for name, (handles, verdict) in zip(took, judged, strict=True):
            begun = time.perf_counter()
            done = store.triage(handles, verdict)
            took[name].append((time.perf_counter() - begun) * 1000)
            if not all(done):
                raise RuntimeError(f"{done.count(False)} of {len(done)} messages were not {name}")
    return [Reading(f"1,000 {name}", "ms", values) for name, values in took.items()]


def vacuum(store: PostgresStore) -> None:
    with closing(store._link.connect(time.monotonic() + 60)) as c:
        c.deadline_s = time.monotonic() + 600
        c.execute("set statement_timeout = 0")
        c.execute(f"vacuum analyze {store._link.schema}.message".encode())


def _waiting(options: Options) -> str:
    """Longer than by default: it is to be told how long it takes."""
    if options.engine.server is None:
        return ""
    return "&timeout=100"
